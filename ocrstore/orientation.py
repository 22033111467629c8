"""EXIF orientation for points: between the stored frame and the upright one.

Coordinates are pixel indices, as annotations and OpenCV have them: (0, 0) is the centre of the
first pixel, (width - 1, height - 1) that of the last. A point on a pixel lands on the same pixel
of the rotated picture, so integer coordinates stay integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Frame = Literal["stored", "upright", "either"]

_INVERSE = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}


def upright_size(stored_size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Return (width, height) after rotation."""
    width, height = stored_size
    return (height, width) if _checked(orientation) >= 5 else (width, height)


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
        orientation = _INVERSE[_checked(orientation)]
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
    }[_checked(orientation)]()
    result: npt.NDArray[Any] = np.stack(moved, axis=-1).astype(source.dtype, copy=False)
    return result


def frame_of(
    polygons: Sequence[npt.NDArray[Any]],
    stored_size: tuple[int, int],
    orientation: int,
    *,
    tolerance: float = 0.01,
) -> Frame:
    """Say in which frame the polygons of one picture were drawn.

    `stored` or `upright` when they fit only that one, `either` when both (or, equally badly,
    neither) would do. Annotators overshoot the border: up to `tolerance` of the longer side
    counts as inside. Where no frame holds them all, the one they leave by less is taken.
    """
    if upright_size(stored_size, orientation) == tuple(stored_size):
        return "either"  # the frames have one size; nothing can be told
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
    return "stored" if over_stored < over_upright else "upright"


def turn_polygons(
    polygons: Sequence[npt.NDArray[Any]], stored_size: tuple[int, int], orientation: int
) -> tuple[list[npt.NDArray[Any]], Frame]:
    """Return the polygons in the upright frame, and the frame they were found in.

    They rotate along with the picture, unless they fit only the upright frame already.
    """
    frame = frame_of(polygons, stored_size, orientation)
    if orientation == 1 or frame == "upright":
        return list(polygons), frame
    return [rotate_points(p, orientation, stored_size) for p in polygons], frame


def _checked(orientation: int) -> int:
    if orientation not in _INVERSE:
        raise ValueError(f"EXIF orientations are 1 to 8, not {orientation!r}")
    return orientation
