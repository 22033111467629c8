"""What `tests/augment/test_versions.py` runs with other versions of albumentations: prints JSON."""

import json
import sys
import tempfile
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

import albumentations as A
import cv2
import numpy as np
import torch

import ocrstore
from ocrstore.errors import OCRStoreError, SchemaError
from ocrstore.pipeline_json import to_json
from ocrstore.recipe import Recipe, read_recipe
from ocrstore.torch import OCRStoreDataset
from ocrstore.torch.augmented import Augmentation
from tests.torch_.test_augmented_polygons import (
    ARGUMENTS,
    HEIGHT,
    NAMES,
    WIDTH,
    coordinates,
    count_right,
    run,
    some_polygons,
)

SIZES = {"RandomResizedCrop": {}, "RandomSizedCrop": {"min_max_height": (100, 120)}}
"""Transforms whose `size` was `height` and `width`."""


def make(name):
    """Return a transform that always happens; None if this version wants other arguments."""
    for arguments in (ARGUMENTS.get(name, {}), {**SIZES.get(name, {}), "height": 90, "width": 100}):
        try:
            return getattr(A, name)(**arguments, p=1)
        except (TypeError, ValueError):
            continue
    return None


def look_at_every_transform():
    """Sort the transforms into right, refused (an error) and wrong."""
    found = {"right": [], "refused": [], "wrong": []}
    for name in NAMES:
        transform = make(name)
        if transform is None or name.endswith("Transform"):
            continue
        kind, right = "right", 0
        for number in range(6):
            try:
                given, made = run(transform, seed=number // 2, fuse=number % 2 == 0)
                if isinstance(transform, A.ImageOnlyTransform):
                    assert np.array_equal(made.annotation.polygons, given.polygons)
                right += count_right(given, made) if isinstance(transform, A.DualTransform) else 1
            except AssertionError:
                kind = "wrong"
            except (OCRStoreError, NotImplementedError, cv2.error, ValueError, ImportError):
                kind = kind if kind == "wrong" else "refused"
        found[kind if kind != "right" or right >= 6 else "wrong"].append(name)
    return found


def training():
    """Return a pipeline as people have it."""
    return A.Compose(
        [
            A.LongestMaxSize(200),
            A.HorizontalFlip(p=0.5),
            A.Affine(rotate=(-10, 10), scale=(0.7, 1.5), p=0.9),
            A.PadIfNeeded(160, 160, border_mode=0),
            A.RandomCrop(150, 150),
        ]
    )


def look_at_a_pipeline():
    """Check polygons, random numbers and both ways of running."""
    right, seen = 0, set()
    for seed in range(12):
        results = []
        for fuse in (True, False):
            given, made = run(training(), seed=seed, fuse=fuse)
            right += count_right(given, made)
            results.append(made)
        assert np.array_equal(results[0].image, results[1].image)
        seen.add(results[0].image.tobytes())
    augmentation = Augmentation(training())
    torch.manual_seed(1)
    state = np.random.get_state()[1].copy()
    rows = [augmentation(coordinates(), some_polygons(0), row=row).image for row in range(4)]
    assert np.array_equal(np.random.get_state()[1], state), "the global generator was changed"
    assert len({row.tobytes() for row in rows}) == 4
    return {"vertices": right, "different": len(seen)}


def look_at_recipes(folder):
    """Bake a validation transform, given as an object, as a file and as a Hydra node."""
    steps = [A.LongestMaxSize(64), A.PadIfNeeded(64, 64, position="top_left", border_mode=0)]
    composed = A.Compose([*steps, A.Normalize(mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))])
    node = {
        "_target_": "albumentations.Compose",
        "transforms": [
            {"_target_": "albumentations.LongestMaxSize", "max_size": 64},
            {
                "_target_": "albumentations.PadIfNeeded",
                "min_height": 64,
                "min_width": 64,
                "border_mode": 0,
                "position": "top_left",
            },
            {"_target_": "albumentations.Normalize", "mean": [0.5, 0.4, 0.3], "std": [0.2] * 3},
            {"_target_": "albumentations.pytorch.ToTensorV2"},
        ],
    }
    made, again = Recipe.make(pipeline=composed), Recipe.make(pipeline=node)
    assert made.fingerprint == again.fingerprint
    assert made.mean == again.mean == (0.5, 0.4, 0.3)
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)
    drawn, matrix = made.draw(pixels)
    expected, other = Recipe.make(size=64).draw(pixels)
    assert np.array_equal(drawn, expected) and np.allclose(matrix, other)
    path = folder / "pipeline.yaml"
    A.save(composed, path, data_format="yaml")
    try:
        saved = read_recipe(path).fingerprint == made.fingerprint
    except SchemaError as exc:
        saved = str(exc)
    stored = folder / "stored.json"
    stored.write_text(json.dumps(made.to_json()))
    assert read_recipe(stored).fingerprint == made.fingerprint
    try:
        Recipe.make(pipeline=A.Compose([A.Rotate((-5, 5), p=1)]))
        refused = ""
    except SchemaError as exc:
        refused = str(exc)
    to_json(training())
    return {"made_with": made.made_with, "saved": saved, "random": refused}


def look_at_a_store(folder):
    """Build with a pipeline, compare with the source, and read with a transform."""
    images = folder / "images"
    images.mkdir()
    for number in range(3):
        picture = np.random.default_rng(number).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
        cv2.imwrite(str(images / f"{number}.png"), picture)
        (images / f"gt_{number}.txt").write_text("20,20,90,20,90,60,20,60,word\n")
    pipeline = A.Compose([A.Resize(64, 96)])
    store = folder / "a.ocrs"
    report = ocrstore.build(images, store, pipeline=pipeline, workers=0)
    checked = ocrstore.verify(store, source=images, workers=0)
    sample = OCRStoreDataset(store, transform=training())[0]
    return {
        "samples": report.samples,
        "matches": checked.ok,
        "prob_map": bool(sample["prob_map"].any()),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        parts = {
            "version": A.__version__,
            "numpy": np.__version__,
            **look_at_every_transform(),
            **look_at_a_pipeline(),
            **look_at_recipes(Path(name)),
            **look_at_a_store(Path(name)),
        }
    json.dump(parts, sys.stdout)
