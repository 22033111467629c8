"""The views of a store: recipe, columns, accuracy they allow, and their form in the manifest.

Needs nothing that drawing a view needs: a `StoredView` has its recipe as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ocrstore.errors import SchemaError
from ocrstore.format.codecs import CODECS
from ocrstore.format.columns import DTYPES, Column
from ocrstore.metadata import (
    anything,
    count,
    listed,
    named,
    number,
    one_of,
    optional,
    record,
    text,
    wrong,
)
from ocrstore.schema import COLUMNS, IMAGE, MAPS, MATRIX, PICTURE

if TYPE_CHECKING:
    from ocrstore.recipe import Recipe
    from ocrstore.store import Store

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}\Z")
IMPORTED = "imported"
"""Prefix of a recipe's `map_algorithm` if maps were imported from files."""

Matrix = npt.NDArray[np.float64]
_LARGEST = 1e9
"""No matrix between a picture and a view has larger numbers; products of them stay finite."""
_SIDE = number(1, 65536, whole=True)
_SHARE = number(0, 1)
_RECIPE = record(
    {
        "size": listed(optional(_SIDE), length=2),
        "geometry": one_of("longest", "stretch", "pipeline"),
        "interpolation": text,
        "fill": listed(number(0, 255, whole=True), length=3),
        "columns": named(record({"dtype": one_of(*DTYPES), "codec": one_of(*CODECS)})),
        "maps": record(
            {
                "shrink_ratio": _SHARE,
                "thresh_min": _SHARE,
                "thresh_max": _SHARE,
                "min_size": number(0, 65536),
            },
            {"rules": one_of("exact", "truncated")},
            closed=True,
        ),
        "map_algorithm": text,
        "mean": listed(number(-1e6, 1e6), length=3),
        "std": listed(number(1e-6, 1e6), length=3),
    },
    {
        "pipeline": optional(named(anything)),
        "made_with": text,
        "targets": record(
            {
                "function": text,
                "version": text,
                "arrays": named(
                    record({"dtype": one_of(*DTYPES), "shape": listed(optional(count))})
                ),
            }
        ),
    },
)
_VIEW = record({"recipe": _RECIPE, "fingerprint": text, "columns": named(text)})


@dataclass(frozen=True, slots=True)
class View:
    """A named recipe. The columns of the default view have no prefix in the store."""

    name: str
    recipe: Recipe
    default: bool

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise SchemaError(
                f"a view's name has 1 to 40 letters, digits, _ . or -, not {self.name!r}"
            )
        if not self.default and IMAGE in self.recipe.names:
            raise SchemaError("only the default view has an `image` column")

    @property
    def columns(self) -> dict[str, str]:
        """Logical column names to names in the store, without `image`."""
        prefix = "" if self.default else f"{self.name}/"
        return {name: prefix + name for name in self.recipe.names if name != IMAGE}

    def to_json(self) -> dict[str, Any]:
        """Return the view's entry in the manifest."""
        return {
            "recipe": self.recipe.to_json(),
            "fingerprint": self.recipe.fingerprint,
            "columns": self.columns,
        }


def check_views(views: tuple[View, ...]) -> tuple[View, ...]:
    """Return the views; raise SchemaError if names collide or the first is not the default."""
    names = [view.name for view in views]
    if len(set(names)) != len(names):
        raise SchemaError(f"two views of one name: {', '.join(names)}; name one with --view")
    if [view.default for view in views] != [True] + [False] * (len(views) - 1):
        raise SchemaError("the first view, and no other, has to be the default view")
    return views


def stored_columns(views: tuple[View, ...]) -> dict[str, Column]:
    """Return the columns of a store with these views, by their names in the store."""
    return {
        view.columns.get(column.name, column.name): Column(
            column.dtype, view.recipe.shape(column.name), column.codec
        )
        for view in views
        for column in view.recipe.columns
    }


def views_metadata(views: tuple[View, ...]) -> dict[str, Any]:
    """Return the manifest's entries about views; JSON objects there have no order."""
    return {
        "views": {view.name: view.to_json() for view in views},
        "default_view": views[0].name,
    }


# --- reading them from a manifest


class Described(Protocol):
    """What has a description of columns and views: a store, or the catalog of a data set."""

    @property
    def path(self) -> str:
        """Its file."""
        ...

    @property
    def columns(self) -> Mapping[str, Column]:
        """The columns, by name."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The entries about views."""
        ...


@dataclass(frozen=True, slots=True)
class StoredView:
    """A view of a store as its manifest describes it, checked against the store's columns."""

    name: str
    recipe_json: Mapping[str, Any]
    """The recipe, as `Recipe.to_json` returns it."""
    fingerprint: str
    """Of the recipe."""
    columns: Mapping[str, str]
    """Logical names of its columns, without `image`, to their names in the store."""
    default: bool

    @property
    def recipe(self) -> Recipe:
        """The recipe as the object that draws views; needs OpenCV.

        Raises:
            SchemaError: This version cannot use the recipe.
        """
        from ocrstore.recipe import Recipe

        try:
            return Recipe.from_json(self.recipe_json)
        except SchemaError as exc:
            raise SchemaError(f"the recipe of view {self.name}: {exc}") from exc

    @property
    def maps(self) -> Mapping[str, Any]:
        """The fields of its `MapParams`."""
        found: Mapping[str, Any] = self.recipe_json["maps"]
        return found

    @property
    def has_maps(self) -> bool:
        """Whether it has a map or mask."""
        return not self.columns.keys().isdisjoint(MAPS)

    def to_json(self) -> dict[str, Any]:
        """Describe the view in JSON terms."""
        return {
            "name": self.name,
            "default": self.default,
            "fingerprint": self.fingerprint,
            "in_words": recipe_in_words(self.recipe_json),
            "recipe": dict(self.recipe_json),
            "columns": dict(self.columns),
        }


def stored_views(store: Described) -> tuple[StoredView, ...]:
    """Read the views of a store or a data set, the default one first.

    None if it was not built from pictures.

    Raises:
        SchemaError: The manifest's metadata about views is not as a build writes it.
    """
    recorded = store.metadata.get("views")
    if recorded is None or recorded == {}:
        return ()
    where = f"{store.path}: metadata.views"
    named(_VIEW)(recorded, where)
    default = store.metadata.get("default_view")
    one_of(*recorded)(default, f"{store.path}: metadata.default_view")
    views = []
    for name, entry in recorded.items():
        if not _NAME.match(name):
            raise wrong(where, "names of 1 to 40 letters, digits, _ . or -", name)
        for logical, column in entry["columns"].items():
            _check_column(store, logical, column, f"{where}.{name}.columns.{logical}")
        columns = {key: column for key, column in entry["columns"].items() if key != IMAGE}
        views.append(
            StoredView(name, entry["recipe"], entry["fingerprint"], columns, name == default)
        )
    return tuple(sorted(views, key=lambda view: (not view.default, view.name)))


def readable_views(store: Store) -> tuple[tuple[StoredView, ...], str]:
    """Return a store's views, or none and the reason, for tools that show any store."""
    try:
        return stored_views(store), ""
    except SchemaError as exc:
        return (), str(exc)


def built_views(store: Described) -> tuple[View, ...]:
    """Return the views of a store with their recipes, to build them again."""
    views = [View(view.name, view.recipe, view.default) for view in stored_views(store)]
    return check_views(tuple(views)) if views else ()


def find_view(store: Store, name: str | None, *, needs: Sequence[str] = ()) -> StoredView:
    """Return a view of a store (the default one if none is named).

    Args:
        store: The store.
        name: The view.
        needs: Columns, by their logical names, without which it is of no use.
    """
    views = stored_views(store)
    if not views:
        raise SchemaError(
            f"{store.path} has no baked view: build it with a recipe (`ocrstore build`)"
        )
    view = next((view for view in views if name in (None, view.name)), None)
    if view is None:
        known = ", ".join(view.name for view in views)
        raise SchemaError(f"{store.path} has no view {name!r}; it has {known}")
    missing = [column for column in needs if column not in view.columns]
    if missing:
        raise SchemaError(
            f"{store.path}: view {view.name!r} lacks {', '.join(missing)}. Build it with them"
            " (`ocrstore build` makes them unless its columns are chosen by hand)"
        )
    return view


def fits(spec: Column, logical: str) -> bool:
    """Tell whether a column can be the built-in one of a name: its dtype and number of axes."""
    built_in = COLUMNS[logical]
    if built_in.role == MATRIX:
        return spec.shape == (3, 3) and spec.dtype in ("float32", "float64")
    if built_in.role == PICTURE:
        return spec.dtype == "uint8" and len(spec.shape) == 3 and spec.shape[2] == 3
    return len(spec.shape) == 2


def view_matrices(store: Store, column: str, row: int) -> tuple[Matrix, Matrix]:
    """Return the matrices from a sample's upright picture to a view, and back as stored.

    Raises:
        SchemaError: The stored one cannot be inverted, or not with finite results.
    """
    inverse = np.asarray(store[column][row], np.float64)
    try:
        forward = np.asarray(np.linalg.inv(inverse), np.float64)
    except np.linalg.LinAlgError:
        forward = np.full((3, 3), np.nan)
    if not ((np.abs(forward) < _LARGEST).all() and (np.abs(inverse) < _LARGEST).all()):
        raise SchemaError(
            f"{store.path}: sample {store.keys[row]!r}, column {column!r}: the matrix cannot be "
            "inverted. Build the store again."
        )
    return forward, inverse


def _check_column(store: Described, logical: str, column: str, where: str) -> None:
    spec = store.columns.get(column)
    if spec is None:
        raise wrong(where, "the name of a column of the store", column)
    if logical in COLUMNS and not fits(spec, logical):
        found = f"{column} with {spec.dtype} {spec.shape}"
        raise wrong(where, f"a column that can hold a {COLUMNS[logical].role}", found)


# --- recipes in words


def recipe_in_words(recipe: Mapping[str, Any]) -> list[str]:
    """Say what a recipe in JSON form does: a sentence for the picture, one for the maps."""
    lines = [_geometry_in_words(recipe)]
    targets = recipe.get("targets")
    if targets is not None:
        names = ", ".join(targets["arrays"])
        function = f"{targets['function']}, version {targets['version']}"
        return [*lines, f"Targets: {names}, drawn by {function}."]
    if recipe["columns"].keys().isdisjoint(MAPS):
        return [*lines, "No maps."]
    maps = recipe["maps"]
    small = f"polygons under {maps['min_size']:g} px ignored"
    if maps.get("rules") == "truncated":
        small = "polygons truncated to whole pixels, none ignored, no masks"
    lines.append(
        f"Maps: polygons shrunk by ratio {maps['shrink_ratio']}, threshold {maps['thresh_min']} to "
        f"{maps['thresh_max']}, {small} ({recipe['map_algorithm']})."
    )
    return lines


def _geometry_in_words(recipe: Mapping[str, Any]) -> str:
    height, width = recipe["size"]
    if recipe["geometry"] == "pipeline":
        steps = ", ".join(_pipeline_steps(recipe.get("pipeline")))
        made = f"{height}x{width}" if height and width else "a size that depends on the picture"
        with_ = str(recipe.get("made_with", "albumentations"))
        return f"A pipeline of {with_}{': ' + steps if steps else ''}; gives {made}."
    resampling = recipe["interpolation"].replace("nearest", "nearest-pixel") + " resampling"
    if recipe["geometry"] == "stretch":
        return f"Stretched to {height}x{width} (height x width), {resampling}."
    fit = f"Scaled to fit into {height}x{width} (height x width)"
    if height == width:
        fit = f"Longest side scaled to {height}"
    colour = "black" if recipe["fill"] == [0, 0, 0] else f"RGB {recipe['fill']}"
    return f"{fit}, {resampling}, placed top left, padded with {colour}."


def _pipeline_steps(pipeline: Any) -> list[str]:
    steps = pipeline.get("transform", pipeline) if isinstance(pipeline, Mapping) else None
    inner = steps.get("transforms") if isinstance(steps, Mapping) else None
    names = [
        str(step.get("__class_fullname__", "?"))
        for step in (inner if isinstance(inner, list) else ())
        if isinstance(step, Mapping)
    ]
    return [name.rsplit(".", 1)[-1] for name in names]


# --- the accuracy that a view allows, as the manifest records it

ENOUGH = 0.95
"""A view whose upper bound of H-mean is lower is warned of."""
AUTO_SHARE = 0.98
"""Size "auto" wants this share of what full size allows."""
_BOUNDS = "upper_bounds"
_FIGURES = {
    **dict.fromkeys(("samples", "polygons", "small"), count),
    "min_size": number(0),
    **dict.fromkeys(("precision", "recall", "hmean"), _SHARE),
}
_BOUND = record(
    _FIGURES,
    {"better_size": optional(listed(count, length=2)), "better_hmean": optional(_SHARE)},
)


@dataclass(frozen=True, slots=True)
class ViewBound:
    """The upper bound of H-mean in a view, and how much of the text is too small there."""

    samples: int
    """Number of samples that it was measured on."""
    polygons: int
    """Polygons of those samples that count, that is, are not ignored."""
    small: int
    """Those narrower or lower than `min_size` in the view: they are not drawn."""
    min_size: float
    precision: float
    recall: float
    hmean: float
    better_size: tuple[int, int] | None = None
    """(height, width) of the smallest view that reaches `ENOUGH`; None if this one does, if none
    does, and for a pipeline, which has no other size."""
    better_hmean: float | None = None

    def in_words(self) -> str:
        """Return the figures as one line."""
        return (
            f"H-mean {self.hmean:.3f} with perfect maps; {self.small:,} of {self.polygons:,} "
            f"polygons under {self.min_size:g} px (measured on {self.samples:,} samples)"
        )

    def warning(self) -> str:
        """Return what the view costs and what to do, as a sentence; empty if it costs little."""
        if self.hmean >= ENOUGH:
            return ""
        cost = f"even perfect maps give only H-mean {self.hmean:.3f} in this view"
        if self.better_size is None:
            return f"{cost}; no size was found that allows {ENOUGH:g}"
        height, width = self.better_size
        size = str(height) if height == width else f"{height}x{width}"
        return (
            f"{cost}; size {size} allows {self.better_hmean:.3f}: the smallest above {ENOUGH:g}, "
            f"while `--size auto` takes the smallest that allows {AUTO_SHARE:g} of full size"
        )


def bounds_metadata(bounds: Mapping[str, ViewBound]) -> dict[str, Any]:
    """Return the manifest's entry: view name to figures."""
    return {_BOUNDS: {name: asdict(bound) for name, bound in bounds.items()}}


def recorded_bounds(metadata: Mapping[str, Any]) -> dict[str, ViewBound]:
    """Read the figures from a manifest; what is not understood is left out."""
    found = metadata.get(_BOUNDS)
    bounds = {}
    for name, figures in found.items() if isinstance(found, Mapping) else ():
        try:
            _BOUND(figures, f"metadata.{_BOUNDS}.{name}")
        except SchemaError:
            continue  # the manifest's metadata may be anybody's
        size, better = figures.get("better_size"), figures.get("better_hmean")
        better_size = None if size is None or better is None else (size[0], size[1])
        known = {field: figures[field] for field in _FIGURES}
        bounds[name] = ViewBound(**known, better_size=better_size, better_hmean=better)
    return bounds
