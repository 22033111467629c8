"""Which rows of a store behind a URL are on this node, and how to get the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ocrstore.errors import NotAStoreError, OCRStoreError
from ocrstore.format.mapped_file import MappedFile
from ocrstore.format.snapshot import Snapshot, take_snapshot
from ocrstore.remote.cache import (
    HEADER_NBYTES,
    PRESENT,
    REMOVED_OFFSET,
    header_start,
    marks_start,
    read_origin,
    rows_header,
    rows_path,
)
from ocrstore.remote.client import ask, open_shard_of

if TYPE_CHECKING:
    import numpy.typing as npt

_REQUEST_NBYTES = 1 << 28
"""Rows of more bytes are asked for in several requests, so that each has its answer soon."""
_MOST_SHARDS = 64
_REPLACED = 100
"""A request during which the local copy was removed so often is given up."""


class _LocalRows:
    """A mapped rows file."""

    def __init__(self, mapping: MappedFile, marks: npt.NDArray[np.uint8]) -> None:
        self.mapping = mapping
        self.marks = marks
        """One byte for each column and row; the fetcher sets them, in the file."""
        self._left = [marks.shape[1]] * len(marks)
        """How many rows of each column are asked for before all are looked at; 0 if all are there.
        """

    def has(self, number: int, rows: Any) -> bool:
        """Return whether these rows of a column are there; quick once all of them are."""
        if not self._left[number]:
            return True
        if isinstance(rows, int):  # of each compressed row of a batch
            found, count = self.marks.item(number, rows) == PRESENT, 1
        else:
            marks = self.marks[number, rows]
            found, count = bool((marks == PRESENT).all()), np.size(marks)
        self._left[number] -= count
        if self._left[number] <= 0:  # about once an epoch
            complete = bool((self.marks[number] == PRESENT).all())
            self._left[number] = 0 if complete else self.marks.shape[1]
        return found


class Fetching(Protocol):
    """What a column needs of a store behind a URL."""

    url: str

    def need(self, column: str, rows: Any) -> MappedFile:
        """Return a mapped file with these rows of a column; waits until they are fetched."""


class Presence:
    """The rows of one store behind a URL. Thread-safe; usable after fork.

    The fetcher may remove the rows file at any time; what is mapped stays as it is. The next row
    that is not in it is looked for in the file that has taken its place, so a row is read from the
    mapped file that `need` returns and from no other.
    """

    def __init__(self, snapshot: Snapshot, url: str) -> None:
        self.url = url
        self._frame = Path(snapshot.mapping.path)
        self._nbytes = snapshot.mapping.nbytes
        self._samples = snapshot.manifest.samples
        self._is_newest = snapshot.manifest.generation == snapshot.newest
        self._numbers = {name: number for number, name in enumerate(snapshot.manifest.columns)}
        self._row_nbytes = {name: rows.nbytes for name, rows in snapshot.index.rows.items()}
        self._local: _LocalRows | None = None

    def need(self, column: str, rows: Any) -> MappedFile:
        """Return a mapped file with these rows of a column, at the offsets that the index has.

        Waits until they are fetched and checked.

        Args:
            column: The name of the column in the store.
            rows: Anything that numpy takes as an index: a row, a slice, an array.

        Raises:
            StoreChangedError: The object was replaced.
            CorruptStoreError: A row does not match its hash, also when it was fetched again.
            OCRStoreError: The object cannot be read.
        """
        local = self._local
        if local is not None and local.has(self._numbers[column], rows):
            return local.mapping
        return self._fetch((column,), np.atleast_1d(np.arange(self._samples)[rows]))

    @property
    def is_removed(self) -> bool:
        """Whether the mapped file was removed: who does not need it should let go of it."""
        local = self._local
        offset = header_start(self._nbytes) + REMOVED_OFFSET
        return local is not None and local.mapping.buffer[offset] != 0

    def attached(self) -> MappedFile:
        """Return the mapped file that rows are fetched into."""
        return (self._local or self._attach()).mapping

    def need_all(self, columns: Sequence[str], rows: npt.NDArray[np.int64]) -> MappedFile:
        """Return what `need` returns, for rows of several columns at once."""
        local = self._local
        if local is not None and not any(self._missing(local, columns, rows)):
            return local.mapping
        return self._fetch(columns, rows)

    def want(self, columns: Sequence[str], rows: npt.NDArray[np.int64]) -> bool:
        """Have rows fetched that will soon be needed; return at once, False if all are there."""
        missing: list[list[int]] = []
        with suppress(OCRStoreError):  # told to whoever needs the rows
            local = self._local or self._attach()
            missing = self._missing(local, columns, rows)
            if any(missing):
                self._ask(local, columns, missing, wait=False)
        return any(missing)

    def _fetch(self, columns: Sequence[str], rows: npt.NDArray[np.int64]) -> MappedFile:
        if not self._is_newest:
            raise OCRStoreError(
                f"{self.url}: only the newest generation of a store behind a URL has its rows "
                "here; fetch the store with `ocrstore pull` for an older one."
            )
        for _ in range(_REPLACED):
            local = self._local or self._attach()
            missing = self._missing(local, columns, rows)
            if not any(missing):
                return local.mapping
            self._ask(local, columns, missing, wait=True)
        raise OCRStoreError(
            f"{self.url}: its rows were removed from {self._frame.parent} again and again before "
            "they were used. Allow a larger cache_limit."
        )

    def _missing(
        self, local: _LocalRows, columns: Sequence[str], rows: npt.NDArray[np.int64]
    ) -> list[list[int]]:
        """Return the rows of each column that are not there."""
        found: list[list[int]] = []
        for name in columns:
            if local.has(self._numbers[name], rows):
                found.append([])
                continue
            absent = local.marks[self._numbers[name], rows] != PRESENT
            found.append(rows[absent].tolist() if absent.any() else [])
        return found

    def _ask(
        self, local: _LocalRows, columns: Sequence[str], rows: list[list[int]], *, wait: bool
    ) -> None:
        """Ask for rows of each column; forget the local rows if another file took their place."""
        for wanted in self._portions(columns, rows) if wait else [dict(zip(columns, rows))]:
            numbered = {self._numbers[name]: some for name, some in wanted.items() if some}
            answer = ask(
                self._frame.parent,
                {
                    "do": "need",
                    "frame": self._frame.name,
                    "inode": local.mapping.inode,
                    "rows": numbered,
                    "wait": wait,
                },
            )
            if answer.get("replaced"):
                if self._local is local:
                    self._local = None
                return

    def _portions(
        self, columns: Sequence[str], rows: list[list[int]]
    ) -> list[Mapping[str, list[int]]]:
        """Split rows into requests of a bounded number of bytes."""
        portions: list[dict[str, list[int]]] = [{}]
        size = 0
        for name, some in zip(columns, rows, strict=True):
            for row, nbytes in zip(some, self._row_nbytes[name][some].tolist(), strict=True):
                if size and size + nbytes > _REQUEST_NBYTES:
                    portions.append({})
                    size = 0
                portions[-1].setdefault(name, []).append(row)
                size += nbytes
        return list(portions)

    def _attach(self) -> _LocalRows:
        """Map the rows file; the fetcher makes one if there is none of this run of the machine."""
        path = rows_path(self._frame)
        for _ in range(_REPLACED):
            local = self._map(path)
            if local is not None:
                self._local = local
                return local
            ask(self._frame.parent, {"do": "attach", "frame": self._frame.name})
        raise OCRStoreError(f"{path}: is removed as soon as it is made. Who else uses this folder?")

    def _map(self, path: Path) -> _LocalRows | None:
        start, marks = header_start(self._nbytes), marks_start(self._nbytes)
        shape = (len(self._numbers), self._samples)
        try:
            mapping = MappedFile(path)
        except NotAStoreError:
            return None
        if mapping.nbytes != marks + max(1, shape[0] * shape[1]):
            return None
        if mapping.buffer[start : start + HEADER_NBYTES] != rows_header():
            return None
        return _LocalRows(mapping, mapping.array(marks, np.dtype(np.uint8), shape))


class ShardsPresence:
    """The rows of a data set of many stores behind a URL; see `Presence`."""

    def __init__(self, snapshot: Snapshot, url: str) -> None:
        from ocrstore.store_set import MappedShards  # which imports the store

        files = snapshot.mapping
        assert isinstance(files, MappedShards)
        self.url = url
        self._catalog = files.catalog
        self._starts = files.starts
        lengths = [shard.samples for shard in files.catalog.shards]
        self._first = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        self._shards: dict[int, Presence] = {}

    def need(self, column: str, rows: Any) -> MappedFile:
        """Return a file with these rows; if they are of several shards, that of the last."""
        chosen = np.atleast_1d(np.arange(self._first[-1])[rows])
        shards = np.searchsorted(self._first, chosen, "right") - 1
        for number in np.unique(shards).tolist():
            local = chosen[shards == number] - self._first[number]
            found = _ShiftedFile(self._shard(number).need(column, local), self._starts[number])
        return found

    def _shard(self, number: int) -> Presence:
        found = self._shards.get(number)
        if found is None:
            path = self._catalog.shard_path(self._catalog.shards[number])
            found = Presence(take_snapshot(open_shard_of(path)), self.url)
            removed = [key for key, shard in self._shards.items() if shard.is_removed]
            for key in removed or list(self._shards)[: 1 - _MOST_SHARDS]:
                self._shards.pop(key, None)
            self._shards[number] = found
        return found


class _ShiftedFile(MappedFile):
    """The file of a shard, at the offsets that it has in the files of all, one behind the other."""

    __slots__ = ("_file", "_start")

    def __init__(self, file: MappedFile, start: int) -> None:
        self._file = file
        self._start = start

    def part(self, offset: int, nbytes: int) -> memoryview:
        """Return some bytes, as `MappedFile.part`."""
        return self._file.part(offset - self._start, nbytes)

    def array(
        self,
        offset: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        *,
        strides: tuple[int, ...] | None = None,
    ) -> npt.NDArray[Any]:
        """Return an array, as `MappedFile.array`."""
        return self._file.array(offset - self._start, dtype, shape, strides=strides)


def find_presence(snapshot: Snapshot) -> Fetching | None:
    """Return what fetches the rows of a local copy; None for any other store."""
    origin = read_origin(snapshot.mapping.path)
    if origin is None:
        return None
    if snapshot.mapping.path.endswith(".dataset"):
        return ShardsPresence(snapshot, origin.url.rpartition("/")[0])
    return Presence(snapshot, origin.url)
