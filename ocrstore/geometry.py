"""Geometry of pictures: matrices of views, points, EXIF orientation of points and of pixels.

Points of a view live in the continuous frame of the picture: (0, 0) is the outer corner of the
top-left pixel, (width, height) that of the bottom-right one, and the centre of pixel (i, j) is
(i + 0.5, j + 0.5). Resizing by `s` is then exactly `x -> s * x` for points, and for pixel centres
what OpenCV's resize does. albumentations' LongestMaxSize, Resize, crops and PadIfNeeded move
keypoints by the same rule, so a view made here and one made by that pipeline are interchangeable.

One subtlety is kept from there on purpose: the shorter side is rounded to whole pixels while
points move by the unrounded scale, so at the far end of the shorter side points and pixels may
differ by up to half a pixel of the view.

EXIF orientation moves points between the frame in which a picture is stored and the upright one.
There coordinates are pixel indices, as annotations and OpenCV have them: (0, 0) is the centre of
the first pixel, (width - 1, height - 1) that of the last. A point on a pixel lands on the same
pixel of the rotated picture, so integer coordinates stay integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ocrstore.errors import SchemaError, needs

with needs("build"):
    import cv2

Pixels = npt.NDArray[np.uint8]
Matrix = npt.NDArray[np.float64]

INTERPOLATIONS = {
    "nearest": cv2.INTER_NEAREST,
    "linear": cv2.INTER_LINEAR,
    "cubic": cv2.INTER_CUBIC,
    "area": cv2.INTER_AREA,  # for shrinking; enlarging by area would be blocks, so it is linear
    "lanczos": cv2.INTER_LANCZOS4,
}


Frame = Literal["stored", "upright", "either"]
"""The frame in which polygons were drawn."""

_INVERSE = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}
"""The EXIF orientation that undoes another."""
_FLIPS = {2: 1, 4: 0}  # cv2.flip: 1 swaps left and right, 0 top and bottom
_TURNS = {
    3: cv2.ROTATE_180,
    6: cv2.ROTATE_90_CLOCKWISE,
    8: cv2.ROTATE_90_COUNTERCLOCKWISE,
}


@dataclass(frozen=True, slots=True)
class Geometry:
    """How pictures of one size become views; sizes are (height, width)."""

    picture_size: tuple[int, int]
    view_size: tuple[int, int]
    matrix: Matrix
    """Forward: picture -> view, float64."""
    draw: Callable[[Pixels, Pixels], None]
    """Draws a picture into a given view of `view_size`; must write every pixel."""

    @property
    def inverse(self) -> Matrix:
        """Back: view -> picture, float64."""
        return invert(self.matrix)

    def apply(self, pixels: Pixels, *, out: Pixels | None = None) -> Pixels:
        """Draw a picture as a view, into `out` where given; the picture is not changed."""
        if pixels.shape != (*self.picture_size, 3) or pixels.dtype != np.uint8:
            raise SchemaError(
                f"this geometry is for uint8 pictures of shape {(*self.picture_size, 3)}, "
                f"got {pixels.dtype} {pixels.shape}"
            )
        shape = (*self.view_size, 3)
        if out is None:
            out = np.empty(shape, np.uint8)
        elif out.shape != shape or out.dtype != np.uint8:
            raise SchemaError(f"the view is uint8 {shape}, `out` is {out.dtype} {out.shape}")
        self.draw(pixels, out)
        return out


def transform_points(matrix: npt.ArrayLike, points: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Send (n, 2) points through a 3x3 matrix; the result is a new float64 array."""
    forward = np.asarray(matrix, np.float64)
    given = np.asarray(points, np.float64).reshape(-1, 2)
    if np.array_equal(forward[2], (0.0, 0.0, 1.0)):
        return given @ forward[:2, :2].T + forward[:2, 2]
    moved = given @ forward[:, :2].T + forward[:, 2]
    # a point on the line at infinity has no place in the view; numpy's inf says so
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(moved[:, :2] / moved[:, 2:])


def invert(matrix: Matrix) -> Matrix:
    """Invert a 3x3 matrix in plain arithmetic, so that every machine finds the same bits."""
    (a, b, c), (d, e, f), (g, h, i) = matrix.tolist()
    if b == d == g == h == 0 and i == 1:  # a scale and a shift: one rounding per number
        return np.array([[1 / a, 0, -c / a], [0, 1 / e, -f / e], [0, 0, 1]], np.float64)
    adjugate = [
        [e * i - f * h, c * h - b * i, b * f - c * e],
        [f * g - d * i, a * i - c * g, c * d - a * f],
        [d * h - e * g, b * g - a * h, a * e - b * d],
    ]
    determinant = a * adjugate[0][0] + b * adjugate[1][0] + c * adjugate[2][0]
    if determinant == 0:
        raise SchemaError("the geometry cannot be undone: its matrix has no inverse")
    inverse: Matrix = np.array(adjugate, np.float64) / determinant
    if g == h == 0 and i == 1:
        inverse[2] = (0, 0, 1)
    return inverse


def longest_side(
    picture_size: tuple[int, int],
    size: tuple[int, int],
    *,
    interpolation: str = "linear",
    fill: tuple[int, int, int] = (0, 0, 0),
) -> Geometry:
    """Scale a picture to fit into `size`, keep its proportions, put it top left, fill the rest.

    For a square `size` the longest side becomes that long, whether the picture shrinks or grows.
    """
    height, width = _checked(picture_size)
    scale = min(size[0] / height, size[1] / width)
    if size[0] == size[1]:
        # the same expression as albumentations', so that rounding falls on the same side
        scale = size[0] / max(height, width)
    # round() may pass the frame by one where float rounding put the product above .5
    fitted = (
        min(size[0], max(1, round(height * scale))),
        min(size[1], max(1, round(width * scale))),
    )
    matrix = np.diag((scale, scale, 1.0))
    return Geometry(picture_size, size, matrix, _drawer(fitted, interpolation, fill))


def stretch(
    picture_size: tuple[int, int], size: tuple[int, int], *, interpolation: str = "linear"
) -> Geometry:
    """Scale a picture to exactly `size`, whatever becomes of its proportions."""
    height, width = _checked(picture_size)
    matrix = np.diag((size[1] / width, size[0] / height, 1.0))
    return Geometry(picture_size, size, matrix, _drawer(size, interpolation, (0, 0, 0)))


def turn_upright(stored: Pixels, orientation: int) -> Pixels:
    """Return the upright picture, C-contiguous; orientation 1 returns `stored` itself."""
    if orientation in _FLIPS:
        return np.ascontiguousarray(cv2.flip(stored, _FLIPS[orientation]), dtype=np.uint8)
    if orientation in _TURNS:
        return np.ascontiguousarray(cv2.rotate(stored, _TURNS[orientation]), dtype=np.uint8)
    if orientation == 5:
        return np.ascontiguousarray(cv2.transpose(stored), dtype=np.uint8)
    if orientation == 7:
        return np.ascontiguousarray(cv2.flip(cv2.transpose(stored), -1), dtype=np.uint8)
    return np.ascontiguousarray(stored)


def upright_size(stored_size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Return (width, height) after rotation."""
    width, height = stored_size
    return (height, width) if _check_orientation(orientation) >= 5 else (width, height)


def rotate_points(
    points: npt.NDArray[Any],
    orientation: int,
    stored_size: tuple[int, int],
    *,
    inverse: bool = False,
) -> npt.NDArray[Any]:
    """Move (..., 2) points from the stored frame into the upright one, or back.

    Floating points keep their dtype, integers become float64; the input is not changed.
    """
    given = np.asarray(points)
    source = given if given.dtype.kind == "f" else given.astype(np.float64)
    if inverse:
        # undoing a turn is another turn, of a picture that has the upright size
        stored_size = upright_size(stored_size, orientation)
        orientation = _INVERSE[_check_orientation(orientation)]
    right, bottom = stored_size[0] - 1, stored_size[1] - 1
    x, y = source[..., 0], source[..., 1]
    moved = {
        1: lambda: (x, y),
        2: lambda: (right - x, y),
        3: lambda: (right - x, bottom - y),
        4: lambda: (x, bottom - y),
        5: lambda: (y, x),
        6: lambda: (bottom - y, x),
        7: lambda: (bottom - y, right - x),
        8: lambda: (y, right - x),
    }[_check_orientation(orientation)]()
    result: npt.NDArray[Any] = np.stack(moved, axis=-1).astype(source.dtype, copy=False)
    return result


def frame_of(
    polygons: Sequence[npt.NDArray[Any]],
    stored_size: tuple[int, int],
    orientation: int,
    *,
    tolerance: float = 0.01,
    strict: bool = False,
) -> Frame:
    """Say in which frame the polygons of one picture were drawn.

    `stored` or `upright` when they fit only that one, `either` when both (or, equally badly,
    neither) would do. Annotators overshoot the border: up to `tolerance` of the longer side
    counts as inside. Where no frame holds them all, the one they leave by less is taken; with
    `strict` that is `either`, too.
    """
    if upright_size(stored_size, orientation) == tuple(stored_size):
        return "either"  # both frames have the same size: undecidable
    finite = [np.asarray(p, dtype=np.float64).reshape(-1, 2) for p in polygons]
    points = np.concatenate([*finite, np.empty((0, 2))])
    points = points[np.isfinite(points).all(axis=1)]
    if not len(points):
        return "either"
    slack = tolerance * max(stored_size)
    reach = points.max(axis=0)
    over_stored = float(np.max(reach - np.asarray(stored_size)))
    over_upright = float(np.max(reach - np.asarray(upright_size(stored_size, orientation))))
    fits_stored, fits_upright = over_stored <= slack, over_upright <= slack
    if (fits_stored and fits_upright) or over_stored == over_upright:
        return "either"
    if strict and not fits_stored and not fits_upright:
        return "either"
    return "stored" if over_stored < over_upright else "upright"


def turn_polygons(
    polygons: Sequence[npt.NDArray[Any]],
    stored_size: tuple[int, int],
    orientation: int,
    *,
    frame: Frame = "either",
) -> tuple[list[npt.NDArray[Any]], Frame]:
    """Return the polygons in the upright frame, and the frame they were in.

    Unless `frame` says it, that is found out (`frame_of`): they rotate along with the picture if
    they do not fit only the upright frame.
    """
    if frame == "either":
        frame = frame_of(polygons, stored_size, orientation)
    if orientation == 1 or frame == "upright":
        return list(polygons), frame
    return [rotate_points(p, orientation, stored_size) for p in polygons], frame


def _check_orientation(orientation: int) -> int:
    if orientation not in _INVERSE:
        raise ValueError(f"EXIF orientations are 1 to 8, not {orientation!r}")
    return orientation


def _checked(picture_size: tuple[int, int]) -> tuple[int, int]:
    if min(picture_size) < 1:
        raise SchemaError(f"a picture has at least one pixel, this one is {picture_size}")
    return picture_size


def _drawer(
    fitted: tuple[int, int], interpolation: str, fill: tuple[int, int, int]
) -> Callable[[Pixels, Pixels], None]:
    if interpolation not in INTERPOLATIONS:
        known = ", ".join(INTERPOLATIONS)
        raise SchemaError(f"unknown interpolation {interpolation!r}; there are: {known}")
    height, width = fitted

    def draw(pixels: Pixels, out: Pixels) -> None:
        target = out[:height, :width]
        if pixels.shape == target.shape:
            target[:] = pixels
        else:
            _resize(pixels, target, interpolation)
        _fill(out[:height, width:], fill)
        _fill(out[height:], fill)

    return draw


def _fill(target: Pixels, colour: tuple[int, int, int]) -> None:
    if not target.size:
        return
    if len(set(colour)) == 1:
        target[:] = colour[0]  # far faster than broadcasting three numbers
    else:
        target[:] = np.tile(np.array(colour, np.uint8), target.shape[1]).reshape(-1, 3)


def _resize(pixels: Pixels, target: Any, interpolation: str) -> None:
    if interpolation == "area" and pixels.shape[0] < target.shape[0]:
        interpolation = "linear"
    size = (target.shape[1], target.shape[0])
    drawn = cv2.resize(pixels, size, dst=target, interpolation=INTERPOLATIONS[interpolation])
    if not np.shares_memory(drawn, target):  # OpenCV may decline a strided target
        target[:] = drawn
