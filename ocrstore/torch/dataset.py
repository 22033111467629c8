"""`OCRStoreDataset`: one store, several, or the shards of a catalog as a map-style data set."""

from __future__ import annotations

import dataclasses
import glob
import itertools
import logging
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from torch.utils.data import Dataset, get_worker_info

from ocrstore.errors import (
    NotAStoreError,
    RecipeMismatchError,
    SchemaError,
    UnknownRowError,
)
from ocrstore.schema import IMAGE
from ocrstore.store import local_path
from ocrstore.torch.annotations import is_annotated
from ocrstore.torch.batch import Batch, Sample
from ocrstore.torch.collate import (
    Computed,
    ComputedList,
    SampleList,
    collate_computed,
    make_batch,
    present_sample,
)
from ocrstore.torch.memory.column_memory import Strategy, check_strategy
from ocrstore.torch.memory.page_cache import Progress
from ocrstore.torch.memory.row_layout import IntArray
from ocrstore.torch.open_views import Views, find_set, open_set
from ocrstore.torch.row_refs import RowRefs
from ocrstore.torch.store_view import StoreView, ViewOutline

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    from ocrstore.annotation import Annotation
    from ocrstore.maps import MapParams
    from ocrstore.recipe import Recipe
    from ocrstore.targets import TargetFunction
    from ocrstore.torch.augmented import Augmenter, Transform

_log = logging.getLogger(__name__)

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path] | Mapping[str, float]


class OCRStoreDataset(Dataset[Sample]):
    """Stores as a data set for a stock DataLoader; no `collate_fn` is needed.

    Of a data set of many stores, which `ocrstore build --shard-size` writes, only the catalog is
    read at first: shards are opened on first use, and so many stay open as descriptors allow.

    Without `transform`, samples and batches refer to stored rows. You own their tensors and may
    modify them in place: nobody else sees that, and the file never changes. With `transform`, an
    albumentations composition, each picture is transformed with its polygons, and the maps are
    drawn from the transformed polygons.

    Cheap to make, to pickle and to send to workers, which share the page cache. Thread-safe without
    a transform.
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
        targets: TargetFunction | None = None,
        memory: Strategy | None = None,
        max_row_nbytes: int | None = None,
        normalize: bool = False,
        numpy: bool = False,
        cache: str | os.PathLike[str] | None = None,
        cache_limit: str | int | None = None,
        ahead_bytes: str | int | None = None,
    ) -> None:
        """Open stores.

        Args:
            paths: A store, the folder of a data set of many stores (or the `dataset.json` in it),
                the URL of either (s3://, gs://, az://, https://, file://), a pattern such as
                `"train-*.ocrs"`, or several of these; or a dict from any of these to the shares
                that they have in an epoch of training, such as `{"synth/": 0.3, "icdar/": 0.7}`.
                The data set has all their rows; the samplers obey the shares.
            view: The name of a stored view; the default view if not given.
            columns: The columns of the view to read; all if not given.
            expect: The recipe (or its fingerprint) that must have made the view; a recipe may
                have other codecs, because no array depends on them.
            transform: A `BasicAugmentation`, an albumentations transform, or a callable with
                `image=` and `keypoints=`.
            fuse: Compute only the pixels of an albumentations transform that are seen in the end.
                False runs it step by step on whole pictures; the result is the same.
            map_params: How maps are drawn after a transform; as in the view's recipe if not given.
            targets: Draws the targets after a transform in place of DBNet's maps: a function of
                (polygons, ignored, height, width) that returns named arrays; see
                `ocrstore.targets`.
            memory: The memory strategy (`leases`, `fresh` or `copy`); the best one for this system
                if not given.
            max_row_nbytes: Larger rows of compressed columns are not decoded, as in
                `ocrstore.open`.
            normalize: Hand out pictures as float32, normalised by the mean and std of the recipe,
                and maps and masks as float32, for code that normalises nowhere. Four times the
                memory of uint8; `DBNet` and the like normalise uint8 on their device.
            numpy: Hand out arrays in place of tensors. They stay on the host.
            cache: With URLs: the folder on this machine for what is fetched, for all processes
                of a node; by default the variable OCRSTORE_CACHE, else one in the user's cache.
            cache_limit: With URLs: the most bytes of the folder, such as "500GB". Beyond it a
                store is kept only while it is in use.
            ahead_bytes: With URLs: the most bytes that are being fetched at once, 256 MiB at first.

        Raises:
            SchemaError: `normalize`, and the store has no recipe; shares that do not add up to 1.
            RecipeMismatchError: A view was made by another recipe than `expect`, or several stores
                have different recipes, columns or dtypes.
        """
        if isinstance(columns, str):
            raise TypeError(f"columns={columns!r}: expected a list of names: [{columns!r}]")
        if memory is not None:
            check_strategy("memory", memory)
        if transform is not None:
            from ocrstore.torch.augmented import check_transform

            check_transform(transform)
        elif targets is not None:
            raise TypeError(
                "targets= draws after transform=, and there is none; stored targets are made by"
                " `ocrstore build --targets module:function`"
            )
        names = None if columns is None else tuple(columns)
        remote = {"cache": cache, "cache_limit": cache_limit, "ahead_bytes": ahead_bytes}
        view_name = None if view is None else str(view)
        self.shares = _check_shares(paths)
        """The share of each set in an epoch of training; empty if sets are not mixed."""
        found = [expand(path) for path in self.shares] or [expand(paths)]
        sets = [
            open_set(
                os.fspath(local_path(path, **remote)),
                view=view_name,
                columns=names,
                strategy=memory,
                max_row_nbytes=max_row_nbytes,
                normalize=normalize,
                numpy=numpy,
            )
            for path in itertools.chain(*found)
        ]
        for opened in sets:
            if normalize:
                opened.mean_and_std  # noqa: B018  # raises here and not in a worker
            if expect is not None:
                _enforce(opened, expect)
        given = map_params is not None or targets is not None
        _check_alike(sets, transformed=transform is not None, maps_given=given)
        self.views = Views(sets)
        self.transform = transform
        self._fuse = fuse
        self._map_params = map_params
        self._targets = targets
        self._prepare()
        lengths = map(len, sets)
        counts = [sum(itertools.islice(lengths, len(group))) for group in found]
        self.sets = list(itertools.pairwise(itertools.accumulate(counts, initial=0)))
        """[first, last) of the rows of each set; there is one if sets are not mixed."""
        names_in_use = ", ".join(sets[0].names)
        _log.debug("%r: columns %s, batches by %s", self, names_in_use, memory or "default")

    def _prepare(self) -> None:
        lengths = [length for one in self.views.sets for length in one.lengths]
        self._starts: IntArray = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        self._ahead = -1
        self._augmenter: Augmenter | None = None
        if self.transform is not None:
            from ocrstore.torch.augmented import Augmenter

            self._augmenter = Augmenter(
                self.views.sets,
                self.transform,
                self._map_params,
                fuse=self._fuse,
                targets=self._targets,
            )

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        return f"<OCRStoreDataset: {len(self)} samples of {self._places()}>"

    def _places(self) -> str:
        return ", ".join(one.path for one in self.views.sets)

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> Sample: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | npt.NDArray[Any] | Tensor) -> Batch: ...
    def __getitem__(self, index: Any) -> Any:
        """Return a sample for an int, a batch for a slice, a list of ints or a boolean mask."""
        if isinstance(index, slice):
            return self._batch(np.arange(len(self), dtype=np.int64)[index])
        if not isinstance(index, int):
            if not isinstance(index, (str, bytes)) and _has_rows(index):
                return self._batch(self._as_rows(index))
            index = self._as_row(index)
        row = self._check(index)
        if self._augmenter is not None:
            return present_sample(self._compute(row))
        refs = self._refs(np.array([row], np.int64))
        if get_worker_info() is not None:
            refs.load()
        return Sample(refs)

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return the samples that a DataLoader collates into one batch."""
        given = np.asarray(indices)
        if given.dtype != np.int64 or given.ndim != 1:
            given = self._as_rows(indices)
        rows = self._check_all(given)
        if self._augmenter is not None:
            return ComputedList(self._compute_all(rows))
        refs = self._refs(rows)
        if get_worker_info() is None:
            self._read_next_batch_ahead(rows)
        return SampleList(refs)

    def __iter__(self) -> Iterator[Sample]:
        return (self[row] for row in range(len(self)))

    def _batch(self, rows: IntArray) -> Any:
        checked = self._check_all(rows)
        if self._augmenter is not None:
            return collate_computed(self._compute_all(checked))
        return make_batch(self._refs(checked))

    def _as_row(self, index: Any) -> int:
        """Return an index as an int."""
        try:
            if isinstance(index, np.bool_):
                raise TypeError  # numpy 1.26 has an int for it
            return operator.index(index)
        except TypeError:
            store = self.views.sets[0].path
            remedy = (
                f"; ocrstore.open({store!r}).row({index!r}) gives the row of a key in its store"
                if isinstance(index, str)
                else ""
            )
            raise TypeError(
                f"{self!r}: {index!r} is not a valid index: expected int, slice, list of ints or"
                f" boolean mask{remedy}."
            ) from None

    def _as_rows(self, index: Any) -> IntArray:
        """Return the rows of a list, an array or a boolean mask."""
        try:
            given = np.asarray(index)
        except (TypeError, ValueError) as exc:
            raise TypeError(f"{self!r}: not a valid index: {exc}") from exc
        if given.ndim == 1 and given.dtype.kind == "b":
            if len(given) != len(self):
                raise UnknownRowError(
                    f"{self!r}: a mask of length {len(given)}: expected {len(self)}."
                )
            return np.flatnonzero(given)
        if given.ndim == 1 and (given.dtype.kind in "iu" or not len(given)):
            return given.astype(np.int64)
        raise TypeError(
            f"{self!r}: not a valid index: expected a list of ints or a boolean mask; found"
            f" {given.dtype} of shape {given.shape}."
        )

    def _check(self, row: int) -> int:
        count = len(self)
        if not -count <= row < count:
            raise UnknownRowError(f"{self._places()}: no row {row}; it has rows 0 to {count - 1}.")
        return row % count

    def _check_all(self, rows: IntArray) -> IntArray:
        count = len(self)
        if len(rows) and not -count <= int(rows.min()) <= int(rows.max()) < count:
            for row in rows.tolist():
                self._check(row)
        return np.where(rows < 0, rows + count, rows)

    def _refs(self, rows: IntArray) -> RowRefs:
        if len(self.views) == 1:
            return RowRefs(self.views, rows)
        store_of = np.searchsorted(self._starts, rows, "right") - 1
        store_rows = rows - self._starts[store_of]
        numbers = store_of.tolist()
        used = {number: place for place, number in enumerate(dict.fromkeys(numbers))}
        views = self.views.at(used) or [self.views[0]]
        several = np.array([used[number] for number in numbers]) if len(views) > 1 else None
        return RowRefs(views, store_rows, store_of=several, dataset_rows=rows)

    def _locate(self, row: int) -> tuple[StoreView, int]:
        """Return the view that has a row of the data set, and its row there."""
        number = int(np.searchsorted(self._starts, row, "right")) - 1
        return self.views[number], row - int(self._starts[number])

    def _compute(self, row: int) -> Computed:
        assert self._augmenter is not None
        computed = self._augmenter.compute(*self._locate(row), row)
        computed.index = self._refs(np.array([row], np.int64))
        return computed

    def _compute_all(self, rows: IntArray) -> list[Computed]:
        if self.is_remote:
            self.fetch_ahead(rows)
        return [self._compute(row) for row in rows.tolist()]

    def _read_next_batch_ahead(self, rows: IntArray) -> None:
        """After a sequential batch, read the following one in the background."""
        last = int(rows[-1]) if len(rows) else 0
        if len(rows) and last - int(rows[0]) == len(rows) - 1:
            following = np.arange(last + 1, min(len(self), last + 1 + len(rows)), dtype=np.int64)
            if len(following) and last > self._ahead:
                self.read_ahead(following)
            self._ahead = last

    @property
    def row_groups(self) -> list[tuple[int, int]]:
        """Return [first, last) of each row group, the rows that were written together."""
        found: list[tuple[int, int]] = []
        start = 0
        for one in self.views.sets:
            found += [(start + first, start + last) for first, last in one.row_groups()]
            start += sum(one.lengths)
        return found

    @property
    def shards(self) -> list[tuple[int, int]]:
        """Return [first, last) of the rows of each store."""
        return list(itertools.pairwise(self._starts.tolist()))

    def read_ahead(self, rows: npt.NDArray[np.int64]) -> None:
        """Read rows into the page cache in the background."""
        for view, _, store_rows in self._refs(rows).groups():
            view.read_ahead(store_rows, names=self._reads(view))

    @property
    def is_remote(self) -> bool:
        """Whether rows are fetched from a URL, so that it helps to know which come next."""
        return any(one.is_remote for one in self.views.sets)

    def fetch_ahead(self, rows: npt.NDArray[np.int64]) -> None:
        """Have rows fetched in the background that will soon be needed, if they are behind URLs."""
        for view, _, store_rows in self._refs(rows).groups():
            view.fetch_ahead(self._reads(view), store_rows)

    def _reads(self, one: ViewOutline) -> tuple[str, ...]:
        """Return the columns that samples are made of."""
        return one.names if self._augmenter is None else self._augmenter.reads

    @property
    def nbytes(self) -> int:
        """Return the stored bytes of all that this data set uses."""
        return sum(one.nbytes_of(self._reads(one)) for one in self.views.sets)

    def warm(self, *, progress: Progress | None = None) -> int:
        """Read all that this data set uses into the page cache; return the number of bytes."""
        total, done = self.nbytes, 0
        for view in self.views:
            before = done

            def tell(part: int, _total: int, before: int = before) -> None:
                if progress is not None:
                    progress(before + part, total)

            view.warm(self._reads(view), progress=tell)
            done += view.nbytes_of(self._reads(view))
        return done

    @cached_property
    def anns(self) -> dict[str, list[npt.NDArray[np.float32]] | None]:
        """File name -> polygons in the upright picture, for evaluators.

        None for a picture without an annotation, which is not the same as one without text.
        """
        return {
            view.key(row): view.annotations.polygons(row) if is_annotated(view, row) else None
            for view in self._checked_views()
            for row in range(len(view))
        }

    @cached_property
    def annotations(self) -> dict[str, Annotation]:
        """File name -> polygons in the upright picture, ignore flags and texts."""
        return {
            view.key(row): view.annotations.annotation(row)
            for view in self._checked_views()
            for row in range(len(view))
        }

    def _checked_views(self) -> Iterator[StoreView]:
        for view in self.views:
            view.check()
            yield view

    def __getstate__(self) -> dict[str, Any]:
        return {
            "refs": [one.ref for one in self.views.sets],
            "transform": self.transform,
            "fuse": self._fuse,
            "map_params": self._map_params,
            "targets": self._targets,
            "shares": self.shares,
            "sets": self.sets,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.views = Views([find_set(ref) for ref in state["refs"]])
        self.transform = state["transform"]
        self._fuse = state["fuse"]
        self._map_params = state["map_params"]
        self._targets = state["targets"]
        self.shares = state["shares"]
        self.sets = state["sets"]
        self._prepare()


def _has_rows(index: Any) -> bool:
    """Return whether an index is a list or an array and not one number."""
    try:
        return np.ndim(index) > 0
    except ValueError:  # a ragged list of lists
        return True


def expand(paths: Paths) -> list[str]:
    """Return the paths of the stores for a path, several paths or patterns."""
    if isinstance(paths, (str, os.PathLike)):
        given = [paths]
    elif isinstance(paths, Iterable):
        given = list(paths)
    else:
        raise TypeError(f"{paths!r} is not a path: expected a path, several, or a pattern.")
    for path in given:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"{path!r} is not a path: expected a path, several, or a pattern.")
        if not os.fspath(path):
            raise NotAStoreError("a path is empty: expected a path, several, or a pattern.")
    found: list[str] = []
    for path in [os.fspath(path) for path in given]:
        if "://" in path or os.path.exists(path) or not glob.has_magic(path):  # noqa: PTH110  # strings throughout
            found.append(path)
            continue
        matches = sorted(glob.glob(path, recursive=True))  # noqa: PTH207  # absolute patterns, too
        if not matches:
            raise NotAStoreError(f"{path}: no store matches this pattern.")
        found += matches
    if not found:
        raise NotAStoreError("no store was given: expected a path, several, or a pattern.")
    return found


def _check_shares(paths: Paths) -> dict[str, float]:
    """Return the shares of a dict of sets; an empty dict for anything else."""
    if not isinstance(paths, Mapping):
        return {}
    shares = dict(paths)
    for path, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise SchemaError(f"{path}: its share is {share!r}: expected a number between 0 and 1")
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise SchemaError(f"the shares {shares} add up to {sum(shares.values()):g}: expected 1")
    return shares


def _check_alike(
    views: Sequence[ViewOutline], *, transformed: bool, maps_given: bool = False
) -> None:
    """Raise RecipeMismatchError if samples of several stores do not mean the same."""
    first = views[0]
    expected = _meaning(first, transformed=transformed, maps_given=maps_given)
    found: list[str] = []
    for view in views[1:]:
        meaning = _meaning(view, transformed=transformed, maps_given=maps_given)
        if meaning != expected:  # only then is the module for differences imported
            from ocrstore.metadata import diff_json

            found.append(f"{view.path}:")
            found += [f"  {line}" for line in diff_json(expected, meaning)]
    if found:
        raise RecipeMismatchError(
            f"stores of one data set differ from the first, {first.path} (first -> other):\n  "
            + "\n  ".join(found)
            + "\nBuild them with one recipe, choose the columns= or the view= that they share, or"
            " mix them on purpose: torch.utils.data.ConcatDataset takes a data set for each."
        )


def _meaning(view: ViewOutline, *, transformed: bool, maps_given: bool) -> dict[str, Any]:
    """Return what decides how a view's samples look: recipe, columns, dtypes and shapes."""
    stored = view.stored_view
    described = {} if stored is None else stored.recipe_json
    left_out = ("columns", "made_with")
    recipe = {key: value for key, value in described.items() if key not in left_out}
    whole = IMAGE in view.all_columns
    if transformed:
        # maps are drawn anew; the recipe of a baked tensor matters only where it is the picture
        recipe = recipe if not whole else {"maps": recipe.get("maps")}
        if maps_given:
            recipe.pop("maps", None)
        return {"recipe": recipe, "columns": {IMAGE: whole, "maps": sorted(view.names)}}
    made = set() if stored is None else set(stored.columns) - {IMAGE}
    return {
        "recipe": recipe if made & set(view.names) else {},
        "columns": {
            name: {"dtype": spec.dtype, "shape": list(spec.shape)}
            for name, spec in view.specs.items()
        },
    }


def _enforce(view: ViewOutline, expect: Recipe | str) -> None:
    if not isinstance(expect, str):
        from ocrstore.recipe import Recipe

        if not isinstance(expect, Recipe):
            raise TypeError(
                f"expect: expected a Recipe or its fingerprint, found {type(expect).__name__};"
                " Recipe.from_json(...) makes a Recipe from a mapping."
            )
        expect = _without_pictures(view, expect)
    stored = view.stored_view
    if stored is not None and not isinstance(expect, str):
        # codecs are exact: no array depends on them
        columns = stored.recipe_json["columns"]
        expect = expect.with_codecs({name: column["codec"] for name, column in columns.items()})
    found = None if stored is None else stored.fingerprint
    wanted = expect if isinstance(expect, str) else expect.fingerprint
    if found == wanted:
        return
    if stored is None:
        raise RecipeMismatchError(f"{view.path}: has no view and so no recipe; expected {wanted}.")
    message = f"{view.path}: its view was made by another recipe (expected {wanted}, found {found})"
    if not isinstance(expect, str):
        from ocrstore.metadata import diff_json

        lines = diff_json(expect.to_json(), stored.recipe_json)
        message += "; expected -> found:\n  " + "\n  ".join(lines)
    raise RecipeMismatchError(
        message + "\nBuild the store again, or expect the recipe that it has."
    )


def _without_pictures(view: ViewOutline, expect: Recipe) -> Recipe:
    """Return a recipe without whole pictures, as `add-view` records it: the store has them."""
    stored = view.stored_view
    if stored is None or stored.default or IMAGE in stored.recipe_json["columns"]:
        return expect
    columns = tuple(column for column in expect.columns if column.name != IMAGE)
    return dataclasses.replace(expect, columns=columns) if columns else expect
