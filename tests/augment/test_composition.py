"""A planned composition gives what albumentations gives, bit for bit, for any pipeline and seed."""

import copy
import os
import random
import warnings
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

A = pytest.importorskip("albumentations")

from ocrstore.augment import PlannedComposition, can_plan, composition, random_parts
from ocrstore.augment import warp as warping


def compose(transforms, **options):
    """Return a composition that carries keypoints."""
    params = A.KeypointParams(format="xy", remove_invisible=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return A.Compose(transforms, keypoint_params=params, **options)


def seed_all(parts, seed):
    """Give each part random numbers of its own, the same for the same seed and order."""
    for number, part in enumerate(parts):
        part.random_generator = np.random.default_rng((seed, number))
        part.py_random = random.Random(1000 * seed + number)


def draw_picture(height, width, seed=0):
    """Return noise with some large areas, read-only."""
    rng = np.random.default_rng(seed)
    picture = rng.integers(0, 256, (height, width, 3), np.uint8)
    picture[: height // 3, : width // 2] = rng.integers(0, 256, 3)
    picture.flags.writeable = False
    return picture


def both(transforms, picture, seed, **options):
    """Return what a composition gives, and what its plan gives; copies of the same transforms."""
    height, width = picture.shape[:2]
    points = np.array([(3, 4), (width - 5, 7), (width / 2, height / 3), (9.5, height - 2)])
    points = points.astype(np.float32)
    plain = compose(copy.deepcopy(transforms), **options)
    planned = PlannedComposition(compose(copy.deepcopy(transforms), **options))
    seed_all(random_parts(plain), seed)
    seed_all(planned.parts, seed)
    expected = plain(image=picture.copy(), keypoints=points)
    found = planned(image=picture, keypoints=points)
    return expected, found


def assert_same(transforms, picture, seed, **options):
    """Check pixels and keypoints for equality."""
    expected, found = both(transforms, picture, seed, **options)
    assert np.array_equal(found["keypoints"], expected["keypoints"], equal_nan=True)
    mine, theirs = found["image"], expected["image"]
    assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
    assert np.array_equal(mine, theirs)
    if isinstance(mine, np.ndarray):
        assert mine.flags.writeable and not np.may_share_memory(mine, picture)
    return mine


BORDERS = st.sampled_from([cv2.BORDER_CONSTANT, cv2.BORDER_REPLICATE])
SIDES = st.integers(20, 90)
FILLS = st.sampled_from([0, 7, 130.0, (1.0, 2.0, 250.0)])
LAYING = st.sampled_from(
    [
        A.HorizontalFlip(p=0.6),
        A.VerticalFlip(p=0.6),
        A.Transpose(p=0.6),
        A.RandomRotate90(p=0.9),
        A.NoOp(),
    ]
)
WARPS = st.one_of(
    st.builds(
        A.Affine,
        rotate=st.just((-40, 40)),
        scale=st.sampled_from([(1, 1), (0.5, 2.0)]),
        shear=st.sampled_from([(0, 0), (-15, 15)]),
        translate_percent=st.sampled_from([None, (-0.2, 0.2)]),
        border_mode=BORDERS,
        fill=FILLS,
        fit_output=st.booleans(),
        interpolation=st.sampled_from([1, 1, 1, 0, 2]),
        p=st.just(1),
    ),
    st.builds(
        A.Rotate,
        limit=st.just((-90, 90)),
        border_mode=BORDERS,
        fill=FILLS,
        crop_border=st.booleans(),
        p=st.just(0.9),
    ),
    st.builds(A.SafeRotate, limit=st.just((-90, 90)), border_mode=BORDERS, p=st.just(1)),
)
CROPS = st.one_of(
    *(
        st.builds(
            kind,
            height=SIDES,
            width=SIDES,
            pad_if_needed=st.just(True),
            border_mode=BORDERS,
            fill=FILLS,
            pad_position=st.sampled_from(["center", "top_left", "random"]),
        )
        for kind in (A.RandomCrop, A.CenterCrop)
    ),
    st.just(A.Crop(3, 5, 19, 18, pad_if_needed=True)),
)
PADS = st.one_of(
    st.builds(
        A.PadIfNeeded,
        min_height=st.integers(20, 300),
        min_width=st.integers(20, 300),
        position=st.sampled_from(["center", "random", "bottom_right"]),
        border_mode=BORDERS,
        fill=FILLS,
    ),
    st.builds(A.Pad, padding=st.sampled_from([0, 9, (3, 8), (1, 2, 3, 40)]), fill=FILLS),
)
COLOURS = st.sampled_from(
    [
        A.ColorJitter(p=0.9),
        A.ColorJitter(brightness=0, contrast=0.4, saturation=0, hue=0, p=1),
        A.RandomBrightnessContrast(p=0.9),
        A.RandomBrightnessContrast(brightness_by_max=False, p=0.9),
        A.RandomGamma(p=0.9),
        A.HueSaturationValue(p=0.9),
        A.InvertImg(p=0.5),
        A.Solarize(p=0.5),
    ]
)
UNKNOWN = st.sampled_from(
    [
        A.GaussNoise(p=0.5),
        A.GaussianBlur(p=0.5),
        A.Resize(77, 91),
        A.Perspective(p=0.7),
        A.CLAHE(p=0.5),
        A.CoarseDropout(p=0.5),
        A.Normalize(p=0.3),
    ]
)
STEPS = st.one_of(LAYING, WARPS, CROPS, PADS, COLOURS, UNKNOWN)
CHOICES = st.one_of(
    STEPS,
    st.builds(A.OneOf, st.lists(STEPS, min_size=1, max_size=3), p=st.just(0.8)),
    st.builds(A.Sequential, st.lists(STEPS, max_size=2), p=st.just(0.8)),
    st.builds(A.RandomOrder, st.lists(LAYING, min_size=2, max_size=3), n=st.just(2)),
    st.builds(A.SomeOf, st.lists(STEPS, min_size=2, max_size=3), n=st.just(2)),
)


@settings(max_examples=40)
@given(st.lists(CHOICES, max_size=5), SIDES, st.integers(30, 200), st.integers(0, 99))
def test_any_pipeline_gives_the_same(transforms, height, width, seed):
    """Known and unknown transforms, in any order and nesting."""
    picture = draw_picture(height, width, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = compose(copy.deepcopy(transforms))
        seed_all(random_parts(plain), seed)
        try:
            plain(image=picture.copy(), keypoints=np.zeros((1, 2), np.float32))
        except (ValueError, TypeError, NotImplementedError, cv2.error):
            return  # float pictures do not go through everything; errors have a test of their own
        assert_same(transforms, picture, seed)


PIPELINES = {
    "rotated, then cropped": [
        A.HorizontalFlip(p=0.5),
        A.Affine(rotate=(-10, 10), p=1),
        A.RandomCrop(160, 160, pad_if_needed=True),
        A.ColorJitter(p=0.7),
    ],
    "cropped, then rotated": [
        A.RandomCrop(160, 160, pad_if_needed=True),
        A.HorizontalFlip(p=0.5),
        A.Affine(rotate=(-10, 10), p=1),
        A.ColorJitter(p=0.7),
    ],
    "coloured first": [
        A.RandomBrightnessContrast(p=1),
        A.RandomGamma(p=1),
        A.Rotate(45, p=1),
        A.PadIfNeeded(300, 500),
        A.RandomCrop(128, 192),
    ],
    "two warps": [
        A.Rotate(20, p=1),
        A.Transpose(p=0.5),
        A.Affine(scale=(0.7, 2), p=1),
        A.CenterCrop(100, 132),
        A.VerticalFlip(p=0.5),
    ],
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("size", [(288, 512), (241, 395)])
def test_usual_pipelines_give_the_same(name, size):
    """The pipelines that text detectors are trained with, for many seeds."""
    for seed in range(12):
        assert_same(PIPELINES[name], draw_picture(*size, seed), seed)


def test_only_what_is_seen_is_computed(monkeypatch):
    """A warp before a crop computes the crop; colours that need no neighbour come after it."""
    if warping.rounding() is None:
        pytest.skip("this OpenCV rounds in another way")
    picture = draw_picture(288, 512)
    seen = []
    look_up = A.RandomBrightnessContrast.apply

    def apply(self, img, **params):
        seen.append(img.shape)
        return look_up(self, img, **params)

    def refuse(*args, **options):
        raise AssertionError("the whole picture was warped")

    transforms = [
        A.Affine(rotate=(7, 7), p=1),
        A.RandomBrightnessContrast(p=1),
        A.RandomCrop(64, 96),
    ]
    expected, _ = both(transforms, picture, 3)
    monkeypatch.setattr(cv2, "warpAffine", refuse)
    monkeypatch.setattr(A.RandomBrightnessContrast, "apply", apply)
    planned = PlannedComposition(compose(transforms))
    seed_all(planned.parts, 3)
    points = np.zeros((1, 2), np.float32)
    assert np.array_equal(planned(image=picture, keypoints=points)["image"], expected["image"])
    assert seen == [(64, 96, 3)]


def test_where_opencv_rounds_in_another_way_the_whole_is_warped(monkeypatch):
    """No known rounding: still the same pixels."""
    monkeypatch.setattr(warping, "rounding", lambda: None)
    for seed in range(4):
        assert_same(PIPELINES["rotated, then cropped"], draw_picture(288, 512, seed), seed)


class HorizontalFlip(A.HorizontalFlip):
    """Somebody's own transform that is called as a known one."""

    def apply(self, img, **params):
        """Flip and invert."""
        return np.ascontiguousarray(255 - img[:, ::-1])


class Painting(A.ImageOnlyTransform):
    """Writes on what it is given."""

    def apply(self, img, **params):
        """Paint over the first rows."""
        img[:5] = 9
        return img


class Stubborn(A.VerticalFlip):
    """Decides in its own way."""

    def should_apply(self, force_apply=False):
        """Toss a coin, whatever p is."""
        return self.py_random.random() < 0.5


def halve(img, **params):
    """A function for A.Lambda."""
    return img // 2


def leave(keypoints, **params):
    """Another."""
    return keypoints


@pytest.mark.parametrize(
    "transforms",
    [
        [HorizontalFlip(p=1), A.RandomCrop(50, 60)],
        [Painting(p=1), A.Rotate(9, p=1), A.RandomCrop(50, 60), Painting(p=0.5)],
        [Stubborn(p=0.1), Stubborn(p=1), A.CenterCrop(30, 30)],
        [A.Lambda(image=halve, keypoints=leave, p=1), A.CenterCrop(30, 30)],
        [A.SelectiveChannelTransform([A.InvertImg(p=1)], channels=[0, 2]), A.Rotate(5, p=1)],
        [A.OneOrOther(A.HorizontalFlip(p=1), A.GaussNoise(p=1)), A.RandomCrop(40, 40)],
        [A.Compose([A.Rotate(20, p=1), A.RandomCrop(60, 60)], p=0.5), A.CenterCrop(50, 50)],
        [A.ToGray(p=1), A.Rotate(5, p=1), A.CenterCrop(20, 20)],
        [],
    ],
    ids=lambda t: "+".join(type(part).__name__ for part in t) or "nothing",
)
def test_what_is_not_known_runs_as_it_is(transforms):
    """Own classes, functions, odd compositions get real pixels, and may write on them."""
    for seed in range(6):
        assert_same(transforms, draw_picture(80, 120, seed), seed)
        assert_same(transforms, draw_picture(80, 120, seed), seed, p=0.4)


def test_pictures_of_other_kinds_pass_through():
    """Grey and float pictures are not planned, and come out as ever; so do tensors."""
    for kind in (np.float32, np.uint16):
        picture = draw_picture(60, 90).astype(kind)
        assert_same([A.HorizontalFlip(p=1), A.RandomCrop(20, 30)], picture, 1)
    grey = draw_picture(60, 90)[..., :1].copy()
    assert_same([A.Rotate(20, p=1), A.RandomCrop(20, 30)], grey, 1)
    pytest.importorskip("torch")
    expected, found = both([A.RandomCrop(20, 30), A.ToTensorV2()], draw_picture(60, 90), 1)
    assert found["image"].equal(expected["image"])


@pytest.mark.parametrize("transforms", [[A.RandomCrop(999, 20)], [A.Crop(5, 5, 999, 999)]])
def test_errors_are_those_of_albumentations(transforms):
    """What cannot be done is refused in albumentations' own words, and the next picture works."""
    picture = draw_picture(60, 90)
    planned = PlannedComposition(compose(transforms))
    messages = []
    for run in (compose(transforms), planned):
        with pytest.raises(Exception, match=r"[Cc]rop") as caught:  # its own kinds of errors
            run(image=picture, keypoints=np.zeros((1, 2), np.float32))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    larger = draw_picture(1010, 1010)
    done = planned(image=larger, keypoints=np.zeros((1, 2), np.float32))
    assert done["image"].shape[0] == done["image"].shape[0] > 900


def test_another_albumentations_is_left_alone(monkeypatch):
    """Rules are those of one version; nothing else is planned."""
    assert can_plan(compose([]))
    assert not can_plan(A.HorizontalFlip())
    assert not can_plan(lambda **data: data)
    monkeypatch.setattr(A, "__version__", composition._KNOWN_VERSION.replace("2", "3"))
    assert not can_plan(compose([]))


@pytest.mark.pictures
def test_real_pictures_give_the_same():
    """The usual pipelines on photographs of 1280 x 720."""
    folder = Path(os.environ.get("OCRSTORE_PICTURES", "")) / "icdar2015" / "images"
    if not folder.is_dir():
        pytest.skip("set OCRSTORE_PICTURES")
    for seed, path in enumerate(sorted(folder.iterdir())[:6]):
        picture = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
        for name in PIPELINES:
            assert_same(PIPELINES[name], picture, seed)
        crop = [*PIPELINES["rotated, then cropped"][:2], A.RandomCrop(640, 640), A.ColorJitter(p=1)]
        assert_same(crop, picture, seed)
