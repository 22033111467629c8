"""A checkpoint measured on a store: H-mean, CLEval, and a row for every picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from ocrstore.evaluation.icdar import PictureScore
from ocrstore.store import open_store
from ocrstore.torch.dataset import OCRStoreDataset
from ocrstore.torch.dbnet.cleval import CLEval
from ocrstore.torch.dbnet.detector import Detector
from ocrstore.torch.dbnet.metric import HMean
from ocrstore.torch.dbnet.postprocess import detect
from ocrstore.torch.dbnet.provenance import provenance_of
from ocrstore.torch.dbnet.truth import truth_of


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was measured."""

    precision: float
    recall: float
    hmean: float
    cleval: dict[str, float]
    rows: list[tuple[str, PictureScore]]


def evaluate(
    store: str | Path,
    detector: Detector,
    *,
    view: str | None = None,
    any_recipe: bool = False,
    batch_size: int = 8,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Measure a detector on every picture of a store.

    A view of another recipe than the detector was trained with is refused, and the difference
    shown, unless `any_recipe` says that it is meant.
    """
    if not any_recipe:
        found = provenance_of(open_store(store), view=view)
        detector.provenance.require_same_recipe(
            found, checkpoint="the checkpoint", found=str(store)
        )
    dataset = OCRStoreDataset(store, view=view, columns=["tensor", "inverse_matrix"])
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=batch_size, num_workers=workers)
    hmean, cleval = HMean(), CLEval()
    for batch in loader:
        with torch.inference_mode():
            images = batch["images"].to(detector.device)
            prob = detector.net(images, thresholds=False).prob.cpu().numpy()
        truth = truth_of(batch)
        found_boxes = detect(
            prob,
            inverse_matrices=truth.inverse_matrices,
            sizes=truth.sizes,
            params=detector.post,
        )
        polygons = [list(d.polygons) for d in found_boxes]
        hmean.update(polygons, truth.polygons, truth.ignored, truth.names)
        cleval.update(polygons, truth.polygons, truth.ignored, truth.texts)
        if progress is not None:
            progress(len(hmean.rows), len(dataset))
    return summarise(hmean, cleval)


def summarise(hmean: HMean, cleval: CLEval | None = None) -> Evaluation:
    """Return the figures of metrics that have counted everything."""
    figures = {name: float(value) for name, value in hmean.compute().items()}
    characters = {} if cleval is None else {k: float(v) for k, v in cleval.compute().items()}
    return Evaluation(**figures, cleval=characters, rows=list(hmean.rows))
