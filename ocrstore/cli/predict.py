"""`ocrstore predict`."""

from __future__ import annotations

from pathlib import Path

import click

from ocrstore.cli.console import (
    STORE,
    allow_module_option,
    console,
    explain_missing,
    progress_bar,
    shown,
)
from ocrstore.cli.options import detector_options


@click.command("predict")
@click.argument("images", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--checkpoint", type=STORE, required=True, help="best.ckpt or last.ckpt of `ocrstore train`."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder for the results.",
)
@click.option("--draw", is_flag=True, help="Also write the pictures with their boxes.")
@detector_options
@allow_module_option
def predict_command(
    images: Path,
    checkpoint: Path,
    out: Path,
    draw: bool,
    polygons: bool,
    rules: str | None,
    threshold: float | None,
    min_score: float | None,
    batch_size: int,
    device: str,
    precision: str,
    tf32: bool,
) -> int:
    """Find text in a folder of pictures, or in one: res_*.txt (ICDAR), boxes.json, res_*.jpg.

    The pictures go through the recipe that the checkpoint was trained with.

    \b
    Examples:
      ocrstore predict images/ --checkpoint runs/a/best.ckpt --out boxes/ --draw
      ocrstore predict scan.jpg --checkpoint runs/a/best.ckpt --out boxes/

    Exit code 1 if a picture could not be read.
    """
    with explain_missing("predict"):
        from ocrstore.dbnet.predict import Detector, allow_tf32, predict_pictures
        from ocrstore.evaluation.postprocess import changes_for
    changes = changes_for(rules, threshold=threshold, min_score=min_score, polygons=polygons)
    allow_tf32(tf32)
    detector = Detector.load(checkpoint, device=device, precision=precision, **changes)
    with progress_bar("finding text") as advance:
        done = predict_pictures(
            images, detector, out=out, draw=draw, batch_size=batch_size, progress=advance
        )
    for key, reason in done.failed.items():
        console(problems=True).print(
            f"[red]✗[/] {shown(key)}: {shown(reason.removeprefix(f'{key}: '))}"
        )
    boxes = sum(len(d) for d in done.found.values())
    console().print(f"[green]✓[/] {boxes} boxes in {len(done.found)} pictures: {shown(out)}")
    return 1 if done.failed else 0
