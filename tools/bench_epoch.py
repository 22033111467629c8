"""How long does a loop wait for data? Validation epochs from files, from dict caches, from a store.

    OCRSTORE_PICTURES=... python tools/bench_epoch.py        404 ICDAR pictures
    python tools/bench_epoch.py --count 200                  drawn pictures

Every figure comes from a process of its own, started for it; the total includes that start. The
pipelines, each with two loader workers and batches of 16 (pictures, both maps, both masks):

    files   decode + albumentations, maps from npz files, every epoch anew
    dict    the same, finished samples kept in a dict in each worker
    store   OCRStoreDataset

The model is one that takes a fixed time for each batch, as a GPU would: the loop sleeps. A thread
copies each batch into one of two reused buffers meanwhile, as a loader's pin_memory thread does.
*Waiting* is what the loop spends on getting the next filled buffer. `--network` instead runs a real
(small) DBNet on the CPU through Lightning's `Trainer.validate`; there, waiting is what Lightning's
own profiler says about fetching batches.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

TENSORS = ("images", "prob_maps", "thresh_maps", "prob_masks", "thresh_masks")
PIPELINES = ("files", "dict", "store")


def make_loader(args):
    from torch.utils.data import DataLoader

    folder = Path(args.prepared)
    if args.pipeline == "store":
        from ocrstore.torch import OCRStoreDataset

        dataset, collation = OCRStoreDataset(folder / "pictures.ocrs"), None
    else:
        from live import LiveDataset, collate

        place = json.loads((folder / "source.json").read_text())
        dataset = LiveDataset(
            Path(place["images"]),
            annotations=place["annotations"] and Path(place["annotations"]),
            size=args.size,
            npz=folder / "npz",
            cached=args.pipeline == "dict",
        )
        collation = collate
    return DataLoader(
        dataset,
        batch_size=args.batch_size,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        collate_fn=collation,
    )


class Staging:
    """Copies batches into two reused buffers, in a thread."""

    def __init__(self, loader) -> None:
        self.loader = loader
        self.free: queue.Queue = queue.Queue()
        self.full: queue.Queue = queue.Queue()
        self.buffers: list = []
        for slot in range(2):
            self.buffers.append({})
            self.free.put(slot)

    def epoch(self):
        thread = threading.Thread(target=self._fill, daemon=True)
        thread.start()
        while (slot := self.full.get()) is not None:
            yield slot
            self.free.put(slot)
        thread.join()

    def _fill(self) -> None:
        import torch

        for batch in self.loader:
            slot = self.free.get()
            buffers = self.buffers[slot]
            if hasattr(batch, "copy_into"):
                if not buffers:
                    made = batch.empty_buffers()
                    buffers.update({name: made[name] for name in TENSORS})
                batch.copy_into(buffers)
            else:
                for name in TENSORS:
                    if name not in buffers:
                        buffers[name] = torch.empty_like(batch[name])
                    buffers[name][: len(batch[name])].copy_(batch[name])
            self.full.put(slot)
        self.full.put(None)


def run_fixed(args) -> dict:
    """Loop over epochs with a model that takes a fixed time; return seconds spent on what."""
    staging = Staging(make_loader(args))
    epochs = []
    for _ in range(args.epochs):
        waiting = model = 0.0
        batches = 0
        started = before = time.perf_counter()
        for _slot in staging.epoch():
            got = time.perf_counter()
            waiting += got - before
            if args.ms:
                time.sleep(args.ms / 1000)
            before = time.perf_counter()
            model += before - got
            batches += 1
        waiting += time.perf_counter() - before
        epochs.append(
            {
                "seconds": time.perf_counter() - started,
                "waiting": waiting,
                "model": model,
                "batches": batches,
            }
        )
    return {"epochs": epochs}


def run_network(args) -> dict:
    """Run a small DBNet through Lightning; its profiler says what fetching cost."""
    import lightning as L
    import torch
    from lightning.pytorch.profilers import SimpleProfiler

    from ocrstore.torch.dbnet.module import DBNetModule

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")  # Lightning's advice on workers
    torch.set_num_threads(1)
    loader = make_loader(args)
    profiler = SimpleProfiler()
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        profiler=profiler,
    )
    module = DBNetModule(model={"backbone": "resnet10", "width": 8, "inner": 32})
    epochs = []
    for _ in range(args.epochs):
        profiler.recorded_durations.clear()
        started = time.perf_counter()
        trainer.validate(module, loader, verbose=False)
        seconds = time.perf_counter() - started
        recorded = profiler.recorded_durations
        waiting = sum(sum(v) for k, v in recorded.items() if k.endswith("_next"))
        model = sum(sum(v) for k, v in recorded.items() if k.endswith("validation_step"))
        epochs.append(
            {"seconds": seconds, "waiting": waiting, "model": model, "batches": len(loader)}
        )
    return {"epochs": epochs}


def prepare(args, folder: Path) -> None:
    """Build the store and write the npz maps, once."""
    from live import LiveDataset, write_npz

    from ocrstore.building.build import build

    pictures = os.environ.get("OCRSTORE_PICTURES")
    if pictures and not args.count:
        images, annotations = (Path(pictures) / "icdar2015" / n for n in ("images", "gt"))
    else:
        from scenes import write_scenes

        write_scenes(folder / "drawn", args.count or 404)
        images, annotations = folder / "drawn" / "images", folder / "drawn" / "gt"
    place = {"images": str(images), "annotations": str(annotations)}
    (folder / "source.json").write_text(json.dumps(place))
    columns = ["tensor", "prob_map", "thresh_map", "prob_mask", "thresh_mask", "inverse_matrix"]
    build(
        images, folder / "pictures.ocrs", annotations=annotations, size=args.size, columns=columns
    )
    write_npz(LiveDataset(images, annotations=annotations, size=args.size), folder / "npz")


def measure(args, pipeline: str, *, ms: float, network: bool, folder: Path) -> dict:
    command = [
        *(sys.executable, __file__, "--prepared", str(folder), "--pipeline", pipeline),
        *("--ms", str(ms), "--epochs", str(args.epochs), "--workers", str(args.workers)),
        *("--size", str(args.size), "--batch-size", str(args.batch_size)),
        *(["--network"] if network else []),
    ]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    total = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(done.stderr)
    result = json.loads(done.stdout.splitlines()[-1])
    return {"pipeline": pipeline, "ms": ms, "total": total, **result}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=0, help="draw so many pictures")
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--speeds", default="0,2,5,10,20", help="milliseconds per batch")
    parser.add_argument("--network", action="store_true", help="a real network instead")
    parser.add_argument("--keep", type=Path, help="where to prepare, and to find it prepared")
    parser.add_argument("--prepared", help=argparse.SUPPRESS)  # in the measured process
    parser.add_argument("--pipeline", help=argparse.SUPPRESS)
    parser.add_argument("--ms", type=float, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.prepared:
        print(json.dumps(run_network(args) if args.network else run_fixed(args)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "npz").is_dir():
            prepare(args, folder)
        speeds = [0.0] if args.network else [float(s) for s in args.speeds.split(",")]
        report(
            [
                measure(args, pipeline, ms=ms, network=args.network, folder=folder)
                for ms in speeds
                for pipeline in PIPELINES
            ],
            args,
        )
    return 0


def report(results: list[dict], args) -> None:
    last = args.epochs
    print(
        f"| model, ms per batch | pipeline | {last} epochs with start, s | first epoch, s "
        "| later epochs, s | waiting for data |"
    )
    print("|---|---|---|---|---|---|")
    for result in results:
        epochs = result["epochs"]
        later = epochs[1:] or epochs
        seconds = sum(e["seconds"] for e in later)
        waiting = sum(e["waiting"] for e in later) / seconds
        shown = "network" if args.network else f"{result['ms']:g}"
        print(
            f"| {shown} | {result['pipeline']} | {result['total']:.1f} "
            f"| {epochs[0]['seconds']:.2f} | {seconds / len(later):.2f} | {100 * waiting:.1f} % |"
        )
    if not args.network and results[0]["ms"] == 0:
        print()
        for result in results[: len(PIPELINES)]:
            for name, epochs in (("first", result["epochs"][:1]), ("later", result["epochs"][1:])):
                if epochs:
                    per = sum(e["seconds"] for e in epochs) / sum(e["batches"] for e in epochs)
                    rate = args.batch_size / per
                    print(
                        f"- {result['pipeline']}, {name} epochs: a batch every {1000 * per:.1f} ms "
                        f"({rate:.0f} pictures/s); a faster GPU waits"
                    )


if __name__ == "__main__":
    sys.exit(main())
