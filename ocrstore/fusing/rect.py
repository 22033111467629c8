"""Owns rectangles of whole pixels inside a picture."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Rect(NamedTuple):
    """Rows [top, bottom) and columns [left, right)."""

    top: int
    left: int
    bottom: int
    right: int

    @staticmethod
    def whole(size: tuple[int, int]) -> Rect:
        """Return all of a picture of (height, width)."""
        return Rect(0, 0, size[0], size[1])

    @property
    def height(self) -> int:
        """Return the number of rows."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """Return the number of columns."""
        return self.right - self.left

    @property
    def area(self) -> int:
        """Return the number of pixels."""
        return max(0, self.height) * max(0, self.width)

    def moved(self, down: int, right: int) -> Rect:
        """Return the rectangle at another place."""
        return Rect(self.top + down, self.left + right, self.bottom + down, self.right + right)

    def within(self, other: Rect) -> Rect:
        """Return the common part; it may be empty."""
        return Rect(
            max(self.top, other.top),
            max(self.left, other.left),
            min(self.bottom, other.bottom),
            min(self.right, other.right),
        )

    def covers(self, other: Rect) -> bool:
        """Return whether all of `other` lies inside."""
        return self.within(other) == other

    def cut(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return these pixels of a picture, as a view."""
        return np.asarray(pixels[self.top : self.bottom, self.left : self.right])
