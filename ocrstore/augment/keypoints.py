"""Move keypoints through one albumentations transform: one point out for each point in.

albumentations adds mirrored copies of points at reflected borders, drops points that it no longer
finds, and moves those outside of the picture onto its edge. A polygon needs each of its points,
wherever it went, so these transforms are asked in another way or computed here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore.errors import SchemaError

Points = npt.NDArray[Any]
Mover = Callable[..., Points]

_MIRRORING = (cv2.BORDER_REFLECT, cv2.BORDER_REFLECT_101)
_GIVEN = {"image", "keypoints"}
_NEEDS = {
    "AtLeastOneBBoxRandomCrop": "bboxes",
    "BBoxSafeRandomCrop": "bboxes",
    "CropNonEmptyMaskIfExists": "mask",
    "RandomSizedBBoxSafeCrop": "bboxes",
}
"""Targets that transforms read without declaring it in `targets_as_params`."""
_STEPS = ((40, 1.0), (160, 0.4))
"""How many times, and by which share, a point follows the distance that is left."""
_CLOSE = 0.05
"""Pixels of the source within which the inverse of a distortion is found."""
_VISIBLE = 1.0
"""Pixels of the source within which a point counts as seen in the distorted picture."""


_RIGHT_BEFORE_2 = {
    *("Affine", "CenterCrop", "CoarseDropout", "Crop", "CropAndPad", "D4", "Flip"),
    *("GridDropout", "HorizontalFlip", "Lambda", "LongestMaxSize", "NoOp", "Pad", "PadIfNeeded"),
    *("Perspective", "PixelDropout", "RandomCrop", "RandomCropFromBorders", "RandomResizedCrop"),
    *("RandomRotate90", "RandomScale", "RandomSizedCrop", "Resize", "Rotate", "SafeRotate"),
    *("ShiftScaleRotate", "SmallestMaxSize", "Transpose", "VerticalFlip"),
}
"""Transforms whose points stay on their pixels, or are missing or doubled, which is noticed, in
albumentations 1.3.1 and 1.4; a test of `tests/augment` looks at each."""


def check_older(part: Any, version: str) -> None:
    """Raise SchemaError if a transform of albumentations before 2.0 may move points wrongly."""
    from albumentations import DualTransform

    for each in getattr(part, "transforms", ()) or ():
        if hasattr(each, "p"):
            check_older(each, version)
    kind = type(part)
    own = kind.__module__.startswith("albumentations.")
    if own and isinstance(part, DualTransform) and kind.__name__ not in _RIGHT_BEFORE_2:
        raise SchemaError(
            f"{kind.__name__} of albumentations {version} is not known to move points with their"
            " pixels; leave it out, or use albumentations 2.0, where it is."
        )


def check_transform(part: Any, *, replayed: bool = False) -> None:
    """Raise SchemaError if an albumentations transform, or one inside, cannot carry polygons."""
    name = type(part).__name__
    replayed = replayed or hasattr(part, "fill_with_params")
    if getattr(part, "deterministic", False) and not replayed:
        raise SchemaError(
            f"{name} is part of a ReplayCompose, and works nowhere else; make a new {name} for"
            " this composition."
        )
    inner = list(getattr(part, "transforms", ()) or ())
    if name == "SelectiveChannelTransform" and any(map(_moves_pixels, inner)):
        raise SchemaError(
            "SelectiveChannelTransform moves the pixels of some channels and no keypoints, so"
            " polygons would be wrong; give it transforms that only change colours."
        )
    for each in inner:
        if hasattr(each, "p"):  # a colour jitter has functions of that name
            check_transform(each, replayed=replayed)
    if name == "RandomGridShuffle":
        raise SchemaError(
            "RandomGridShuffle cuts the picture into tiles and moves them apart, which tears"
            " polygons; leave it out."
        )
    keys = getattr(part, "available_keys", _GIVEN)
    missing = {*getattr(part, "targets_as_params", ())} - _GIVEN
    if name in _NEEDS:
        missing.add(_NEEDS[name])
    elif not inner and "volume" in keys and "image" not in keys:
        missing.add("volume")
    if missing:
        raise SchemaError(
            f"{name} needs {', '.join(map(repr, sorted(missing)))}, and a data set gives a"
            " transform 'image' and 'keypoints' only; use a transform that needs no more."
        )


def _moves_pixels(part: Any) -> bool:
    inner = getattr(part, "transforms", None)
    if isinstance(inner, (list, tuple)) and inner and hasattr(inner[0], "set_random_seed"):
        return any(map(_moves_pixels, inner))
    return "keypoints" in getattr(part, "_key2func", ()) and type(part).__name__ != "NoOp"


def mover_of(transform: Any) -> Mover | None:
    """Return the function that moves the keypoints of a transform; None if it leaves them."""
    functions = getattr(transform, "_key2func", {})
    if "keypoints" not in functions:
        return None
    own: Mover = functions["keypoints"]
    method: Any = getattr(type(transform), "apply_to_keypoints", None)
    if not getattr(method, "__module__", "").startswith("albumentations."):
        return own  # somebody's own
    if method.__qualname__ == "BaseDistortion.apply_to_keypoints":
        return _move_by_map
    if method.__qualname__ == "GridElasticDeform.apply_to_keypoints":
        return functools.partial(_move_by_mesh, own)
    if hasattr(transform, "border_mode"):
        return functools.partial(_move_without_mirror, transform, own)
    return own


@contextmanager
def one_for_each(transforms: list[Any]) -> Iterator[None]:
    """Let transforms move keypoints by `mover_of` as long as the context lasts."""
    before = [(transform, transform._key2func["keypoints"]) for transform in transforms]
    try:
        for transform in transforms:
            transform._key2func["keypoints"] = mover_of(transform)
        yield
    finally:
        for transform, own in before:
            transform._key2func["keypoints"] = own


def match(before: Points, after: Points, transform: Any) -> Points:
    """Return the points after a transform in the order of those before; the last column is an id.

    Raises:
        SchemaError: Points are missing or there are several of one id.
    """
    if len(after) == len(before):
        if after.shape[1] < before.shape[1]:  # a function of somebody's own made new rows
            return np.column_stack((after, before[:, after.shape[1] :]))
        if np.array_equal(after[:, -1], before[:, -1]):
            return after
    name = type(transform).__name__
    found, counts = np.unique(after[:, -1], return_counts=True)
    lost = len(np.setdiff1d(before[:, -1], found))
    if lost:
        raise SchemaError(
            f"{name} dropped {lost} of {len(before)} keypoints, so the polygons that they belong"
            " to cannot be drawn; a transform has to return each keypoint, outside of the picture"
            " too."
        )
    if counts.max() > 1 or len(found) != len(before):
        raise SchemaError(
            f"{name} returned {len(after)} keypoints for {len(before)}, and the originals cannot be"
            " told from the copies; a transform has to return each keypoint once."
        )
    place = {number: row for row, number in enumerate(after[:, -1].tolist())}
    return after[[place[number] for number in before[:, -1].tolist()]]


def _move_without_mirror(transform: Any, own: Mover, points: Points, **params: Any) -> Points:
    """Move points as if the border were constant: text in a mirrored border is not annotated."""
    border = transform.border_mode
    if border not in _MIRRORING:
        return own(points, **params)
    transform.border_mode = cv2.BORDER_CONSTANT
    try:
        return own(points, **params)
    finally:
        transform.border_mode = border


def _move_by_mesh(
    own: Mover, points: Points, *, generated_mesh: Points, shape: Any, **params: Any
) -> Points:
    """Move points with the cells of a grid; those outside of the picture with the nearest inside.

    Raises:
        SchemaError: A cell was turned inside out, so that cells cover each other.
    """
    quads = generated_mesh[:, 4:].reshape(-1, 4, 2).astype(np.float64)
    sides = np.roll(quads, -1, axis=1) - quads
    after = np.roll(sides, -1, axis=1)
    if (sides[..., 0] * after[..., 1] - sides[..., 1] * after[..., 0] <= 0).any():
        raise SchemaError(
            "the grid deformation folds the picture, so polygons there cannot be right; make its"
            " magnitude less than a quarter of a cell"
        )
    height, width = shape[:2]
    inside = points.copy()
    # a point on the last row or column belongs to the last cell of the grid
    inside[:, 0] = np.clip(points[:, 0], 0, np.nextafter(np.float32(width), np.float32(0)))
    inside[:, 1] = np.clip(points[:, 1], 0, np.nextafter(np.float32(height), np.float32(0)))
    moved = own(inside, generated_mesh=generated_mesh, shape=shape, **params)
    moved[:, :2] += points[:, :2] - inside[:, :2]
    return moved


def _move_by_map(points: Points, *, map_x: Points, map_y: Points, **_params: Any) -> Points:
    """Move points by the inverse of a distortion.

    The maps tell for each pixel of the result where it comes from. Outside of the picture pixels
    are displaced as on its nearest edge.
    """
    shifts = np.stack([map_x, map_y], axis=-1).astype(np.float32)
    height, width = shifts.shape[:2]
    shifts[..., 0] -= np.arange(width, dtype=np.float32)
    shifts[..., 1] -= np.arange(height, dtype=np.float32)[:, None]
    wanted = np.ascontiguousarray(points[:, :2], np.float32)
    found = wanted.copy()
    open_ = np.arange(len(wanted))
    for count, share in _STEPS:
        found[open_] = wanted[open_]
        for _ in range(count):
            left = wanted[open_] - found[open_] - _sample(shifts, found[open_])
            far = np.abs(left).max(axis=1) > _CLOSE
            open_ = open_[far]
            if not len(open_):
                break
            found[open_] += share * left[far]
    for number in open_.tolist():  # folded there: the nearest of all pixels
        distance = np.hypot(map_x - wanted[number, 0], map_y - wanted[number, 1])
        row, column = np.unravel_index(int(np.argmin(distance)), distance.shape)
        if distance[row, column] > _VISIBLE:
            raise SchemaError(
                f"the distortion folds the picture at ({wanted[number, 0]:.0f},"
                f" {wanted[number, 1]:.0f}), so the keypoint there is nowhere in the result; make"
                " the distortion weaker"
            )
        found[number] = column, row
    moved = np.array(points, np.float32)
    moved[:, :2] = found
    return moved


def _sample(shifts: Points, places: Points) -> Points:
    """Return linear interpolations; those outside are of the nearest edge."""
    height, width = shifts.shape[:2]
    x = np.clip(places[:, 0], 0, width - 1)
    y = np.clip(places[:, 1], 0, height - 1)
    column = np.minimum(x.astype(np.intp), max(width - 2, 0))
    row = np.minimum(y.astype(np.intp), max(height - 2, 0))
    right, below = np.minimum(column + 1, width - 1), np.minimum(row + 1, height - 1)
    u, v = (x - column)[:, None], (y - row)[:, None]
    upper = shifts[row, column] * (1 - u) + shifts[row, right] * u
    lower = shifts[below, column] * (1 - u) + shifts[below, right] * u
    sampled: Points = upper * (1 - v) + lower * v
    return sampled
