"""Precision and recall for many thresholds at once, to choose the best."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ocrstore.evaluation.icdar2015 import Figures, over_pictures, overlaps_of
from ocrstore.evaluation.postprocess import PostParams, detect_one
from ocrstore.evaluation.results import GroundTruth

THRESHOLDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
MIN_SCORES = tuple(round(0.05 * step, 2) for step in range(6, 20))


class Point(NamedTuple):
    """The figures of one choice of thresholds."""

    threshold: float
    min_score: float
    figures: Figures


class Sweep:
    """Counts matched boxes for every pair of `threshold` and `min_score`, ICDAR 2015 protocol."""

    def __init__(self, params: PostParams) -> None:
        self.params = params
        # matched boxes and all boxes of each pair; the truths are the same for all
        self._counts = np.zeros((len(THRESHOLDS), len(MIN_SCORES), 2), np.int64)
        self._truths = 0

    def count(self, maps: npt.NDArray[np.floating], truth: GroundTruth) -> Sweep:
        """Return the counts of the (B, 1, H, W) maps of a batch alone; safe in threads."""
        part = Sweep(self.params)
        for position, prob in enumerate(maps[:, 0]):
            part._add(prob, truth, position)
        return part

    def _add(self, prob: npt.NDArray[np.floating], truth: GroundTruth, position: int) -> None:
        self._truths += int((~truth.ignored[position]).sum())
        for row, threshold in enumerate(THRESHOLDS):
            found = detect_one(
                prob,
                inverse_matrix=truth.inverse_matrices[position],
                size=truth.sizes[position],
                params=replace(self.params, threshold=threshold, min_score=0.0),
            )
            overlaps = overlaps_of(
                found.polygons, truth.polygons[position], truth.ignored[position]
            )
            for column, lowest in enumerate(MIN_SCORES):
                pairing = overlaps.pair(np.flatnonzero(found.scores >= lowest).tolist())
                counts = len(pairing.pairs), len(pairing.counted_detections)
                self._counts[row, column] += counts

    def __iadd__(self, other: Sweep) -> Sweep:
        self._counts += other._counts
        self._truths += other._truths
        return self

    @property
    def points(self) -> list[Point]:
        """The figures of every pair, by threshold and then by score."""
        return [
            Point(
                threshold,
                lowest,
                over_pictures(matched=int(matched), truths=self._truths, detections=int(boxes)),
            )
            for threshold, row in zip(THRESHOLDS, self._counts, strict=True)
            for lowest, (matched, boxes) in zip(MIN_SCORES, row, strict=True)
        ]

    @property
    def best(self) -> Point:
        """The pair of the highest H-mean; of equal ones the one nearest to the present values."""
        now = (self.params.threshold, self.params.min_score)
        return max(
            self.points,
            key=lambda p: (
                round(p.figures.hmean, 6),
                -abs(p.threshold - now[0]) - abs(p.min_score - now[1]),
            ),
        )

    @property
    def curve(self) -> list[Point]:
        """Precision and recall over the score, at the best threshold."""
        return [point for point in self.points if point.threshold == self.best.threshold]
