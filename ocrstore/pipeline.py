"""A deterministic albumentations pipeline as the geometry of a view.

Hides albumentations: how a pipeline is written down and made again, how a random one is told from a
deterministic one, and how the matrix is found by sending points through it.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.errors import OCRStoreError, SchemaError
from ocrstore.geometry import Geometry, Matrix, Pixels, transform_points

# albumentations carries points as float32: 1/4000 pixel at 7000 pixels, a few steps of it
TOLERANCE_PX = 0.02


def to_json(pipeline: object) -> str:
    """Write a pipeline down canonically: its transforms and their arguments, as JSON.

    Takes an albumentations transform or composition, or what `albumentations.to_dict` made of one.
    Box and keypoint settings are left out, because a view is made of a picture and its points.
    """
    if isinstance(pipeline, Mapping):
        described: Any = pipeline
    else:
        import_albumentations()
        if not hasattr(pipeline, "to_dict"):
            raise SchemaError(
                f"a pipeline is an albumentations transform or its saved form, not {pipeline!r}"
            )
        try:
            described = pipeline.to_dict()
        except (NotImplementedError, ValueError) as exc:
            raise SchemaError(
                f"the pipeline cannot be written down ({exc}), so it cannot be part of a recipe; "
                "use transforms that albumentations can serialise"
            ) from exc
    tree = described.get("transform", described)
    if not isinstance(tree, Mapping) or "__class_fullname__" not in tree:
        raise SchemaError(
            "not a serialised albumentations pipeline: no `__class_fullname__` in it; "
            "write one with albumentations.save(pipeline, path, data_format='yaml')"
        )
    kept = {
        name: value
        for name, value in tree.items()
        if name not in ("bbox_params", "keypoint_params", "additional_targets", "is_check_shapes")
    }
    try:
        return json.dumps(kept, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise SchemaError(f"the pipeline has arguments that JSON cannot hold: {exc}") from exc


def read_pipeline(path: Path) -> str:
    """Read a pipeline saved by `albumentations.save`, YAML or JSON, in canonical form."""
    import yaml

    try:
        described = yaml.safe_load(path.read_text("utf-8"))  # JSON is YAML too
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise SchemaError(f"{path}: not a readable pipeline file: {exc}") from exc
    if not isinstance(described, Mapping):
        raise SchemaError(f"{path}: not a serialised albumentations pipeline")
    return to_json(described)


class Pipeline:
    """A pipeline made from its canonical JSON, ready to draw views; one thread at a time."""

    def __init__(self, described: str) -> None:
        self.described = described
        tree = json.loads(described)
        self._compose = compose([make_transform(tree)])
        self._busy = threading.Lock()

    def draw(self, pixels: Pixels) -> tuple[Pixels, Matrix]:
        """Draw a picture as a view, and find the matrix that brought it there."""
        height, width = pixels.shape[:2]
        points = grid_points((height, width))
        with self._busy:
            # nothing random gets this far, but a seed makes sure that what slips through repeats
            self._compose.set_random_seed(0)
            try:
                done = self._compose(image=pixels, keypoints=points)
            except OCRStoreError:
                raise
            except Exception as exc:  # albumentations raises anything
                raise SchemaError(
                    f"the pipeline failed on a picture of {width}x{height} pixels: {exc}"
                ) from exc
        view = done["image"]
        if view.dtype != np.uint8 or view.ndim != 3 or view.shape[2] != 3:
            raise SchemaError(f"the pipeline made {view.dtype} {view.shape}, not uint8 (H, W, 3)")
        return np.ascontiguousarray(view), fit_matrix(points, done["keypoints"])

    def geometry(self, picture_size: tuple[int, int]) -> Geometry:
        """Find the geometry for pictures of one size, by sending a blank one through."""
        view, matrix = self.draw(np.zeros((*picture_size, 3), np.uint8))
        size = (view.shape[0], view.shape[1])

        def draw(pixels: Pixels, out: Pixels) -> None:
            out[:] = self.draw(pixels)[0]

        return Geometry(picture_size, size, matrix, draw)


def make_transform(tree: Mapping[str, Any]) -> Any:
    """Make the transform that a canonical description describes."""
    albumentations = import_albumentations()
    _import_foreign(tree)
    try:
        with warnings.catch_warnings():
            # it warns of arguments that it wrote down itself; _check_arguments finds the wrong ones
            warnings.simplefilter("ignore", UserWarning)
            made = albumentations.from_dict({"transform": dict(tree)})
    except KeyError as exc:
        raise SchemaError(
            f"albumentations {albumentations.__version__} has no transform named {exc}; "
            "import the module that defines it, or correct the name"
        ) from exc
    except Exception as exc:  # pydantic, type and value errors: the arguments are wrong
        raise SchemaError(f"the pipeline cannot be made from its description: {exc}") from exc
    if made is None:
        raise SchemaError("the pipeline holds a transform that albumentations cannot serialise")
    _check_arguments(tree, made.to_dict()["transform"])
    return made


def compose(transforms: list[Any]) -> Any:
    """Compose transforms for a picture with points, none of which may be dropped."""
    albumentations = import_albumentations()
    with warnings.catch_warnings():
        # it warns where no transform moves points; here that is fine, they stay where they are
        warnings.simplefilter("ignore", UserWarning)
        return albumentations.Compose(
            transforms,
            keypoint_params=albumentations.KeypointParams(format="xy", remove_invisible=False),
        )


def grid_points(picture_size: tuple[int, int], *, steps: int = 5) -> npt.NDArray[np.float32]:
    """Points to send through a pipeline: a grid from corner to corner, row by row."""
    height, width = picture_size
    xs, ys = np.meshgrid(np.linspace(0, width, steps), np.linspace(0, height, steps))
    return np.stack([xs.ravel(), ys.ravel()], axis=1).astype(np.float32)


def fit_matrix(before: npt.ArrayLike, after: npt.ArrayLike) -> Matrix:
    """Find the matrix that sends one grid of `grid_points` to another; refuse if there is none.

    An affine one is solved from three corners and a projective one from four, in plain arithmetic,
    so that every machine finds the same bits; the other points of the grid are the proof.
    """
    source = np.asarray(before, np.float64).reshape(-1, 2)
    moved = np.asarray(after, np.float64)
    if moved.ndim != 2 or len(moved) != len(source) or moved.shape[1] < 2:
        raise SchemaError(
            f"it is not a projective map: of {len(source)} points, {len(moved)} came out"
        )
    moved = moved[:, :2]
    steps = round(len(source) ** 0.5)
    corners = [0, steps - 1, len(source) - 1, len(source) - steps]
    for solve in (_solve_affine, _solve_projective):
        matrix = solve(source[corners], moved[corners])
        if matrix is None or not np.isfinite(matrix).all():
            continue
        error = np.abs(transform_points(matrix, source) - moved).max()
        if error <= TOLERANCE_PX and abs(np.linalg.det(matrix)) > 1e-12:
            return matrix
    raise SchemaError(
        "it is not a projective map: no 3x3 matrix moves all points as it does, so boxes found in "
        "the view could not be brought back to the picture; use it for training, not for a view"
    )


def _solve_affine(source: Matrix, moved: Matrix) -> Matrix | None:
    """Solve from an axis-aligned rectangle: corner, along x, opposite, along y."""
    width, height = source[2] - source[0]
    matrix = np.eye(3)
    matrix[:2, 0] = (moved[1] - moved[0]) / width
    matrix[:2, 1] = (moved[3] - moved[0]) / height
    matrix[:2, 2] = moved[0] - matrix[:2, :2] @ source[0]
    return matrix


def _solve_projective(source: Matrix, moved: Matrix) -> Matrix | None:
    """Solve from the same rectangle, closed form for a unit square, then scaled to it."""
    p0, p1, p2, p3 = moved
    d1, d2, s = p1 - p2, p3 - p2, p0 - p1 + p2 - p3
    cross = d1[0] * d2[1] - d1[1] * d2[0]
    if cross == 0:
        return None
    g = (s[0] * d2[1] - s[1] * d2[0]) / cross
    h = (d1[0] * s[1] - d1[1] * s[0]) / cross
    unit = np.eye(3)
    unit[:2, 0], unit[:2, 1], unit[:2, 2] = p1 - p0 + g * p1, p3 - p0 + h * p3, p0
    unit[2] = (g, h, 1.0)
    width, height = source[2] - source[0]
    return np.asarray(unit @ np.diag((1 / width, 1 / height, 1.0)))  # the grid begins at (0, 0)


def import_albumentations() -> Any:
    """Return albumentations; where it is missing, the error says what to install."""
    # without this, importing it asks the network for a newer version
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    try:
        return importlib.import_module("albumentations")
    except ImportError as exc:
        raise OCRStoreError(
            "an albumentations pipeline needs albumentations: pip install 'ocrstore[augment]'"
        ) from exc


def default_augmentation(height: int, width: int) -> Any:
    """Return what `train --augment` does: flip, rotate, scale, crop to the view's size, colour.

    It runs on whole pictures; the maps are drawn from the transformed polygons.
    """
    A = import_albumentations()  # noqa: N806  # its own documentation calls it so
    longest = max(height, width)
    return A.Compose(
        [
            A.LongestMaxSize(longest),
            A.HorizontalFlip(p=0.5),
            A.Affine(rotate=(-10, 10), scale=(0.7, 2.0), p=1.0),
            A.PadIfNeeded(height, width, border_mode=0, fill=0),
            A.RandomCrop(height, width),
            A.ColorJitter(brightness=0.25, contrast=0.25, saturation=0.25, hue=0.03, p=0.8),
        ]
    )


def _check_arguments(given: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Refuse an argument that the transform does not know, which albumentations would drop."""
    if "transforms" in made:
        for one, other in zip(given.get("transforms") or (), made["transforms"], strict=True):
            _check_arguments(one, other)
        return
    unknown = sorted(given.keys() - made.keys())
    if unknown:
        known = ", ".join(sorted(name for name in made if not name.startswith("__")))
        raise SchemaError(
            f"{given['__class_fullname__']} has no argument {', '.join(unknown)}; it has: {known}"
        )


def _import_foreign(tree: Mapping[str, Any]) -> None:
    """Import the modules of transforms that are not albumentations' own, so that they are known."""
    module, _, _ = str(tree.get("__class_fullname__", "")).rpartition(".")
    if module and not module.startswith("albumentations"):
        try:
            importlib.import_module(module)
        except ImportError as exc:
            raise SchemaError(
                f"the pipeline needs {tree['__class_fullname__']}, whose module cannot be "
                f"imported: {exc}"
            ) from exc
    for child in tree.get("transforms") or ():
        _import_foreign(child)
