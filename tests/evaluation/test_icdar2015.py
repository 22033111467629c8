"""The ICDAR 2015 protocol: order decides, ignored regions and what lies in them do not count."""

import numpy as np
import pytest

from ocrstore.evaluation.icdar2015 import PictureScore, harmonic_mean, over_pictures, pair
from ocrstore.evaluation.polygons import area
from tests.evaluation.iou import iou_matrix


def match(*polygons, **options):
    """The counts of one picture."""
    return pair(*polygons, **options).score


def box(left, top, right, bottom):
    """A rectangle as four points."""
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], float)


A = box(0, 0, 100, 20)
FAR = box(0, 500, 100, 520)


def test_pairs_in_order():
    """Every truth takes the first free detection above the threshold, not the best one."""
    truths = [box(0, 0, 100, 10), box(0, 20, 100, 30)]
    found = [box(0, 0, 60, 10), box(0, 0, 100, 10), box(0, 20, 49, 30)]
    pairing = pair(found, truths, [False, False])
    assert pairing.pairs == ((0, 0),)
    assert pairing.score == PictureScore(1, 2, 3)


def test_an_overlap_of_exactly_half_is_no_match():
    """IoU has to be above 0.5."""
    assert pair([box(0, 0, 50, 10)], [box(0, 0, 100, 10)], [False]).pairs == ()
    assert pair([box(0, 0, 51, 10)], [box(0, 0, 100, 10)], [False]).pairs == ((0, 0),)


def test_ignored_regions():
    """What lies by more than half in an ignored region is left out; the region never counts."""
    ignored = box(0, 0, 100, 100)
    found = [box(0, 0, 10, 10), box(90, 0, 110, 10), box(95, 0, 115, 10)]
    pairing = pair(found, [ignored], [True])
    assert pairing.counted_truths == () and pairing.counted_detections == (1, 2)


def test_nothing_to_find():
    """Nothing found where nothing is counts as perfect, anything found as wrong."""
    assert pair([], [], []).score.hmean == 1.0
    assert pair([box(0, 0, 9, 9)], [], []).score.hmean == 0.0
    assert pair([], [box(0, 0, 9, 9)], [False]).score.hmean == 0.0
    with pytest.raises(ValueError, match="expected one for each"):
        pair([], [box(0, 0, 9, 9)], [])


def test_areas_of_polygons_that_are_not_convex():
    """Areas and overlaps are exact there too."""
    arrow = [[0, 0], [10, 5], [0, 10], [5, 5]]
    assert area(arrow) == pytest.approx(25)
    assert iou_matrix([arrow], [box(0, 0, 10, 10)])[0, 0] == pytest.approx(0.25)
    assert area([[0, 0], [5, 5]]) == 0


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


def test_a_data_sets_figures_are_ratios_of_sums():
    """3 of 4 truths, 3 of 6 detections; without anything counted, zeros."""
    assert over_pictures(matched=3, truths=4, detections=6) == (0.5, 0.75, 0.6)
    assert over_pictures(matched=0, truths=0, detections=0) == (0, 0, 0)
