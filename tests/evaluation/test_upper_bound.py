"""The upper bound: a store's own maps through post-processing, without any training."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ocrstore.building.build import build
from ocrstore.errors import SchemaError
from ocrstore.evaluation.postprocess import PostParams
from ocrstore.evaluation.upper_bound import upper_bound
from ocrstore.maps import MapParams
from ocrstore.recipe import Recipe
from ocrstore.store import open_store

PICTURES = os.environ.get("OCRSTORE_PICTURES")
COLUMNS = ["prob_map", "inverse_matrix"]


def test_drawn_text_over_20_pixels_is_all_found(drawn_folder, tmp_path):
    """On drawn pictures whose text is over 20 px high in the view, H-mean is above 0.97."""
    out = tmp_path / "drawn.ocrs"
    build(drawn_folder / "images", out, size=640, columns=COLUMNS, workers=0)
    store = open_store(out)
    for params in (PostParams(), PostParams(polygons=True)):
        metric = upper_bound(store, params=params, min_height=20)
        assert len(metric.rows) >= 3
        assert metric.icdar.hmean > 0.97


def test_what_a_small_view_loses(drawn_folder, tmp_path):
    """In a view so small that text falls under the maps' smallest size, recall is lost."""
    out = tmp_path / "small.ocrs"
    build(drawn_folder / "images", out, size=64, columns=COLUMNS, workers=0)
    values = upper_bound(open_store(out)).icdar
    assert values.recall < 0.9


def test_it_undoes_what_the_recipe_did(drawn_folder, tmp_path):
    """Maps shrunk by another ratio are grown back by that one, unless parameters say otherwise."""
    out = tmp_path / "other.ocrs"
    maps = MapParams(shrink_ratio=0.95)
    build(drawn_folder / "images", out, recipe=Recipe.make(size=640, maps=maps), workers=0)
    store = open_store(out)
    assert upper_bound(store, min_height=20).icdar.hmean > 0.97
    assert upper_bound(store, min_height=20, params=PostParams()).icdar.hmean < 0.9


def test_a_store_without_maps_is_refused(drawn_folder, tmp_path):
    """The message says what is missing."""
    out = tmp_path / "nomaps.ocrs"
    build(drawn_folder / "images", out, size=96, columns=["tensor"], workers=0)
    with pytest.raises(SchemaError, match="lacks prob_map, inverse_matrix"):
        upper_bound(open_store(out))
    with pytest.raises(SchemaError, match="no view '960'; it has 96"):
        upper_bound(open_store(out), view="960")


def test_the_command_needs_no_torch(drawn_folder, tmp_path):
    """`eval --oracle` runs in a Python in which importing torch fails."""
    out = tmp_path / "drawn.ocrs"
    build(drawn_folder / "images", out, size=320, columns=COLUMNS, workers=0)
    code = (
        "import sys\n"
        "for name in ('torch', 'lightning', 'torchmetrics'): sys.modules[name] = None\n"
        "from ocrstore.cli import main\n"
        f"sys.argv = ['ocrstore', 'eval', {str(out)!r}, '--oracle', '--json']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["hmean"] == upper_bound(open_store(out)).icdar.hmean


@pytest.mark.pictures
@pytest.mark.skipif(PICTURES is None, reason="OCRSTORE_PICTURES is not set")
def test_icdar_pictures(tmp_path):
    """On 30 ICDAR pictures at 640: large text is all found; precision stays near 1."""
    import shutil

    root = Path(PICTURES) / "icdar2015"
    (tmp_path / "images").mkdir()
    for picture in sorted((root / "images").iterdir())[:30]:
        shutil.copy(picture, tmp_path / "images")
    out = tmp_path / "icdar.ocrs"
    build(
        tmp_path / "images",
        out,
        annotations=root / "gt",
        size=640,
        columns=COLUMNS,
        workers=0,
    )
    store = open_store(out)
    large = upper_bound(store, min_height=20)
    assert large.icdar.hmean > 0.97 and sum(score.truths for _, score in large.rows) > 0
    everything = upper_bound(store).icdar
    assert everything.precision > 0.97 and everything.hmean > 0.9
