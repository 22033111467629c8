"""Owns the rows of a record: which ones, of which store views, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ocrstore.torch._rows import AnyArray, IntArray
from ocrstore.torch.fields import Field, fields_of
from ocrstore.torch.view import StoreView, ViewRef, find_view

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


class Parts:
    """Rows of one store view or of several, in the order of a record. Pickles to references."""

    __slots__ = ("fields", "local", "rows", "views", "which")

    def __init__(
        self,
        views: Sequence[StoreView],
        local: IntArray,
        *,
        which: IntArray | None = None,
        rows: IntArray | None = None,
    ) -> None:
        """Describe rows `local` of `views[which]`; `rows` are their numbers in the data set."""
        self.views = tuple(views)
        self.local = local
        self.which = which
        self.rows = local if rows is None else rows
        names = self.views[0].names
        for view in self.views[1:]:
            names = tuple(name for name in names if name in view.columns)
        self.fields = fields_of(names)

    def one(self, position: int) -> Parts:
        """Return the part that is one sample."""
        view = self.views[0 if self.which is None else int(self.which[position])]
        one = slice(position, position + 1)
        rows = None if self.rows is self.local else self.rows[one]
        return Parts((view,), self.local[one], rows=rows)

    def groups(self) -> list[tuple[StoreView, IntArray, IntArray]]:
        """Return (view, positions in the record, rows of the view) for each view that has any."""
        if self.which is None:
            return [(self.views[0], np.arange(len(self.local)), self.local)]
        found = []
        for number, view in enumerate(self.views):
            positions = np.flatnonzero(self.which == number)
            if len(positions):
                found.append((view, positions, self.local[positions]))
        return found

    def each(self) -> list[tuple[StoreView, int]]:
        """Return (view, row) of each sample."""
        if self.which is None:
            return [(self.views[0], row) for row in self.local.tolist()]
        pairs = zip(self.which.tolist(), self.local.tolist(), strict=True)
        return [(self.views[number], row) for number, row in pairs]

    def _fits(self, field: Field) -> bool:
        """Tell whether the column has one shape and type in all views."""
        first = self.views[0].specs[field.column]
        others = [view.specs[field.column] for view in self.views[1:]]
        return first.is_fixed and all(
            (spec.shape, spec.dtype) == (first.shape, first.dtype) for spec in others
        )

    def shape(self, field: Field) -> tuple[int, ...]:
        """Return the shape of the stored rows, (B, ...)."""
        shape = self.views[0].specs[field.column].shape
        return (len(self.local), *(int(size or 0) for size in shape))

    def torch_dtype(self, field: Field) -> torch.dtype | None:
        """Return the type of the rows as one tensor; None where they are not one."""
        if not self._fits(field):
            return None
        return _DTYPES[self.views[0].specs[field.column].dtype]

    def take(self, field: Field) -> AnyArray | list[AnyArray]:
        """Return the rows as one array that is the caller's, or a list if their shapes differ."""
        if self.which is None:
            return self.views[0].take(field.column, self.local)
        groups = self.groups()
        if len(groups) == 1:
            return groups[0][0].take(field.column, groups[0][2])
        if self._fits(field):
            dtype = self.views[0].specs[field.column].numpy_dtype
            out: AnyArray = np.empty(self.shape(field), dtype)
            self._copy(field, out)
            return out
        taken: list[AnyArray] = [np.empty(0)] * len(self.local)
        for view, positions, rows in groups:
            arrays = view.take(field.column, rows)
            for position, array in zip(positions.tolist(), arrays, strict=True):
                taken[position] = array
        return taken

    def copy(self, field: Field, target: torch.Tensor) -> bool:
        """Copy the rows into a tensor of their type; False if that must be done another way."""
        if target.device.type != "cpu" or target.dtype != self.torch_dtype(field):
            return False
        self._copy(field, target.numpy())
        return True

    def _copy(self, field: Field, out: AnyArray) -> None:
        if self.which is None:
            self.views[0].copy(field.column, self.local, out)
            return
        for view, positions, rows in self.groups():
            for position, row in zip(positions.tolist(), rows, strict=True):
                view.copy(field.column, row[None], out[position : position + 1])

    def bring_in(self) -> None:
        """Wait until all rows are in the page cache."""
        for view, _, rows in self.groups():
            view.bring_in(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        def packed(array: IntArray | None) -> bytes | None:
            if array is None:
                return None
            numbers = array.tolist()
            if not numbers or (min(numbers) >= 0 and max(numbers) < 1 << 32):
                return array.astype("<u4").tobytes()
            return b"\1" + array.astype("<i8").tobytes()

        refs = tuple(view.ref for view in self.views)
        rows = None if self.rows is self.local else packed(self.rows)
        return _unpack, (refs, packed(self.local), packed(self.which), rows)


def _unpack(
    refs: tuple[ViewRef, ...], local: bytes, which: bytes | None, rows: bytes | None
) -> Parts:
    def unpacked(data: bytes) -> IntArray:
        if len(data) % 4:
            return np.frombuffer(data[1:], "<i8").astype(np.int64)
        return np.frombuffer(data, "<u4").astype(np.int64)

    views = [find_view(ref) for ref in refs]
    return Parts(
        views,
        unpacked(local),
        which=None if which is None else unpacked(which),
        rows=None if rows is None else unpacked(rows),
    )


def join(parts: Sequence[Parts]) -> Parts:
    """Return the rows of several records, one after another."""
    views: list[StoreView] = []
    local: list[int] = []
    which: list[int] = []
    rows: list[int] = []
    for part in parts:
        for (view, row), number in zip(part.each(), part.rows.tolist(), strict=True):
            known = next((i for i, other in enumerate(views) if other is view), None)
            if known is None:
                known = len(views)
                views.append(view)
            local.append(row)
            which.append(known)
            rows.append(number)
    same = rows == local
    return Parts(
        views,
        np.array(local, np.int64),
        which=np.array(which, np.int64) if len(views) > 1 else None,
        rows=None if same else np.array(rows, np.int64),
    )
