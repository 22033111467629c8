"""H-mean of a data set as a torchmetrics metric, with a row for every picture."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchmetrics import Metric

from ocrstore.errors import WriteError
from ocrstore.evaluation.icdar import PictureScore, match


class HMean(Metric):
    """Precision, recall and H-mean over a data set, ICDAR 2015 protocol.

    Counts are summed over pictures (and over ranks), then divided: pictures with much text weigh
    more. `rows` holds the pictures this process has seen since the last `reset`.
    """

    full_state_update = False
    higher_is_better = True
    is_differentiable = False

    matched: Tensor
    truths: Tensor
    detections: Tensor

    def __init__(self, *, iou: float = 0.5, whole_pixels: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.iou = iou
        self.whole_pixels = whole_pixels
        self.rows: list[tuple[str, PictureScore]] = []
        for name in ("matched", "truths", "detections"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(
        self,
        detections: Sequence[Sequence[npt.ArrayLike]],
        truths: Sequence[Sequence[npt.ArrayLike]],
        ignored: Sequence[Sequence[bool] | npt.NDArray[np.bool_]],
        names: Sequence[str] | None = None,
    ) -> None:
        """Count one batch: per picture the detected polygons, the true ones and their flags."""
        if not len(detections) == len(truths) == len(ignored):
            raise ValueError(
                f"{len(detections)} pictures with detections, {len(truths)} with truths, "
                f"{len(ignored)} with flags: expected the same number"
            )
        for position, found in enumerate(detections):
            score = match(
                found,
                truths[position],
                ignored[position],
                iou=self.iou,
                whole_pixels=self.whole_pixels,
            )
            self.matched += score.matched
            self.truths += score.truths
            self.detections += score.detections
            name = names[position] if names is not None else str(len(self.rows))
            self.rows.append((name, score))

    def compute(self) -> dict[str, Tensor]:
        """Return `precision`, `recall` and `hmean` over everything counted."""
        matched = self.matched.double()
        precision = matched / self.detections.clamp(min=1)
        recall = matched / self.truths.clamp(min=1)
        total = precision + recall
        hmean = torch.where(total > 0, 2 * precision * recall / total.clamp(min=1e-12), total)
        return {
            "precision": precision.float(),
            "recall": recall.float(),
            "hmean": hmean.float(),
        }

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.rows = []


def write_table(path: str | Path, rows: Sequence[tuple[str, PictureScore]]) -> None:
    """Write a CSV file with one row per picture, the worst first."""
    ordered = sorted(rows, key=lambda row: (row[1].hmean, row[0]))
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(
                ["picture", "matched", "truths", "detections", "precision", "recall", "hmean"]
            )
            for name, score in ordered:
                figures = [f"{x:.4f}" for x in (score.precision, score.recall, score.hmean)]
                writer.writerow([name, score.matched, score.truths, score.detections, *figures])
    except OSError as exc:
        raise WriteError(f"{target}: {exc.strerror or exc}") from exc
