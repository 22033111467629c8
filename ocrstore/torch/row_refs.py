"""Refer to rows of store views: which rows, in which order, and how their columns are presented."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ocrstore.errors import OCRStoreError
from ocrstore.schema import COLUMNS, IMAGE, MATRIX, PICTURE, TENSOR
from ocrstore.torch.memory.column_memory import take_together
from ocrstore.torch.memory.float_rows import POOL, write_floats, write_normalized
from ocrstore.torch.memory.parallel_copy import Job, fill_jobs, run_jobs
from ocrstore.torch.memory.row_layout import AnyArray, IntArray
from ocrstore.torch.open_views import find_view
from ocrstore.torch.store_view import ShardRef, StoreView, ViewRef

if TYPE_CHECKING:
    from ocrstore.shared_slots import Ticket

DECODE_AHEAD = 8
"""Of how many batches a worker decodes a column after its parent has read it in place."""

_DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


class ExactTensor(torch.Tensor):
    """A tensor that keeps its dtype under `to(dtype)`, with which Lightning rounds every input.

    Use `float()` or `half()` to convert it. The results of operations are plain tensors.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch's own Parameter

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the tensor itself if only a dtype is given; else as `Tensor.to`."""
        if len(args) == 1 and isinstance(args[0], torch.dtype) and not kwargs:
            return self
        return super().to(*args, **kwargs)


class Field(NamedTuple):
    """How samples and batches present one column."""

    column: str
    """The logical name in the view."""
    plural: str
    """Its name in a batch."""
    singular: str
    """Its name in a sample."""
    kind: str = "plain"
    """`picture` (stored HWC, presented CHW), `map` (stored HW, presented 1HW), `matrix` or `plain`.
    """

    def present(self, rows: torch.Tensor) -> torch.Tensor:
        """Return stored rows (B, ...) in the layout of a batch; a view, never a copy."""
        if self.kind == "picture" and rows.ndim == 4:
            return rows.permute(0, 3, 1, 2)
        return rows.unsqueeze(1) if self.kind == "map" and rows.ndim == 3 else rows

    def tensor(self, rows: AnyArray) -> torch.Tensor:
        """Return what `present` returns, as a tensor that is no view of another one.

        Torch frees tensors that have views much more slowly.
        """
        if self.kind == "picture" and rows.ndim == 4:
            return as_tensor(rows.transpose(0, 3, 1, 2))
        tensor = as_tensor(rows)
        if self.kind == "matrix":
            return tensor.as_subclass(ExactTensor)
        return tensor.unsqueeze_(1) if self.kind == "map" and rows.ndim == 3 else tensor

    def presented_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that `present` gives rows of this shape."""
        if self.kind == "picture" and len(shape) == 4:
            return (shape[0], shape[3], shape[1], shape[2])
        return (shape[0], 1, *shape[1:]) if self.kind == "map" and len(shape) == 3 else shape

    def stored(self, presented: torch.Tensor) -> torch.Tensor:
        """Undo `present`."""
        if self.kind == "picture" and presented.ndim == 4:
            return presented.permute(0, 2, 3, 1)
        return presented.squeeze(1) if self.kind == "map" and presented.ndim == 4 else presented


def field_of(column: str) -> Field:
    """Return how a column is presented; an unknown column keeps its name."""
    known = COLUMNS.get(column)
    if known is None:
        return Field(column, column, column)
    kind = {PICTURE: "picture", MATRIX: "matrix"}.get(known.role, "map")
    return Field(column, known.batch_name, known.sample_name, kind)


@lru_cache(maxsize=64)
def fields_of(columns: tuple[str, ...]) -> tuple[Field, ...]:
    """Return how the columns of a view are presented.

    If the view has a tensor, that is `images`, and whole pictures are `whole_images`.
    """
    whole = Field(IMAGE, "whole_images", "whole_image", "picture")
    has_tensor = TENSOR in columns
    return tuple(whole if has_tensor and name == IMAGE else field_of(name) for name in columns)


def as_tensor(array: AnyArray) -> torch.Tensor:
    """Return a tensor that shares the array's memory; torch has no big-endian types."""
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(array)


class RowRefs:
    """Rows of one store view or of several, in the order of a batch.

    Pickles to the references of its views and the row numbers, some 250 bytes.

    Args:
        views: The views.
        store_rows: The row of each sample in its store.
        store_of: The position in `views` of each sample; None if there is one view.
        dataset_rows: The row of each sample in the data set; `store_rows` by default.
    """

    __slots__ = (
        "_each",
        "_groups",
        "_is_remote",
        "_others",
        "dataset_rows",
        "decoded",
        "fields",
        "sender",
        "store_of",
        "store_rows",
        "views",
    )

    def __init__(
        self,
        views: Sequence[StoreView],
        store_rows: IntArray,
        *,
        store_of: IntArray | None = None,
        dataset_rows: IntArray | None = None,
    ) -> None:
        self.views = tuple(views)
        self.store_rows = store_rows
        self.store_of = store_of
        self.dataset_rows = store_rows if dataset_rows is None else dataset_rows
        self._each: list[tuple[StoreView, int]] | None = None
        self._groups: list[tuple[StoreView, IntArray, IntArray]] | None = None
        self._is_remote: bool | None = None
        self.decoded: dict[str, AnyArray] = {}
        """Columns that the worker which sent these rows decoded, until they are taken."""
        self.sender: Ticket | None = None
        """The notes of that worker."""
        names, specs = self.views[0].names, self.views[0].specs
        # the shards of a data set share one object
        self._others = [view for view in self.views if view.specs is not specs]
        for view in self._others:
            names = tuple(name for name in names if name in view.columns)
        self.fields = fields_of(names)

    def __len__(self) -> int:
        return len(self.store_rows)

    def one(self, position: int) -> RowRefs:
        """Return the reference to one sample."""
        view = self.views[0 if self.store_of is None else int(self.store_of[position])]
        one = slice(position, position + 1)
        same = self.dataset_rows is self.store_rows
        rows = None if same else self.dataset_rows[one]
        return RowRefs((view,), self.store_rows[one], dataset_rows=rows)

    def groups(self) -> list[tuple[StoreView, IntArray, IntArray]]:
        """Return (view, positions in the batch, rows of the store) for each view in use."""
        if self._groups is None:
            self._groups = self._find_groups()
        return self._groups

    def _find_groups(self) -> list[tuple[StoreView, IntArray, IntArray]]:
        if self.store_of is None:
            return [(self.views[0], np.arange(len(self)), self.store_rows)]
        places: dict[int, list[int]] = {}  # for a few rows this is quicker than numpy
        for position, number in enumerate(self.store_of.tolist()):
            places.setdefault(number, []).append(position)
        return [
            (self.views[number], np.array(positions), self.store_rows[positions])
            for number, positions in places.items()
        ]

    def each(self) -> list[tuple[StoreView, int]]:
        """Return (view, row of the store) of each sample."""
        if self._each is None:
            rows = self.store_rows.tolist()
            if self.store_of is None:
                self._each = [(self.views[0], row) for row in rows]
            else:
                numbers = self.store_of.tolist()
                self._each = [
                    (self.views[number], row) for number, row in zip(numbers, rows, strict=True)
                ]
        return self._each

    def _is_uniform(self, field: Field) -> bool:
        """Return whether the column has one shape and dtype in all views."""
        first = self.views[0].specs[field.column]
        others = [view.specs[field.column] for view in self._others]
        return first.is_fixed and all(
            (spec.shape, spec.dtype) == (first.shape, first.dtype) for spec in others
        )

    def shape(self, field: Field) -> tuple[int, ...]:
        """Return the shape of the stored rows, (B, ...)."""
        shape = self.views[0].specs[field.column].shape
        return (len(self), *(int(size or 0) for size in shape))

    def torch_dtype(self, field: Field) -> torch.dtype | None:
        """Return the dtype of the rows as one tensor; None if they do not make one tensor."""
        if not self._is_uniform(field):
            return None
        if self._normalizes(field):
            return torch.float32
        return _DTYPES[self.views[0].specs[field.column].dtype]

    def is_decoded(self, field: Field) -> bool:
        """Return whether the column is compressed, and its rows decode to one array."""
        is_raw = self.views[0].specs[field.column].is_raw
        return not is_raw and self.torch_dtype(field) is not None

    def _tell_sender(self, field: Field, batches: int) -> None:
        """Tell the worker that sent these rows of how many batches to decode a column."""
        if self.sender is None or not self.is_decoded(field):
            return
        from ocrstore.shared_slots import notes_of  # for compressed columns of workers alone

        try:
            notes_of(self.sender)[self.fields.index(field)] = batches
        except (RuntimeError, IndexError):  # it has ended; more columns than notes
            self.sender = None

    def take(self, field: Field) -> AnyArray | list[AnyArray]:
        """Return the rows as one writable array, or as a list if their shapes differ."""
        self._tell_sender(field, DECODE_AHEAD)
        if field.column in self.decoded:
            return self.decoded.pop(field.column)  # a second call returns memory of its own
        if self._normalizes(field):
            return self._take_floats(field)
        if self.store_of is None:
            return self.views[0].take(field.column, self.store_rows)
        groups = self.groups()
        if len(groups) == 1:
            return groups[0][0].take(field.column, groups[0][2])
        if self._is_uniform(field):
            return self._take_together(field)
        taken: list[AnyArray] = [np.empty(0)] * len(self)
        for view, positions, rows in groups:
            arrays = view.take(field.column, rows)
            for position, array in zip(positions.tolist(), arrays, strict=True):
                taken[position] = array
        return taken

    def _take_together(self, field: Field) -> AnyArray:
        """Return rows of several stores as one array: mapped together if possible."""
        self.check()
        name = field.column
        self._fetch(name)
        if self.views[0].specs[name].is_raw:
            memories = [view.memory_at(name, row) for view, row in self.each()]
            mapped = take_together(memories, self.store_rows)
            if mapped is not None:
                return mapped
        out = self.views[0].column(field.column).empty_batch(len(self))
        run_jobs(self._copy_jobs(field, out))
        return out

    def copy_jobs(self, field: Field, target: torch.Tensor) -> list[Job] | None:
        """Return how to copy the rows into a tensor; None if it has another dtype or device.

        Call `check` before: once for all fields, because a batch of many shards has many files.
        """
        if target.device.type != "cpu" or target.dtype != self.torch_dtype(field):
            return None
        self._tell_sender(field, 0)
        decoded = self.decoded.get(field.column)
        if decoded is not None:
            return [(np.copyto, row, source) for row, source in zip(target.numpy(), decoded)]
        return self._copy_jobs(field, target.numpy())

    def array_type(self, field: Field) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the dtype and shape of what `take` returns as one array."""
        spec = self.views[0].specs[field.column]
        dtype = np.dtype(np.float32) if self._normalizes(field) else spec.numpy_dtype
        return dtype, self.shape(field)

    def write_into(self, field: Field, out: AnyArray) -> None:
        """Copy or decode the rows into an array; raises what `take` raises."""
        self.views[0].column(field.column).empty_batch(0)  # rows that are too large
        run_jobs(self._copy_jobs(field, out))

    def _copy_jobs(self, field: Field, out: AnyArray) -> list[Job]:
        if self._normalizes(field):
            self._write_floats(field, self._stored_rows(field), list(out))
            return []
        if self.store_of is None:
            return self.views[0].copy_jobs(field.column, self.store_rows, out)
        name = field.column
        self._fetch(name)
        return fill_jobs([view.source(name, row) for view, row in self.each()], out)

    def _fetch(self, name: str) -> None:
        """Have the rows of a column of stores behind URLs: together, not row by row."""
        if self._is_remote is None:
            self._is_remote = any(view.is_remote for view in self.views)
        if self._is_remote:
            for view, _, rows in self.groups():
                view.memory_of(name, rows)

    @property
    def as_numpy(self) -> bool:
        """Return whether arrays are handed out in place of tensors."""
        return self.views[0].ref.numpy

    def _normalizes(self, field: Field) -> bool:
        return self.views[0].ref.normalize and field.kind in ("picture", "map")

    def _stored_rows(self, field: Field) -> list[AnyArray]:
        """Return the rows where they lie in the file, decoded if they have a codec."""
        self.check()
        self._fetch(field.column)
        return [view.column(field.column)[row] for view, row in self.each()]

    def check(self) -> None:
        """Raise StoreChangedError if a file was truncated, overwritten or replaced by another."""
        for view in self.views:
            view.check()

    def _take_floats(self, field: Field) -> AnyArray | list[AnyArray]:
        rows = self._stored_rows(field)
        if self._is_uniform(field):
            out: AnyArray = POOL.empty(self.shape(field), np.float32)
            self._write_floats(field, rows, list(out))
            return out
        each: list[AnyArray] = [np.empty(row.shape, np.float32) for row in rows]
        self._write_floats(field, rows, each)
        return each

    def _write_floats(self, field: Field, rows: list[AnyArray], out: list[AnyArray]) -> None:
        if field.kind == "picture":
            mean, std = self.views[0].mean_and_std
            write_normalized(rows, out, mean=mean, std=std)
        else:
            write_floats(rows, out)

    def load(self) -> None:
        """Read all rows into the page cache; returns when they are there."""
        for view, _, rows in self.groups():
            try:
                view.load(rows)
            except OSError as exc:
                row = int(rows[0])
                raise OCRStoreError(
                    f"{view.path}: the batch with sample {view.key(row)!r} (row {row}) cannot be"
                    f" read: {exc}. Check the disk, then `ocrstore verify`."
                ) from exc

    def __reduce__(self) -> tuple[Any, ...]:
        refs = tuple(view.sent for view in self.views)
        same = self.dataset_rows is self.store_rows
        rows = None if same else _pack(self.dataset_rows)
        store_of = None if self.store_of is None else _pack(self.store_of)
        return _restore, (refs, _pack(self.store_rows), store_of, rows)


def _pack(array: IntArray) -> bytes:
    """Return integers as 4 bytes each; with a leading byte as 8 bytes if they need it."""
    numbers = array.tolist()
    if not numbers or (min(numbers) >= 0 and max(numbers) < 1 << 32):
        return array.astype("<u4").tobytes()
    return b"\1" + array.astype("<i8").tobytes()


def _unpack(data: bytes) -> IntArray:
    if len(data) % 4:
        return np.frombuffer(data[1:], "<i8").astype(np.int64)
    return np.frombuffer(data, "<u4").astype(np.int64)


def _restore(
    refs: tuple[ViewRef | ShardRef, ...],
    store_rows: bytes,
    store_of: bytes | None,
    dataset_rows: bytes | None,
) -> RowRefs:
    return RowRefs(
        [find_view(ref) for ref in refs],
        _unpack(store_rows),
        store_of=None if store_of is None else _unpack(store_of),
        dataset_rows=None if dataset_rows is None else _unpack(dataset_rows),
    )


def join(several: Sequence[RowRefs]) -> RowRefs:
    """Return the rows of several references, one after another."""
    views: list[StoreView] = []
    store_rows: list[int] = []
    store_of: list[int] = []
    dataset_rows: list[int] = []
    for refs in several:
        for (view, row), number in zip(refs.each(), refs.dataset_rows.tolist(), strict=True):
            known = next((i for i, other in enumerate(views) if other is view), None)
            if known is None:
                known = len(views)
                views.append(view)
            store_rows.append(row)
            store_of.append(known)
            dataset_rows.append(number)
    same = dataset_rows == store_rows
    return RowRefs(
        views,
        np.array(store_rows, np.int64),
        store_of=np.array(store_of, np.int64) if len(views) > 1 else None,
        dataset_rows=None if same else np.array(dataset_rows, np.int64),
    )
