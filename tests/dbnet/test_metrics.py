"""The torchmetrics metrics: they sum over pictures and ranks, then divide."""

import numpy as np
import pytest
import torch

from ocrstore.dbnet.metrics import CLEval, HMean, SampleMean
from ocrstore.evaluation.cleval import score_characters
from ocrstore.evaluation.icdar2015 import pair


def box(left, top, right, bottom):
    """Return a rectangle's corners, clockwise from the upper left one."""
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)], float)


A = box(0, 0, 100, 20)
FAR = box(0, 500, 100, 520)
WORD = box(0, 0, 80, 20)


def test_the_metric_divides_sums_not_means():
    """Two pictures: 1 of 1 and 1 of 3 found, with 2 detections each: P 2/4, R 2/4."""
    metric = HMean()
    metric.update([pair([A, FAR], [A], [False]).score], ["one"])
    found = pair([A, box(500, 0, 600, 20)], [A, FAR, FAR], np.zeros(3, bool)).score
    metric.update([found], ["two"])
    assert {k: v.item() for k, v in metric.compute().items()} == {
        "precision": 0.5,
        "recall": 0.5,
        "hmean": 0.5,
    }
    assert [name for name, _ in metric.rows] == ["one", "two"]
    metric.reset()
    assert metric.rows == [] and metric.truths == 0


def test_an_empty_metric_is_zero():
    """No truth and no detection in the whole set: zeros, as the protocol has it; not nan."""
    metric = HMean()
    metric.update([pair([], [], []).score], ["empty"])
    assert torch.stack(list(metric.compute().values())).tolist() == [0, 0, 0]


def test_states_are_summed_over_ranks():
    """Every state has the reduction that makes ranks add up."""
    metric = HMean()
    assert set(metric._reductions) == {"matched", "truths", "detections"}
    assert all(f is metric._reductions["matched"] for f in metric._reductions.values())
    assert metric._reductions["matched"](torch.tensor([1, 2])).item() == 3


def test_cleval_sums_over_pictures():
    """Recall (4 + 2 - 0) / 8, precision 6 / (4 + 2 + 3)."""
    metric = CLEval()
    found = [box(0, 0, 45, 20), box(100, 0, 120, 60)]
    metric.update([score_characters([WORD], [WORD], [False], ["word"])])
    metric.update([score_characters(found, [WORD], [False], ["word"])])
    values = {k: v.item() for k, v in metric.compute().items()}
    recall, precision = 6 / 8, 6 / 9
    assert values["recall"] == pytest.approx(recall)
    assert values["precision"] == pytest.approx(precision)
    assert values["hmean"] == pytest.approx(2 * recall * precision / (recall + precision))


def test_an_empty_cleval_is_zero():
    """Nothing counted gives zeros, not nan."""
    metric = CLEval()
    metric.update([score_characters([], [], [], [])])
    assert [v.item() for v in metric.compute().values()] == [0, 0, 0]


def test_means_are_weighted_by_samples():
    """Batches of 12 and 1 samples: each sample counts once, whatever rank it was on."""
    metric = SampleMean(["a", "b"])
    metric.update([torch.tensor(1.0), torch.tensor(2.0)], 12)
    other = SampleMean(["a", "b"])
    other.update([torch.tensor(14.0), torch.tensor(2.0)], 1)
    metric.sums += other.sums  # as the reduction over ranks does it
    assert {k: v.item() for k, v in metric.compute().items()} == {"a": 2.0, "b": 2.0}
    assert metric._reductions["sums"](torch.tensor([1, 2])).item() == 3


def test_figures_are_float32():
    """MPS has no float64."""
    metric = HMean()
    metric.update([pair([A], [A], [False]).score], ["one"])
    assert all(value.dtype == torch.float32 for value in metric.compute().values())
