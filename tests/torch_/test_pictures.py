"""Built stores against the live pipeline: decode, albumentations, maps; tensor for tensor."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ocrstore.building.build import build
from ocrstore.decode import decode
from ocrstore.float16 import to_float16
from ocrstore.geometry import transform_points
from ocrstore.maps import draw_maps
from ocrstore.recipe import Recipe
from ocrstore.sources import open_source
from ocrstore.torch import OCRStoreDataset

A = pytest.importorskip("albumentations")
cv2 = pytest.importorskip("cv2")


def pipeline(size, *, keypoints=False):
    """The usual deterministic pipeline of validation."""
    return A.Compose(
        [A.LongestMaxSize(size), A.PadIfNeeded(size, size, position="top_left")],
        keypoint_params=A.KeypointParams("xy", remove_invisible=False) if keypoints else None,
    )


def draw_files(folder, count):
    """Write JPEG files with ICDAR annotations."""
    rng = np.random.default_rng(8)
    (folder / "images").mkdir()
    (folder / "gt").mkdir()
    for number in range(count):
        height, width = rng.integers(200, 330, 2)
        picture = cv2.resize(rng.integers(0, 255, (20, 20, 3), np.uint8), (int(width), int(height)))
        x, y = rng.integers(10, 90, 2)
        text = "###" if number == 2 else "ab"
        line = f"{x},{y},{x + 80},{y + 4},{x + 79},{y + 40},{x},{y + 37},{text}"
        cv2.imwrite(str(folder / "images" / f"img_{number}.jpg"), picture)
        (folder / "gt" / f"gt_img_{number}.txt").write_text(line)
    return folder


@pytest.fixture
def drawn(tmp_path):
    """Six drawn pictures."""
    return draw_files(tmp_path, 6), 160


@pytest.fixture
def real(tmp_path):
    """Two dozen real pictures."""
    root = os.environ.get("OCRSTORE_PICTURES")
    if not root or not (Path(root) / "icdar2015").is_dir():
        pytest.skip("set OCRSTORE_PICTURES")
    for part in ("images", "gt"):
        (tmp_path / part).mkdir()
    for path in sorted((Path(root) / "icdar2015" / "images").iterdir())[:24]:
        shutil.copy(path, tmp_path / "images")
        annotation = Path(root) / "icdar2015" / "gt" / f"gt_{path.stem}.txt"
        shutil.copy(annotation, tmp_path / "gt")
    return tmp_path, 640


@pytest.mark.parametrize("which", ["drawn", pytest.param("real", marks=pytest.mark.pictures)])
def test_equal_to_the_live_pipeline(request, which, tmp_path):
    """Any order and any number of workers give what decoding and transforming anew gives."""
    folder, size = request.getfixturevalue(which)
    out = tmp_path / "built.ocrs"
    build(folder / "images", out, annotations=folder / "gt", pipeline=pipeline(size), workers=1)
    live = pipeline(size, keypoints=True)
    recipe = Recipe.make(pipeline=pipeline(size))
    truth = {}
    for sample in open_source(folder / "images", annotations=folder / "gt"):
        pixels = decode(sample.path.read_bytes()).pixels
        points = [polygon.points for polygon in sample.polygons]
        flat = np.concatenate([*points, np.empty((0, 2), np.float32)])
        made = live(image=pixels, keypoints=flat)
        moved = np.asarray(made["keypoints"]).reshape(-1, 2)
        ends = np.cumsum([len(p) for p in points])[:-1]
        polygons = np.split(moved, ends) if points else []
        ignored = [polygon.ignored for polygon in sample.polygons]
        # albumentations carries points as float32; the recipe says where they go exactly
        _, matrix = recipe.draw(pixels)
        exact = [transform_points(matrix, polygon) for polygon in points]
        maps = draw_maps(exact, ignored, size, size)
        truth[sample.key] = (made["image"], maps, polygons, sample)
    dataset = OCRStoreDataset(out, expect=recipe)
    for workers, shuffle in ((0, False), (1, True), (2, False)):
        seen = 0
        for batch in DataLoader(dataset, 5, num_workers=workers, shuffle=shuffle):
            for i, name in enumerate(batch["image_filename"]):
                image, maps, polygons, sample = truth[name]
                assert np.array_equal(batch["images"][i].permute(1, 2, 0), image)
                assert np.array_equal(batch["prob_maps"][i, 0], to_float16(maps.prob_map))
                assert np.array_equal(batch["thresh_maps"][i, 0], to_float16(maps.thresh_map))
                assert np.array_equal(batch["prob_masks"][i, 0], maps.prob_mask)
                assert np.array_equal(batch["thresh_masks"][i, 0], maps.thresh_mask)
                for mine, theirs in zip(batch["polygons"][i], polygons, strict=True):
                    assert np.allclose(mine, theirs, atol=0.02)
                assert batch["texts"][i] == [polygon.text for polygon in sample.polygons]
                assert batch["ignored"][i] == [polygon.ignored for polygon in sample.polygons]
                seen += 1
        assert seen == len(truth)


@pytest.mark.pictures
def test_augmented_real_pictures(real, tmp_path):
    """Real pictures through a random transform: maps are those of the moved polygons."""
    folder, _ = real
    out = tmp_path / "built.ocrs"
    build(folder / "images", out, annotations=folder / "gt", size=640, workers=1)
    transform = A.Compose([A.HorizontalFlip(), A.Rotate(20), A.RandomCrop(512, 512)])
    dataset = OCRStoreDataset(out, transform=transform)
    torch.manual_seed(0)
    for batch in DataLoader(dataset, 8, num_workers=1):
        for i in range(len(batch["images"])):
            maps = draw_maps(batch["polygons"][i], batch["ignored"][i], 512, 512)
            assert np.array_equal(batch["prob_maps"][i, 0].numpy(), to_float16(maps.prob_map))
            assert np.array_equal(batch["thresh_masks"][i, 0].numpy(), maps.thresh_mask)
