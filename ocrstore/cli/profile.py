"""`ocrstore profile`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape

from ocrstore.cli.console import STORE, console, explain_missing, print_json, progress_bar

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command("profile")
@click.argument("store", type=STORE)
@click.option(
    "--transform",
    type=FILE,
    help="A saved albumentations pipeline, or a recipe that has one; else that of `train`.",
)
@click.option("--view", help="The view to compare with, if not the default one.")
@click.option("--source", type=FOLDER, help="The pictures' folder, if it is not the recorded one.")
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Samples to time, spread over the store.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="How often each is timed; the median counts.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of the random steps; the same one makes the same pictures.",
)
@click.option(
    "--workers",
    type=click.IntRange(0),
    default=2,
    show_default=True,
    help="Loader processes that an epoch is reckoned with.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Samples in a batch, for collation and hand-over.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the bars into this file (.svg, .png or .pdf).",
)
@click.option(
    "--split",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write what can be baked (bake.yaml, a recipe) and the rest (rest.yaml) to this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result for programs.")
def profile_command(
    store: Path,
    transform: Path | None,
    view: str | None,
    source: Path | None,
    samples: int,
    repeats: int,
    seed: int,
    workers: int,
    batch_size: int,
    plot: Path | None,
    split: Path | None,
    as_json: bool,
) -> int:
    """Time every step of a training sample, and say what to bake into the store.

    Each transform of the pipeline by name, drawing maps, float16, collation and the way from a
    worker to its parent, per sample, by the clock and in processor time. Decoding is timed where
    the original files are found.

    \b
    Examples:
      ocrstore profile val.ocrs
      ocrstore profile train.ocrs --transform pipeline.yaml
      ocrstore profile train.ocrs --transform pipeline.yaml --plot profile.svg
      ocrstore profile train.ocrs --transform pipeline.yaml --split baked/
      ocrstore profile train.ocrs --workers 8 --json | jq .advice

    A pipeline is saved with albumentations.save(pipeline, "pipeline.yaml", data_format="yaml").
    """
    with explain_missing("profile"):
        from ocrstore.profiling.advice import advise
        from ocrstore.profiling.plot import check_plot_path, plot_profile
        from ocrstore.profiling.steps import StepList, read_steps, write_split
        from ocrstore.profiling.table import print_profile
        from ocrstore.torch.profiling import profile_store
    if plot is not None:
        check_plot_path(plot)
    if split is not None and transform is None:
        raise click.UsageError("--split goes with --transform: it is that pipeline that is split.")
    described = None if transform is None else read_steps(transform)
    with progress_bar("timing", quiet=as_json) as advance:
        profile = profile_store(
            store,
            transform=described,
            name="" if transform is None else transform.name,
            view=view,
            source=source,
            samples=samples,
            repeats=repeats,
            seed=seed,
            workers=workers,
            batch_size=batch_size,
            progress=advance,
        )
    advice = advise(profile)
    written = [] if plot is None else [plot]
    if plot is not None:
        plot_profile(profile, plot)
    if split is not None and described is not None:
        written += write_split(StepList(described), split)
    if as_json:
        record = {**profile.to_json(), "advice": [one.to_json() for one in advice]}
        print_json({**record, "written": [str(path) for path in written]})
        return 0
    out = console()
    print_profile(profile, advice, out)
    for path in written:
        out.print(f"[green]✓[/] {escape(str(path))}")
    return 0
