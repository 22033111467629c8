"""The built-in augmentation: points on their pixels, what is drawn, colours, and random numbers."""

import pickle

import cv2
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ocrstore.augment import BasicAugmentation
from ocrstore.augment.basic import warp_visible
from ocrstore.errors import SchemaError
from ocrstore.torch import OCRStoreDataset


def coordinates(height, width):
    """Return a smooth picture whose red tells x and whose green tells y; blue is 255."""
    picture = np.full((height, width, 3), 255, np.uint8)
    picture[..., 0] = (np.arange(width) + 0.5) / width * 250
    picture[..., 1] = ((np.arange(height) + 0.5) / height * 250)[:, None]
    return picture


@pytest.mark.parametrize("size", [(720, 1280), (300, 200), (90, 2000), (2600, 1700)])
def test_points_stay_on_their_pixels(size):
    """Whatever is drawn, and whether the picture grows, shrinks or is resized first."""
    height, width = size
    picture = coordinates(height, width)
    rng = np.random.default_rng(1)
    points = np.stack((rng.uniform(0, width, 400), rng.uniform(0, height, 400)), axis=1)
    expected = points / (width, height) * 250
    seen = 0
    for seed in range(8):
        augment = BasicAugmentation(320, 240, colour=0)
        augment.random_generator = np.random.default_rng(seed)
        found = augment(image=picture, keypoints=points)
        moved = found["keypoints"]
        inside = ((moved >= 1) & (moved < (239, 319))).all(axis=1)
        columns, rows = moved[inside].astype(int).T
        pixels = found["image"][rows, columns].astype(float)
        solid = pixels[:, 2] == 255  # black beside the picture has a soft edge
        # a pixel of the result covers so much of the picture, in the units of the colours
        scale = np.sqrt(abs(np.linalg.det(augment._matrix(size, [0.5, 0.5, 0.0, 0, 0])[:, :2])))
        slack = 2 + 250 / np.array((width, height)) / scale
        assert (np.abs(pixels[:, :2] - expected[inside])[solid] < slack).all()
        seen += int(solid.sum())
    assert seen > 400


def test_a_shrunken_part_equals_the_whole_warp():
    """Resizing first moves nothing: it differs from one warp by what lies between pixels."""
    picture = cv2.GaussianBlur(coordinates(900, 1200), (0, 0), 5)
    turn = np.array([[0.3, -0.05, 12.0], [0.05, 0.3, -30.0]])
    found = warp_visible(picture, turn, (200, 260)).astype(int)
    index = turn.copy()
    index[:, 2] += turn[:, :2] @ (0.5, 0.5) - 0.5
    expected = cv2.warpAffine(picture, index, (260, 200)).astype(int)
    inside = (found[..., 2] == 255) & (expected[..., 2] == 255)
    assert inside.mean() > 0.5
    assert np.abs(found - expected)[inside].max() <= 2


def test_what_is_drawn():
    """Flips, angles, scales, places and colours vary, within their limits."""
    augment = BasicAugmentation(100, 100, rotate=10, scale=(0.7, 2.0))
    square = np.array([(0, 0), (100, 0), (100, 100), (0, 100)], np.float64)
    flips, angles, scales, pictures = 0, [], [], set()
    for seed in range(300):
        augment.random_generator = np.random.default_rng(seed)
        made = augment(image=coordinates(100, 100), keypoints=square)
        top, side = (made["keypoints"][number] - made["keypoints"][0] for number in (1, 3))
        flips += top[0] < 0
        scales.append(np.hypot(*side) / 100)
        angles.append(np.degrees(np.arctan2(-side[0], side[1])))
        pictures.add(made["image"].tobytes())
    assert 100 < flips < 200
    assert 0.7 <= min(scales) < 0.75 and 1.9 < max(scales) <= 2
    assert -10 <= min(angles) < -9 and 9 < max(angles) <= 10
    assert len(pictures) == 300


def test_colours():
    """Each factor does what its name says, and grey stays grey."""
    rng = np.random.default_rng(0)
    picture = rng.integers(40, 160, (64, 64, 3), np.uint8)

    def change(**options):
        none = {"brightness": 0, "contrast": 0, "saturation": 0, **options}
        augment = BasicAugmentation(64, 64, flip=0, rotate=0, scale=(1, 1), colour=1, **none)
        augment.random_generator = np.random.default_rng(5)
        return augment(image=picture, keypoints=np.zeros((1, 2)))["image"].astype(float)

    same = change()
    assert np.abs(same - picture).max() <= 1
    brighter = change(brightness=0.25)
    assert np.allclose(brighter, picture * (brighter.mean() / picture.mean()), atol=2)
    assert abs(brighter.mean() / picture.mean() - 1) > 0.01
    steeper = change(contrast=0.25)
    assert abs(steeper.std() / picture.std() - 1) > 0.01
    assert abs(steeper.mean() - picture.mean()) < 3
    paler = change(saturation=0.25)
    assert abs(np.ptp(paler, axis=2).mean() / np.ptp(picture, axis=2).mean() - 1) > 0.01


def test_random_numbers_are_those_of_the_data_set(drawn_folder, tmp_path):
    """They repeat with torch's seed, differ between samples, and the picture is not written to."""
    import ocrstore

    ocrstore.build(drawn_folder / "images", tmp_path / "a.ocrs", size=96, workers=0)
    dataset = OCRStoreDataset(tmp_path / "a.ocrs", transform=BasicAugmentation(96, 96))
    dataset = pickle.loads(pickle.dumps(dataset))
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append([dataset[row] for row in range(3)])
    for one, two in zip(*results, strict=True):
        assert torch.equal(one["image"], two["image"])
        assert torch.equal(one["prob_map"], two["prob_map"])
    first = results[0][0]
    assert not torch.equal(first["image"], results[0][1]["image"])
    stored = OCRStoreDataset(tmp_path / "a.ocrs", columns=["image"])[0]["image"]
    corner = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64) @ first["inverse_matrix"].T
    assert torch.isfinite(corner).all() and stored.shape == (3, 360, 480)


@pytest.mark.parametrize("wrong", [{"height": 0}, {"scale": (2.0, 1.0)}, {"scale": (0.0, 1.0)}])
def test_nonsense_is_refused(wrong):
    """No size, and scales that are none."""
    with pytest.raises(SchemaError, match="expected a size"):
        BasicAugmentation(**{"height": 10, "width": 10, **wrong})
