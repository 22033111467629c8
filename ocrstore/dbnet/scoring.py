"""Find boxes and score them in threads, while the device computes the next batch."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ocrstore.evaluation.cleval import CharacterScore, score_characters
from ocrstore.evaluation.icdar2015 import PictureScore, pair
from ocrstore.evaluation.postprocess import Detections, PostParams, detect
from ocrstore.evaluation.results import GroundTruth
from ocrstore.evaluation.sweep import Sweep
from ocrstore.machine import usable_cpus
from ocrstore.torch.device import enter_device, start_fetch

_THREADS = 4
_PENDING = 8
"""Batches whose maps may wait on the host."""


class Scored(NamedTuple):
    """The boxes of a batch and how good they are, picture by picture."""

    keys: list[str]
    found: list[Detections]
    pictures: list[PictureScore]
    characters: list[CharacterScore]
    """CLEval's counts; empty if they were not asked for."""
    swept: Sweep | None = None
    """The counts of other thresholds; None if they were not asked for."""


class Scoring:
    """Scores the batches of one pass over a data set.

    `submit` starts one copy to the host and returns; OpenCV does its work beside Python. It waits
    only when many batches are pending.
    """

    def __init__(
        self,
        params: PostParams,
        device: torch.device,
        *,
        characters: bool,
        sweep: Sweep | None = None,
    ) -> None:
        self._params = params
        self._characters = characters
        self._sweep = sweep
        self._futures: list[Future[Scored]] = []
        self._pool = ThreadPoolExecutor(
            min(_THREADS, usable_cpus()), "ocrstore-score", enter_device, (device,)
        )

    def submit(self, prob: Tensor, truth: GroundTruth) -> Future[Scored]:
        """Score the probability maps of a batch."""
        if len(self._futures) >= _PENDING:
            self._futures[-_PENDING].result()
        maps, ready = start_fetch(prob)
        future = self._pool.submit(self._score, maps, ready, truth)
        self._futures.append(future)
        return future

    def finish(self) -> list[Scored]:
        """Return the scores of all batches, in the order in which they were submitted."""
        try:
            return [future.result() for future in self._futures]
        finally:
            self.close()

    def close(self) -> None:
        """Drop what was not scored yet, and end the threads."""
        self._futures = []
        self._pool.shutdown(cancel_futures=True)

    def _score(self, maps: Tensor, ready: Any, truth: GroundTruth) -> Scored:
        if ready is not None:
            ready.synchronize()
        prob = maps.numpy()
        found = detect(
            prob,
            inverse_matrices=truth.inverse_matrices,
            sizes=truth.sizes,
            params=self._params,
        )
        scored = score_boxes(found, truth, characters=self._characters)
        swept = None if self._sweep is None else self._sweep.count(prob, truth)
        return scored._replace(swept=swept)


def score_boxes(
    found: Sequence[Detections], truth: GroundTruth, *, characters: bool = True
) -> Scored:
    """Score the boxes of a batch, in picture coordinates."""
    boxes = [detections.polygons for detections in found]
    pictures = [
        pair(polygons, truths, ignored).score
        for polygons, truths, ignored in zip(boxes, truth.polygons, truth.ignored, strict=True)
    ]
    parts = zip(boxes, truth.polygons, truth.ignored, truth.texts, strict=True)
    counted = [score_characters(*part) for part in parts] if characters else []
    return Scored(truth.keys, list(found), pictures, counted)
