"""ICDAR 2015 and CLEval as torchmetrics metrics: counts are summed over pictures and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchmetrics import Metric

from ocrstore.evaluation.cleval import CharacterScore, score_characters
from ocrstore.evaluation.icdar2015 import Figures, PictureScore, over_pictures, pair

_CHARACTER_COUNTS = tuple(field.name for field in fields(CharacterScore))


class HMean(Metric):
    """Precision, recall and H-mean over a data set, ICDAR 2015 protocol.

    Counts are summed over pictures (and over ranks), then divided: pictures with much text weigh
    more. `rows` has the pictures that this process has counted since the last `reset`.
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
        """Count one batch: for each picture detected polygons, true ones and their flags."""
        if not len(detections) == len(truths) == len(ignored):
            raise ValueError(
                f"{len(detections)} pictures with detections, {len(truths)} with truths, "
                f"{len(ignored)} with flags: expected the same number"
            )
        for position, found in enumerate(detections):
            score = pair(
                found,
                truths[position],
                ignored[position],
                iou=self.iou,
                whole_pixels=self.whole_pixels,
            ).score
            self.matched += score.matched
            self.truths += score.truths
            self.detections += score.detections
            name = names[position] if names is not None else str(len(self.rows))
            self.rows.append((name, score))

    def compute(self) -> dict[str, Tensor]:
        """Return `precision`, `recall` and `hmean` over everything counted."""
        return _as_tensors(
            over_pictures(
                matched=int(self.matched),
                truths=int(self.truths),
                detections=int(self.detections),
            )
        )

    def reset(self) -> None:
        """Set all counts to zero and empty `rows`."""
        super().reset()
        self.rows = []


class CLEval(Metric):
    """CLEval's detection precision, recall and H-mean over a data set."""

    full_state_update = False
    higher_is_better = True
    is_differentiable = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in _CHARACTER_COUNTS:
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(
        self,
        detections: Sequence[Sequence[npt.ArrayLike]],
        truths: Sequence[Sequence[npt.ArrayLike]],
        ignored: Sequence[Sequence[bool] | npt.NDArray[np.bool_]],
        texts: Sequence[Sequence[str | None]],
    ) -> None:
        """Count one batch: for each picture detected and true polygons, flags and texts."""
        for found, known, flags, words in zip(detections, truths, ignored, texts, strict=True):
            score = score_characters(found, known, flags, words)
            for name in _CHARACTER_COUNTS:
                state: Tensor = getattr(self, name)
                state += getattr(score, name)

    def compute(self) -> dict[str, Tensor]:
        """Return `precision`, `recall` and `hmean` over everything counted."""
        counts = {name: int(getattr(self, name)) for name in _CHARACTER_COUNTS}
        return _as_tensors(CharacterScore(**counts).figures)


def _as_tensors(figures: Figures) -> dict[str, Tensor]:
    return {name: torch.tensor(value) for name, value in figures._asdict().items()}
