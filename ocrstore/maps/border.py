"""Draw the borders of polygons into threshold maps and masks: distances to the nearest edge.

Boxes are cut into tiles that fit the processor's cache. Three ways lead to the same distances:

- A convex polygon needs no segment arithmetic: inside it, the nearest edge is the nearest line, so
  the distance is -max(s) over the signed distances s to its lines; outside, it is max(s), except
  in the wedge beyond a corner, where it is the distance to the corner. That is an addition and a
  maximum per edge and pixel, but takes long to prepare, so it is used where there is much to draw.
- Where edges and pixels are few, the distances to all edges make one dense array, and the nearest
  is its minimum: few operations, whatever the form.
- Else edge by edge, each over the pixels within D of that edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore.buffers import POOL
from ocrstore.maps.outlines import SLACK, Bools, Contour, Floats, Ints, Outlines, fill

TILE_PIXELS = 1 << 14
"""What is measured in one go: small enough for the cache."""

Number = TypeVar("Number", np.float32, np.uint8)


class Tile(NamedTuple):
    """Some whole rows of a polygon's box; `start` is where its pixels begin in the batch."""

    polygon: int
    left: int
    top: int
    width: int
    height: int
    start: int

    @property
    def end(self) -> int:
        """Where its pixels end in the batch."""
        return self.start + self.width * self.height

    def of(self, batch: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Return this tile's part of the batch as a picture."""
        return batch[self.start : self.end].reshape(self.height, self.width)

    def split(self) -> list[Tile]:
        """Cut a box into tiles."""
        if self.width * self.height <= TILE_PIXELS:
            return [self]
        step = max(1, TILE_PIXELS // self.width)
        return [
            self._replace(
                top=self.top + row,
                height=min(step, self.height - row),
                start=self.start + row * self.width,
            )
            for row in range(0, self.height, step)
        ]


Image = npt.NDArray[np.float32]

DENSE_NUMBERS = 1 << 17
"""Edges times pixels that are measured densely, at most: small enough for the cache."""


def measure_densely(
    values: Image,
    scratch: Image,
    tiles: Sequence[Tile],
    outlines: Outlines,
    directions: Floats,
    slopes: Floats,
) -> None:
    """Measure tiles of few pixels and edges, in float32, all edges at once."""
    table = np.array(tiles).T
    polygons = table[0]
    # from the corner of the tile, so that numbers are small wherever the polygon is
    heads = outlines.points.take(polygons, axis=1) - table[1:3, :, None]
    x, y = heads - outlines.edges.take(polygons, axis=1) / 2
    slope = slopes.take(polygons)[:, None]
    dx, dy = directions.take(polygons, axis=1) * slope
    lengths = outlines.lengths.take(polygons, axis=0)
    # a repeated point makes an edge without direction; the edges beside it have its distance
    halves = np.where(lengths > 0, lengths * (slope / 2), -np.inf)
    # places along the lines, from the middles of the edges, and across them, are a sum of what the
    # column adds, what the row adds, and what they are at the corner
    numbers = np.array((dx, dy, dy, -dx, dx * x + dy * y, dy * x - dx * y, halves))
    numbers = numbers.astype(np.float32)[..., None]
    steps = np.arange(np.maximum.reduce(table[3:5], axis=None), dtype=np.float32)
    columns = (numbers[:4:2] * steps)[:, :, :, None]
    rows = numbers[1:4:2] * steps
    rows -= numbers[4:6]
    rows, halves = rows[..., None], numbers[6, ..., None]
    edges = numbers.shape[2]
    zeros = scratch[2 * DENSE_NUMBERS : 3 * DENSE_NUMBERS]
    zeros[: edges * max(tile.width * tile.height for tile in tiles)].fill(0)
    for i, tile in enumerate(tiles):
        size = edges * tile.width * tile.height
        both = scratch[: 2 * size].reshape(2, edges, tile.height, tile.width)
        np.add(rows[:, i, :, : tile.height], columns[:, i, ..., : tile.width], out=both)
        along, across = both
        np.abs(along, out=along)
        np.subtract(along, halves[i], out=along)
        # what lies beyond the ends; with an array of zeros in a third of the time of a number
        np.maximum(along, zeros[:size].reshape(along.shape), out=along)
        np.multiply(both, both, out=both)
        np.add(along, across, out=along)
        np.minimum.reduce(along, axis=0, out=tile.of(values))
    for tile in tiles:
        part = values[tile.start : tile.end]
        np.sqrt(part, out=part)


def measure_by_edges(
    view: Image,
    tile: Tile,
    outlines: Outlines,
    directions: Floats,
    reach: float,
    slope: float,
    kind: type[np.float32] | type[np.float64],
) -> None:
    """Measure one tile, edge by edge, in numbers of a kind."""
    heads = outlines.points[:, tile.polygon] - np.array([[tile.left], [tile.top]])
    tails = heads - outlines.edges[:, tile.polygon]
    lengths = outlines.lengths[tile.polygon]
    begin = np.ceil(np.maximum(np.minimum(tails, heads) - reach, 0))
    ceiling = np.array([[tile.width - 1], [tile.height - 1]])
    end = np.floor(np.minimum(np.maximum(tails, heads) + reach, ceiling)) + 1
    # a repeated point makes an edge without direction; the edges beside it have its distance
    near = ((end > begin).all(axis=0) & (lengths > 0)).nonzero()[0]
    boxes = np.concatenate((begin, end))[:, near].T.astype(np.intp).tolist()
    dx, dy = directions[:, tile.polygon]
    halves = lengths * (slope / 2)
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


Mask = npt.NDArray[np.uint8]

_BATCH_PIXELS = 1 << 17
"""What is measured before it is put on the canvas, polygons that are larger apart."""
_TILES_TOGETHER = 128
_TILE_COST = 1500
_LINES_COST = 60_000
"""Lines take less time per pixel than segments, and more to prepare: as much more as these many
pixels do, and the work on a tile is as much as that on so many. Both are measured."""
_TINY = 1e-300
"""Least divisor: polygons and edges without extent are there, but not used."""
_MAX_CONVEX_EDGES = 16
"""With more edges than these, most pixels are far from most edges."""
_MAX_SLENDERNESS = 2000.0
"""Perimeter over D up to which float32 gives the values to better than 0.0005."""


class BorderPainter:
    """Paints the borders of one picture's polygons; makes what is needed of their edges once."""

    def __init__(
        self, outlines: Outlines, distances: Floats, *, thresh_min: float, thresh_max: float
    ) -> None:
        self._outlines = outlines
        self._distances = distances
        self._peak = np.float32(thresh_max)
        self._slopes = (thresh_max - thresh_min) / np.maximum(distances, _TINY)
        self._directions = outlines.edges / np.maximum(outlines.lengths, _TINY)
        self._slender = (outlines.perimeters > _MAX_SLENDERNESS * distances).tolist()
        self._lined: list[bool] = []

    def find_lined(self) -> list[bool]:
        """Find the convex polygons, and what of their corners and lines each tile needs."""
        directions = self._directions
        # outwards: to the right of the direction if the area is positive
        normals = directions[::-1] * np.sign(self._outlines.areas)[:, None]
        np.negative(normals[1], out=normals[1])
        count = directions.shape[2]
        following = np.arange(1 - count, 1)
        leaving, second = directions.take(following, axis=2), normals.take(following, axis=2)
        products = normals * leaving
        sines = -(products[0] + products[1])
        products = normals * second
        cosines = products[0] + products[1]
        convex = find_convex(self._outlines, sines, cosines)
        # the part of a wedge in which a line is nearer than D is a kite: the corner, the ends of
        # both normals, and where the lines at their ends meet; the dilated contour ends it earlier
        tip = (normals + second) / np.maximum(1 + cosines, _TINY)
        reach = self._distances[:, None]
        most = reach + SLACK
        low = np.minimum(np.minimum(normals, second), np.minimum(tip, 0)) * reach
        high = np.maximum(np.maximum(normals, second), np.maximum(tip, 0)) * reach
        self._corners = np.concatenate(
            (
                self._outlines.points,
                normals * self._slopes[:, None],
                np.maximum(low, -most),
                np.minimum(high, most),
                directions,
                -leaving,
            )
        )
        lined: list[bool] = (convex & ~np.array(self._slender)).tolist()
        return lined

    def paint(self, canvas: Image, mask: Mask, dilated: Sequence[tuple[int, Contour]]) -> None:
        """Raise the canvas to the polygons' values, the mask to 1, in their dilated contours."""
        height, width = canvas.shape
        batch: list[tuple[Tile, Contour]] = []
        pixels = 0
        for polygon, contour in dilated:
            if not len(contour):
                continue
            left, top, across, down = cv2.boundingRect(contour)
            right, bottom = min(left + across, width), min(top + down, height)
            left, top = max(left, 0), max(top, 0)
            across, down = right - left, bottom - top
            if across <= 0 or down <= 0:
                continue
            if batch and pixels + across * down > _BATCH_PIXELS:
                self._paint_batch(canvas, mask, batch, pixels)
                batch, pixels = [], 0
            batch.append((Tile(polygon, left, top, across, down, pixels), contour))
            pixels += across * down
        if batch:
            self._paint_batch(canvas, mask, batch, pixels)

    def _paint_batch(
        self, canvas: Image, mask: Mask, batch: Sequence[tuple[Tile, Contour]], pixels: int
    ) -> None:
        # in few sizes, so that they come again
        scratch_size = max(_MAX_CONVEX_EDGES * max(TILE_PIXELS, canvas.shape[1]), 3 * DENSE_NUMBERS)
        room = 2 * pixels + scratch_size
        block = POOL.take(4 << max(19, (room - 1).bit_length())).view(np.float32)
        values = block[:pixels]  # first how far each pixel is below the peak
        own_mask = block[pixels : 2 * pixels].view(np.uint8)[:pixels]
        own_mask.fill(0)
        lined, dense, others = self._sort([tile for box, _ in batch for tile in box.split()])
        scratch = block[2 * pixels :]
        for first in range(0, len(lined), _TILES_TOGETHER):
            self._measure_lines(values, scratch, lined[first : first + _TILES_TOGETHER])
        for first in range(0, len(dense), _TILES_TOGETHER):
            some = dense[first : first + _TILES_TOGETHER]
            measure_densely(values, scratch, some, self._outlines, self._directions, self._slopes)
        for tile in others:
            measure_by_edges(
                tile.of(values),
                tile,
                self._outlines,
                self._directions,
                reach=float(self._distances[tile.polygon]),
                slope=float(self._slopes[tile.polygon]),
                kind=np.float64 if self._slender[tile.polygon] else np.float32,
            )
        np.subtract(self._peak, values, out=values)
        # each of OpenCV's functions is far faster on a part of a canvas than numpy's are
        for box, contour in batch:
            rows = slice(box.top, box.top + box.height)
            columns = slice(box.left, box.left + box.width)
            own, part = box.of(own_mask), mask[rows, columns]
            fill(own, contour, 1, shift=(-box.left, -box.top))
            cv2.max(part, own, part)
            raised, view = box.of(values), canvas[rows, columns]
            cv2.max(view, raised, raised)
            cv2.copyTo(raised, own, view)

    def _sort(self, tiles: Sequence[Tile]) -> tuple[list[Tile], list[Tile], list[Tile]]:
        """Return the tiles to measure by lines, densely, and edge by edge."""
        edges = self._outlines.lengths.shape[1]
        pixels = sum(tile.width * tile.height for tile in tiles)
        by_lines = pixels + _TILE_COST * len(tiles) > _LINES_COST
        if by_lines and not self._lined:
            self._lined = self.find_lined()
        lined: list[Tile] = []
        dense: list[Tile] = []
        others: list[Tile] = []
        for tile in tiles:
            if by_lines and self._lined[tile.polygon]:
                lined.append(tile)
            elif self._slender[tile.polygon] or edges * tile.width * tile.height > DENSE_NUMBERS:
                others.append(tile)
            else:
                dense.append(tile)
        return lined, dense, others

    def _measure_lines(self, values: Image, scratch: Image, tiles: Sequence[Tile]) -> None:
        """Measure convex polygons by their lines, then the wedges beyond their corners."""
        table = np.array(tiles).T
        corners = self._corners.take(table[0], axis=1)
        corners[:2] -= table[1:3, :, None]
        products = corners[:2] * corners[2:4]
        down, across = corners[3].astype(np.float32), corners[2].astype(np.float32)
        constant = (products[0] + products[1]).astype(np.float32)
        steps = np.arange(np.maximum.reduce(table[3:5], axis=None), dtype=np.float32)
        along_x = across[:, :, None, None] * steps
        along_y = down[:, :, None] * steps
        along_y -= constant[:, :, None]
        edges = len(along_y[0])
        for tile, xs, ys in zip(tiles, along_x, along_y[..., None], strict=True):
            signed = scratch[: edges * tile.width * tile.height]
            signed = signed.reshape(edges, tile.height, tile.width)
            np.add(ys[:, : tile.height], xs[:, :, : tile.width], out=signed)
            np.maximum.reduce(signed, axis=0, out=tile.of(values))
        pixels = values[tiles[0].start : tiles[-1].end]
        np.abs(pixels, out=pixels)  # with those of other polygons between, which come later
        self._measure_wedges(values, corners.reshape(len(corners), -1), table.repeat(edges, axis=1))

    def _measure_wedges(self, values: Image, corners: Floats, tiles: Ints) -> None:
        """Measure the pixels whose nearest point is a corner; one column for each corner."""
        polygons, _, _, widths, _, starts = tiles
        points = corners[:2]
        begin = np.ceil(np.maximum(points + corners[4:6], 0))
        end = np.floor(np.minimum(points + corners[6:8], tiles[3:5] - 1))
        counts = np.maximum(end - begin + 1, 0).astype(np.intp)
        sizes = counts[0] * counts[1]
        origin_x, origin_y = begin.astype(np.intp)
        origins = starts + origin_y * widths + origin_x
        # what each pixel needs of its corner
        exact = np.concatenate((begin - points, corners[8:], self._slopes[polygons][None]))
        whole = np.array((counts[0], widths, origins))
        ends = sizes.cumsum()
        begins = ends - sizes
        # boxes are no larger than tiles, so that batches of them are not much larger either
        for limit in range(0, int(ends[-1]), _BATCH_PIXELS):
            first, last = np.searchsorted(begins, (limit, limit + _BATCH_PIXELS)).tolist()
            if first == last:
                continue
            box = np.arange(first, last).repeat(sizes[first:last])
            index = np.arange(begins[first], ends[last - 1]) - begins.take(box)
            count, width, origin = whole.take(box, axis=1)
            down, right = np.divmod(index, count)
            numbers = exact.take(box, axis=1)
            offset = numbers[:2]
            offset[0] += right
            offset[1] += down
            # a corner is nearest beyond the end of the edge into it and before that out of it
            products = numbers[2:6].reshape(2, 2, -1) * offset
            beyond = products[:, 0] + products[:, 1] >= 0
            inside = (beyond[0] & beyond[1]).nonzero()[0]
            origin += down * width + right
            squares = offset * offset
            nearest = np.sqrt(squares[0] + squares[1]) * numbers[6]
            values[origin[inside]] = nearest[inside]


def find_convex(outlines: Outlines, sines: Floats, cosines: Floats) -> Bools:
    """Tell which polygons turn forward at every corner and once around in all.

    Given are the angles by which they turn. A repeated point makes an edge without direction.
    """
    polygons, corners = sines.shape
    if corners > _MAX_CONVEX_EDGES:
        return np.zeros(polygons, np.bool_)
    turns = np.arctan2(sines, cosines)
    turns -= outlines.lengths == 0
    once = np.add.reduce(turns, axis=1) < 3 * np.pi
    return np.asarray(once & (np.minimum.reduce(turns, axis=1) >= 0))
