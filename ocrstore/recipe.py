"""How a picture becomes a view: the immutable recipe, its JSON form, file, fingerprint and diff.

The work itself is done by `geometry`, `pipeline` and `maps`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from ocrstore.errors import SchemaError
from ocrstore.format.codecs import CODECS
from ocrstore.geometry import Geometry, Matrix, Pixels, longest_side, stretch
from ocrstore.maps import ALGORITHM, MapParams
from ocrstore.metadata import diff_json
from ocrstore.schema import COLUMNS, IMAGE, default_dtype

if TYPE_CHECKING:
    from ocrstore.pipeline import Pipeline

GEOMETRIES = ("longest", "stretch", "pipeline")
# not part of the fingerprint, because they change no stored byte
_NOT_FINGERPRINTED = ("mean", "std")


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

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def make(
        cls,
        *,
        size: int | Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, str] | None = None,
        codecs: Mapping[str, str] | None = None,
        pipeline: object = None,
        allow_modules: Sequence[str] = (),
        **others: Any,
    ) -> Recipe:
        """Make a recipe from convenient arguments.

        Args:
            size: Longest side, or (height, width).
            columns: Column names; all by default.
            dtypes: Column to dtype, if not the default.
            codecs: Column to codec, if not raw.
            pipeline: An albumentations pipeline or its canonical JSON, instead of `size`.
            allow_modules: Modules besides albumentations whose transforms a serialised pipeline
                may name; they are imported.
            others: Further fields of a Recipe.

        Raises:
            SchemaError: The arguments are invalid, or the pipeline is random.
        """
        if pipeline is not None:
            from ocrstore.pipeline import check_deterministic, permit_modules, to_json

            permit_modules(allow_modules)
            if size is not None:
                raise SchemaError("a pipeline determines the size; leave out `size`")
            text = pipeline if isinstance(pipeline, str) else to_json(pipeline)
            others |= {
                "pipeline": text,
                "geometry": "pipeline",
                "size": check_deterministic(text),
            }
        elif size is not None:
            others["size"] = _as_size(size)
        if isinstance(columns, str):
            raise SchemaError(f"columns={columns!r}: expected a list of names: [{columns!r}]")
        names = list(COLUMNS) if columns is None else list(columns)
        asked = {"dtypes": dtypes or {}, "codecs": codecs or {}}
        for what, mapping in asked.items():
            if not isinstance(mapping, Mapping):
                raise SchemaError(f"{what}={mapping!r}: expected a mapping of column names")
            for name in mapping.keys() - set(names):
                raise SchemaError(f"{what}: {name!r} is not one of the columns {names}")
        others["columns"] = tuple(
            ViewColumn(
                name,
                asked["dtypes"].get(name, default_dtype(name)),
                asked["codecs"].get(name, "raw"),
            )
            for name in names
        )
        return cls(**others)

    def with_columns(
        self, columns: Sequence[str] | None = None, codecs: Mapping[str, str] | None = None
    ) -> Recipe:
        """Return the same recipe with other columns or codecs; those that it has keep theirs."""
        kept = {column.name: column for column in self.columns}
        names = self.names if columns is None else columns
        made = Recipe.make(
            columns=names,
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
        kept = {k: v for k, v in self.to_json().items() if k not in _NOT_FINGERPRINTED}
        text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
        return xxhash.xxh3_128_hexdigest(text.encode())

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

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as a dict for json.dumps."""
        return {
            "size": list(self.size),
            "geometry": self.geometry,
            "interpolation": self.interpolation,
            "fill": list(self.fill),
            "pipeline": None if self.pipeline is None else json.loads(self.pipeline),
            "columns": {c.name: {"dtype": c.dtype, "codec": c.codec} for c in self.columns},
            "maps": dataclasses.asdict(self.maps),
            "map_algorithm": self.map_algorithm,
            "mean": list(self.mean),
            "std": list(self.std),
        }

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Recipe:
        """Make a recipe from the result of `to_json`; missing fields have their default.

        Raises:
            SchemaError: Unknown fields or invalid values.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        given = dict(described)
        _refuse_unknown("recipe", given, known)
        try:
            for name, kind in (("fill", int), ("mean", float), ("std", float)):
                if name in given:
                    given[name] = tuple(kind(value) for value in given[name])
            if "columns" in given:
                given["columns"] = _as_columns(given["columns"])
            if "maps" in given:
                _refuse_unknown(
                    "maps", given["maps"], [f.name for f in dataclasses.fields(MapParams)]
                )
                given["maps"] = MapParams(**given["maps"])
            if given.get("pipeline") is not None:
                from ocrstore.pipeline import check_deterministic, to_json

                given["pipeline"] = to_json(given["pipeline"])
                given.setdefault("geometry", "pipeline")
                if "size" not in given:
                    given["size"] = check_deterministic(given["pipeline"])
            if "size" in given:
                given["size"] = _as_size(given["size"])
            return cls(**given)
        except (TypeError, ValueError, AttributeError, OverflowError) as exc:
            if isinstance(exc, SchemaError):
                raise
            raise SchemaError(f"not a recipe: {exc}") from exc

    def diff(self, other: Recipe) -> list[str]:
        """Return the differences to another recipe, like `maps.shrink_ratio: 0.4 -> 0.5`."""
        return diff_json(self.to_json(), other.to_json())


def read_recipe(path: Path | str) -> Recipe:
    """Read a recipe, or a pipeline saved by albumentations, from a YAML or JSON file.

    Raises:
        SchemaError: The file cannot be read, or is not a valid recipe.
    """
    from ocrstore.pipeline import read_pipeline, read_yaml

    path = Path(path)
    described = read_yaml(path, what="recipe")
    if not isinstance(described, Mapping):
        raise SchemaError(
            f"{path}: expected a mapping of recipe fields, found {type(described).__name__}"
        )
    try:
        if "transform" in described or "__class_fullname__" in described:
            return Recipe.make(pipeline=described)
        given = dict(described)
        if isinstance(given.get("pipeline"), str):
            text = read_pipeline(path.parent / given["pipeline"])
            given["pipeline"] = json.loads(text)
        return Recipe.from_json(given)
    except SchemaError as exc:
        raise SchemaError(f"{path}: {exc}") from exc


def _as_size(size: Any) -> tuple[int | None, int | None]:
    if isinstance(size, int) and not isinstance(size, bool):
        return size, size
    values = tuple(size) if isinstance(size, Sequence) else ()
    if len(values) != 2:
        raise SchemaError(f"size has to be an int or (height, width), not {size!r}")
    return values[0], values[1]


def _as_columns(columns: Any) -> tuple[ViewColumn, ...]:
    if isinstance(columns, Mapping):
        made = []
        for name, given in columns.items():
            given = given or {}
            _refuse_unknown(f"columns.{name}", given, ["dtype", "codec"])
            dtype = given.get("dtype", default_dtype(name))
            made.append(ViewColumn(str(name), dtype, given.get("codec", "raw")))
        return tuple(made)
    if isinstance(columns, str):
        raise SchemaError(f"columns has to be a list or a mapping, not {columns!r}")
    return tuple(ViewColumn(str(name), default_dtype(name)) for name in columns)


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
    names = recipe.names
    if len(set(names)) != len(names) or not names:
        raise SchemaError(f"columns have to be distinct and at least one: {names}")
    for column in recipe.columns:
        if column.name not in COLUMNS:
            raise SchemaError(f"unknown column {column.name!r}; known: {', '.join(COLUMNS)}")
        if column.dtype not in COLUMNS[column.name].dtypes:
            allowed = " or ".join(COLUMNS[column.name].dtypes)
            raise SchemaError(f"column {column.name} has to be {allowed}, not {column.dtype!r}")
        if column.codec not in CODECS:
            raise SchemaError(
                f"column {column.name}: unknown codec {column.codec!r}; known: {', '.join(CODECS)}"
            )
        if column.codec == "jpeg" and column.name != IMAGE:
            raise SchemaError(
                f"column {column.name}: codec jpeg stores the source's file, so only `image` can "
                "have it"
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
