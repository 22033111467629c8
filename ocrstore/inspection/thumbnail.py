"""Shrink a picture, draw polygons on it, and convert it to half blocks for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from rich.color import Color
from rich.style import Style
from rich.text import Text

from ocrstore.schema import COUNTED, IGNORED

Pixels = npt.NDArray[np.uint8]


def shrink(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize by averaging the pixels that each new one covers."""
    rows = _bounds(pixels.shape[0], height)
    columns = _bounds(pixels.shape[1], width)
    # a huge picture is thinned first, so that averaging takes a bounded time
    step = max(1, min(pixels.shape[0] // (4 * height), pixels.shape[1] // (4 * width)))
    if step > 1:
        return shrink(pixels[::step, ::step], height, width)
    sums = np.add.reduceat(pixels, rows[:-1], axis=0, dtype=np.uint32)
    sums = np.add.reduceat(sums, columns[:-1], axis=1)
    tall = np.maximum(1, np.diff(rows))[:, None, None]
    wide = np.maximum(1, np.diff(columns))[None, :, None]
    return np.asarray((sums + (tall * wide) // 2) // (tall * wide), np.uint8)


def fit(size: tuple[int, int], box: tuple[int, int]) -> tuple[int, int]:
    """Return the (height, width) at which a picture fits into a box; it is never enlarged."""
    scale = min(box[0] / size[0], box[1] / size[1], 1.0)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def draw_outlines(
    pixels: Pixels,
    polygons: Iterable[npt.NDArray[np.float32]],
    ignored: Iterable[bool],
    *,
    matrix: npt.NDArray[np.float64],
) -> Pixels:
    """Return a copy with polygons outlined; `matrix` maps their points to pixels."""
    drawn = pixels.copy()
    height, width = drawn.shape[:2]
    for points, skip in zip(polygons, ignored):
        if len(points) < 2 or not np.isfinite(points).all():
            continue
        moved = np.c_[points, np.ones(len(points))] @ matrix.T
        corners = np.clip(moved[:, :2] / moved[:, 2:], -4096, 4096 + max(height, width))
        for start, end in zip(corners, np.roll(corners, -1, axis=0)):
            steps = int(np.abs(end - start).max()) + 2
            line = np.linspace(start, end, steps)
            xs, ys = np.floor(line).astype(int).T
            inside = (xs >= 0) & (xs < width) & (ys >= 0) & (ys < height)
            drawn[ys[inside], xs[inside]] = IGNORED if skip else COUNTED
    return drawn


def to_blocks(pixels: Pixels) -> Text:
    """Return a picture as half blocks, two pixels in each character."""
    if pixels.shape[0] % 2:
        pixels = np.concatenate([pixels, pixels[-1:]])
    text = Text(no_wrap=True, end="")
    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist()):
        for above, below in zip(upper, lower):
            style = Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below))
            text.append("▀", style)
        text.append("\n")
    return text


def _bounds(size: int, parts: int) -> npt.NDArray[np.int64]:
    bounds = np.linspace(0, size, parts + 1).astype(np.int64)
    bounds[:-1] = np.minimum(bounds[:-1], size - 1)
    return bounds
