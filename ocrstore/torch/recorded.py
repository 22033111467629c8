"""Owns what the index records of samples: numbers, polygons, texts, as plain Python and numpy."""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ocrstore.torch._rows import AnyArray, IntArray

if TYPE_CHECKING:
    import numpy.typing as npt

    from ocrstore.store import Store


class Annotation(NamedTuple):
    """What is known of one picture's text."""

    polygons: list[npt.NDArray[np.float32]]
    """(n, 2) each, in the upright picture."""
    ignored: list[bool]
    texts: list[str | None]


class Recorded:
    """The index of an open store, sample by sample. For any thread; survives a fork."""

    def __init__(self, store: Store) -> None:
        self._index = store.index
        # Arrow makes a list of them anew each time
        self._names = frozenset(self._index.column_names)
        self._numbers: dict[str, IntArray | None] = {}
        self._lists: dict[str, tuple[AnyArray, Any] | None] = {}

    def attribute(self, name: str, row: int) -> Any:
        """Return one recorded value of a sample, None where the store does not record it."""
        return self._index[name][row].as_py() if name in self._names else None

    def number(self, name: str, row: int) -> Any:
        """Return one recorded whole number of a sample, as `attribute` does; in less time."""
        numbers = self.numbers(name)
        return self.attribute(name, row) if numbers is None else int(numbers[row])

    def numbers(self, name: str) -> IntArray | None:
        """Return a recorded whole number of every sample; None if it is not recorded of all."""
        if name not in self._numbers:
            column = self._index[name] if name in self._names else None
            known = column is not None and len(column) and not column.null_count
            self._numbers[name] = np.asarray(column).astype(np.int64) if known else None
        return self._numbers[name]

    def annotation(self, row: int) -> Annotation:
        """Return a sample's polygons in the upright picture."""
        polygons: list[npt.NDArray[np.float32]] = []
        if "polygons" in self._names:
            lists, ends, points = self._polygons
            first, last = int(lists[row]), int(lists[row + 1])
            edges = ends[first : last + 1].tolist()
            polygons = [
                np.array(points[start:end], np.float32).reshape(-1, 2)
                for start, end in itertools.pairwise(edges)
            ]
        count = len(polygons)
        ignored = self._listed("ignored", row) or [False] * count
        texts = self._listed("texts", row) or [None] * count
        return Annotation(polygons, [bool(flag) for flag in ignored], texts)

    def _listed(self, name: str, row: int) -> list[Any]:
        """Return a recorded list of a sample; an empty one where the store does not record it."""
        if name not in self._lists:
            # looked up in Arrow's own lists, each takes several times as long
            column = self._index[name].combine_chunks() if name in self._names else None
            found = None if column is None else (np.asarray(column.offsets), column.values)
            self._lists[name] = found
        found = self._lists[name]
        if found is None:
            return []
        first, last = found[0][row : row + 2].tolist()
        listed: list[Any] = found[1].slice(first, last - first).to_pylist()
        return listed

    @cached_property
    def _polygons(self) -> tuple[AnyArray, AnyArray, AnyArray]:
        """Return where each sample's polygons, and each polygon's numbers begin, and the numbers.

        Arrow's own lists take several times as long, one by one.
        """
        samples = self._index["polygons"].combine_chunks()
        polygons = samples.values
        starts, ends = np.asarray(samples.offsets), np.asarray(polygons.offsets)
        return starts, ends, np.asarray(polygons.values)
