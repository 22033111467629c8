"""`ocrstore eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from ocrstore.cli.console import (
    DATASET,
    STORE,
    console,
    explain_missing,
    print_json,
    progress_bar,
    shown,
)
from ocrstore.cli.options import detector_options
from ocrstore.whole_file import require_writable

if TYPE_CHECKING:
    from ocrstore.evaluation.results import Results
    from ocrstore.evaluation.sweep import Point, Sweep

_SHOWN = 10


@click.command("eval")
@click.argument("store", type=DATASET)
@click.option("--checkpoint", type=STORE, help="best.ckpt or last.ckpt of `ocrstore train`.")
@click.option("--oracle", is_flag=True, help="Evaluate the store's own maps instead of a network.")
@click.option("--view", help="View to evaluate [default: the store's default view].")
@click.option(
    "--table",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a CSV row for each picture.",
)
@click.option(
    "--sweep",
    is_flag=True,
    help="Also try other thresholds: the best pair, and precision against recall.",
)
@click.option("--any-recipe", is_flag=True, help="Evaluate although the recipes differ.")
@detector_options
@click.option(
    "--workers", type=click.IntRange(0), default=0, show_default=True, help="Loader processes."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def eval_command(
    store: Path,
    checkpoint: Path | None,
    oracle: bool,
    view: str | None,
    table: Path | None,
    sweep: bool,
    any_recipe: bool,
    rules: str | None,
    threshold: float | None,
    min_score: float | None,
    polygons: bool,
    batch_size: int,
    workers: int,
    device: str,
    precision: str,
    tf32: bool,
    as_json: bool,
) -> int:
    """Evaluate a checkpoint on a store: precision, recall and H-mean (ICDAR 2015), CLEval.

    \b
    Examples:
      ocrstore eval val.ocrs --checkpoint runs/a/best.ckpt --table pictures.csv
      ocrstore eval val.ocrs --checkpoint runs/a/best.ckpt --sweep
      ocrstore eval val.ocrs --oracle      the upper bound that the view allows; needs no torch
    """
    if oracle == (checkpoint is not None):
        raise click.UsageError("give either --checkpoint or --oracle")
    if sweep and oracle:
        raise click.UsageError("--sweep needs --checkpoint: a store's own maps are 0 or 1")
    if table is not None and (table.is_file() or not table.exists()):  # not /dev/stdout
        require_writable(table.resolve().parent)  # before the work, not after it
    with explain_missing("eval", "build"):
        from ocrstore.evaluation.postprocess import changes_for
    swept = None
    changes = changes_for(rules, threshold=threshold, min_score=min_score, polygons=polygons)
    if checkpoint is None:
        result = _upper_bound(store, view, changes, quiet=as_json)
    else:
        with explain_missing("eval"):
            from ocrstore.dbnet.evaluate import evaluate
            from ocrstore.dbnet.predict import Detector, allow_tf32
            from ocrstore.evaluation.sweep import Sweep
        allow_tf32(tf32)
        detector = Detector.load(checkpoint, device=device, precision=precision, **changes)
        swept = Sweep(detector.post) if sweep else None
        with progress_bar("evaluating", quiet=as_json) as advance:
            result = evaluate(
                store,
                detector,
                view=view,
                any_recipe=any_recipe,
                batch_size=batch_size,
                workers=workers,
                sweep=swept,
                progress=advance,
            )
    if table is not None:
        result.write_table(table)
    icdar, cleval = result.icdar, result.cleval
    if as_json:
        record = {**icdar._asdict(), "cleval": cleval._asdict(), "pictures": len(result.rows)}
        if swept is not None:
            record["best"] = _as_json(swept.best)
            record["sweep"] = [_as_json(point) for point in swept.points]
        print_json(record)
        return 0
    out = console()
    table_of_scores = Table(
        "", "precision", "recall", "H-mean", title=f"{len(result.rows)} pictures"
    )
    table_of_scores.add_row("ICDAR 2015", *(f"{value:.4f}" for value in icdar))
    table_of_scores.add_row("CLEval", *(f"{value:.4f}" for value in cleval))
    out.print(table_of_scores)
    for name, score in result.worst_first[:_SHOWN]:
        if score.hmean < 1 and (score.truths or score.detections):
            out.print(
                f"[dim]· {shown(name)}: {score.matched} of {score.truths} found, "
                f"{score.detections} detections[/]"
            )
    if swept is not None:
        _print_sweep(swept)
    if table is not None:
        out.print(f"[green]✓[/] every picture: {shown(table)}")
    return 0


def _as_json(point: Point) -> dict[str, float]:
    return {
        "threshold": point.threshold,
        "min_score": point.min_score,
        **point.figures._asdict(),
    }


def _print_sweep(swept: Sweep) -> None:
    """Print the curve over the score at the best threshold, and what to type for the best pair."""
    best = swept.best
    title = f"--threshold {best.threshold}"
    table = Table("--min-score", "precision", "recall", "H-mean", title=title)
    for point in swept.curve:
        figures = [f"{value:.4f}" for value in point.figures]
        table.add_row(f"{point.min_score}", *figures, style="bold" if point == best else "")
    console().print(table)
    console().print(
        f"best: --threshold {best.threshold} --min-score {best.min_score}, H-mean "
        f"{best.figures.hmean:.4f} on these pictures"
    )


def _upper_bound(store: Path, view: str | None, changes: dict[str, Any], *, quiet: bool) -> Results:
    """Evaluate the store's own maps; needs no torch."""
    with explain_missing("eval", "build"):
        from ocrstore.evaluation.postprocess import params_for
        from ocrstore.evaluation.upper_bound import upper_bound
        from ocrstore.store import open_store
        from ocrstore.views import find_view
    opened = open_store(store)
    params = params_for(find_view(opened, view).recipe, **changes)
    with progress_bar("evaluating", quiet=quiet) as advance:
        return upper_bound(opened, view=view, params=params, progress=advance)
