"""Measure the accuracy that a size of the view allows, and find the smallest size that is enough.

The maps of a view are drawn from the polygons, post-processed as if a network had predicted them,
and the boxes compared with the polygons: what is missing to an H-mean of 1 no network can reach.
Pixels are not needed for that, so another size takes no more than its maps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.annotation import AnnotationReader
from ocrstore.building.derive import AUTO_FRAME, FrameRule, why_undrawable
from ocrstore.decode import DEFAULT_MAX_PIXELS, open_picture
from ocrstore.errors import DecodeError, SchemaError
from ocrstore.evaluation.icdar2015 import Figures, over_pictures, pair
from ocrstore.evaluation.postprocess import detect_one, params_for
from ocrstore.geometry import (
    Geometry,
    longest_side,
    transform_points,
    upright_size,
)
from ocrstore.maps import draw_maps
from ocrstore.recipe import Recipe
from ocrstore.sources import Source
from ocrstore.store import Store
from ocrstore.views import AUTO_SHARE, ENOUGH, View, ViewBound

AUTO = "auto"
"""The `size` that stands for the result of `choose_size`."""
SAMPLES = 200
"""A view is measured on at most so many samples, evenly spread."""
_TRIED = 32  # samples on which sizes are tried; the one found is checked on all
_STEP = 32  # what the network's strides divide
_LARGEST = 4096  # longest side that is tried; larger pictures count as full size there
_MAX_POLYGONS = 2000  # of one picture; post-processing keeps 1000 regions, and time grows squared

Tell = Callable[[str, int, int], None]
"""Called with what is measured, and how many of how many samples are done."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The polygons of one upright picture, without its pixels."""

    width: int
    height: int
    polygons: Sequence[npt.NDArray[Any]]
    ignored: npt.NDArray[np.bool_]

    @classmethod
    def from_attributes(cls, key: str, attributes: Mapping[str, Any]) -> Scene:
        """Make one from the attributes of a sample, derived now or by an earlier build."""
        try:
            polygons = [np.asarray(p, np.float32).reshape(-1, 2) for p in attributes["polygons"]]
            ignored = np.asarray(attributes["ignored"], bool).reshape(len(polygons))
            size = int(attributes["width"]), int(attributes["height"])
        except (KeyError, TypeError, ValueError, OverflowError) as exc:
            raise SchemaError(
                f"sample {key!r}: its stored annotation is not as a build writes it ({exc}); "
                "build the store again with --force"
            ) from exc
        return cls(*size, polygons, ignored)


def spread(count: int, wanted: int) -> Sequence[int]:
    """Choose at most `wanted` rows of `count`, at even distances."""
    if count <= wanted:
        return range(count)
    return [round(i * (count - 1) / (wanted - 1)) for i in range(wanted)]


def source_scenes(
    source: Source, *, max_pixels: int = DEFAULT_MAX_PIXELS, frames: FrameRule = AUTO_FRAME
) -> list[Scene]:
    """Read polygons and headers of up to `SAMPLES` pictures; what cannot be read is left out."""
    scenes = []
    for row in spread(len(source), SAMPLES):
        sample = source.at(row)
        try:
            picture = open_picture(sample.path.read_bytes(), max_pixels=max_pixels)
        except (OSError, DecodeError):
            continue
        points, _ = frames.turn(sample, picture.size, picture.orientation)
        ignored = np.array([polygon.ignored for polygon in sample.polygons], bool)
        scenes.append(Scene(*upright_size(picture.size, picture.orientation), points, ignored))
    return scenes


def stored_scenes(store: Store) -> list[Scene]:
    """Read up to `SAMPLES` samples of a store."""
    rows = spread(len(store), SAMPLES)
    reader = AnnotationReader(store)
    scenes = []
    for row in rows:
        size, found = reader.size(row), reader.annotation(row)
        if size is not None:
            scenes.append(Scene(*size, found.polygons, np.array(found.ignored, bool)))
    return scenes


def measure_views(
    views: Iterable[View], scenes: Sequence[Scene], *, tell: Tell | None = None
) -> dict[str, ViewBound]:
    """Measure views, by name; those without columns, and all without polygons, are left out."""
    bounds = {}
    for view in views:
        bound = _measure(view, scenes, tell) if view.columns else None
        if bound is not None:
            bounds[view.name] = bound
    return bounds


def choose_size(
    recipe: Recipe, scenes: Sequence[Scene], *, tell: Tell | None = None
) -> tuple[int, str]:
    """Return the smallest longest side that reaches `AUTO_SHARE` of what full size allows.

    Returns:
        A multiple of 32, and a sentence that says why.

    Raises:
        SchemaError: There are no polygons to choose by.
    """
    full = _evaluate(scenes, _full_size, recipe, tell, "full size")
    if not full.polygons:
        raise SchemaError("size auto needs polygons, and the source has none; give a number")
    side, hmean = _Search(recipe, scenes, tell).smallest(AUTO_SHARE * full.figures.hmean)
    why = (
        f"size {side}: the smallest multiple of {_STEP} that allows {AUTO_SHARE:g} of the H-mean "
        f"at full size ({hmean:.3f} of {full.figures.hmean:.3f}, measured on {len(scenes)} samples)"
    )
    return side, why


def _measure(view: View, scenes: Sequence[Scene], tell: Tell | None) -> ViewBound | None:
    recipe = view.recipe
    found = _evaluate(scenes, recipe.place, recipe, tell, f"measuring view {view.name}")
    if not found.polygons:
        return None
    bound = ViewBound(
        samples=len(scenes),
        polygons=found.polygons,
        small=found.small,
        min_size=recipe.maps.min_size,
        precision=round(found.figures.precision, 6),
        recall=round(found.figures.recall, 6),
        hmean=round(found.figures.hmean, 6),
    )
    if bound.hmean >= ENOUGH or recipe.pipeline is not None:
        return bound
    search = _Search(recipe, scenes, tell)
    side, hmean = search.smallest(ENOUGH)
    if hmean < ENOUGH:
        return bound
    return replace(bound, better_size=search.size(side), better_hmean=round(hmean, 6))


class _Search:
    """Tries sizes of the view of one recipe."""

    def __init__(self, recipe: Recipe, scenes: Sequence[Scene], tell: Tell | None) -> None:
        self._recipe = recipe
        self._scenes = scenes
        self._tell = tell

    def size(self, side: int) -> tuple[int, int]:
        """Return the recipe's (height, width) with another longest side, in whole steps."""
        height, width = (given or 1 for given in self._recipe.size)
        scale = side / max(height, width) / _STEP
        return math.ceil(height * scale) * _STEP, math.ceil(width * scale) * _STEP

    def smallest(self, goal: float) -> tuple[int, float]:
        """Return the smallest longest side that reaches an H-mean, and what it reaches.

        By doubling, because large views take long, and then bisection, on some of the samples,
        which takes it that more pixels never allow less. The side found is checked on all of them,
        and goes up until it holds, or is that of the largest picture.
        """
        tried = [self._scenes[row] for row in spread(len(self._scenes), _TRIED)]
        largest = max(max(scene.width, scene.height) for scene in self._scenes)
        last = math.ceil(min(largest, _LARGEST) / _STEP)
        low, high = 1, min(8, last)
        while high < last and self._hmean(high * _STEP, tried) < goal:
            low, high = high + 1, min(2 * high, last)
        while low < high:
            middle = (low + high) // 2
            if self._hmean(middle * _STEP, tried) >= goal:
                high = middle
            else:
                low = middle + 1
        hmean = self._hmean(low * _STEP, self._scenes)
        while hmean < goal and low < last:
            low += 1
            hmean = self._hmean(low * _STEP, self._scenes)
        return low * _STEP, hmean

    def _hmean(self, side: int, scenes: Sequence[Scene]) -> float:
        other = replace(self._recipe, size=self.size(side))
        return _evaluate(scenes, other.place, other, self._tell, f"trying {side}").figures.hmean


@dataclass(frozen=True, slots=True)
class _Evaluation:
    figures: Figures
    polygons: int
    """That count."""
    small: int


def _evaluate(
    scenes: Sequence[Scene],
    place: Callable[[tuple[int, int]], Geometry],
    recipe: Recipe,
    tell: Tell | None,
    what: str,
) -> _Evaluation:
    """Draw, post-process and compare; `place` takes (height, width) of a picture."""
    params = params_for(recipe)
    scores = []
    small = 0
    for done, scene in enumerate(scenes):
        if tell is not None:
            tell(what, done, len(scenes))
        if len(scene.polygons) > _MAX_POLYGONS:
            continue
        try:
            geometry = place((scene.height, scene.width))
            inverse = geometry.inverse
        except SchemaError:
            continue  # the build leaves this picture out
        moved = [transform_points(geometry.matrix, points) for points in scene.polygons]
        kept = [i for i, points in enumerate(moved) if not why_undrawable(points)]
        moved, ignored = [moved[i] for i in kept], scene.ignored[kept]
        sides = np.array([np.ptp(points, axis=0).min() for points in moved])
        small += int(np.count_nonzero((sides < recipe.maps.min_size) & ~ignored))
        maps = draw_maps(moved, ignored, *geometry.view_size, params=recipe.maps)
        size = (scene.width, scene.height)
        found = detect_one(maps.prob_map, inverse_matrix=inverse, size=size, params=params)
        scores.append(pair(found.polygons, [scene.polygons[i] for i in kept], ignored).score)
    truths = sum(score.truths for score in scores)
    figures = over_pictures(
        matched=sum(score.matched for score in scores),
        truths=truths,
        detections=sum(score.detections for score in scores),
    )
    return _Evaluation(figures, truths, small)


def _full_size(picture_size: tuple[int, int]) -> Geometry:
    """Place a picture as it is, or where it is larger than any view that is tried, scaled."""
    height, width = picture_size
    scale = min(1.0, _LARGEST / max(height, width))
    return longest_side(picture_size, (math.ceil(height * scale), math.ceil(width * scale)))
