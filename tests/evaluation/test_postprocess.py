"""Post-processing: boxes come back where they were shrunk from, in the cases that go wrong."""

import cv2
import numpy as np
import pyclipper
import pytest

from ocrstore.errors import SchemaError
from ocrstore.evaluation.postprocess import (
    DB_RULES,
    PostParams,
    detect,
    detect_one,
    polygon_offset,
    rectangle_offsets,
)
from tests.evaluation.iou import iou_matrix


def box(left, top, right, bottom):
    """Return a rectangle's corners, clockwise from the upper left one."""
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)], np.float64)


def turned(points, degrees):
    """Return the points turned about their middle."""
    a = np.radians(degrees)
    turn = np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
    middle = points.mean(axis=0)
    return (points - middle) @ turn.T + middle


def shrunk(points, ratio=0.4):
    """Shrink a polygon by A (1 - r^2) / L, as the probability map has it."""
    area = cv2.contourArea(points.astype(np.float32))
    length = cv2.arcLength(points.astype(np.float32), True)
    clipper = pyclipper.PyclipperOffset()
    clipper.AddPath(
        np.rint(points * 256).astype(np.int64).tolist(),
        pyclipper.JT_ROUND,
        pyclipper.ET_CLOSEDPOLYGON,
    )
    (path,) = clipper.Execute(-256 * area * (1 - ratio**2) / length)
    return np.array(path) / 256


def drawn(*regions, height=200, width=320, value=1.0):
    """Draw regions into a probability map, coordinates cut to whole numbers as the maps' are."""
    prob = np.zeros((height, width), np.float32)
    for region in regions:
        cv2.fillPoly(prob, [np.asarray(region).astype(np.int32)], value)
    return prob


SHAPES = {
    "word": box(50, 60, 130, 90),
    "long line": box(10, 80, 310, 100),
    "tall": box(100, 20, 124, 180),
    "slanted": turned(box(60, 80, 200, 110), 25),
    "steep": turned(box(60, 80, 200, 110), -70),
    "square": box(100, 60, 150, 110),
}


@pytest.mark.parametrize("polygons", [False, True], ids=["quads", "polygons"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_shrunk_region_comes_back(name, polygons):
    """Shrink, draw, detect: the box found is the one that was shrunk."""
    truth = SHAPES[name]
    found = detect_one(drawn(shrunk(truth)), params=PostParams(polygons=polygons))
    assert len(found) == 1 and found.scores[0] > 0.85
    assert iou_matrix([truth], found.polygons)[0, 0] > 0.8


def test_the_papers_ratio_loses_long_lines():
    """Growing by 1.5 A / L gives back little more than half of a line 15 times as long as high."""
    found = detect_one(drawn(shrunk(SHAPES["long line"])), params=PostParams(unclip_ratio=1.5))
    assert iou_matrix([SHAPES["long line"]], found.polygons)[0, 0] < 0.65
    found = detect_one(drawn(shrunk(SHAPES["word"])), params=PostParams(unclip_ratio=1.5))
    assert iou_matrix([SHAPES["word"]], found.polygons)[0, 0] > 0.7


@pytest.mark.parametrize("side", [(100.0, 20.0), (30.0, 30.0), (5.0, 300.0)])
def test_growing_undoes_shrinking_exactly(side):
    """Rectangles: D from the grown area and perimeter is the D it was grown by."""
    d = rectangle_offsets(np.array([side]), PostParams())[0]
    w, h = side[0] + 2 * d, side[1] + 2 * d
    assert d == pytest.approx((1 - 0.4**2) * w * h / (2 * (w + h)))


def test_growing_a_circle_undoes_shrinking_it():
    """A circle of radius R shrinks by 0.42 R; from the 0.58 R left, the same is found."""
    left = 0.58
    d = polygon_offset(np.pi * left**2, 2 * np.pi * left, PostParams())
    assert d == pytest.approx(0.42)


def test_the_papers_ratio_is_a_times_area_over_perimeter():
    """1.5 * 2000 / 240 for 100 x 20."""
    params = PostParams(unclip_ratio=1.5)
    assert rectangle_offsets(np.array([(100.0, 20.0)]), params)[0] == pytest.approx(12.5)
    assert polygon_offset(2000, 240, params) == pytest.approx(12.5)


@pytest.mark.parametrize("polygons", [False, True], ids=["quads", "polygons"])
def test_a_line_one_pixel_high_still_grows(polygons):
    """Thin text is one row of pixels after shrinking; it is found, and higher than a row."""
    prob = np.zeros((64, 128), np.float32)
    prob[30, 20:100] = 1
    found = detect_one(prob, params=PostParams(min_size=1, polygons=polygons))
    assert len(found) == 1
    assert np.ptp(found.polygons[0][:, 1]) > 1.5


@pytest.mark.parametrize("polygons", [False, True], ids=["quads", "polygons"])
def test_specks_are_dropped(polygons):
    """One pixel is no text under the smallest size, and no crash."""
    prob = np.zeros((64, 64), np.float32)
    prob[5, 5] = prob[0, 0] = prob[63, 63] = 1
    assert len(detect_one(prob, params=PostParams(polygons=polygons))) == 0


@pytest.mark.parametrize("polygons", [False, True], ids=["quads", "polygons"])
@pytest.mark.parametrize("edge", ["left", "right", "top", "bottom", "all"])
def test_regions_at_the_border_are_found(edge, polygons):
    """A region that touches the border is found, and cut at the picture's edge."""
    prob = np.zeros((60, 90), np.float32)
    window = {
        "left": np.s_[25:35, :30],
        "right": np.s_[25:35, 60:],
        "top": np.s_[:10, 30:60],
        "bottom": np.s_[50:, 30:60],
        "all": np.s_[:, :],
    }[edge]
    prob[window] = 1
    found = detect_one(prob, size=(90, 60), params=PostParams(polygons=polygons))
    assert len(found) == 1
    points = found.polygons[0]
    assert points.min() >= 0 and points[:, 0].max() <= 90 and points[:, 1].max() <= 60
    reach = {"left": points[:, 0].min() == 0, "right": points[:, 0].max() == 90}
    reach |= {"top": points[:, 1].min() == 0, "bottom": points[:, 1].max() == 60}
    assert all(reach.values()) if edge == "all" else reach[edge]


def test_text_inside_a_ring_is_found():
    """A region in another's hole is a region; the hole is none."""
    prob = drawn(box(20, 20, 200, 180))
    prob[30:171, 30:191] = 0
    prob += drawn(box(80, 90, 140, 110))
    found = detect_one(prob, params=PostParams(min_score=0.05))
    assert len(found) == 2


def test_boxes_go_through_the_inverse_matrix():
    """View to picture: scaled by 2.5, shifted, and one picture turned by a quarter."""
    prob = drawn(box(50, 60, 130, 80))
    scale = np.array([[2.5, 0, 10], [0, 2.5, -20], [0, 0, 1]])
    quarter = np.array([[0, 1, 0], [-1, 0, 320], [0, 0, 1.0]])
    plain, scaled, rotated = detect(
        np.stack([prob] * 3), inverse_matrices=np.stack([np.eye(3), scale, quarter])
    )
    np.testing.assert_allclose(scaled.polygons[0], plain.polygons[0] * 2.5 + (10, -20), atol=1e-3)
    x, y = plain.polygons[0].T
    np.testing.assert_allclose(rotated.polygons[0], np.stack([y, 320 - x], axis=1), atol=1e-3)


def test_a_projective_matrix_divides():
    """The last row counts: points are divided by their third coordinate."""
    prob = drawn(box(50, 60, 130, 80))
    matrix = np.array([[1, 0, 0], [0, 1, 0], [0.01, 0, 1.0]])
    plain, bent = detect(np.stack([prob] * 2), inverse_matrices=np.stack([np.eye(3), matrix]))
    expected = plain.polygons[0] / (1 + 0.01 * plain.polygons[0][:, :1])
    np.testing.assert_allclose(bent.polygons[0], expected, rtol=1e-5)


def test_scores_are_means_and_low_ones_are_dropped():
    """A region of 0.55 is above the pixel threshold and below the score asked for."""
    prob = np.maximum(
        drawn(box(20, 20, 100, 40), value=0.9), drawn(box(20, 120, 100, 140), value=0.55)
    )
    assert detect_one(prob).scores == pytest.approx([0.9])
    both = detect_one(prob, params=PostParams(min_score=0.4))
    assert sorted(both.scores.tolist()) == pytest.approx([0.55, 0.9])


def test_quads_run_clockwise_from_the_upper_left():
    """As ICDAR's files want them."""
    found = detect_one(drawn(box(50, 60, 130, 80)))
    first, second, third, fourth = found.polygons[0]
    assert first[0] < second[0] and first[1] < fourth[1]
    assert third[0] > fourth[0] and third[1] > second[1]


def test_polygons_run_clockwise_too():
    """Signed area is positive with y pointing down."""
    x, y = detect_one(drawn(box(50, 60, 130, 80)), params=PostParams(polygons=True)).polygons[0].T
    assert np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y) > 0


def test_a_curve_keeps_its_bend_as_polygon():
    """Half a ring: the polygon follows it, the rectangle cannot."""
    angles = np.linspace(np.pi, 2 * np.pi, 30)
    outer = np.stack([160 + 120 * np.cos(angles), 160 + 120 * np.sin(angles)], axis=1)
    inner = np.stack([160 + 80 * np.cos(angles), 160 + 80 * np.sin(angles)], axis=1)
    truth = np.concatenate([outer, inner[::-1]])
    prob = drawn(shrunk(truth))
    polygon = detect_one(prob, params=PostParams(polygons=True)).polygons
    quad = detect_one(prob, params=PostParams(min_score=0.1)).polygons
    assert iou_matrix([truth], polygon)[0, 0] > 0.8 > iou_matrix([truth], quad)[0, 0]


def test_the_largest_candidates_are_kept():
    """Of a limited number the large ones remain."""
    prob = drawn(box(10, 10, 30, 20), box(50, 50, 200, 90), box(10, 150, 60, 170))
    found = detect_one(prob, params=PostParams(max_candidates=1))
    assert len(found) == 1 and found.polygons[0][:, 0].max() > 190


def test_nothing_is_found_in_nothing():
    """Empty, full of nan-free zeros, and float16 maps as stored."""
    assert len(detect_one(np.zeros((32, 32), np.float16))) == 0
    assert detect(np.zeros((2, 1, 32, 32), np.float32))[1].scores.shape == (0,)


def test_the_input_is_not_written_to():
    """A read-only map is enough."""
    prob = drawn(box(50, 60, 130, 80))
    prob.setflags(write=False)
    assert len(detect_one(prob)) == 1


def test_wrong_shapes_and_values_are_refused():
    """The error says what was expected."""
    with pytest.raises(SchemaError, match=r"expected \(B, H, W\)"):
        detect(np.zeros((32, 32), np.float32))
    with pytest.raises(SchemaError, match="between 0 and 1"):
        PostParams(threshold=30)
    wrong = {"min_score": 7, "min_size": -1, "max_candidates": 0, "unclip_ratio": -1}
    for name, value in wrong.items():
        with pytest.raises(SchemaError, match=f"{name} {value}"):
            PostParams(**{name: value})


def test_what_lies_in_the_padding_is_no_box():
    """Cut at the picture's edge nothing is left of it."""
    prob = drawn(box(20, 20, 100, 50), box(20, 150, 100, 180))
    assert len(detect_one(prob)) == 2
    found = detect_one(prob, inverse_matrix=np.eye(3), size=(200, 120))
    assert len(found) == 1 and found.polygons[0][:, 1].max() < 70


def by_the_authors_code(prob, dest_width, dest_height, *, thresh, box_thresh, ratio, limit):
    """Find boxes as the published representer does, written down step by step.

    No function of the package is used, and nothing is done for all points at once.
    """

    def mini_box(points):
        rectangle = cv2.minAreaRect(points)
        a, b, c, d = sorted(cv2.boxPoints(rectangle).tolist(), key=lambda point: point[0])
        first, fourth = (a, b) if b[1] > a[1] else (b, a)
        second, third = (c, d) if d[1] > c[1] else (d, c)
        return np.array([first, second, third, fourth], np.float32), min(rectangle[1])

    def mean_inside(box):
        height, width = prob.shape
        left = min(max(int(np.floor(min(box[:, 0]))), 0), width - 1)
        right = min(max(int(np.ceil(max(box[:, 0]))), 0), width - 1)
        top = min(max(int(np.floor(min(box[:, 1]))), 0), height - 1)
        bottom = min(max(int(np.ceil(max(box[:, 1]))), 0), height - 1)
        mask = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
        moved = np.array([[[int(x - left), int(y - top)] for x, y in box]], np.int32)
        cv2.fillPoly(mask, moved, 1)
        return cv2.mean(prob[top : bottom + 1, left : right + 1], mask)[0]

    def unclip(box):
        offset = pyclipper.PyclipperOffset()
        offset.AddPath(box, pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
        (ax, ay), (bx, by), (cx, cy), (dx, dy) = points = box.tolist()
        ends = zip(points, [*points[1:], points[0]], strict=True)
        length = sum(np.sqrt((x - u) ** 2 + (y - v) ** 2) for (x, y), (u, v) in ends)
        area = abs((bx - ax) * (ay - cy) + (cx - ax) * (by - dy) + (dx - ax) * (cy - ay)) / 2
        return np.array(offset.Execute(area * ratio / length)).reshape(-1, 1, 2).astype(np.int32)

    bitmap = ((prob > thresh) * 255).astype(np.uint8)
    contours, _ = cv2.findContours(bitmap, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    boxes, scores = [], []
    for contour in contours[:limit]:
        box, side = mini_box(contour)
        if side < 3:
            continue
        score = mean_inside(box)
        if box_thresh > score:
            continue
        box, side = mini_box(unclip(box))
        if side < 5:
            continue
        box[:, 0] = np.clip(np.round(box[:, 0] / prob.shape[1] * dest_width), 0, dest_width)
        box[:, 1] = np.clip(np.round(box[:, 1] / prob.shape[0] * dest_height), 0, dest_height)
        boxes.append(box)
        scores.append(score)
    return boxes, scores


def blurred_map(seed):
    """Draw turned boxes, rings and specks at random, blurred, with noise: a prediction's look."""
    rng = np.random.default_rng(seed)
    height, width = (int(n) for n in rng.integers(120, 320, 2))
    prob = np.zeros((height, width), np.float32)
    for _ in range(int(rng.integers(4, 24))):
        middle = rng.uniform(0, (width, height))
        side = rng.uniform(2, (70, 26))
        angle = float(rng.choice([0, 0, 90, rng.uniform(-90, 90)]))
        corners = cv2.boxPoints((middle.tolist(), side.tolist(), angle))
        cv2.fillPoly(prob, [corners.astype(np.int32)], float(rng.uniform(0.7, 1)))
        if rng.random() < 0.2:
            cv2.circle(prob, middle.astype(int).tolist(), 3, 0.0, -1)
    prob = cv2.GaussianBlur(prob, (0, 0), float(rng.uniform(0.3, 2)))
    return np.clip(prob + rng.normal(0, 0.03, prob.shape), 0, 1).astype(np.float32)


@pytest.mark.parametrize("seed", range(60))
def test_db_rules_equal_the_authors_code_box_by_box(seed):
    """The same boxes in the same order with the same scores, scaled to another size."""
    prob, size = blurred_map(seed), (640 + seed, 481)
    params = PostParams(**{**DB_RULES, "max_candidates": 100, "min_score": 0.5 + seed % 3 / 10})
    found = detect_one(prob, size=size, params=params)
    boxes, scores = by_the_authors_code(
        prob, *size, thresh=0.3, box_thresh=params.min_score, ratio=1.5, limit=100
    )
    assert len(found) == len(boxes)
    for polygon, expected in zip(found.polygons, boxes, strict=True):
        np.testing.assert_array_equal(polygon, expected)
    np.testing.assert_allclose(found.scores, scores, rtol=1e-6)


def test_the_maps_of_that_comparison_have_boxes_to_compare():
    """Most of them have several, and the default rules do not agree with the authors'."""
    counts = [len(detect_one(blurred_map(s), params=PostParams(**DB_RULES))) for s in range(60)]
    ours = PostParams(threshold=0.3, unclip_ratio=1.5, min_score=0.7)
    others = [len(detect_one(blurred_map(s), params=ours)) for s in range(60)]
    assert sum(counts) > 100 and sum(others) > sum(counts)


def test_db_rules_go_through_a_matrix():
    """Letterboxed views: scaled by 2, cut at the picture, nothing from the padding."""
    prob = drawn(box(20, 20, 100, 50), box(20, 150, 100, 180))
    params = PostParams(**DB_RULES)
    (plain, _), whole = detect_one(prob, params=params).polygons, np.diag([2.0, 2.0, 1.0])
    found = detect_one(prob, inverse_matrix=whole, size=(400, 240), params=params)
    assert len(found) == 1
    np.testing.assert_allclose(found.polygons[0], detect_one(prob, params=params).polygons[1] * 2)
    assert plain[:, 1].min() > 100


def test_db_rules_have_limits():
    """They need the authors' ratio and give rectangles only."""
    with pytest.raises(SchemaError, match="unclip_ratio None"):
        PostParams(rules="db")
    with pytest.raises(SchemaError, match="polygons True"):
        PostParams(**DB_RULES, polygons=True)
    with pytest.raises(SchemaError, match="unknown rules 'paper'"):
        PostParams(rules="paper")
