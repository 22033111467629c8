"""Owns one affine warp of which only a part is wanted: the part alone, bit for bit as the whole.

`cv2.warpAffine` computes a source coordinate for each pixel and interpolates there. Shifting its
matrix would round those coordinates otherwise. Here the very coordinates that it uses for the part
are made in numpy, and `cv2.remap` interpolates there by the same code. How OpenCV rounds depends on
its version and on the processor, so `rounding` tries it out, once in each process; where no known
way gives equal bits, the whole picture is warped as ever.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore.fusing.rect import Rect

Matrix: TypeAlias = npt.NDArray[np.float64]
Pixels: TypeAlias = npt.NDArray[Any]
Fill: TypeAlias = float | Sequence[float]
Rounding: TypeAlias = Literal["fused", "separate"]

LANES = 32
"""No vector unit computes more pixels at once; what is left of a row is computed by other code."""
_MAX_SIDE = 2**15 - 1
_WORTHWHILE = 0.85
"""A part that is larger than this share of the whole costs as much as the whole."""


def warp(
    pixels: Pixels, matrix: Matrix, size: tuple[int, int], border: int, fill: Fill, part: Rect
) -> Pixels | None:
    """Return `part` of the picture that `cv2.warpAffine` makes, linearly; None where unsure.

    `matrix` is the (2, 3) forward one, `size` the (height, width) of the whole.
    """
    if not is_partial(size, part) or max(*size, *pixels.shape[:2]) > _MAX_SIDE:
        return None
    how = rounding()
    return None if how is None else _warp_part(pixels, matrix, border, fill, part, how)


def is_partial(size: tuple[int, int], part: Rect) -> bool:
    """Return whether a part is small enough to be worthwhile, and where all code is vector code."""
    return part.area < _WORTHWHILE * size[0] * size[1] and part.right <= size[1] - size[1] % LANES


def _warp_part(
    pixels: Pixels, matrix: Matrix, border: int, fill: Fill, part: Rect, how: Rounding
) -> Pixels:
    (a, b, c), (d, e, f) = cv2.invertAffineTransform(matrix).astype(np.float32)
    width = -(-part.width // LANES) * LANES  # the columns that fill up the last vector are dropped
    x: npt.NDArray[np.float32] = np.arange(part.left, part.left + width, dtype=np.float32)
    y: npt.NDArray[np.float32] = np.arange(part.top, part.bottom, dtype=np.float32)[:, None]
    xs = _coordinates(a, x, y * b + c, how)
    ys = _coordinates(d, x, y * e + f, how)
    drawn = cv2.remap(pixels, xs, ys, cv2.INTER_LINEAR, borderMode=border, borderValue=fill)
    return drawn if width == part.width else drawn[:, : part.width]


def _coordinates(
    slope: np.float32,
    x: npt.NDArray[np.float32],
    start: npt.NDArray[np.float32],
    how: Rounding,
) -> npt.NDArray[np.float32]:
    """Return slope * x + start for each row and column, rounded once (as fma does) or twice."""
    if how == "separate":
        return slope * x + start
    out: npt.NDArray[np.float32] = np.empty((len(start), len(x)), np.float32)
    # the product of two float32 is exact in float64
    product = x.astype(np.float64) * np.float64(slope)
    return np.add(start, product, out=out, dtype=np.float64, casting="same_kind")


@functools.cache
def rounding() -> Rounding | None:
    """Return how this OpenCV on this processor rounds coordinates; None if in no known way."""
    rng = np.random.default_rng(7)
    noise = rng.integers(0, 256, (150, 230, 3), np.uint8)  # the least difference shows in noise
    for how in ("fused", "separate"):
        if all(_is_exact(noise, how, number) for number in range(6)):
            return how
    return None


def _is_exact(noise: Pixels, how: Any, number: int) -> bool:
    """Return whether a part of one warp is the same as cut out of the whole."""
    borders = (cv2.BORDER_CONSTANT, cv2.BORDER_REFLECT_101, cv2.BORDER_REPLICATE)
    border = borders[number % len(borders)]
    turn = cv2.getRotationMatrix2D((114.5, 74.5), 3.7 * number - 11.3, 0.8 + 0.13 * number)
    matrix: Matrix = np.asarray(turn, np.float64)
    matrix[:, 2] += np.array((number * 1.37, -number * 2.71))
    fill = (17.0, 130.0, 240.0)
    height, width = 170, 256
    whole = cv2.warpAffine(
        noise, matrix, (width, height), flags=cv2.INTER_LINEAR, borderMode=border, borderValue=fill
    )
    part = Rect(11 + number, 13 + 7 * number, 158, 13 + 7 * number + 137 + number)
    found = _warp_part(noise, matrix, border, fill, part, how)
    return np.array_equal(found, part.cut(whole))
