"""Run an albumentations composition on a planned picture, with keypoints that stay in order.

The composition itself runs, with its own random numbers and parameters, on a placeholder that has
the picture's shape and no pixels. Each known transform adds its steps to the plan. Before an
unknown one the plan is drawn, the transform gets real pixels, and a new plan begins with its
result. Every keypoint carries an id, which is checked after each transform.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ocrstore.augment.keypoints import (
    check_older,
    check_transform,
    match,
    mover_of,
    one_for_each,
)
from ocrstore.augment.rules import Rule, rule_of
from ocrstore.augment.steps import PlannedPicture
from ocrstore.augment.warp import Pixels
from ocrstore.pipeline import seeded
from ocrstore.stopwatch import lap

_COMPOSITIONS = {"Compose", "OneOf", "OneOrOther", "RandomOrder", "Sequential", "SomeOf"}
"""Compositions that pass pictures to their transforms without looking at them."""
_KNOWN_VERSION = "2.0."


def has_known_rules() -> bool:
    """Return whether the rules of the installed albumentations are known."""
    import albumentations

    return bool(albumentations.__version__.startswith(_KNOWN_VERSION))


def can_plan(transform: Any) -> bool:
    """Return whether this is a composition of an albumentations whose rules are known."""
    return _is_composition(transform) and has_known_rules()


class SteppedComposition:
    """A composition of another albumentations, as it is, with keypoints that stay in order.

    Points that it drops or doubles are an error, and so are transforms that are not known to move
    points with their pixels. Not thread-safe.
    """

    def __init__(self, composition: Any) -> None:
        """Take a composition with keypoint parameters of format "xy"; raises SchemaError."""
        import albumentations

        check_transform(composition)
        check_older(composition, albumentations.__version__)
        self._composition = composition
        self._moving = [part for part in random_parts(composition) if mover_of(part) is not None]
        self.random_generator = np.random.default_rng()
        """Seeds the global generators, the only ones before albumentations 1.4.15."""

    @property
    def parts(self) -> list[Any]:
        """All that draw random numbers."""
        return [self, *random_parts(self._composition)]

    def __call__(self, *, image: Pixels, keypoints: Pixels) -> dict[str, Any]:
        """Return the transformed picture and keypoints, as many and in the same order."""
        numbered = np.column_stack((keypoints, np.arange(len(keypoints), dtype=keypoints.dtype)))
        seed = int(self.random_generator.integers(2**32))
        with seeded(None, None, seed), one_for_each(self._moving):
            result: dict[str, Any] = self._composition(image=image, keypoints=numbered)
        moved = np.array(result["keypoints"], np.float64).reshape(-1, numbered.shape[1])
        result["keypoints"] = match(numbered, moved, self._composition)[:, :2]
        return result


class PlannedComposition:
    """A composition that plans first, then computes only the pixels of the result.

    Pixels equal those of the composition itself, bit for bit. Keypoints do, too, but for mirrored
    copies, which are left out, and points that albumentations loses or moves onto the edge. Shares
    the composition's transforms; never modifies a picture in place if it plans. Not thread-safe.
    """

    def __init__(
        self,
        composition: Any,
        *,
        fuse: bool = True,
        before_pixels: Callable[[], None] | None = None,
    ) -> None:
        """Take a composition.

        Args:
            composition: A composition with keypoint parameters of format "xy".
            fuse: Plan; else run each transform on whole pictures.
            before_pixels: Called each time before a plan is drawn.

        Raises:
            SchemaError: A transform in it cannot carry polygons.
        """
        check_transform(composition)
        self._plan = _Plan(before_pixels, fuse=fuse)
        self._rebuilt: dict[int, Any] = {}
        self._tree = self._rebuild(composition)

    def _rebuild(self, part: Any) -> Any:
        # an object that is there twice has one generator of random numbers
        mine = self._rebuilt.get(id(part))
        if mine is None:
            if _is_composition(part):
                mine = copy.copy(part)
                mine.transforms = [self._rebuild(inner) for inner in part.transforms]
            else:
                mine = _Leaf(part, self._plan)
            self._rebuilt[id(part)] = mine
        return mine

    @property
    def parts(self) -> list[Any]:
        """All compositions and transforms, which draw random numbers, outer ones first."""
        return random_parts(self._tree)

    def __call__(self, *, image: Pixels, keypoints: Pixels) -> dict[str, Any]:
        """Return the transformed picture and keypoints, as many and in the same order."""
        numbers = np.arange(len(keypoints), dtype=keypoints.dtype)
        numbered = np.column_stack((keypoints, numbers))
        try:
            shown = self._plan.begin(image)
            result: dict[str, Any] = self._tree(image=shown, keypoints=numbered)
            lap("keypoints")
            result["image"] = self._plan.draw(result["image"])
        finally:
            self._plan.picture = None
        result["keypoints"] = match(numbered, result["keypoints"], self._tree)[:, :2]
        return result


class _Plan:
    """The plan of the current picture, shared by all transforms of a composition."""

    def __init__(self, before_pixels: Callable[[], None] | None, *, fuse: bool) -> None:
        self.picture: PlannedPicture | None = None
        self._before_pixels = before_pixels
        self._fuse = fuse

    def begin(self, image: Any) -> Any:
        """Start a plan on pixels; return the placeholder for the transforms."""
        self.picture = None
        if not self._fuse or not isinstance(image, np.ndarray) or image.dtype != np.uint8:
            return image
        if image.ndim != 3 or image.shape[2] != 3 or not image.size:
            return image
        self.picture = PlannedPicture(image)
        return self.show()

    def show(self) -> Any:
        assert self.picture is not None
        return _placeholder(self.picture.shape)

    def draw(self, shown: Any) -> Any:
        """Return real pixels; the plan ends here."""
        if self._before_pixels is not None:
            self._before_pixels()
        return shown if self.picture is None else self.picture.draw()


@functools.lru_cache(maxsize=64)
def _placeholder(shape: tuple[int, ...]) -> Any:
    """Return a read-only array of that shape that takes one byte."""
    return np.broadcast_to(np.uint8(0), shape)


class _Leaf:
    """A transform of the composition that adds to the plan instead of computing pixels."""

    def __init__(self, transform: Any, plan: _Plan) -> None:
        self.transform = transform
        self.p = transform.p
        self._plan = plan
        self._rule: Rule | None = rule_of(transform)
        self._decides_as_usual = _decides_as_usual(transform)
        self._move = mover_of(transform)
        self._moving = [part for part in random_parts(transform) if mover_of(part) is not None]

    def __call__(self, *, force_apply: bool = False, **data: Any) -> dict[str, Any]:
        lap("keypoints")
        before = data.get("keypoints")
        result = self._apply(force_apply, data)
        after = result.get("keypoints")
        if after is not before and before is not None and after is not None:
            result["keypoints"] = match(before, after, self.transform)
        lap(self.transform)
        return result

    def _apply(self, force_apply: bool, data: dict[str, Any]) -> dict[str, Any]:
        transform, picture = self.transform, self._plan.picture
        if self._decides_as_usual:
            if not transform.should_apply(force_apply=force_apply):
                return data
            force_apply = True  # it has decided
        if picture is None or self._rule is None or not self._decides_as_usual:
            return self._run(force_apply, data)
        params = transform.update_transform_params(params=transform.get_params(), data=data)
        params.update(transform.get_params_dependent_on_data(params=params, data=data))
        if self._move is not None:
            data["keypoints"] = np.ascontiguousarray(self._move(data["keypoints"], **params))
        steps = self._rule(transform, params, picture.size)
        if steps is None:
            drawn = np.ascontiguousarray(transform.apply(self._plan.draw(None), **params))
            data["image"] = self._plan.begin(drawn)
            return data
        for step in steps:
            picture.plan(step, transform)
        data["image"] = self._plan.show()
        return data

    def _run(self, force_apply: bool, data: dict[str, Any]) -> dict[str, Any]:
        """Run the transform on real pixels."""
        data["image"] = self._plan.draw(data["image"])
        with one_for_each(self._moving):
            result: dict[str, Any] = self.transform(force_apply=force_apply, **data)
        result["image"] = self._plan.begin(result["image"])
        return result


def _decides_as_usual(transform: Any) -> bool:
    """Return whether a transform has the `__call__` of albumentations: decide, draw, apply."""
    from albumentations.core.transforms_interface import BasicTransform

    kind = type(transform)
    return (
        isinstance(transform, BasicTransform)
        and kind.__call__ is BasicTransform.__call__
        and kind.should_apply is BasicTransform.should_apply
        and kind.apply_with_params is BasicTransform.apply_with_params
        and not transform.replay_mode
        and not transform.deterministic
    )


def _is_composition(part: Any) -> bool:
    kind = type(part)
    return kind.__module__ == "albumentations.core.composition" and kind.__name__ in _COMPOSITIONS


def _walk(part: Any) -> Iterator[Any]:
    """Yield a part and all inside that draw random numbers, outer ones first."""
    if isinstance(part, _Leaf):
        part = part.transform
    yield part
    for inner in getattr(part, "transforms", ()):
        # a colour jitter has functions of that name
        if isinstance(inner, _Leaf) or hasattr(inner, "set_random_seed"):
            yield from _walk(inner)


def random_parts(transform: Any) -> list[Any]:
    """Return a transform and, if it is a composition, all inside that draw random numbers.

    An object that is there twice is returned once: it has one generator.
    """
    return list({id(part): part for part in _walk(transform)}.values())
