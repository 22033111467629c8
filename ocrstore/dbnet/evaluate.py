"""Evaluate a checkpoint on every picture of a store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from ocrstore.dbnet.checkpoint import provenance_of
from ocrstore.dbnet.predict import Detector
from ocrstore.evaluation.postprocess import detect
from ocrstore.evaluation.results import Results, ground_truth_of
from ocrstore.store import open_store
from ocrstore.torch.dataset import OCRStoreDataset


def evaluate(
    store: str | Path,
    detector: Detector,
    *,
    view: str | None = None,
    any_recipe: bool = False,
    batch_size: int = 8,
    workers: int = 0,
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
        progress: Called with (pictures done, pictures in all).

    Raises:
        RecipeMismatchError: The recipes differ; the message lists the fields.
    """
    if not any_recipe:
        found = provenance_of(open_store(store), view=view)
        detector.provenance.require_same_recipe(
            found, checkpoint="the checkpoint", found=str(store)
        )
    dataset = OCRStoreDataset(store, view=view, columns=["tensor", "inverse_matrix"])
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=batch_size, num_workers=workers)
    results = Results()
    for batch in loader:
        with torch.inference_mode():
            images = batch["images"].to(detector.device)
            prob = detector.net(images, thresholds=False).prob.cpu().numpy()
        truth = ground_truth_of(batch)
        boxes = detect(
            prob,
            inverse_matrices=truth.inverse_matrices,
            sizes=truth.sizes,
            params=detector.post,
        )
        for found_boxes, key, polygons, ignored, texts in zip(
            boxes, truth.keys, truth.polygons, truth.ignored, truth.texts, strict=True
        ):
            results.add(key, found_boxes.polygons, polygons, ignored, texts)
        if progress is not None:
            progress(len(results.rows), len(dataset))
    return results
