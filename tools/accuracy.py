"""Does a store change what is learned? The same training live and from a store, side by side.

    python tools/accuracy.py                              32 drawn pictures, all runs
    python tools/accuracy.py --images DIR --annotations DIR --size 640 --epochs 60

The runs, all from the same weights on the same pictures in the same order:

    live           decode + albumentations + float32 maps at every access, no store
    live, rounded  the same, with the maps rounded to float16: what a store holds
    store          from the store
    live, seed 1   another seed: how far apart two equally good trainings are
    mixed          live and store in mixed precision (bfloat16 on a CPU, float16 on a GPU)

Every run is checked while it is printed; the exit code is 1 if a claim does not hold.
"""

from __future__ import annotations

import argparse
import csv
import logging
import math
import multiprocessing
import sys
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import lightning as L
import numpy as np
import torch
from epoch_report import write_fragment
from live import LiveDataset, collate
from scenes import write_scenes

from ocrstore.building.build import build
from ocrstore.dbnet.module import DBNetModule
from ocrstore.dbnet.network import ModelConfig
from ocrstore.dbnet.train import precision_of
from ocrstore.torch import OCRStoreDataset, ResumableSampler

# float16 has 11 significant bits: a value below 1 is rounded by at most half an ulp, 2^-12. Only
# the threshold map is not 0 or 1, and its term (weight 10) is a mean of absolute differences.
BOUND = 10 * 2.0**-12


@dataclass
class Run:
    name: str
    source: str
    precision: str
    seed: int
    losses: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    hmean: float = math.nan
    seconds: float = 0.0


class Losses(L.Callback):
    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, *args) -> None:
        outputs = args[2]
        self.values.append(float(outputs["loss"]))


class SameWeights(L.Callback):
    """Before each step, the loss of this batch with the other source's maps, same weights."""

    def __init__(self, other: dict[str, dict]) -> None:
        self.other = other
        self.gaps: list[float] = []

    def on_train_batch_start(self, *args) -> None:
        module, batch = args[1], args[2]
        names = batch["image_filename"]
        twin = {
            key: torch.stack([self.other[n][key] for n in names])
            for key in ("prob_maps", "prob_masks", "thresh_maps", "thresh_masks")
        }
        # running means of the norms are of no interest in this pass: put them back
        before = {k: v.clone() for k, v in module.net.state_dict().items()}
        with torch.no_grad():
            output = module.net(batch["images"], thresholds=True)
            here = module.losses(output, batch).total
            there = module.losses(output, twin).total
        module.net.load_state_dict(before)
        self.gaps.append(abs(float(here) - float(there)))


def loader(dataset, args, *, shuffle: bool, seed: int):
    live = isinstance(dataset, LiveDataset)
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=ResumableSampler(dataset, seed=seed, shuffle=shuffle),
        collate_fn=collate if live else None,
    )


def train(run: Run, dataset, args, callbacks=()) -> Run:
    started = time.perf_counter()
    L.seed_everything(run.seed, verbose=False)
    module = DBNetModule(
        model=ModelConfig.small(backbone=args.backbone).to_json(), lr=args.lr, warmup=0.05
    )
    losses = Losses()
    trainer = L.Trainer(
        accelerator=args.accelerator,
        devices=1,
        max_epochs=args.epochs,
        precision=precision_of(run.precision, args.accelerator),
        gradient_clip_val=5.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=args.epochs,
        callbacks=[losses, *callbacks],
    )
    trainer.fit(
        module,
        loader(dataset, args, shuffle=True, seed=run.seed),
        loader(dataset, args, shuffle=False, seed=run.seed),
    )
    run.losses = losses.values
    run.hmean = float(trainer.callback_metrics["val_hmean"])
    run.seconds = time.perf_counter() - started
    print(f"  {run.name}: H-mean {run.hmean:.4f}, {run.seconds:.0f} s", file=sys.stderr, flush=True)
    return run


RUNS = {
    "live": ("live", "live", "32", 0),
    "rounded": ("live, rounded", "rounded", "32", 0),
    "store": ("store", "store", "32", 0),
    "seed": ("live, seed 1", "live", "32", 1),
    "live mixed": ("live, mixed", "live", "mixed", 0),
    "store mixed": ("store, mixed", "store", "mixed", 0),
}


def train_one(key: str, images: Path, annotations: Path | None, store: Path, args) -> Run:
    """Train one of RUNS, in whatever process; it depends on nothing but its arguments."""
    quieten(args)
    run = Run(*RUNS[key])
    rounded = {"map_dtype": torch.float16} if run.source == "rounded" else {}
    if run.source != "store":
        dataset = LiveDataset(images, annotations=annotations, size=args.size, **rounded)
        return train(run, dataset, args)
    same_weights = None
    if key == "store":
        live = LiveDataset(images, annotations=annotations, size=args.size)
        samples = [live[row] for row in range(len(live))]
        same_weights = SameWeights({s["image_filename"]: s for s in samples})
    callbacks = [] if same_weights is None else [same_weights]
    run = train(run, OCRStoreDataset(store), args, callbacks)
    run.gaps = [] if same_weights is None else same_weights.gaps
    return run


def experiment(images: Path, annotations: Path | None, args) -> dict[str, Run]:
    """Run everything; `args.jobs` processes at a time, which changes nothing but the time."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "pictures.ocrs"
        build(images, store, annotations=annotations, size=args.size, workers=0)
        given = (images, annotations, store, args)
        if args.jobs == 1:
            return {key: train_one(key, *given) for key in RUNS}
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(args.jobs, mp_context=context) as pool:
            # the longest first
            waiting = {key: pool.submit(train_one, key, *given) for key in reversed(RUNS)}
            return {key: waiting[key].result() for key in RUNS}


def quieten(args) -> None:
    torch.set_num_threads(args.threads)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")  # Lightning's advice on workers; one process is meant here


def report(runs: dict[str, Run], args) -> tuple[str, bool]:
    """Return the table with the claims, and whether all of them hold."""
    reference = np.array(runs["live"].losses)
    lines = [
        "| run | precision | first loss | last loss | largest difference to live | H-mean | s |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in runs.values():
        gap = np.abs(np.array(run.losses) - reference)
        shown = "-" if run is runs["live"] else f"{gap.max():.2g} (step {int(gap.argmax())})"
        lines.append(
            f"| {run.name} | {precision_of(run.precision, args.accelerator)} "
            f"| {run.losses[0]:.6f} | {run.losses[-1]:.6f} | {shown} | {run.hmean:.4f} "
            f"| {run.seconds:.0f} |"
        )
    lines.append("")
    twin = np.array(runs["rounded"].losses)
    off = float((np.abs(np.array(runs["store"].losses) - twin) / twin).max())
    # albumentations moves points in float32, a recipe in float64: a pixel of a map may round the
    # other way, which moves a loss by its last bits, and no gradient
    equal = "bit for bit" if off == 0 else f"to {off:.1g} of the loss"
    gap = max(runs["store"].gaps)
    apart = abs(runs["live"].hmean - runs["seed"].hmean)
    here = abs(runs["store"].hmean - runs["live"].hmean)
    finite = all(np.isfinite(runs[n].losses).all() for n in ("live mixed", "store mixed"))
    mixed = abs(runs["store mixed"].hmean - runs["store"].hmean)
    steps = len(reference)
    claims = [
        (off < 1e-6, f"store = live with maps rounded to float16, {equal}, in all {steps} steps"),
        (
            gap <= BOUND,
            f"same weights, stored against float32 maps: at most {gap:.2g} apart "
            f"in any step (bound {BOUND:.2g})",
        ),
        (
            here <= max(apart, 0.01),
            f"H-mean of store and live differ by {here:.4f}, of two seeds by {apart:.4f}",
        ),
        (finite, "mixed precision: no loss is inf or nan"),
        (mixed <= 0.02, f"mixed precision: H-mean within {mixed:.4f} of float32 (0.02)"),
    ]
    if args.epochs >= 20:
        learned = f"it learns: H-mean {runs['store'].hmean:.4f} on the training pictures (0.85)"
        claims.append((runs["store"].hmean > 0.85, learned))
    for holds, claim in claims:
        lines.append(f"- {'holds' if holds else 'DOES NOT HOLD'}: {claim}")
    return "\n".join(lines), all(holds for holds, _ in claims)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, help="pictures; drawn ones if not given")
    parser.add_argument("--annotations", type=Path)
    parser.add_argument("--count", type=int, default=32, help="how many pictures to draw")
    parser.add_argument("--size", type=int, default=320)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--csv", type=Path, help="write the loss of every step of every run")
    parser.add_argument("--page", type=Path, help="write the table there, for docs/benchmarks.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.images is None:
            write_scenes(Path(folder), args.count)
            runs = experiment(Path(folder) / "images", Path(folder) / "gt", args)
        else:
            runs = experiment(args.images, args.annotations, args)
    if args.csv is not None:
        with args.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["step", *(run.name for run in runs.values())])
            for step, row in enumerate(zip(*(r.losses for r in runs.values()), strict=True)):
                writer.writerow([step, *(f"{v:.8f}" for v in row)])
    text, holds = report(runs, args)
    print(text)
    if args.page is not None:
        write_fragment(args.page, "tools/accuracy.py", text)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
