"""albumentations pipelines as geometry: what is taken, what is refused, and the matrix."""

import json
import random

import cv2
import numpy as np
import pytest

from ocrstore.errors import OCRStoreError, SchemaError
from ocrstore.geometry import longest_side, transform_points
from ocrstore.pipeline import Pipeline, check_deterministic, read_pipeline, to_json

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
