"""Evaluate a checkpoint on every picture of a store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ocrstore.dbnet.checkpoint import provenance_of
from ocrstore.dbnet.predict import Detector
from ocrstore.dbnet.scoring import Scoring
from ocrstore.evaluation.results import Results, ground_truth_of
from ocrstore.evaluation.sweep import Sweep
from ocrstore.store import open_store
from ocrstore.torch.dataset import OCRStoreDataset
from ocrstore.torch.prefetch import PrefetchLoader


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
    """
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
