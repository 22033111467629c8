"""Imported maps: used where they are valid, reported where they are not."""

import numpy as np
import pytest

import ocrstore
from ocrstore.building.build import build
from ocrstore.errors import SourceError
from ocrstore.maps import MapParams, draw_maps
from ocrstore.recipe import Recipe
from ocrstore.verification import verify
from tests.building.conftest import SIZE, kinds, write_npz

SCALE = SIZE / 120
POLYGONS = [
    np.array([[10, 10], [70, 12], [69, 30], [9, 28]]) * SCALE,
    np.array([[20, 50], [90, 50], [90, 70], [20, 70]]) * SCALE,
]


@pytest.fixture
def maps(dataset, tmp_path):
    """One picture, a folder for map files, and the maps as another program drew them."""
    dataset.fill(1)
    folder = tmp_path / "maps"
    folder.mkdir()
    drawn = draw_maps(POLYGONS, [False, False], SIZE, SIZE, params=MapParams(shrink_ratio=0.5))
    return dataset, folder, drawn


def make(dataset, folder, **options):
    """Build with map files, small, in this process."""
    return build(dataset.images, dataset.store, size=SIZE, workers=0, maps=folder, **options)


@pytest.mark.parametrize("name", ["img_000.npz", "img_000.jpg.npz"])
def test_good_maps_are_taken_over(maps, name):
    """Maps of another shrink ratio agree well enough, and are stored as they are."""
    dataset, folder, drawn = maps
    write_npz(folder / name, prob_map=drawn.prob_map[None], thresh_map=drawn.thresh_map)
    report = make(dataset, folder)
    assert report.ok and not report.problems
    store = ocrstore.open(dataset.store)
    assert np.array_equal(store["prob_map"][0], drawn.prob_map.astype(np.float16))
    assert np.array_equal(store["thresh_map"][0], drawn.thresh_map.astype(np.float16))
    recipe = store.metadata["views"][str(SIZE)]["recipe"]
    assert recipe["map_algorithm"].startswith("imported")
    assert store.metadata["views"][str(SIZE)]["fingerprint"] != Recipe.make(size=SIZE).fingerprint
    assert make(dataset, folder).action == "nothing"
    with pytest.raises(SourceError, match="--maps"):
        verify(dataset.store, source=dataset.images)
    assert verify(dataset.store, source=dataset.images, maps=folder, workers=0).ok


def test_maps_in_the_shards_of_an_export(maps, tmp_path):
    """A WebDataset export has them as npy; the same tar as --maps brings all bits back."""
    dataset, folder, drawn = maps
    write_npz(folder / "img_000.npz", prob_map=drawn.prob_map, thresh_map=drawn.thresh_map)
    make(dataset, folder)
    ocrstore.export(dataset.store, to="webdataset", out=tmp_path / "shards")
    (shard,) = (tmp_path / "shards").glob("*.tar")
    again = tmp_path / "again.ocrs"
    report = build(shard, again, size=SIZE, workers=0, maps=shard)
    assert report.ok and "maps-missing" not in kinds(report)
    one, other = ocrstore.open(dataset.store), ocrstore.open(again)
    assert one.keys == other.keys
    for name in ("prob_map", "thresh_map", "prob_mask", "thresh_mask"):
        assert np.array_equal(one[name][0], other[name][0])
    assert build(shard, again, size=SIZE, workers=0, maps=shard).action == "nothing"
    with pytest.raises(SourceError, match="no such folder or archive"):
        build(shard, again, size=SIZE, workers=0, maps=tmp_path / "none")


def test_a_changed_map_file_is_noticed(maps):
    """A new map file is a reason to make the sample again."""
    dataset, folder, drawn = maps
    write_npz(folder / "img_000.npz", prob_map=drawn.prob_map)
    make(dataset, folder)
    write_npz(folder / "img_000.npz", prob_map=np.minimum(drawn.prob_map, 0.75))
    report = make(dataset, folder)
    assert report.action == "update" and "annotation or map file changed" in report.reasons[0]
    assert float(ocrstore.open(dataset.store)["prob_map"][0].max()) == 0.75


def test_no_maps_any_more(maps):
    """Without --maps the view is another one, drawn."""
    dataset, folder, drawn = maps
    write_npz(folder / "img_000.npz", prob_map=drawn.prob_map)
    make(dataset, folder)
    report = build(dataset.images, dataset.store, size=SIZE, workers=0)
    assert report.action in ("update", "rewrite") and "map_algorithm" in report.reasons[0]
    assert verify(dataset.store, source=dataset.images, workers=0).ok


def flipped(drawn):
    """A map saved after a flip: the right shape, the wrong place."""
    return {"prob_map": np.ascontiguousarray(drawn.prob_map[:, ::-1])}


WRONG = {
    "shape": (lambda d: {"prob_map": d.prob_map[:-1]}, "bad-maps", "shape"),
    "range": (lambda d: {"prob_map": d.prob_map * 255}, "bad-maps", "0 to 255"),
    "NaN": (lambda d: {"thresh_map": d.thresh_map * np.nan}, "bad-maps", "nan"),
    "text": (lambda d: {"prob_map": np.full((SIZE, SIZE), "x")}, "bad-maps", "not numbers"),
    "objects": (lambda d: {"prob_map": np.array([None] * 4)}, "bad-maps", "cannot be read"),
    "names": (lambda d: {"probability": d.prob_map}, "bad-maps", "it has probability"),
    "mask": (
        lambda d: {"prob_map": d.prob_map, "prob_mask": d.prob_map * 0.5},
        "bad-maps",
        "other values than 0 and 1",
    ),
    "flip": (flipped, "maps-disagree", "prob_map overlaps by 0."),
    "shift": (
        lambda d: {"prob_map": np.roll(d.prob_map, 12, axis=0)},
        "maps-disagree",
        "prob_map overlaps",
    ),
    "nothing": (
        lambda d: {"prob_map": np.zeros_like(d.prob_map)},
        "maps-disagree",
        "overlaps by 0.00",
    ),
    "threshold": (
        lambda d: {"thresh_map": 1 - d.thresh_map},
        "maps-disagree",
        "thresh_map differs by",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_maps_are_told_and_drawn_instead(maps, name):
    """Shape, range and agreement are checked; the report says what is wrong, and maps are drawn."""
    dataset, folder, drawn = maps
    arrays, kind, words = WRONG[name]
    write_npz(folder / "img_000.npz", **arrays(drawn))
    report = make(dataset, folder)
    assert kinds(report) == {kind} and not report.ok
    assert words in report.problems[0].message and "img_000.npz" in report.problems[0].message
    own = draw_maps(POLYGONS, [False, False], SIZE, SIZE)
    assert np.array_equal(ocrstore.open(dataset.store)["prob_map"][0], own.prob_map)
    again = make(dataset, folder)  # told every time, although nothing is made again
    assert again.action == "nothing" and kinds(again) == {kind}


def test_missing_and_broken_map_files(maps):
    """No file for a picture, and a file that is no archive."""
    dataset, folder, drawn = maps
    assert kinds(make(dataset, folder)) == {"maps-missing"}
    (folder / "img_000.npz").write_bytes(b"PK not really")
    assert kinds(make(dataset, folder, force=True)) == {"bad-maps"}
    np.save(folder / "single.npy", drawn.prob_map)
    (folder / "single.npy").rename(folder / "img_000.npz")
    report = make(dataset, folder, force=True)
    assert "single array" in report.problems[0].message
    with pytest.raises(SourceError, match="no such folder"):
        make(dataset, folder / "absent")
