"""H-mean without a network: a store's own maps through post-processing, the most it can give."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore.store import Store
from ocrstore.torch.dbnet.cleval import CLEval
from ocrstore.torch.dbnet.metric import HMean
from ocrstore.torch.dbnet.postprocess import PostParams, detect_one, params_for
from ocrstore.torch.dbnet.provenance import find_view, provenance_of
from ocrstore.torch.dbnet.truth import move


def oracle(
    store: Store,
    *,
    view: str | None = None,
    params: PostParams | None = None,
    min_height: float = 0.0,
    cleval: CLEval | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> HMean:
    """Return the metric after every sample's probability map was taken for a prediction.

    What is missing to 1 is lost by the view and the post-processing, not by any network. With
    `min_height`, only pictures count whose every region (but ignored ones) is higher, in view
    pixels, than that. `cleval` counts the same pictures. By default `params` undo what the view's
    own recipe did to the maps.
    """
    columns = find_view(store, view, needs=("prob_map", "inverse_matrix"))[1]["columns"]
    params = params or params_for(provenance_of(store, view=view).as_recipe)
    metric = HMean()
    for row, key in enumerate(store.keys):
        if progress is not None:
            progress(row, len(store))
        inverse = np.asarray(store[columns["inverse_matrix"]][row], dtype=np.float64)
        record = store.attributes(row)
        truths = [np.asarray(flat, np.float64).reshape(-1, 2) for flat in record["polygons"]]
        ignored = np.asarray(record["ignored"], dtype=bool)
        if _lowest(truths, ignored, inverse) <= min_height:
            continue
        found = detect_one(
            store[columns["prob_map"]][row],
            inverse_matrix=inverse,
            size=(record["width"], record["height"]),
            params=params,
        )
        metric.update([list(found.polygons)], [truths], [ignored], [key])
        if cleval is not None:
            texts = record.get("texts") or [None] * len(truths)
            cleval.update([list(found.polygons)], [truths], [ignored], [texts])
    return metric


def _lowest(
    truths: list[npt.NDArray[np.float64]],
    ignored: npt.NDArray[np.bool_],
    inverse: npt.NDArray[np.float64],
) -> float:
    """Return the height of the lowest region in view pixels; infinite if there is none."""
    forward: npt.NDArray[np.float64] = np.linalg.inv(inverse).astype(np.float64)
    heights = [
        min(cv2.minAreaRect(move(forward, points).astype(np.float32))[1])
        for points, skip in zip(truths, ignored, strict=True)
        if not skip
    ]
    return min(heights, default=np.inf)
