"""`ocrstore add-view`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ocrstore.cli.console import (
    ONE_STORE,
    allow_module_option,
    console,
    counted,
    explain_missing,
    fail,
    human_bytes,
    print_bound,
    print_json,
    progress_bar,
    shown,
)
from ocrstore.cli.options import recipe_options, source_options

if TYPE_CHECKING:
    from ocrstore.building.build import Size


@click.command("add-view")
@click.argument("store", type=ONE_STORE)
@recipe_options
@click.option(
    "--source",
    type=click.Path(path_type=Path),
    help="The pictures, for a store without its image column; as for build.",
)
@allow_module_option
@source_options
@click.option(
    "--workers", type=click.IntRange(0), help="Number of worker processes; all cores by default."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def add_view_command(
    store: Path,
    size: Size | None,
    columns: list[str] | None,
    preset: str | None,
    codecs: dict[str, str],
    recipe: Path | None,
    targets: str | None,
    view: str | None,
    source: Path | None,
    annotations: Path | None,
    format_: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    columns_map: dict[str, str],
    workers: int | None,
    as_json: bool,
) -> int:
    """Add a view to a store, derived from the pictures in it; other columns stay untouched.

    The columns have the view's name as prefix: 960/tensor, 960/prob_map and so on. After an
    interruption the same command resumes; until it is complete the store is unchanged.

    \b
    Examples:
      ocrstore add-view val.ocrs --size 960
      ocrstore add-view val.ocrs --size auto
      ocrstore add-view val.ocrs --size 736x1280 --columns tensor,inverse_matrix --view wide
      ocrstore add-view val.ocrs --recipe pipeline.yaml --view crop
    """
    with explain_missing("add-view", "build"):
        from ocrstore.building.add_view import add_view
        from ocrstore.building.plan import describe_interruption
    try:
        with progress_bar("adding", quiet=as_json) as advance:
            result = add_view(
                store,
                recipe=recipe,
                size=size,
                columns=columns,
                preset=preset,
                codecs=codecs or None,
                targets=targets,
                view=view,
                images=source,
                annotations=annotations,
                format=format_,
                include=include,
                exclude=exclude,
                columns_map=columns_map,
                workers=workers,
                progress=advance,
            )
    except KeyboardInterrupt:
        fail(f"interrupted. {describe_interruption(store, 'add-view')}")
        return 130
    if as_json:
        print_json(dataclasses.asdict(result))
        return 0
    out = console()
    if result.chosen:
        out.print(f"  · {shown(result.chosen)}")
    if not result.columns:
        out.print(
            f"[green]✓[/] {shown(result.store)} already has view {result.view} with this recipe"
        )
        return 0
    sizes = ", ".join(f"{name} {human_bytes(n)}" for name, n in result.columns.items())
    for problem in result.problems[:5]:
        out.print(f"[dim]· {shown(f'{problem.key}: {problem.message}')}[/]")
    if result.discarded:
        out.print(f"[yellow]![/] discarded {shown(result.discarded)}")
    found = f" ({result.resumed} of an interrupted run)" if result.resumed else ""
    out.print(
        f"[green]✓[/] {shown(result.store)}: view {result.view} of "
        f"{counted(result.samples, 'sample')}"
        f"{found} in {result.seconds:.1f} s: {shown(sizes)}"
    )
    if result.bound is not None:
        print_bound(result.view, result.bound)
    return 0
