"""Functions that draw the targets of a detector from polygons, for recipes and for `transform=`.

A function takes (polygons, ignored, height, width): (n, 2) arrays of x and y in pixels of the view,
a flag for each, and the size of the view. It returns a dict of named arrays. What it returns may
depend on nothing else. `ocrstore.maps.dbnet_maps` is such a function.

A recipe records a function by its name and its version, the attribute `version` of the function
("1" without). A store, a checkpoint or a recipe file may record any name, and importing a module
runs its code, so a recorded name is shown and never imported: who draws gives it again.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.errors import SchemaError
from ocrstore.keys import shown
from ocrstore.schema import COLUMNS, IMAGE, INVERSE_MATRIX, MAPS, TENSOR

Arrays = Mapping[str, npt.NDArray[Any]]
TargetFunction = Callable[[Sequence[npt.NDArray[Any]], Sequence[bool], int, int], Arrays]
Size = tuple[int | None, int | None]
Shape = tuple[int | None, ...]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}\Z")
_TAKEN = (
    *(IMAGE, TENSOR, INVERSE_MATRIX, "images", "row", "rows", "polygons", "ignored", "texts"),
    *("image_filename", "image_path", "raw_size", "orientation", "source_orientation", "shape"),
    *("canonical_size", "metadata", "whole_image", "whole_images"),
)
"""Names of other things in samples and batches."""
_OPEN = ((64, 96), (96, 160))
"""Sizes at which arrays are measured if the size of the view depends on the picture."""
_given: dict[str, TargetFunction] = {}
"""The functions that the user named or handed over in this process, by their names."""


def give_targets(targets: str | TargetFunction) -> str:
    """Import a function `module:function`, or take one; return its name, for recipes.

    Raises:
        SchemaError: It cannot be imported, or has no name by which others could import it.
    """
    if not isinstance(targets, str):
        if not callable(targets):
            raise SchemaError(f"targets has to be a function or its name, not {targets!r}")
        name = f"{getattr(targets, '__module__', '')}:{getattr(targets, '__qualname__', '')}"
        if not all(part.isidentifier() for part in name.replace(":", ".").split(".")):
            raise SchemaError(
                f"targets: {targets!r} cannot be part of a recipe, because nobody could import it; "
                "use a function of a module"
            )
        _given[name] = targets
        return name
    module, sign, function = targets.partition(":")
    if not (module and sign and function):
        raise SchemaError(f"targets: expected module:function, found {targets!r}")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as exc:
        raise SchemaError(f"targets {targets}: it cannot be imported: {exc}") from exc
    if not callable(found):
        raise SchemaError(f"targets {targets}: expected a function, found {type(found).__name__}")
    _given[targets] = found
    return targets


@dataclass(frozen=True, slots=True)
class TargetArray:
    """One named array of a target function."""

    dtype: str
    shape: Shape
    """None where it depends on the picture."""


@dataclass(frozen=True, slots=True)
class Targets:
    """A target function as a recipe records it."""

    function: str
    """`module:function`"""
    version: str
    arrays: tuple[tuple[str, TargetArray], ...]

    @classmethod
    def measure(cls, name: str, size: Size) -> Targets:
        """Record a function that was given, and the arrays that it draws for a size of views.

        Raises:
            SchemaError: It was not given, fails, or returns what cannot be stored.
        """
        height, width = size
        sizes = _OPEN if height is None or width is None else ((height, width),)
        drawn = [draw_targets(_function(name), name, (), (), *one) for one in sizes]
        arrays = []
        for key, array in drawn[0].items():
            shapes = [other[key].shape for other in drawn]
            shape = tuple(a if a == b else None for a, b in zip(shapes[0], shapes[-1], strict=True))
            if key in MAPS and shape != COLUMNS[key].shape(size):
                raise SchemaError(f"targets {name}: {key} has to be (height, width), not {shape}")
            arrays.append((key, TargetArray(array.dtype.name, shape)))
        return cls(name, _version(name), tuple(arrays))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return tuple(name for name, _ in self.arrays)

    def require(self) -> None:
        """Raise SchemaError unless the function was given, in the recorded version."""
        found = _version(self.function)
        if found != self.version:
            raise SchemaError(
                f"the targets were drawn by version {shown(self.version)} of "
                f"{shown(self.function)}, the given one is version {found}"
            )

    def draw(
        self, polygons: Sequence[npt.NDArray[Any]], ignored: Sequence[bool], height: int, width: int
    ) -> dict[str, npt.NDArray[Any]]:
        """Draw the arrays of one view; raises SchemaError if they are not as recorded."""
        function = _function(self.function)
        drawn = draw_targets(function, self.function, polygons, ignored, height, width)
        for name, expected in self.arrays:
            array = drawn.get(name)
            if array is None:
                raise SchemaError(f"targets {self.function} returned no {name!r}")
            fits = len(array.shape) == len(expected.shape) and all(
                side in (None, found)
                for side, found in zip(expected.shape, array.shape, strict=True)
            )
            if not fits or array.dtype.name != expected.dtype:
                raise SchemaError(
                    f"targets {self.function}: {name!r} is {array.dtype} {array.shape}; with no "
                    f"polygons it is {expected.dtype} {expected.shape}"
                )
        return drawn

    def to_json(self) -> dict[str, Any]:
        """Return the record as a dict for json.dumps."""
        arrays = {n: {"dtype": a.dtype, "shape": list(a.shape)} for n, a in self.arrays}
        return {"function": self.function, "version": self.version, "arrays": arrays}

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Targets:
        """Make a record from the result of `to_json`; nothing is imported."""
        try:
            arrays = tuple(
                (str(name), TargetArray(str(array["dtype"]), tuple(array["shape"])))
                for name, array in described["arrays"].items()
            )
            return cls(str(described["function"]), str(described["version"]), arrays)
        except (KeyError, TypeError, AttributeError) as exc:
            raise SchemaError(f"not a record of targets: {exc!r}") from exc


def draw_targets(
    function: TargetFunction,
    name: str,
    polygons: Sequence[npt.NDArray[Any]],
    ignored: Sequence[bool],
    height: int,
    width: int,
) -> dict[str, npt.NDArray[Any]]:
    """Call a target function and check what it returns.

    Raises:
        SchemaError: It failed, or returned something else than named arrays of numbers.
    """
    try:
        returned = function(polygons, ignored, height, width)
    except Exception as exc:  # somebody's function may raise anything
        raise SchemaError(f"targets {name} failed: {type(exc).__name__}: {exc}") from exc
    if not isinstance(returned, Mapping) or not returned:
        raise SchemaError(
            f"targets {name} returned {type(returned).__name__}; expected a dict of named arrays"
        )
    for key, array in returned.items():
        if not isinstance(key, str) or not _NAME.match(key) or key in _TAKEN:
            raise SchemaError(f"targets {name}: an array cannot be called {key!r}")
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise SchemaError(f"targets {name}: {key!r} is not an array of numbers")
    return dict(returned)


def _function(name: str) -> TargetFunction:
    if name not in _given:
        raise SchemaError(
            f"the targets are drawn by {shown(name)}. Code that a file names is run only if you "
            f"name it, too: --targets {shown(name)} (in Python targets={name!r})"
        )
    return _given[name]


def _version(name: str) -> str:
    return str(getattr(_function(name), "version", "1"))
