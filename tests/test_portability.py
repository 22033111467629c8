"""Danger: a system without what Linux has. What is chosen at run time is run here both ways.

Not run here: LMDB files with pages other than 4096 bytes can be written only on a machine whose
memory pages have that size; the reader's arithmetic for them is tested on crafted files elsewhere.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ocrstore
from ocrstore.format import lmdb_writer, lock, mapped_file, publish
from ocrstore.format.mapped_file import MappedFile
from ocrstore.inspection.facts import summarize

fcntl = pytest.importorskip("fcntl", reason="where it is missing, the fallbacks run anyway")
SPEC = {"a": ocrstore.Column("uint8", (5000,))}


class FakeLocks:
    """Behaves as `msvcrt` does: locks bytes at the file's position, or refuses with EACCES."""

    LK_NBLCK = 2

    def __init__(self):
        self.calls = 0

    def locking(self, descriptor, mode, nbytes):
        """Lock; closing the descriptor unlocks."""
        assert (mode, nbytes) == (self.LK_NBLCK, 1)
        assert os.lseek(descriptor, 0, os.SEEK_CUR) > 2**40, "a store may reach the locked byte"
        self.calls += 1
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise PermissionError(errno.EACCES, "Permission denied") from exc


def _same(descriptor, status):
    try:
        own = os.fstat(descriptor)
    except OSError:  # that of the listing itself
        return False
    return (own.st_dev, own.st_ino) == (status.st_dev, status.st_ino)


def is_in_use(path, dir_fd=None):
    """Tell whether this process has the file open or mapped."""
    status = os.stat(path, dir_fd=dir_fd)  # relative to a folder, as rmtree has it
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    maps = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    mapped = any(words[3:5] == [device, str(status.st_ino)] for words in maps)
    return mapped or any(_same(int(name), status) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208


def refuse_files_in_use(monkeypatch):
    """Let removing and renaming fail as on Windows, for a file that this process has in use."""
    unlink, replace = os.unlink, os.replace

    def checked_unlink(path, *, dir_fd=None):
        if is_in_use(path, dir_fd):
            raise PermissionError(errno.EACCES, "in use", os.fspath(path))
        unlink(path, dir_fd=dir_fd)

    def checked_replace(source, target):
        for path in (source, target):
            if Path(path).exists() and is_in_use(path):
                raise PermissionError(errno.EACCES, "in use", os.fspath(path))
        replace(source, target)

    monkeypatch.setattr(os, "unlink", checked_unlink)
    monkeypatch.setattr(os, "replace", checked_replace)


@pytest.fixture
def windows(monkeypatch):
    """Let everything take the branches of Windows, as far as they can run here."""
    system = SimpleNamespace(platform="win32")
    monkeypatch.setattr(lock, "sys", system)
    monkeypatch.setattr(publish, "sys", system)
    locks = FakeLocks()
    monkeypatch.setattr(lock, "msvcrt", locks, raising=False)
    monkeypatch.delattr(os, "fdatasync", raising=False)
    monkeypatch.delattr(os, "O_CLOEXEC", raising=False)
    if sys.platform.startswith("linux"):
        refuse_files_in_use(monkeypatch)
    return locks


def _create(path, samples=4, **options):
    with ocrstore.create(path, SPEC, **options) as writer:
        for number in range(samples):
            writer.append(f"s{number}", {"a": np.full(5000, number, np.uint8)})
    return path


def _change(path):
    """Do all that writes to a store."""
    with ocrstore.edit(path) as writer:
        writer.append("new", {"a": np.full(5000, 9, np.uint8)})
    ocrstore.add_column(path, "b", ocrstore.Column("uint8"), np.arange(5, dtype="u1"))
    ocrstore.compact(path)
    assert ocrstore.verify(path).ok
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    with ocrstore.open(path) as store:
        return store.fingerprint


def test_windows_locks(quick_path, windows):
    """One writer at a time holds with the locks of Windows too, and all operations work."""
    path = _create(quick_path / "store.ocrs")
    writer = ocrstore.edit(path)
    assert windows.calls
    for write in (
        lambda: ocrstore.edit(path),
        lambda: ocrstore.compact(path),
        lambda: ocrstore.create(path, SPEC, overwrite=True),
    ):
        with pytest.raises(ocrstore.StoreBusyError):
            write()
    writer.abort()
    _change(path)


only_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@only_linux
def test_an_abort_removes_the_file_and_keeps_the_error(quick_path, windows):
    """The hidden file is closed before it is removed, so the error of the block is what is seen."""
    path = quick_path / "store.ocrs"
    with pytest.raises(ZeroDivisionError), ocrstore.create(path, SPEC) as writer:
        writer.append("x", {"a": np.ones(5000, np.uint8)})
        1 / 0
    with pytest.raises(ocrstore.SchemaError):
        ocrstore.create(path, SPEC, metadata={"x": object()})
    assert list(quick_path.iterdir()) == []


@only_linux
def test_a_failing_compact_leaves_nothing(quick_path, windows):
    """A damaged row is what is reported, and the hidden file is gone."""
    path = _create(quick_path / "store.ocrs")
    with ocrstore.open(path) as store:
        row = store["a"][2].tobytes()
    del store
    data = path.read_bytes()
    path.write_bytes(data.replace(row, row[:-1] + b"x"))
    with pytest.raises(ocrstore.CorruptStoreError, match="'s2'"):
        ocrstore.compact(path)
    assert list(quick_path.iterdir()) == [path]


@only_linux
def test_interrupted_work_is_resumed(quick_path, windows):
    """What was read of the hidden file is unmapped when it is renamed."""
    path = quick_path / "store.ocrs"
    one = {"a": np.ones(5000, np.uint8)}
    options = {"resume": "work", "group_rows": 1}
    for _ in range(2):  # the second goes on with what the first has written
        writer = ocrstore.create(path, SPEC, **options)
        for number in range(len(writer), len(writer) + 2):
            writer.append(f"s{number}", one)
        writer.abort()
    with ocrstore.create(path, SPEC, **options) as writer:
        assert writer.resumed == 4
    for last in (False, True):
        writer = ocrstore.edit(path, **options)
        writer.append("later" if last else "new", one)
        writer.close() if last else writer.abort()
    assert [entry.name for entry in quick_path.iterdir()] == [path.name]
    with ocrstore.open(path) as store:
        assert list(store.keys) == ["s0", "s1", "s2", "s3", "new", "later"]


@only_linux
@pytest.mark.parametrize("write", ["compact", "overwrite", "resumable"])
def test_a_store_that_is_open_is_not_replaced(quick_path, windows, write):
    """The error says what to do, the reader goes on; afterwards the same call works."""
    path = _create(quick_path / "store.ocrs")
    options = {"overwrite": True, **({"resume": "work"} if write == "resumable" else {})}

    def replace():
        ocrstore.compact(path) if write == "compact" else _create(path, **options)

    with ocrstore.open(path) as store:
        row = store["a"][3]
        with pytest.raises(ocrstore.WriteError, match=r"store\.ocrs: .* has it open.*Close"):
            replace()
        assert row.sum() == 15000
    hidden = [entry.name for entry in quick_path.iterdir() if entry != path]
    assert hidden == ([".store.ocrs.partial"] if write == "resumable" else [])
    del row, store
    with pytest.raises(ocrstore.SchemaError, match="exists already") if hidden else nullcontext():
        replace()
    if hidden:
        with ocrstore.create(path, SPEC, **options) as writer:
            assert writer.resumed == 4
    assert ocrstore.verify(path).ok
    assert [entry.name for entry in quick_path.iterdir()] == [path.name]


def test_stores_are_the_same_either_way(quick_path, monkeypatch, request):
    """What is written with the fallbacks is what is written without them."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    linux = _create(quick_path / "store.ocrs")
    fingerprint = _change(linux)
    content = linux.read_bytes()
    linux.unlink()
    request.getfixturevalue("windows")
    other = _create(quick_path / "store.ocrs")
    assert _change(other) == fingerprint
    assert other.read_bytes() == content


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EACCES, errno.EBADF, errno.ENOTSUP])
def test_a_directory_that_cannot_be_synced(quick_path, monkeypatch, number):
    """Some file systems refuse to sync a folder: the store is published all the same."""
    sync = os.fsync
    refused = []

    def picky(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112
            refused.append(descriptor)
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", picky)
    path = _create(quick_path / "store.ocrs")
    assert refused or not sys.platform.startswith("linux")
    assert ocrstore.verify(path).ok


def test_without_fdatasync(quick_path, monkeypatch):
    """macOS has no fdatasync: fsync does it."""
    monkeypatch.delattr(os, "fdatasync", raising=False)
    calls = []
    sync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (calls.append(descriptor), sync(descriptor))
    )
    assert ocrstore.verify(_create(quick_path / "store.ocrs")).ok
    assert len(calls) >= 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux's mincore")
def test_resident_bytes_with_mincore(make_store):
    """What was just written is in the page cache; a file in memory is so in full."""
    opened = MappedFile(make_store())
    assert bytes(opened.buffer[:4096])  # in case its pages have been written and dropped meanwhile
    resident = opened.resident_nbytes()
    assert resident is not None
    assert 0 < resident <= opened.nbytes


@pytest.mark.parametrize("lack", ["windows", "no function", "no library", "refusal"])
def test_resident_bytes_without_mincore(make_store, monkeypatch, lack):
    """Where nobody can tell what is in memory, the answer is None, and summaries work."""
    path = make_store()

    def fail(*args, **options):
        raise OSError("no library")

    if lack == "windows":
        monkeypatch.setattr(mapped_file, "sys", SimpleNamespace(platform="win32"))
    elif lack == "no function":
        monkeypatch.setattr(mapped_file.ctypes, "CDLL", lambda *args, **options: object())
    elif lack == "no library":
        monkeypatch.setattr(mapped_file.ctypes, "CDLL", fail)
    else:
        monkeypatch.setattr(mapped_file, "_mincore", lambda: lambda *args: -1)
    assert MappedFile(path).resident_nbytes() is None
    with ocrstore.open(path) as store:
        assert summarize(store).resident_nbytes is None


WITHOUT = """
import builtins, os, sys
gone = {"fcntl", "resource", "pwd", "grp", "termios"}
real = builtins.__import__

def without(name, *args, **options):
    if name in gone:
        raise ImportError(name)
    return real(name, *args, **options)

import concurrent.futures.thread, ctypes.util, json, lmdb, mmap, shutil, types  # not ours
import numpy, pyarrow.compute, pyarrow.ipc, xxhash
locks = {}
fake = types.ModuleType("msvcrt")
fake.LK_NBLCK = 2
fake.locking = lambda descriptor, mode, nbytes: locks.setdefault(os.fstat(descriptor).st_ino, 1)
sys.modules["msvcrt"] = fake
sys.modules.pop("fcntl", None)
builtins.__import__ = without
for name in ("register_at_fork", "fork", "fdatasync", "O_NONBLOCK", "O_CLOEXEC", "getuid"):
    if hasattr(os, name):
        delattr(os, name)
platform, sys.platform = sys.platform, "win32"
import ocrstore
from ocrstore.format import lock
assert lock.msvcrt is fake and not hasattr(lock, "fcntl")
path = sys.argv[1]
with ocrstore.create(path, {"a": ocrstore.Column("uint8", (5000,))}) as writer:
    writer.append("x", {"a": numpy.ones(5000, "u1")})
with ocrstore.edit(path) as writer:
    writer.append("y", {"a": numpy.ones(5000, "u1")})
ocrstore.compact(path)
store = ocrstore.open(path)
assert store["a"][0:2].sum() == 10000 and ocrstore.verify(path).ok and locks
sys.platform = platform
"""


def test_imports_and_works_without_posix(quick_path):
    """A whole process without fcntl, fork and fdatasync imports, writes, changes and reads."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-c", WITHOUT, str(quick_path / "store.ocrs")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_format_does_not_depend_on_this_machine(quick_path):
    """Page size and byte order in the file are the format's, not the machine's."""
    data = _create(quick_path / "store.ocrs").read_bytes()
    assert lmdb_writer.PAGE_SIZE == 4096
    assert int.from_bytes(data[16:20], "little") == 0xBEEFC0DE
    assert int.from_bytes(data[40:44], "little") == 4096
    assert ctypes.sizeof(ctypes.c_void_p) >= 4


def test_a_big_endian_machine_is_refused(make_store, monkeypatch):
    """Arrays are handed out as they lie in the file, so a machine of the other kind is reported."""
    from ocrstore.format import snapshot

    path = make_store()
    monkeypatch.setattr(snapshot, "sys", SimpleNamespace(byteorder="big"))
    with pytest.raises(ocrstore.UnsupportedFormatError, match="little-endian"):
        ocrstore.open(path)


@only_linux
@pytest.mark.parametrize("workers", [0, 1])
def test_builds_on_windows(drawn_folder, tmp_path, windows, monkeypatch, workers):
    """A store is built, updated and rewritten from its own columns; no slot stays behind."""
    monkeypatch.setattr("ocrstore.building.workers.supported", False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    images, path = drawn_folder / "images", tmp_path / "drawn.ocrs"
    for options in ({"size": 64}, {"size": 64, "codecs": {"image": "zstd"}}, {"force": True}):
        report = ocrstore.build(images, path, workers=workers, **options)
        assert report.samples == 6 and ocrstore.verify(path).ok
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
