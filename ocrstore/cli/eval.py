"""`ocrstore eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from ocrstore.cli.console import COUNT, STORE, console, explain_missing, print_json, progress_bar
from ocrstore.errors import WriteError

_SHOWN = 10


@click.command("eval")
@click.argument("store", type=STORE)
@click.option("--checkpoint", type=STORE, help="What `ocrstore train` left: best.ckpt.")
@click.option("--oracle", is_flag=True, help="The store's own maps instead of a network.")
@click.option("--view", help="The view to use, if not the default one.")
@click.option("--table", type=click.Path(dir_okay=False, path_type=Path), help="CSV per picture.")
@click.option("--any-recipe", is_flag=True, help="Measure although the recipes differ.")
@click.option(
    "--min-score", type=click.FloatRange(0, 1), help="Keep boxes from this score on (0.6)."
)
@click.option("--polygons", is_flag=True, help="Outlines that follow the text, not rectangles.")
@click.option("--batch-size", type=COUNT, default=8, show_default=True)
@click.option(
    "--workers", type=click.IntRange(0), default=0, show_default=True, help="Loader processes."
)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, mps.")
@click.option("--json", "as_json", is_flag=True, help="Print the result for programs.")
def eval_command(
    store: Path,
    checkpoint: Path | None,
    oracle: bool,
    view: str | None,
    table: Path | None,
    any_recipe: bool,
    min_score: float | None,
    polygons: bool,
    batch_size: int,
    workers: int,
    device: str,
    as_json: bool,
) -> int:
    """Measure a checkpoint on a store: precision, recall and H-mean (ICDAR 2015), CLEval.

    \b
    Examples:
      ocrstore eval val.ocrs --checkpoint runs/a/best.ckpt --table pictures.csv
      ocrstore eval val.ocrs --oracle      the most that the view can give; needs no network
    """
    if oracle == (checkpoint is not None):
        raise click.UsageError("give --checkpoint or --oracle, one of them")
    with explain_missing("eval"):
        from ocrstore.torch.dbnet.cleval import CLEval
        from ocrstore.torch.dbnet.evaluation import evaluate, summarise
        from ocrstore.torch.dbnet.metric import write_table
        from ocrstore.torch.dbnet.oracle import oracle as measure_oracle
        from ocrstore.torch.dbnet.postprocess import params_for
        from ocrstore.torch.dbnet.provenance import provenance_of
    if table is not None:
        _require_writable(table)  # or else the measuring would be for nothing
    changes: dict[str, Any] = {} if min_score is None else {"min_score": min_score}
    if checkpoint is None:
        from ocrstore.store import open_store

        opened, cleval = open_store(store), CLEval()
        recipe = provenance_of(opened, view=view).as_recipe
        params = params_for(recipe, polygons=polygons, **changes)
        with progress_bar("measuring", quiet=as_json) as advance:
            hmean = measure_oracle(
                opened, view=view, params=params, cleval=cleval, progress=advance
            )
        result = summarise(hmean, cleval)
    else:
        from ocrstore.torch.dbnet.detector import Detector

        detector = Detector.load(checkpoint, device=device, polygons=polygons, **changes)
        with progress_bar("measuring", quiet=as_json) as advance:
            result = evaluate(
                store,
                detector,
                view=view,
                any_recipe=any_recipe,
                batch_size=batch_size,
                workers=workers,
                progress=advance,
            )
    if table is not None:
        write_table(table, result.rows)
    figures = {"precision": result.precision, "recall": result.recall, "hmean": result.hmean}
    if as_json:
        print_json({**figures, "cleval": result.cleval, "pictures": len(result.rows)})
        return 0
    out = console()
    shown = Table("", "precision", "recall", "H-mean", title=f"{len(result.rows)} pictures")
    shown.add_row("ICDAR 2015", *(f"{v:.4f}" for v in figures.values()))
    if result.cleval:
        names = ("precision", "recall", "hmean")
        shown.add_row("CLEval", *(f"{result.cleval[n]:.4f}" for n in names))
    out.print(shown)
    worst = sorted(result.rows, key=lambda row: (row[1].hmean, row[0]))[:_SHOWN]
    for name, score in worst:
        if score.hmean < 1 and (score.truths or score.detections):
            out.print(
                f"[dim]· {escape(name)}: {score.matched} of {score.truths} found, "
                f"{score.detections} detections[/]"
            )
    if table is not None:
        out.print(f"[green]✓[/] every picture: {escape(str(table))}")
    return 0


def _require_writable(path: Path) -> None:
    """Raise WriteError where a file cannot be written; what is in it already stays."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
    except OSError as exc:
        raise WriteError(f"{path}: {exc.strerror or exc}") from exc
