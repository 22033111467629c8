"""Draw the maps of one picture by the rules in the package's docstring."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.buffers import POOL
from ocrstore.errors import SchemaError
from ocrstore.maps.border import BorderPainter
from ocrstore.maps.outlines import (
    NEAR,
    NOTHING,
    SLACK,
    Contour,
    Outlines,
    bring_near,
    fill,
    measure,
    shrink_and_dilate,
)
from ocrstore.maps.truncated import draw_truncated

ALGORITHM = "db-maps/1"
"""Goes into fingerprints: changes whenever the same polygons could give other maps."""
EXACT, TRUNCATED = "exact", "truncated"


@dataclass(frozen=True, slots=True)
class MapParams:
    """The numbers in the rules; the defaults are those of DBNet."""

    shrink_ratio: float = 0.4
    thresh_min: float = 0.3
    thresh_max: float = 0.7
    min_size: float = 8.0
    """In pixels of the map: what is narrower or lower is ignored; 0 by the truncated rules."""
    rules: str = EXACT
    """`exact`, or `truncated` for the targets of training code that truncates polygons first."""

    def __post_init__(self) -> None:
        if self.rules not in (EXACT, TRUNCATED):
            raise SchemaError(f"maps: unknown rules {self.rules!r}; known: {EXACT}, {TRUNCATED}")
        if self.rules == TRUNCATED:
            object.__setattr__(self, "min_size", 0.0)
        if not 0 <= self.shrink_ratio < 1:
            raise SchemaError(f"shrink_ratio is {self.shrink_ratio}; expected 0 <= ratio < 1")
        if not 0 <= self.thresh_min < self.thresh_max <= 1:
            raise SchemaError(
                f"thresh_min is {self.thresh_min} and thresh_max {self.thresh_max}; "
                "expected 0 <= thresh_min < thresh_max <= 1"
            )
        if not 0 <= self.min_size < float("inf"):
            raise SchemaError(f"min_size is {self.min_size}; expected pixels, 0 or more")

    def to_json(self) -> dict[str, Any]:
        """Return the fields; `rules` only if they are not the usual ones, for old fingerprints."""
        fields = dataclasses.asdict(self)
        return {k: v for k, v in fields.items() if (k, v) != ("rules", EXACT)}


@dataclass(frozen=True, slots=True, eq=False)
class Maps:
    """Four (height, width) arrays, writable, owned by the caller.

    The two maps of `draw_maps` share one block of memory and the two masks another; a block is used
    again when both on it are gone.
    """

    prob_map: npt.NDArray[np.float32]
    """1 inside the shrunken polygons, else 0."""
    prob_mask: npt.NDArray[np.uint8]
    """0 inside ignored polygons, else 1: the pixel counts."""
    thresh_map: npt.NDArray[np.float32]
    """`thresh_max` on the polygons' edges, falling to `thresh_min` at distance D."""
    thresh_mask: npt.NDArray[np.uint8]
    """1 inside the dilated polygons: the pixel counts; else 0."""


_DBNET = MapParams()


def draw_maps(
    polygons: Sequence[npt.ArrayLike],
    ignored: Sequence[bool] | npt.NDArray[np.bool_],
    height: int,
    width: int,
    *,
    params: MapParams = _DBNET,
) -> Maps:
    """Draw the maps of one picture; the module's docstring has the rules.

    Takes (n, 2) arrays of x and y in pixels of the maps, and for each whether it is ignored. Raises
    `SchemaError` for what cannot be drawn: NaN, infinities, coordinates beyond `MAX_COORDINATE`
    and more points than `MAX_POINTS` among others, naming the polygon. Safe in threads and after
    fork.
    """
    if len(polygons) != len(ignored):
        raise SchemaError(
            f"{len(polygons)} polygons came with {len(ignored)} ignore flags; expected one for each"
        )
    if height < 1 or width < 1:
        raise SchemaError(f"maps of {width}x{height} pixels cannot be drawn; expected at least 1x1")
    groups = measure(polygons)  # checked before anything is allocated
    maps = _blank(height, width, params)
    if params.rules == TRUNCATED:
        draw_truncated(maps, groups, params)
        return maps
    flags = np.asarray(ignored, np.bool_)
    for outlines in groups:
        _draw(maps, outlines, flags[outlines.positions], params)
    return maps


def dbnet_maps(
    polygons: Sequence[npt.ArrayLike],
    ignored: Sequence[bool] | npt.NDArray[np.bool_],
    height: int,
    width: int,
    *,
    params: MapParams = _DBNET,
) -> dict[str, npt.NDArray[Any]]:
    """Draw DBNet's targets, as any target function does: the arrays of `draw_maps` by name."""
    maps = draw_maps(polygons, ignored, height, width, params=params)
    return {field.name: getattr(maps, field.name) for field in dataclasses.fields(Maps)}


def _blank(height: int, width: int, params: MapParams) -> Maps:
    pixels = height * width
    block = POOL.take(8 * pixels)
    floats = block.view(np.float32).reshape(2, height, width)
    masks = POOL.take(2 * pixels).reshape(2, height, width)
    maps = Maps(floats[0], masks[0], floats[1], masks[1])
    # each in the way that is fastest for it: `fill` is for bytes; floats are copied from a row
    block[: 4 * pixels].fill(0)
    maps.prob_mask.fill(1)
    maps.thresh_map[...] = np.full(width, params.thresh_min, np.float32)
    maps.thresh_mask.fill(0)
    return maps


def _draw(
    maps: Maps, outlines: Outlines, ignored: npt.NDArray[np.bool_], params: MapParams
) -> None:
    height, width = maps.prob_map.shape
    # a polygon that is one point has no perimeter either
    distances = np.abs(outlines.areas) * (1 - params.shrink_ratio**2)
    distances /= np.maximum(outlines.perimeters, 1e-300)
    wide, high = outlines.highs - outlines.lows >= params.min_size
    drawn = wide & high & (distances > 0) & ~ignored
    reach = distances + SLACK
    boxes = np.concatenate((outlines.lows - reach, outlines.highs + reach))
    bordered: list[tuple[int, Contour]] = []
    for polygon, (box, distance, draw) in enumerate(
        zip(boxes.T.tolist(), distances.tolist(), drawn.tolist(), strict=True)
    ):
        left, top, right, bottom = box
        if left >= width or top >= height or right < 0 or bottom < 0:
            continue
        contour = outlines.pixels[polygon]
        shrunken, dilated = shrink_and_dilate(contour, distance) if draw else (NOTHING, NOTHING)
        draw = len(shrunken) > 0
        if left < -NEAR or top < -NEAR or right > width + NEAR or bottom > height + NEAR:
            contour, shrunken, dilated = (
                bring_near(part, height, width) for part in (contour, shrunken, dilated)
            )
        if not draw:
            fill(maps.prob_mask, contour, 0)
            continue
        fill(maps.prob_map, shrunken, 1)
        bordered.append((polygon, dilated))
    if bordered:
        painter = BorderPainter(
            outlines, distances, thresh_min=params.thresh_min, thresh_max=params.thresh_max
        )
        painter.paint(maps.thresh_map, maps.thresh_mask, bordered)
