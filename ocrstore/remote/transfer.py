"""Push a store, or a data set of stores, to object storage, and pull it from there.

What the other side has already is not sent again. A catalog goes last, so that readers find every
shard that it names.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock
from typing import NamedTuple

import xxhash

from ocrstore.catalog import CATALOG, Catalog, Shard, find_catalog, parse_catalog
from ocrstore.errors import (
    CorruptStoreError,
    NotAStoreError,
    OCRStoreError,
    RemoteError,
    StoreChangedError,
    cannot_write,
)
from ocrstore.keys import shown
from ocrstore.remote.cache import folder_for, read_origin
from ocrstore.remote.objects import ObjectInfo, Place, part_nbytes, split_url
from ocrstore.store import open_store
from ocrstore.verification import verify
from ocrstore.whole_file import write_whole

Progress = Callable[[int, int], None]
"""Called with (done, total) bytes."""

_FILES_AT_ONCE = 4
_PIECES_AT_ONCE = 4
_PIECE_NBYTES = 8 << 20
_ATTEMPTS = 3
_PATIENCE = 5.0
_MD5 = re.compile(r'"[0-9a-f]{32}(-\d+)?"')


@dataclass
class Transfer:
    """What `push` and `pull` did."""

    place: str
    sent: list[str] = field(default_factory=list)
    """The files that were transferred."""
    kept: list[str] = field(default_factory=list)
    """The files that were there."""
    nbytes: int = 0
    """Of the files that were transferred."""


class _Content(NamedTuple):
    nbytes: int
    digest: str
    etag: str
    """What S3 reports for an object that was uploaded by `Place.put_file`."""


class _File(NamedTuple):
    name: str
    path: Path
    nbytes: int
    shard: Shard | None = None


def push(source: str | os.PathLike[str], url: str, *, progress: Progress | None = None) -> Transfer:
    """Copy a store, or a data set of stores, to object storage.

    Args:
        source: A store, or the folder or catalog of a data set.
        url: Where to: of the object if `source` is a store (or of a folder, with a `/` at the
            end), of a folder if it is a data set.

    Raises:
        NotAStoreError: The source is neither.
        StoreChangedError: Somebody else wrote the catalog in the meantime, or the source changed.
        RemoteError: The server cannot be reached, refuses, or does not hold what was sent.
    """
    if url.startswith(("http://", "https://")):
        raise RemoteError(f"{url}: web servers are only read: push to s3://, gs:// or az://")
    path = find_catalog(source)
    if path is None:
        return _push_store(Path(source), url, progress)
    payload = Path(path).read_bytes()
    catalog = parse_catalog(payload, path=path)
    place = Place(url.removesuffix(f"/{CATALOG}"), create=True)
    seen, before = _remote_catalog(place)
    known = _shards(before, place.url)
    work = _Work(place, progress, [_shard_file(catalog, shard) for shard in catalog.shards])

    def send(file: _File) -> bool:
        # verified by the push that wrote the catalog
        there = place.find(file.name) if known.get(file.name) == file.shard else None
        if there is not None and there.nbytes == file.nbytes:
            work.advance(file.nbytes)
            return False
        return _upload(work, file)

    done = work.run(send)
    if before == payload:
        done.kept.append(CATALOG)
        return done
    try:
        place.put(CATALOG, payload, replacing=seen)
        _, after = _remote_catalog(place)  # not every server heeds the condition
        if after != payload:
            raise StoreChangedError("was replaced at once")
    except StoreChangedError as exc:
        raise StoreChangedError(
            f"{place.url}/{CATALOG}: was written by somebody else during this push. The shards are "
            "uploaded, the other catalog stays. Pull it and build again, or push again to replace "
            "it"
        ) from exc
    done.sent.append(CATALOG)
    return done


def pull(url: str, target: str | os.PathLike[str], *, progress: Progress | None = None) -> Transfer:
    """Copy a store, or a data set of stores, from object storage; every byte is verified.

    An interrupted download goes on where it was, as long as the object is the same.

    Args:
        url: Of a store, or of the folder or catalog of a data set.
        target: The file of the store or a folder that exists; the folder of the data set.

    Raises:
        NotAStoreError: There is neither at the URL.
        StoreChangedError: The object was replaced in the meantime.
        CorruptStoreError: It is damaged.
        RemoteError: The server cannot be reached, or refuses.
        WriteError: The file system refuses.
    """
    target = Path(target)
    info, payload = None, b""
    if not url.endswith(".ocrs"):
        place = Place(url.removesuffix(f"/{CATALOG}"))
        info, payload = _remote_catalog(place)
    if info is None:
        folder, name = split_url(url)
        place = Place(folder)
        path = target / name if target.is_dir() else target
        files = [_File(name, path, place.head(name).nbytes)]
    else:
        catalog = parse_catalog(payload, path=str(target.absolute() / CATALOG))
        files = [_shard_file(catalog, shard) for shard in catalog.shards]
    try:
        (target if info else files[0].path.parent).mkdir(parents=True, exist_ok=True)
        work = _Work(place, progress, files)
        done = work.run(lambda file: _fetch(work, file))
        if info is not None:
            there = target / CATALOG
            kept = there.is_file() and there.read_bytes() == payload
            if not kept:
                write_whole(there, payload)
            (done.kept if kept else done.sent).append(CATALOG)
    except OSError as exc:
        if isinstance(exc, OCRStoreError):
            raise
        raise cannot_write(str(target), exc) from exc
    return done


def _shard_file(catalog: Catalog, shard: Shard) -> _File:
    """Return the file of a shard."""
    return _File(shard.name, Path(catalog.shard_path(shard)), shard.nbytes, shard)


@contextmanager
def whole_object(frame: str | os.PathLike[str]) -> Iterator[tuple[str, Path]]:
    """Yield the URL that a local copy is of, and all of it as a file, which is removed at the end.

    Of a data set of many stores it is a folder.
    """
    origin = read_origin(frame)
    if origin is None:
        raise NotAStoreError(f"{os.fspath(frame)}: is not the local copy of an object")
    with TemporaryDirectory(prefix="whole-", dir=Path(frame).parent) as folder:
        path = Path(folder) / Path(frame).stem
        pull(origin.url, path)
        yield origin.url, path


def fetch_files(url: str, *, progress: Progress | None = None) -> Path:
    """Copy pictures, annotations or an archive from object storage into the cache folder.

    Objects that are there with the same ETag are not downloaded again, files whose objects are gone
    are removed.

    Returns:
        The folder, or the file if the URL is that of an object.

    Raises:
        NotAStoreError: There is nothing at the URL.
        RemoteError: The server cannot be reached, or refuses.
        WriteError: The file system refuses.
    """
    place, target = Place(url), folder_for(url, "sources")
    found = {info.name: info for info in place.list()}
    folder = target
    if not found:
        parent, name = split_url(url)
        place, folder = Place(parent), target.parent
        found = {name: place.head(name)}
        target = folder / name
    record = folder.with_name(f"{folder.name}.json")
    known = json.loads(record.read_text("utf-8")) if record.is_file() else {}
    for name in known.keys() - found.keys():
        (folder / name).unlink(missing_ok=True)
    files = [_File(name, folder / name, info.nbytes) for name, info in found.items()]
    work = _Work(place, progress, files)
    done: dict[str, str] = {}

    def fetch(file: _File) -> bool:
        info = found[file.name]
        same = known.get(file.name) == info.etag and file.path.is_file()
        if not same:
            write_whole(file.path, b"".join(_pieces(place, info, 0)))
        work.advance(info.nbytes)
        done[file.name] = info.etag
        return not same

    try:
        work.run(fetch)
    finally:
        write_whole(record, json.dumps(known | done).encode())
    write_whole(record, json.dumps(done).encode())
    return target


class _Work:
    """Files that are transferred by several threads, with progress over all; ends on Ctrl-C."""

    def __init__(self, place: Place, progress: Progress | None, files: Sequence[_File]) -> None:
        self.place = place
        self._files = files
        self._progress = progress
        self._total = sum(file.nbytes for file in files)
        self._done = 0
        self._lock = Lock()
        self._stop = Event()

    def run(self, transfer: Callable[[_File], bool]) -> Transfer:
        """Call a function for each file; it returns whether the file had to be transferred."""
        result = Transfer(self.place.url)
        pool = ThreadPoolExecutor(_FILES_AT_ONCE)
        waiting = [pool.submit(transfer, file) for file in self._files]
        try:
            for file, moved in zip(self._files, waiting):
                (result.sent if moved.result() else result.kept).append(file.name)
                result.nbytes += file.nbytes if moved.result() else 0
        finally:
            self._stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            wait(waiting, timeout=_PATIENCE)  # for uploads to be aborted, but no server that hangs
        return result

    def advance(self, nbytes: int) -> None:
        """Tell how many more bytes are done; raises in the threads of a run that was ended."""
        if self._stop.is_set():
            raise OCRStoreError("interrupted")
        with self._lock:
            self._done += nbytes
            if self._progress is not None:
                self._progress(self._done, self._total)


def _push_store(path: Path, url: str, progress: Progress | None) -> Transfer:
    open_store(path).close()
    url = f"{url}{path.name}" if url.endswith("/") else url
    folder, name = split_url(url)
    work = _Work(Place(folder, create=True), progress, [_File(name, path, path.stat().st_size)])
    return work.run(lambda file: _upload(work, file))


def _remote_catalog(place: Place) -> tuple[ObjectInfo | None, bytes]:
    """Return the catalog of a data set that is there already."""
    try:
        payload, info = place.get(CATALOG)
    except NotAStoreError:
        return None, b""
    return info, bytes(payload)


def _shards(payload: bytes, url: str) -> dict[str, Shard]:
    """Return the shards of a catalog by name; none if it is damaged and has to be replaced."""
    try:
        return {shard.name: shard for shard in parse_catalog(payload, path=url).shards}
    except OCRStoreError:
        return {}


def _upload(work: _Work, file: _File) -> bool:
    """Upload a file if the object is not the same; return whether it was not."""
    content = _hash(work, file.path)
    before = work.place.find(file.name)
    if before is not None and _holds(work, before, content, read=_is_opaque(before)):
        work.advance(content.nbytes)
        return False
    for attempt in range(_ATTEMPTS):
        with _Counted(file.path, work.advance if attempt == 0 else lambda _: None) as data:
            work.place.put_file(file.name, data, content.nbytes)
        if _holds(work, work.place.head(file.name), content, read=True):
            return True
        if _hash(work, file.path) != content:
            raise StoreChangedError(f"{file.path}: was changed while it was pushed; push it again")
    raise RemoteError(
        f"{work.place.url}/{file.name}: the server does not hold what was sent, {_ATTEMPTS} times. "
        "Somebody else writes to it, or the network changes bytes"
    )


class _Counted(io.FileIO):
    """A file that tells how much of it was read; obstore aborts the upload where that raises."""

    def __init__(self, path: Path, advance: Callable[[int], None]) -> None:
        super().__init__(path)
        self._advance = advance

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size) or b""
        self._advance(len(data))
        return data


def _hash(work: _Work, path: Path) -> _Content:
    part = part_nbytes(path.stat().st_size)
    digest, parts, nbytes = xxhash.xxh3_128(), [], 0
    with path.open("rb") as file:
        while data := file.read(part):
            digest.update(data)
            parts.append(hashlib.md5(data, usedforsecurity=False))
            nbytes += len(data)
            work.advance(0)
    etag = parts[0].hexdigest() if parts else ""
    if len(parts) > 1:
        joined = b"".join(each.digest() for each in parts)
        etag = f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(parts)}"
    return _Content(nbytes, digest.hexdigest(), f'"{etag}"')


def _is_opaque(info: ObjectInfo) -> bool:
    """Return whether an ETag is no MD5: those of Google, Azure and file:// say nothing."""
    return _MD5.fullmatch(info.etag) is None


def _holds(work: _Work, info: ObjectInfo, content: _Content, *, read: bool) -> bool:
    """Return whether an object has this content, by its ETag, or else by reading it back."""
    if info.nbytes != content.nbytes:
        return False
    if info.etag == content.etag:
        return True
    if not read:
        return False
    digest = xxhash.xxh3_128()
    for piece in _pieces(work.place, info, 0):
        digest.update(piece)
        work.advance(0)
    return digest.hexdigest() == content.digest


def _pieces(place: Place, info: ObjectInfo, start: int) -> Iterator[memoryview]:
    """Yield the bytes of an object from `start` on, in order, some pieces ahead."""
    pool = ThreadPoolExecutor(_PIECES_AT_ONCE)
    waiting: deque[Future[memoryview]] = deque()
    try:
        for begin in range(start, info.nbytes, _PIECE_NBYTES):
            end = min(begin + _PIECE_NBYTES, info.nbytes)
            waiting.append(pool.submit(place.get_range, info.name, begin, end, etag=info.etag))
            if len(waiting) == _PIECES_AT_ONCE:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _fetch(work: _Work, file: _File) -> bool:
    """Download a file if it is not there; return whether it was not."""
    info = work.place.head(file.name)
    if _is_there(work, info, file):
        work.advance(info.nbytes)
        return False
    tag = xxhash.xxh3_64_hexdigest(info.etag.encode())
    partial = file.path.with_name(f".{file.path.name}.{tag}.partial")
    damage: str | None = ""
    for attempt in range(_ATTEMPTS):
        _append(work, info, partial, count=attempt == 0)
        damage = _damage(partial, file.shard)
        if damage is None:
            partial.replace(file.path)
            return True
        partial.unlink()
    raise CorruptStoreError(
        f"{work.place.url}/{file.name}: damaged, downloaded {_ATTEMPTS} times: {shown(damage)}. "
        "Push it again from a copy that `ocrstore verify` finds intact"
    )


def _append(work: _Work, info: ObjectInfo, partial: Path, *, count: bool) -> None:
    with partial.open("ab") as out:
        start = out.tell()
        if count:
            work.advance(start)
        for piece in _pieces(work.place, info, start):
            out.write(piece)
            work.advance(len(piece) if count else 0)
        out.flush()
        os.fsync(out.fileno())


def _is_there(work: _Work, info: ObjectInfo, file: _File) -> bool:
    """Return whether the local file is the object: by the catalog, or else by its content."""
    if not file.path.is_file() or file.path.stat().st_size != info.nbytes:
        return False
    if file.shard is None:
        return _holds(work, info, _hash(work, file.path), read=_is_opaque(info))
    try:
        with open_store(file.path) as store:
            return store.fingerprint == file.shard.fingerprint
    except OCRStoreError:
        return False


def _damage(path: Path, shard: Shard | None) -> str | None:
    """Return what is wrong with a store that was downloaded."""
    try:
        found = verify(path)
        if not found.ok:
            first = found.findings[0]
            where = f"sample {first.sample}, column {first.column}: " if first.sample else ""
            return f"{where}{first.message}".rstrip(".")
        with open_store(path) as store:
            if shard is not None and store.fingerprint != shard.fingerprint:
                return f"its fingerprint is {store.fingerprint[:12]}, not {shard.fingerprint[:12]}"
    except OCRStoreError as exc:
        return str(exc).rstrip(".")
    return None
