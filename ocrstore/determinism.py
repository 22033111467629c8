"""Whether an albumentations pipeline always does the same; if not, which transform is why.

Two ways of knowing are used together. What the classes say: a probability between 0 and 1, or a
composition that chooses. And what the transforms do: each one is run on probe pictures under
different seeds, and under generators that always draw the lowest and the highest value;
parameters, pixels and points must come out the same.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ocrstore.errors import SchemaError
from ocrstore.geometry import Pixels
from ocrstore.pipeline import compose, fit_matrix, grid_points, make_transform

CHOOSING = {"OneOf", "OneOrOther", "RandomOrder", "SomeOf"}
SEQUENCES = {"Compose", "ReplayCompose", "Sequential"}
PROBE_SIZES = ((720, 1280), (1103, 801), (400, 400))
SEEDS = range(6)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `judge` found out about a pipeline."""

    kind: Literal["deterministic", "random", "unfit"]
    """`unfit`: always the same, but no view can be made of it."""
    reason: str
    """Why it cannot be baked; empty if it can."""
    size: tuple[int | None, int | None] = (None, None)


def judge(described: str) -> Verdict:
    """Tell whether a pipeline could be baked, without refusing it."""
    try:
        return Verdict("deterministic", "", check_deterministic(described))
    except _RandomError as exc:
        return Verdict("random", str(exc))
    except SchemaError as exc:
        return Verdict("unfit", str(exc))


def check_deterministic(described: str) -> tuple[int | None, int | None]:
    """Refuse a random or non-projective pipeline by the name of its transform.

    Returns the size (height, width) of the views it makes, `None` where it depends on the picture.
    """
    tree = json.loads(described)
    leaves = list(_leaves(tree))
    sizes: list[tuple[int, int]] = []
    failure: SchemaError | None = None
    for size in PROBE_SIZES:
        try:
            sizes.append(_run(leaves, size))
        except _ProbeFailedError as exc:  # e.g. a crop larger than this probe
            failure = exc
    if not sizes:
        assert failure is not None
        raise SchemaError(str(failure)) from failure
    height = sizes[0][0] if all(size[0] == sizes[0][0] for size in sizes) else None
    width = sizes[0][1] if all(size[1] == sizes[0][1] for size in sizes) else None
    return height, width


class _ProbeFailedError(SchemaError):
    pass


class _RandomError(SchemaError):
    pass


def _leaves(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Give the transforms in the order they run; refuse what chooses, and chance by probability."""
    name = str(tree["__class_fullname__"])
    short = name.rpartition(".")[2]
    # what albumentations assumes where nothing is said
    p = float(tree.get("p", 1.0 if short in SEQUENCES else 0.5))
    if 0.0 < p < 1.0:
        raise _RandomError(
            f"{short} is random: it is applied with probability {p:g}. A view is baked once, so "
            f"its geometry must be deterministic: set p=1 or leave {short} out"
        )
    if p <= 0.0:
        return
    if short in CHOOSING:
        raise _RandomError(
            f"{short} is random: it chooses among its transforms. A view is baked once, so its "
            "geometry must be deterministic: name the one transform you want"
        )
    if short in SEQUENCES:
        for child in tree.get("transforms") or ():
            yield from _leaves(child)
    else:
        yield tree


def _run(leaves: list[Mapping[str, Any]], size: tuple[int, int]) -> tuple[int, int]:
    pixels = _probe(size)
    changed_by = ""
    for leaf in leaves:
        name = str(leaf["__class_fullname__"]).rpartition(".")[2]
        points = grid_points((pixels.shape[0], pixels.shape[1]))
        transform = make_transform(leaf)
        stage = compose([transform])
        first: tuple[Any, Any, Any] | None = None
        for py_random, seed in _generators():
            try:
                with _global_seed(seed):
                    stage.set_random_state(np.random.default_rng(seed), py_random)
                    done = stage(image=pixels, keypoints=points)
            except Exception as exc:  # albumentations raises anything; the probe did not fit
                raise _ProbeFailedError(
                    f"{name} failed on a probe picture of {size[1]}x{size[0]} pixels: {exc}"
                ) from exc
            outcome = (getattr(transform, "params", None), done["image"], done["keypoints"])
            if first is None:
                first = outcome
            elif not _same(first, outcome):
                raise _RandomError(
                    f"{name} is random: two runs on the same picture differ. A view is baked once, "
                    f"so its geometry must be deterministic: fix its parameters or leave {name} out"
                )
        assert first is not None
        try:
            fit_matrix(points, first[2])
        except SchemaError as exc:
            raise SchemaError(f"{name} cannot be part of a baked view: {exc}") from exc
        if first[1].dtype != pixels.dtype or first[1].ndim != 3:
            changed_by = name
        pixels = first[1]
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise SchemaError(
            f"{changed_by or 'the pipeline'} makes {pixels.dtype} arrays of shape {pixels.shape}; "
            "a view holds uint8 (H, W, 3). Leave it out: normalising is the recipe's mean and std, "
            "applied to the batch, and the tensor's order is a free view"
        )
    return pixels.shape[0], pixels.shape[1]


def _probe(size: tuple[int, int]) -> Pixels:
    """Draw a picture with slopes, edges and a little noise, so that transforms show."""
    height, width = size
    ys, xs = np.mgrid[0:height, 0:width]
    planes = [xs * 255 // width, ys * 255 // height, (xs // 40 + ys // 40) % 2 * 200]
    noise = np.random.default_rng(0).integers(0, 30, (height, width, 3))
    return np.clip(np.stack(planes, axis=2) + noise, 0, 255).astype(np.uint8)


class _Constant(random.Random):
    """A generator that draws the same place in the range, 64 times; then it is an ordinary one.

    Methods that draw until a value is acceptable would never end otherwise.
    """

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self._value = value
        self._draws = 0

    def random(self) -> float:
        self._draws += 1
        return self._value if self._draws <= 64 else super().random()

    def _randbelow(self, n: int) -> int:  # what every whole-number method of Random calls
        return min(n - 1, int(self.random() * n))


def _generators() -> Iterator[tuple[random.Random, int]]:
    yield _Constant(0.0), 1000
    yield _Constant(1.0 - 2**-53), 1001
    for seed in SEEDS:
        yield random.Random(seed), seed


@contextmanager
def _global_seed(seed: int) -> Iterator[None]:
    """Seed the global generators too, for transforms that use those, and put them back after."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
