"""`ocrstore plan`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click
from rich.markup import escape

from ocrstore.building.advice import HEADROOM, advise
from ocrstore.building.build import make_recipe
from ocrstore.building.memory import look_at_memory
from ocrstore.building.space import estimate
from ocrstore.building.views import View
from ocrstore.cli.build import print_estimate
from ocrstore.cli.console import console, human_bytes, print_json
from ocrstore.cli.recipe_options import FOLDER, recipe_options, source_options, wrong_source
from ocrstore.sources import open_source


@click.command("plan")
@click.argument("images", type=FOLDER)
@source_options
@recipe_options
@click.option("--json", "as_json", is_flag=True, help="Print the figures for programs.")
def plan_command(
    images: Path,
    annotations: Path | None,
    format_: str | None,
    size: tuple[int, int] | None,
    columns: list[str] | None,
    codecs: dict[str, str],
    recipe: Path | None,
    view: str | None,
    as_json: bool,
) -> int:
    """Say which columns and codecs fit the memory of this machine.

    A store is fastest when it stays in the page cache. A few samples are derived and compressed
    to measure what each codec would save; memory is the container's where it is limited.

    \b
    Examples:
      ocrstore plan images/
      ocrstore plan images/ --size 960 --columns tensor,prob_map,thresh_map

    Exit code 1 if it fits by no means.
    """
    made = make_recipe(recipe, size, columns, codecs or None, None)
    with wrong_source():
        source = open_source(images, annotations=annotations, format=format_)
    views = (View(view or made.view_name, made, default=True),)
    expected = estimate(source, views, compressed=True)
    advice = advise(expected, look_at_memory())
    if as_json:
        print_json(
            {
                **dataclasses.asdict(advice),
                "command": advice.command,
                "samples": expected.samples,
                "columns": {name: dict(sizes) for name, sizes in expected.nbytes.items()},
            }
        )
        return 0 if advice.fits_as_advised else 1
    out = console()
    print_estimate(expected)
    memory = advice.memory
    out.print(
        f"memory   {human_bytes(memory.available_nbytes)} of {human_bytes(memory.total_nbytes)} "
        f"available ({memory.limited_by}); a store may take {HEADROOM:.0%} of it, "
        f"{human_bytes(advice.limit_nbytes)}"
    )
    if advice.fits_as_asked:
        out.print("[green]✓[/] it fits the page cache as it is: leave every column raw")
        return 0
    for step in advice.steps:
        out.print(f"  · {escape(step)}")
    sign = "[green]✓[/]" if advice.fits_as_advised else "[red]✗[/]"
    verdict = "fits" if advice.fits_as_advised else "still does not fit"
    out.print(f"{sign} with that it {verdict}: {human_bytes(advice.advised_nbytes)}")
    out.print(f"  ocrstore build {escape(str(images))} --out STORE {escape(advice.command)}")
    if not advice.fits_as_advised:
        out.print("  a smaller --size, or reading from a fast disk, is what remains", style="dim")
    return 0 if advice.fits_as_advised else 1
