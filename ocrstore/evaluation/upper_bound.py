"""The upper bound of H-mean that a view allows: its own maps through post-processing."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore.annotation import AnnotationReader, require_polygons
from ocrstore.evaluation.postprocess import PostParams, detect_one, params_for
from ocrstore.evaluation.results import Results
from ocrstore.geometry import transform_points
from ocrstore.store import Store
from ocrstore.views import find_view, view_matrices


def upper_bound(
    store: Store,
    *,
    view: str | None = None,
    params: PostParams | None = None,
    min_height: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
) -> Results:
    """Evaluate a store's probability maps as if a network had predicted them.

    What is missing to 1 is lost by the view and the post-processing, not by any network.

    Args:
        store: The store to read; its view needs `prob_map` and `inverse_matrix`.
        view: The view to use; the default one if None.
        params: Post-processing; by default with the shrink ratio of the view's recipe.
        min_height: Leave out pictures with a region (ignored ones aside) of at most this height in
            view pixels.
        progress: Called with (samples done, samples in all).

    Returns:
        The results of the pictures that were not left out.
    """
    require_polygons(store, "compare with")
    found_view = find_view(store, view, needs=("prob_map", "inverse_matrix"))
    columns = found_view.columns
    params = params or params_for(found_view.recipe)
    reader = AnnotationReader(store, min_points=3)
    results = Results()
    for row, key in enumerate(store.keys):
        if progress is not None:
            progress(row, len(store))
        forward, inverse = view_matrices(store, columns["inverse_matrix"], row)
        sample = reader.annotation(row)
        truths = [points.astype(np.float64) for points in sample.polygons]
        ignored = np.asarray(sample.ignored, dtype=bool)
        if _smallest_height(truths, ignored, forward) <= min_height:
            continue
        found = detect_one(
            store[columns["prob_map"]][row],
            inverse_matrix=inverse,
            size=reader.size(row),
            params=params,
        )
        results.add(key, found.polygons, truths, ignored, sample.texts)
    return results


def _smallest_height(
    truths: list[npt.NDArray[np.float64]],
    ignored: npt.NDArray[np.bool_],
    forward: npt.NDArray[np.float64],
) -> float:
    """Return the smallest height of a region in view pixels; infinite if there is none."""
    heights = [
        min(cv2.minAreaRect(transform_points(forward, points).astype(np.float32))[1])
        for points, skip in zip(truths, ignored, strict=True)
        if not skip
    ]
    return min(heights, default=np.inf)
