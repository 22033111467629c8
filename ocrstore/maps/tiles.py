"""Rectangles of pixels that are measured in one go, and where their values are kept."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

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
