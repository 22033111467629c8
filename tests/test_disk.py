"""Danger: the disk fails or is full, or another process writes or reads at the same time."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import lmdb
import numpy as np
import pytest

import ocrstore
from ocrstore.format import lmdb_update, writer
from ocrstore.format.publish import partial_path

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")
# later Pythons warn of forking beside threads; the children here do one thing and end
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
SPEC = {"a": ocrstore.Column("uint8", (100_000,))}


def _fill(target, start=0, stop=20):
    for number in range(start, stop):
        target.append(f"s{number}", {"a": np.full(100_000, number, np.uint8)})


def _create(path, *, samples=20, **options):
    with ocrstore.create(path, SPEC, group_rows=4, **options) as target:
        _fill(target, 0, samples)
    return path


def _check_whole(path, samples):
    """The store is sound and has so many samples, and nothing lies beside it."""
    assert ocrstore.verify(path).ok
    with ocrstore.open(path) as store:
        assert len(store) == samples
        assert all((store["a"][row] == row).all() for row in range(samples))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def _in_child(function):
    """Run a function in a forked child; return what it returned as text, or its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = str(function())
        except BaseException as exc:
            answer = f"{type(exc).__name__}: {exc}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    os.waitpid(child, 0)
    return answer


@contextmanager
def _busy(path, write):
    """Have another process hold a writer on the store."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            held = write(path)
            os.write(told, b"x")
            signal.pause()
            held.close()
        finally:
            os._exit(1)
    os.close(told)
    try:
        assert os.read(ready, 1) == b"x"
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)


# -- a disk that fails


def test_every_system_call_fails_once(run_driver, quick_path, faults_library):
    """ENOSPC or EIO from each write, sync and rename: a clear error, and nothing is lost."""
    counts = run_driver("faults.py", quick_path, LD_PRELOAD=faults_library)
    assert len(counts) == 7
    assert all(line["reported"] >= 5 for line in counts)


@POSIX
@pytest.mark.parametrize("limit", [50_000, 700_000, 1_500_000])
def test_file_size_limit(quick_path, limit):
    """A file that may not grow: the build says so, and leaves nothing behind."""
    import resource

    path = quick_path / "store.ocrs"

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return _create(path)

    answer = _in_child(limited)
    assert answer.startswith("WriteError")
    assert "File too large" in answer
    assert "Free some space" in answer
    assert list(quick_path.iterdir()) == []
    _create(path)

    def append():
        size = path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + limit, size + limit))
        with ocrstore.edit(path) as target:
            _fill(target, 20, 60)

    # a write that finds room for its first part only is an input/output error to LMDB
    assert "free some space" in _in_child(append).lower()
    _check_whole(path, 20)


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of 3 MB, where that is allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux's mount")
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk(small_disk):
    """On a disk that is really full: a clear error, and the store is whole as it was."""
    path = small_disk / "store.ocrs"
    _create(path, samples=10)
    for write in (
        lambda: _create(path, samples=40, overwrite=True),
        lambda: _create(small_disk / "other.ocrs", samples=40),
    ):
        with pytest.raises(ocrstore.WriteError, match=r"No space left.*Free some space"):
            write()
        _check_whole(path, 10)
    # a write that finds room for its first part only is an input/output error to LMDB
    target = ocrstore.edit(path)
    with pytest.raises(ocrstore.WriteError, match=r"(?i)free some space"), target:
        _fill(target, 10, 60)
    _check_whole(path, 10)
    with ocrstore.edit(path) as target:  # what the failed append wrote is used again
        _fill(target, 10, 12)
    _check_whole(path, 12)


def test_resumable_build_survives_a_full_disk(small_disk):
    """What a resumable build had written is taken up when there is room again."""
    path, ballast = small_disk / "store.ocrs", small_disk / "ballast"
    ballast.write_bytes(bytes(1_500_000))
    with pytest.raises(ocrstore.WriteError, match="No space left"):
        _create(path, resume="work")
    assert not path.exists()
    ballast.unlink()
    with ocrstore.create(path, SPEC, resume="work", group_rows=4) as target:
        assert target.resumed >= 4
        _fill(target, target.resumed, 20)
    _check_whole(path, 20)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_failing_fsync(quick_path, monkeypatch, error):
    """What could not be brought onto the disk is not published; the store before it stays."""
    path = _create(quick_path / "store.ocrs", samples=4)

    def failing(descriptor):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", failing)
    for write in (
        lambda: _create(path, overwrite=True),
        lambda: _create(quick_path / "new.ocrs"),
        lambda: ocrstore.compact(path),
    ):
        with pytest.raises(ocrstore.WriteError, match=os.strerror(error)):
            write()
        _check_whole(path, 4)


def test_errors_of_lmdb_are_translated(quick_path, monkeypatch):
    """Errors of LMDB are raised as errors of ocrstore; the lock is released."""
    path = _create(quick_path / "store.ocrs", samples=4)
    for failure in (lmdb.DiskError("disk"), lmdb.MapFullError("full"), OSError(errno.EIO, "input")):

        def fail(*args, failure=failure, **options):
            raise failure

        monkeypatch.setattr(lmdb_update.lmdb, "open", fail)
        with pytest.raises(ocrstore.WriteError, match=r"store\.ocrs.*cannot be written"):
            ocrstore.edit(path)
        monkeypatch.undo()
        _check_whole(path, 4)
        ocrstore.edit(path).abort()


def test_targets_that_cannot_be_written(tmp_path):
    """A folder that is not there, a folder in the place of the file, an existing store."""
    with pytest.raises(ocrstore.WriteError, match="does not exist"):
        ocrstore.create(tmp_path / "absent" / "store.ocrs", SPEC)
    with pytest.raises(ocrstore.StoreExistsError, match="is a directory"):
        ocrstore.create(tmp_path, SPEC, overwrite=True)
    path = _create(tmp_path / "store.ocrs", samples=1)
    with pytest.raises(ocrstore.StoreExistsError, match="overwrite=True"):
        ocrstore.create(path, SPEC)
    _check_whole(path, 1)


# -- two writers

WRITERS = {
    "append": ocrstore.edit,
    "compact": ocrstore.compact,
    "create": lambda path: ocrstore.create(path, SPEC, overwrite=True),
    "resume": lambda path: ocrstore.create(path, SPEC, overwrite=True, resume="work"),
    "add_column": lambda path: ocrstore.add_column(
        path, "b", ocrstore.Column("uint8"), np.zeros(4, "u1")
    ),
}


@POSIX
@pytest.mark.parametrize("first", ["append", "create"])
@pytest.mark.parametrize("place", ["other process", "same process"])
def test_two_writers(quick_path, first, place):
    """While one writer is at work, every other one is refused and harms nothing."""
    path = _create(quick_path / "store.ocrs", samples=4)

    def refuse():
        for second, write in WRITERS.items():
            with pytest.raises(ocrstore.StoreBusyError, match="is writing"):
                write(path)
            assert partial_path(path).exists() == (first == "create"), second
            assert len(ocrstore.open(path)) == 4  # readers do not mind

    if place == "other process":
        with _busy(path, WRITERS[first]):
            refuse()
    else:
        held = WRITERS[first](path)
        refuse()
        held.abort()
    for write in WRITERS.values():  # what is killed or stopped holds nothing
        held = write(path)
        if held is not None:
            held.abort()
    if partial_path(path).exists():
        _create(path, samples=4, overwrite=True)
    assert ocrstore.verify(path).ok
    assert [entry.name for entry in quick_path.iterdir()] == [path.name]


def test_a_store_that_appears_while_waiting_is_not_overwritten(quick_path, monkeypatch):
    """A writer that publishes between another's check and lock does not lose its store."""
    path = quick_path / "store.ocrs"
    take = writer.FileLock

    def late(*args, **options):
        monkeypatch.undo()
        _create(path, samples=4)
        return take(*args, **options)

    monkeypatch.setattr(writer, "FileLock", late)
    with pytest.raises(ocrstore.StoreExistsError):
        ocrstore.create(path, SPEC)
    _check_whole(path, 4)


def test_arrays_by_key_are_ordered_under_the_lock(quick_path):
    """While add_column asks for the arrays, no other writer can change the order of rows."""
    path = _create(quick_path / "store.ocrs", samples=4)

    class Arrays(dict):
        def __getitem__(self, key):
            with pytest.raises(ocrstore.StoreBusyError):
                ocrstore.edit(path)
            return super().__getitem__(key)

    arrays = Arrays({f"s{number}": np.uint8(number) for number in reversed(range(4))})
    ocrstore.add_column(path, "b", ocrstore.Column("uint8"), arrays)
    assert [int(value) for value in ocrstore.open(path)["b"]] == [0, 1, 2, 3]


# -- readers beside writers


@POSIX
@pytest.mark.parametrize("change", ["append", "delete", "add_column", "compact", "overwrite"])
def test_a_reader_keeps_what_it_opened(quick_path, change):
    """What another process does is not seen before refresh(), and then it is."""
    path = _create(quick_path / "store.ocrs", samples=10)
    store = ocrstore.open(path)
    column, taken = store["a"], store["a"][3]

    def act():
        if change == "append":
            with ocrstore.edit(path) as target:
                _fill(target, 10, 20)
        elif change == "delete":
            with ocrstore.edit(path) as target:
                target.delete("s3")
                target.replace("s4", {"a": np.zeros(100_000, np.uint8)})
        elif change == "overwrite":
            _create(path, samples=2, overwrite=True)
        elif change == "compact":
            ocrstore.compact(path)
        else:
            ocrstore.add_column(path, "b", ocrstore.Column("uint8"), np.arange(10, dtype="u1"))

    assert _in_child(act) == "None"
    assert (len(store), store.generation, store.generations) == (10, 1, [1])
    assert all((column[row] == row).all() for row in range(10))
    assert store.keys == tuple(f"s{number}" for number in range(10))
    assert store.row("s3") == 3
    assert list(store.columns) == ["a"]
    assert store.refresh() is True
    assert len(store) == {"append": 20, "delete": 9, "overwrite": 2}.get(change, 10)
    assert ("b" in store) == (change == "add_column")
    assert store.keys == ocrstore.open(path).keys
    assert store.refresh() is False
    assert (taken == 3).all()
    assert (column[9] == 9).all()
    old = change not in ("compact", "overwrite")
    assert store.generations == ([1, 2] if old else [2 if change == "compact" else 1])
    if old:
        assert len(ocrstore.open(path, generation=1)) == 10


@POSIX
@pytest.mark.parametrize("change", ["append", "compact", "create"])
def test_opening_beside_a_busy_writer(run_driver, quick_path, change):
    """Opened in a loop while a writer changes it in a loop, a store is always one whole state."""
    (counts,) = run_driver("race.py", quick_path, change)
    assert counts["opened"] >= 100
    assert counts["states"] >= 5


# -- compact


def test_compact_does_not_bless_damage(quick_path):
    """A flipped bit is not copied with a hash that matches it; the error names the sample."""
    path = _create(quick_path / "store.ocrs", samples=10)
    with path.open("r+b") as file:
        file.seek(int(ocrstore.open(path)["a"].offsets[7]) + 5)
        file.write(b"\xff")
    damaged = path.read_bytes()
    with pytest.raises(ocrstore.CorruptStoreError, match="sample 's7', column 'a'"):
        ocrstore.compact(path)
    assert path.read_bytes() == damaged
    assert [entry.name for entry in quick_path.iterdir()] == [path.name]
    with ocrstore.edit(path) as target:
        target.replace("s7", {"a": np.full(100_000, 7, np.uint8)})
    ocrstore.compact(path)
    _check_whole(path, 10)


@POSIX
def test_compact_keeps_permissions_and_links(quick_path):
    """A private store stays private, and a symbolic link goes on pointing to the store."""
    (quick_path / "real").mkdir()
    path = _create(quick_path / "real" / "store.ocrs", samples=4)
    path.chmod(0o600)
    link = quick_path / "link.ocrs"
    link.symlink_to(path)
    ocrstore.compact(link)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600
    assert ocrstore.open(link).history[-1]["action"] == "compact"
    _check_whole(path, 4)


def test_added_jpeg_columns_hold_jpeg_bytes(quick_path):
    """An array for a jpeg column is refused by add_column too, rather than stored as something."""
    path = _create(quick_path / "store.ocrs", samples=1)
    spec = ocrstore.Column("uint8", (None, None, 3), codec="jpeg")
    with pytest.raises(ocrstore.SchemaError, match="Encoded"):
        ocrstore.add_column(path, "picture", spec, [np.zeros((4, 4, 3), "u1")])
    ocrstore.add_column(path, "picture", spec, [ocrstore.Encoded(b"\xff\xd8...", (4, 4, 3))])
    assert bytes(ocrstore.open(path)["picture"].stored(0)) == b"\xff\xd8..."
    assert ocrstore.verify(path, quick=True).ok  # the bytes are those that were written
    (finding,) = ocrstore.verify(path).findings
    assert finding.column == "picture" and "JPEG" in finding.message


def test_a_target_that_appears_meanwhile_is_not_replaced(quick_path):
    """A file that appears at the target during a build is kept; the build says so."""
    target = quick_path / "a.ocrs"
    with (
        pytest.raises(ocrstore.StoreExistsError, match="overwrite"),
        ocrstore.create(target, {}) as writer,
    ):
        writer.append("a", {})
        target.write_text("somebody else's")
    assert target.read_text() == "somebody else's"
    assert [path.name for path in quick_path.iterdir()] == ["a.ocrs"]
