"""What data a checkpoint has learned from: written into it, compared when it is used again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ocrstore.errors import RecipeMismatchError, SchemaError
from ocrstore.recipe import Recipe
from ocrstore.store import Store

KEY = "ocrstore"
"""Where the record lies in a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The store and the recipe that a network was trained with."""

    store_fingerprint: str
    """Of the store's content."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """The JSON of the view's recipe."""
    view: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "store_fingerprint": self.store_fingerprint,
            "recipe": self.recipe,
            "view": self.view,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Provenance:
        """Rebuild a record from what `to_json` returned."""
        return cls(**value)

    @property
    def as_recipe(self) -> Recipe:
        """The recipe as the object that draws views."""
        return Recipe.from_json(self.recipe)

    def differences(self, other: Provenance) -> list[str]:
        """Say field by field how the views differ in what the network sees; this one first.

        How columns are stored (dtype, codec, which of them) is left out: it changes nothing there.
        """
        lines = self.as_recipe.diff(other.as_recipe)
        return [line for line in lines if not line.startswith("columns")]

    def require_same_recipe(self, other: Provenance, *, checkpoint: str, found: str) -> None:
        """Raise an error that shows the difference, unless both are of one recipe."""
        lines = self.differences(other)
        if lines:
            listed = "\n".join(f"  {line}" for line in lines)
            raise RecipeMismatchError(
                f"{checkpoint} was trained with another recipe than {found} has "
                f"(checkpoint -> here):\n{listed}\n"
                "Use a store built with the checkpoint's recipe, or train anew"
            )


def provenance_of(store: Store, *, view: str | None = None) -> Provenance:
    """Describe a view of a store; the default view if none is named."""
    name, record = find_view(store, view)
    return Provenance(store_fingerprint=store.fingerprint, recipe=dict(record["recipe"]), view=name)


def find_view(
    store: Store, view: str | None, *, needs: Sequence[str] = ()
) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the record of a view (the default one if none is named).

    `needs` are columns, by their logical names, without which it is of no use.
    """
    views: Mapping[str, Any] = store.metadata.get("views") or {}
    if not views:
        raise SchemaError(
            f"{store.path} has no baked view: build it with a recipe (`ocrstore build`)"
        )
    name = view or str(store.metadata.get("default_view") or next(iter(views)))
    if name not in views:
        raise SchemaError(f"{store.path} has no view {name!r}; it has {', '.join(views)}")
    missing = [column for column in needs if column not in views[name]["columns"]]
    if missing:
        raise SchemaError(
            f"{store.path}: view {name!r} lacks {', '.join(missing)}. Build it with them"
            " (`ocrstore build` makes them unless its columns are chosen by hand)"
        )
    return name, views[name]
