"""The options that describe a view, shared by `build` and `add-view`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from ocrstore.errors import SourceError
from ocrstore.maps import ALGORITHM
from ocrstore.recipe import CODECS, DTYPES
from ocrstore.sources import all_dialects
from ocrstore.store import Store
from ocrstore.views import IMPORTED, View, stored_views

F = TypeVar("F", bound=Callable[..., Any])
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, path_type=Path)


def _size(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Turn `960` or `736x1280` into (height, width)."""
    if value is None:
        return None
    parts = value.lower().split("x")
    if len(parts) > 2 or not all(part.isdigit() and int(part) for part in parts):
        raise click.BadParameter(f"{value!r} is no size; write 960, or 736x1280 (height first)")
    return int(parts[0]), int(parts[-1])


def _names(_: click.Context, __: click.Parameter, value: str | None) -> list[str] | None:
    """Split column names at commas, and refuse unknown ones."""
    if value is None:
        return None
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name not in DTYPES:
            raise click.BadParameter(f"{name!r} is no column; there are: {', '.join(DTYPES)}")
    return names


def _codecs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Turn `image=zstd` into a mapping, and refuse unknown names."""
    codecs = {}
    for value in values:
        column, _sign, codec = value.partition("=")
        if column not in DTYPES or codec not in CODECS:
            raise click.BadParameter(
                f"{value!r}: write COLUMN=CODEC with a column of {', '.join(DTYPES)} and a codec "
                f"of {', '.join(CODECS)}"
            )
        codecs[column] = codec
    return codecs


class _WrongSourceError(click.ClickException):
    exit_code = 2


@contextmanager
def wrong_source() -> Iterator[None]:
    """Make wrong use (exit code 2) of a source that cannot be opened; for opening it only."""
    try:
        yield
    except SourceError as exc:
        raise _WrongSourceError(str(exc)) from exc


def stored_view(store: Path, *, maps: bool) -> View | None:
    """Return a store's default view, to be built again by its own recipe; None if there is none."""
    if not store.exists():
        return None
    with Store(store) as opened:
        views = stored_views(opened.metadata, where=str(store))
    if not views:
        return None
    view = views[0]
    if view.recipe.map_algorithm.startswith(IMPORTED) and not maps:
        raise click.UsageError(
            f"{store} was built with map files: name their folder with --maps, or give --size or "
            "--recipe to have its maps drawn."
        )
    # maps are drawn as this version draws them, whatever drew the store's
    return replace(view, recipe=replace(view.recipe, map_algorithm=ALGORITHM))


def recipe_options(command: F) -> F:
    """Add the options that describe a view."""
    for option in (
        click.option("--view", help="The view's name; by default its size."),
        click.option(
            "--recipe",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A recipe file (YAML or JSON), or a saved albumentations pipeline.",
        ),
        click.option(
            "--codec",
            "codecs",
            callback=_codecs,
            multiple=True,
            metavar="COLUMN=CODEC",
            help="A column's codec: raw (default), zstd, lz4; for image also jpeg. Repeatable.",
        ),
        click.option(
            "--columns",
            callback=_names,
            metavar="NAMES",
            help="Columns to make, with commas between them.",
        ),
        click.option(
            "--size",
            callback=_size,
            metavar="SIZE",
            help="Longest side to this, then padded: 640 (default), or 736x1280 (height first).",
        ),
    ):
        command = option(command)
    return command


def source_options(command: F) -> F:
    """Add the options that describe a source beside its images folder."""
    for option in (
        click.option(
            "--format",
            "format_",
            type=click.Choice([dialect.name for dialect in all_dialects()]),
            help="The annotations' dialect; else recognised.",
        ),
        click.option(
            "--annotations", type=EXISTING, help="The annotations: a file, or a folder of files."
        ),
    ):
        command = option(command)
    return command
