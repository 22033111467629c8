"""Work that was begun and not published: what is known about it, and how to get rid of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ocrstore.errors import OCRStoreError
from ocrstore.format.changing import open_for_change, remove_hidden
from ocrstore.format.columns import Column
from ocrstore.format.damage import corrupt
from ocrstore.format.extents import parse_extent
from ocrstore.format.index import Index
from ocrstore.format.layout import extent_key
from ocrstore.format.locking import FileLock
from ocrstore.format.manifest import decode_json, parse_columns
from ocrstore.format.mapping import Mapping as FileMapping
from ocrstore.format.pages import PageReader
from ocrstore.format.publication import partial_path
from ocrstore.format.resume import Scan
from ocrstore.format.snapshot import Snapshot, take_snapshot


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What an interrupted run, or one that is still at work, has done without publishing it."""

    path: str
    """The hidden file that tells of it."""
    token: str
    """The name of the work."""
    in_place: bool
    """Whether it changes the published store; its rows lie there then, else in the hidden file."""
    columns: tuple[str, ...]
    samples: int
    nbytes: int
    """Of the rows of these samples."""
    obstacle: str
    """Why nobody can go on with it; empty if the same command does."""

    def to_json(self) -> dict[str, Any]:
        """Describe it in JSON terms, without the work's name."""
        return {
            "path": self.path,
            "in_place": self.in_place,
            "columns": list(self.columns),
            "samples": self.samples,
            "nbytes": self.nbytes,
            "obstacle": self.obstacle,
        }


def find_unfinished(path: str | os.PathLike[str]) -> Unfinished | None:
    """Look for unfinished work on a store that is there or is to be; no row is read.

    Takes no lock, and tells what it saw at one moment. Work without a single row group is none.
    """
    for partial in _hidden_files(Path(path)):
        try:
            found = _read(partial, Path(path))
        except OCRStoreError:
            continue  # there is none, or nothing that could be used
        if found is not None:
            return found
    return None


def drop_unfinished(path: str | os.PathLike[str], *, if_useless: bool = False) -> None:
    """Remove the hidden file, and free what it tells of in the published store.

    With `if_useless` only if nobody can go on with it: a run that was killed just behind its
    publication has left it, for example. Somebody who is at work is a StoreBusyError.
    """
    target = Path(path)
    for partial in _hidden_files(target):
        if not partial.exists():
            continue
        if if_useless and (found := find_unfinished(target)) and not found.obstacle:
            continue
        change = open_for_change(target) if target.exists() else None
        try:
            lock = FileLock(partial, create=False, store=target)
            remove_hidden(lock)
            lock.release()
        finally:
            if change is not None:
                change.close()


def _hidden_files(target: Path) -> Iterator[Path]:
    """Name where the work on a store, reached by a link or not, would lie."""
    return iter(dict.fromkeys((partial_path(target.resolve()), partial_path(target))))


@dataclass(frozen=True, slots=True)
class _Base:
    generation: int
    fingerprint: str
    groups: int


def _read(partial: Path, target: Path) -> Unfinished | None:
    scan = Scan(FileMapping(partial).buffer, {})
    record = decode_json(scan.pending(), where=str(partial))
    scan.columns = parse_columns(record.get("columns") or [], where=str(partial))
    base = _base(record, where=str(partial))
    records = list(_records(scan, base))
    if not records:
        return None
    obstacle = ""
    if base is not None:
        store = take_snapshot(target)
        if _is_in_store(store, base.groups, records[0], published=True):
            return None  # published; only its hidden file was not removed any more
        obstacle = _obstacle(store, base, records)
    return Unfinished(
        path=str(partial),
        token=str(record.get("token")),
        in_place=base is not None,
        columns=tuple(scan.columns),
        samples=len({key for index in records for key in index.keys}),
        nbytes=sum(int(r.nbytes.sum()) for index in records for r in index.rows.values()),
        obstacle=obstacle,
    )


def _base(record: Mapping[str, Any], *, where: str) -> _Base | None:
    if "base" not in record:
        return None
    try:
        base = _Base(**record["base"])
    except TypeError as exc:
        raise corrupt(where, f"not a pending record: {exc}") from exc
    if not isinstance(base.groups, int):
        raise corrupt(where, "not a pending record")
    return base


def _records(scan: Scan, base: _Base | None) -> Iterator[Index]:
    """Read the records of all groups, up to the first that is not whole."""
    number = base.groups if base else 0
    while True:
        try:
            for name in scan.columns if base is None else ():
                data = scan.next()
                scan.take(extent_key(number, name), data, len(data))
            index = scan.record(number)
        except OCRStoreError:
            return
        yield index
        number += 1


def _obstacle(store: Snapshot, base: _Base, records: list[Index]) -> str:
    now = store.manifest
    if (now.generation, now.fingerprint) != (base.generation, base.fingerprint):
        return (
            f"the store has changed since (generation {now.generation} now, "
            f"{base.generation} when the work began)"
        )
    for number, index in enumerate(records, base.groups):
        if not _is_in_store(store, number, index, published=False):
            return "another writer has freed its row groups, or they are damaged"
    return ""


def _is_in_store(store: Snapshot, number: int, index: Index, *, published: bool) -> bool:
    """Whether the extents of a group are those that its record speaks of."""
    if (number < store.manifest.groups) != published:
        return False
    pages = PageReader(store.mapping.buffer, name=store.mapping.path)
    columns: Mapping[str, Column] = index.columns
    for name in columns:
        try:
            value = pages.find(extent_key(number, name))
            if value is None:
                return False
            extent = parse_extent(pages.view(value), group=number, column=name, where="extent")
        except OCRStoreError:
            return False
        if not np.array_equal(extent.entries["hash"], index.rows[name].hash):
            return False
    return True
