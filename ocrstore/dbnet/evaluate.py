"""Evaluate a checkpoint on a store: boxes are found and scored in threads beside the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ocrstore.annotation import require_polygons
from ocrstore.dbnet.checkpoint import provenance_of
from ocrstore.dbnet.predict import Detector
from ocrstore.evaluation.cleval import CharacterScore, score_characters
from ocrstore.evaluation.icdar2015 import PictureScore, pair
from ocrstore.evaluation.postprocess import Detections, PostParams, detect
from ocrstore.evaluation.results import GroundTruth, Results, ground_truth_of
from ocrstore.evaluation.sweep import Sweep
from ocrstore.machine import usable_cpus
from ocrstore.store import open_store
from ocrstore.torch.dataset import OCRStoreDataset
from ocrstore.torch.device import enter_device, start_fetch
from ocrstore.torch.prefetch import PrefetchLoader

_THREADS = 4
_PENDING = 8
"""Batches whose maps may wait on the host."""


def evaluate(
    store: str | Path,
    detector: Detector,
    *,
    view: str | None = None,
    any_recipe: bool = False,
    batch_size: int = 8,
    workers: int = 0,
    sweep: Sweep | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Results:
    """Evaluate a detector on every picture of a store.

    Args:
        store: The store to read.
        detector: A loaded checkpoint.
        view: The view to use; the default one if None.
        any_recipe: Allow a view of another recipe than the detector was trained with.
        batch_size: Pictures per forward pass.
        workers: Loader processes.
        sweep: Counts boxes for other thresholds as well, over the same maps.
        progress: Called with (pictures done, pictures in all).

    Raises:
        RecipeMismatchError: The recipes differ; the message lists the fields.
        SchemaError: The store has no polygons to compare with.
    """
    require_polygons(open_store(store), "compare with")
    if not any_recipe:
        found = provenance_of(open_store(store), view=view)
        detector.provenance.require_same_recipe(
            found, checkpoint="the checkpoint", found=str(store)
        )
    dataset = OCRStoreDataset(store, view=view, columns=["tensor", "inverse_matrix"])
    loader = PrefetchLoader(
        dataset, batch_size=batch_size, num_workers=workers, device=detector.device, lists=True
    )
    results = Results()
    # boxes are found and scored in threads while the network runs
    scoring = Scoring(detector.post, detector.device, characters=True, sweep=sweep)
    done = 0
    try:
        for batch in loader:
            prob = detector.probabilities(batch["images"])
            scoring.submit(prob, ground_truth_of(batch))
            done += len(prob)
            if progress is not None:
                progress(done, len(dataset))
        for scored in scoring.finish():
            results.rows += zip(scored.keys, scored.pictures, strict=True)
            for score in scored.characters:
                results.characters += score
            if sweep is not None and scored.swept is not None:
                sweep += scored.swept
    finally:
        scoring.close()
        loader.close()
    return results


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
