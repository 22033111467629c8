"""Intersection over union of many polygons."""

import numpy as np

from ocrstore.evaluation.polygons import area_of, intersection_areas, to_paths


def iou_matrix(first, second):
    """Return the (len(first), len(second)) matrix of intersection over union."""
    a, b = [to_paths(p) for p in first], [to_paths(p) for p in second]
    shared = intersection_areas(a, b)
    union = (
        np.array([area_of(p) for p in a])[:, None]
        + np.array([area_of(p) for p in b])[None, :]
        - shared
    ).reshape(shared.shape)
    ratio = np.zeros_like(shared)
    np.divide(shared, union, out=ratio, where=union > 0)
    return ratio
