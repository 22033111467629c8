"""Figures over a data set, with a row for each picture, and the CSV table of these rows."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ocrstore.errors import WriteError
from ocrstore.evaluation.cleval import CharacterScore, score_characters
from ocrstore.evaluation.icdar import Figures, PictureScore, match, over_pictures


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
        self.rows.append((key, match(detections, truths, ignored)))
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
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(
                    ["picture", "matched", "truths", "detections", "precision", "recall", "hmean"]
                )
                for key, score in self.worst_first:
                    figures = [f"{x:.4f}" for x in (score.precision, score.recall, score.hmean)]
                    writer.writerow([key, score.matched, score.truths, score.detections, *figures])
        except OSError as exc:
            raise WriteError(f"{target}: {exc.strerror or exc}") from exc
