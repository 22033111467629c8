"""The values of threshold maps: exact distances to polygon edges; hides how they are batched.

Two ways lead to the same distances. A convex polygon needs no segment arithmetic: inside it, the
nearest edge is the nearest line, so the distance is -max(s) over the signed distances s to its
lines; outside, it is max(s), except in the wedge beyond a corner, where it is the distance to the
corner. That is an addition and a maximum per edge and pixel, and the wedges of all polygons are
done at once. Any other polygon goes edge by edge, each over the pixels within D of that edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ocrstore.blocks import POOL
from ocrstore.offsets import SLACK, Offset, fill
from ocrstore.outlines import Floats, Ints, Outlines, find_convex

Image = npt.NDArray[np.float32]

_TILE_PIXELS = 1 << 14
"""What is measured in one go: small enough for the cache."""
_BATCH_PIXELS = 1 << 17
"""What is measured before it is put on the canvas, polygons that are larger apart."""
_TILES_TOGETHER = 128
_MAX_CONVEX_EDGES = 16
"""With more edges than these, most pixels are far from most edges."""
_MAX_SLENDERNESS = 2000.0
"""Perimeter over D up to which float32 gives the values to better than 0.0005."""


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
            directions = outlines.edges / outlines.lengths
        slender = outlines.perimeters > _MAX_SLENDERNESS * distances
        few = outlines.starts[1:] - outlines.starts[:-1] <= _MAX_CONVEX_EDGES
        self._slender = slender.tolist()
        self._lined = (find_convex(outlines) & few & ~slender).tolist()
        # outwards: to the right of the direction if the area is positive
        sides = np.sign(outlines.areas)[outlines.owners]
        self._frames = np.concatenate((directions, directions[::-1] * sides))
        np.negative(self._frames[3], out=self._frames[3])

    def paint(self, canvas: Image, offsets: Sequence[Offset]) -> None:
        """Raise the canvas to each polygon's values, within its dilated contour."""
        height, width = canvas.shape
        batch: list[tuple[Offset, _Tile]] = []
        pixels = 0
        for offset in offsets:
            left, top, right, bottom = offset.box
            left, top = max(left, 0), max(top, 0)
            across, down = min(right, width - 1) - left + 1, min(bottom, height - 1) - top + 1
            if across <= 0 or down <= 0:
                continue
            if batch and pixels + across * down > _BATCH_PIXELS:
                self._paint_batch(canvas, batch, pixels)
                batch, pixels = [], 0
            batch.append((offset, _Tile(offset.polygon, left, top, across, down, pixels)))
            pixels += across * down
        if batch:
            self._paint_batch(canvas, batch, pixels)

    def _paint_batch(
        self, canvas: Image, batch: Sequence[tuple[Offset, _Tile]], pixels: int
    ) -> None:
        # in few sizes, so that they come again
        room = max(2 * pixels + _MAX_CONVEX_EDGES * max(_TILE_PIXELS, canvas.shape[1]), 1 << 19)
        block = POOL.take(4 << (room - 1).bit_length()).view(np.float32)
        values = block[:pixels]  # first how far each pixel is below the peak
        limits = block[pixels : 2 * pixels]
        limits[...] = 0
        lined: list[_Tile] = []
        for offset, box in batch:
            fill(box.of(limits), offset.dilated, 1.0, shift=(-box.left, -box.top))
            if self._lined[box.polygon]:
                lined += _split(box)
            else:
                for tile in _split(box):
                    self._measure_segments(tile.of(values), tile)
        for first in range(0, len(lined), _TILES_TOGETHER):
            some = lined[first : first + _TILES_TOGETHER]
            self._measure_lines(values, block[2 * pixels :], some)
        np.subtract(self._peak, values, out=values)
        np.minimum(values, limits, out=values)
        for _, box in batch:
            view = canvas[box.top : box.top + box.height, box.left : box.left + box.width]
            np.maximum(view, box.of(values), out=view)

    def _measure_lines(self, values: Image, scratch: Image, tiles: Sequence[_Tile]) -> None:
        """Measure convex polygons by their lines, then the wedges beyond their corners."""
        table = np.array(tiles)
        heads = self._outlines.starts[table[:, 0]]
        counts = self._outlines.starts[table[:, 0] + 1] - heads
        # one row for each tile and edge from here on; `take` is much faster than indexing is
        tile_of = np.arange(len(tiles)).repeat(counts)
        edges = np.arange(len(tile_of)) + (heads - counts.cumsum() + counts)[tile_of]
        rows = table[tile_of].T
        corners = self._outlines.points.take(edges, axis=1) - rows[1:3]
        frames = self._frames.take(edges, axis=1)
        across, down = frames[2:] * self._slopes[rows[0]]
        constant = -(corners[0] * across + corners[1] * down)
        lines = np.concatenate((across, down, constant)).astype(np.float32).reshape(3, -1, 1)
        steps = np.arange(table[:, 3:5].max(), dtype=np.float32)
        along_x = (lines[0] * steps)[:, None, :]
        along_y = (lines[1] * steps + lines[2])[:, :, None]
        end = 0
        for tile, count in zip(tiles, counts.tolist(), strict=True):
            begin, end = end, end + count
            signed = scratch[: count * tile.width * tile.height]
            signed = signed.reshape(count, tile.height, tile.width)
            np.add(
                along_y[begin:end, : tile.height], along_x[begin:end, :, : tile.width], out=signed
            )
            view = tile.of(values)
            np.maximum.reduce(signed, axis=0, out=view)
            np.abs(view, out=view)
        self._measure_wedges(values, edges, corners, frames, rows)

    def _measure_wedges(
        self, values: Image, edges: Ints, corners: Floats, frames: Floats, rows: Ints
    ) -> None:
        """Measure the pixels whose nearest point is a corner; `rows` are tiles, one for each."""
        polygons, _, _, widths, _, starts = rows
        frames_before = self._frames.take(self._outlines.previous[edges], axis=1)
        first, second = frames_before[2:], frames[2:]
        # the part of a wedge in which a line is nearer than D is a kite: the corner, the ends of
        # both normals, and where the lines at their ends meet; the dilated contour ends it earlier
        reach = self._distances[polygons]
        tip = (first + second) / (1 + first[0] * second[0] + first[1] * second[1])
        low = np.minimum(np.minimum(first, second), np.minimum(tip, 0)) * reach
        high = np.maximum(np.maximum(first, second), np.maximum(tip, 0)) * reach
        reach = reach + SLACK
        begin = np.ceil(np.maximum(corners + np.maximum(low, -reach), 0))
        end = np.floor(np.minimum(corners + np.minimum(high, reach), rows[3:5] - 1))
        counts = np.maximum(end - begin + 1, 0).astype(np.intp)
        sizes = counts[0] * counts[1]
        firsts = begin.astype(np.intp)
        origins = starts + firsts[1] * widths + firsts[0]
        exact = np.concatenate(
            (begin - corners, frames_before[:2], frames[:2], self._slopes[polygons][None])
        )
        whole = np.concatenate((counts[:1], widths[None], origins[None]))
        # boxes are no larger than tiles, so that batches of them are not much larger either
        batches = sizes.cumsum() // _BATCH_PIXELS
        for batch in range(int(batches[-1]) + 1):
            chosen = (batches == batch).nonzero()[0]
            size = sizes[chosen]
            box = chosen.repeat(size)
            index = np.arange(len(box)) - (size.cumsum() - size).repeat(size)
            count, width, origin = whole.take(box, axis=1)
            down, right = np.divmod(index, count)
            x, y, into_x, into_y, out_x, out_y, slope = exact.take(box, axis=1)
            x += right
            y += down
            inside = ((x * into_x + y * into_y >= 0) & (x * out_x + y * out_y <= 0)).nonzero()[0]
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
        # a repeated point makes an edge without direction; the edges beside it have its distance
        near = ((end > begin).all(axis=0) & (self._outlines.lengths[first:last] > 0)).nonzero()[0]
        boxes = np.concatenate((begin, end))[:, near].T.astype(np.intp).tolist()
        dx, dy = self._frames[:2, first:last]
        halves = self._outlines.lengths[first:last] * (slope / 2)
        # from the corner of the box, so that numbers are small wherever the edge begins
        x, y = (begin - tails) * slope
        numbers = np.stack((dx, dy, dx * y - dy * x, dx * x + dy * y - halves, halves))
        steps = (np.arange(max(tile.width, tile.height)) * slope).astype(kind)
        squares = np.full(view.shape, np.inf, kind)
        for (left, top, right, bottom), (dx, dy, across, along, half) in zip(
            boxes, numbers[:, near].T.astype(kind), strict=True
        ):
            x, y = steps[: right - left], steps[: bottom - top, None]
            square = (dx * y + across) - dy * x
            square *= square
            beyond = (dy * y + along) + dx * x
            np.abs(beyond, out=beyond)
            beyond -= half
            np.maximum(beyond, 0, out=beyond)
            beyond *= beyond
            square += beyond
            part = squares[top:bottom, left:right]
            np.minimum(part, square, out=part)
        view[...] = np.sqrt(squares, out=squares)


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
