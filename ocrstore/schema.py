"""The built-in columns of a view: roles, dtypes, shapes, names in batches, colours.

A further column of the default view is a row of this table and the code that makes it
(`building/derive.py`); everything else reads the table.
"""

from __future__ import annotations

from dataclasses import dataclass

PICTURE, MAP, MASK, MATRIX = "picture", "map", "mask", "matrix"
"""Roles: stored as (H, W, 3), (H, W), (H, W) and (3, 3)."""


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """One built-in column."""

    name: str
    """Its name in the recipe and, without the view's prefix, in the store."""
    role: str
    dtypes: tuple[str, ...]
    """Those it may have, the default first."""
    batch_name: str
    sample_name: str
    colour: tuple[int, int, int] = (0, 0, 0)
    """RGB of overlays; the style sheets of viewer and report have the same."""

    def shape(self, size: tuple[int | None, int | None]) -> tuple[int | None, ...]:
        """Return its shape in a view of a size (height, width); None varies."""
        height, width = size if self.name != IMAGE else (None, None)
        if self.role == MATRIX:
            return (3, 3)
        return (height, width, 3) if self.role == PICTURE else (height, width)


IMAGE = "image"
"""The whole pictures; only the default view has them."""
TENSOR = "tensor"
"""The pictures as a view."""
INVERSE_MATRIX = "inverse_matrix"
"""From the view to the upright picture."""

COUNTED, IGNORED = (0, 230, 118), (255, 82, 82)
"""RGB of polygons that count and of those that are ignored."""

_FLOATS, _FLAGS = ("float16", "float32"), ("uint8", "bool")
COLUMNS = {
    column.name: column
    for column in (
        BuiltIn(IMAGE, PICTURE, ("uint8",), "images", "image"),
        BuiltIn(TENSOR, PICTURE, ("uint8",), "images", "image"),
        BuiltIn("prob_map", MAP, _FLOATS, "prob_maps", "prob_map", (236, 72, 220)),
        BuiltIn("thresh_map", MAP, _FLOATS, "thresh_maps", "thresh_map", (250, 204, 21)),
        BuiltIn("prob_mask", MASK, _FLAGS, "prob_masks", "prob_mask", (255, 45, 85)),
        BuiltIn("thresh_mask", MASK, _FLAGS, "thresh_masks", "thresh_mask", (0, 190, 255)),
        BuiltIn(INVERSE_MATRIX, MATRIX, ("float64",), INVERSE_MATRIX, INVERSE_MATRIX),
    )
}
"""The table, in the order of columns in a store and of tensors in a batch."""
VIEW_COLUMNS = tuple(name for name in COLUMNS if name != IMAGE)
"""Those that a further view has, too."""
MAPS = tuple(name for name, column in COLUMNS.items() if column.role in (MAP, MASK))


def default_dtype(name: str) -> str:
    """Return a column's default dtype; empty for an unknown name."""
    return COLUMNS[name].dtypes[0] if name in COLUMNS else ""
