"""Recipes: written down and read back, fingerprinted, compared, refused."""

import dataclasses
import json
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocrstore.errors import SchemaError
from ocrstore.format.codecs import CODECS
from ocrstore.geometry import longest_side
from ocrstore.maps import MapParams
from ocrstore.recipe import Recipe, ViewColumn, read_recipe
from ocrstore.schema import COLUMNS
from tools.torture.mutation import mutate_json

A = pytest.importorskip("albumentations")

PIPELINE = A.Compose([A.Resize(96, 160), A.HorizontalFlip(p=1)])
COMPOSE = {"__class_fullname__": "Compose", "transforms": []}
NODE = {
    "_target_": "albumentations.Compose",
    "transforms": [
        {"_target_": "albumentations.Resize", "height": 96, "width": 160},
        {"_target_": "albumentations.Normalize", "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]},
    ],
}

columns = st.lists(st.sampled_from(list(COLUMNS)), min_size=1, unique=True).flatmap(
    lambda names: st.tuples(
        *(
            st.builds(
                ViewColumn,
                st.just(name),
                st.sampled_from(COLUMNS[name].dtypes),
                st.sampled_from(
                    [c for c in CODECS if c not in ("jpeg", "file") or name == "image"]
                ),
            )
            for name in names
        )
    )
)
recipes = st.builds(
    Recipe,
    size=st.tuples(st.integers(1, 4096), st.integers(1, 4096)),
    geometry=st.sampled_from(["longest", "stretch"]),
    interpolation=st.sampled_from(["linear", "area", "nearest"]),
    fill=st.tuples(*[st.integers(0, 255)] * 3),
    columns=columns,
    maps=st.builds(MapParams, shrink_ratio=st.floats(0.1, 0.9), min_size=st.floats(0, 20)),
    mean=st.tuples(*[st.floats(0, 1)] * 3),
)


@given(recipes)
@settings(max_examples=60)
def test_a_recipe_survives_json(recipe):
    """to_json and from_json are each other's inverse, through real JSON text."""
    again = Recipe.from_json(json.loads(json.dumps(recipe.to_json())))
    assert again == recipe and again.fingerprint == recipe.fingerprint
    assert recipe.diff(again) == [] and hash(again) == hash(recipe)


@given(recipes, recipes)
@settings(max_examples=60)
def test_fingerprints_tell_recipes_apart(one, other):
    """Recipes with a difference that counts have different fingerprints, and a diff."""
    same = dataclasses.replace(other, mean=one.mean) == one
    assert (one.fingerprint == other.fingerprint) == same
    assert bool(one.diff(other)) == (one != other)


def test_the_default_recipe():
    """The default is what the documentation promises."""
    recipe = Recipe()
    assert recipe.size == (640, 640) and recipe.view_name == "640"
    assert {c.name: c.dtype for c in recipe.columns} == {
        "image": "uint8",
        "tensor": "uint8",
        "prob_map": "float16",
        "thresh_map": "float16",
        "prob_mask": "uint8",
        "thresh_mask": "uint8",
        "inverse_matrix": "float64",
    }
    assert {c.codec for c in recipe.columns} == {"raw"}
    assert Recipe.make() == recipe
    pixels = np.random.default_rng(0).integers(0, 256, (72, 128, 3), np.uint8)
    view, matrix = recipe.draw(pixels)
    wanted = longest_side((72, 128), (640, 640))
    assert np.array_equal(view, wanted.apply(pixels)) and np.array_equal(matrix, wanted.matrix)


def test_the_fingerprint_is_pinned():
    """A fingerprint is for ever: stores carry it. Change this only with the map algorithm."""
    assert Recipe().fingerprint == "1370e41bc42bb93154070659f9f9c6c0"
    resize = {"height": 64, "width": 96, "interpolation": 1, "mask_interpolation": 0, "p": 1.0}
    steps = [{"__class_fullname__": "Resize", **resize}]
    tree = {"__class_fullname__": "Compose", "p": 1.0, "transforms": steps}
    baked = Recipe.from_json({"pipeline": {"transform": tree}, "size": [64, 96]})
    assert baked.fingerprint == "cccd1d698d6071a8d16000600ea64cb9"


def test_mean_and_std_do_not_change_a_stored_byte():
    """They are carried and compared, but have no part in the fingerprint."""
    other = Recipe.make(mean=(0.5, 0.5, 0.5))
    assert other.fingerprint == Recipe().fingerprint
    assert other.diff(Recipe()) == ["mean: [0.5, 0.5, 0.5] -> [0.485, 0.456, 0.406]"]


def test_the_map_algorithm_is_part_of_the_fingerprint():
    """Maps drawn by another algorithm are another view."""
    other = dataclasses.replace(Recipe(), map_algorithm="db-maps/0")
    assert other.fingerprint != Recipe().fingerprint
    assert other.diff(Recipe()) == [f'map_algorithm: "db-maps/0" -> "{Recipe().map_algorithm}"']


def test_diff_names_every_field():
    """Each difference is one line with both values, nested fields by their path."""
    one = Recipe.make(maps=MapParams(shrink_ratio=0.5), columns=["tensor", "prob_map"])
    other = Recipe.make(size=(736, 1280), columns=["tensor"], codecs={"tensor": "zstd"})
    assert one.diff(other) == [
        "size: [640, 640] -> [736, 1280]",
        'columns.tensor.codec: "raw" -> "zstd"',
        'columns.prob_map: {"dtype": "float16", "codec": "raw"} -> null',
        "maps.shrink_ratio: 0.5 -> 0.4",
    ]
    assert other.view_name == "736x1280"


def test_diff_looks_into_pipelines():
    """Two pipelines differ by the argument of a transform, not as a whole."""
    one = Recipe.make(pipeline=A.Compose([A.Resize(96, 160), A.Transpose(p=1)]))
    other = Recipe.make(pipeline=A.Compose([A.Resize(98, 160), A.Transpose(p=1)]))
    assert one.diff(other) == [
        "size: [160, 96] -> [160, 98]",
        "pipeline.transforms[0].height: 96 -> 98",
    ]


def test_a_pipeline_as_geometry():
    """The pipeline decides size and pixels, and the recipe survives JSON."""
    recipe = Recipe.make(pipeline=PIPELINE, columns=["tensor", "inverse_matrix"])
    assert recipe.size == (96, 160) and recipe.geometry == "pipeline"
    assert recipe.view_name == "96x160"
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8)
    view, _ = recipe.draw(pixels)
    assert np.array_equal(view, PIPELINE(image=pixels)["image"])
    assert np.array_equal(recipe.place((50, 70)).apply(pixels), view)
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    assert Recipe.make(pipeline=A.LongestMaxSize(64)).view_name == "pipeline"


def test_a_random_pipeline_is_refused_where_the_recipe_is_made():
    """The name of the transform reaches the user."""
    with pytest.raises(SchemaError, match=r"^HorizontalFlip is random"):
        Recipe.make(pipeline=A.Compose([A.HorizontalFlip()]))


def test_recipe_files(tmp_path):
    """YAML and JSON files hold a part of a recipe; the rest is the default."""
    yaml_file, json_file = tmp_path / "r.yaml", tmp_path / "r.json"
    yaml_file.write_text(
        "size: 960\ncolumns:\n  tensor:\n  prob_map: {dtype: float32}\n  image: {codec: jpeg}\n"
        "maps: {shrink_ratio: 0.5}\n"
    )
    wanted = Recipe.make(
        size=960,
        columns=["tensor", "prob_map", "image"],
        dtypes={"prob_map": "float32"},
        codecs={"image": "jpeg"},
        maps=MapParams(shrink_ratio=0.5),
    )
    assert read_recipe(yaml_file) == wanted
    json_file.write_text(json.dumps(wanted.to_json()))
    assert read_recipe(json_file) == wanted
    yaml_file.write_text("size: [480, 640]\ncolumns: [tensor, image]\n")
    assert read_recipe(yaml_file) == Recipe.make(size=(480, 640), columns=["tensor", "image"])


def test_recipe_files_with_pipelines(tmp_path):
    """A saved pipeline is a recipe file itself, or is named by one, beside it, or stands in it."""
    A.save(PIPELINE, tmp_path / "pipeline.yaml", data_format="yaml")
    wanted = Recipe.make(pipeline=PIPELINE)
    assert read_recipe(tmp_path / "pipeline.yaml") == wanted
    recipe_file = tmp_path / "recipe.yaml"
    recipe_file.write_text(
        "pipeline: pipeline.yaml\nmaps: {min_size: 4}\nmean: [0, 0, 0]\ncolumns: {tensor: }\n"
    )
    assert read_recipe(recipe_file) == Recipe.make(
        pipeline=PIPELINE,
        maps=MapParams(min_size=4),
        mean=(0.0, 0.0, 0.0),
        columns=["tensor"],
    )
    recipe_file.write_text(json.dumps({"pipeline": A.to_dict(PIPELINE)}))
    assert read_recipe(recipe_file) == wanted


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"sise": 640}, "recipe: unknown field sise; known: size, geometry"),
        ({"size": 0}, "1 to 65536"),
        ({"size": True}, "size has to be an int or"),
        ({"size": "640"}, "an int or"),
        ({"size": [640]}, "an int or"),
        ({"size": [None, 640]}, "two ints from"),
        ({"geometry": "shrink"}, "unknown geometry 'shrink'"),
        ({"geometry": "pipeline"}, "require each other"),
        ({"interpolation": "soft"}, "unknown interpolation"),
        ({"fill": [0, 0]}, "three ints"),
        ({"fill": [0, 0, 256]}, "three ints"),
        ({"fill": 7}, "not a recipe"),
        ({"std": [0, 1, 1]}, "std above 0"),
        ({"columns": []}, "at least one"),
        ({"columns": ["tensor", "tensor"]}, "distinct"),
        ({"columns": "tensor"}, "list or a mapping"),
        ({"columns": ["tensors"]}, "unknown column 'tensors'"),
        ({"columns": {"tensor": {"dtype": "float32"}}}, "tensor has to be uint8"),
        ({"columns": {"tensor": {"kodec": "raw"}}}, "columns.tensor: unknown field kodec"),
        ({"columns": {"tensor": {"codec": "gzip"}}}, "unknown codec 'gzip'"),
        ({"columns": {"tensor": {"codec": "jpeg"}}}, "only `image`"),
        ({"maps": {"shrink": 1}}, "maps: unknown field shrink"),
        ({"maps": [1]}, "maps has to be a mapping"),
        ({"maps": {"shrink_ratio": "x"}}, "not a recipe|shrink_ratio"),
        ({"std": [1, 1, 10**400]}, "not a recipe"),
        ({"mean": [0, "inf", 0]}, "finite"),
        ({"pipeline": {"transforms": []}}, "__class_fullname__"),
        ({"pipeline": {**COMPOSE, "transforms": [{"a": 1}]}}, "a transform has no `__class"),
        ({"pipeline": {**COMPOSE, "transforms": True}}, "`transforms` is no list"),
        ({"pipeline": {**COMPOSE, "p": "often"}}, "Compose: the probability `p`"),
        ({"pipeline": [{"a": 1}]}, "a transform has no `_target_`"),
        ({"pipeline": {**NODE, "transforms": 3}}, "`transforms` is no list"),
        ({"pipeline": [{**NODE["transforms"][1], "mean": None}]}, "Normalize: mean, std or"),
        ({"pipeline": {**COMPOSE, "p": 10**400}}, "Compose: the probability `p`"),
    ],
)
def test_wrong_recipes_are_refused(described, message, tmp_path):
    """Each way a recipe can be wrong is named, from JSON and from a file."""
    with pytest.raises(SchemaError, match=message):
        Recipe.from_json(described)
    path = tmp_path / "wrong.yaml"
    path.write_text(json.dumps(described))
    with pytest.raises(SchemaError, match=r"wrong\.yaml"):
        read_recipe(path)


def test_mutated_recipes_are_refused_or_survive(tmp_path, monkeypatch):
    """Whatever a recipe file says, only a SchemaError leaves its reader."""
    monkeypatch.setattr("ocrstore.pipeline.PROBE_SIZES", ((40, 60),))
    recipe = Recipe.make(pipeline=PIPELINE).to_json()
    without_size = {name: value for name, value in recipe.items() if name != "size"}
    accepted, path = 0, tmp_path / "recipe.json"
    for number in range(400):
        rng = random.Random(number)
        forms = (Recipe().to_json(), recipe, without_size, PIPELINE.to_dict(), NODE)
        described = rng.choice(forms)
        path.write_text(json.dumps(mutate_json(described, rng)))
        with suppress(SchemaError):
            found = read_recipe(path)
            again = Recipe.from_json(json.loads(json.dumps(found.to_json())))
            assert again.fingerprint == found.fingerprint
            accepted += 1
    assert 20 < accepted < 380


def test_wrong_arguments_are_refused():
    """make() says which argument does not fit the others."""
    with pytest.raises(SchemaError, match="leave out `size`"):
        Recipe.make(size=640, pipeline=PIPELINE)
    with pytest.raises(SchemaError, match="codecs: 'image' is not one of the columns"):
        Recipe.make(columns=["tensor"], codecs={"image": "zstd"})
    with pytest.raises(
        SchemaError, match=r"columns='tensor': expected a list of names: \['tensor'\]"
    ):
        Recipe.make(columns="tensor")
    for name in ("codecs", "dtypes"):
        with pytest.raises(SchemaError, match=f"{name}='zstd': expected a mapping"):
            Recipe.make(**{name: "zstd"})


@pytest.mark.parametrize("text", ["a: [", "- 1", "3"])
def test_unreadable_recipe_files(text, tmp_path):
    """A broken file and a file of something else are named."""
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(SchemaError, match=r"r\.yaml"):
        read_recipe(path)
    with pytest.raises(SchemaError, match=r"absent\.yaml"):
        read_recipe(Path(tmp_path) / "absent.yaml")
