"""`ocrstore export-model`."""

from __future__ import annotations

from pathlib import Path

import click

from ocrstore.cli.console import STORE, TARGET, console, explain_missing, shown

_SUFFIXES = {"onnx": ".onnx", "pt2": ".pt2", "torchvision": ".pth", "db": ".pth"}


@click.command("export-model")
@click.argument("checkpoint", type=STORE)
@click.option("--to", type=click.Choice(list(_SUFFIXES)), required=True, help="Format to write.")
@click.option("--out", type=TARGET, help="File to write [default: beside the checkpoint].")
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
def export_model_command(checkpoint: Path, to: str, out: Path | None, overwrite: bool) -> int:
    """Write a trained network for other programs.

    \b
    onnx         network and normalisation; uint8 RGB (B, 3, H, W) to float32
                 probabilities (B, 1, H, W), H and W multiples of 32
    pt2          the same, for torch.export.load
    torchvision  state dict of the backbone, torchvision's names
    db           state dict of the network, names of the DBNet authors' code

    \b
    Examples:
      ocrstore export-model runs/a/best.ckpt --to onnx
      ocrstore export-model runs/a/best.ckpt --to db --out db_resnet18.pth
    """
    with explain_missing("export-model", "onnx" if to == "onnx" else "torch"):
        from ocrstore.dbnet.export_model import export_model

        if to == "onnx":
            import onnxscript  # noqa: F401  # torch's exporter needs it, and would say so later
    target = out or checkpoint.with_suffix(_SUFFIXES[to])
    if target.exists() and not overwrite:
        raise click.UsageError(f"{target}: already exists; replace it with --overwrite.")
    export_model(checkpoint, target, to=to)
    console().print(f"[green]✓[/] {shown(target)}")
    return 0
