"""Export samples of a store: choose them, write them part by part, publish the folder at the end.

Everything is written into a hidden folder beside the target, which takes the target's name when it
is complete. Its parts are planned before the first is written and appear whole, so that an
interrupted export goes on where it stopped.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from ocrstore.catalog import CATALOG
from ocrstore.errors import (
    OCRStoreError,
    SchemaError,
    StoreExistsError,
    UnknownSampleError,
    WriteError,
    cannot_write,
)
from ocrstore.exporting import folders, index_file, shards
from ocrstore.exporting.parts import Format, Request
from ocrstore.format.lmdb_reader import MAGIC
from ocrstore.format.lock import FileLock
from ocrstore.keys import shown
from ocrstore.machine import unfinished_nbytes, usable_cpus
from ocrstore.store import Store
from ocrstore.version import __version__
from ocrstore.whole_file import replaced, write_whole

FOLDERS: dict[str, type[Format]] = {**shards.FORMATS, **folders.FORMATS}
"""Formats that are folders, and their writers."""
FORMATS = (*FOLDERS, *index_file.FORMATS)
MARK = ".ocrstore-export.json"
"""In every exported folder: what it was made from. A folder without it is never replaced."""

_PORTION = 16
"""At most so many samples are encoded in one go."""

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(slots=True)
class Exported:
    """The result of an export."""

    out: str
    samples: int
    resumed: int = 0
    """Samples that an interrupted run had written."""
    notes: list[str] = field(default_factory=list)
    """What the format cannot hold and had to be changed."""
    seconds: float = 0.0


def export(
    store: Store | str | os.PathLike[str],
    *,
    to: str,
    out: str | os.PathLike[str],
    where: str | None = None,
    keys: Collection[str] | None = None,
    columns: Sequence[str] | None = None,
    view: str | None = None,
    shard_size: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write samples in the format of another tool; if interrupted, the same call resumes.

    Args:
        store: The store, open or not.
        to: "webdataset", "hf", "coco", "icdar", "paddleocr", "mmocr", "labelme", "words" or "npz":
            `out` is a folder; "parquet", "arrow" or "csv": `out` is a file with the index.
        out: What to make; it appears when it is complete.
        where: Take only samples that fulfil this SQL condition, as in the viewer; needs duckdb.
        keys: Take only these samples.
        columns: webdataset: `image` and columns of the view, all by default; index: its columns.
        view: webdataset, npz: take the columns of this view instead of the default one; formats
            with pictures: take its pictures, with the polygons moved, instead of the whole ones.
        shard_size: webdataset, hf: most bytes of a file, 500 MB by default.
        overwrite: Replace an earlier export, or the file with the index.
        progress: Called with (done, total) after each sample.

    Raises:
        StoreExistsError: `out` exists, or is a store or has one in it.
        StoreBusyError: Another process exports to `out`.
        CorruptStoreError: A row does not match its hash; nothing is published.
        UnknownSampleError: The store has no sample of one of `keys`.
        SchemaError: The format is unknown, has no use for an option, or needs another store.
        WriteError: The file system refused.
    """
    started = time.perf_counter()
    given: dict[str, Any] = {"columns": columns, "view": view, "shard_size": shard_size}
    takes = ("columns",) if to in index_file.FORMATS else getattr(FOLDERS.get(to), "takes", None)
    if takes is None:
        raise SchemaError(f"unknown format {to!r}; expected {', '.join(FORMATS)}")
    for option, value in given.items():
        if value is not None and option not in takes:
            raise SchemaError(f"the format {to} has no use for {option}; leave it out")
    for option, names in (("keys", keys), ("columns", columns)):
        if isinstance(names, str):
            raise SchemaError(f"{option} is a list of names, not one str: [{names!r}]")
    target = Path(os.path.abspath(out))  # noqa: PTH100  # Path.resolve would follow links
    with nullcontext(store) if isinstance(store, Store) else Store(store) as opened:
        rows = _select(opened, keys, where)
        _refuse_existing(target, overwrite, folder=to in FOLDERS)
        if to in FOLDERS:
            writer = FOLDERS[to](Request(opened, rows, **given))
            try:
                with _locked(target):
                    # again: it may have been made meanwhile
                    _refuse_existing(target, overwrite, folder=True)
                    _refuse_stores_in(target, opened)
                    resumed = _write(writer, target, _describe(writer, to, given), progress)
            except OCRStoreError:
                raise
            except OSError as exc:
                raise cannot_write(str(target), exc) from exc
            result = Exported(str(out), len(rows), resumed, writer.notes)
        else:
            index_file.write_index(opened, target, format=to, rows=rows, columns=columns)
            result = Exported(str(out), len(rows))
        if not rows and len(opened):
            result.notes.append(f"none of the {len(opened)} samples of the store was chosen")
    result.seconds = time.perf_counter() - started
    return result


# --- which samples


def _select(store: Store, keys: Collection[str] | None, where: str | None) -> list[int]:
    """Return the rows to export, ascending."""
    rows = range(len(store)) if where is None else _fulfilling(store, where)
    if keys is None:
        return list(rows)
    unknown = sorted(set(keys) - set(store.keys))
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UnknownSampleError(
            f"{store.path}: has no sample {shown(unknown[0])!r}{more} of the given keys."
        )
    wanted = {store.row(key) for key in keys}
    return [row for row in rows if row in wanted]


def _fulfilling(store: Store, condition: str) -> list[int]:
    from ocrstore.viewer.samples import rows_where

    return rows_where(store, condition)


# --- folders


def _describe(writer: Format, to: str, given: dict[str, Any]) -> bytes:
    """Return, as JSON, everything that the result depends on."""
    rows = xxhash.xxh3_128_hexdigest(json.dumps(list(writer.rows)).encode())
    facts = {"format": to, "store": writer.store.fingerprint, "rows": rows, **given}
    return json.dumps({"ocrstore": __version__, **facts}, indent=1).encode()


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Let one process at a time export to a folder; the lock is a hidden file beside it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.with_name(f".{target.name}.lock"), create=True, store=target)
    try:
        yield
    finally:
        lock.remove_file()
        lock.release()


def _refuse_existing(target: Path, overwrite: bool, *, folder: bool) -> None:
    if not os.path.lexists(target):
        return
    if folder and target.is_symlink():
        raise StoreExistsError(f"{target}: is a link; name the folder that it leads to.")
    is_folder = target.is_dir()
    if folder and is_folder and not any(target.iterdir()):
        return
    if is_folder != folder or (folder and not (target / MARK).is_file()):
        what = "a folder that ocrstore did not export" if is_folder else "a file"
        raise StoreExistsError(f"{target}: exists and is {what}; name another one.")
    if not folder and (target.name == CATALOG or _is_store(target)):
        raise StoreExistsError(f"{target}: is a store, or the catalog of one; name another file.")
    if not overwrite:
        raise StoreExistsError(
            f"{target}: already exists; replace it with --overwrite (overwrite=True)."
        )


def _is_store(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(24)[16:20] == MAGIC.to_bytes(4, "little")


def _refuse_stores_in(target: Path, exported: Store) -> None:
    """Refuse to replace a folder that somebody has put a store into."""
    own = Path(os.path.realpath(exported.path))
    inside = [own] if own.is_relative_to(os.path.realpath(target)) else []
    for path in itertools.chain(inside, target.rglob("*.ocrs")):
        raise StoreExistsError(
            f"{target}: has the store {path.name} in it, which would be deleted. Move it, or name "
            "another folder."
        )


def _require_own(folder: Path) -> None:
    """Raise WriteError if a hidden folder beside the target is not one of an export."""
    own = folder.is_dir() and ((folder / MARK).is_file() or not any(folder.iterdir()))
    if os.path.lexists(folder) and not own:
        raise WriteError(f"{folder}: is in the way; remove it if you do not need it.")


def _write(
    writer: Format, target: Path, mark: bytes, progress: Callable[[int, int], None] | None
) -> int:
    """Write what is missing and publish the folder; return how many samples were there."""
    work, old = (target.with_name(f".{target.name}.{state}") for state in ("partial", "old"))
    for folder in (work, old):
        _require_own(folder)
    known = work / MARK
    if not known.is_file() or known.read_bytes() != mark:
        shutil.rmtree(work, ignore_errors=True)  # of another export to the same target
        work.mkdir(parents=True)
        write_whole(known, mark)
    parts = writer.parts()
    total = sum(len(part.rows) for part in parts)
    left = [part for part in parts if not (work / part.name).is_file()]
    done = resumed = total - sum(len(part.rows) for part in left)

    def counted(samples: Iterable[_T]) -> Iterator[_T]:
        nonlocal done
        for sample in samples:
            yield sample
            done += 1
            if progress is not None:
                progress(done, total)

    rows = [row for part in left for row in part.rows]
    with ThreadPoolExecutor(usable_cpus()) as pool:
        samples = counted(_ahead(pool, writer.encode, rows, writer.nbytes(rows)))
        for part in left:
            with replaced(work / part.name) as partial:
                writer.write(partial, itertools.islice(samples, len(part.rows)))
    writer.finish(work)
    _publish(work, target, old)
    return resumed


def _ahead(
    pool: ThreadPoolExecutor,
    function: Callable[[_T], _R],
    items: Iterable[_T],
    sizes: Iterable[int],
) -> Iterator[_R]:
    """Yield the results in order; as many are computed ahead as memory is meant for."""
    cpus = usable_cpus()
    limit = unfinished_nbytes(cpus)
    running: deque[tuple[Future[list[_R]], int]] = deque()
    taken = 0
    try:
        for some, nbytes in _portions(zip(items, sizes, strict=True), limit // (4 * cpus)):
            while running and (len(running) > 2 * cpus or taken + nbytes > limit):
                yield from running[0][0].result()
                taken -= running.popleft()[1]
            running.append((pool.submit(_each, function, some), nbytes))
            taken += nbytes
        while running:
            yield from running.popleft()[0].result()
    finally:
        for future, _ in running:
            future.cancel()


def _portions(sized: Iterable[tuple[_T, int]], limit: int) -> Iterator[tuple[list[_T], int]]:
    """Put small items together: to hand one to another thread takes as long as to encode it."""
    some: list[_T] = []
    total = 0
    for item, nbytes in sized:
        if some and (len(some) == _PORTION or total + nbytes > limit):
            yield some, total
            some, total = [], 0
        some.append(item)
        total += nbytes
    if some:
        yield some, total


def _each(function: Callable[[_T], _R], items: list[_T]) -> list[_R]:
    return [function(item) for item in items]


def _publish(work: Path, target: Path, old: Path) -> None:
    """Give the folder its name; an earlier export is removed only then."""
    shutil.rmtree(old, ignore_errors=True)  # of a process that was killed here
    if target.exists():
        target.rename(old)
    work.rename(target)
    shutil.rmtree(old, ignore_errors=True)
