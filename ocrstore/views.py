"""The views of a store: their recipes, which columns are whose, and how the manifest records it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ocrstore.errors import SchemaError
from ocrstore.recipe import Recipe

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}\Z")
IMPORTED = "imported"
"""Stands in a recipe's `map_algorithm` where maps were taken from files."""


@dataclass(frozen=True, slots=True)
class View:
    """A recipe with a name; the default view's columns go by their bare names."""

    name: str
    recipe: Recipe
    default: bool

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise SchemaError(
                f"a view's name has 1 to 40 letters, digits and _ . -, not {self.name!r}"
            )
        if not self.default and "image" in self.recipe.names:
            raise SchemaError("`image` is no part of a further view; the store has one already")
        if self.recipe.names == ("image",) and not self.default:
            raise SchemaError("a view needs a column of its own")

    @property
    def columns(self) -> dict[str, str]:
        """Logical names of the view's columns to the names they have in the store."""
        prefix = "" if self.default else f"{self.name}/"
        return {name: prefix + name for name in self.recipe.names if name != "image"}

    def to_json(self) -> dict[str, Any]:
        """Describe the view for the manifest."""
        return {
            "recipe": self.recipe.to_json(),
            "fingerprint": self.recipe.fingerprint,
            "columns": self.columns,
        }


def check_views(views: tuple[View, ...]) -> tuple[View, ...]:
    """Return the views, the default one first, or say why they cannot be together."""
    names = [view.name for view in views]
    if len(set(names)) != len(names):
        raise SchemaError(f"views need different names, found {', '.join(names)}; give one --view")
    if [view.default for view in views] != [True] + [False] * (len(views) - 1):
        raise SchemaError("the first view, and no other, is the default one")
    return views


def column_shapes(views: tuple[View, ...]) -> dict[str, tuple[str, tuple[int | None, ...], str]]:
    """Name every column of a store with these views: dtype, shape and codec."""
    columns: dict[str, tuple[str, tuple[int | None, ...], str]] = {}
    for view in views:
        height, width = view.recipe.size
        shapes: dict[str, tuple[int | None, ...]] = {
            "image": (None, None, 3),
            "tensor": (height, width, 3),
            "inverse_matrix": (3, 3),
        }
        for column in view.recipe.columns:
            shape = shapes.get(column.name, (height, width))
            name = view.columns.get(column.name, column.name)
            columns[name] = (column.dtype, shape, column.codec)
    return columns


def views_metadata(views: tuple[View, ...]) -> dict[str, Any]:
    """Describe all views for the manifest, where the order of names is not kept."""
    return {
        "views": {view.name: view.to_json() for view in views},
        "default_view": views[0].name,
    }


def stored_views(metadata: Mapping[str, Any], *, where: str) -> tuple[View, ...]:
    """Read the views from a manifest; empty where the store was not built from pictures."""
    recorded = metadata.get("views")
    if not isinstance(recorded, Mapping) or not recorded:
        return ()
    default = metadata.get("default_view")
    try:
        views = [
            View(name, Recipe.from_json(entry["recipe"]), default=name == default)
            for name, entry in recorded.items()
        ]
    except (KeyError, TypeError) as exc:
        raise SchemaError(f"{where}: its description of views is not understood: {exc}") from exc
    return check_views(tuple(sorted(views, key=lambda view: (not view.default, view.name))))
