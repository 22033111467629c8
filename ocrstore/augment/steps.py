"""Steps of a planned augmentation: which input pixels each needs, and how it draws its output.

A step knows its output size and which part of its input a part of its output depends on. Drawing a
part gives exactly what drawing everything and cropping would give.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from ocrstore import buffers
from ocrstore.augment.warp import (
    Fill,
    Matrix,
    Pixels,
    Rect,
    can_widen,
    is_partial,
    narrow,
    warp,
    widen,
)
from ocrstore.stopwatch import lap

Size = tuple[int, int]
_FAR = 2.0**30


@dataclass(frozen=True, slots=True)
class Region:
    """Part of a picture: `pixels` are those of `rect` in a frame of `size`."""

    pixels: Pixels
    rect: Rect
    size: Size

    def part(self, rect: Rect) -> Pixels:
        """Return the pixels of a smaller part, as a view."""
        return rect.moved(-self.rect.top, -self.rect.left).cut(self.pixels)

    def frame(self) -> Pixels:
        """Return an array of the whole frame, of which only `rect` is filled."""
        whole = Rect.whole(self.size)
        if self.rect.covers(whole):
            return self.part(whole)
        filled: Pixels = np.empty((*self.size, *self.pixels.shape[2:]), self.pixels.dtype)
        self.rect.cut(filled)[:] = self.pixels
        return filled


class Step(ABC):
    """One change of a picture of `size`, (height, width)."""

    size: Size

    @property
    @abstractmethod
    def size_after(self) -> Size:
        """Return the size of the result."""

    @abstractmethod
    def needs(self, wanted: Rect) -> Rect:
        """Return the part of the input that a part of the result depends on; never empty."""

    @abstractmethod
    def draw(self, given: Region, wanted: Rect) -> Region:
        """Draw at least the part `wanted`; `given` has what it needs. Does not modify `given`."""


@dataclass(frozen=True, slots=True)
class Crop(Step):
    """Crop."""

    size: Size
    rect: Rect

    @property
    def size_after(self) -> Size:
        """Return the size of the result."""
        return self.rect.height, self.rect.width

    def needs(self, wanted: Rect) -> Rect:
        """Return the part of the input that a part of the result depends on."""
        return wanted.moved(self.rect.top, self.rect.left)

    def draw(self, given: Region, wanted: Rect) -> Region:  # noqa: ARG002  # as all steps
        """Draw at least the part `wanted`."""
        rect = given.rect.moved(-self.rect.top, -self.rect.left)
        cut = rect.within(Rect.whole(self.size_after))
        return Region(cut.moved(-rect.top, -rect.left).cut(given.pixels), cut, self.size_after)


@dataclass(frozen=True, slots=True)
class Turn(Step):
    """Optionally transpose, then flip rows, columns or both: all eight orientations."""

    size: Size
    transposes: bool = False
    flips_rows: bool = False
    flips_columns: bool = False

    @property
    def size_after(self) -> Size:
        """Return the size of the result."""
        return (self.size[1], self.size[0]) if self.transposes else self.size

    def needs(self, wanted: Rect) -> Rect:
        """Return the part of the input that a part of the result depends on."""
        height, width = self.size_after
        top, left, bottom, right = wanted
        if self.flips_rows:
            top, bottom = height - bottom, height - top
        if self.flips_columns:
            left, right = width - right, width - left
        return Rect(left, top, right, bottom) if self.transposes else Rect(top, left, bottom, right)

    def draw(self, given: Region, wanted: Rect) -> Region:
        """Draw at least the part `wanted`."""
        pixels = given.part(self.needs(wanted))
        # the frame is there for a warp that may follow; what is not touched costs nothing
        shape = (*self.size_after, *pixels.shape[2:])
        is_bytes = pixels.dtype == np.uint8
        frame: Pixels = buffers.scratch_bytes(shape) if is_bytes else np.empty(shape, pixels.dtype)
        target = wanted.cut(frame)
        flips = self.flips_rows or self.flips_columns
        if self.transposes:
            pixels = cv2.transpose(pixels, dst=None if flips else target)
        if flips:
            code = -1 if self.flips_rows and self.flips_columns else int(self.flips_columns)
            pixels = cv2.flip(pixels, code, dst=target)
        buffers.paste(pixels, target)
        return Region(frame, Rect.whole(self.size_after), self.size_after)


@dataclass(frozen=True, slots=True)
class Pad(Step):
    """Pad; `paint(pixels, top, bottom, left, right)` is albumentations' own."""

    size: Size
    top: int
    bottom: int
    left: int
    right: int
    is_constant: bool
    paint: Callable[[Pixels, int, int, int, int], Pixels]

    @property
    def size_after(self) -> Size:
        """Return the size of the result."""
        height, width = self.size
        return height + self.top + self.bottom, width + self.left + self.right

    def needs(self, wanted: Rect) -> Rect:
        """Return the part of the input that a part of the result depends on."""
        whole = Rect.whole(self.size)
        common = wanted.moved(-self.top, -self.left).within(whole)
        # a border of another kind repeats pixels from anywhere
        return common if self.is_constant and common.area else whole

    def draw(self, given: Region, wanted: Rect) -> Region:
        """Draw at least the part `wanted`."""
        needed = self.needs(wanted)
        rect = wanted.moved(-self.top, -self.left)
        sides = (
            max(0, needed.top - rect.top),
            max(0, rect.bottom - needed.bottom),
            max(0, needed.left - rect.left),
            max(0, rect.right - needed.right),
        )
        if not self.is_constant:
            sides = (self.top, self.bottom, self.left, self.right)
        painted = self.paint(np.ascontiguousarray(given.part(needed)), *sides)
        corner = (needed.top + self.top - sides[0], needed.left + self.left - sides[2])
        drawn = Rect.whole((painted.shape[0], painted.shape[1])).moved(*corner)
        return Region(painted, drawn, self.size_after)


@dataclass(frozen=True, slots=True)
class Warp(Step):
    """Warp by a (2, 3) matrix with linear interpolation."""

    size: Size
    matrix: Matrix
    target: Size
    border: int
    fill: Fill

    @property
    def size_after(self) -> Size:
        """Return the size of the result."""
        return self.target

    def needs(self, wanted: Rect) -> Rect:
        """Return the part of the input that a part of the result depends on."""
        whole = Rect.whole(self.size)
        if self.border != cv2.BORDER_CONSTANT or not is_partial(self.size_after, wanted):
            return whole
        (a, b, c), (d, e, f) = cv2.invertAffineTransform(self.matrix).tolist()
        corners = [(x, y) for x in (wanted.left, wanted.right) for y in (wanted.top, wanted.bottom)]
        xs = [a * x + b * y + c for x, y in corners]
        ys = [d * x + e * y + f for x, y in corners]
        if not all(-_FAR < value < _FAR for value in (*xs, *ys)):
            return whole
        part = Rect(
            math.floor(min(ys)) - 2,
            math.floor(min(xs)) - 2,
            math.ceil(max(ys)) + 3,
            math.ceil(max(xs)) + 3,
        ).within(whole)
        return part if part.width > 0 and part.height > 0 else Rect(0, 0, 1, 1)

    def draw(self, given: Region, wanted: Rect) -> Region:
        """Draw at least the part `wanted`."""
        how = (self.matrix, self.size_after, self.border, self.fill, wanted)
        if not can_widen(given.pixels, self.size, self.size_after):
            return Region(warp(given.frame(), *how), wanted, self.size_after)
        needed = self.needs(wanted)
        frame = widen(given.part(needed), needed, self.size)
        return Region(narrow(warp(frame, *how)), wanted, self.size_after)


@dataclass(frozen=True, slots=True)
class Recolour(Step):
    """Change colours by a function that is the same for every position."""

    size: Size
    paint: Callable[[Pixels], Pixels]
    is_pointwise: bool
    """Whether each pixel's new colour depends on its old one alone, not on those of others."""

    @property
    def size_after(self) -> Size:
        """Return the size of the result."""
        return self.size

    def needs(self, wanted: Rect) -> Rect:
        """Return the part of the input that a part of the result depends on."""
        return wanted if self.is_pointwise else Rect.whole(self.size)

    def draw(self, given: Region, wanted: Rect) -> Region:
        """Draw at least the part `wanted`."""
        needed = self.needs(wanted)
        pixels = np.ascontiguousarray(given.part(needed))
        return Region(self.paint(pixels), needed, self.size)


class PlannedPicture:
    """Read-only pixels and the steps to apply to them. Not thread-safe."""

    def __init__(self, pixels: Pixels) -> None:
        self._pixels = pixels
        self._steps: list[tuple[Step, Any]] = []
        self.size: Size = (pixels.shape[0], pixels.shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape that `draw` will return."""
        return (*self.size, *self._pixels.shape[2:])

    def plan(self, step: Step, transform: Any = None) -> None:
        """Append a step of a transform."""
        self._steps.append((step, transform))
        self.size = step.size_after

    def draw(self) -> Pixels:
        """Apply the steps; return a contiguous, writable copy."""
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
