"""The views of a store: recipe, columns, and their form in the manifest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ocrstore.errors import SchemaError
from ocrstore.format.columns import Column
from ocrstore.recipe import Recipe
from ocrstore.schema import COLUMNS

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}\Z")
IMPORTED = "imported"
"""Prefix of a recipe's `map_algorithm` if maps were imported from files."""


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
        if not self.default and "image" in self.recipe.names:
            raise SchemaError("only the default view has an `image` column")
        if self.recipe.names == ("image",) and not self.default:
            raise SchemaError("a further view needs a column besides `image`")

    @property
    def columns(self) -> dict[str, str]:
        """Logical column names to names in the store, without `image`."""
        prefix = "" if self.default else f"{self.name}/"
        return {name: prefix + name for name in self.recipe.names if name != "image"}

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
            column.dtype, COLUMNS[column.name].shape(view.recipe.size), column.codec
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


def stored_views(metadata: Mapping[str, Any], *, where: str) -> tuple[View, ...]:
    """Read the views from a manifest, default first; empty if it was not built from pictures."""
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
        raise SchemaError(f"{where}: invalid description of views: {exc}") from exc
    return check_views(tuple(sorted(views, key=lambda view: (not view.default, view.name))))
