"""ICDAR 2015, CLEval and means over samples as torchmetrics metrics, summed over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from ocrstore.errors import needs
from ocrstore.evaluation.cleval import CharacterScore
from ocrstore.evaluation.icdar2015 import Figures, PictureScore, over_pictures

with needs("lightning"):
    from torchmetrics import Metric

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

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rows: list[tuple[str, PictureScore]] = []
        for name in ("matched", "truths", "detections"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, scores: Sequence[PictureScore], names: Sequence[str]) -> None:
        """Count pictures that `ocrstore.evaluation.icdar2015` has scored."""
        self.rows += zip(names, scores, strict=True)
        # summed before they are added: each addition is a kernel on the device
        self.matched += sum(score.matched for score in scores)
        self.truths += sum(score.truths for score in scores)
        self.detections += sum(score.detections for score in scores)

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

    def update(self, scores: Sequence[CharacterScore]) -> None:
        """Count pictures that `ocrstore.evaluation.cleval.score_characters` has scored."""
        for name in _CHARACTER_COUNTS:
            state: Tensor = getattr(self, name)
            state += sum(getattr(score, name) for score in scores)

    def compute(self) -> dict[str, Tensor]:
        """Return `precision`, `recall` and `hmean` over everything counted."""
        counts = {name: int(getattr(self, name)) for name in _CHARACTER_COUNTS}
        return _as_tensors(CharacterScore(**counts).figures)


class SampleMean(Metric):
    """The mean of some values over the samples of all ranks, whatever the sizes of batches.

    Nothing is fetched from the device before `compute`, and one sum goes between the ranks.
    (Lightning's own mean rounds the number of samples per rank to an integer.)
    """

    full_state_update = False
    is_differentiable = False

    sums: Tensor

    def __init__(self, names: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.names = tuple(names)
        # the last one is the number of samples
        self.add_state("sums", torch.zeros(len(self.names) + 1), dist_reduce_fx="sum")

    def update(self, values: Sequence[Tensor], count: int) -> None:
        """Add values, in the order of the names, that are means over `count` samples."""
        self.sums += count * torch.stack([*values, torch.ones_like(values[0])])

    def compute(self) -> dict[str, Tensor]:
        """Return the mean of each value."""
        means = self.sums[:-1] / self.sums[-1].clamp(min=1)
        return dict(zip(self.names, means, strict=True))


def _as_tensors(figures: Figures) -> dict[str, Tensor]:
    # float32: MPS has no float64
    return {name: torch.tensor(float(value)) for name, value in figures._asdict().items()}
