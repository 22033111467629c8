"""`ocrstore convert`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from ocrstore.cli.console import (
    ONE_STORE,
    TARGET,
    console,
    counted,
    explain_missing,
    fail,
    human_bytes,
    print_json,
    progress_bar,
    shown,
)
from ocrstore.cli.options import preset_option
from ocrstore.keys import from_lines

if TYPE_CHECKING:
    from ocrstore.building.convert import Converted


def _codecs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse values like `960/tensor=raw`; the columns are those of the store."""
    if not values:
        return {}
    from ocrstore.format.codecs import CODECS

    codecs = {}
    for value in values:
        column, _sign, codec = value.rpartition("=")
        if not column or codec not in CODECS:
            raise click.BadParameter(f"{value!r} is not COLUMN=CODEC; codecs: {', '.join(CODECS)}")
        codecs[column] = codec
    return codecs


@click.command("convert")
@click.argument("old", nargs=-1, required=True, type=ONE_STORE)
@click.argument("new", type=TARGET)
@preset_option
@click.option(
    "--codec",
    "codecs",
    callback=_codecs,
    multiple=True,
    metavar="COLUMN=CODEC",
    help="Codec of a column, if not the preset's. Repeatable.",
)
@click.option(
    "--keys",
    type=click.File(encoding="utf-8-sig", errors="replace"),
    help="Take the samples of this file: a key a line, as the viewer saves them.",
)
@click.option("--where", metavar="SQL", help="Take the samples that fulfil a condition.")
@click.option("--force", is_flag=True, help="Replace NEW if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def convert_command(
    old: tuple[Path, ...],
    new: Path,
    preset: str | None,
    codecs: dict[str, str],
    keys: IO[str] | None,
    where: str | None,
    force: bool,
    as_json: bool,
) -> int:
    """Write the store NEW with other codecs, from one store OLD or several of one recipe.

    No picture or annotation is needed, and no array changes: each row is decoded again and compared
    before it is written, and rows whose codec stays are copied as they are. Without --preset and
    --codec the codecs stay, to merge stores or to take a part of one.

    After an interruption the same command resumes; NEW appears when it is complete.

    \b
    Examples:
      ocrstore convert val.ocrs small.ocrs --preset small
      ocrstore convert a.ocrs b.ocrs c.ocrs all.ocrs
      ocrstore convert val.ocrs text.ocrs --where "polygons_count > 0"
      ocrstore convert val.ocrs few.ocrs --keys keys.txt --preset fast
      ocrstore convert val.ocrs val.ocrs --preset balanced --force
    """
    with explain_missing("convert", "build"):
        from ocrstore.building.convert import convert
        from ocrstore.building.plan import describe_interruption
        from ocrstore.errors import FilterError

    try:
        with progress_bar("converting", quiet=as_json) as advance:
            result = convert(
                old,
                new,
                preset=preset,
                codecs=codecs,
                keys=None if keys is None else from_lines(keys.read()),
                where=where,
                overwrite=force,
                progress=advance,
            )
    except FilterError as exc:
        raise click.BadParameter(str(exc), param_hint="--where") from exc
    except KeyboardInterrupt:
        fail(f"interrupted. {describe_interruption(new, 'convert')}")
        return 130
    if as_json:
        print_json(dataclasses.asdict(result))
    else:
        _print_result(result)
    return 0


def _print_result(result: Converted) -> None:
    out = console()
    if result.discarded:
        out.print(f"[yellow]![/] discarded {shown(result.discarded)}")
    found = f" ({result.resumed} of an interrupted run)" if result.resumed else ""
    sizes = ", ".join(f"{name} {human_bytes(n)}" for name, n in result.columns.items())
    out.print(f"columns  {shown(sizes)}")
    if result.copied:
        out.print(f"copied   {shown(', '.join(result.copied))}: as they were stored")
    out.print(
        f"[green]✓[/] {shown(result.store)}: {counted(result.samples, 'sample')}{found} in "
        f"{result.seconds:.1f} s, {human_bytes(result.nbytes_before)} -> "
        f"{human_bytes(result.nbytes)}, fingerprint {result.fingerprint[:16]}…"
    )
