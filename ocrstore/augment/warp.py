"""Compute a part of an affine warp, bit for bit equal to the same part of the whole warp.

`cv2.warpAffine` computes a source coordinate for each pixel and interpolates there. Shifting its
matrix would round those coordinates differently. So either all rows and columns before the part
are warped too, and dropped; or the coordinates that it uses for the part are made in numpy, and
`cv2.remap` interpolates there by the same code, which costs about twice as much per pixel. How
OpenCV rounds depends on its version and on the processor, so `rounding` and `can_begin` try it
out once in each process; where no known way gives equal bits, the whole picture is warped.

OpenCV interpolates four channels in a third of the time of three, so pictures are widened first
(the fourth channel is never read) where the same kind of trial shows that the result is equal.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore import buffers


class Rect(NamedTuple):
    """Rows [top, bottom) and columns [left, right)."""

    top: int
    left: int
    bottom: int
    right: int

    @staticmethod
    def whole(size: tuple[int, int]) -> Rect:
        """Return all of a picture of (height, width)."""
        return Rect(0, 0, size[0], size[1])

    @property
    def height(self) -> int:
        """Return the number of rows."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """Return the number of columns."""
        return self.right - self.left

    @property
    def area(self) -> int:
        """Return the number of pixels."""
        return max(0, self.height) * max(0, self.width)

    def moved(self, down: int, right: int) -> Rect:
        """Return the rectangle, shifted."""
        return Rect(self.top + down, self.left + right, self.bottom + down, self.right + right)

    def within(self, other: Rect) -> Rect:
        """Return the common part; it may be empty."""
        return Rect(
            max(self.top, other.top),
            max(self.left, other.left),
            min(self.bottom, other.bottom),
            min(self.right, other.right),
        )

    def covers(self, other: Rect) -> bool:
        """Return whether all of `other` lies inside."""
        return self.within(other) == other

    def cut(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return these pixels of a picture, as a view."""
        return np.asarray(pixels[self.top : self.bottom, self.left : self.right])


Matrix: TypeAlias = npt.NDArray[np.float64]
Pixels: TypeAlias = npt.NDArray[Any]
Fill: TypeAlias = float | Sequence[float]
Rounding: TypeAlias = Literal["fused", "separate"]

LANES = 32
"""The most pixels that a vector unit computes at once; other code computes the rest of a row."""
MAX_SIDE = 2**15 - 1
"""The longest side that OpenCV warps."""
_WORTHWHILE = 0.85
"""A part that is larger than this share of the whole costs as much as the whole."""
_PART_COST = 1.75
"""What a pixel by coordinates of numpy costs, against one by `cv2.warpAffine`."""


def warp(
    pixels: Pixels, matrix: Matrix, size: tuple[int, int], border: int, fill: Fill, part: Rect
) -> Pixels:
    """Return `part` of the result of a linear `cv2.warpAffine`; may be a view.

    `matrix` is the (2, 3) forward one, `size` the (height, width) of the whole.
    """
    fits = max(*size, *pixels.shape[:2]) <= MAX_SIDE
    height, width = _beginning(size, part) if fits and can_begin() else size
    if fits and is_partial(size, part) and _PART_COST * part.area < height * width:
        how = rounding()
        if how is not None:
            return _warp_part(pixels, matrix, border, fill, part, how)
    return part.cut(_warp_whole(pixels, matrix, (height, width), border, fill))


def is_partial(size: tuple[int, int], part: Rect) -> bool:
    """Return whether computing a part alone is cheaper, and computed by the same vector code."""
    return part.area < _WORTHWHILE * size[0] * size[1] and part.right <= size[1] - size[1] % LANES


def _beginning(size: tuple[int, int], part: Rect) -> tuple[int, int]:
    """Return the smallest size to warp that contains the part and uses the same code for it."""
    width = -(-part.right // LANES) * LANES
    return part.bottom, width if width <= size[1] else size[1]


def _warp_whole(
    pixels: Pixels, matrix: Matrix, size: tuple[int, int], border: int, fill: Fill
) -> Pixels:
    return cv2.warpAffine(
        pixels,
        matrix,
        (size[1], size[0]),
        dst=buffers.scratch_bytes((*size, *pixels.shape[2:])) if pixels.dtype == np.uint8 else None,
        flags=cv2.INTER_LINEAR,
        borderMode=border,
        borderValue=fill,
    )


def _warp_part(
    pixels: Pixels, matrix: Matrix, border: int, fill: Fill, part: Rect, how: Rounding
) -> Pixels:
    (a, b, c), (d, e, f) = cv2.invertAffineTransform(matrix).astype(np.float32)
    width = -(-part.width // LANES) * LANES  # the columns that fill up the last vector are dropped
    x: npt.NDArray[np.float32] = np.arange(part.left, part.left + width, dtype=np.float32)
    y: npt.NDArray[np.float32] = np.arange(part.top, part.bottom, dtype=np.float32)[:, None]
    xs = _coordinates(a, x, y * b + c, how)
    ys = _coordinates(d, x, y * e + f, how)
    drawn = cv2.remap(
        pixels,
        xs,
        ys,
        cv2.INTER_LINEAR,
        dst=buffers.scratch_bytes((part.height, width, *pixels.shape[2:])),
        borderMode=border,
        borderValue=fill,
    )
    return drawn if width == part.width else drawn[:, : part.width]


def _coordinates(
    slope: np.float32,
    x: npt.NDArray[np.float32],
    start: npt.NDArray[np.float32],
    how: Rounding,
) -> npt.NDArray[np.float32]:
    """Return slope * x + start for each row and column, rounded once (as fma does) or twice."""
    out = buffers.scratch_floats((len(start), len(x)))
    if how == "separate":
        np.add(slope * x, start, out=out)
        return out
    # the product of two float32 is exact in float64
    product = x.astype(np.float64) * np.float64(slope)
    return np.add(start, product, out=out, dtype=np.float64, casting="same_kind")


@functools.cache
def rounding() -> Rounding | None:
    """Return how this OpenCV on this processor rounds coordinates; None if in no known way."""
    for how in ("fused", "separate"):
        if all(_is_exact(how, number) for number in range(6)):
            return how
    return None


@functools.cache
def can_begin() -> bool:
    """Return whether a warp into a smaller frame equals the corner of the larger one."""
    for number in range(6):
        matrix, border, fill = trial(number)
        size, part = (170, 269), Rect(0, 0, 91 + number, 64 + 32 * (number % 3))
        whole = _warp_whole(noise(), matrix, size, border, fill)
        found = _warp_whole(noise(), matrix, (part.bottom, part.right), border, fill)
        if not np.array_equal(found, part.cut(whole)):
            return False
    return True


@functools.cache
def noise() -> Pixels:
    """Return a random picture, in which any difference shows."""
    made: Pixels = np.random.default_rng(7).integers(0, 256, (150, 230, 3), np.uint8)
    made.flags.writeable = False
    return made


def trial(number: int) -> tuple[Matrix, int, Fill]:
    """Return the parameters of one trial warp of `noise`."""
    borders = (cv2.BORDER_CONSTANT, cv2.BORDER_REFLECT_101, cv2.BORDER_REPLICATE)
    turn = cv2.getRotationMatrix2D((114.5, 74.5), 3.7 * number - 11.3, 0.8 + 0.13 * number)
    matrix: Matrix = np.asarray(turn, np.float64)
    matrix[:, 2] += np.array((number * 1.37, -number * 2.71))
    return matrix, borders[number % len(borders)], (17.0, 130.0, 240.0)


def _is_exact(how: Rounding, number: int) -> bool:
    """Return whether the warp of a part equals the crop of the whole warp."""
    matrix, border, fill = trial(number)
    whole = _warp_whole(noise(), matrix, (170, 256), border, fill)
    part = Rect(11 + number, 13 + 7 * number, 158, 13 + 7 * number + 137 + number)
    found = _warp_part(noise(), matrix, border, fill, part, how)
    return np.array_equal(found, part.cut(whole))


def widen(pixels: Pixels, rect: Rect, size: tuple[int, int]) -> Pixels:
    """Return a frame of `size` and four channels; only `rect` of it is filled, with `pixels`."""
    frame: Pixels = buffers.scratch_bytes((*size, 4))
    target = rect.cut(frame)
    buffers.paste(cv2.cvtColor(pixels, cv2.COLOR_RGB2RGBA, dst=target), target)
    return frame


def narrow(pixels: Pixels) -> Pixels:
    """Return the first three channels, contiguous."""
    target: Pixels = buffers.scratch_bytes((*pixels.shape[:2], 3))
    buffers.paste(cv2.cvtColor(pixels, cv2.COLOR_RGBA2RGB, dst=target), target)
    return target


def can_widen(pixels: Pixels, *sizes: tuple[int, int]) -> bool:
    """Return whether pixels may be warped with four channels, from and to frames of these sizes."""
    return (
        pixels.dtype == np.uint8
        and pixels.shape[2:] == (3,)
        and max(max(size) for size in sizes) <= MAX_SIDE
        and _is_widening_exact()
    )


@functools.cache
def _is_widening_exact() -> bool:
    three = noise()
    four = cv2.cvtColor(three, cv2.COLOR_RGB2RGBA)
    for number in range(6):
        matrix, border, fill = trial(number)
        size = (223 + 13 * number, 160 + number)  # (width, height)
        found, expected = (
            cv2.warpAffine(
                picture,
                matrix,
                size,
                flags=cv2.INTER_LINEAR,
                borderMode=border,
                borderValue=fill,
            )
            for picture in (four, three)
        )
        if not np.array_equal(found[..., :3], expected):
            return False
    return True
