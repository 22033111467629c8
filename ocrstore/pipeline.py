"""Albumentations pipelines as geometry of a view: made from JSON, matrix, random or not.

The matrix is found by sending points through the pipeline. Randomness is found in two ways. By
what the classes say: a probability between 0 and 1, or a composition that chooses. And by what the
transforms do: each one is run on probe pictures with different seeds, and with generators that
always draw the lowest and the highest value; parameters, pixels and points must be the same.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import random
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ocrstore.errors import OCRStoreError, SchemaError, needs
from ocrstore.format.layout import DEFAULT_MAX_ROW_NBYTES
from ocrstore.geometry import Geometry, Matrix, Pixels, transform_points

# albumentations has float32 points: a resolution of 1/4000 pixel at 7000 pixels, several steps
TOLERANCE_PX = 0.02


class Pipeline:
    """A pipeline made from its canonical JSON; threads take turns."""

    def __init__(self, described: str) -> None:
        self.described = described
        tree = json.loads(described)
        self._compose = compose([make_transform(tree)])
        self._busy = threading.Lock()

    def draw(self, pixels: Pixels) -> tuple[Pixels, Matrix]:
        """Return a picture as a view, and the matrix from picture to view."""
        height, width = pixels.shape[:2]
        points = grid_points((height, width))
        with self._busy:
            try:
                # it is checked to be deterministic; if that failed, a seed makes it repeat
                with seeded(self._compose, random.Random(0), 0):
                    done = self._compose(image=pixels, keypoints=points)
            except OCRStoreError:
                raise
            except Exception as exc:  # albumentations raises any type
                raise SchemaError(
                    f"the pipeline failed on a picture of {width}x{height} pixels: {exc}"
                ) from exc
        view = done["image"]
        if view.dtype != np.uint8 or view.ndim != 3 or view.shape[2] != 3:
            raise SchemaError(f"the pipeline made {view.dtype} {view.shape}, not uint8 (H, W, 3)")
        return np.ascontiguousarray(view), fit_matrix(points, done["keypoints"])

    def geometry(self, picture_size: tuple[int, int]) -> Geometry:
        """Return the geometry for pictures of one size, found with a blank picture."""
        view, matrix = self.draw(np.zeros((*picture_size, 3), np.uint8))
        size = (view.shape[0], view.shape[1])

        def draw(pixels: Pixels, out: Pixels) -> None:
            out[:] = self.draw(pixels)[0]

        return Geometry(picture_size, size, matrix, draw)


def make_transform(tree: Mapping[str, Any]) -> Any:
    """Make the transform that a tree of canonical JSON describes; raises SchemaError."""
    albumentations = import_albumentations()
    _check_classes(tree)
    tree = _renamed(tree)
    try:
        with warnings.catch_warnings():
            # it warns of arguments that it wrote down itself; _check_arguments finds the wrong ones
            warnings.simplefilter("ignore", UserWarning)
            made = albumentations.from_dict({"transform": tree})
    except Exception as exc:  # pydantic, type and value errors: the arguments are wrong
        raise SchemaError(f"the pipeline cannot be made from its description: {exc}") from exc
    if made is None:
        raise SchemaError("the pipeline has a transform that albumentations cannot serialise")
    _check_arguments(tree, made.to_dict()["transform"])
    return made


_RENAMED = {"value": "fill", "mask_value": "fill_mask"}
"""Arguments of albumentations 1 and their names in 2."""


def _renamed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with the argument names of the installed albumentations."""
    found = _registry().get(str(tree["__class_fullname__"]))
    known = set() if found is None else set(inspect.signature(found).parameters)
    made = dict(tree)
    if "always_apply" in made and "always_apply" not in known:
        made["p"] = 1.0 if made.pop("always_apply") else made.get("p", 0.5)
    for old, new in _RENAMED.items():
        if old in made and old not in known and new in known:
            value = made.pop(old)
            made[new] = 0 if value is None else value  # what None meant
    if "transforms" in made:
        made["transforms"] = [_renamed(part) for part in made["transforms"] or ()]
    return made


def compose(transforms: list[Any]) -> Any:
    """Compose transforms for a picture with points, keeping points outside of it."""
    albumentations = import_albumentations()
    with warnings.catch_warnings():
        # it warns if no transform moves points, which is fine here
        warnings.simplefilter("ignore", UserWarning)
        return albumentations.Compose(
            transforms,
            keypoint_params=albumentations.KeypointParams(format="xy", remove_invisible=False),
        )


def grid_points(picture_size: tuple[int, int], *, steps: int = 5) -> npt.NDArray[np.float32]:
    """Return a grid of points from corner to corner, row by row."""
    height, width = picture_size
    xs, ys = np.meshgrid(np.linspace(0, width, steps), np.linspace(0, height, steps))
    return np.stack([xs.ravel(), ys.ravel()], axis=1).astype(np.float32)


def fit_matrix(before: npt.ArrayLike, after: npt.ArrayLike) -> Matrix:
    """Return the matrix that maps one grid of `grid_points` to another.

    An affine matrix is solved from three corners, a projective one from four, in plain arithmetic,
    so that every machine finds the same bits; the other points are used to check it.

    Raises:
        SchemaError: No matrix maps all points.
    """
    source = np.asarray(before, np.float64).reshape(-1, 2)
    moved = np.asarray(after, np.float64)
    if moved.ndim != 2 or len(moved) != len(source) or moved.shape[1] < 2:
        raise SchemaError(
            f"not a projective map: {len(source)} points went in, {len(moved)} came out"
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
        "not a projective map: no 3x3 matrix moves all points like it, so boxes found in the "
        "view could not be mapped back to the picture; use it in training, not in a view"
    )


def _solve_affine(source: Matrix, moved: Matrix) -> Matrix | None:
    """Solve for an axis-aligned rectangle: top left, top right, bottom right, bottom left."""
    width, height = source[2] - source[0]
    matrix = np.eye(3)
    matrix[:2, 0] = (moved[1] - moved[0]) / width
    matrix[:2, 1] = (moved[3] - moved[0]) / height
    matrix[:2, 2] = moved[0] - matrix[:2, :2] @ source[0]
    return matrix


def _solve_projective(source: Matrix, moved: Matrix) -> Matrix | None:
    """Solve for the same rectangle: closed form for the unit square, then scaled."""
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


def albumentations_version() -> str:
    """Return the name and version of what makes pipelines, for recipes."""
    return f"albumentations {import_albumentations().__version__}"


def import_albumentations() -> Any:
    """Return the module albumentations; raises MissingPackageError if it is not there."""
    # without this, importing it checks online for a newer version
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    with needs("augment"):
        return importlib.import_module("albumentations")


def _check_arguments(given: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Refuse unknown arguments, which albumentations would ignore."""
    if "transforms" in made:
        for one, other in zip(given.get("transforms") or (), made["transforms"], strict=True):
            _check_arguments(one, other)
        return
    name = str(given["__class_fullname__"])
    # albumentations 1.3 does not describe all arguments that it takes
    unknown = sorted(
        given.keys() - made.keys() - {*inspect.signature(_registry()[name]).parameters}
    )
    if unknown:
        known = ", ".join(sorted(name for name in made if not name.startswith("__")))
        raise SchemaError(f"{name}: unknown argument {', '.join(unknown)}; known: {known}")


# --- which classes a description may name

_permitted: set[str] = set()


def permit_modules(names: Iterable[str]) -> None:
    """Import modules whose transforms descriptions may name from now on, in this process.

    A store, a checkpoint or a file may name any class, and importing a module runs its code. So
    only transforms of albumentations and of modules that the user names here are made.

    Raises:
        SchemaError: A module cannot be imported.
    """
    if isinstance(names, str):
        raise SchemaError(f"allow_modules has to be a list of module names, not {names!r}")
    for name in names:
        try:
            importlib.import_module(name)
        except (ImportError, TypeError, ValueError) as exc:
            raise SchemaError(f"--allow-module {name}: it cannot be imported: {exc}") from exc
        _permitted.add(name)


def permit_parts(transform: Any) -> None:
    """Permit the modules of a transform and of those inside it."""
    _permitted.update(type(part).__module__ for part in parts_of(transform))


def foreign_modules(described: str) -> set[str]:
    """Return the modules besides albumentations that a pipeline in canonical JSON names."""
    parts = described_parts(json.loads(described))
    modules = {part["__class_fullname__"].rpartition(".")[0] for part in parts}
    return {module for module in modules if module and not _is_albumentations(module)}


def _check_classes(tree: object) -> None:
    """Refuse every class but transforms of albumentations and of permitted modules.

    No name of the description is imported or looked up anywhere but in albumentations' registry of
    transforms, which has those of modules that are imported already.
    """
    registry = _registry()
    composition = importlib.import_module("albumentations.core.composition")
    kinds = (composition.BasicTransform, composition.BaseCompose)
    for part in described_parts(tree):
        name = part["__class_fullname__"]
        module, _, short = name.rpartition(".")
        own = not module or _is_albumentations(module)
        found = registry.get(short if own else name)
        if found is not None and issubclass(found, kinds):
            if found.__module__ in _permitted or _is_albumentations(found.__module__):
                continue
        elif own or module in _permitted:
            where = albumentations_version() if own else f"module {module}"
            raise SchemaError(f"{where} has no transform named {short!r} that can be serialised")
        raise SchemaError(
            f"the pipeline needs {name}, which is not a transform of albumentations. The code of "
            f"other modules is run only if you allow it: --allow-module {module} (in Python "
            f"allow_modules=[{module!r}])"
        )


def _registry() -> Mapping[str, Any]:
    """Return the transforms that albumentations can serialise, by their names."""
    found: Mapping[str, Any] = importlib.import_module(
        "albumentations.core.serialization"
    ).SERIALIZABLE_REGISTRY
    return found


def _is_albumentations(module: str) -> bool:
    return module == "albumentations" or module.startswith("albumentations.")


def described_parts(tree: object) -> Iterator[Mapping[str, Any]]:
    """Yield a description and those inside it; raises SchemaError if its structure is wrong."""
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, Mapping) or not isinstance(part.get("__class_fullname__"), str):
            raise SchemaError(
                "not a serialised albumentations pipeline: a transform has no `__class_fullname__`"
            )
        p = part.get("p", 1.0)
        if not isinstance(p, int | float) or not 0 <= p <= 1:
            name = part["__class_fullname__"]
            raise SchemaError(f"{name}: the probability `p` has to be from 0 to 1, not {p!r}")
        yield part
        inside = part.get("transforms") or []
        if not isinstance(inside, list | tuple):
            raise SchemaError("not a serialised albumentations pipeline: `transforms` is no list")
        waiting += inside


def parts_of(transform: Any) -> Iterator[Any]:
    """Yield a transform and those inside it."""
    yield transform
    for part in getattr(transform, "transforms", None) or ():
        yield from parts_of(part)


def short_name(tree: Mapping[str, Any]) -> str:
    """Return the name of a described class without its module."""
    return str(tree["__class_fullname__"]).rpartition(".")[2]


def default_p(tree: Mapping[str, Any]) -> float:
    """Return the probability that a described class has if none is given."""
    found = _registry().get(str(tree["__class_fullname__"]))
    parameters = {} if found is None else inspect.signature(found).parameters
    # as it is: an object that was made without it has the same int or float in its description
    found_p: float = parameters["p"].default if "p" in parameters else 0.5
    return found_p


def is_always_applied(tree: Mapping[str, Any]) -> bool:
    """Tell whether a described transform has probability 1; without one it has the default."""
    usual = 1.0 if short_name(tree) in (*SEQUENCES, "Normalize", "ToTensorV2") else 0.5
    return bool(tree.get("always_apply")) or float(tree.get("p", usual)) >= 1


# --- deterministic or random

CHOOSING = {"OneOf", "OneOrOther", "RandomOrder", "SomeOf"}
SEQUENCES = {"Compose", "ReplayCompose", "Sequential"}
PROBE_SIZES = ((720, 1280), (1103, 801), (400, 400))
SEEDS = range(6)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of `judge`."""

    kind: Literal["deterministic", "random", "unfit"]
    """`unfit`: deterministic, but not usable as the geometry of a view."""
    reason: str
    """Why it cannot be part of a recipe; empty if it can."""
    size: tuple[int | None, int | None] = (None, None)


def judge(described: str) -> Verdict:
    """Return whether a pipeline could be part of a recipe, and if not, why."""
    try:
        return Verdict("deterministic", "", check_deterministic(described))
    except _RandomError as exc:
        return Verdict("random", str(exc))
    except SchemaError as exc:
        return Verdict("unfit", str(exc))


def check_deterministic(described: str) -> tuple[int | None, int | None]:
    """Check that a pipeline is deterministic and projective.

    Returns:
        The size (height, width) of its views; None for a side that depends on the picture.

    Raises:
        SchemaError: It is not; the message names the transform.
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
    """Yield the transforms in order; refuse compositions that choose, and probabilities."""
    short = short_name(tree)
    # the defaults of albumentations
    p = 1.0 if is_always_applied(tree) else float(tree.get("p", 0.5))
    if 0.0 < p < 1.0:
        raise _RandomError(
            f"{short} is random: it is applied with probability {p:g}. A view is computed once, so "
            f"its geometry must be deterministic: set p=1 or leave out {short}"
        )
    if p <= 0.0:
        return
    if short in CHOOSING:
        raise _RandomError(
            f"{short} is random: it chooses among its transforms. A view is computed once, so its "
            "geometry must be deterministic: use a single transform instead"
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
        name = short_name(leaf)
        _check_view_nbytes(leaf, pixels)
        points = grid_points((pixels.shape[0], pixels.shape[1]))
        transform = make_transform(leaf)
        stage = compose([transform])
        first: tuple[Any, Any, Any] | None = None
        for py_random, seed in _generators():
            try:
                with seeded(stage, py_random, seed):
                    done = stage(image=pixels, keypoints=points)
            except Exception as exc:  # albumentations raises any type
                raise _ProbeFailedError(
                    f"{name} failed on a probe picture of {size[1]}x{size[0]} pixels: {exc}"
                ) from exc
            if not isinstance(done["image"], np.ndarray):
                raise SchemaError(
                    f"{name} makes a {type(done['image']).__name__}; a view has to be an array"
                )
            outcome = (getattr(transform, "params", None), done["image"], done["keypoints"])
            if first is None:
                first = outcome
            elif not _same(first, outcome):
                raise _RandomError(
                    f"{name} is random: two runs on the same picture differ. A view is computed "
                    "once, so its geometry must be deterministic: fix its parameters or leave out "
                    f"{name}"
                )
        assert first is not None
        try:
            fit_matrix(points, first[2])
        except SchemaError as exc:
            raise SchemaError(f"{name} cannot be part of a recipe: {exc}") from exc
        if first[1].dtype != pixels.dtype or first[1].ndim != 3:
            changed_by = name
        pixels = first[1]
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise SchemaError(
            f"{changed_by or 'the pipeline'} makes {pixels.dtype} arrays of shape {pixels.shape}; "
            "a view has to be uint8 (H, W, 3). Leave it out: batches are normalised by mean and "
            "std of the recipe, and their channel order needs no copy"
        )
    return pixels.shape[0], pixels.shape[1]


def _check_view_nbytes(leaf: Mapping[str, Any], pixels: Pixels) -> None:
    """Raise SchemaError if a transform would make too large a picture, before it is allocated.

    The size is found by the arguments that albumentations has for it; rather too large than too
    small where several play together.
    """

    def given(*names: str) -> float:
        return max(_largest(leaf.get(name)) for name in names)

    height, width = pixels.shape[:2]
    pick = max if short_name(leaf) == "SmallestMaxSize" else min
    sides = leaf.get("max_size_hw") or (leaf.get("max_size"), leaf.get("max_size"))
    ratios = [_largest(to) / side for to, side in zip(sides, (height, width), strict=True) if to]
    scale = max([pick(ratios, default=1.0), given("scale"), 1 + given("scale_limit")])
    scale = max(1.0, scale, 1 + 2 * given("percent"))
    border = 2 * given("padding", "px")
    tall = given("height", "min_height", "y_max", "pad_height_divisor", "size")
    wide = given("width", "min_width", "x_max", "pad_width_divisor", "size")
    tall, wide = max(tall, height * scale + border), max(wide, width * scale + border)
    if tall * wide * 3 > DEFAULT_MAX_ROW_NBYTES:
        raise SchemaError(
            f"{short_name(leaf)} would make {round(wide)}x{round(tall)} pixels of a picture of "
            f"{width}x{height}, {round(tall * wide * 3)} bytes; the limit for a view is "
            f"{DEFAULT_MAX_ROW_NBYTES} bytes. Use a smaller size"
        )


def _largest(argument: Any) -> float:
    """Return the largest number in an argument; 0 if it has none."""
    if isinstance(argument, Mapping):
        argument = list(argument.values())
    if isinstance(argument, (list, tuple)):
        return max(map(_largest, argument), default=0.0)
    return float(argument) if isinstance(argument, (int, float)) else 0.0


def _probe(size: tuple[int, int]) -> Pixels:
    """Return a picture with gradients, edges and noise, on which transforms have an effect."""
    height, width = size
    ys, xs = np.mgrid[0:height, 0:width]
    planes = [xs * 255 // width, ys * 255 // height, (xs // 40 + ys // 40) % 2 * 200]
    noise = np.random.default_rng(0).integers(0, 30, (height, width, 3))
    return np.clip(np.stack(planes, axis=2) + noise, 0, 255).astype(np.uint8)


class _Constant(random.Random):
    """A generator that returns a constant 64 times, and then random numbers.

    Methods that draw until a value is acceptable would never end otherwise.
    """

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self._value = value
        self._draws = 0

    def random(self) -> float:
        self._draws += 1
        return self._value if self._draws <= 64 else super().random()

    def _randbelow(self, n: int) -> int:  # every integer method of Random calls it
        return min(n - 1, int(self.random() * n))


def _generators() -> Iterator[tuple[random.Random, int]]:
    yield _Constant(0.0), 1000
    yield _Constant(1.0 - 2**-53), 1001
    for seed in SEEDS:
        yield random.Random(seed), seed


@contextmanager
def seeded(composition: Any, py_random: random.Random | None, seed: int) -> Iterator[None]:
    """Seed a composition and the global generators, which are restored afterwards.

    albumentations before 1.4.15 has only those, and some transforms of later versions use them.
    """
    if hasattr(composition, "set_random_state"):
        composition.set_random_state(np.random.default_rng(seed), py_random)
    elif hasattr(composition, "set_random_seed"):
        composition.set_random_seed(seed)
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
