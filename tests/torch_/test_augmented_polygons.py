"""Polygons stay on their pixels through every transform of albumentations, or it is refused.

The picture encodes its own coordinates: red is x, green is y, blue is 255. So the pixel under each
vertex of the result tells which point of the source it shows.
"""

import copy
import os
import random
import warnings
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import ocrstore
from ocrstore.annotation import Annotation
from ocrstore.augment import random_parts
from ocrstore.torch import OCRStoreDataset
from ocrstore.torch.augmented import Augmentation

A = pytest.importorskip("albumentations")

HEIGHT, WIDTH = 180, 230
BORDERS = {
    "constant": cv2.BORDER_CONSTANT,
    "replicate": cv2.BORDER_REPLICATE,
    "reflect": cv2.BORDER_REFLECT,
    "reflect_101": cv2.BORDER_REFLECT_101,
    "wrap": cv2.BORDER_WRAP,
}
ARGUMENTS = {
    "AtLeastOneBBoxRandomCrop": {"height": 50, "width": 50},
    "CenterCrop": {"height": 90, "width": 100},
    "CenterCrop3D": {"size": (2, 50, 50)},
    "Crop": {"x_min": 20, "y_min": 30, "x_max": 150, "y_max": 150},
    "CropAndPad": {"px": (-20, 20)},
    "CropNonEmptyMaskIfExists": {"height": 50, "width": 50},
    "GridElasticDeform": {"num_grid_xy": (4, 4), "magnitude": 5},
    "LongestMaxSize": {"max_size": 120},
    "Pad": {"padding": 20},
    "Pad3D": {"padding": 2},
    "PadIfNeeded": {"min_height": HEIGHT + 60, "min_width": WIDTH + 40},
    "PadIfNeeded3D": {"min_zyx": (2, 50, 50)},
    "RandomCrop": {"height": 90, "width": 100},
    "RandomCrop3D": {"size": (2, 50, 50)},
    "RandomResizedCrop": {"size": (90, 100)},
    "RandomSizedBBoxSafeCrop": {"height": 50, "width": 50},
    "RandomSizedCrop": {"min_max_height": (100, 120), "size": (90, 100)},
    "Resize": {"height": 90, "width": 100},
    "SmallestMaxSize": {"max_size": 120},
    "TextImage": {"font_path": __file__},
}
BASES = {"BasicTransform", "DualTransform", "ImageOnlyTransform", "Transform3D"}
NAMES = [
    name
    for name, kind in sorted(vars(A).items())
    if isinstance(kind, type) and issubclass(kind, A.BasicTransform) and name not in BASES
]
NEED_MORE = {
    "AtLeastOneBBoxRandomCrop",
    "BBoxSafeRandomCrop",
    "CenterCrop3D",
    "CoarseDropout3D",
    "CropNonEmptyMaskIfExists",
    "CubicSymmetry",
    "FDA",
    "HistogramMatching",
    "MaskDropout",
    "Mosaic",
    "OverlayElements",
    "Pad3D",
    "PadIfNeeded3D",
    "PixelDistributionAdaptation",
    "RandomCrop3D",
    "RandomCropNearBBox",
    "RandomSizedBBoxSafeCrop",
    "TextImage",
}
"""Transforms that read boxes, masks, volumes or other pictures."""


def make(name, **options):
    """Return a transform that always happens."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(A, name)(**{**ARGUMENTS.get(name, {}), **options, "p": 1})


def coordinates(height=HEIGHT, width=WIDTH):
    """Return the picture that encodes its own coordinates."""
    picture = np.full((height, width, 3), 255, np.uint8)
    picture[..., 0] = np.arange(width)
    picture[..., 1] = np.arange(height)[:, None]
    return picture


def some_polygons(seed, count=8, height=HEIGHT, width=WIDTH):
    """Return an annotation; each text is the number of its polygon."""
    rng = np.random.default_rng(seed)
    polygons = []
    for _ in range(count):
        x, y = rng.uniform(1, width - 50), rng.uniform(1, height - 30)
        w, h = rng.uniform(20, 46), rng.uniform(12, 26)
        polygons.append(np.array([(x, y), (x + w, y), (x + w, y + h), (x, y + h)], np.float32))
    return Annotation(polygons, [False] * count, [str(number) for number in range(count)])


def run(transform, *, seed=0, fuse=True):
    """Return an annotation and what a transform makes of it."""
    given = some_polygons(seed)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Augmentation(transform, fuse=fuse)(coordinates(), given, row=seed)
    return given, made


def count_right(given, made):
    """Return the number of vertices on their pixels; fail if one is elsewhere.

    Pixels of a border or a hole are not blue. A pixel may be off by what its neighbours differ,
    and by half a pixel for each time the picture was resized.
    """
    picture = np.asarray(made.image).astype(np.int64)
    height, width = picture.shape[:2]
    right = 0
    for polygon, text in zip(made.annotation.polygons, made.annotation.texts, strict=True):
        source = given.polygons[int(text)]
        assert polygon.shape == source.shape
        for (x, y), point in zip(polygon.tolist(), source, strict=True):
            column, row = round(x), round(y)
            if not (1 <= column < width - 1 and 1 <= row < height - 1):
                continue
            around = picture[row - 1 : row + 2, column - 1 : column + 2].reshape(9, 3)
            if around[:, 2].min() < 200:
                continue
            low, high = around[:, :2].min(axis=0) - 2.5, around[:, :2].max(axis=0) + 2.5
            assert (low <= point).all(), f"polygon {text}: {point} is not at ({x}, {y})"
            assert (point <= high).all(), f"polygon {text}: {point} is not at ({x}, {y})"
            right += 1
    return right


@pytest.mark.parametrize("name", NAMES)
def test_every_transform_keeps_polygons_on_their_pixels(name):
    """Each one alone, planned and step by step: right, or refused before the first picture."""
    transform = make(name)
    if name in NEED_MORE or name == "RandomGridShuffle":
        with pytest.raises(ocrstore.SchemaError, match=f"{name} (needs|cuts)"):
            Augmentation(transform)
        return
    for fuse in (True, False):
        given, made = run(transform, fuse=fuse)
        if isinstance(transform, A.ImageOnlyTransform):
            assert np.array_equal(made.annotation.polygons, given.polygons)
        else:
            assert count_right(given, made) >= 3


BORDERED = [
    "Affine",
    "CenterCrop",
    "CropAndPad",
    "Pad",
    "PadIfNeeded",
    "Perspective",
    "RandomCrop",
    "Rotate",
    "SafeRotate",
    "ShiftScaleRotate",
]


def bordered(name, border):
    """Return a transform whose border is seen."""
    options = {"border_mode": BORDERS[border]}
    if name.endswith(("RandomCrop", "CenterCrop")):
        options |= {"height": HEIGHT + 30, "width": WIDTH + 24, "pad_if_needed": True}
    if name == "Affine":
        options |= {"rotate": (-20, 20), "scale": (0.6, 0.8), "translate_percent": (-0.1, 0.1)}
    return make(name, **options)


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("name", BORDERED)
def test_borders_do_not_move_polygons(name, border):
    """Mirrored copies of points are told from the originals: all polygons are there, and right."""
    for seed in range(3):
        given, made = run(bordered(name, border), seed=seed, fuse=seed % 2 == 0)
        assert len(made.annotation.texts) >= 6
        assert count_right(given, made) >= 20


DISTORTIONS = {
    "elastic": lambda: A.ElasticTransform(alpha=300, sigma=10, p=1),
    "rough elastic": lambda: A.ElasticTransform(alpha=100, sigma=4, p=1),
    "grid": lambda: A.GridDistortion(distort_limit=0.8, p=1),
    "barrel": lambda: A.OpticalDistortion((0.7, 0.9), p=1),
    "pincushion": lambda: A.OpticalDistortion((-0.9, -0.7), p=1),
    "fisheye": lambda: A.OpticalDistortion((-0.9, 0.9), mode="fisheye", p=1),
    "piecewise": lambda: A.PiecewiseAffine(scale=(0.1, 0.1), p=1),
    "spline": lambda: A.ThinPlateSpline(scale_range=(0.3, 0.3), p=1),
    "mesh": lambda: A.GridElasticDeform((4, 4), 9, p=1),
    "folded mesh": lambda: A.GridElasticDeform((10, 10), 30, p=1),
}


@pytest.mark.parametrize("name", DISTORTIONS)
def test_strong_distortions_are_right_or_refused(name):
    """Points follow the pixels wherever there is one place for them."""
    right = 0
    for seed in range(3):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PiecewiseAffine is slow
                transform = DISTORTIONS[name]()
            right += count_right(*run(transform, seed=seed))
        except ocrstore.SchemaError as exc:
            assert "folds the picture" in str(exc)
            assert name in ("folded mesh", "spline", "rough elastic")
    assert right >= 30 or name == "folded mesh"


@pytest.mark.parametrize("method", ["mask", "direct"])
def test_a_point_outside_of_a_distortion_stays_outside(method):
    """Points beyond the edge move with the edge; albumentations moves them onto it."""
    polygon = np.array([(-30, 20), (40, 20), (40, 60), (-30, 60)], np.float32)
    transform = A.OpticalDistortion((0.3, 0.3), keypoint_remapping_method=method, p=1)
    made = Augmentation(transform)(coordinates(), Annotation([polygon], [False], [""]), row=0)
    assert (made.annotation.polygons[0][[0, 3], 0] < -10).all()
    assert (made.annotation.polygons[0][[1, 2], 0] > 20).all()


def random_step(rng):
    """Return any transform that moves pixels, with any border."""
    border = BORDERS[rng.choice(sorted(BORDERS))]
    side = rng.randint(70, 260)
    return rng.choice(
        [
            lambda: A.HorizontalFlip(),
            lambda: A.Transpose(),
            lambda: A.D4(),
            lambda: A.RandomRotate90(),
            lambda: A.Pad((5, 11, 17, 23), border_mode=border),
            lambda: A.PadIfNeeded(side, side, position="random", border_mode=border),
            lambda: A.RandomCrop(side, side, pad_if_needed=True, border_mode=border),
            lambda: A.CenterCrop(side, side, pad_if_needed=True, border_mode=border),
            lambda: A.CropAndPad(px=(-20, 20), border_mode=border),
            lambda: A.Affine(scale=(0.7, 1.3), rotate=(-30, 30), border_mode=border, p=1),
            lambda: A.Affine(shear=(-10, 10), fit_output=True, border_mode=border),
            lambda: A.Rotate(40, border_mode=border, crop_border=rng.random() < 0.3),
            lambda: A.SafeRotate(40, border_mode=border),
            lambda: A.Perspective(border_mode=border),
            lambda: A.Resize(side, 330 - side),
            lambda: A.RandomScale((-0.3, 0.3)),
            lambda: A.OpticalDistortion(border_mode=border),
            lambda: A.GridDistortion(border_mode=border),
            lambda: A.CoarseDropout(),
        ]
    )()


def random_pipeline(seed):
    """Return a composition of one to four steps, some of them chosen at random."""
    rng = random.Random(seed)
    steps = [random_step(rng) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.3:
        steps.append(A.OneOf([random_step(rng), random_step(rng)], p=1))
    if rng.random() < 0.2:
        steps.append(A.SomeOf([random_step(rng), steps[0]], n=2, p=1))
    return A.Compose(steps)


def check_pipeline(seed):
    """Check one random pipeline, planned and step by step; return the vertices that were right."""
    pipeline = random_pipeline(seed)
    found = []
    for fuse in (True, False):
        given, made = run(copy.deepcopy(pipeline), seed=seed, fuse=fuse)
        found.append(made)
    planned, stepped = found
    # the same without borders, where every pixel that is seen is an original
    plain = copy.deepcopy(pipeline)
    for part in random_parts(plain):
        if hasattr(part, "border_mode"):
            part.border_mode = cv2.BORDER_CONSTANT
    _, bare = run(plain, seed=seed)
    assert np.array_equal(planned.inverse_matrix, bare.inverse_matrix, equal_nan=True)
    assert all(map(np.array_equal, planned.annotation.polygons, bare.annotation.polygons))
    assert np.array_equal(planned.image, stepped.image)
    assert np.array_equal(planned.inverse_matrix, stepped.inverse_matrix, equal_nan=True)
    assert planned.annotation.texts == stepped.annotation.texts
    for mine, other in zip(planned.annotation.polygons, stepped.annotation.polygons, strict=True):
        assert np.array_equal(mine, other)
    return count_right(given, bare)


def test_random_compositions():
    """Some pipelines; the slow tests have many more."""
    assert sum(check_pipeline(seed) for seed in range(60)) > 500


@pytest.mark.slow
def test_many_random_compositions():
    """Crops, pads, warps and distortions in any order and with any border."""
    assert sum(check_pipeline(seed) for seed in range(60, 1500)) > 10_000


def test_an_object_that_is_there_twice_has_one_generator():
    """The same transforms and compositions, used twice, draw the same with and without a plan."""
    flip, crop = A.HorizontalFlip(p=0.5), A.RandomCrop(150, 150)
    inner = A.OneOf([A.VerticalFlip(p=1), A.Rotate(30, p=1)], p=0.5)
    pipeline = A.Compose([flip, inner, crop, A.Sequential([inner, flip], p=0.7)])
    for seed in range(12):
        planned, stepped = (run(pipeline, seed=seed, fuse=fuse)[1] for fuse in (True, False))
        assert np.array_equal(planned.image, stepped.image)
        assert np.array_equal(planned.inverse_matrix, stepped.inverse_matrix)


@pytest.mark.parametrize("nested", [False, True])
def test_subclasses_of_a_composition_do_what_they_do(nested):
    """ReplayCompose works, and what a subclass adds is not lost; the object stays as it was."""

    class Marking(A.Compose):
        def __call__(self, **data):
            data = super().__call__(**data)
            data["image"] = data["image"].copy()
            data["image"][0, 0] = 7
            return data

    for kind in (A.ReplayCompose, Marking):
        pad = A.PadIfNeeded(HEIGHT, WIDTH + 40, border_mode=cv2.BORDER_REFLECT_101, p=1)
        own = kind([pad, A.HorizontalFlip(p=1)])
        given, made = run(A.Compose([own]) if nested else own)
        assert count_right(given, made) == 32
        assert (made.image[0, 0] == 7).all() == (kind is Marking)
        assert own.main_compose or nested


def test_parts_of_a_replay_alone_are_refused():
    """What was put into a ReplayCompose runs nowhere else."""
    flip = A.ReplayCompose([A.HorizontalFlip(p=1)]).transforms[0]
    with pytest.raises(ocrstore.SchemaError, match="HorizontalFlip is part of a ReplayCompose"):
        Augmentation(A.Compose([flip]))


def test_channels_that_move_alone_are_refused():
    """A transform of some channels moves no keypoints."""
    with pytest.raises(ocrstore.SchemaError, match="SelectiveChannelTransform moves the pixels"):
        Augmentation(A.Compose([A.SelectiveChannelTransform([A.HorizontalFlip(p=1)])]))
    Augmentation(A.SelectiveChannelTransform([A.OneOf([A.InvertImg(), A.RandomGamma()])]))


class Reverses(A.NoOp):
    """Returns keypoints in another order."""

    def apply_to_keypoints(self, keypoints, **params):
        """Do what the class says."""
        return keypoints[::-1]


class Drops(A.NoOp):
    """Returns the keypoints that it likes."""

    def apply_to_keypoints(self, keypoints, **params):
        """Do what the class says."""
        return keypoints[3:]


class Doubles(A.NoOp):
    """Returns each keypoint twice."""

    def apply_to_keypoints(self, keypoints, **params):
        """Do what the class says."""
        return np.concatenate([keypoints, keypoints])


class Swaps(A.NoOp):
    """Returns as many as it got: some are copies."""

    def apply_to_keypoints(self, keypoints, **params):
        """Do what the class says."""
        return np.concatenate([keypoints[:1], keypoints[:-1]])


@pytest.mark.parametrize("fuse", [True, False])
def test_own_transforms_are_checked_point_by_point(fuse):
    """Another order is put right; lost and doubled points are refused with the transform's name."""
    given, made = run(A.Compose([Reverses(p=1), A.HorizontalFlip(p=1)]), fuse=fuse)
    assert count_right(given, made) == 32
    for kind, message in (
        (Drops, "Drops dropped 3 of 40 keypoints"),
        (Doubles, "Doubles returned 80 keypoints for 40"),
        (Swaps, "Swaps dropped 1 of 40 keypoints"),
    ):
        with pytest.raises(ocrstore.SchemaError, match=message):
            run(A.Compose([A.HorizontalFlip(p=1), kind(p=1)]), fuse=fuse)


def test_callables_with_mirrored_points_are_refused():
    """A composition inside of a function is not seen; its mirrored points are found out."""
    inner = A.Compose(
        [A.Pad((20, 0), border_mode=cv2.BORDER_REFLECT_101, p=1)],
        keypoint_params=A.KeypointParams("xy", remove_invisible=False),
    )
    for x in range(0, WIDTH - 30, 4):
        polygon = np.array([(x, 9), (x + 25, 9), (x + 25, 30), (x, 30)], np.float32)
        with pytest.raises(ocrstore.SchemaError, match=r"keypoints (for|in another order)"):
            Augmentation(lambda image, keypoints: inner(image=image, keypoints=keypoints))(
                coordinates(), Annotation([polygon], [False], [""]), row=0
            )


@pytest.mark.pictures
@pytest.mark.parametrize("fuse", [True, False])
def test_reflected_borders_of_real_pictures(fuse):
    """96 photographs: each polygon is where it was, moved by the padding."""
    folder = Path(os.environ.get("OCRSTORE_PICTURES", "")) / "icdar2015"
    if not folder.is_dir():
        pytest.skip("set OCRSTORE_PICTURES")
    from ocrstore.sources import open_source

    samples = [sample for sample in open_source(folder) if sample.polygons][:96]
    checked = 0
    for sample in samples:
        picture = cv2.imread(str(sample.path))
        height, width = picture.shape[:2]
        points = [np.asarray(polygon.points, np.float32) for polygon in sample.polygons]
        given = Annotation(points, [False] * len(points), [str(i) for i in range(len(points))])
        pad = A.PadIfNeeded(height, width + 40, border_mode=cv2.BORDER_REFLECT_101, p=1)
        made = Augmentation(pad, fuse=fuse)(picture, given, row=0)
        assert made.annotation.texts == given.texts
        for mine, source in zip(made.annotation.polygons, points, strict=True):
            assert np.allclose(mine, source + np.float32((20, 0)), atol=1e-3)
        assert np.allclose(made.inverse_matrix, [[1, 0, -20], [0, 1, 0], [0, 0, 1]], atol=1e-6)
        checked += len(points)
    assert len(samples) == 96 and checked > 500


def test_refusals_name_store_and_transform(store_path):
    """What cannot be used is refused when the data set is made."""
    with pytest.raises(ocrstore.SchemaError, match="BBoxSafeRandomCrop needs 'bboxes'"):
        OCRStoreDataset(store_path, transform=A.Compose([A.BBoxSafeRandomCrop()]))
