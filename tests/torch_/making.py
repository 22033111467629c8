"""Stores as a build makes them, small and drawn by the tests."""

from dataclasses import replace

import numpy as np

import ocrstore
from ocrstore.float16 import to_float16
from ocrstore.geometry import invert, transform_points
from ocrstore.maps import draw_maps
from ocrstore.recipe import Recipe

ATTRIBUTES = (
    "width",
    "height",
    "orientation",
    "polygons",
    "ignored",
    "texts",
)


def draw_picture(rng, height, width, regions):
    """Return a noisy picture and some quadrilaterals on it."""
    pixels = rng.integers(0, 255, (height, width, 3), np.uint8)
    polygons = []
    for _ in range(regions):
        x, y = rng.uniform(5, width - 60), rng.uniform(5, height - 40)
        w, h = rng.uniform(30, 55), rng.uniform(18, 35)
        tilt = rng.uniform(-4, 4)
        polygons.append(
            np.array([(x, y), (x + w, y + tilt), (x + w, y + h + tilt), (x, y + h)], np.float32)
        )
        pixels[int(y) : int(y + h), int(x) : int(x + w)] = 250
    return pixels, polygons


def make_store(
    path, *, samples=20, sizes=(160,), seed=5, keep_image=True, prefix="img", codec="raw"
):
    """Write a store with one view for each size, as `ocrstore build` does."""
    rng = np.random.default_rng(seed)
    recipes = {str(size): Recipe.make(size=size) for size in sizes}
    columns = {}
    views = {}
    for number, (name, recipe) in enumerate(recipes.items()):
        size = recipe.size
        names = {
            key: key if number == 0 else f"{name}/{key}"
            for key in (
                "tensor",
                "prob_map",
                "thresh_map",
                "prob_mask",
                "thresh_mask",
                "inverse_matrix",
            )
        }
        columns[names["tensor"]] = ocrstore.Column("uint8", (*size, 3))
        for key, dtype in (
            ("prob_map", "float16"),
            ("thresh_map", "float16"),
            ("prob_mask", "uint8"),
            ("thresh_mask", "uint8"),
        ):
            columns[names[key]] = ocrstore.Column(dtype, size)
        columns[names["inverse_matrix"]] = ocrstore.Column("float64", (3, 3))
        views[name] = {
            "recipe": recipe.to_json(),
            "fingerprint": recipe.fingerprint,
            "columns": names,
        }
    if keep_image:
        columns["image"] = ocrstore.Column("uint8", (None, None, 3))
    columns = {name: replace(column, codec=codec) for name, column in columns.items()}
    metadata = {"views": views, "default_view": next(iter(recipes))}
    with ocrstore.create(path, columns=columns, metadata=metadata, overwrite=True) as writer:
        for row in range(samples):
            height, width = int(rng.integers(150, 260)), int(rng.integers(150, 260))
            pixels, polygons = draw_picture(rng, height, width, int(rng.integers(1, 4)))
            ignored = [bool(rng.random() < 0.2) for _ in polygons]
            arrays = {"image": pixels} if keep_image else {}
            for name, recipe in recipes.items():
                names = views[name]["columns"]
                drawn, matrix = recipe.draw(pixels)
                moved = [transform_points(matrix, polygon) for polygon in polygons]
                maps = draw_maps(moved, ignored, *recipe.size, params=recipe.maps)
                arrays[names["tensor"]] = drawn
                arrays[names["prob_map"]] = to_float16(maps.prob_map)
                arrays[names["thresh_map"]] = to_float16(maps.thresh_map)
                arrays[names["prob_mask"]] = maps.prob_mask
                arrays[names["thresh_mask"]] = maps.thresh_mask
                arrays[names["inverse_matrix"]] = invert(matrix)
            writer.append(
                f"{prefix}_{row:03d}.jpg",
                arrays,
                attributes={
                    "width": width,
                    "height": height,
                    "orientation": 1 + row % 2 * 5,
                    "polygons": [polygon.reshape(-1).tolist() for polygon in polygons],
                    "ignored": ignored,
                    "texts": [f"text {i}" for i in range(len(polygons))],
                },
            )
    return path
