"""Owns the timing of transforms where they run: inside the pipeline, called by albumentations.

Python looks up `__call__` on the class, so the classes of the transforms are given a timing one for
as long as the measurement lasts. Objects that are not measured pass through it untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ocrstore.profiling.clock import Tally


@dataclass(slots=True)
class Observed:
    """What was seen of one transform; grows call by call."""

    calls: int = 0
    changed: int = 0
    moved: bool = False
    pixels_in: int = 0
    pixels_out: int = 0
    makes_floats: bool = False

    def see(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Compare what came in with what went out."""
        picture, result = before.get("image"), after.get("image")
        self.calls += 1
        self.changed += result is not picture
        self.pixels_in += _pixels(picture)
        self.pixels_out += _pixels(result)
        self.makes_floats |= _is_bytes(picture) and not _is_bytes(result)
        if not self.moved:
            old, new = np.asarray(before.get("keypoints")), np.asarray(after.get("keypoints"))
            self.moved = not np.array_equal(old, new)

    def merge(self, other: Observed) -> None:
        """Add what was seen elsewhere of the same transform."""
        self.calls += other.calls
        self.changed += other.changed
        self.moved |= other.moved
        self.pixels_in += other.pixels_in
        self.pixels_out += other.pixels_out
        self.makes_floats |= other.makes_floats


@contextmanager
def timing(transforms: Mapping[str, Any], tally: Tally) -> Iterator[dict[str, Observed]]:
    """Add each call of these objects to the tally, by name; yields what was seen of them."""
    names = {id(transform): name for name, transform in transforms.items()}
    seen = {name: Observed() for name in transforms}
    active: set[int] = set()
    classes = list(dict.fromkeys(type(transform) for transform in transforms.values()))
    # all originals are looked up before any class is changed: some inherit from others
    originals = {cls: cls.__call__ for cls in classes}
    own = {cls: cls.__dict__["__call__"] for cls in classes if "__call__" in cls.__dict__}

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **data: Any) -> Any:
            name = names.get(id(self))
            if name is None or id(self) in active:  # a method of its own that calls its parent's
                return original(self, *args, **data)
            active.add(id(self))
            given = dict(data)
            before = tally.clock()
            try:
                result = original(self, *args, **data)
            finally:
                after = tally.clock()
                active.discard(id(self))
            tally.add(name, before, after)
            seen[name].see(given, result)
            return result

        return call

    try:
        for cls, original in originals.items():
            cls.__call__ = timed(original)
        yield seen
    finally:
        for cls in classes:
            if cls in own:
                cls.__call__ = own[cls]
            else:
                del cls.__call__


def _pixels(image: Any) -> int:
    shape: tuple[int, ...] = tuple(getattr(image, "shape", ()))
    if len(shape) == 3 and shape[0] in (1, 3) and shape[2] not in (1, 3):
        return int(shape[1] * shape[2])  # turned into (C, H, W)
    return int(shape[0] * shape[1]) if len(shape) >= 2 else 0


def _is_bytes(image: Any) -> bool:
    return str(getattr(image, "dtype", "")).endswith("uint8")
