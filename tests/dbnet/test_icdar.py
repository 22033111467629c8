"""The ICDAR 2015 protocol, rule by rule, and the metric that sums it."""

import csv

import numpy as np
import pytest
import torch

from ocrstore.evaluation.icdar import PictureScore, harmonic_mean, match
from ocrstore.torch.dbnet.metric import HMean, write_table


def box(left, top, right, bottom):
    """Return a rectangle's corners, clockwise from the upper left one."""
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)], float)


A = box(0, 0, 100, 20)
FAR = box(0, 500, 100, 520)


def test_an_iou_of_exactly_a_half_is_no_match():
    """The protocol asks for more than 0.5: 100 x 10 in 100 x 20 is not enough, 11 rows are."""
    assert match([box(0, 0, 100, 10)], [A], [False]).matched == 0
    assert match([box(0, 0, 100, 11)], [A], [False]).matched == 1


def test_a_truth_takes_the_first_detection_not_the_best():
    """Greedy in order: the worse first detection is taken, the exact one is left as false."""
    score = match([box(0, 0, 100, 12), A], [A], [False])
    assert score == PictureScore(matched=1, truths=1, detections=2)


def test_greedy_order_can_cost_a_match():
    """The first truth takes the only detection that the second could have had."""
    truths = [box(0, 0, 100, 20), box(0, 4, 100, 24)]
    both = box(0, 2, 100, 22)  # IoU 18/22 with each
    only_first = box(0, -5, 100, 12)  # IoU 12/25 with neither
    assert match([both, only_first], truths, [False, False]).matched == 1
    first_only = box(0, -6, 100, 18)  # 18/26 with the first, 14/30 with the second
    assert match([both, first_only], truths, [False, False]).matched == 1
    assert match([first_only, both], truths, [False, False]).matched == 2


def test_one_detection_matches_one_truth():
    """Two equal truths need two detections."""
    assert match([A], [A, A], [False, False]) == PictureScore(1, 2, 1)


def test_detections_in_ignored_regions_are_left_out():
    """More than half of the detection's own area inside: not counted; exactly half: counted."""
    inside = box(0, 0, 40, 10)
    half = box(0, 10, 100, 30)
    assert match([inside, half], [A], [True]) == PictureScore(0, 0, 1)


def test_a_detection_can_be_left_out_though_it_matches():
    """An ignored region over a word takes the detection away: the word is then missed."""
    assert match([A], [A, box(0, 0, 200, 20)], [False, True]) == PictureScore(0, 1, 0)


def test_ignored_regions_are_not_added_up():
    """Two ignored regions that cover 0.4 each do not make 0.8."""
    ignored = [box(0, 0, 40, 20), box(60, 0, 100, 20)]
    assert match([A], ignored, [True, True]) == PictureScore(0, 0, 1)


def test_ignored_truths_are_not_matched_nor_missed():
    """They are in neither count."""
    assert match([FAR], [FAR, A], [False, True]) == PictureScore(1, 1, 1)


@pytest.mark.parametrize(
    ("score", "precision", "recall"),
    [
        (PictureScore(0, 0, 0), 1, 1),
        (PictureScore(0, 0, 2), 0, 1),
        (PictureScore(0, 2, 0), 0, 0),
        (PictureScore(1, 2, 4), 0.25, 0.5),
    ],
)
def test_a_pictures_own_figures(score, precision, recall):
    """As the protocol's per-sample results: nothing to find is found."""
    assert (score.precision, score.recall) == (precision, recall)
    assert score.hmean == harmonic_mean(precision, recall)


def test_coordinates_are_rounded_as_in_a_submission():
    """10.4 rows round to 10, an IoU of exactly a half; unrounded they are enough."""
    detection = box(0, 0, 100, 10.4)
    assert match([detection], [A], [False]).matched == 0
    assert match([detection], [A], [False], whole_pixels=False).matched == 1


def test_degenerate_polygons_do_no_harm():
    """Lines and points match nothing and raise nothing."""
    line = np.array([(0, 0), (100, 0), (100, 0), (0, 0)], float)
    assert match([line, A], [line, A], [False, False]) == PictureScore(1, 2, 2)
    assert match([], [], []) == PictureScore(0, 0, 0)


def test_flags_must_fit():
    """A flag for every truth, or an error."""
    with pytest.raises(ValueError, match="expected one for each"):
        match([A], [A], [])


def test_the_metric_divides_sums_not_means():
    """Two pictures: 1 of 1 and 1 of 3 found, with 2 detections each: P 2/4, R 2/4."""
    metric = HMean()
    metric.update([[A, FAR]], [[A]], [[False]], ["one"])
    metric.update([[A, box(500, 0, 600, 20)]], [[A, FAR, FAR]], [np.zeros(3, bool)], ["two"])
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
    metric.update([[]], [[]], [[]])
    assert torch.stack(list(metric.compute().values())).tolist() == [0, 0, 0]


def test_states_are_summed_over_ranks():
    """Every state has the reduction that makes ranks add up."""
    metric = HMean()
    assert set(metric._reductions) == {"matched", "truths", "detections"}
    assert all(f is metric._reductions["matched"] for f in metric._reductions.values())
    assert metric._reductions["matched"](torch.tensor([1, 2])).item() == 3


def test_the_table_has_the_worst_first(tmp_path):
    """One row per picture with its counts and figures."""
    write_table(
        tmp_path / "table.csv", [("good", PictureScore(2, 2, 2)), ("bad", PictureScore(1, 4, 2))]
    )
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert [r["picture"] for r in rows] == ["bad", "good"]
    assert rows[0]["recall"] == "0.2500" and rows[0]["precision"] == "0.5000"
    assert rows[0]["hmean"] == "0.3333" and rows[1]["matched"] == "2"
