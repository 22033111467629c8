"""The views a manifest records, as data: readable without anything that drawing them needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ocrstore.store import Store

_ORDINALS = {"linear": "linear", "cubic": "cubic", "area": "area", "nearest": "nearest-pixel"}


@dataclass(frozen=True, slots=True)
class StoredView:
    """One view's recipe, in its JSON form."""

    name: str
    recipe: Mapping[str, Any]
    fingerprint: str
    columns: Mapping[str, str]
    """Logical names of its columns to their names in the store."""
    default: bool

    @property
    def min_size(self) -> float:
        """Polygons smaller than this in the view are ignored."""
        maps = self.recipe.get("maps")
        found = maps.get("min_size") if isinstance(maps, Mapping) else None
        return float(found) if isinstance(found, (int, float)) else 8.0

    def to_json(self) -> dict[str, Any]:
        """Describe the view in JSON terms."""
        return {
            "name": self.name,
            "default": self.default,
            "fingerprint": self.fingerprint,
            "in_words": recipe_in_words(self.recipe),
            "recipe": dict(self.recipe),
            "columns": dict(self.columns),
        }


def views_of(store: Store) -> tuple[StoredView, ...]:
    """Return the views of a store, the default one first; none if it was not built from pictures.

    What is not understood is left out: the manifest's metadata may be anybody's.
    """
    recorded = store.metadata.get("views")
    if not isinstance(recorded, Mapping):
        return ()
    default = store.metadata.get("default_view", next(iter(recorded), None))
    views = [
        StoredView(
            str(name),
            entry["recipe"],
            str(entry.get("fingerprint", "")),
            entry["columns"] if isinstance(entry.get("columns"), Mapping) else {},
            name == default,
        )
        for name, entry in recorded.items()
        if isinstance(entry, Mapping) and isinstance(entry.get("recipe"), Mapping)
    ]
    return tuple(sorted(views, key=lambda view: (not view.default, view.name)))


def recipe_in_words(recipe: Mapping[str, Any]) -> list[str]:
    """Say what a recipe does, one sentence for the picture and one for the maps."""
    lines = [_geometry_in_words(recipe)]
    columns = recipe.get("columns")
    has_maps = not isinstance(columns, Mapping) or bool(
        {"prob_map", "thresh_map", "prob_mask", "thresh_mask"} & columns.keys()
    )
    maps = recipe.get("maps")
    if has_maps and isinstance(maps, Mapping):
        lines.append(
            f"Maps: polygons shrunk by ratio {maps.get('shrink_ratio')}, threshold "
            f"{maps.get('thresh_min')} to {maps.get('thresh_max')}, polygons under "
            f"{_number(maps.get('min_size'))} px ignored ({recipe.get('map_algorithm')})."
        )
    elif not has_maps:
        lines.append("No maps.")
    return lines


def _geometry_in_words(recipe: Mapping[str, Any]) -> str:
    kind = recipe.get("geometry")
    size = recipe.get("size")
    height, width = size if isinstance(size, list) and len(size) == 2 else (None, None)
    resampling = f"{_ORDINALS.get(str(recipe.get('interpolation')), recipe.get('interpolation'))}"
    if kind == "pipeline":
        steps = _pipeline_steps(recipe.get("pipeline"))
        made = f"{height}x{width}" if height and width else "a size that depends on the picture"
        return (
            f"An albumentations pipeline{': ' + ', '.join(steps) if steps else ''}; gives {made}."
        )
    if kind == "stretch":
        return f"Stretched to {height}x{width} (height x width), {resampling} resampling."
    if kind == "longest":
        fit = (
            f"Longest side scaled to {height}"
            if height == width
            else f"Scaled to fit into {height}x{width} (height x width)"
        )
        fill = recipe.get("fill")
        colour = "black" if fill == [0, 0, 0] else f"RGB {fill}"
        return f"{fit}, {resampling} resampling, placed top left, padded with {colour}."
    return f"Geometry {kind!r}, size {size}."


def _pipeline_steps(pipeline: Any) -> list[str]:
    steps = pipeline.get("transform", pipeline) if isinstance(pipeline, Mapping) else None
    inner = steps.get("transforms") if isinstance(steps, Mapping) else None
    if not isinstance(inner, list):
        return []
    names = [
        str(step.get("__class_fullname__", "?")) for step in inner if isinstance(step, Mapping)
    ]
    return [name.rsplit(".", 1)[-1] for name in names]


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
