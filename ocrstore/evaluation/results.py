"""Ground truth to evaluate against, figures over a data set, and their table."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.evaluation.cleval import CharacterScore, score_characters
from ocrstore.evaluation.icdar2015 import Figures, PictureScore, over_pictures, pair
from ocrstore.geometry import transform_points
from ocrstore.whole_file import replaced

Polygons = list[npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """The annotation of a batch of pictures, and the matrices from their views to them."""

    polygons: list[Polygons]
    """For each picture its regions, in the coordinates of the upright picture."""
    ignored: list[npt.NDArray[np.bool_]]
    texts: list[list[str | None]]
    keys: list[str]
    sizes: list[tuple[int, int]]
    """(width, height) of the upright picture."""
    inverse_matrices: npt.NDArray[np.float64]
    """(B, 3, 3), view -> picture."""


def ground_truth_of(batch: Mapping[str, Any]) -> GroundTruth:
    """Read a batch of `OCRStoreDataset`; its polygons are in view coordinates."""
    inverse = np.asarray(batch["inverse_matrix"].cpu(), dtype=np.float64)
    polygons = [
        [transform_points(matrix, points) for points in regions]
        for matrix, regions in zip(inverse, batch["polygons"], strict=True)
    ]
    flags = [np.asarray(f, dtype=bool).reshape(-1) for f in batch["ignored"]]
    texts = [list(t) for t in batch["texts"]]
    keys = [str(key) for key in batch["image_filename"]]
    sizes = [(int(w), int(h)) for w, h in np.asarray(batch["raw_size"].cpu())]
    return GroundTruth(polygons, flags, texts, keys, sizes, inverse)


class Results:
    """The scores of the pictures added so far: ICDAR 2015 and CLEval."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, PictureScore]] = []
        """Key and counts of each picture."""
        self.characters = CharacterScore(0, 0, 0, 0, 0)
        """CLEval's counts, summed."""

    def add(
        self,
        key: str,
        detections: Sequence[npt.ArrayLike],
        truths: Sequence[npt.ArrayLike],
        ignored: Sequence[bool] | npt.NDArray[np.bool_],
        texts: Sequence[str | None],
    ) -> None:
        """Score one picture; polygons are in picture coordinates."""
        self.rows.append((key, pair(detections, truths, ignored).score))
        self.characters += score_characters(detections, truths, ignored, texts)

    @property
    def icdar(self) -> Figures:
        """Precision, recall and H-mean by the ICDAR 2015 protocol."""
        scores = [score for _, score in self.rows]
        return over_pictures(
            matched=sum(s.matched for s in scores),
            truths=sum(s.truths for s in scores),
            detections=sum(s.detections for s in scores),
        )

    @property
    def cleval(self) -> Figures:
        """Precision, recall and H-mean by CLEval."""
        return self.characters.figures

    @property
    def worst_first(self) -> list[tuple[str, PictureScore]]:
        """The rows in ascending order of H-mean."""
        return sorted(self.rows, key=lambda row: (row[1].hmean, row[0]))

    def write_table(self, path: str | Path) -> None:
        """Write a CSV file with a row for each picture, the worst first."""
        names = ["picture", "matched", "truths", "detections", "precision", "recall", "hmean"]
        with replaced(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            for key, score in self.worst_first:
                figures = [f"{x:.4f}" for x in (score.precision, score.recall, score.hmean)]
                writer.writerow([key, score.matched, score.truths, score.detections, *figures])
