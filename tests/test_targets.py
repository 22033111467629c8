"""Target functions: baked into stores, drawn after transforms, recorded by name, never imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ocrstore
from ocrstore.augment import BasicAugmentation
from ocrstore.errors import SchemaError
from ocrstore.maps import MapParams, dbnet_maps, draw_maps
from ocrstore.recipe import Recipe, read_recipe
from ocrstore.targets import Targets, _given, give_targets
from ocrstore.torch import OCRStoreDataset
from ocrstore.views import recipe_in_words, stored_views

EXAMPLES = Path(__file__).parents[1] / "examples"
NAME = "psenet_kernels:kernels"


@pytest.fixture
def kernels(monkeypatch):
    """Return the example's function, importable by its name; what was given is forgotten after."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr("ocrstore.targets._given", {})
    import psenet_kernels

    return psenet_kernels.kernels


@pytest.fixture
def baked(drawn_folder, tmp_path, kernels):
    """Build a store with the example's kernels."""
    path = tmp_path / "a.ocrs"
    ocrstore.build(drawn_folder / "images", path, size=96, targets=kernels, workers=0)
    return path


def halves(polygons, ignored, height, width):
    """Draw a map of another dtype, half as large as the view."""
    return {"halves": np.full((height // 2, width // 2), len(polygons), np.float32)}


def test_dbnet_maps_are_a_target_function():
    """The arrays of `draw_maps`, by name."""
    square = np.array([[10, 10], [40, 10], [40, 40], [10, 40]])
    found = dbnet_maps([square], [False], 50, 60)
    expected = draw_maps([square], [False], 50, 60)
    assert list(found) == ["prob_map", "prob_mask", "thresh_map", "thresh_mask"]
    for name, array in found.items():
        assert np.array_equal(array, getattr(expected, name))


def test_kernels_are_baked_and_read(baked, kernels):
    """Columns of the function's names and shapes replace the maps; batches have them."""
    with ocrstore.open(baked) as store:
        assert list(store.columns) == [
            "image",
            "tensor",
            "kernels",
            "training_mask",
            "inverse_matrix",
        ]
        assert store.columns["kernels"].shape == (7, 96, 96)
        drawn = np.asarray(store["kernels"][0])
        assert (drawn[0] >= drawn[6]).all() and drawn[0].sum() > drawn[6].sum() > 0
        assert not np.asarray(store["training_mask"][0]).all()
    batch = OCRStoreDataset(baked)[:2]
    assert batch["kernels"].shape == (2, 7, 96, 96)
    assert batch["training_mask"].shape == (2, 96, 96)
    assert "prob_maps" not in batch


def test_the_command_line(drawn_folder, tmp_path):
    """Build with workers, verify, update and add a view; each needs the name again."""
    environment = {**os.environ, "PYTHONPATH": f"{EXAMPLES}:{EXAMPLES.parent}"}
    images, store = drawn_folder / "images", tmp_path / "a.ocrs"

    def run(*arguments):
        command = [sys.executable, "-m", "ocrstore", *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    build = ("build", images, "--out", store)
    chosen = ("--columns", "tensor,kernels", "--codec", "kernels=zstd", "--size", "64")
    code, out = run(*build, "--targets", NAME, "--workers", "2", *chosen)
    assert code == 0, out
    code, out = run(*build, "--targets", NAME)
    assert code == 0 and "nothing has changed" in out, out
    code, out = run("verify", store, "--source", images, "--targets", NAME, "--workers", "0")
    assert code == 0 and "matches its source" in out, out
    code, out = run("verify", store, "--source", images, "--workers", "0")
    assert code == 2 and f"--targets {NAME}" in out, out
    code, out = run("inspect", store)
    assert code == 0 and f"{NAME}, version 1" in out, out
    code, out = run("add-view", store, "--size", "32", "--targets", NAME, "--source", images)
    assert code == 0 and "32/kernels" in out, out
    assert run("verify", store)[0] == 0


def test_a_recorded_name_is_not_imported(baked, drawn_folder, monkeypatch):
    """Reading, inspecting and recipes work; drawing asks for the function."""
    monkeypatch.setattr("ocrstore.targets._given", {})
    monkeypatch.delitem(sys.modules, "psenet_kernels")
    with ocrstore.open(baked) as store:
        view = stored_views(store)[0]
        assert view.recipe.targets.function == NAME
        assert NAME in recipe_in_words(view.recipe_json)[1]
    OCRStoreDataset(baked)[0]
    with pytest.raises(SchemaError, match=f"--targets {NAME}"):
        ocrstore.verify(baked, source=drawn_folder / "images", workers=0)
    file = baked.with_name("recipe.json")
    file.write_text(json.dumps({"size": 64, "targets": NAME}))
    with pytest.raises(SchemaError, match=f"--targets {NAME}"):
        read_recipe(file)
    assert "psenet_kernels" not in sys.modules


def test_name_and_version_are_in_the_fingerprint(kernels, monkeypatch):
    """Another version is another recipe, and is told from the recorded one."""
    recipe = Recipe.make(size=64, targets=kernels)
    assert recipe.to_json()["targets"]["function"] == NAME
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    assert recipe.fingerprint != Recipe.make(size=64).fingerprint
    monkeypatch.setattr(kernels, "version", "2")
    changed = Recipe.make(size=64, targets=NAME)
    assert changed.fingerprint != recipe.fingerprint
    assert recipe.diff(changed) == ['targets.version: "1" -> "2"']
    with pytest.raises(SchemaError, match="drawn by version 1 of psenet_kernels:kernels"):
        recipe.targets.require()


def test_recipe_file_with_targets(kernels, tmp_path):
    """A file may name the function that is given; another one is refused."""
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps({"size": 64, "columns": ["tensor", "kernels"], "targets": NAME}))
    made = read_recipe(file, targets=NAME)
    assert made.names == ("tensor", "kernels")
    assert made.shape("kernels") == (7, 64, 64)
    assert made.resized(32).shape("kernels") == (7, 32, 32)
    with pytest.raises(SchemaError, match=r"not by tests\.test_targets:halves"):
        read_recipe(file, targets=halves)


def test_a_recipe_of_other_targets_is_refused(kernels, drawn_folder, tmp_path):
    """A function beside a recipe that does not record it would not be used."""
    with pytest.raises(SchemaError, match="the recipe is of DBNet's maps"):
        ocrstore.build(
            drawn_folder / "images", tmp_path / "a.ocrs", recipe=Recipe(), targets=kernels
        )


def test_views_of_open_size(kernels):
    """Where the size depends on the picture, so does the shape."""
    give_targets(halves)
    found = Targets.measure(give_targets(kernels), (None, None))
    assert dict(found.arrays)["kernels"].shape == (7, None, None)
    found = Targets.measure("tests.test_targets:halves", (None, None))
    assert dict(found.arrays)["halves"].shape == (None, None)
    assert dict(found.arrays)["halves"].dtype == "float32"


def test_targets_after_a_transform(baked, kernels):
    """Drawn from the moved polygons, in workers too; without the function it is an error."""
    transform = BasicAugmentation(64, 80)
    dataset = OCRStoreDataset(baked, transform=transform, targets=kernels)
    torch.manual_seed(0)
    sample = dataset[1]
    polygons = [np.asarray(polygon) for polygon in sample["polygons"]]
    expected = kernels(polygons, sample["ignored"], 64, 80)
    assert np.array_equal(sample["kernels"].numpy(), expected["kernels"])
    assert "prob_map" not in sample
    loader = torch.utils.data.DataLoader(dataset, batch_size=3, num_workers=1)
    batch = next(iter(loader))
    assert batch["kernels"].shape == (3, 7, 64, 80)
    assert batch["training_mask"].dtype == torch.uint8
    with pytest.raises(SchemaError, match="give that function as targets="):
        OCRStoreDataset(baked, transform=transform)
    assert "kernels" not in OCRStoreDataset(baked, transform=transform, columns=["tensor"])[0]
    with pytest.raises(TypeError, match="there is none"):
        OCRStoreDataset(baked, targets=kernels)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "expected a dict of named arrays"),
        ({}, "expected a dict of named arrays"),
        ({"image": np.zeros(3)}, "cannot be called 'image'"),
        ({"a/b": np.zeros(3)}, "cannot be called 'a/b'"),
        ({"a": [1, 2]}, "'a' is not an array of numbers"),
        ({"prob_map": np.zeros((3, 3), np.float32)}, "has to be \\(height, width\\)"),
        (1 / 3, "expected a dict"),
    ],
)
def test_what_cannot_be_stored_is_refused(returned, message, monkeypatch):
    """When the recipe is made, not in the middle of a build."""
    monkeypatch.setitem(_given, "some:function", lambda *_: returned)
    with pytest.raises(SchemaError, match=message):
        Targets.measure("some:function", (64, 64))


def test_an_error_of_the_function_names_the_sample(drawn_folder, tmp_path):
    """Other shapes than without polygons, and exceptions, stop the build with the picture's key."""
    for function in (ragged, failing):
        with pytest.raises(SchemaError, match=r"img_0\.jpg: targets tests\.test_targets"):
            ocrstore.build(
                drawn_folder / "images", tmp_path / "b.ocrs", targets=function, workers=0
            )


def ragged(polygons, ignored, height, width):
    """Return as many rows as there are polygons."""
    return {"boxes": np.zeros((len(polygons), 4), np.float32)}


def failing(polygons, ignored, height, width):
    """Fail where there is text."""
    return {"boxes": np.zeros(4 // (1 - len(polygons[:1])))}


@pytest.mark.parametrize("name", ["json", "json:", ":dumps", "json:nothing", "no_such_module:f"])
def test_names_that_lead_nowhere(name):
    """Each is an error that repeats the name."""
    with pytest.raises(SchemaError, match="targets"):
        give_targets(name)


def test_functions_without_a_name_are_refused():
    """Nobody could import them again."""
    with pytest.raises(SchemaError, match="nobody could import it"):
        Recipe.make(targets=lambda *_: {"a": np.zeros(3)})


def test_truncated_rules_are_built_verified_and_said(drawn_folder, tmp_path):
    """`maps: {rules: truncated}` of a recipe file is baked, compared with the source, and shown."""
    file = tmp_path / "recipe.yaml"
    file.write_text("size: 96\nmaps: {rules: truncated}\n")
    stores = {}
    for name, recipe in {"truncated": file, "exact": None}.items():
        stores[name] = tmp_path / f"{name}.ocrs"
        images = drawn_folder / "images"
        if recipe is None:
            ocrstore.build(images, stores[name], size=96, workers=0)
        else:
            ocrstore.build(images, stores[name], recipe=recipe, workers=0)
        assert ocrstore.verify(stores[name], source=images, workers=0).ok
    with ocrstore.open(stores["truncated"]) as one, ocrstore.open(stores["exact"]) as other:
        assert not np.array_equal(one["thresh_map"][0], other["thresh_map"][0])
        assert np.asarray(one["prob_mask"][0]).all()
        view = stored_views(one)[0]
        assert "truncated to whole pixels" in recipe_in_words(view.recipe_json)[1]
        assert view.recipe.maps == MapParams(rules="truncated")
        assert "rules" not in stored_views(other)[0].recipe_json["maps"]
