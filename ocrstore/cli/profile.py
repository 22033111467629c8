"""`ocrstore profile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Column, Table

from ocrstore.cli.console import (
    COUNT,
    DATASET,
    allow_module_option,
    console,
    explain_missing,
    human_bytes,
    print_json,
    progress_bar,
    shown,
)

if TYPE_CHECKING:
    from rich.console import Console

    from ocrstore.torch.profile import Profile

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
AGREES = 0.15
"""By this part the sum of the steps may differ from the loader's own cost."""
_SIGNS = {"bake": "[green]bake[/]", "keep": "[yellow]keep[/]"}


@click.command("profile")
@click.argument("store", type=DATASET)
@click.option(
    "--transform",
    type=FILE,
    help="A saved albumentations pipeline, YAML or JSON; by default that of `train --augment`.",
)
@allow_module_option
@click.option("--view", help="The view whose columns and map parameters are used.")
@click.option("--samples", type=COUNT, default=64, show_default=True, help="Samples to measure.")
@click.option(
    "--repeats", type=COUNT, default=5, show_default=True, help="Measurements of each sample."
)
@click.option("--batch-size", type=COUNT, default=16, show_default=True, help="Samples in a batch.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of random steps."
)
@click.option(
    "--split",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write what can be baked (bake.yaml, a recipe) and the rest (rest.yaml) to this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def profile_command(
    store: Path,
    transform: Path | None,
    view: str | None,
    samples: int,
    repeats: int,
    batch_size: int,
    seed: int,
    split: Path | None,
    as_json: bool,
) -> int:
    """Measure what each step of a training sample costs, and say what to bake into the store.

    \b
    Examples:
      ocrstore profile train.ocrs
      ocrstore profile train.ocrs --transform pipeline.yaml
      ocrstore profile train.ocrs --transform pipeline.yaml --split baked/
      ocrstore profile train.ocrs --json | jq .costs

    albumentations.save(pipeline, "pipeline.yaml", data_format="yaml") saves a pipeline.
    """
    with explain_missing("profile"):
        from ocrstore.pipeline_json import read_pipeline
        from ocrstore.torch.profile import StepList, profile_store, write_split
    if split is not None and transform is None:
        raise click.UsageError("--split needs --transform: it is that pipeline that is split.")
    described = None if transform is None else read_pipeline(transform)
    written: tuple[Path, ...] = ()
    if split is not None and described is not None:
        written = write_split(StepList(described), split)
    with progress_bar("measuring", quiet=as_json) as advance:
        profile = profile_store(
            store,
            transform=described,
            name="" if transform is None else transform.name,
            view=view,
            samples=samples,
            repeats=repeats,
            batch_size=batch_size,
            seed=seed,
            progress=advance,
        )
    if as_json:
        print_json({**profile.to_json(), "written": [str(path) for path in written]})
        return 0
    out = console()
    print_profile(profile, out)
    for path in written:
        out.print(f"[green]✓[/] {shown(path)}")
    return 0


def print_profile(profile: Profile, out: Console) -> None:
    """Print the table of costs, the comparison with the loader, and the advice."""
    table = Table(
        Column("step", overflow="fold"),
        *(Column(name, justify="right") for name in ("cpu ms", "share")),
        "",
        title=f"{shown(profile.pipeline)}: per sample, median of {profile.repeats} repeats of "
        f"{profile.measured} samples in batches of {profile.batch_size}",
        title_justify="left",
    )
    for cost in profile.costs:
        share = f"{cost.cpu_ms / profile.sum_cpu_ms:.0%}"
        table.add_row(shown(cost.name), f"{cost.cpu_ms:.2f}", share, cost.kind)
    table.add_section()
    table.add_row("sum", f"{profile.sum_cpu_ms:.2f}", "100%")
    table.add_row("the loader itself", f"{profile.loader.cpu_ms:.2f}")
    out.print(table)
    agrees = abs(profile.deviation) <= AGREES
    differs = f"[{'green' if agrees else 'red'}]{profile.deviation:+.0%}[/]"
    hint = "" if agrees else " (expected at most 15 %: repeat it with more --samples)"
    out.print(f"the sum differs from the loader's own cost by {differs}{hint}")
    out.print(
        f"with workers: {profile.handover.cpu_ms:.2f} ms to bring a sample to the parent instead "
        f"of collation, {profile.worker_cpu_ms:.2f} ms in all, "
        f"{1000 / profile.worker_cpu_ms:.0f} samples/s for each core"
    )
    out.print()
    for advice in profile.advice:
        text = shown(advice.text)
        if advice.saves_cpu_ms:
            text += f": saves {advice.saves_cpu_ms:.2f} ms per sample"
        if advice.costs_nbytes:
            text += f", takes {human_bytes(advice.costs_nbytes)} on disk"
        out.print(f"{_SIGNS[advice.verdict]}  {text}")
        if advice.how:
            out.print(f"      [bold]{shown(advice.how)}[/]")
