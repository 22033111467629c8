"""Apply a transform to the pictures and polygons of a store, and draw the maps afterwards.

A transform is a `BasicAugmentation`, an albumentations composition, or a callable that takes
`image=` and `keypoints=`.
"""

from __future__ import annotations

import copy
import itertools
import os
import random
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from ocrstore.annotation import Annotation
from ocrstore.buffers import BufferPool
from ocrstore.errors import (
    CorruptStoreError,
    DecodeError,
    OCRStoreError,
    SchemaError,
    StoreChangedError,
)
from ocrstore.keys import shown
from ocrstore.schema import IMAGE, MAPS, TENSOR
from ocrstore.stopwatch import lap
from ocrstore.store import StoredColumn
from ocrstore.targets import TargetFunction, draw_targets
from ocrstore.torch.annotations import polygons_in_view, raw_size, source_orientation
from ocrstore.torch.collate import Computed
from ocrstore.torch.memory.address_range import map_run
from ocrstore.torch.memory.column_memory import best_strategy
from ocrstore.torch.memory.float_rows import write_normalized
from ocrstore.torch.memory.row_layout import AnyArray, IntArray, RowLayout
from ocrstore.torch.store_view import StoreView, ViewOutline

if TYPE_CHECKING:
    from ocrstore.maps import MapParams

Transform = Callable[..., Mapping[str, Any]]

_FAR = float(2**29)
"""Polygons with a coordinate beyond this are dropped; `draw_maps` refuses those beyond 2**30."""
_CORNERS = np.array([(0, 0), (1, 0), (1, 1), (0, 1)], np.float32)
_SEED_WORDS = 4
"""64-bit words for each part of a composition: three for numpy's generator, one for Python's."""
_POOL = BufferPool(kept_nbytes=1 << 28)
"""For pictures and maps of the samples of a batch, reused when the batch is stacked."""


class Augmenter:
    """Computes transformed samples of the stores of a data set. Not thread-safe."""

    def __init__(
        self,
        views: Sequence[ViewOutline],
        transform: Transform,
        map_params: MapParams | None,
        *,
        fuse: bool = True,
        targets: TargetFunction | None = None,
    ) -> None:
        """Prepare a transform for views that have the same columns and map parameters."""
        first = views[0]
        self._view: StoreView | None = None
        """The one that a sample is computed from."""
        self._augment = Augmentation(transform, fuse=fuse, before_pixels=self._check)
        self._params = map_params
        self._targets = targets
        self._maps = [name for name in first.columns if name in MAPS] or (
            list(MAPS) if first.ref.columns is None else []
        )
        for view in views if targets is None and first.ref.columns is None else ():
            recipe = {} if view.stored_view is None else view.stored_view.recipe_json
            if recipe.get("targets") is not None:
                function = shown(recipe["targets"]["function"])
                raise SchemaError(
                    f"{view.path}: the targets of its view are drawn by {function}; with transform="
                    " give that function as targets=, or choose the columns= to read"
                )
        self._whole = IMAGE in first.all_columns

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the columns that samples are computed from."""
        return (IMAGE,) if self._whole else (TENSOR,)

    def pictures(self, view: StoreView) -> StoredColumn[Any]:
        """Return the column of the pictures that are transformed."""
        return view.store[IMAGE] if self._whole else view.column(TENSOR)

    def _check(self) -> None:
        if self._view is not None:
            self._view.check()

    def compute(self, view: StoreView, row: int, number: int) -> Computed:
        """Return a row of a view after the transform; `number` is its row in the data set."""
        self._view = view
        view.check()
        try:
            annotation = view.annotations.annotation(row)
            if not self._whole:
                annotation = annotation._replace(polygons=polygons_in_view(view, row))
            lap("annotations")
            picture = self._picture(view, row)
            lap("picture")
            made = self._augment(picture, annotation, row=number)
            # a transform that does not write to the picture has drawn into memory of its own
            copied = _copy(made.image) if self._augment.writes else made.image
            normalize = view.ref.normalize
            computed = Computed(image=_normalized(view, copied) if normalize else copied)
            lap("annotations")
            computed.update(self._draw(view, made.image.shape, made.annotation))
        except (CorruptStoreError, DecodeError, StoreChangedError):
            raise  # not the fault of the transform
        except Exception as exc:  # a transform may raise anything; OpenCV has its own exceptions
            where = f"{view.path}: sample {view.key(row)!r} (row {row})"
            if isinstance(exc, SchemaError):
                raise SchemaError(f"{where}: {exc}") from exc
            raise OCRStoreError(
                f"{where}: the transform failed: {type(exc).__name__}: {exc}"
            ) from exc
        computed["inverse_matrix"] = made.inverse_matrix
        computed["polygons"] = made.annotation.polygons
        computed["ignored"] = made.annotation.ignored
        computed["texts"] = made.annotation.texts
        computed["image_filename"] = view.key(row)
        computed["raw_size"] = raw_size(view, row)
        computed["orientation"] = 1  # of the pixels that are handed out
        computed["source_orientation"] = source_orientation(view, row)
        computed["row"] = number
        return computed

    def _picture(self, view: StoreView, row: int) -> AnyArray:
        """Return the picture; writable, and rarely a copy, if the transform may write to it."""
        column = self.pictures(view)
        view.check()  # again, because reading the annotation may have taken long
        if not self._augment.writes:
            return np.asarray(column[row])
        if column.spec.is_raw and best_strategy() != "copy":
            layout = RowLayout(
                np.asarray(column.offsets[row : row + 1], np.int64),
                tuple(column.shapes[row].tolist()),
                column.spec.numpy_dtype,
            )
            first: IntArray = np.zeros(1, np.int64)
            mapped = map_run(view.open_file(), layout, first)
            if mapped is not None:
                return np.asarray(mapped[0])
        return column.decoded(row)

    def _draw(
        self, view: StoreView, shape: tuple[int, ...], annotation: Annotation
    ) -> dict[str, Any]:
        if not self._maps and self._targets is None:
            return {}
        from ocrstore.maps import MAX_POINTS, dbnet_maps

        # the build skips and reports the others, too
        drawable = [len(polygon) <= MAX_POINTS for polygon in annotation.polygons]
        polygons = list(compress(annotation.polygons, drawable))
        ignored = list(compress(annotation.ignored, drawable))
        if self._targets is not None:
            name = getattr(self._targets, "__qualname__", type(self._targets).__name__)
            targets = draw_targets(self._targets, name, polygons, ignored, *shape[:2])
            lap("map drawing")
            return targets
        maps = dbnet_maps(polygons, ignored, *shape[:2], params=self._map_params(view))
        lap("map drawing")
        drawn = {name: maps[name] for name in self._maps}
        if view.ref.normalize:
            return {name: array.astype(np.float32, copy=False) for name, array in drawn.items()}
        converted = {
            name: _to_float16(array) if array.dtype == np.float32 else array
            for name, array in drawn.items()
        }
        lap("float16")
        return converted

    def _map_params(self, view: StoreView) -> MapParams:
        if self._params is None:
            from ocrstore.maps import MapParams

            stored = view.stored_view
            self._params = MapParams() if stored is None else MapParams(**stored.maps)
        return self._params


def _normalized(view: StoreView, image: AnyArray) -> AnyArray:
    if image.dtype != np.uint8:
        raise SchemaError(
            f"normalize=True, and the transform returned a picture of {image.dtype}: expected"
            " uint8. Take Normalize out of the transform, or leave out normalize=True."
        )
    target: AnyArray = _POOL.empty(image.shape, np.float32)
    mean, std = view.mean_and_std
    write_normalized([np.ascontiguousarray(image)], [target], mean=mean, std=std)
    return target


def _copy(array: AnyArray) -> AnyArray:
    target = _POOL.empty(array.shape, array.dtype)
    np.copyto(target, array)
    return target


def _to_float16(array: npt.NDArray[np.float32]) -> AnyArray:
    """Round to float16 as numpy does; torch is faster."""
    target = _POOL.empty(array.shape, np.float16)
    torch.from_numpy(target).copy_(torch.from_numpy(array))
    return target


@dataclass(frozen=True, slots=True)
class Augmented:
    """A transformed picture with its annotation."""

    image: AnyArray
    """(H, W, 3) as the transform returned it."""
    annotation: Annotation
    """Polygons in the frame of the new picture, without those outside of it."""
    inverse_matrix: npt.NDArray[np.float64]
    """New picture -> old picture; NaN if the transform is not a projection."""


class Augmentation:
    """Calls a transform with a picture and its polygons. Not thread-safe.

    An albumentations composition is given keypoint parameters if it has none. Its random numbers
    are seeded from torch's generator of this process, the sample's row and the rank, so they differ
    between samples, workers, ranks and epochs, and repeat when torch is seeded the same. So are
    those of any other transform that has an attribute `random_generator`, a numpy Generator.
    """

    def __init__(
        self,
        transform: Transform,
        *,
        fuse: bool = True,
        before_pixels: Callable[[], None] | None = None,
    ) -> None:
        """Prepare a transform.

        Args:
            transform: The transform.
            fuse: Compute only the pixels of an albumentations composition that are seen in the
                end; the result is the same bit for bit.
            before_pixels: With `fuse`, called when the steps are planned and the picture is about
                to be read.
        """
        self.transform: Any = _with_keypoints(transform)
        self.writes: bool = getattr(self.transform, "writes", True)
        """Whether the transform may write to the picture that it is given."""
        parts = [self.transform] if hasattr(self.transform, "random_generator") else []
        if "keypoints" in getattr(self.transform, "processors", ()):
            from ocrstore.augment import (
                PlannedComposition,
                SteppedComposition,
                can_plan,
                has_known_rules,
            )

            if has_known_rules():
                self.writes = not (fuse and can_plan(self.transform))
                self.transform = PlannedComposition(
                    self.transform, fuse=not self.writes, before_pixels=before_pixels
                )
            else:
                self.transform = SteppedComposition(self.transform)
            parts = self.transform.parts
        self._generators = PartGenerators(parts)

    def __call__(self, image: AnyArray, annotation: Annotation, *, row: int) -> Augmented:
        """Transform one picture."""
        height, width = image.shape[:2]
        corners = _CORNERS * np.array((width, height), np.float32)
        # twice, because what comes back between them from an unknown callable has no other mark
        points = np.concatenate([corners, *annotation.polygons, corners], dtype=np.float32)
        self._generators.seed((_random_number(), row, _rank()))
        lap("annotations")
        result = self.transform(image=image, keypoints=points)
        lap("keypoints")
        if "keypoints" not in result:
            raise SchemaError("the transform returned no keypoints, so no maps can be drawn")
        moved = np.asarray(result["keypoints"], np.float64).reshape(-1, 2)
        if len(moved) != len(points):
            raise SchemaError(
                f"the transform returned {len(moved)} keypoints for {len(points)}; it has to return"
                " each one once, in the same order, outside of the picture too. An albumentations"
                " composition of your own needs KeypointParams(remove_invisible=False) and no"
                " reflected borders; given as transform= it is looked after."
            )
        if not np.array_equal(moved[:4], moved[-4:], equal_nan=True):
            raise SchemaError(
                "the transform returned keypoints in another order than it was given them; it has"
                " to return each one once, in the same order."
            )
        picture = _as_picture(result["image"])
        lengths = [len(polygon) for polygon in annotation.polygons]
        ends = list(itertools.accumulate(lengths))
        inside = _find_inside(moved[4:-4], lengths, ends, picture.shape)
        with np.errstate(over="ignore"):  # of points that are far outside
            rounded = moved[4:-4].astype(np.float32)
        return Augmented(
            picture,
            Annotation(
                [rounded[ends[i] - lengths[i] : ends[i]] for i in inside],
                [annotation.ignored[i] for i in inside],
                [annotation.texts[i] for i in inside],
            ),
            _projection(moved[-4:], corners.astype(np.float64)),
        )


class PartGenerators:
    """Random generators for the parts of a composition, seeded for each sample. Not thread-safe.

    `Compose.set_random_seed` would give all parts the same numbers: a flip and a rotation of equal
    probability would always happen together. The generators are made once, because making them
    takes longer than to flip and crop a picture.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        """Take the objects that draw from `random_generator` and `py_random`."""
        self._parts = [
            (part, np.random.Generator(np.random.SFC64(0)), random.Random(0)) for part in parts
        ]

    def seed(self, entropy: Sequence[int]) -> None:
        """Seed every part by `entropy` and its position."""
        if not self._parts:
            return
        sequence = np.random.SeedSequence(entropy)
        count = _SEED_WORDS * len(self._parts)
        words = sequence.generate_state(count, np.uint64).reshape(-1, _SEED_WORDS)
        for (part, generator, python), state in zip(self._parts, words, strict=True):
            python.seed(int(state[3]))
            state[3] = 1  # SFC64 starts its counter at 1
            generator.bit_generator.state = {
                "bit_generator": "SFC64",
                "state": {"state": state},
                "has_uint32": 0,
                "uinteger": 0,
            }
            part.random_generator, part.py_random = generator, python


def check_transform(transform: Any) -> None:
    """Raise TypeError for what cannot be a transform, before the first sample needs it."""
    if callable(transform) and not isinstance(transform, type):
        return
    found = repr(transform) if isinstance(transform, type) else type(transform).__name__
    raise TypeError(
        f"transform: expected an albumentations transform, or a callable that takes image= and"
        f" keypoints=; found {found}. Several transforms go into albumentations.Compose([...])."
    )


def _with_keypoints(transform: Any) -> Any:
    """Return an albumentations transform as a composition that keeps all keypoints.

    Anything else is returned as it is.
    """
    albumentations: Any = sys.modules.get("albumentations")  # else it cannot be one of its own
    if albumentations is None:
        return transform
    known = (albumentations.BasicTransform, albumentations.BaseCompose)
    if not isinstance(transform, known):
        return transform
    # a subclass may do anything in its call, and so stays whole; an inner composition is modified
    composed = type(transform) is albumentations.Compose
    if isinstance(transform, albumentations.Compose) and not composed:
        transform = copy.copy(transform)
    with warnings.catch_warnings():
        # a pipeline that only changes colours does not move keypoints, and need not
        warnings.filterwarnings("ignore", message="Got processor for keypoints")
        return albumentations.Compose(
            transform.transforms if composed else [transform],
            keypoint_params=albumentations.KeypointParams(format="xy", remove_invisible=False),
            p=transform.p if composed else 1.0,
        )


def _as_picture(image: Any) -> AnyArray:
    if isinstance(image, torch.Tensor):
        return image.permute(1, 2, 0).numpy() if image.ndim == 3 else image.numpy()
    array = np.asarray(image)
    if array.ndim != 3:
        raise SchemaError(
            f"the transform returned a picture of shape {array.shape}: expected (H, W, 3)"
        )
    return array


def _find_inside(
    points: npt.NDArray[np.float64], lengths: list[int], ends: list[int], shape: Sequence[int]
) -> list[int]:
    """Return the polygons (of `lengths` points each) whose bounding box touches the picture."""
    if not lengths:
        return []
    if 0 in lengths:
        raise SchemaError("a polygon has no points")
    starts = [0, *ends[:-1]]
    # all at once: a picture has many polygons of few points
    near = np.logical_and.reduceat((np.abs(points) < _FAR).all(axis=1), starts)
    low, high = np.minimum.reduceat(points, starts), np.maximum.reduceat(points, starts)
    seen = (high >= 0) & (low <= (shape[1], shape[0]))
    inside: list[int] = np.flatnonzero(near & seen.all(axis=1)).tolist()
    return inside


def _projection(
    source: npt.NDArray[np.float64], target: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the 3x3 matrix that maps four points to four others."""
    rows = []
    for (x, y), (u, v) in zip(source.tolist(), target.tolist(), strict=True):
        rows += [(x, y, 1, 0, 0, 0, -u * x, -u * y), (0, 0, 0, x, y, 1, -v * x, -v * y)]
    try:
        solved = np.linalg.solve(np.array(rows), target.reshape(-1))
    except np.linalg.LinAlgError:
        return np.full((3, 3), np.nan)
    return np.append(solved, 1.0).reshape(3, 3)


def _random_number() -> int:
    return int(torch.randint(0, 2**63 - 1, (), dtype=torch.int64))


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    rank = os.environ.get("RANK", "0")
    return int(rank) if rank.isdigit() else 0
