"""Danger: forks, spawns, threads, pickles, users without rights, and ten thousand of everything."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ocrstore

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_every_kind_of_process(make_store, run_driver):
    """Opened in the parent, a store works in forked, spawned, served and nested children."""
    path = make_store()
    found = {line.pop("kind"): line for line in run_driver("processes.py", path)}
    memory = found.pop("memory", None)
    assert found == {kind: {"same": True} for kind in ("fork", "spawn", "forkserver", "nested")}
    if memory:  # a child has the parent's pages in the page cache, and none of its own
        assert memory["Rss"] > 0
        assert memory["Anonymous"] == memory["Private_Dirty"] == 0
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_threads_share_a_store(make_store):
    """Many threads read one store at once and see what one thread sees."""
    store = ocrstore.open(make_store(samples=100))

    def use(seed):
        for row in np.random.default_rng(seed).integers(0, 100, 50):
            assert (store["tensor"][int(row)] == row).all()
            assert store.row(f"s{row}") == row
            assert len(store["text"][int(row)]) == row % 7
        return store["tensor"][0:64].shape

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(use, range(16))) == {(64, 64, 64, 3)}


def test_pickling_sends_a_reference(make_store, tmp_path, monkeypatch):
    """A pickled store is a path, a generation and a fingerprint, wherever it was opened from."""
    path = make_store()
    monkeypatch.chdir(path.parent)
    store = ocrstore.open(path.name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    data = pickle.dumps(store)
    assert len(data) < 1000
    copy = pickle.loads(data)
    assert (copy["tensor"][5] == store["tensor"][5]).all()
    assert copy.generation == store.generation
    assert store.refresh() is False


def test_a_pickled_store_is_the_one_that_was_pickled(make_store):
    """The receiver gets the sender's content, also after an append or compaction, or an error."""
    path = make_store()
    store = ocrstore.open(path)
    data = pickle.dumps(store)
    with ocrstore.edit(path) as writer:
        writer.delete("s0")
    copy = pickle.loads(data)
    assert (copy.generation, copy.keys) == (store.generation, store.keys)
    newer = pickle.dumps(ocrstore.open(path))
    ocrstore.compact(path)  # drops the first generation; the newest one's content stays
    assert pickle.loads(newer).keys == store.keys[1:]
    with pytest.raises(ocrstore.StoreChangedError, match="was replaced"):
        pickle.loads(data)
    make_store("other.ocrs", samples=2).replace(path)
    with pytest.raises(ocrstore.StoreChangedError, match="was replaced"):
        pickle.loads(newer)


@pytest.mark.skipif(sys.platform == "win32", reason="permission bits are of POSIX")
def test_a_reader_without_rights(public_path, make_store, run_driver):
    """A 0444 file in a 0555 folder can be read; writing is refused clearly; nothing is left."""
    folder = public_path / "read-only"
    folder.mkdir()
    path = folder / "store.ocrs"
    shutil.copyfile(make_store(samples=3), path)
    content, listing = path.read_bytes(), sorted(folder.iterdir())
    path.chmod(0o444)
    folder.chmod(0o555)
    try:
        (found,) = run_driver("reader_as_nobody.py", path)
    finally:
        folder.chmod(0o755)
    assert (found["writable"], found["ok"], found["rows"]) == (False, True, 3)
    assert found["total"] == 64 * 64 * 3 * (0 + 1 + 2)
    assert len(found["errors"]) == 5
    for message in found["errors"]:
        assert "Permission denied" in message
        assert str(folder) in message
    assert path.read_bytes() == content
    assert sorted(folder.iterdir()) == listing


READ_ONLY = """
import os, sys
import ocrstore

harmless = ("os.listdir", "os.scandir", "os.putenv", "os.unsetenv")

def hook(event, arguments):
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        print("opened for writing:", arguments)
    if event.startswith(("os.", "shutil.", "tempfile.")) and event not in harmless:
        print(event, arguments)

sys.addaudithook(hook)
store = ocrstore.open(sys.argv[1])
store["tensor"][:], store["text"][:], store.keys, store.refresh()
ocrstore.verify(sys.argv[1])
store.close()
"""


def test_reading_opens_nothing_for_writing(make_store):
    """By the interpreter's own account, opening, reading and verifying change and make no file."""
    path = make_store()
    before = path.stat()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-c", READ_ONLY, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def _counts(path):
    """Count open files, mappings of a store, and KiB of this process' own memory."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    anonymous = int(status.split("RssAnon:")[1].split()[0])
    maps = Path("/proc/self/maps").read_text().count(str(path))
    return len(list(Path("/proc/self/fd").iterdir())), maps, anonymous


@LINUX
@pytest.mark.slow
def test_ten_thousand_opens_leak_nothing(tmp_path):
    """10,000 times open, read, close: no descriptor, no mapping, no memory stays."""
    path = tmp_path / "store.ocrs"
    with ocrstore.create(path, {"tensor": ocrstore.Column("uint8", (5000,))}) as writer:
        for number in range(2):
            writer.append(f"s{number}", {"tensor": np.full(5000, number, "u1")})

    def cycle(times):
        for number in range(times):
            store = ocrstore.open(path)
            array = store["tensor"][1]
            if number % 2:
                store.close()
            assert array[0] == 1

    cycle(200)
    before = _counts(path)
    cycle(10_000)
    after = _counts(path)
    assert after[:2] == (before[0], 0)
    assert after[2] - before[2] < 4096  # KiB: 400 bytes lost at every open would show


@LINUX
def test_failing_opens_and_writers_leak_nothing(make_store, tmp_path):
    """Neither do errors, writers and their mappings."""
    path = make_store(samples=2)
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"x" * 10_000)
    arrays = {name: ocrstore.open(path)[name][1] for name in ("image", "tensor", "text")}

    def cycle(times):
        for number in range(times):
            for wrong in (garbage, tmp_path, tmp_path / "absent"):
                with pytest.raises(ocrstore.NotAStoreError):
                    ocrstore.open(wrong)
            with pytest.raises(ocrstore.UnknownGenerationError):
                ocrstore.open(path, generation=99999)
            with pytest.raises(ZeroDivisionError), ocrstore.edit(path) as writer:
                writer.append("new", arrays, attributes={"number": 1})
                raise ZeroDivisionError
            with pytest.raises(ocrstore.StoreExistsError):
                ocrstore.create(path, {})
            with pytest.raises(ocrstore.SchemaError):
                ocrstore.add_column(path, "new", "not a column", [])
            with pytest.raises(ocrstore.SchemaError):
                ocrstore.add_column(path, f"new{number}", ocrstore.Column("uint8"), [[1]] * 2)

    cycle(5)
    before = _counts(path)
    cycle(30)
    assert _counts(path)[:2] == before[:2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
# later Pythons warn of forking beside threads; the child here only waits and ends
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("way", ["close", "forget"])
def test_a_forked_child_does_not_keep_the_lock(make_store, way):
    """A worker forked while a writer is open does not block the next writer for its lifetime."""
    path = make_store()
    writer = ocrstore.edit(path)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)  # lives until the parent lets go of the pipe
        try:
            writer.delete("s0")
        except ocrstore.StoreClosedError:
            os._exit(7)
        os._exit(1)
    try:
        if way == "close":
            writer.close()
        else:
            del writer
        with ocrstore.edit(path) as again:
            again.delete("s1")
    finally:
        os.close(writing)
        status = os.waitpid(child, 0)[1]
        os.close(reading)
    assert os.WEXITSTATUS(status) == 7
    assert ocrstore.verify(path).ok
