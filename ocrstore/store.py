"""Store and StoredColumn: an open store, and its columns as read-only arrays."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np

from ocrstore.buffers import BufferPool, scratch_bytes
from ocrstore.errors import (
    StoreChangedError,
    StoreClosedError,
    UnknownColumnError,
    UnknownGenerationError,
    UnknownRowError,
    UnknownSampleError,
)
from ocrstore.format.codecs import check_row_nbytes, decode_row_into, row_limit
from ocrstore.format.columns import Column, Encoded
from ocrstore.format.index import IndexTable
from ocrstore.format.layout import align_up, c_strides, row_alignment
from ocrstore.format.snapshot import Snapshot, take_snapshot
from ocrstore.stored_rows import decode_stored

if TYPE_CHECKING:
    import numpy.typing as npt

    from ocrstore.format.mapped_file import MappedFile
    from ocrstore.remote.presence import Fetching

_log = logging.getLogger(__name__)

Array: TypeAlias = "npt.NDArray[Any]"
T = TypeVar("T", bound=np.generic)

_FIXED = BufferPool(kept_nbytes=1 << 28)
"""Memory for decoded rows and batches of columns of fixed shape."""
_SMALL_NBYTES = 1 << 16
"""Smaller rows are left to malloc, which returns such memory to the kernel rarely."""


class StoredColumn(Generic[T]):
    """One column of a store: `column[3]` is a sample's array, `column[0:16]` a batch.

    A key is as good as a row: `column["img_1.jpg"]`. Arrays of raw columns are read-only views of
    the mapped file, which they keep alive; they stay valid after the store is closed. Thread-safe.
    """

    def __init__(
        self,
        name: str,
        snapshot: Snapshot,
        *,
        max_row_nbytes: int | None = None,
        presence: Fetching | None = None,
    ) -> None:
        self.name = name
        self._presence = presence
        self.path = snapshot.mapping.path
        self.spec: Column = snapshot.manifest.columns[name]
        self.snapshot = snapshot
        self._max_row_nbytes = row_limit(max_row_nbytes)
        self._mapping = snapshot.mapping
        self._dtype = self.spec.numpy_dtype
        rows = snapshot.index.rows[name]
        self.offsets = rows.offset
        """File offset of every row, in bytes."""
        self.nbytes = rows.nbytes
        """Stored bytes of every row."""
        self.shapes = rows.shape
        """Decoded shape of every row, (n, ndim)."""
        self.hashes = rows.hash
        """xxh3_64 of every row's stored bytes."""
        self._fixed_shape = tuple(size or 0 for size in self.spec.shape)
        self._batch_strides = (self.stride, *c_strides(self._fixed_shape, self._dtype.itemsize))
        self._run_ends: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def __repr__(self) -> str:
        from ocrstore.display import shape_in_words

        kind = f"{self.spec.dtype} {shape_in_words(self.spec.shape)}, {self.spec.codec}"
        return f"<ocrstore.StoredColumn {self.name!r}: {len(self)} rows of {kind}>"

    @property
    def stride(self) -> int:
        """Bytes from one row to the next where rows of a fixed-shape raw column are contiguous."""
        nbytes = self.spec.row_nbytes
        return align_up(nbytes, row_alignment(nbytes, raw=True))

    def is_run(self, start: int, stop: int) -> bool:
        """Return whether rows start to stop are contiguous, so that they are one array."""
        self._mapping.check()  # the offsets lie in the mapping too
        if self._run_ends is None:
            self._run_ends = self._find_runs()
        return stop <= start or bool(self._run_ends[start] >= stop)

    def _find_runs(self) -> npt.NDArray[np.int64]:
        """Return, for every row, the end of the contiguous run it is in."""
        count = len(self.offsets)
        rows = np.arange(count)
        if not (self.spec.is_raw and self.spec.is_fixed):
            return rows + 1
        breaks = np.append(np.flatnonzero(np.diff(self.offsets) != self.stride) + 1, count)
        return breaks[np.searchsorted(breaks, rows, side="right")]

    @overload
    def __getitem__(self, rows: int | np.integer[Any] | str) -> npt.NDArray[T]: ...
    @overload
    def __getitem__(
        self, rows: slice | Sequence[int] | list[str] | tuple[str, ...] | npt.NDArray[Any]
    ) -> npt.NDArray[T] | list[npt.NDArray[T]]: ...
    def __getitem__(self, rows: Any) -> Any:
        """Return one sample's array, or several samples'.

        Several rows are one array if the column has a fixed shape (zero-copy if they are
        contiguous, see `is_run`; else copied or decoded), and a list of arrays otherwise.

        Args:
            rows: A row or a key; or a slice of either, a list of either, a boolean mask. A slice
                ends before its end, also where that is a key.
        """
        if isinstance(rows, (int, np.integer, str)) and not isinstance(rows, bool):
            return self._one(self._check_row(rows))
        if isinstance(rows, slice):
            start, stop, step = self._check_slice(rows).indices(len(self))
            if step == 1:
                return self._range(start, max(start, stop))
            return self._gather(list(range(start, stop, step)))
        return self._gather(self._check_rows(rows))

    def __iter__(self) -> Iterator[npt.NDArray[T]]:
        return (self._one(row) for row in range(len(self)))

    def stored(self, row: int | str) -> memoryview:
        """Return the stored bytes of a row or a key, such as a picture's file, without a copy."""
        row = self._check_row(row)
        return self._mapping_of(row).part(int(self.offsets[row]), int(self.nbytes[row]))

    def _mapping_of(self, rows: int | slice | list[int]) -> MappedFile:
        """Return the mapped file that some rows are in; of a store behind a URL, fetch them."""
        self._mapping.check()  # the offsets lie in it
        return self._mapping if self._presence is None else self._presence.need(self.name, rows)

    def encoded(self, row: int) -> Encoded:
        """Return a row as it is stored, for the writer of another store."""
        return Encoded(self.stored(row), tuple(self.shapes[row].tolist()))

    def _check_row(self, row: Any) -> int:
        """Return a row number for a row or a key."""
        if isinstance(row, str):
            self._mapping.check()
            return _find_key(self.snapshot, row)
        return _check_row(int(row), self)

    def _check_slice(self, rows: slice) -> slice:
        """Return a slice of row numbers for one whose ends may be keys."""
        start, stop = (
            self._check_row(end) if isinstance(end, str) else end for end in (rows.start, rows.stop)
        )
        return slice(start, stop, rows.step)

    def _check_rows(self, rows: Any) -> list[int]:
        """Return row numbers for a list of rows or keys, or a boolean mask."""
        try:
            given = list(rows.tolist() if hasattr(rows, "tolist") else rows)
        except TypeError:  # a number of another kind
            given = [None]
        if given and all(isinstance(row, (bool, np.bool_)) for row in given):
            if len(given) != len(self):
                raise UnknownRowError(
                    f"{self.path}: a mask of length {len(given)}: expected {len(self)}."
                )
            return [row for row, chosen in enumerate(given) if chosen]
        if all(isinstance(row, (int, np.integer, str)) for row in given):
            return [self._check_row(row) for row in given]
        raise TypeError(
            f"{self.path}: column {self.name!r}: not a valid index: expected a row, a key, a slice,"
            f" a list of rows or keys, or a boolean mask, found {repr(rows)[:80]}."
        )

    def decoded(self, row: int) -> npt.NDArray[T]:
        """Return a row as a writable array of its own, in memory that is used again."""
        row = self._check_row(row)
        shape = tuple(self.shapes[row].tolist())
        if not self.spec.is_raw:
            return decode_stored(
                self.spec,
                self.stored(row),
                shape,
                where=_Place(self, row),
                limit=self._max_row_nbytes,
                empty=self._empty,
            )
        array = self._empty(shape, self._dtype)
        np.copyto(array, self._one(row))
        return array

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return uninitialized memory for a row, used again if that is worth it."""
        nbytes = self.spec.nbytes_of(shape)
        if nbytes < _SMALL_NBYTES:
            return np.empty(shape, dtype)
        if self.spec.is_fixed:
            return _FIXED.empty(shape, dtype)
        return scratch_bytes((nbytes,)).view(dtype).reshape(shape)

    def decode_into(self, row: int, out: Array) -> None:
        """Decode a row into `out`, C-contiguous and of the row's shape; for compressed columns.

        Releases the GIL and allocates nothing. After an error the content of `out` is undefined.
        Whoever calls it has checked the file, once for all rows of a batch.

        Raises:
            CorruptStoreError: The row does not decode to exactly the bytes of `out`.
        """
        mapping = self._mapping if self._presence is None else self._presence.need(self.name, row)
        data = mapping.part(self.offsets.item(row), self.nbytes.item(row))
        decode_row_into(self.spec, data, out, where=_Place(self, row))

    def _one(self, row: int) -> npt.NDArray[T]:
        if self.spec.is_raw:
            mapping = self._mapping_of(row)
            shape = tuple(self.shapes[row].tolist())
            return mapping.array(int(self.offsets[row]), self._dtype, shape)
        array = self.decoded(row)
        array.flags.writeable = False
        return array

    def _range(self, start: int, stop: int) -> Any:
        if stop - start > 1 and self.is_run(start, stop):
            return self._mapping_of(slice(start, stop)).array(
                int(self.offsets[start]),
                self._dtype,
                (stop - start, *self._fixed_shape),
                strides=self._batch_strides,
            )
        if stop - start == 1 and self.spec.is_fixed:
            return self._one(start)[np.newaxis]
        return self._gather(list(range(start, stop)))

    def _gather(self, rows: list[int]) -> Any:
        self._mapping_of(rows)
        if not self.spec.is_fixed:
            return [self._one(row) for row in rows]
        batch = self.empty_batch(len(rows))
        self._mapping.check()
        for position, row in enumerate(rows):
            if self.spec.is_compressed:
                self.decode_into(row, batch[position, ...])  # an array of a scalar column, too
            else:
                batch[position] = self._one(row)
        batch.flags.writeable = False
        return batch

    def empty_batch(self, count: int) -> Array:
        """Return uninitialized memory for rows of a fixed-shape column; it is used again.

        Raises:
            DecodeError: The rows of a compressed column are larger than this store's user allows.
        """
        if not self.spec.is_raw:
            where = f"{self.path}: column {self.name!r}"
            check_row_nbytes(self.spec, self._fixed_shape, self._max_row_nbytes, where=where)
        return _FIXED.empty((count, *self._fixed_shape), self._dtype)


class _Place(NamedTuple):
    """Names a row in an error message; the key is looked up only then."""

    column: StoredColumn[Any]
    row: int

    def __str__(self) -> str:
        column, row = self
        key = column.snapshot.index.key(row)
        return f"{column.path}: sample {key!r} (row {row}), column {column.name!r}"


def _check_row(row: int, rows: StoredColumn[Any] | Store) -> int:
    """Return a row number without a sign; UnknownRowError if there is no such row."""
    count = len(rows)
    if not -count <= row < count:
        has = f"the rows 0 to {count - 1}" if count else "no samples"
        raise UnknownRowError(f"{rows.path}: no row {row}; it has {has}.")
    return row % count


def _find_key(snapshot: Snapshot, key: str) -> int:
    """Return the row of a key."""
    try:
        return snapshot.index.row_of[key]
    except KeyError:
        path, keys = snapshot.mapping.path, snapshot.index.row_of
        raise UnknownSampleError(
            f"{path}: no sample {key!r} among its {len(keys)}; keys look like {next(iter(keys))!r}."
            if keys
            else f"{path}: has no samples."
        ) from None


class Store:
    """A store, opened for reading: `store[name]` is a column, `len(store)` counts samples.

    Iterating yields the keys of the samples, in row order: `store["image"][key]` is an array.

    Made by `ocrstore.open`. Holds one memory map and no lock. Cheap to open in every process;
    thread-safe; usable after fork. Pickling sends path and generation, and unpickling opens the
    same file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        generation: int | None = None,
        max_row_nbytes: int | None = None,
    ) -> None:
        self._max_row_nbytes = row_limit(max_row_nbytes)
        # stays right when the working directory changes
        path = local_path(path)
        self._absolute = os.path.abspath(path)  # noqa: PTH100  # Path.resolve would follow links
        self._load(_take_snapshot(path, generation=generation))

    def _load(self, snapshot: Snapshot) -> None:
        self._snapshot: Snapshot | None = snapshot
        self.path = snapshot.mapping.path
        found = snapshot.manifest
        _log.debug(
            "opened %s: generation %d, %d samples", self.path, found.generation, found.samples
        )
        self.presence = _find_presence(snapshot)
        """Fetches the rows of a store behind a URL; None for any other."""
        given: Any = {"max_row_nbytes": self._max_row_nbytes, "presence": self.presence}
        self._columns: dict[str, StoredColumn[Any]] = {
            name: StoredColumn(name, snapshot, **given) for name in snapshot.manifest.columns
        }
        self._keys: tuple[str, ...] | None = None

    @property
    def snapshot(self) -> Snapshot:
        """Mapped file, manifest and index, for tools that need more than arrays."""
        if self._snapshot is None:
            raise StoreClosedError(f"{self.path}: this store has been closed; open it again.")
        self._snapshot.mapping.check()  # the index lies in the mapping too
        return self._snapshot

    def __len__(self) -> int:
        """Return the number of samples (not of columns)."""
        return self.snapshot.manifest.samples

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys)

    @overload
    def __getitem__(self, column: Literal["image", "tensor"]) -> StoredColumn[np.uint8]: ...
    @overload
    def __getitem__(
        self, column: Literal["prob_map", "thresh_map"]
    ) -> StoredColumn[np.floating[Any]]: ...
    @overload
    def __getitem__(self, column: Literal["inverse_matrix"]) -> StoredColumn[np.float64]: ...
    @overload
    def __getitem__(self, column: str) -> StoredColumn[Any]: ...
    def __getitem__(self, column: str) -> StoredColumn[Any]:
        self.snapshot  # noqa: B018  # raises if the store is closed
        try:
            return self._columns[column]
        except (KeyError, TypeError):  # a slice is not hashable
            known = ", ".join(self._columns)
            is_sample = not isinstance(column, str) or column in self.snapshot.index.row_of
            remedy = " Columns take rows and keys: store['image'][0]." if is_sample else ""
            raise UnknownColumnError(
                f"{self.path}: no column {column!r}; it has {known}.{remedy}"
            ) from None

    def __contains__(self, name: object) -> bool:
        """Return whether there is a column or a sample of this name."""
        return name in self._columns or name in self.snapshot.index.row_of

    def __repr__(self) -> str:
        if self._snapshot is None:
            return f"<ocrstore.Store {self.path!r}: closed>"
        from ocrstore.display import as_text, store_table

        return as_text(*store_table(self))

    def _repr_html_(self) -> str | None:
        from ocrstore.display import as_html, store_table

        return None if self._snapshot is None else as_html(*store_table(self))

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all samples, in row order."""
        if self._keys is None:
            self._keys = tuple(self.snapshot.index.keys)
        return self._keys

    @property
    def columns(self) -> Mapping[str, Column]:
        """Dtype, shape and codec of every column."""
        return MappingProxyType(dict(self.snapshot.manifest.columns))

    @property
    def index(self) -> IndexTable:
        """The index, zero-copy: `key`, one struct per column, and the attributes.

        The EXIF orientation of the source, which a build stores as `orientation`, is named
        `source_orientation`: all stored pixels are upright.
        """
        table = self.snapshot.index.table
        names = [self._shown_names.get(name, name) for name in table.column_names]
        shown: IndexTable = table.rename_columns(names)
        return shown

    @property
    def attribute_fields(self) -> list[Any]:
        """Name and type (`pyarrow.Field`) of every attribute, as `index` has them."""
        stored = self.snapshot.index.attributes
        return [field.with_name(self._shown_names.get(field.name, field.name)) for field in stored]

    @property
    def _shown_names(self) -> Mapping[str, str]:
        """Attributes of the file that have another name for readers."""
        manifest, attributes = self.snapshot.manifest, self.snapshot.index.attributes.names
        renamed = "build" in manifest.metadata and "source_orientation" not in attributes
        return {"orientation": "source_orientation"} if renamed else {}

    @property
    def generation(self) -> int:
        """The generation that is open."""
        return self.snapshot.manifest.generation

    @property
    def generations(self) -> list[int]:
        """All generations the file held when it was opened, oldest first."""
        return list(self.snapshot.generations)

    @property
    def fingerprint(self) -> str:
        """The canonical hash of the content; equal stores have equal ones."""
        return self.snapshot.manifest.fingerprint

    @property
    def metadata(self) -> Mapping[str, Any]:
        """JSON that the writer put into the manifest."""
        return self.snapshot.manifest.metadata

    @property
    def history(self) -> tuple[Mapping[str, Any], ...]:
        """What was done to the store, oldest first."""
        return self.snapshot.manifest.history

    def row(self, key: str) -> int:
        """Return the row of a sample."""
        return _find_key(self.snapshot, key)

    def attributes(self, sample: int | str, *, as_stored: bool = False) -> dict[str, Any]:
        """Return the attributes of one sample, by row or key, with the names of `index`.

        Args:
            sample: The row or the key.
            as_stored: Use the names of the file, which a writer takes.
        """
        row = self.row(sample) if isinstance(sample, str) else _check_row(sample, self)
        names = self.snapshot.index.attributes.names
        if not names:
            return {}
        table = self.snapshot.index.table.select(names).slice(row, 1)
        record: dict[str, Any] = table.to_pylist()[0]
        renamed = {} if as_stored else self._shown_names
        return {renamed.get(name, name): value for name, value in record.items()}

    def refresh(self) -> bool:
        """Switch to the newest generation; return whether there was a newer one.

        Arrays taken before stay valid and unchanged.
        """
        old = self.snapshot
        new = _take_snapshot(self._absolute)
        same_file = (old.mapping.device, old.mapping.inode) == (
            new.mapping.device,
            new.mapping.inode,
        )
        if same_file and new.manifest.generation == old.manifest.generation:
            return False
        self._load(new)
        return True

    def close(self) -> None:
        """Close the store; arrays taken from it stay valid. Closing again does nothing."""
        self._snapshot = None
        self._columns = {}
        self._keys = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self._absolute, self.generation, self.fingerprint, self._max_row_nbytes)
        return reopen_store, given


def _take_snapshot(path: str | os.PathLike[str], *, generation: int | None = None) -> Snapshot:
    """Read the index of a store, or those of the shards of a data set."""
    if os.path.isdir(path) or os.path.basename(path) == "dataset.json":  # noqa: PTH112, PTH119  # a string, too
        from ocrstore.store_set import take_set_snapshot

        return take_set_snapshot(path, generation=generation)
    return take_snapshot(path, generation=generation)


def open_store(
    path: str | os.PathLike[str],
    *,
    generation: int | None = None,
    max_row_nbytes: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_limit: str | int | None = None,
) -> Store:
    """Open a store for reading; no row is read.

    Args:
        path: The store; the folder or the catalog of a data set of many stores opens all of them.
            Or the URL of either: s3://, gs://, az://, https:// or file://.
        generation: An older generation, if the store has not been compacted since.
        max_row_nbytes: Larger rows of compressed columns are not decoded (DecodeError): a small
            file can hold rows of 2 GB. By default the environment variable
            OCRSTORE_MAX_ROW_NBYTES, else 600 MB. Raw rows are as large as the file.
        cache: With a URL: the folder on this machine for what is fetched; by default the variable
            OCRSTORE_CACHE, else one in the user's cache.
        cache_limit: With a URL: the most bytes of the folder, such as "500GB".

    Raises:
        NotAStoreError: The file is something else, or missing.
        UnsupportedFormatError: It needs a newer ocrstore.
        CorruptStoreError: It is damaged.
        UnknownGenerationError: It does not have that generation.
        RemoteError: A URL cannot be read.
    """
    local = local_path(path, cache=cache, cache_limit=cache_limit)
    return Store(local, generation=generation, max_row_nbytes=max_row_nbytes)


def local_path(path: str | os.PathLike[str], **options: Any) -> str | os.PathLike[str]:
    """Return a path as it is, and for a URL that of its local copy; `options` of `open_url`.

    So do shards beside the local copy of a catalog, which are not there before they are opened.
    """
    text = os.fspath(path)
    if "://" not in text and ".dataset/" not in text:
        return path
    from ocrstore.remote.client import open_shard_of, open_url

    return open_url(text, **options) if "://" in text else open_shard_of(text)


def is_local_copy(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of a local copy, of which rows are fetched when needed."""
    return os.fspath(path).endswith((".frame", ".dataset", ".dataset/dataset.json"))


def _find_presence(snapshot: Snapshot) -> Fetching | None:
    if not is_local_copy(snapshot.mapping.path):
        return None
    from ocrstore.remote.presence import find_presence

    return find_presence(snapshot)


def reopen_store(
    path: str, generation: int, fingerprint: str, max_row_nbytes: int | None = None
) -> Store:
    """Open the store that another process had open; a compacted one has another generation.

    Raises:
        StoreChangedError: Its content is another.
    """
    try:
        store = Store(path, generation=generation, max_row_nbytes=max_row_nbytes)
    except UnknownGenerationError:
        # compacted since: the same content has another number
        store = Store(path, max_row_nbytes=max_row_nbytes)
    if store.fingerprint != fingerprint:
        raise StoreChangedError(
            f"{path}: was replaced by a store with different content while in use (expected "
            f"fingerprint {fingerprint[:12]}, found {store.fingerprint[:12]}). Start again."
        )
    return store
