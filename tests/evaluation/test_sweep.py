"""Many thresholds at once give what one evaluation for each of them gives."""

import numpy as np
import pytest

pytest.importorskip("cv2")

from ocrstore.evaluation.postprocess import PostParams, detect
from ocrstore.evaluation.results import GroundTruth, Results
from ocrstore.evaluation.sweep import MIN_SCORES, THRESHOLDS, Sweep

BOXES = [(10, 10, 60, 30), (80, 12, 140, 40), (20, 60, 90, 80), (100, 70, 150, 90)]


def quad(left, top, right, bottom):
    """A box as four points."""
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)], np.float64)


@pytest.fixture
def batch():
    """Two pictures of soft regions: some weak, one where nothing is, one on ignored text."""
    rng = np.random.default_rng(5)
    maps = np.zeros((2, 1, 100, 160), np.float32)
    for picture in maps[:, 0]:
        for left, top, right, bottom in [*BOXES, (5, 88, 60, 98)]:
            inside = picture[top + 4 : bottom - 4, left + 4 : right - 4]
            inside[...] = rng.uniform(0.25, 0.98) + rng.normal(0, 0.05, inside.shape)
    truth = GroundTruth(
        polygons=[[quad(*box) for box in BOXES]] * 2,
        ignored=[np.array([False, False, True, False]), np.array([False] * 4)],
        texts=[["a"] * 4] * 2,
        keys=["one", "two"],
        sizes=[(160, 100)] * 2,
        inverse_matrices=np.stack([np.eye(3)] * 2),
    )
    return np.clip(maps, 0, 1), truth


def test_every_point_is_that_of_a_single_evaluation(batch):
    """Precision, recall and H-mean of each pair, and the best is the highest of them."""
    maps, truth = batch
    sweep = Sweep(PostParams())
    sweep += sweep.count(maps[:1], _part(truth, 0))
    sweep += sweep.count(maps[1:], _part(truth, 1))
    assert len(sweep.points) == len(THRESHOLDS) * len(MIN_SCORES)
    for point in sweep.points:
        params = PostParams(threshold=point.threshold, min_score=point.min_score)
        results = Results()
        for position, found in enumerate(detect(maps, sizes=truth.sizes, params=params)):
            results.add(
                truth.keys[position],
                found.polygons,
                truth.polygons[position],
                truth.ignored[position],
                truth.texts[position],
            )
        assert point.figures == results.icdar
    highest = max(point.figures.hmean for point in sweep.points)
    assert sweep.best.figures.hmean == highest > min(p.figures.hmean for p in sweep.points)
    assert sweep.best in sweep.curve and len(sweep.curve) == len(MIN_SCORES)


def test_of_equal_points_the_present_values_win(batch):
    """Without any truth all are equal."""
    maps, truth = batch
    empty = GroundTruth([[]], [np.zeros(0, bool)], [[]], ["one"], truth.sizes[:1], np.eye(3)[None])
    sweep = Sweep(PostParams(threshold=0.3, min_score=0.7))
    sweep += sweep.count(np.zeros_like(maps[:1]), empty)
    assert (sweep.best.threshold, sweep.best.min_score) == (0.3, 0.7)


def _part(truth, position):
    """The ground truth of one picture."""
    one = slice(position, position + 1)
    return GroundTruth(
        truth.polygons[one],
        truth.ignored[one],
        truth.texts[one],
        truth.keys[one],
        truth.sizes[one],
        truth.inverse_matrices[one],
    )
