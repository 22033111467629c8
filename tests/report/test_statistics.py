"""What a report counts, ranks and chooses, against figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

import ocrstore
from ocrstore.inspection.polygon_stats import measure_polygons, view_boxes
from ocrstore.maps import draw_maps
from ocrstore.report.charts import half_octaves, nice_ceiling, percent
from ocrstore.report.contact_sheet import choose_varied
from ocrstore.report.distributions import text_angles
from ocrstore.report.suspects import count_kinds, find_suspects
from ocrstore.views import recipe_in_words, stored_views
from tests.drawn import build_drawn


def store_of(path, polygons, sizes=(100, 100), **attributes):
    """A store of polygons alone: one list of polygons for each sample."""
    with ocrstore.create(path, {"a": ocrstore.Column("int8", (1,))}) as writer:
        for row, found in enumerate(polygons):
            flat = [[float(v) for point in points for v in point] for points in found]
            extra = {name: values[row] for name, values in attributes.items()}
            writer.append(
                f"s{row}",
                {"a": np.array([row], np.int8)},
                attributes={"polygons": flat, "width": sizes[0], "height": sizes[1], **extra},
            )
    return ocrstore.open(path)


def box(x, y, wide, high):
    """An upright rectangle."""
    return [(x, y), (x + wide, y), (x + wide, y + high), (x, y + high)]


def test_measures(tmp_path):
    """Counts, owners and boxes, with samples and polygons that have nothing in between."""
    polygons = [[box(1, 2, 30, 10)], [], [box(0, 0, 5, 5), [], [(9, 1), (3, 7), (4, 20)]]]
    with store_of(tmp_path / "a.ocrs", polygons) as store:
        found = measure_polygons(store)
    assert found.counts.tolist() == [1, 0, 3] and found.owner.tolist() == [0, 2, 2, 2]
    assert found.boxes[0].tolist() == [1, 2, 31, 12]
    assert np.isnan(found.boxes[2]).all() and found.boxes[3].tolist() == [3, 1, 9, 20]
    assert found.ends.tolist() == [4, 8, 8, 11] and len(found.points) == 11


def test_the_limit_is_the_one_of_the_maps(tmp_path):
    """Polygons counted as too small are exactly those that drawing the maps ignores."""
    store_path = build_drawn(tmp_path)
    with ocrstore.open(store_path) as store:
        found, view = measure_polygons(store), stored_views(store)[0]
        small = (view_boxes(found, view, store) < view.maps["min_size"]).any(axis=1)
        for number, row in enumerate(found.owner.tolist()):
            scale = 64 / max(found.width[row], found.height[row])
            start = int(found.ends[number - 1]) if number else 0
            points = found.points[start : int(found.ends[number])] * scale
            inside = points - points.min(axis=0) + 10  # drawn in full, wherever it was
            maps = draw_maps([inside], [False], 100, 100)
            assert small[number] == (maps.prob_map.max() == 0), number
    assert small.tolist() == [False, True, False, True, False, False, False]


def test_sizes_in_a_view_of_any_geometry(tmp_path):
    """Where a recipe does not say the scale, the stored matrices do."""
    with ocrstore.open(build_drawn(tmp_path)) as store:
        found, view = measure_polygons(store), stored_views(store)[0]
        from_recipe = view_boxes(found, view, store)
        unknown = type(view)(
            view.name, {**view.recipe_json, "geometry": "pipeline"}, "", view.columns, True
        )
        from_matrices = view_boxes(found, unknown, store)
        assert np.allclose(from_recipe, from_matrices)
        nothing = type(view)(view.name, {**view.recipe_json, "geometry": "pipeline"}, "", {}, True)
        assert view_boxes(found, nothing, store) is None


def test_angles(tmp_path):
    """The longest edge decides; rising text is positive, whichever way round it is drawn."""
    rising = [(0, 50), (40, 10), (44, 14), (4, 54)]
    polygons = [[box(0, 0, 40, 10), box(0, 0, 10, 40), rising, rising[::-1], []]]
    with store_of(tmp_path / "a.ocrs", polygons) as store:
        angles = text_angles(measure_polygons(store))
    assert np.abs(angles[:4]).round().tolist() == [0, 90, 45, 45] and angles[2] > 0 < angles[3]
    assert np.isnan(angles[4])


def test_bins_have_an_edge_at_the_limit():
    """Exactly 8 is on the right side of it, whatever is just under 8 on the left."""
    values = np.array([7.999, 8.0, 8.001, 16.0, 15.999, 0.1, 1e9, np.nan])
    counts = half_octaves(values, anchor=8.0, low=-2, high=4)
    assert counts.tolist() == [1, 1, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("value", "ceiling"), [(0, 1), (1, 1), (3, 4), (7, 8), (41, 50), (99, 100), (1001, 2000)]
)
def test_round_numbers(value, ceiling):
    """Axes end on numbers that people can halve."""
    assert nice_ceiling(value) == ceiling


def test_shares_do_not_round_to_nothing():
    """Little is not nothing and almost all is not all."""
    words = [percent(*pair) for pair in ((0, 5), (1, 9999), (9999, 10000), (5, 5), (1, 3), (1, 0))]
    assert words == ["0 %", "<0.1 %", ">99.9 %", "100 %", "33.3 %", "0 %"]


def test_suspects(tmp_path):
    """Every reason by itself, and the order."""
    polygons = [
        [box(10, 10, 50, 20)],  # nothing odd
        [],  # annotated, no polygon
        [],  # not annotated
        [box(200, 0, 20, 20), box(10, 10, 50, 20)],  # outside
        [box(10, 10, 50, 4), box(10, 30, 5, 20)],  # tiny
        [box(10, 10, 50, 20)],  # ignored
        [box(90, 10, 50, 20)],  # sticks out
        [box(10, 10, 50, 0), box(10, 30, 50, 20)],  # no area
        [box(81, 10, 20, 20)],  # one pixel outside is nothing
        [box(0, 0, 30, 30)],  # twins
        [box(0, 0, 30, 30)],
    ]
    ignored = [[False] * len(found) for found in polygons]
    ignored[5] = [True]
    annotated = [row != 2 for row in range(len(polygons))]
    hashes = [*range(9), 99, 99]
    with store_of(
        tmp_path / "a.ocrs", polygons, ignored=ignored, annotated=annotated, source_hash=hashes
    ) as store:
        found = find_suspects(store, measure_polygons(store), None)
    kinds = {suspect.key: suspect.kinds for suspect in found}
    assert kinds == {
        "s9": ["duplicate"],
        "s10": ["duplicate"],
        "s3": ["outside"],
        "s1": ["no-polygons"],
        "s2": ["no-annotation"],
        "s4": ["tiny-text"],
        "s7": ["no-area"],
        "s5": ["all-ignored"],
        "s6": ["sticks-out"],
    }
    assert [suspect.key for suspect in found] == list(kinds)
    assert next(iter(count_kinds(found))) == "duplicate" and count_kinds(found)["duplicate"] == 2


def test_the_sheet_shows_variety(tmp_path):
    """What is unlike the rest is chosen, evenly spread samples too, always the same ones."""
    polygons = [[box(10, 10, 40, 10)] for _ in range(100)]
    polygons[37] = [box(10, 10, 40, 10)] * 30
    polygons[71] = []
    with store_of(tmp_path / "a.ocrs", polygons) as store:
        found = measure_polygons(store)
    rows = choose_varied(found, 10)
    assert len(set(rows)) == 10 and rows == sorted(rows) == choose_varied(found, 10)
    assert {37, 71, 0, 99} <= set(rows)
    assert choose_varied(found, 500) == list(range(100)) and choose_varied(found, 0) == []


def test_recipes_in_words():
    """Each geometry has its sentence."""
    recipe = ocrstore.Recipe.make(size=(480, 640)).to_json()
    assert "fit into 480x640" in recipe_in_words(recipe)[0]
    assert "shrunk by ratio 0.4" in recipe_in_words(recipe)[1]
    stretched = {**recipe, "geometry": "stretch", "columns": {"tensor": {}}}
    assert recipe_in_words(stretched) == [
        "Stretched to 480x640 (height x width), linear resampling.",
        "No maps.",
    ]
    steps = {"transform": {"transforms": [{"__class_fullname__": "a.Resize"}]}}
    pipeline = {**recipe, "geometry": "pipeline", "pipeline": steps, "size": [None, None]}
    assert "Resize; gives a size that depends" in recipe_in_words(pipeline)[0]
