"""A published store opened for one writer: locked, checked, rid of what was given up (FORMAT.md 9).

Hides where work that was begun and not published is noted, and how it is found again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrstore.errors import WriteError
from ocrstore.format import resume as resuming
from ocrstore.format.bulk import BulkFile
from ocrstore.format.columns import Column
from ocrstore.format.environment import Environment
from ocrstore.format.layout import (
    EXTENT_PREFIX,
    GROUP_PREFIX,
    MANIFEST_PREFIX,
    extent_key,
    parse_extent_key,
)
from ocrstore.format.locking import FileLock
from ocrstore.format.pages import PageReader, Value
from ocrstore.format.publication import partial_path
from ocrstore.format.snapshot import Snapshot, take_snapshot


class Journaled:
    """A published file that one process changes, with a journal of it in the hidden file beside it.

    Extents go into the store, as ever; the records of their groups go into the journal once the
    extents are committed, so that the journal never tells of more than there is.
    """

    def __init__(
        self, environment: Environment, journal: BulkFile, lock: FileLock, *, groups: int
    ) -> None:
        self.page_size = environment.page_size
        self._environment = environment
        self._journal = journal
        self._lock = lock
        self._groups = groups  # that the journal tells of
        self._is_published = False

    def commit(
        self, puts: Mapping[bytes, Any], *, deletes: Iterable[bytes] = ()
    ) -> dict[bytes, Value]:
        """Write and delete values in one atomic step, then note the group they belong to."""
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
        """Let go of both files; a journal that nobody can need any more is removed."""
        self._environment.close()
        self._journal.close()
        if self._is_published or not self._groups:
            remove_hidden(self._lock)


@dataclass(slots=True)
class Change:
    """A store that is locked for one writer, and what it has done of its work already."""

    base: Snapshot
    container: Environment | Journaled
    locks: list[FileLock]
    groups: list[resuming.ResumedGroup] = field(default_factory=list)

    @property
    def is_journaled(self) -> bool:
        """Whether the records of row groups can be committed with them, for a resumed run."""
        return isinstance(self.container, Journaled)

    def close(self) -> None:
        """Let go of the store; what was committed and not published stays for the next writer."""
        self.container.close()
        for lock in self.locks:
            lock.release()


def open_for_change(
    target: Path, *, resume: str | None = None, columns: Mapping[str, Column] | None = None
) -> Change:
    """Lock a published store, check it, and free what a killed writer left in it.

    `resume` names the work, `columns` what its row groups hold (by default all columns): what an
    interrupted run of the same work on the same generation has committed is kept and returned.
    Where no file can be made beside the store the work is done all the same, without a journal.
    """
    take_snapshot(target)  # its errors are better than those of a lock
    locks = [FileLock(target, create=False, store=target)]
    environment: Environment | None = None
    try:
        base = take_snapshot(target)
        environment = Environment(target)
        if resume is not None:
            # one journal, by whatever link the store is reached
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
    journal: BulkFile | None = None
    groups: list[resuming.ResumedGroup] = []
    try:
        resumed = resuming.load(partial, columns, token, base=base)
        groups = resumed.groups if resumed else []
        kept = {extent_key(group.number, name) for group in groups for name in columns}
        _free_orphans(environment, base, keep=kept)
        journal = BulkFile(partial, resume=resumed.values if resumed else None)
        if resumed is None:
            journal.commit(resuming.encode_pending(columns, token, base=base.manifest))
            journal.wait()
    except BaseException:
        if journal is not None:
            journal.close()
        if partial.stat().st_size == 0 or (journal is not None and not groups):
            remove_hidden(locks[-1])
        raise
    container = Journaled(environment, journal, locks[-1], groups=len(groups))
    return Change(base, container, locks, groups)


def _free_orphans(environment: Environment, base: Snapshot, *, keep: Iterable[bytes]) -> None:
    """Delete the extents that were committed and never published, but for those to be kept."""
    pages = PageReader(base.mapping.buffer, name=base.mapping.path)
    places = {key: parse_extent_key(key) for key in pages.keys_with(EXTENT_PREFIX)}
    orphans = [
        key
        for key, place in places.items()
        if place and place[0] >= base.manifest.groups and key not in keep
    ]
    if orphans:
        environment.commit({}, deletes=orphans)


def remove_hidden(lock: FileLock) -> None:
    """Remove the hidden file that is locked; whoever waits for it notices."""
    if sys.platform == "win32":  # an open file cannot be removed there
        lock.release()
    with suppress(OSError):  # the next writer empties it
        lock.path.unlink(missing_ok=True)
