"""`ocrstore profile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ocrstore.cli.console import (
    STORE,
    console,
    explain_missing,
    human_bytes,
    print_json,
    progress_bar,
    shown,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ocrstore.torch.profile import Cost, Profile

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
AGREES = 0.15
"""By this part the sum of the steps may differ from the loader's own cost."""
_SIGNS = {"bake": "[green]bake[/]", "keep": "[yellow]keep[/]", "instead": "[cyan]instead[/]"}


@click.command("profile")
@click.argument("store", type=STORE)
@click.option(
    "--transform",
    type=FILE,
    help="A saved albumentations pipeline (YAML or JSON), or a recipe that has one. "
    "Default: the pipeline of `train --augment`.",
)
@click.option("--view", help="The view whose columns and map parameters are used.")
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Number of samples to measure, chosen at random.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Number of measurements of each sample; medians are shown.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Number of samples in a batch.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of the random transforms and of the choice of samples.",
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
        from ocrstore.torch.profile import StepList, profile_store, read_transform, write_split
    if split is not None and transform is None:
        raise click.UsageError("--split needs --transform: it is that pipeline that is split.")
    described = None if transform is None else read_transform(transform)
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
    out.print(_table(profile))
    agrees = abs(profile.deviation) <= AGREES
    out.print(
        f"sum of the steps {profile.sum_cpu_ms:.2f} ms, the loader itself "
        f"{profile.loader.cpu_ms:.2f} ms of processor time per sample: "
        f"[{'green' if agrees else 'red'}]{profile.deviation:+.0%}[/]"
    )
    if not agrees:
        out.print("[red]they should agree within 15 %: repeat it on a machine with less to do[/]")
    out.print(
        f"with workers: {profile.handover.cpu_ms:.2f} ms to bring a sample to the parent instead "
        f"of collation, {profile.worker_cpu_ms:.2f} ms in all, "
        f"{1000 / profile.worker_cpu_ms:.0f} samples/s for each core"
    )
    for note in profile.notes:
        out.print(f"note: {shown(note)}")
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


def _table(profile: Profile) -> Table:
    from rich.table import Table

    table = Table(
        title=f"{shown(profile.pipeline)}: per sample, median of {profile.repeats} repeats of "
        f"{profile.measured} samples in batches of {profile.batch_size}",
        title_justify="left",
    )
    table.add_column("step", overflow="fold")
    for heading in ("cpu ms", "ms", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for number, cost in enumerate(profile.costs):
        share = cost.cpu_ms / profile.sum_cpu_ms
        row = [*_figures(cost), f"{share:.0%}", cost.kind]
        table.add_row(*row, end_section=number == len(profile.costs) - 1)
    total = sum(cost.ms for cost in profile.costs)
    table.add_row("sum", f"{profile.sum_cpu_ms:.2f}", f"{total:.2f}", "100%", "")
    table.add_row(*_figures(profile.loader), "", "")
    return table


def _figures(cost: Cost) -> tuple[str, str, str]:
    return shown(cost.name), f"{cost.cpu_ms:.2f}", f"{cost.ms:.2f}"
