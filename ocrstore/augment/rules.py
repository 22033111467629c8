"""Rules that turn albumentations' transforms, with their drawn parameters, into steps.

A transform can have a rule if its random parameters do not depend on pixels. Parameters and the
effect on keypoints always come from albumentations itself; a rule is about pixels only. It returns
None where the transform's own code must run on the picture. The colour jitter is computed here, bit
for bit like albumentations', in reused memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore import buffers
from ocrstore.augment.steps import Crop, Pad, Recolour, Size, Step, Turn, Warp
from ocrstore.augment.warp import Pixels, Rect

Params = Mapping[str, Any]
Rule = Callable[[Any, Params, Size], list[Step] | None]

_SIDES = ("pad_top", "pad_bottom", "pad_left", "pad_right")


def _no_op(_transform: Any, _params: Params, _size: Size) -> list[Step] | None:
    return []


def _flip_columns(_transform: Any, _params: Params, size: Size) -> list[Step] | None:
    return [Turn(size, flips_columns=True)]


def _flip_rows(_transform: Any, _params: Params, size: Size) -> list[Step] | None:
    return [Turn(size, flips_rows=True)]


def _transpose(_transform: Any, _params: Params, size: Size) -> list[Step] | None:
    return [Turn(size, transposes=True)]


def _rotate90(_transform: Any, params: Params, size: Size) -> list[Step] | None:
    turns: list[list[Step]] = [  # as numpy.rot90 counts: anticlockwise
        [],
        [Turn(size, transposes=True, flips_rows=True)],
        [Turn(size, flips_rows=True, flips_columns=True)],
        [Turn(size, transposes=True, flips_columns=True)],
    ]
    return turns[params["factor"]]


def _pad(transform: Any, params: Params, size: Size) -> list[Step] | None:
    from albumentations.augmentations.geometric import functional

    top, bottom, left, right = (int(params[side]) for side in _SIDES)
    if min(top, bottom, left, right) < 0:
        return None
    if top == bottom == left == right == 0:
        return []
    mode, fill = transform.border_mode, transform.fill

    def paint(pixels: Pixels, *sides: int) -> Pixels:
        padded: Pixels = functional.pad_with_params(pixels, *sides, border_mode=mode, value=fill)
        return padded

    return [Pad(size, top, bottom, left, right, mode == cv2.BORDER_CONSTANT, paint)]


def _crop(transform: Any, params: Params, size: Size) -> list[Step] | None:
    padding = params.get("pad_params")
    steps = [] if padding is None else _pad(transform, padding, size)
    if steps is None:
        return None
    padded = steps[-1].size_after if steps else size
    cut = _cut(padded, params["crop_coords"])
    return None if cut is None else [*steps, cut]


def _cut(size: Size, sides: tuple[int, int, int, int]) -> Crop | None:
    left, top, right, bottom = (int(side) for side in sides)
    rect = Rect(top, left, bottom, right)
    if rect.width <= 0 or rect.height <= 0 or not Rect.whole(size).covers(rect):
        return None  # albumentations has an error for it
    return Crop(size, rect)


def _affine(transform: Any, params: Params, size: Size) -> list[Step] | None:
    from albumentations.augmentations.geometric import functional

    if transform.interpolation != cv2.INTER_LINEAR:
        return None
    matrix = params["matrix"]
    if _is_identity(matrix):
        return []
    height, width = params.get("output_shape", size)
    after = (int(np.round(height)), int(np.round(width)))
    fill = functional.extend_value(transform.fill, 3)
    return [Warp(size, np.asarray(matrix[:2], np.float64), after, transform.border_mode, fill)]


def _is_identity(matrix: Any) -> bool:
    """Return whether albumentations takes a 3x3 matrix for the identity."""
    if matrix.dtype != np.float64 or matrix.shape != (3, 3):
        from albumentations.augmentations.geometric import functional

        return bool(functional.is_identity_matrix(matrix))
    # the tolerances of numpy.allclose, without its many arrays
    return all(
        abs(value - (i == j)) <= 1e-8 + 1e-5 * (i == j)
        for i, row in enumerate(matrix.tolist())
        for j, value in enumerate(row)
    )


def _rotate(transform: Any, params: Params, size: Size) -> list[Step] | None:
    steps = _affine(transform, params, size)
    if steps is None or not transform.crop_border:
        return steps
    cut = _cut(size, (params["x_min"], params["y_min"], params["x_max"], params["y_max"]))
    return None if cut is None else [*steps, cut]


def _recolour(transform: Any, params: Params, size: Size) -> list[Step] | None:
    return [Recolour(size, lambda pixels: _painted(transform, pixels, params), is_pointwise=False)]


def _look_up(transform: Any, params: Params, size: Size) -> list[Step] | None:
    return [Recolour(size, lambda pixels: _painted(transform, pixels, params), is_pointwise=True)]


def _painted(transform: Any, pixels: Pixels, params: Params) -> Pixels:
    own = pixels if pixels.flags.writeable else pixels.copy()  # a stored picture is read-only
    painted: Pixels = transform.apply(own, **params)
    return painted


def _jitter(_transform: Any, params: Params, size: Size) -> list[Step] | None:
    return [Recolour(size, lambda pixels: jitter(pixels, params), is_pointwise=False)]


_RULES: dict[str, Rule] = {
    "Affine": _affine,
    "CenterCrop": _crop,
    "ColorJitter": _jitter,
    "Crop": _crop,
    "HorizontalFlip": _flip_columns,
    "HueSaturationValue": _recolour,
    "InvertImg": _look_up,
    "NoOp": _no_op,
    "Pad": _pad,
    "PadIfNeeded": _pad,
    "RandomBrightnessContrast": _look_up,
    "RandomCrop": _crop,
    "RandomGamma": _look_up,
    "RandomRotate90": _rotate90,
    "Rotate": _rotate,
    "SafeRotate": _affine,
    "ShiftScaleRotate": _affine,
    "Solarize": _look_up,
    "Transpose": _transpose,
    "VerticalFlip": _flip_rows,
}


def rule_of(transform: Any) -> Rule | None:
    """Return the rule of a transform; None if its own code must run."""
    kind = type(transform)
    if not kind.__module__.startswith(("albumentations.augmentations.", "albumentations.core.")):
        return None  # somebody's own, perhaps of the same name
    if kind.__name__ == "RandomBrightnessContrast" and not transform.brightness_by_max:
        return None  # takes the mean of the picture
    return _RULES.get(kind.__name__)


def jitter(pixels: Pixels, params: Mapping[str, Any]) -> Pixels:
    """Change brightness, contrast, saturation and hue of (H, W, 3) uint8, in the order given.

    The result is a copy.
    """
    own = (_adjust_brightness, _adjust_contrast, _adjust_saturation, _adjust_hue)
    factors = (params["brightness"], params["contrast"], params["saturation"], params["hue"])
    mine: Pixels = buffers.scratch_bytes(pixels.shape)
    mine[...] = pixels
    for which in params["order"]:
        own[which](mine, factors[which])
    return mine


def _adjust_brightness(mine: Pixels, factor: float) -> None:
    from albumentations.augmentations.pixel import functional

    if factor == 0:
        mine.fill(0)
    elif factor != 1:
        buffers.paste(functional.multiply(mine, factor, inplace=True), mine)


def _adjust_contrast(mine: Pixels, factor: float) -> None:
    from albumentations.augmentations.pixel import functional

    if factor in (0, 1):
        buffers.paste(functional.adjust_contrast_torchvision(mine, factor), mine)
        return
    grey = _grey(mine)
    # a sum of bytes is exact in any order, so this is the mean that numpy finds more slowly
    mean = np.float64(cv2.sumElems(grey)[0]) / grey.size
    changed = functional.multiply_add(mine, factor, mean * (1 - factor), inplace=True)
    buffers.paste(changed, mine)


def _adjust_saturation(mine: Pixels, factor: float) -> None:
    if factor == 1:
        return
    grey = cv2.cvtColor(_grey(mine), cv2.COLOR_GRAY2RGB, dst=buffers.scratch_bytes(mine.shape))
    if factor == 0:
        mine[...] = grey
    else:
        buffers.paste(cv2.addWeighted(mine, factor, grey, 1 - factor, gamma=0, dst=mine), mine)


def _adjust_hue(mine: Pixels, factor: float) -> None:
    if factor == 0:
        return
    turned = cv2.cvtColor(mine, cv2.COLOR_RGB2HSV, dst=buffers.scratch_bytes(mine.shape))
    # albumentations looks the hue up in a strided view of one channel; a plane of its own is faster
    table: npt.NDArray[np.uint8] = np.mod(
        np.arange(0, 256, dtype=np.int16) + 180 * factor, 180
    ).astype(np.uint8)
    plane = cv2.extractChannel(turned, 0, dst=buffers.scratch_bytes(mine.shape[:2]))
    cv2.insertChannel(cv2.LUT(plane, table, dst=buffers.scratch_bytes(plane.shape)), turned, 0)
    buffers.paste(cv2.cvtColor(turned, cv2.COLOR_HSV2RGB, dst=mine), mine)


def _grey(mine: Pixels) -> Pixels:
    return cv2.cvtColor(mine, cv2.COLOR_RGB2GRAY, dst=buffers.scratch_bytes(mine.shape[:2]))
