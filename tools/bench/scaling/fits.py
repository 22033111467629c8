"""The slopes: straight lines through medians, and how fast a curve grows."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Line:
    """y = start + slope * x; `exponent` is 1 for a straight line through zero, 0 for a flat one."""

    slope: float
    start: float
    exponent: float


@dataclass(frozen=True)
class Figure:
    """A median with its extremes."""

    median: float
    low: float
    high: float


def summarize(values: Iterable[float | None]) -> Figure | None:
    """Return the median and the extremes of what was measured."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Figure(statistics.median(known), min(known), max(known))


def fit(xs: Sequence[float], ys: Sequence[float]) -> Line | None:
    """Fit a line by least squares; the exponent is that of the last two points."""
    if len(xs) < 2:
        return None
    slope, start = np.polyfit(np.asarray(xs, float), np.asarray(ys, float), 1)
    exponent = math.nan
    if ys[-1] > 0 and ys[-2] > 0 and xs[-1] != xs[-2] and xs[-2] > 0:
        exponent = math.log(ys[-1] / ys[-2]) / math.log(xs[-1] / xs[-2])
    return Line(float(slope), float(start), exponent)


class Results:
    """Records of cells, by series; each x has several rounds."""

    def __init__(self, records: Iterable[dict]) -> None:
        self.records = [dict(record) for record in records if "error" not in record]
        for record in self.records:
            # the buffer that batches are copied into is the consumer's, not the loader's
            if record.get("own_nbytes") is not None:
                record["own_nbytes"] -= record.get("buffer_nbytes", 0)

    def series(self, name: str, **wanted: object) -> list[dict]:
        return [
            record
            for record in self.records
            if record["series"] == name and all(record.get(k) == v for k, v in wanted.items())
        ]

    def points(self, name: str, column: str, **wanted: object) -> dict[float, Figure]:
        """Return x -> figure of one column."""
        found = defaultdict(list)
        for record in self.series(name, **wanted):
            found[record["x"]].append(record.get(column))
        made = {x: summarize(values) for x, values in sorted(found.items())}
        return {x: figure for x, figure in made.items() if figure is not None}

    def line(self, name: str, column: str, **wanted: object) -> Line | None:
        points = self.points(name, column, **wanted)
        return fit(list(points), [figure.median for figure in points.values()])
