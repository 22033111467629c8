"""The values of threshold maps: exact distances to polygon edges; hides how they are batched.

Two ways lead to the same distances. A convex polygon needs no segment arithmetic: inside it, the
nearest edge is the nearest line, so the distance is -max(s) over the signed distances s to its lines;
outside, it is max(s), except in the wedge beyond a corner, where it is the distance to the corner.
That is an addition and a maximum per edge and pixel, and the wedges of all polygons are done at once.
Any other polygon goes edge by edge, each over the pixels within D of that edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ocrstore.offsets import Offset, fill
from ocrstore.outlines import Floats, Ints, Outlines, find_convex

Image = npt.NDArray[np.float32]

_TILE_PIXELS = 1 << 15
"""What is measured in one go: small enough for the cache."""
_BATCH_PIXELS = 1 << 17
"""What is measured before it is put on the canvas, polygons that are larger apart."""
_MAX_CONVEX_EDGES = 16
"""With more edges than these, most pixels are far from most edges."""
_MAX_SLENDERNESS = 2000.0
"""Perimeter over D up to which float32 gives the values to better than 0.0005."""
_SLACK = 3.0
"""Truncation, Clipper's rounding and the rim of fills reach less than this beyond D."""


class _Tile(NamedTuple):
    """Some whole rows of a polygon's box; `start` is where its pixels begin in the batch."""

    polygon: int
    left: int
    top: int
    width: int
    height: int
    start: int

    def of(self, batch: Image) -> Image:
        """Return this tile's part of the batch as a picture."""
        end = self.start + self.width * self.height
        return batch[self.start : end].reshape(self.height, self.width)


class BorderPainter:
    """Paints the borders of one picture's polygons; makes what is needed of their edges once."""

    def __init__(
        self, outlines: Outlines, distances: Floats, *, thresh_min: float, thresh_max: float
    ) -> None:
        self._outlines = outlines
        self._distances = distances
        self._peak = np.float32(thresh_max)
        with np.errstate(divide="ignore", invalid="ignore"):
            # degenerate polygons and edges are not used, but they are there
            self._slopes = (thresh_max - thresh_min) / distances
            self._directions = outlines.edges / outlines.lengths
        slender = outlines.perimeters > _MAX_SLENDERNESS * distances
        few = np.diff(outlines.starts) <= _MAX_CONVEX_EDGES
        self._slender = slender.tolist()
        self._lined = (find_convex(outlines) & few & ~slender).tolist()
        sides = np.sign(outlines.areas)[outlines.owners]
        self._normals = self._directions[::-1] * np.stack((sides, -sides))

    def paint(self, canvas: Image, offsets: Sequence[Offset]) -> None:
        """Raise the canvas to each polygon's values, within its dilated contour."""
        height, width = canvas.shape
        batch: list[tuple[Offset, _Tile]] = []
        pixels = 0
        for offset in offsets:
            left, top, right, bottom = offset.box
            left, top = max(left, 0), max(top, 0)
            across, down = min(right, width - 1) - left + 1, min(bottom, height - 1) - top + 1
            if across > 0 and down > 0:
                batch.append((offset, _Tile(offset.polygon, left, top, across, down, pixels)))
                pixels += across * down
                if pixels >= _BATCH_PIXELS:
                    self._paint_batch(canvas, batch, pixels)
                    batch, pixels = [], 0
        if batch:
            self._paint_batch(canvas, batch, pixels)

    def _paint_batch(
        self, canvas: Image, batch: Sequence[tuple[Offset, _Tile]], pixels: int
    ) -> None:
        values = np.empty(pixels, np.float32)  # first how far each pixel is below the peak
        limits = np.zeros(pixels, np.float32)
        lined: list[_Tile] = []
        for offset, box in batch:
            fill(box.of(limits), offset.dilated, 1.0, shift=(-box.left, -box.top))
            if self._lined[box.polygon]:
                lined += _split(box)
            else:
                for tile in _split(box):
                    self._measure_segments(tile.of(values), tile)
        if lined:
            self._measure_lines(values, lined)
        np.subtract(self._peak, values, out=values)
        np.minimum(values, limits, out=values)
        for _, box in batch:
            view = canvas[box.top : box.top + box.height, box.left : box.left + box.width]
            np.maximum(view, box.of(values), out=view)

    def _measure_lines(self, values: Image, tiles: Sequence[_Tile]) -> None:
        """Measure convex polygons by their lines, then the wedges beyond their corners."""
        table = np.array(tiles)
        heads = self._outlines.starts[table[:, 0]]
        counts = self._outlines.starts[table[:, 0] + 1] - heads
        ends = np.cumsum(counts)
        # one row for each tile and edge from here on
        tile_of = np.repeat(np.arange(len(tiles)), counts)
        edges = np.arange(len(tile_of)) + (heads - ends + counts)[tile_of]
        rows = table[tile_of].T
        slopes = self._slopes[rows[0]]
        corners = self._outlines.points[:, edges] - rows[1:3]
        scaled = self._normals[:, edges] * slopes
        constants = -(corners * scaled).sum(axis=0)
        across, down, constant = np.stack((*scaled, constants)).astype(np.float32)[:, :, None]
        steps = np.arange(table[:, 3:5].max(), dtype=np.float32)
        end = 0
        for tile, count in zip(tiles, counts.tolist(), strict=True):
            begin, end = end, end + count
            along_x = across[begin:end] * steps[: tile.width]
            along_y = down[begin:end] * steps[: tile.height]
            along_y += constant[begin:end]
            signed = along_y[:, :, None] + along_x[:, None, :]
            np.maximum.reduce(signed, axis=0, out=tile.of(values))
        # what segments have measured lies in between, and is not negative
        np.abs(values, out=values)
        self._measure_wedges(values, edges, corners, slopes, rows)

    def _measure_wedges(
        self, values: Image, edges: Ints, corners: Floats, slopes: Floats, rows: Ints
    ) -> None:
        polygons, _, _, widths, _, starts = rows
        before = self._outlines.previous[edges]
        into, out_of = self._directions[:, before], self._directions[:, edges]
        normals = np.stack((self._normals[:, before], self._normals[:, edges]))
        # the box of the wedge: the two normals at its sides, and the axes between them
        reach = self._distances[polygons] + _SLACK
        high = np.where((into >= 0) & (out_of <= 0), 1.0, normals.max(axis=0).clip(min=0)) * reach
        low = np.where((into <= 0) & (out_of >= 0), -1.0, normals.min(axis=0).clip(max=0)) * reach
        begin = np.ceil(np.maximum(corners + low, 0))
        counts = np.floor(np.minimum(corners + high, rows[3:5] - 1)) - begin + 1
        counts = np.maximum(counts, 0).astype(np.intp)
        sizes = counts[0] * counts[1]
        firsts = begin.astype(np.intp)
        origins = starts + firsts[1] * widths + firsts[0]
        lines = np.concatenate((begin - corners, into, out_of, slopes[None]))
        whole = np.stack((counts[0], widths, origins))
        # boxes are no larger than tiles, so that batches of them are not much larger either
        batches = np.cumsum(sizes) // _BATCH_PIXELS
        for batch in range(int(batches[-1]) + 1):
            chosen = np.flatnonzero(batches == batch)
            size = sizes[chosen]
            box = np.repeat(chosen, size)
            index = np.arange(len(box)) - np.repeat(np.cumsum(size) - size, size)
            count, width, origin = whole[:, box]
            down, right = np.divmod(index, count)
            x, y, into_x, into_y, out_x, out_y, slope = lines[:, box]
            x += right
            y += down
            inside = (x * into_x + y * into_y >= 0) & (x * out_x + y * out_y <= 0)
            origin += down * width + right
            values[origin[inside]] = (np.sqrt(x * x + y * y) * slope)[inside]

    def _measure_segments(self, view: Image, tile: _Tile) -> None:
        """Measure a polygon of any form, edge by edge."""
        first, last = self._outlines.starts[tile.polygon : tile.polygon + 2].tolist()
        reach = self._distances[tile.polygon]
        slope = float(self._slopes[tile.polygon])
        kind = np.float64 if self._slender[tile.polygon] else np.float32
        tails = self._outlines.points[:, first:last] - np.array([[tile.left], [tile.top]])
        heads = tails + self._outlines.edges[:, first:last]
        begin = np.ceil(np.maximum(np.minimum(tails, heads) - reach, 0))
        ceiling = np.array([[tile.width - 1], [tile.height - 1]])
        end = np.floor(np.minimum(np.maximum(tails, heads) + reach, ceiling)) + 1
        near = np.flatnonzero((end > begin).all(axis=0))
        steps = np.arange(max(tile.width, tile.height), dtype=np.float64) * slope
        # a repeated point makes an edge without length: any direction will do
        directions = np.nan_to_num(self._directions[:, first:last], nan=np.sqrt(0.5))
        halves = self._outlines.lengths[first:last] * (slope / 2)
        # from the corner of the box, so that numbers are small wherever the edge begins
        x, y = (begin - tails) * slope
        dx, dy = directions
        across, along = dx * y - dy * x, dx * x + dy * y - halves
        numbers = np.stack((dx, dy, across, along, halves))[:, near].T.tolist()
        boxes = np.concatenate((begin, end))[:, near].T.astype(np.intp).tolist()
        squares = np.full(view.shape, np.inf, kind)
        for (left, top, right, bottom), (dx, dy, across, along, half) in zip(
            boxes, numbers, strict=True
        ):
            x, y = steps[: right - left], steps[: bottom - top]
            square = np.subtract.outer((dx * y + across).astype(kind), (dy * x).astype(kind))
            beyond = np.add.outer((dy * y + along).astype(kind), (dx * x).astype(kind))
            np.abs(beyond, out=beyond)
            beyond -= kind(half)
            np.maximum(beyond, 0, out=beyond)
            beyond *= beyond
            square *= square
            square += beyond
            part = squares[top:bottom, left:right]
            np.minimum(part, square, out=part)
        np.sqrt(squares, out=squares)
        view[...] = squares


def _split(box: _Tile) -> list[_Tile]:
    if box.width * box.height <= _TILE_PIXELS:
        return [box]
    step = max(1, _TILE_PIXELS // box.width)
    return [
        box._replace(
            top=box.top + row,
            height=min(step, box.height - row),
            start=box.start + row * box.width,
        )
        for row in range(0, box.height, step)
    ]
