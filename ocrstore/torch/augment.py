"""Owns transforms: a picture and its polygons go in, and come out moved together.

Hides albumentations: how polygons travel as keypoints, and how each call gets random numbers of
its own.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ocrstore.errors import OCRStoreError, SchemaError
from ocrstore.stopwatch import lap
from ocrstore.torch._rows import AnyArray
from ocrstore.torch.chance import Chance
from ocrstore.torch.recorded import Annotation

Transform = Callable[..., Mapping[str, Any]]

_FAR = float(2**29)
_CORNERS = np.array([(0, 0), (1, 0), (1, 1), (0, 1)], np.float32)


@dataclass(frozen=True, slots=True)
class Augmented:
    """A transformed picture and what became of its annotation."""

    image: AnyArray
    """(H, W, 3) as the transform left it."""
    annotation: Annotation
    """Polygons in the new picture's frame; those outside of it are gone."""
    inverse_matrix: npt.NDArray[np.float64]
    """New picture -> old one; NaN where the transform is no projection."""


class Augmentation:
    """A transform, ready to take pictures with polygons. One thread at a time.

    An albumentations composition is given keypoints if it has none. Its random numbers come from
    torch's generator of this process, mixed with the sample's row and the rank, so they differ
    between samples, workers, ranks and epochs, and repeat when torch is seeded the same.
    """

    def __init__(
        self,
        transform: Transform,
        *,
        fuse: bool = True,
        before_pixels: Callable[[], None] | None = None,
    ) -> None:
        """Take a transform; with `fuse`, an albumentations composition is planned first.

        Then only the pixels that are seen in the end are computed, the same bit for bit, and
        `before_pixels` is called when the plan is made and they are about to be read.
        """
        self.transform: Any = _with_keypoints(transform)
        self.writes = True
        """Whether the transform may write on the picture that it is given."""
        parts: list[Any] = []
        if hasattr(self.transform, "set_random_seed"):
            from ocrstore.fusing import PlannedComposition, can_plan, random_parts

            parts = list(random_parts(self.transform))
            carries = "keypoints" in getattr(self.transform, "processors", ())
            if fuse and carries and can_plan(self.transform):
                planned = PlannedComposition(self.transform, before_pixels=before_pixels)
                self.transform, self.writes, parts = planned, False, list(planned.parts)
        self._chance = Chance(parts)

    def __call__(self, image: AnyArray, annotation: Annotation, *, row: int) -> Augmented:
        """Transform one picture."""
        height, width = image.shape[:2]
        corners = _CORNERS * np.array((width, height), np.float32)
        points = np.concatenate([*annotation.polygons, corners], dtype=np.float32)
        self._chance.draw((_random_number(), row, _rank()))
        lap("annotations")
        result = self.transform(image=image, keypoints=points)
        lap("keypoints")
        if "keypoints" not in result:
            raise SchemaError("the transform returned no keypoints: maps could not follow it")
        moved = np.asarray(result["keypoints"], np.float64).reshape(-1, 2)
        if len(moved) != len(points):
            raise SchemaError(
                f"the transform returned {len(moved)} of {len(points)} keypoints; make its"
                " KeypointParams with remove_invisible=False"
            )
        picture = _as_picture(result["image"])
        lengths = [len(polygon) for polygon in annotation.polygons]
        ends = list(itertools.accumulate(lengths))
        inside = _find_inside(moved[:-4], lengths, ends, picture.shape)
        with np.errstate(over="ignore"):  # of those that are far outside
            rounded = moved.astype(np.float32)
        return Augmented(
            picture,
            Annotation(
                [rounded[ends[i] - lengths[i] : ends[i]] for i in inside],
                [annotation.ignored[i] for i in inside],
                [annotation.texts[i] for i in inside],
            ),
            _projection(moved[-4:], corners.astype(np.float64)),
        )


def check_transform(transform: Any) -> None:
    """Raise TypeError for what can be no transform; the first sample would be late for that."""
    if callable(transform) and not isinstance(transform, type):
        return
    found = repr(transform) if isinstance(transform, type) else type(transform).__name__
    raise TypeError(
        f"transform: expected an albumentations transform, or a callable that takes image= and"
        f" keypoints=; found {found}. Several transforms go into albumentations.Compose([...])."
    )


def _with_keypoints(transform: Transform) -> Transform:
    """Return a composition that carries all keypoints along, whatever it was made with.

    A transform of albumentations that is none becomes one; anything else is left as it is.
    """
    albumentations: Any = sys.modules.get("albumentations")  # else it can be none of its own
    if albumentations is None:
        return transform
    known = (albumentations.BasicTransform, albumentations.BaseCompose)
    if not isinstance(transform, known):
        return transform
    composed = isinstance(transform, albumentations.Compose)
    with warnings.catch_warnings():
        # a pipeline that only changes colours leaves keypoints where they are, and that is right
        warnings.filterwarnings("ignore", message="Got processor for keypoints")
        return albumentations.Compose(  # type: ignore[no-any-return]  # it ships no types
            transform.transforms if composed else [transform],
            keypoint_params=albumentations.KeypointParams(format="xy", remove_invisible=False),
            p=transform.p if composed else 1.0,
        )


def _as_picture(image: Any) -> AnyArray:
    if isinstance(image, torch.Tensor):
        return image.permute(1, 2, 0).numpy() if image.ndim == 3 else image.numpy()
    array = np.asarray(image)
    if array.ndim != 3:
        raise SchemaError(f"the transform returned a picture of shape {array.shape}")
    return array


def _find_inside(
    points: npt.NDArray[np.float64], lengths: list[int], ends: list[int], shape: Sequence[int]
) -> list[int]:
    """Return which polygons, of so many points each, may be seen in a picture."""
    if not lengths:
        return []
    if 0 in lengths:
        raise SchemaError("a polygon has no points")
    starts = [0, *ends[:-1]]
    # all at once: there are many, and of four points each
    near = np.logical_and.reduceat((np.abs(points) < _FAR).all(axis=1), starts)
    low, high = np.minimum.reduceat(points, starts), np.maximum.reduceat(points, starts)
    seen = (high >= 0) & (low <= (shape[1], shape[0]))
    inside: list[int] = np.flatnonzero(near & seen.all(axis=1)).tolist()
    return inside


def _projection(
    source: npt.NDArray[np.float64], target: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the 3x3 matrix that sends four points to four others."""
    rows = []
    for (x, y), (u, v) in zip(source.tolist(), target.tolist(), strict=True):
        rows += [(x, y, 1, 0, 0, 0, -u * x, -u * y), (0, 0, 0, x, y, 1, -v * x, -v * y)]
    try:
        solved = np.linalg.solve(np.array(rows), target.reshape(-1))
    except np.linalg.LinAlgError:
        return np.full((3, 3), np.nan)
    return np.append(solved, 1.0).reshape(3, 3)


def _random_number() -> int:
    return int(torch.randint(0, 2**63 - 1, (), dtype=torch.int64))


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    rank = os.environ.get("RANK", "0")
    return int(rank) if rank.isdigit() else 0


def explain(exc: Exception, where: str) -> OCRStoreError:
    """Return an error that names the file and the sample a transform failed on."""
    if isinstance(exc, SchemaError):
        return SchemaError(f"{where}: {exc}")
    return OCRStoreError(f"{where}: the transform failed: {type(exc).__name__}: {exc}")
