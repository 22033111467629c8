"""Change a published store in place, through liblmdb, with a journal for resuming (FORMAT.md 9)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb

from ocrstore.errors import CorruptStoreError, WriteError, cannot_write
from ocrstore.format import resume as resuming
from ocrstore.format.columns import Column
from ocrstore.format.layout import (
    EXTENT_PREFIX,
    GROUP_PREFIX,
    MANIFEST_PREFIX,
    VALUE_OFFSET,
    extent_key,
    parse_extent_key,
)
from ocrstore.format.lmdb_check import check_pages
from ocrstore.format.lmdb_reader import PageReader, Value
from ocrstore.format.lmdb_writer import LmdbWriter
from ocrstore.format.lock import FileLock
from ocrstore.format.mapped_file import MappedFile
from ocrstore.format.publish import partial_path
from ocrstore.format.snapshot import Snapshot, take_snapshot

_MAP_STEP = 2**30
_SLACK_PAGES = 4096  # tree pages and the free list of one commit, with much to spare
# py-lmdb 3 carries two engines; stores are LMDB 0.9 files
_ENGINE: dict[str, Any] = {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}


class Environment:
    """A published file, opened by liblmdb; the caller holds the lock. Every commit is synced."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        check_structure(self.path)
        self._map_size = _map_size(path.stat().st_size)
        try:
            self._env = lmdb.open(
                os.fsencode(self.path),  # a str may hold bytes that are no UTF-8
                subdir=False,
                # FileLock keeps writers apart, and readers need no reader table: published
                # values are never overwritten
                lock=False,
                map_size=self._map_size,
                readahead=False,
                mode=0o644,
                max_spare_txns=0,
                **_ENGINE,
            )
        except (lmdb.Error, OSError) as exc:
            raise cannot_write(self.path, exc) from exc
        self.page_size: int = self._env.stat()["psize"]

    def commit(
        self, puts: Mapping[bytes, Any], *, deletes: Iterable[bytes] = ()
    ) -> dict[bytes, Value]:
        """Write and delete values in one transaction; return where the written ones lie."""
        pages = sum(-(-(len(value) + VALUE_OFFSET) // self.page_size) for value in puts.values())
        try:
            self._grow((self._env.info()["last_pgno"] + 1 + pages + _SLACK_PAGES) * self.page_size)
            with self._env.begin(write=True) as transaction:
                for key in deletes:
                    transaction.delete(key)
                for key, value in puts.items():
                    if not transaction.put(key, value, overwrite=False):
                        raise CorruptStoreError(f"{self.path}: {key!r} exists already.")
        except (lmdb.Error, OSError) as exc:
            raise cannot_write(self.path, exc) from exc
        return self._locate(puts)

    def _locate(self, puts: Mapping[bytes, Any]) -> dict[bytes, Value]:
        """Look the written values up with our own reader, and compare their first bytes."""
        reader = PageReader(MappedFile(self.path).buffer, name=self.path)
        places: dict[bytes, Value] = {}
        for key, value in puts.items():
            place = reader.find(key)
            if (
                place is None
                or place.nbytes != len(value)
                or bytes(reader.view(place)[:64]) != bytes(memoryview(value)[:64])
            ):
                raise CorruptStoreError(
                    f"{self.path}: {key!r} is not where LMDB should have put it. This LMDB engine "
                    f"({lmdb.version()}) writes another file format than ocrstore knows."
                )
            places[key] = place
        return places

    def close(self) -> None:
        """Close the environment; committed values stay."""
        with suppress(lmdb.Error):
            self._env.close()

    def _grow(self, needed: int) -> None:
        if needed > self._map_size:
            self._map_size = _map_size(needed)
            self._env.set_mapsize(self._map_size)


def check_structure(path: str) -> None:
    """Raise CorruptStoreError if a tree page is damaged: liblmdb would trust it."""
    mapping = MappedFile(path)
    report = check_pages(PageReader(mapping.buffer, name=path))
    if report.problems:
        raise CorruptStoreError(
            f"{path}: {report.problems[0].rstrip('.')}. It is not safe to write to: restore it "
            "from a copy, or delete it and build it again."
        )


def _map_size(needed: int) -> int:
    """Return a map size with room to grow; it costs address space, not memory."""
    return -(-(needed * 2 + _MAP_STEP) // _MAP_STEP) * _MAP_STEP


class Journaled:
    """An Environment with a journal, the hidden file beside the store, for a later run to resume.

    Extents go into the store. Their group record is written to the journal after they are
    committed, so a run that is killed in between loses a group but never resumes a missing one.
    """

    def __init__(
        self, environment: Environment, journal: LmdbWriter, lock: FileLock, *, groups: int
    ) -> None:
        self.page_size = environment.page_size
        self._environment = environment
        self._journal = journal
        self._lock = lock
        self._groups = groups  # recorded in the journal
        self._is_published = False

    def commit(
        self, puts: Mapping[bytes, Any], *, deletes: Iterable[bytes] = ()
    ) -> dict[bytes, Value]:
        """Write and delete values in one transaction, then record their group in the journal."""
        records = {key: value for key, value in puts.items() if key.startswith(GROUP_PREFIX)}
        values = {key: value for key, value in puts.items() if key not in records}
        places = self._environment.commit(values, deletes=deletes)
        if any(key.startswith(MANIFEST_PREFIX) for key in values):
            self._is_published = True
        if records:
            self._journal.commit(records)
            self._journal.wait()
            self._groups += len(records)
        return places

    def close(self) -> None:
        """Close both files; remove the journal if there is nothing to resume."""
        self._environment.close()
        self._journal.close()
        if self._is_published or not self._groups:
            self._lock.remove_file()


@dataclass(slots=True)
class Change:
    """A store locked for one writer, and the row groups that an interrupted run left."""

    base: Snapshot
    container: Environment | Journaled
    locks: list[FileLock]
    groups: list[resuming.ResumedGroup] = field(default_factory=list)

    @property
    def is_journaled(self) -> bool:
        """Whether group records can be committed, so that the work can be resumed."""
        return isinstance(self.container, Journaled)

    def close(self) -> None:
        """Close and unlock the store; committed groups stay for the next writer."""
        self.container.close()
        for lock in self.locks:
            lock.release()


def open_for_change(
    target: Path, *, resume: str | None = None, columns: Mapping[str, Column] | None = None
) -> Change:
    """Lock a published store, check it, and free what a killed writer left in it.

    Args:
        target: The store.
        resume: The name of the work. Row groups that an interrupted run of the same work has
            committed to the same generation are kept and returned.
        columns: The columns that the work writes; all columns by default.

    Where no file can be made beside the store, the work is done without a journal.
    """
    take_snapshot(target)  # for its errors, which say more than those of a lock
    locks = [FileLock(target, create=False, store=target)]
    environment: Environment | None = None
    try:
        base = take_snapshot(target)
        environment = Environment(target)
        if resume is not None:
            # one journal, whichever symbolic link leads to the store
            partial = partial_path(target.resolve())
            with suppress(WriteError):
                locks.append(FileLock(partial, create=True, store=target))
        if resume is None or len(locks) == 1:
            _free_orphans(environment, base, keep=())
            return Change(base, environment, locks)
        return _open_journaled(environment, base, locks, resume, columns)
    except BaseException:
        if environment is not None:
            environment.close()
        for lock in locks:
            lock.release()
        raise


def _open_journaled(
    environment: Environment,
    base: Snapshot,
    locks: list[FileLock],
    token: str,
    columns: Mapping[str, Column] | None,
) -> Change:
    columns = base.manifest.columns if columns is None else columns
    partial = locks[-1].path
    journal: LmdbWriter | None = None
    groups: list[resuming.ResumedGroup] = []
    try:
        resumed = resuming.load(partial, columns, token, base=base)
        groups = resumed.groups if resumed else []
        kept = {extent_key(group.number, name) for group in groups for name in columns}
        _free_orphans(environment, base, keep=kept)
        journal = LmdbWriter(partial, resume=resumed.values if resumed else None)
        if resumed is None:
            journal.commit(resuming.encode_pending(columns, token, base=base.manifest))
            journal.wait()
    except BaseException:
        if journal is not None:
            journal.close()
        if partial.stat().st_size == 0 or (journal is not None and not groups):
            locks[-1].remove_file()
        raise
    container = Journaled(environment, journal, locks[-1], groups=len(groups))
    return Change(base, container, locks, groups)


def _free_orphans(environment: Environment, base: Snapshot, *, keep: Iterable[bytes]) -> None:
    """Delete the extents that were committed but never published, except those in `keep`."""
    pages = PageReader(base.mapping.buffer, name=base.mapping.path)
    places = {key: parse_extent_key(key) for key in pages.keys_with(EXTENT_PREFIX)}
    orphans = [
        key
        for key, place in places.items()
        if place and place[0] >= base.manifest.groups and key not in keep
    ]
    if orphans:
        environment.commit({}, deletes=orphans)


def drop_unfinished(path: str | os.PathLike[str], *, if_useless: bool = False) -> None:
    """Discard unfinished work: remove the hidden file, free its extents in the published store.

    With `if_useless`, only work that cannot be resumed is discarded, such as that of a run killed
    right after it published.

    Raises:
        StoreBusyError: A writer is at work on it.
    """
    target = Path(path)
    for partial in resuming.hidden_files(target):
        if not partial.exists():
            continue
        if if_useless and (found := resuming.find_unfinished(target)) and not found.obstacle:
            continue
        change = open_for_change(target) if target.exists() else None
        try:
            lock = FileLock(partial, create=False, store=target)
            lock.remove_file()
            lock.release()
        finally:
            if change is not None:
                change.close()
