"""How a picture becomes a view: the immutable recipe, its JSON form, file, fingerprint and diff.

The work itself is done by `geometry`, `pipeline`, `maps` and `targets`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from ocrstore.errors import SchemaError
from ocrstore.format.codecs import CODECS, LOSSLESS
from ocrstore.format.columns import DTYPES
from ocrstore.geometry import Geometry, Matrix, Pixels, longest_side, stretch
from ocrstore.maps import ALGORITHM, MapParams
from ocrstore.metadata import diff_json
from ocrstore.schema import COLUMNS, IMAGE, INVERSE_MATRIX, MAPS, TENSOR, default_dtype
from ocrstore.targets import Shape, TargetFunction, Targets, give_targets

if TYPE_CHECKING:
    from ocrstore.pipeline import Pipeline

GEOMETRIES = ("longest", "stretch", "pipeline")
# the first two change no stored byte; the last is there for whoever finds other bytes
_NOT_FINGERPRINTED = ("mean", "std", "made_with")

_COMPRESSED_MAPS = dict.fromkeys(MAPS, LOSSLESS)
PRESETS: Mapping[str, Mapping[str, str]] = {
    "fast": {},
    "balanced": {IMAGE: "file", **_COMPRESSED_MAPS},
    "small": {IMAGE: "file", TENSOR: LOSSLESS, **_COMPRESSED_MAPS},
}
"""Column to codec, where it is not raw. All are exact, and none leaves a picture out."""
DEFAULT_PRESET = "balanced"
"""Of builds; docs/build.md has the measurements that speak for it."""


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """One column of a view: its logical name, dtype and codec."""

    name: str
    dtype: str
    codec: str = "raw"


DEFAULT_COLUMNS = tuple(ViewColumn(name, default_dtype(name)) for name in COLUMNS)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a picture becomes a view. Recipes with equal fingerprints make the same bytes.

    `Recipe.make` accepts more convenient arguments than this constructor.
    """

    size: tuple[int | None, int | None] = (640, 640)
    """(height, width) of the view; None if a pipeline makes it depend on the picture."""
    geometry: str = "longest"
    interpolation: str = "linear"
    fill: tuple[int, int, int] = (0, 0, 0)
    pipeline: str | None = None
    """An albumentations pipeline in canonical JSON, for geometry "pipeline"."""
    columns: tuple[ViewColumn, ...] = DEFAULT_COLUMNS
    maps: MapParams = field(default_factory=MapParams)
    map_algorithm: str = ALGORITHM
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """For the model: per channel, RGB, of pixels scaled to 0..1. Not applied to stored pixels."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    targets: Targets | None = None
    """The function that draws the targets; DBNet's maps if None."""
    made_with: str | None = None
    """The version of albumentations that first baked the pipeline."""

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def make(
        cls,
        *,
        size: int | Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, str] | None = None,
        preset: str = "fast",
        codecs: Mapping[str, str] | None = None,
        pipeline: object = None,
        targets: str | TargetFunction | None = None,
        allow_modules: Sequence[str] = (),
        **others: Any,
    ) -> Recipe:
        """Make a recipe from convenient arguments.

        Args:
            size: Longest side, or (height, width).
            columns: Column names; all by default.
            dtypes: Column to dtype, if not the default.
            preset: The codecs: "fast" (all raw), "balanced" or "small"; see docs/build.md.
            codecs: Column to codec, if not the preset's.
            pipeline: An albumentations pipeline, its canonical JSON or a Hydra node, instead of
                `size`. A Normalize at its end gives mean and std.
            targets: The function that draws the targets in place of DBNet's maps, or its name
                `module:function`, which is imported.
            allow_modules: Modules besides albumentations whose transforms a serialised pipeline
                may name; they are imported.
            others: Further fields of a Recipe.

        Raises:
            SchemaError: The arguments are invalid, or the pipeline is random.
        """
        if pipeline is not None:
            from ocrstore.pipeline import (
                albumentations_version,
                check_deterministic,
                permit_modules,
            )

            permit_modules(allow_modules)
            if size is not None:
                raise SchemaError("a pipeline determines the size; leave out `size`")
            text, fields = _bake(pipeline, others)
            others |= {
                "pipeline": text,
                "geometry": "pipeline",
                "size": check_deterministic(text),
                "made_with": albumentations_version(),
                **fields,
            }
        elif size is not None:
            others["size"] = _as_size(size)
        if isinstance(columns, str):
            raise SchemaError(f"columns={columns!r}: expected a list of names: [{columns!r}]")
        drawn = None
        if targets is not None:
            drawn = Targets.measure(give_targets(targets), others.get("size", cls().size))
            others["targets"] = drawn
        names = _default_names(drawn) if columns is None else list(columns)
        asked = {"dtypes": dtypes or {}, "codecs": codecs or {}}
        for what, mapping in asked.items():
            if not isinstance(mapping, Mapping):
                raise SchemaError(f"{what}={mapping!r}: expected a mapping of column names")
            for name in mapping.keys() - set(names):
                raise SchemaError(f"{what}: {name!r} is not one of the columns {names}")
        others["columns"] = tuple(
            ViewColumn(
                name,
                asked["dtypes"].get(name, _default_dtype(name, drawn)),
                asked["codecs"].get(name, preset_codec(preset, name)),
            )
            for name in names
        )
        return cls(**others)

    def with_columns(
        self,
        columns: Sequence[str] | None = None,
        codecs: Mapping[str, str] | None = None,
        *,
        preset: str = "fast",
    ) -> Recipe:
        """Return the same recipe with other columns or codecs; those that it has keep theirs."""
        kept = {column.name: column for column in self.columns}
        names = self.names if columns is None else columns
        made = Recipe.make(
            columns=names,
            preset=preset,
            dtypes={name: kept[name].dtype for name in names if name in kept},
            codecs={name: kept[name].codec for name in names if name in kept} | dict(codecs or {}),
        )
        return dataclasses.replace(self, columns=made.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The logical names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def view_name(self) -> str:
        """Default name of a view of this recipe: its size."""
        height, width = self.size
        if height is None or width is None:
            return "pipeline"
        return str(height) if height == width else f"{height}x{width}"

    @property
    def fingerprint(self) -> str:
        """Hash of everything that the stored bytes depend on: 32 hexadecimal digits."""
        return recipe_fingerprint(self.to_json())

    def shape(self, name: str) -> Shape:
        """Return the shape of a column; None varies."""
        if name in COLUMNS:
            return COLUMNS[name].shape(self.size)
        return dict(self.targets.arrays)[name].shape if self.targets is not None else ()

    def resized(self, side: int) -> Recipe:
        """Return the recipe for views of side x side pixels."""
        targets = self.targets
        if targets is not None:
            targets = Targets.measure(targets.function, (side, side))
        return dataclasses.replace(self, size=(side, side), targets=targets)

    def place(self, picture_size: tuple[int, int]) -> Geometry:
        """Return the geometry for pictures of a size (height, width)."""
        if self.pipeline is not None:
            return _pipeline(self.pipeline).geometry(picture_size)
        height, width = self.size
        assert height is not None and width is not None  # None only with a pipeline
        if self.geometry == "stretch":
            return stretch(picture_size, (height, width), interpolation=self.interpolation)
        return longest_side(
            picture_size, (height, width), interpolation=self.interpolation, fill=self.fill
        )

    def draw(self, pixels: Pixels) -> tuple[Pixels, Matrix]:
        """Return a picture as a view, and the matrix from picture to view. Thread-safe."""
        if self.pipeline is not None:
            return _pipeline(self.pipeline).draw(pixels)
        geometry = self.place((pixels.shape[0], pixels.shape[1]))
        return geometry.apply(pixels), geometry.matrix

    def with_codecs(self, codecs: Mapping[str, str]) -> Recipe:
        """Return a copy with other codecs for some columns."""
        columns = tuple(replace(c, codec=codecs.get(c.name, c.codec)) for c in self.columns)
        return replace(self, columns=columns)

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as a dict for json.dumps."""
        described: dict[str, Any] = {
            "size": list(self.size),
            "geometry": self.geometry,
            "interpolation": self.interpolation,
            "fill": list(self.fill),
            "pipeline": None if self.pipeline is None else json.loads(self.pipeline),
            "columns": {c.name: {"dtype": c.dtype, "codec": c.codec} for c in self.columns},
            "maps": self.maps.to_json(),
            "map_algorithm": self.map_algorithm,
            "mean": list(self.mean),
            "std": list(self.std),
        }
        # only where they are used: recipes from before they were there keep their fingerprints
        if self.targets is not None:
            described["targets"] = self.targets.to_json()
        if self.made_with is not None:
            described["made_with"] = self.made_with
        return described

    @classmethod
    def from_json(cls, described: Mapping[str, Any], *, preset: str = "fast") -> Recipe:
        """Make a recipe from the result of `to_json`; missing fields have their default.

        Args:
            described: The fields; `targets` may also be a name `module:function` of a function that
                was given before.
            preset: The codecs of columns for which no codec is given.

        Raises:
            SchemaError: Unknown fields or invalid values.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        given = dict(described)
        _refuse_unknown("recipe", given, known)
        try:
            if given.get("pipeline") is not None:
                given["pipeline"], fields = _bake(given["pipeline"], given)
                given = {"geometry": "pipeline", **given, **fields}
            if "size" in given:
                given["size"] = _as_size(given["size"])
            if isinstance(given.get("targets"), str):
                given["targets"] = Targets.measure(given["targets"], given.get("size", cls().size))
            elif given.get("targets") is not None:
                given["targets"] = Targets.from_json(given["targets"])
            for name, kind in (("fill", int), ("mean", float), ("std", float)):
                if name in given:
                    given[name] = tuple(kind(value) for value in given[name])
            names = given.get("columns", _default_names(given.get("targets")))
            given["columns"] = _as_columns(names, given.get("targets"), preset)
            if "maps" in given:
                _refuse_unknown(
                    "maps", given["maps"], [f.name for f in dataclasses.fields(MapParams)]
                )
                given["maps"] = MapParams(**given["maps"])
            if given.get("pipeline") is not None and "size" not in given:
                # last, because it runs the pipeline
                from ocrstore.pipeline import albumentations_version, check_deterministic

                given["size"] = check_deterministic(given["pipeline"])
                given["made_with"] = albumentations_version()
            return cls(**given)
        except (TypeError, ValueError, AttributeError, OverflowError) as exc:
            if isinstance(exc, SchemaError):
                raise
            raise SchemaError(f"not a recipe: {exc}") from exc

    def diff(self, other: Recipe) -> list[str]:
        """Return the differences to another recipe, like `maps.shrink_ratio: 0.4 -> 0.5`."""
        one, two = self.to_json(), other.to_json()
        if None in (self.made_with, other.made_with):  # not known to differ
            one.pop("made_with", None)
            two.pop("made_with", None)
        return diff_json(one, two)


def recipe_fingerprint(described: Mapping[str, Any]) -> str:
    """Return the fingerprint of a recipe in JSON form."""
    kept = {k: v for k, v in described.items() if k not in _NOT_FINGERPRINTED}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(text.encode())


def preset_codec(preset: str, column: str) -> str:
    """Return the codec of a column in a preset; SchemaError for an unknown preset."""
    if preset not in PRESETS:
        raise SchemaError(f"unknown preset {preset!r}; known: {', '.join(PRESETS)}")
    return PRESETS[preset].get(column, "raw")


def read_recipe(
    path: Path | str, *, targets: str | TargetFunction | None = None, preset: str = "fast"
) -> Recipe:
    """Read a recipe, or a pipeline, from a YAML or JSON file.

    Args:
        path: A file with fields of a recipe, a pipeline as albumentations saves it, or the Hydra
            node of one.
        targets: The function that draws the targets. A file that names one in its field `targets`
            does not make it run: it has to be given here, too.
        preset: The codecs of columns for which the file gives none.

    Raises:
        SchemaError: The file cannot be read, or is not a valid recipe.
    """
    from ocrstore.pipeline_json import is_pipeline, read_yaml

    path = Path(path)
    described = read_yaml(path, what="recipe")
    try:
        if is_pipeline(described):
            return Recipe.make(pipeline=described, targets=targets, preset=preset)
        if not isinstance(described, Mapping):
            raise SchemaError(
                f"expected a mapping of recipe fields, found {type(described).__name__}"
            )
        given = dict(described)
        if isinstance(given.get("pipeline"), str):
            given["pipeline"] = read_yaml(path.parent / given["pipeline"], what="pipeline")
        if targets is not None:
            name, named = give_targets(targets), given.get("targets")
            named = named.get("function") if isinstance(named, Mapping) else named
            if named not in (None, name):
                raise SchemaError(f"its targets are drawn by {named}, not by {name}")
            given["targets"] = name
        return Recipe.from_json(given, preset=preset)
    except SchemaError as exc:
        raise SchemaError(f"{path}: {exc}") from exc


def _as_size(size: Any) -> tuple[int | None, int | None]:
    if isinstance(size, int) and not isinstance(size, bool):
        return size, size
    values = tuple(size) if isinstance(size, Sequence) else ()
    if len(values) != 2:
        raise SchemaError(f"size has to be an int or (height, width), not {size!r}")
    return values[0], values[1]


def _bake(pipeline: Any, given: Mapping[str, Any]) -> tuple[str, dict[str, tuple[float, ...]]]:
    """Return a pipeline as canonical JSON, and mean and std if it normalises."""
    from ocrstore.pipeline_json import bake_json

    text, fields = bake_json(json.loads(pipeline) if isinstance(pipeline, str) else pipeline)
    for name, value in fields.items():
        if name in given and tuple(given[name]) != value:
            raise SchemaError(
                f"{name} is {list(given[name])}, and the pipeline ends with a Normalize by "
                f"{list(value)}; leave out one of them"
            )
    return text, fields


def _default_names(targets: Targets | None) -> list[str]:
    if targets is None:
        return list(COLUMNS)
    return [IMAGE, TENSOR, *targets.names, INVERSE_MATRIX]


def _default_dtype(name: str, targets: Targets | None) -> str:
    drawn = {} if targets is None else dict(targets.arrays)
    return drawn[name].dtype if name in drawn and name not in COLUMNS else default_dtype(name)


def _as_columns(columns: Any, targets: Targets | None, preset: str) -> tuple[ViewColumn, ...]:
    if isinstance(columns, Mapping):
        made = []
        for name, given in columns.items():
            given = given or {}
            _refuse_unknown(f"columns.{name}", given, ["dtype", "codec"])
            dtype = given.get("dtype", _default_dtype(name, targets))
            codec = given.get("codec", preset_codec(preset, name))
            made.append(ViewColumn(str(name), dtype, codec))
        return tuple(made)
    if isinstance(columns, str):
        raise SchemaError(f"columns has to be a list or a mapping, not {columns!r}")
    return tuple(
        ViewColumn(str(name), _default_dtype(name, targets), preset_codec(preset, name))
        for name in columns
    )


def _refuse_unknown(where: str, given: Any, known: Sequence[str]) -> None:
    if not isinstance(given, Mapping):
        raise SchemaError(f"{where} has to be a mapping, not {given!r}")
    unknown = sorted(str(name) for name in given if name not in known)
    if unknown:
        raise SchemaError(f"{where}: unknown field {', '.join(unknown)}; known: {', '.join(known)}")


def _check(recipe: Recipe) -> None:
    if recipe.geometry not in GEOMETRIES:
        raise SchemaError(f"unknown geometry {recipe.geometry!r}; known: {', '.join(GEOMETRIES)}")
    if (recipe.pipeline is None) == (recipe.geometry == "pipeline"):
        raise SchemaError('geometry "pipeline" and `pipeline` require each other')
    for side in recipe.size:
        if side is None and recipe.pipeline is not None:
            continue
        if not isinstance(side, int) or isinstance(side, bool) or not 1 <= side <= 65536:
            raise SchemaError(f"size has to be two ints from 1 to 65536, not {recipe.size}")
    if len(recipe.fill) != 3 or not all(0 <= value <= 255 for value in recipe.fill):
        raise SchemaError(f"fill has to be three ints from 0 to 255, not {recipe.fill}")
    finite = all(math.isfinite(value) for value in (*recipe.mean, *recipe.std))
    if len(recipe.mean) != 3 or len(recipe.std) != 3 or not finite or min(recipe.std) <= 0:
        raise SchemaError("mean and std have to be three finite numbers each, std above 0")
    if not isinstance(recipe.made_with, str | None):
        raise SchemaError(f"made_with has to be a string, not {recipe.made_with!r}")
    names = recipe.names
    if len(set(names)) != len(names) or not names:
        raise SchemaError(f"columns have to be distinct and at least one: {names}")
    known = _default_names(recipe.targets)
    for column in recipe.columns:
        if column.name not in known:
            raise SchemaError(f"unknown column {column.name!r}; known: {', '.join(known)}")
        dtypes = COLUMNS[column.name].dtypes if column.name in COLUMNS else DTYPES
        if column.dtype not in dtypes:
            allowed = " or ".join(dtypes)
            raise SchemaError(f"column {column.name} has to be {allowed}, not {column.dtype!r}")
        if column.codec not in CODECS:
            raise SchemaError(
                f"column {column.name}: unknown codec {column.codec!r}; known: {', '.join(CODECS)}"
            )
        if column.codec in ("jpeg", "file") and column.name != IMAGE:
            raise SchemaError(
                f"column {column.name}: codec {column.codec} stores the source's file, so only "
                "`image` can have it"
            )
    if recipe.geometry != "pipeline":
        recipe.place((1, 1))  # raises for an unknown interpolation


_made = threading.local()


def _pipeline(described: str) -> Pipeline:
    """Return a pipeline of this thread: albumentations keeps state while it runs."""
    from ocrstore.pipeline import Pipeline

    made: Pipeline | None = getattr(_made, "pipeline", None)
    if made is None or made.described != described:
        made = _made.pipeline = Pipeline(described)
    return made
