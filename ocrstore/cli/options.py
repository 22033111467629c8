"""Options that several commands share: recipe, source, detector."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ocrstore.cli.console import COUNT, explain_missing
from ocrstore.cli.transfer import SourcePlace
from ocrstore.errors import SourceError
from ocrstore.schema import COLUMNS

if TYPE_CHECKING:
    from ocrstore.building.build import Size
    from ocrstore.views import View

F = TypeVar("F", bound=Callable[..., Any])
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


def _size(_: click.Context, __: click.Parameter, value: str | None) -> Size | None:
    """Parse `960` or `736x1280` into (height, width); `auto` stays."""
    if value is None:
        return None
    if value == "auto":
        return "auto"
    parts = value.lower().split("x")
    if len(parts) > 2 or not all(part.isdigit() and int(part) for part in parts):
        raise click.BadParameter(
            f"{value!r} is not a size; use 960, 736x1280 (height first) or auto"
        )
    return int(parts[0]), int(parts[-1])


def _names(context: click.Context, __: click.Parameter, value: str | None) -> list[str] | None:
    """Parse column names separated by commas."""
    if value is None:
        return None
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name not in COLUMNS and not context.params.get("targets"):
            raise click.BadParameter(f"unknown column {name!r}; choose from {', '.join(COLUMNS)}")
    return names


def _codecs(context: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse values like `image=zstd` into a dict."""
    if not values:
        return {}
    with explain_missing("build", "build"):
        from ocrstore.format.codecs import CODECS
    codecs = {}
    for value in values:
        column, _sign, codec = value.partition("=")
        is_column = column in COLUMNS or context.params.get("targets")
        if not is_column or codec not in CODECS:
            raise click.BadParameter(
                f"{value!r} is not COLUMN=CODEC; columns: {', '.join(COLUMNS)}; "
                f"codecs: {', '.join(CODECS)}"
            )
        codecs[column] = codec
    return codecs


class _WrongSourceError(click.ClickException):
    exit_code = 2


@contextmanager
def wrong_source() -> Iterator[None]:
    """Exit with code 2 if a source cannot be opened; wrap only the opening in it."""
    try:
        yield
    except SourceError as exc:
        raise _WrongSourceError(str(exc)) from exc


def stored_view(store: Path, *, maps: bool, targets: str | None) -> View | None:
    """Return the default view of an existing store or data set, to build it again.

    None if there is none, or none with targets of this function in its present version.
    """
    from ocrstore.catalog import find_catalog, read_catalog

    if find_catalog(store) is None and not store.is_file():
        return None
    from ocrstore.maps import ALGORITHM
    from ocrstore.store import Store
    from ocrstore.views import IMPORTED, built_views

    if find_catalog(store) is not None:
        views = built_views(read_catalog(store))
    else:
        with Store(store) as opened:
            views = built_views(opened)
    if not views:
        return None
    view = views[0]
    if targets is not None:
        from ocrstore.targets import Targets, give_targets

        give_targets(targets)
        drawn = view.recipe.targets
        if drawn is None or drawn != Targets.measure(targets, view.recipe.size):
            return None
    if view.recipe.map_algorithm.startswith(IMPORTED) and not maps:
        raise click.UsageError(
            f"{store} was built with map files: give their folder with --maps, or --size or "
            "--recipe to draw the maps instead."
        )
    # maps are drawn by the algorithm of this version, not by that of the store
    return replace(view, recipe=replace(view.recipe, map_algorithm=ALGORITHM))


targets_option = click.option(
    "--targets",
    metavar="MODULE:FUNCTION",
    is_eager=True,  # the names of columns depend on it
    help="Import this function and draw targets with it in place of DBNet's maps. Each time: a "
    "name that a store records is not imported.",
)

preset_option = click.option(
    "--preset",
    type=click.Choice(["fast", "balanced", "small"]),  # PRESETS of recipe.py, which is not imported
    help="How columns are stored, all exactly: fast (raw), balanced (maps compressed, pictures as "
    "their files) or small (all compressed) [default: balanced; an existing store keeps its "
    "codecs].",
)


def recipe_options(command: F) -> F:
    """Add the options of a recipe to a command."""
    for option in (
        click.option("--view", help="Name of the view; its size by default."),
        click.option(
            "--recipe",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Recipe file (YAML or JSON), or an albumentations pipeline: saved, or a Hydra "
            "node.",
        ),
        targets_option,
        click.option(
            "--codec",
            "codecs",
            callback=_codecs,
            multiple=True,
            metavar="COLUMN=CODEC",
            help="Codec of a column: raw, zstd, lz4, lz4block; for image also file. Repeatable.",
        ),
        preset_option,
        click.option(
            "--columns",
            callback=_names,
            metavar="NAMES",
            help="Columns of the view, separated by commas; all, or those of --recipe, by default.",
        ),
        click.option(
            "--size",
            callback=_size,
            metavar="SIZE",
            help="Scale to this longest side and pad: 640 (default), or 736x1280 (height first), "
            "or auto: the smallest that allows 0.98 of the H-mean at full size.",
        ),
    ):
        command = option(command)
    return command


class DialectName(click.types.StringParamType):
    """The name of a dialect, or `module:Class` of one of the user's own, which is imported."""

    name = "dialect"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002  # click's signature
        """Return what --help shows; the names would need every dialect."""
        return "NAME|MODULE:CLASS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name; a class is registered under its own."""
        with explain_missing("build", "build"):
            from ocrstore.sources import Dialect, all_dialects, register
        module, colon, name = str(value).partition(":")
        if not colon:
            if value not in [dialect.name for dialect in all_dialects()]:
                known = ", ".join(dialect.name for dialect in all_dialects())
                self.fail(f"{value!r} is none of {known}, nor MODULE:CLASS.", param, ctx)
            return str(value)
        if not module or module.startswith(".") or not name:
            self.fail(f"{value!r}: expected MODULE:CLASS, as in mymodule:MyDialect.", param, ctx)
        try:
            found = getattr(importlib.import_module(module), name)
        except Exception as exc:  # the module is the user's own
            self.fail(f"{value!r} cannot be imported: {type(exc).__name__}: {exc}.", param, ctx)
        if not (isinstance(found, type) and issubclass(found, Dialect)):
            self.fail(f"{value!r} is no subclass of ocrstore.sources.Dialect.", param, ctx)
        missing = sorted(found.__abstractmethods__)
        missing += [] if hasattr(found, "name") else ["name"]
        if missing:
            self.fail(
                f"{value!r} is no complete dialect: expected a subclass of "
                f"ocrstore.sources.Dialect that defines {', '.join(missing)}.",
                param,
                ctx,
            )
        try:
            register(found, replace=True)
        except TypeError as exc:
            self.fail(f"{value!r} cannot be made without arguments: {exc}.", param, ctx)
        return str(found.name)


def _pairs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse values like `text=label` into a dict."""
    pairs = dict(value.partition("=")[::2] for value in values)
    if not all(name and value for name, value in pairs.items()):
        raise click.BadParameter("expected NAME=COLUMN, for example text=label.")
    return pairs


def source_options(command: F) -> F:
    """Add the options of a source, besides its place, to a command."""
    for option in (
        click.option(
            "--columns-map",
            callback=_pairs,
            multiple=True,
            metavar="NAME=COLUMN",
            help="Parquet: what a column, or a field of its objects, is called there, for example "
            "text=label. Repeatable.",
        ),
        click.option(
            "--exclude", multiple=True, metavar="PATTERN", help="Leave out pictures. Repeatable."
        ),
        click.option(
            "--include",
            multiple=True,
            metavar="PATTERN",
            help="Only pictures whose key matches this pattern of file names. Repeatable.",
        ),
        click.option(
            "--format",
            "format_",
            type=DialectName(),
            help="Dialect of the annotations, such as icdar or coco; detected by default.",
        ),
        click.option(
            "--annotations",
            type=SourcePlace(exists=True, path_type=Path),
            help="File, folder or archive of annotations, or its URL; searched by default.",
        ),
    ):
        command = option(command)
    return command


device_option = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, xpu, mps."
)


def detector_options(command: F) -> F:
    """Add the options of a detector and its post-processing to a command."""
    for option in (
        click.option("--tf32/--no-tf32", default=True, help="Allow TF32 for float32 on a GPU."),
        click.option(
            "--precision",
            type=click.Choice(["auto", "32", "16-mixed", "bf16-mixed"]),
            default="auto",
            show_default=True,
            help="auto: 16-mixed on CUDA and XPU, else 32.",
        ),
        device_option,
        click.option("--batch-size", type=COUNT, default=8, show_default=True),
        click.option(
            "--polygons", is_flag=True, help="Polygons that follow the text instead of rectangles."
        ),
        click.option(
            "--threshold",
            type=click.FloatRange(0, 1, min_open=True, max_open=True),
            help="Probability above which a pixel is text [default: 0.5; with --rules db 0.3].",
        ),
        click.option(
            "--min-score",
            type=click.FloatRange(0, 1),
            help="Drop boxes below this score [default: 0.6; with --rules db 0.7].",
        ),
        click.option(
            "--rules",
            type=click.Choice(["ocrstore", "db"]),
            help="Post-processing: db is that of the DBNet authors' code, with its thresholds.",
        ),
    ):
        command = option(command)
    return command
