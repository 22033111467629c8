"""Boxes drawn onto pictures, for eyes and logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore.errors import WriteError

Pixels = npt.NDArray[np.uint8]

FOUND = (230, 40, 40)
TRUE = (30, 160, 60)
IGNORED = (140, 140, 140)


def draw_boxes(
    picture: Pixels,
    found: Sequence[npt.ArrayLike],
    *,
    truths: Sequence[npt.ArrayLike] = (),
    ignored: Sequence[bool] | npt.NDArray[np.bool_] = (),
) -> Pixels:
    """Return a copy of an RGB picture with found boxes in red, true ones in green or grey."""
    canvas = np.array(picture, dtype=np.uint8, order="C")
    thickness = max(1, round(max(canvas.shape[:2]) / 500))
    for position, points in enumerate(truths):
        skip = position < len(ignored) and bool(ignored[position])
        _outline(canvas, points, IGNORED if skip else TRUE, 2 * thickness)
    for points in found:
        _outline(canvas, points, FOUND, thickness)
    return canvas


def _outline(
    canvas: Pixels, points: npt.ArrayLike, colour: tuple[int, int, int], thickness: int
) -> None:
    corners = np.rint(np.asarray(points, dtype=np.float64)).astype(np.int32).reshape(-1, 1, 2)
    cv2.polylines(canvas, [corners], True, colour, thickness, cv2.LINE_AA)


def grid(pictures: Sequence[Pixels], *, columns: int = 2) -> Pixels:
    """Return pictures side by side, on white where they are smaller than the largest."""
    height = max(p.shape[0] for p in pictures)
    width = max(p.shape[1] for p in pictures)
    rows = -(-len(pictures) // columns)
    sheet = np.full((rows * height, columns * width, 3), 255, np.uint8)
    for position, picture in enumerate(pictures):
        y, x = position // columns * height, position % columns * width
        sheet[y : y + picture.shape[0], x : x + picture.shape[1]] = picture
    return sheet


def write_picture(path: Path, picture: Pixels) -> None:
    """Write an RGB picture; the name's ending decides the format."""
    ok, data = cv2.imencode(path.suffix or ".png", np.ascontiguousarray(picture[..., ::-1]))
    if not ok:
        raise WriteError(f"{path}: OpenCV cannot write a picture of this kind")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.tobytes())
    except OSError as exc:
        raise WriteError(f"{path}: {exc.strerror or exc}") from exc
