"""Owns a picture whose changes are planned first, and drawn as far as they are seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from ocrstore.fusing.rect import Rect
from ocrstore.fusing.steps import Region, Size, Step
from ocrstore.fusing.warp import Pixels
from ocrstore.stopwatch import lap


class PlannedPicture:
    """Pixels that are only read, and the steps that will change them. One thread at a time."""

    def __init__(self, pixels: Pixels) -> None:
        self._pixels = pixels
        self._steps: list[tuple[Step, Any]] = []
        self.size: Size = (pixels.shape[0], pixels.shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape that `draw` will return."""
        return (*self.size, *self._pixels.shape[2:])

    def plan(self, step: Step, transform: Any = None) -> None:
        """Add a step of a transform, for the size that the picture has by then."""
        self._steps.append((step, transform))
        self.size = step.size_after

    def draw(self) -> Pixels:
        """Return the changed picture: contiguous memory of its own, that may be written on."""
        wanted = [Rect.whole(self.size)]
        for step, _ in reversed(self._steps):
            wanted.append(step.needs(wanted[-1]))
        wanted.reverse()
        size = (self._pixels.shape[0], self._pixels.shape[1])
        region = Region(self._pixels, Rect.whole(size), size)
        lap("keypoints")
        for (step, transform), part in zip(self._steps, wanted[1:], strict=True):
            region = step.draw(region, part)
            lap(transform)
        drawn = np.ascontiguousarray(region.part(wanted[-1]))
        if not drawn.flags.writeable or np.may_share_memory(drawn, self._pixels):
            drawn = drawn.copy()
        # a crop is a view: this copy is what it costs
        lap(self._steps[-1][1] if self._steps else "keypoints")
        return drawn
