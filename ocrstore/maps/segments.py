"""Distances to the edges, as segments, of polygons of any form; hides two ways to them.

Where edges and pixels are few, the distances to all edges make one dense array, and the nearest is
its minimum: few operations, whatever the form. Else they go edge by edge, each over the pixels
within D of that edge.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ocrstore.maps.outlines import Floats, Outlines
from ocrstore.maps.tiles import Tile

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
