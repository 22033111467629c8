"""`ocrstore train`."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ocrstore.cli.console import (
    COUNT,
    DATASET,
    STORE,
    console,
    explain_missing,
    fail,
    is_quiet,
    shown,
)
from ocrstore.cli.options import device_option


class _StoreOrShare(click.Path):
    """Argument type: a store that exists, or a number between 0 and 1."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a path or a float."""
        try:
            share = float(value)
        except (TypeError, ValueError):
            return DATASET.convert(value, param, ctx)
        if not 0 < share < 1:
            self.fail(f"{value} is neither a store nor a share between 0 and 1.", param, ctx)
        return share


def _stores(
    context: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> list[Path] | dict[str, float]:
    """Parse stores, or all of them with a share: `synth.ocrs=0.3`."""
    found: dict[Path, float | None] = {}
    for value in values:
        path, _, number = value.rpartition("=")
        try:
            share = None if Path(value).exists() else float(number)
        except ValueError:  # an `=` in the name of a store
            share = None
        found[DATASET.convert(value if share is None else path, param, context)] = share
    shares = {str(path): share for path, share in found.items() if share is not None}
    if shares and len(shares) < len(found):
        raise click.UsageError("Give every store a share (STORE=0.3), or none.")
    return shares or list(found)


@click.command("train")
@click.argument(
    "stores",
    type=click.Path(),
    nargs=-1,
    required=True,
    callback=_stores,
    metavar="STORE[=SHARE]...",
)
@click.option(
    "--val",
    type=_StoreOrShare(exists=True, path_type=Path),
    metavar="FILE|SHARE",
    help="Store to measure H-mean on, or a share of the training stores such as 0.1, which is then "
    "not trained on [default: the training stores].",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder for checkpoints, logs and pictures.",
)
@click.option("--view", help="View to train from [default: the store's default view].")
@click.option("--epochs", type=COUNT, default=50, show_default=True)
@click.option(
    "--samples",
    type=COUNT,
    help="Samples of an epoch [default: all; of sets with shares, until one of them is used up].",
)
@click.option("--batch-size", type=COUNT, default=16, show_default=True, help="For each device.")
@click.option(
    "--workers", type=click.IntRange(0), default=2, show_default=True, help="Loader processes."
)
@click.option(
    "--backbone",
    type=click.Choice(["resnet10", "resnet18", "resnet34", "resnet50"]),
    default="resnet18",
    show_default=True,
)
@click.option("--width", default=64, show_default=True, help="Channels of the first stage.")
@click.option("--inner", default=256, show_default=True, help="Channels of the neck.")
@click.option(
    "--weights",
    type=STORE,
    help="Begin with these weights: a ResNet of torchvision or timm for the backbone, or a whole"
    " DBNet of ocrstore, of its authors or of mmocr.",
)
@click.option(
    "--pretrained",
    type=click.Choice(["resnet18", "resnet34", "resnet50"]),
    help="Begin with this backbone's ImageNet weights, from torch.hub's cache or the network.",
)
@click.option(
    "--optimizer", type=click.Choice(["adamw", "sgd"]), default="adamw", show_default=True
)
@click.option(
    "--lr",
    type=click.FloatRange(0, min_open=True),
    default=1e-3,
    show_default=True,
    help="Peak learning rate; it decays to 0 over all epochs.",
)
@click.option("--weight-decay", type=click.FloatRange(0), default=1e-4, show_default=True)
@click.option(
    "--clip",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    help="Maximum norm of the gradients.",
)
@click.option(
    "--precision",
    type=click.Choice(["auto", "mixed", "32", "16-mixed", "bf16-mixed"]),
    default="auto",
    show_default=True,
    help="mixed: 16-mixed on a GPU, bf16-mixed on a CPU; auto: as mixed, but 32 without bf16.",
)
@click.option("--augment", is_flag=True, help="Flip, rotate, scale, crop, colour.")
@click.option(
    "--patience", type=COUNT, help="Stop after this many validations without a higher H-mean."
)
@click.option(
    "--check-every", type=COUNT, default=1, show_default=True, help="Epochs between validations."
)
@click.option(
    "--pictures-every", type=COUNT, default=5, show_default=True, help="Epochs between pictures."
)
@click.option(
    "--cleval-every", type=COUNT, default=10, show_default=True, help="Epochs between CLEvals."
)
@click.option(
    "--log-every", type=COUNT, default=10, show_default=True, help="Steps between logged losses."
)
@click.option("--tf32/--no-tf32", default=True, help="Allow TF32 for float32 on a GPU.")
@click.option(
    "--seed", default=0, show_default=True, help="Random seed of weights, order and augmentation."
)
@click.option("--compile", "compiled", is_flag=True, help="torch.compile the network.")
@click.option("--resume", type=STORE, help="Continue from a checkpoint (last.ckpt).")
@click.option("--force", is_flag=True, help="Overwrite the checkpoints of an earlier training.")
@device_option
@click.option("--devices", default="auto", show_default=True, help="GPUs or processes per node.")
@click.option(
    "--strategy",
    default="auto",
    show_default=True,
    help="Lightning's strategy for several devices: auto, ddp, ddp_spawn, ...",
)
@click.option(
    "--logger",
    "loggers",
    type=click.Choice(["csv", "tensorboard", "wandb"]),
    multiple=True,
    help="Where curves go; repeatable [default: csv, and tensorboard if it is installed].",
)
@click.option("--nodes", type=COUNT, default=1, show_default=True, help="Machines.")
def train_command(stores: list[Path] | dict[str, float], **options: Any) -> int:
    """Train DBNet from stores; writes best.ckpt, last.ckpt, logs and pictures into a folder.

    Several stores are mixed by shares that add up to 1, or trained on as one without shares.

    \b
    Examples:
      ocrstore train train.ocrs --val val.ocrs --epochs 50 --out runs/a
      ocrstore train train.ocrs --val val.ocrs --out runs/a --resume runs/a/last.ckpt
      ocrstore train all.ocrs --val 0.1 --out runs/a --logger wandb
      ocrstore train synth.ocrs=0.3 icdar.ocrs=0.7 --val val.ocrs --out runs/a
      ocrstore train train.ocrs --val val.ocrs --out runs/b --pretrained resnet18 --augment
    """
    with explain_missing("train"):
        from ocrstore.dbnet.network import ModelConfig
        from ocrstore.dbnet.train import TrainParams, fit, has_tensorboard
    # Lightning's notes on hardware and other products are not for the user. Both packages write
    # through the logger of the one that was imported last
    for package in ("lightning.pytorch", "pytorch_lightning"):
        logging.getLogger(package).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec")  # Lightning's, about torch's own
    warnings.filterwarnings(
        "ignore", message="Checkpoint directory .* exists"
    )  # the logs are in it
    warnings.filterwarnings("ignore", message="The number of training batches")  # small sets
    warnings.filterwarnings("ignore", message="Precision .* by the model summary")
    warnings.filterwarnings("ignore", message=".*does not have many workers")  # an option of ours
    # the figures that it means are counted over all ranks already
    warnings.filterwarnings("ignore", message=".*sync_dist=True")
    accelerator, devices = options.pop("device"), options.pop("devices")
    kind, _, number = accelerator.partition(":")
    if number.isdigit():
        if devices != "auto":
            raise click.UsageError(f"--device {accelerator} is one device: leave out --devices.")
        accelerator, devices = kind, [int(number)]
    elif devices.isdigit():
        devices = int(devices)
    backbone, pretrained = options.pop("backbone"), options.pop("pretrained")
    chosen = click.get_current_context().get_parameter_source("backbone")
    if pretrained and chosen is not ParameterSource.DEFAULT and backbone != pretrained:
        raise click.UsageError(f"--backbone {backbone} and --pretrained {pretrained}: which one?")
    model = ModelConfig(
        backbone=pretrained or backbone, width=options.pop("width"), inner=options.pop("inner")
    )
    places = {name: options.pop(name) for name in ("val", "out", "view", "weights", "resume")}
    quiet, force = is_quiet(), options.pop("force")
    loggers = options.pop("loggers") or None
    params = TrainParams(accelerator=accelerator, devices=devices, **options)
    if loggers is None and not has_tensorboard():
        console().print(
            "· TensorBoard is not installed: curves are logged to csv/ only"
            " (pip install tensorboard)"
        )
    try:
        done = fit(
            stores,
            **places,
            model=model,
            params=params,
            pretrained=pretrained is not None,
            quiet=quiet,
            force=force,
            loggers=loggers,
        )
    except KeyboardInterrupt:
        fail(_interrupted("interrupted; the last whole epoch is kept", places["out"]))
        return 130
    except SystemExit as exc:
        if exc.code != 143:
            raise
        fail(_interrupted("terminated; the last checkpoint is kept", places["out"]))
        return 143
    if done.is_first:
        epochs = f"{done.epochs} epoch{'s' * (done.epochs != 1)}"
        out = console()
        out.print(f"[green]✓[/] {epochs}, best H-mean {done.hmean:.4f}: {shown(done.best)}")
        measured = places["val"] if isinstance(places["val"], Path) else next(iter(stores))
        out.print(
            f"[dim]next: ocrstore eval {shown(measured)} --checkpoint {shown(done.best)} --sweep\n"
            f"      ocrstore predict PICTURES --checkpoint {shown(done.best)} --out boxes --draw[/]"
        )
    return 0


def _interrupted(what: str, folder: Path) -> str:
    last = folder / "last.ckpt"
    if last.exists():
        return f"{what}, continue with: --resume {last}"
    return f"{what.partition(';')[0]} before the first checkpoint; there is nothing to resume."
