"""The ICDAR 2015 protocol (task 4.1): match detections to truths, count, divide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ocrstore.evaluation.polygons import area_of, intersection_areas, to_paths


class Figures(NamedTuple):
    """Precision, recall and their harmonic mean, over a data set."""

    precision: float
    recall: float
    hmean: float


@dataclass(frozen=True, slots=True)
class PictureScore:
    """The counts of one picture, and its own precision, recall and H-mean."""

    matched: int
    truths: int
    """Ground-truth regions that count."""
    detections: int
    """Detections that count."""

    @property
    def recall(self) -> float:
        """Matched over truths; 1 if there was nothing to find."""
        return self.matched / self.truths if self.truths else 1.0

    @property
    def precision(self) -> float:
        """Matched over detections; if none, 1 where there was nothing to find and else 0."""
        if self.detections:
            return self.matched / self.detections
        return 0.0 if self.truths else 1.0

    @property
    def hmean(self) -> float:
        """The harmonic mean of precision and recall."""
        return harmonic_mean(self.precision, self.recall)

    def to_json(self) -> dict[str, float]:
        """Return the figures, hits, misses and false alarms, for json.dumps."""
        return {
            "hmean": self.hmean,
            "precision": self.precision,
            "recall": self.recall,
            "hits": self.matched,
            "misses": self.truths - self.matched,
            "false_alarms": self.detections - self.matched,
        }


def over_pictures(*, matched: int, truths: int, detections: int) -> Figures:
    """Return the figures of a data set from its summed counts: pictures with more text weigh more.

    Without any truth or detection they are 0, as the protocol has it.
    """
    precision, recall = matched / max(detections, 1), matched / max(truths, 1)
    return Figures(precision, recall, harmonic_mean(precision, recall))


@dataclass(frozen=True, slots=True)
class Pairing:
    """Which truths and detections of one picture were matched."""

    pairs: tuple[tuple[int, int], ...]
    """Positions of a truth and of the detection it took."""
    counted_truths: tuple[int, ...]
    counted_detections: tuple[int, ...]

    @property
    def score(self) -> PictureScore:
        """The counts."""
        return PictureScore(len(self.pairs), len(self.counted_truths), len(self.counted_detections))


def harmonic_mean(precision: float, recall: float) -> float:
    """Return 2PR / (P + R), and 0 for two zeros."""
    total = precision + recall
    return 2.0 * precision * recall / total if total else 0.0


def pair(
    detections: Sequence[npt.ArrayLike],
    truths: Sequence[npt.ArrayLike],
    ignored: Sequence[bool] | npt.NDArray[np.bool_],
    *,
    whole_pixels: bool = True,
) -> Pairing:
    """Match detections to truths as the ICDAR 2015 evaluation does.

    A detection that lies by more than half of its own area in an ignored region is left out. Then
    every truth in order takes the first free detection, in order, with an IoU above one half; it is
    not a search for the best pairs. With `whole_pixels` coordinates are rounded first: the
    evaluation reads files of whole numbers.
    """
    overlaps = overlaps_of(detections, truths, ignored, whole_pixels=whole_pixels)
    return overlaps.pair(range(len(detections)))


class Overlaps(NamedTuple):
    """How the detections of one picture lie on its truths."""

    hit: npt.NDArray[np.bool_]
    """(truths, detections): whether they are alike enough to be matched."""
    left_out: npt.NDArray[np.bool_]
    """(detections,): whether one lies in an ignored region."""
    care: list[int]
    """The truths that are not ignored."""

    def pair(self, detections: Iterable[int]) -> Pairing:
        """Match some of the detections, in their order."""
        counted = [j for j in detections if not self.left_out[j]]
        free = dict.fromkeys(counted)
        pairs: list[tuple[int, int]] = []
        for i in self.care:
            taken = next((j for j in free if self.hit[i, j]), None)
            if taken is not None:
                del free[taken]
                pairs.append((i, taken))
        return Pairing(tuple(pairs), tuple(self.care), tuple(counted))


def overlaps_of(
    detections: Sequence[npt.ArrayLike],
    truths: Sequence[npt.ArrayLike],
    ignored: Sequence[bool] | npt.NDArray[np.bool_],
    *,
    whole_pixels: bool = True,
) -> Overlaps:
    """Compute what `pair` decides by, to match several choices of the detections."""
    if len(ignored) != len(truths):
        raise ValueError(f"{len(truths)} truths with {len(ignored)} flags: expected one for each")
    found = [to_paths(_rounded(p) if whole_pixels else p) for p in detections]
    known = [to_paths(_rounded(p) if whole_pixels else p) for p in truths]
    shared = intersection_areas(known, found)
    found_area = np.array([area_of(p) for p in found], dtype=np.float64)
    known_area = np.array([area_of(p) for p in known], dtype=np.float64)
    flags = np.asarray(ignored, dtype=bool)
    left_out = (shared[flags] > 0.5 * found_area[None, :]).any(axis=0)
    union = known_area[:, None] + found_area[None, :] - shared
    hit = (union > 0) & (shared > 0.5 * union)
    return Overlaps(hit, left_out, np.flatnonzero(~flags).tolist())


def _rounded(points: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return np.rint(np.asarray(points, dtype=np.float64))
