"""CLEval's detection score: characters found, less penalties for split and merged words.

Written from the published measure (Baek et al., 2020), for quads and polygons: the `cleval`
package needs a polygon clipper that is not free for commercial use, and numba.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import cv2
import numpy as np
import numpy.typing as npt
import pyclipper

from ocrstore.evaluation.icdar2015 import Figures, harmonic_mean
from ocrstore.evaluation.polygons import Paths, area_of, combine, intersection_areas, to_paths

Floats = npt.NDArray[np.float64]

_AREA_PRECISION = 0.3  # share of a detection's area inside a word that makes them a pair
_VERTICAL = 0.5  # words narrower than this part of their height are read downwards
_MAX_CHARACTERS = 10  # at most so many are guessed from a region's shape


@dataclass(frozen=True, slots=True)
class CharacterScore:
    """The counts of one picture, in characters."""

    truth_characters: int
    detected_characters: int
    """Found in detections that count, and guessed for those that found nothing."""
    hits: int
    """Characters found, each counted once."""
    split_penalty: int
    """One for each detection beyond the first of a word."""
    merge_penalty: int
    """One for each word beyond the first of a detection."""

    def __add__(self, other: CharacterScore) -> CharacterScore:
        return CharacterScore(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def figures(self) -> Figures:
        """Precision, recall and H-mean; 0 where there was nothing to count."""
        recall = (self.hits - self.split_penalty) / max(self.truth_characters, 1)
        precision = (self.hits - self.merge_penalty) / max(self.detected_characters, 1)
        recall, precision = max(recall, 0.0), max(precision, 0.0)
        return Figures(precision, recall, harmonic_mean(precision, recall))


def score_characters(
    detections: Sequence[npt.ArrayLike],
    truths: Sequence[npt.ArrayLike],
    ignored: Sequence[bool] | npt.NDArray[np.bool_],
    texts: Sequence[str | None],
) -> CharacterScore:
    """Count one picture; characters are taken as evenly spaced along a word's middle line.

    A word without a text has as many characters as its shape suggests.
    """
    words = [np.asarray(p, dtype=np.float64).reshape(-1, 2) for p in truths]
    found = [np.asarray(p, dtype=np.float64).reshape(-1, 2) for p in detections]
    flags = np.asarray(ignored, dtype=bool).reshape(-1)
    lengths = [
        _guess_length(p) if flag or not text else len(text)
        for p, flag, text in zip(words, flags, texts, strict=True)
    ]
    # inside[i] is (detections, characters of word i)
    inside = [_inside(found, _centres(p, n)) for p, n in zip(words, lengths, strict=True)]
    counts = np.array([m.sum(axis=1) for m in inside], dtype=np.int64)
    counts = counts.reshape(len(words), len(found))
    share = _area_precision(words, found, flags)

    counted = ~_in_ignored(share[flags], counts[flags])
    pairs = _match(share, counts, ~flags, counted)

    checked = [np.any(inside[i][pairs[i]], axis=0) for i in range(len(words))]
    alone = counted & ~pairs.any(axis=0)
    guessed = sum(_guess_false_length(found[j]) for j in np.flatnonzero(alone))
    return CharacterScore(
        truth_characters=sum(n for n, flag in zip(lengths, flags, strict=True) if not flag),
        detected_characters=int(counts[pairs].sum()) + guessed,
        hits=int(sum(c.sum() for c in checked)),
        split_penalty=int(np.maximum(pairs.sum(axis=1) - 1, 0).sum()),
        merge_penalty=int(np.maximum(pairs.sum(axis=0) - 1, 0).sum()),
    )


def _aspect(points: Floats) -> float:
    """Return the ratio of a word's width to its height."""
    if len(points) != 4:
        width, height = cv2.minAreaRect(points.astype(np.float32))[1]
        return (max(width, height) + 1e-5) / (min(width, height) + 1e-5)
    edges = np.linalg.norm(np.roll(points, -1, axis=0) - points, axis=1)
    return float((edges[0] + edges[2] + 2e-5) / (edges[1] + edges[3] + 2e-5))


def _guess_length(points: Floats) -> int:
    aspect = _aspect(points)
    return min(round(0.5 + max(aspect, 1 / aspect)), _MAX_CHARACTERS)


def _guess_false_length(points: Floats) -> int:
    # the authors' program counts the characters of a false detection downwards only
    return min(round(0.5 + 1 / (1e-5 + _aspect(points))), _MAX_CHARACTERS)


def _centres(points: Floats, length: int) -> Floats:
    """Return `length` points, evenly along the middle line between top and bottom."""
    if length == 0 or len(points) < 3:
        return np.zeros((0, 2))
    if len(points) == 4 and _aspect(points) < _VERTICAL:
        points = np.roll(points, 1, axis=0)
    half = len(points) // 2
    top, bottom = points[:half], points[half:][::-1][:half]
    middle = (top + bottom) / 2
    steps = np.linalg.norm(np.diff(middle, axis=0), axis=1)
    along = np.concatenate([[0.0], np.cumsum(steps)])
    at = (np.arange(length) + 0.5) / length * along[-1]
    return np.stack([np.interp(at, along, middle[:, axis]) for axis in (0, 1)], axis=1)


def _inside(polygons: list[Floats], points: Floats) -> npt.NDArray[np.bool_]:
    """Return (polygons, points) flags of points inside, by counting the edges to their right.

    Half-open, so that a character on the line between two detections belongs to one of them.
    """
    result = np.zeros((len(polygons), len(points)), dtype=bool)
    x, y = points[:, 0, None], points[:, 1, None]
    for row, polygon in enumerate(polygons):
        (ax, ay), (bx, by) = polygon.T, np.roll(polygon, -1, axis=0).T
        rise = by - ay
        crosses = ((ay > y) != (by > y)) & (rise != 0)
        at = ax + (y - ay) * (bx - ax) / np.where(rise == 0, 1.0, rise)
        result[row] = (crosses & (x < at)).sum(axis=1) % 2 == 1
    return result


def _area_precision(
    words: list[Floats], found: list[Floats], flags: npt.NDArray[np.bool_]
) -> Floats:
    """Return which part of each detection lies in each word, (words, detections)."""
    paths = [to_paths(p) for p in words]
    care = [p for p, flag in zip(paths, flags, strict=True) if not flag]
    # what words cover of an ignored region is not ignored
    paths = [_subtract(p, care) if f else p for p, f in zip(paths, flags, strict=True)]
    detected = [to_paths(p) for p in found]
    shared = intersection_areas(paths, detected)
    areas = np.array([area_of(p) for p in detected], dtype=np.float64)
    part = np.zeros_like(shared)
    np.divide(shared, areas[None], out=part, where=areas[None] > 0)
    return part


def _subtract(paths: Paths, others: list[Paths]) -> Paths:
    for other in others:
        paths = combine(paths, other, operation=pyclipper.CT_DIFFERENCE)
    return paths


def _in_ignored(share: Floats, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Say which detections belong to ignored regions: to one of them, or to several together."""
    one = (share >= _AREA_PRECISION).any(axis=0)
    together = (share * (counts > 0)).sum(axis=0) >= _AREA_PRECISION
    either: npt.NDArray[np.bool_] = np.logical_or(one, together)
    return either


def _match(
    share: Floats,
    counts: npt.NDArray[np.int64],
    care: npt.NDArray[np.bool_],
    counted: npt.NDArray[np.bool_],
) -> npt.NDArray[np.bool_]:
    """Return the (words, detections) pairs: one to one, one to many, many to one."""
    valid = care[:, None] & counted[None, :]
    touch = (counts > 0) & (share >= _AREA_PRECISION)
    one = touch & (touch.sum(axis=1) == 1)[:, None] & (touch.sum(axis=0) == 1)[None, :]
    candidates = touch & valid
    split = candidates & (candidates.sum(axis=1) >= 2)[:, None]
    holds = (counts > 0) & valid
    enough = ((share * holds).sum(axis=0) >= _AREA_PRECISION) & (holds.sum(axis=0) >= 2)
    pairs: npt.NDArray[np.bool_] = (one & valid) | split | (holds & enough[None, :])
    return pairs
