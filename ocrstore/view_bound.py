"""The accuracy that a view allows, as the manifest records it; reading it computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ocrstore.errors import SchemaError
from ocrstore.metadata import count, listed, number, optional, record

ENOUGH = 0.95
"""A view whose upper bound of H-mean is lower is warned of."""
AUTO_SHARE = 0.98
"""Size "auto" wants this share of what full size allows."""
_KEY = "upper_bounds"
_SHARE = number(0, 1)
_FIELDS = {
    **dict.fromkeys(("samples", "polygons", "small"), count),
    "min_size": number(0),
    **dict.fromkeys(("precision", "recall", "hmean"), _SHARE),
}
_BOUND = record(
    _FIELDS,
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
    return {_KEY: {name: asdict(bound) for name, bound in bounds.items()}}


def recorded_bounds(metadata: Mapping[str, Any]) -> dict[str, ViewBound]:
    """Read the figures from a manifest; what is not understood is left out."""
    found = metadata.get(_KEY)
    bounds = {}
    for name, figures in found.items() if isinstance(found, Mapping) else ():
        try:
            _BOUND(figures, f"metadata.{_KEY}.{name}")
        except SchemaError:
            continue  # the manifest's metadata may be anybody's
        size, better = figures.get("better_size"), figures.get("better_hmean")
        better_size = None if size is None or better is None else (size[0], size[1])
        known = {field: figures[field] for field in _FIELDS}
        bounds[name] = ViewBound(**known, better_size=better_size, better_hmean=better)
    return bounds
