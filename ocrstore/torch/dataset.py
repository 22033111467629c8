"""Owns `OCRStoreDataset`: stores as an ordinary map-style data set."""

from __future__ import annotations

import dataclasses
import glob
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset, get_worker_info

from ocrstore.errors import (
    NotAStoreError,
    OCRStoreError,
    RecipeMismatchError,
    UnknownRowError,
)
from ocrstore.torch._rows import IntArray
from ocrstore.torch.collate import (
    Computed,
    ComputedList,
    SampleList,
    collate_computed,
    show_sample,
)
from ocrstore.torch.memory import Strategy, check_strategy
from ocrstore.torch.parts import Parts
from ocrstore.torch.records import Batch, OutgoingBatch, Sample
from ocrstore.torch.residency import Progress
from ocrstore.torch.view import PICTURE, StoreView, find_view, open_view

if TYPE_CHECKING:
    import numpy.typing as npt

    from ocrstore.maps import MapParams
    from ocrstore.recipe import Recipe
    from ocrstore.torch.augment import Transform
    from ocrstore.torch.recorded import Annotation
    from ocrstore.torch.training import TrainingView

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class OCRStoreDataset(Dataset[Any]):
    """One store or several as a data set for a stock DataLoader; no collate function is needed.

    Without `transform` samples and batches are references to stored rows; their tensors are
    memory of the file that is yours to write on. With `transform`, an albumentations composition,
    each picture and its polygons go through it, and the maps are drawn from where the polygons
    went.

    Cheap to make, to pickle and to send to workers: all processes share the page cache. Threads
    may share it, too, unless it has a transform.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        view: str | int | None = None,
        columns: Sequence[str] | None = None,
        expect: Recipe | str | None = None,
        transform: Transform | None = None,
        fuse: bool = True,
        map_params: MapParams | None = None,
        memory: Strategy | None = None,
    ) -> None:
        """Open stores: a path, several, or a pattern such as `"train-*.ocrs"`.

        `view` names one of the stored views (the default one otherwise), `columns` what of it is
        wanted. `expect` is the recipe (or its fingerprint) that must have made the view.
        `fuse=False` runs an albumentations transform step by step on whole pictures, where
        otherwise only the pixels that are seen in the end are computed; the result is the same.
        `map_params` are the numbers that maps are drawn with after a transform; the view's own
        otherwise.
        """
        if isinstance(columns, str):
            raise TypeError(f"columns={columns!r}: expected a list of names: [{columns!r}]")
        if memory is not None:
            check_strategy("memory", memory)
        if transform is not None:
            from ocrstore.torch.augment import check_transform

            check_transform(transform)
        names = None if columns is None else tuple(columns)
        view_name = None if view is None else str(view)
        self.views = tuple(
            open_view(path, view=view_name, columns=names, strategy=memory)
            for path in expand(paths)
        )
        for opened in self.views:
            if expect is not None:
                _enforce(opened, expect)
        self.transform = transform
        self._fuse = fuse
        self._map_params = map_params
        self._prepare()

    def _prepare(self) -> None:
        lengths = [len(view) for view in self.views]
        self._starts: IntArray = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        self._ahead = -1
        self._training: list[TrainingView] | None = None
        if self.transform is not None:
            from ocrstore.torch.training import TrainingView

            self._training = [
                TrainingView(view, self.transform, self._map_params, fuse=self._fuse)
                for view in self.views
            ]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        stores = ", ".join(view.path for view in self.views)
        return f"<OCRStoreDataset: {len(self)} samples of {stores}>"

    def __getitem__(self, index: Any) -> Any:
        """Return a sample; a batch for a slice, a list of rows or a mask of all rows."""
        if isinstance(index, slice):
            return self._batch(np.arange(len(self), dtype=np.int64)[index])
        if not isinstance(index, int):
            if not isinstance(index, (str, bytes)) and _has_rows(index):
                return self._batch(self._as_rows(index))
            index = self._as_row(index)
        row = self._check(index)
        if self._training is not None:
            return show_sample(self._compute(row))
        parts = self._parts(np.array([row], np.int64))
        if get_worker_info() is not None:
            self._bring_in(parts)
        return Sample(parts)

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return what a DataLoader collates into one batch."""
        given = np.asarray(indices)
        if given.dtype != np.int64 or given.ndim != 1:
            given = self._as_rows(indices)
        rows = self._check_all(given)
        if self._training is not None:
            return ComputedList(self._compute_all(rows))
        parts = self._parts(rows)
        if get_worker_info() is None:
            self._ask_for_next(rows)
        return SampleList(parts)

    def __iter__(self) -> Iterator[Sample]:
        return (self[row] for row in range(len(self)))

    def _batch(self, rows: IntArray) -> Any:
        checked = self._check_all(rows)
        if self._training is not None:
            return collate_computed(self._compute_all(checked))
        parts = self._parts(checked)
        if get_worker_info() is not None:
            self._bring_in(parts)
            return OutgoingBatch(parts)
        return Batch(parts)

    def _as_row(self, index: Any) -> int:
        """Return a row number; anything else is never taken for one."""
        try:
            return operator.index(index)
        except TypeError:
            store = self.views[0].path
            remedy = (
                f"; ocrstore.open({store!r}).row({index!r}) gives the row of a key in its store"
                if isinstance(index, str)
                else ""
            )
            raise TypeError(
                f"{self!r}: {index!r} is no row: expected a whole number, a slice, a list of whole"
                f" numbers or a mask{remedy}."
            ) from None

    def _as_rows(self, index: Any) -> IntArray:
        """Return the row numbers in a list or an array; a mask selects the rows where it is set."""
        try:
            given = np.asarray(index)
        except (TypeError, ValueError) as exc:
            raise TypeError(f"{self!r}: not a list of rows: {exc}") from exc
        if given.ndim == 1 and given.dtype.kind == "b":
            if len(given) != len(self):
                raise UnknownRowError(
                    f"{self!r}: a mask of {len(given)} entries; expected one for each sample."
                )
            return np.flatnonzero(given)
        if given.ndim == 1 and (given.dtype.kind in "iu" or not len(given)):
            return given.astype(np.int64)
        raise TypeError(
            f"{self!r}: expected a list of whole numbers or a mask, of one dimension; found"
            f" {given.dtype} of shape {given.shape}."
        )

    def _check(self, row: int) -> int:
        count = len(self)
        if not -count <= row < count:
            stores = ", ".join(view.path for view in self.views)
            raise UnknownRowError(f"{stores}: no row {row}; there are the rows 0 to {count - 1}.")
        return row % count

    def _check_all(self, rows: IntArray) -> IntArray:
        count = len(self)
        if len(rows) and not -count <= int(rows.min()) <= int(rows.max()) < count:
            for row in rows.tolist():
                self._check(row)
        return np.where(rows < 0, rows + count, rows)

    def _parts(self, rows: IntArray) -> Parts:
        if len(self.views) == 1:
            return Parts(self.views, rows)
        which = np.searchsorted(self._starts, rows, "right") - 1
        local = rows - self._starts[which]
        used, which = np.unique(which, return_inverse=True)
        views = [self.views[number] for number in used.tolist()] or [self.views[0]]
        return Parts(views, local, which=which if len(views) > 1 else None, rows=rows)

    def _bring_in(self, parts: Parts) -> None:
        try:
            parts.bring_in()
        except OSError as exc:
            view, row = parts.each()[0]
            raise OCRStoreError(
                f"{view.path}: sample {view.key(row)!r} (row {row}): cannot be read: {exc}"
            ) from exc

    def _compute(self, row: int) -> Computed:
        assert self._training is not None
        number = int(np.searchsorted(self._starts, row, "right")) - 1
        return self._training[number].compute(row - int(self._starts[number]), row)

    def _compute_all(self, rows: IntArray) -> list[Computed]:
        """Return transformed samples that only the collation will see."""
        samples = [self._compute(row) for row in rows.tolist()]
        for sample in samples:
            sample.recyclable = True
        return samples

    def _ask_for_next(self, rows: IntArray) -> None:
        """While one sequential batch is used, let the system read the one after it."""
        last = int(rows[-1]) if len(rows) else 0
        if len(self.views) == 1 and len(rows) and last - int(rows[0]) == len(rows) - 1:
            following = np.arange(last + 1, min(len(self), last + 1 + len(rows)), dtype=np.int64)
            if len(following) and last > self._ahead:
                self.views[0].ask_for(following)
            self._ahead = last

    @property
    def row_groups(self) -> list[tuple[int, int]]:
        """Return [first, last) of the rows that were written together."""
        found: list[tuple[int, int]] = []
        for start, view in zip(self._starts.tolist(), self.views, strict=False):
            found += [(start + first, start + last) for first, last in view.row_groups()]
        return found

    def read_ahead(self, rows: npt.NDArray[np.int64]) -> None:
        """Ask the system to read rows into the page cache; returns before they are there."""
        for view, _, local in self._parts(rows).groups():
            view.ask_for(local)

    def warm(self, *, progress: Progress | None = None) -> int:
        """Read everything this data set reads into the page cache; return how many bytes."""
        if self._training is None:
            reads = [view.names for view in self.views]
        else:
            reads = [training.reads for training in self._training]
        sizes = [view.nbytes_of(names) for view, names in zip(self.views, reads, strict=True)]
        done = 0
        for view, names, size in zip(self.views, reads, sizes, strict=True):
            before = done

            def tell(part: int, _total: int, before: int = before) -> None:
                if progress is not None:
                    progress(before + part, sum(sizes))

            view.warm(names=names, progress=tell)
            done += size
        return done

    @cached_property
    def anns(self) -> dict[str, list[npt.NDArray[np.float32]]]:
        """File name -> polygons in the upright picture, for evaluators."""
        return {name: annotation.polygons for name, annotation in self.annotations.items()}

    @cached_property
    def annotations(self) -> dict[str, Annotation]:
        """File name -> polygons in the upright picture, ignore flags and texts."""
        for view in self.views:
            view.check()
        return {
            view.key(row): view.recorded.annotation(row)
            for view in self.views
            for row in range(len(view))
        }

    def __getstate__(self) -> dict[str, Any]:
        return {
            "refs": [view.ref for view in self.views],
            "transform": self.transform,
            "fuse": self._fuse,
            "map_params": self._map_params,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.views = tuple(find_view(ref) for ref in state["refs"])
        self.transform = state["transform"]
        self._fuse = state["fuse"]
        self._map_params = state["map_params"]
        self._prepare()


def _has_rows(index: Any) -> bool:
    """Tell whether an index is a list or an array, rather than one number."""
    try:
        return np.ndim(index) > 0
    except ValueError:  # a list of lists that differ in length
        return True


def expand(paths: Paths) -> list[str]:
    """Return the stores that a path, several paths or patterns name."""
    if isinstance(paths, (str, os.PathLike)):
        given = [paths]
    elif isinstance(paths, Iterable):
        given = list(paths)
    else:
        raise TypeError(f"{paths!r} is no path: expected a path, several, or a pattern.")
    for path in given:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"{path!r} is no path: expected a path, several, or a pattern.")
        if not os.fspath(path):
            raise NotAStoreError("a path is empty: expected a path, several, or a pattern.")
    found: list[str] = []
    for path in [os.fspath(path) for path in given]:
        if os.path.exists(path) or not glob.has_magic(path):  # noqa: PTH110  # strings throughout
            found.append(path)
            continue
        matches = sorted(glob.glob(path, recursive=True))  # noqa: PTH207  # absolute patterns, too
        if not matches:
            raise NotAStoreError(f"{path}: no store matches this pattern.")
        found += matches
    if not found:
        raise NotAStoreError("no store was named: expected a path, several, or a pattern.")
    return found


def _enforce(view: StoreView, expect: Recipe | str) -> None:
    if not isinstance(expect, str):
        from ocrstore.recipe import Recipe

        if not isinstance(expect, Recipe):
            raise TypeError(
                f"expect: expected a Recipe or its fingerprint, found {type(expect).__name__};"
                " Recipe.from_json(...) makes one of a mapping."
            )
        expect = _without_pictures(view, expect)
    found = None if view.recipe is None else view.recipe.get("fingerprint")
    wanted = expect if isinstance(expect, str) else expect.fingerprint
    if found == wanted:
        return
    if view.recipe is None:
        raise RecipeMismatchError(
            f"{view.path}: has no view, so no recipe made it; expected {wanted}."
        )
    message = f"{view.path}: its view was made by another recipe (expected {wanted}, found {found})"
    if not isinstance(expect, str):
        from ocrstore.jsondiff import diff_json

        lines = diff_json(expect.to_json(), view.recipe["recipe"])
        message += "; expected -> found:\n  " + "\n  ".join(lines)
    raise RecipeMismatchError(message + "\nBuild the store again, or ask for what it holds.")


def _without_pictures(view: StoreView, expect: Recipe) -> Recipe:
    """Return the recipe as an added view has it: the whole pictures are the store's already."""
    added = view.ref.view not in (None, view.store.metadata.get("default_view"))
    columns = tuple(column for column in expect.columns if column.name != PICTURE)
    recorded = {} if view.recipe is None else view.recipe["recipe"]["columns"]
    if not added or PICTURE in recorded or not columns:
        return expect
    return dataclasses.replace(expect, columns=columns)
