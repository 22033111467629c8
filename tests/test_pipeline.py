"""albumentations pipelines as geometry: what is taken, what is refused, and the matrix."""

import json
import random
import tracemalloc

import cv2
import numpy as np
import pytest

from ocrstore.errors import OCRStoreError, SchemaError
from ocrstore.geometry import longest_side, transform_points
from ocrstore.pipeline import Pipeline, check_deterministic
from ocrstore.pipeline_json import read_pipeline, to_json
from ocrstore.recipe import Recipe, read_recipe

A = pytest.importorskip("albumentations")

LETTERBOX = [
    A.LongestMaxSize(max_size=128),
    A.PadIfNeeded(128, 128, position="top_left", border_mode=cv2.BORDER_CONSTANT, fill=0),
]


class Jitter(A.ImageOnlyTransform):
    """A transform that draws from the global generator while it is applied."""

    def __init__(self, p=1.0):
        super().__init__(p=p)

    def apply(self, img, **params):
        """Shift the colours by chance."""
        return (img + np.random.randint(0, 50)).astype(np.uint8)


class Fold(A.DualTransform):
    """A transform that moves points in a way that no matrix can."""

    _targets = (A.Targets.IMAGE, A.Targets.KEYPOINTS) if hasattr(A, "Targets") else ()

    def __init__(self, p=1.0):
        super().__init__(p=p)

    def apply(self, img, **params):
        """Leave the pixels."""
        return img

    def apply_to_keypoints(self, keypoints, **params):
        """Bend x by a parabola."""
        bent = keypoints.copy()
        bent[:, 0] += 1e-4 * bent[:, 0] ** 2
        return bent


def unchanged(pixels, **_):
    """What a Lambda calls."""
    return pixels


def check(*transforms):
    """Check a sequence of transforms as a recipe would."""
    return check_deterministic(to_json(A.Compose(list(transforms))))


DETERMINISTIC = {
    "letterbox": LETTERBOX,
    "resize": [A.Resize(96, 160)],
    "crop": [A.CenterCrop(64, 64), A.HorizontalFlip(p=1)],
    "never applied": [A.Resize(96, 96), A.RandomBrightnessContrast(p=0)],
    "fixed rotation": [A.Rotate((30, 30), p=1), A.Resize(96, 96)],
    "fixed affine": [A.Affine(rotate=(5, 5), scale=(0.5, 0.5), p=1), A.CenterCrop(64, 64)],
    "gray": [A.Resize(96, 96), A.ToGray(p=1)],
    "nested": [A.Sequential([A.Transpose(p=1), A.VerticalFlip(p=1)], p=1), A.Resize(50, 60)],
}


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_pipelines_are_taken_and_their_matrix_is_right(name):
    """Points sent through the pipeline land where the derived matrix puts them."""
    transforms = DETERMINISTIC[name]
    described = to_json(A.Compose(transforms))
    size = check_deterministic(described)
    pixels = np.random.default_rng(0).integers(0, 256, (300, 500, 3), np.uint8)
    view, matrix = Pipeline(described).draw(pixels)
    assert view.shape == (*size, 3) and view.flags.c_contiguous
    points = np.random.default_rng(1).uniform(0, 300, (50, 2)).astype(np.float32)
    wanted = A.Compose(
        [*transforms, A.NoOp(p=1)],
        keypoint_params=A.KeypointParams(format="xy", remove_invisible=False),
    )(image=pixels, keypoints=points)
    assert np.array_equal(view, wanted["image"])
    assert np.allclose(transform_points(matrix, points), wanted["keypoints"], atol=2e-3)


RANDOM = {
    "HorizontalFlip": [A.HorizontalFlip()],
    "OneOf": [A.OneOf([A.Resize(9, 9), A.Resize(8, 8)], p=1)],
    "SomeOf": [A.SomeOf([A.Resize(9, 9), A.Resize(8, 8)], n=1, p=1)],
    "RandomOrder": [A.RandomOrder([A.Resize(9, 9), A.Transpose(p=1)], n=2, p=1)],
    "Sequential": [A.Sequential([A.Resize(9, 9)], p=0.3)],
    "RandomCrop": [A.RandomCrop(64, 64, p=1)],
    "RandomRotate90": [A.RandomRotate90(p=1)],
    "Rotate": [A.Rotate((-5, 5), p=1)],
    "LongestMaxSize": [A.LongestMaxSize(max_size=[100, 101])],
    "PadIfNeeded": [A.LongestMaxSize(max_size=128), A.PadIfNeeded(256, 256, position="random")],
    "RandomBrightnessContrast": [*LETTERBOX, A.RandomBrightnessContrast(p=1)],
    "CLAHE": [A.CLAHE(p=1)],
    "GaussNoise": [A.GaussNoise(p=1)],
    "D4": [A.D4(p=1)],
    "Jitter": [Jitter()],
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_pipelines_are_refused_by_name(name):
    """The message names the transform that rolls the dice, wherever it stands."""
    with pytest.raises(SchemaError, match=rf"^{name} is random"):
        check(*RANDOM[name])


HUGE = {
    "LongestMaxSize": A.LongestMaxSize(max_size=64000),
    "SmallestMaxSize": A.SmallestMaxSize(max_size_hw=(None, 64000)),
    "Resize": A.Resize(30000, 30000),
    "PadIfNeeded": A.PadIfNeeded(40000, 40000),
    "Pad": A.Pad(20000),
    "CenterCrop": A.CenterCrop(40000, 40000, pad_if_needed=True),
    "RandomScale": A.RandomScale((30, 30), p=1),
    "Affine": A.Affine(scale=40, fit_output=True, p=1),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_view_larger_than_a_row_may_be_is_refused_before_it_is_allocated(name):
    """No probe picture of gigabytes is made; numpy and OpenCV never see the size."""
    tracemalloc.start()
    try:
        with pytest.raises(SchemaError, match=rf"^{name} would make .* the limit for a view is"):
            check(HUGE[name])
        assert tracemalloc.get_traced_memory()[1] < 300e6
    finally:
        tracemalloc.stop()


def test_large_views_below_the_limit_are_accepted():
    """The bound does not refuse what fits."""
    assert check(A.LongestMaxSize(max_size=4000), A.PadIfNeeded(4000, 4000)) == (4000, 4000)


def test_checking_leaves_the_global_generators_alone():
    """A check seeds the global generators and puts them back."""
    random.seed(5)
    np.random.seed(5)
    check(*LETTERBOX)
    drawn = (random.random(), np.random.random())
    random.seed(5)
    np.random.seed(5)
    assert drawn == (random.random(), np.random.random())


@pytest.mark.parametrize(
    ("name", "transforms"),
    [
        ("OpticalDistortion", [A.OpticalDistortion(distort_limit=(0.3, 0.3), p=1)]),
        ("Fold", [Fold()]),
    ],
)
def test_non_projective_pipelines_are_refused_by_name(name, transforms):
    """A view whose points no matrix can map back is refused."""
    with pytest.raises(SchemaError, match=f"{name} cannot be part of a recipe.*projective"):
        check(A.Resize(200, 200), *transforms)


def test_a_perspective_matrix_is_found():
    """Four corners decide a projective map, and the rest of the grid agrees."""
    from ocrstore.pipeline import fit_matrix, grid_points

    wanted = np.array([[0.9, 0.05, 3], [-0.02, 1.1, 7], [1e-4, -5e-5, 1]])
    points = grid_points((300, 500))
    assert np.allclose(fit_matrix(points, transform_points(wanted, points)), wanted, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "transforms"), [("Normalize", [A.Normalize()]), ("ToFloat", [A.ToFloat(p=1)])]
)
def test_pipelines_that_leave_uint8_are_refused_by_name(name, transforms):
    """Normalising is not geometry; the message says where it belongs."""
    with pytest.raises(SchemaError, match=f"{name} makes float32.*mean and std"):
        check(A.Resize(64, 64), *transforms)


def test_a_pipeline_may_make_views_of_varying_size():
    """Without padding the size depends on the picture, and the check says so."""
    assert check(A.LongestMaxSize(max_size=128)) == (None, None)
    assert check(A.LongestMaxSize(max_size_hw=(128, None))) == (128, None)


def test_a_crop_larger_than_some_probes_is_taken():
    """A transform that needs large pictures is not refused for the small probe's sake."""
    assert check(A.Crop(0, 0, 700, 700)) == (700, 700)
    with pytest.raises(SchemaError, match="Crop failed on a probe"):
        check(A.Crop(5000, 5000, 6000, 6000))


def test_the_saved_forms_are_the_same_pipeline(tmp_path):
    """Python object, to_dict, YAML file and JSON file give one canonical text."""
    pipeline = A.Compose(LETTERBOX, keypoint_params=A.KeypointParams(format="xy"))
    A.save(pipeline, tmp_path / "p.yaml", data_format="yaml")
    A.save(pipeline, tmp_path / "p.json", data_format="json")
    texts = {
        to_json(pipeline),
        to_json(A.to_dict(pipeline)),
        read_pipeline(tmp_path / "p.yaml"),
        read_pipeline(tmp_path / "p.json"),
    }
    assert len(texts) == 1
    assert json.loads(texts.pop())["transforms"][0]["max_size"] == 128


def test_a_letterbox_pipeline_is_the_builtin_geometry():
    """The same view comes from the built-in geometry and from the pipeline it stands for."""
    pixels = np.random.default_rng(0).integers(0, 256, (333, 211, 3), np.uint8)
    view, matrix = Pipeline(to_json(A.Compose(LETTERBOX))).draw(pixels)
    builtin = longest_side((333, 211), (128, 128))
    assert np.array_equal(view, builtin.apply(pixels))
    assert np.allclose(matrix, builtin.matrix, atol=1e-6)
    geometry = Pipeline(to_json(A.Compose(LETTERBOX))).geometry((333, 211))
    assert np.array_equal(geometry.apply(pixels), view)


def test_a_single_transform_will_do():
    """A transform outside of a composition is a pipeline of one."""
    view, _ = Pipeline(to_json(A.Resize(20, 30))).draw(np.zeros((40, 50, 3), np.uint8))
    assert view.shape == (20, 30, 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (42, "not 42"),
        ({"transforms": []}, "__class_fullname__"),
        (A.Compose([A.Lambda(image=unchanged, p=1)]), "cannot be serialised"),
        (A.Resize(20, 30).to_dict() | {"transform": [1]}, "__class_fullname__"),
        ({"__class_fullname__": "Resize", "width": float("nan")}, "are not JSON"),
    ],
)
def test_what_is_no_pipeline_is_refused(given, message):
    """Things that are no pipeline, or cannot be serialised, get a message that says so."""
    with pytest.raises(SchemaError, match=message):
        to_json(given)


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ('{"__class_fullname__": "NoSuch", "p": 1}', "no transform named 'NoSuch'"),
        ('{"__class_fullname__": "no.such.Module", "p": 1}', "--allow-module no.such"),
        ('{"__class_fullname__": "HorizontalFlip", "p": 1, "size": 4}', "unknown argument size"),
        ('{"__class_fullname__": "Resize", "height": "x", "width": 4, "p": 1}', "cannot be made"),
    ],
)
def test_descriptions_that_cannot_be_made_are_refused(described, message):
    """An unknown transform or wrong arguments name the reason."""
    with pytest.raises(SchemaError, match=message):
        Pipeline(described)


def test_unreadable_pipeline_files(tmp_path):
    """A missing, broken or unrelated file is named in the message."""
    broken, other = tmp_path / "broken.yaml", tmp_path / "list.yaml"
    broken.write_text("a: [")
    other.write_text("- 1\n- 2\n")
    for path in (tmp_path / "absent.yaml", broken, other):
        with pytest.raises(SchemaError, match=path.name):
            read_pipeline(path)


def test_a_picture_the_pipeline_cannot_take():
    """A failure on one picture is an ocrstore error with its size, for the build's report."""
    pipeline = Pipeline(to_json(A.Crop(0, 0, 64, 64)))
    with pytest.raises(OCRStoreError, match="20x10 pixels"):
        pipeline.draw(np.zeros((10, 20, 3), np.uint8))


NORMALIZE = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.3]}


def validation(*, tail=("Normalize", "ToTensorV2")):
    """Return the validation transform that most projects have, as a Hydra node."""
    steps = {
        "Normalize": {"_target_": "albumentations.Normalize", **NORMALIZE},
        "ToTensorV2": {"_target_": "albumentations.pytorch.transforms.ToTensorV2"},
    }
    return {
        "_target_": "albumentations.Compose",
        "_convert_": "all",
        "keypoint_params": {"_target_": "albumentations.KeypointParams", "format": "xy"},
        "transforms": [
            {"_target_": "albumentations.LongestMaxSize", "max_size": 64},
            {
                "_target_": "albumentations.PadIfNeeded",
                "min_height": 64,
                "min_width": 64,
                "border_mode": 0,
                "position": "top_left",
            },
            *(steps[name] for name in tail),
        ],
    }


def composed():
    """Return the same as an object."""
    from albumentations.pytorch import ToTensorV2

    pad = A.PadIfNeeded(64, 64, border_mode=0, position="top_left")
    return A.Compose([A.LongestMaxSize(64), pad, A.Normalize(**NORMALIZE), ToTensorV2()])


def test_a_validation_transform_in_every_form(tmp_path):
    """Object, dict, YAML, JSON, Hydra node and file are one recipe, which draws as `longest`."""
    import yaml

    pytest.importorskip("torch")
    made = composed()
    paths = [
        tmp_path / name for name in ("a.yaml", "a.json", "node.yaml", "list.yaml", "both.yaml")
    ]
    A.save(made, paths[0], data_format="yaml")
    A.save(made, paths[1], data_format="json")
    paths[2].write_text(yaml.safe_dump(validation()))
    paths[3].write_text(yaml.safe_dump(validation()["transforms"]))
    paths[4].write_text("pipeline: node.yaml\n")
    recipes = [Recipe.make(pipeline=made), Recipe.make(pipeline=made.to_dict())]
    recipes += [Recipe.make(pipeline=validation()), *map(read_recipe, paths)]
    assert len({recipe.fingerprint for recipe in recipes}) == 1
    for recipe in recipes:
        assert recipe.mean == (0.5, 0.4, 0.3) and recipe.std == (0.2, 0.25, 0.3)
        assert recipe.size == (64, 64)
        assert recipe.made_with == f"albumentations {A.__version__}"
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)
    for one, other in zip(recipes[-1].draw(pixels), Recipe.make(size=64).draw(pixels), strict=True):
        assert np.allclose(one, other, rtol=1e-6, atol=0)  # its points are float32


def test_a_tail_changes_no_fingerprint():
    """The pixels are those of the pipeline without it, and so is the recipe."""
    plain = Recipe.make(pipeline=validation(tail=()))
    baked = Recipe.make(pipeline=validation())
    assert plain.fingerprint == baked.fingerprint
    assert baked.diff(plain) == [
        "mean: [0.5, 0.4, 0.3] -> [0.485, 0.456, 0.406]",
        "std: [0.2, 0.25, 0.3] -> [0.229, 0.224, 0.225]",
    ]
    known = {**plain.to_json(), "made_with": "albumentations 1.3.1"}
    assert Recipe.from_json(known).fingerprint == plain.fingerprint


def test_pixels_of_another_range():
    """`max_pixel_value` is taken into mean and std, which are of pixels from 0 to 1."""
    node = validation()
    node["transforms"][2]["max_pixel_value"] = 51.0
    recipe = Recipe.make(pipeline=node)
    assert recipe.mean == pytest.approx((0.1, 0.08, 0.06))
    assert recipe.std == pytest.approx((0.04, 0.05, 0.06))


def test_omegaconf_nodes_are_taken_and_resolved():
    """A node of a config is read with its interpolations; unresolved text is refused."""
    omegaconf = pytest.importorskip("omegaconf")
    node = validation()
    node["transforms"][0]["max_size"] = "${size}"
    config = omegaconf.OmegaConf.create({"size": 64, "transform": node})
    expected = Recipe.make(pipeline=validation()).fingerprint
    assert Recipe.make(pipeline=config.transform).fingerprint == expected
    with pytest.raises(SchemaError, match="resolve the node first"):
        Recipe.make(pipeline=node)


def wrong_tail(change):
    """Return a node with one change."""
    node = validation()
    change(node["transforms"])
    return node


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (lambda: validation(tail=("ToTensorV2", "Normalize")), "Normalize after ToTensorV2"),
        (lambda: validation(tail=("Normalize", "Normalize")), "Normalize is there twice"),
        (lambda: wrong_tail(lambda steps: steps.insert(0, steps.pop(2))), "Normalize cannot be"),
        (lambda: wrong_tail(lambda steps: steps.insert(1, steps.pop())), "ToTensorV2 cannot be"),
        (lambda: wrong_tail(lambda steps: steps[2].update(p=0.5)), "Normalize cannot be baked"),
        (
            lambda: wrong_tail(lambda steps: steps[2].update(normalization="min_max")),
            "depends on the picture",
        ),
        (lambda: wrong_tail(lambda steps: steps[0].update(sizes=3)), "unknown argument sizes"),
        (lambda: wrong_tail(lambda steps: steps[0].update(_partial_=True)), "_partial_ cannot be"),
        (
            lambda: wrong_tail(lambda steps: steps[0].update(_target_="os.system")),
            "not a transform of albumentations",
        ),
        (
            lambda: wrong_tail(
                lambda steps: steps.insert(0, {"_target_": "albumentations.HorizontalFlip"})
            ),
            "HorizontalFlip is random",
        ),
    ],
)
def test_what_cannot_be_baked_is_refused_by_name(node, message):
    """Nothing of the description is imported or run."""
    with pytest.raises(SchemaError, match=message):
        Recipe.make(pipeline=node())


def test_mean_of_the_recipe_and_of_the_pipeline_must_agree(tmp_path):
    """Two different ones are an error, equal ones are not."""
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"pipeline": validation(), "mean": [0.5, 0.4, 0.3]}))
    assert read_recipe(path).std == (0.2, 0.25, 0.3)
    path.write_text(json.dumps({"pipeline": validation(), "mean": [0.1, 0.1, 0.1]}))
    with pytest.raises(SchemaError, match="leave out one of them"):
        read_recipe(path)


def test_files_of_version_1(tmp_path):
    """Its names of arguments are understood; the position that it does not save is asked for."""
    pad = {"__class_fullname__": "PadIfNeeded", "always_apply": False, "p": 1.0, "border_mode": 0}
    pad |= {"min_height": 64, "min_width": 64, "value": [1, 2, 3], "mask_value": None}
    resize = {"__class_fullname__": "LongestMaxSize", "always_apply": True, "p": 0.5}
    steps = [{**resize, "max_size": 64, "interpolation": 1}, pad]
    saved = {"__class_fullname__": "Compose", "p": 1.0, "transforms": steps}
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"__version__": "1.3.1", "transform": saved}))
    with pytest.raises(SchemaError, match="Add `position: top_left`"):
        read_recipe(path)
    pad["position"] = "top_left"
    path.write_text(json.dumps({"__version__": "1.3.1", "transform": saved}))
    drawn, _ = read_recipe(path).draw(np.zeros((30, 60, 3), np.uint8))
    assert drawn.shape == (64, 64, 3)
    assert drawn[-1, -1].tolist() == [1, 2, 3] and not drawn[:32].any()
