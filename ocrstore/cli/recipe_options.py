"""The options that describe a view, shared by `build`, `add-view` and `plan`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ocrstore.recipe import CODECS, DTYPES

F = TypeVar("F", bound=Callable[..., Any])
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, path_type=Path)


class Size(click.ParamType):
    """`960` or `736x1280`, height first."""

    name = "size"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Turn the text into (height, width)."""
        if isinstance(value, tuple):
            return value
        parts = str(value).lower().split("x")
        if len(parts) > 2 or not all(part.isdigit() and int(part) for part in parts):
            self.fail(f"{value!r} is no size; write 960, or 736x1280 (height first)", param, ctx)
        return int(parts[0]), int(parts[-1])


class Names(click.ParamType):
    """A list of column names with commas between them."""

    name = "names"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[str]:
        """Split the text, and refuse unknown names."""
        names = value if isinstance(value, list) else [n.strip() for n in str(value).split(",")]
        for name in names:
            if name not in DTYPES:
                self.fail(f"{name!r} is no column; there are: {', '.join(DTYPES)}", param, ctx)
        return names


class Codec(click.ParamType):
    """`image=zstd`: a column and its codec."""

    name = "column=codec"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split the text, and refuse unknown names."""
        if isinstance(value, tuple):
            return value
        column, _, codec = str(value).partition("=")
        if column not in DTYPES or codec not in CODECS:
            self.fail(
                f"{value!r}: write column=codec with a column of {', '.join(DTYPES)} and a codec "
                f"of {', '.join(CODECS)}",
                param,
                ctx,
            )
        return column, codec


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
            type=Codec(),
            multiple=True,
            metavar="COLUMN=CODEC",
            help="A column's codec: raw (default), zstd, lz4; for image also jpeg. Repeatable.",
        ),
        click.option("--columns", type=Names(), help="Columns to make, with commas between them."),
        click.option(
            "--size", type=Size(), help="Longest side to this, then padded: 640, or 736x1280."
        ),
    ):
        command = option(command)
    return command


def source_options(command: F) -> F:
    """Add the options that describe a source beside its images folder."""
    for option in (
        click.option("--format", "format_", help="The annotations' dialect; else recognised."),
        click.option(
            "--annotations", type=EXISTING, help="The annotations: a file, or a folder of files."
        ),
    ):
        command = option(command)
    return command
