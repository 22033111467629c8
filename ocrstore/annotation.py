"""Records of a source: pictures, polygons with text and flags, and problems."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Polygon:
    """One text region, in the coordinates its source gave."""

    points: npt.NDArray[np.float32]
    """(n, 2) float32, n >= 3, x then y."""
    text: str | None = None
    ignored: bool = False
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Something a source or the build had to decide about; nothing is dropped without one."""

    kind: str
    """A short, stable word, such as `too-few-points`; the docs list them all."""
    message: str
    key: str | None = None
    """The sample it is about, where there is one."""
    polygon: int | None = None
    """The polygon's position in its annotation, where it is about one."""


@dataclass(frozen=True, slots=True)
class SourceSample:
    """A picture on disk with its annotation, before decoding."""

    key: str
    path: Path
    polygons: tuple[Polygon, ...] = ()
    annotated: bool = True
    """False for a picture without any annotation, which is not the same as no text."""
    problems: tuple[Problem, ...] = field(default=())
