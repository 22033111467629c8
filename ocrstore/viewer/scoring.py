"""Predictions against a store's polygons: hits, misses, false alarms, the H-mean of a sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.evaluation.icdar import Pairing, PictureScore, harmonic_mean, pair
from ocrstore.store import Store
from ocrstore.viewer.predictions import Predictions

Tell = Callable[[int, int], None]


class Scores:
    """What the ICDAR 2015 protocol says of every sample that the predictions speak of."""

    def __init__(self, store: Store, predictions: Predictions, *, tell: Tell | None = None) -> None:
        self.predictions = predictions
        self._store = store
        names = store.snapshot.index.attributes.names
        self._known = "polygons" in names
        self.numbers: dict[str, npt.NDArray[np.float64]] = {
            name: np.full(len(store), np.nan)
            for name in ("hmean", "precision", "recall", "hits", "misses", "false_alarms")
        }
        totals = np.zeros(3, np.int64)
        for done, row in enumerate(sorted(predictions.boxes), start=1):
            score = self.pairing(row).score
            self._note(row, score)
            totals += (score.matched, score.truths, score.detections)
            if tell is not None:
                tell(done, len(predictions.boxes))
        self.total = PictureScore(*totals.tolist())
        """The counts of all samples together, as the evaluation sums them."""

    def pairing(self, row: int) -> Pairing:
        """Match one sample's predictions with its polygons."""
        truths, ignored = read_truths(self._store, row)
        found = [box.points for box in self.predictions.boxes.get(row, ())]
        return pair(found, truths, ignored)

    def to_json(self) -> dict[str, Any]:
        """Describe all samples together."""
        total = self.total
        return {
            "path": self.predictions.path,
            "pictures": len(self.predictions.boxes),
            "unknown": len(self.predictions.unknown),
            "precision": total.precision,
            "recall": total.recall,
            "hmean": harmonic_mean(total.precision, total.recall),
        }

    def _note(self, row: int, score: PictureScore) -> None:
        values = {
            "hmean": score.hmean,
            "precision": score.precision,
            "recall": score.recall,
            "hits": score.matched,
            "misses": score.truths - score.matched,
            "false_alarms": score.detections - score.matched,
        }
        for name, value in values.items():
            self.numbers[name][row] = value


def read_truths(store: Store, row: int) -> tuple[list[npt.NDArray[np.float64]], list[bool]]:
    """Return a sample's polygons, (n, 2) each, and which of them are ignored."""
    record = store.attributes(row)
    polygons = [
        np.asarray(flat, np.float64).reshape(-1, 2)
        for flat in record.get("polygons") or ()
        if flat is not None and len(flat) % 2 == 0
    ]
    flags = [bool(flag) for flag in record.get("ignored") or ()]
    flags += [False] * (len(polygons) - len(flags))
    return polygons, flags[: len(polygons)]
