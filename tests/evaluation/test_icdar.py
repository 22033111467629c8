"""The ICDAR 2015 protocol: order decides, ignored regions and what lies in them do not count."""

import numpy as np
import pytest

from ocrstore.evaluation.icdar import PictureScore, match, pair
from ocrstore.evaluation.polygon import area, iou_matrix


def box(left, top, right, bottom):
    """A rectangle as four points."""
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], float)


def test_pairs_in_order():
    """Every truth takes the first free detection above the threshold, not the best one."""
    truths = [box(0, 0, 100, 10), box(0, 20, 100, 30)]
    found = [box(0, 0, 60, 10), box(0, 0, 100, 10), box(0, 20, 49, 30)]
    pairing = pair(found, truths, [False, False])
    assert pairing.pairs == ((0, 0),)
    assert pairing.score == PictureScore(1, 2, 3) == match(found, truths, [False, False])


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
