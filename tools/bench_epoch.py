"""How long does a loop wait for data? Validation epochs from files, from dict caches, from a store.

    OCRSTORE_PICTURES=... python tools/bench_epoch.py --plot waiting.png     404 ICDAR pictures
    python tools/bench_epoch.py --count 200                                  drawn pictures
    OCRSTORE_PICTURES=... python tools/bench_epoch.py --network              a real DBNet, on the CPU

Every figure comes from a process of its own, started for it; the total includes that start. The
pipelines give batches of 16 (pictures, both maps, both masks):

    files   decode + albumentations, maps from npz files, every epoch anew; 2 workers
    dict    the same, finished samples kept in a dict in each worker; 2 workers
    store   `PrefetchLoader` on a store; no workers
    views   the same, without the copy: what a network on the CPU is given

The model is one that takes a fixed time for each batch, as a GPU would: the loop sleeps. In all but
`views` a thread copies each batch into a reused buffer ahead of time: what a GPU's transfer reads.
*Waiting* is what the loop spends on getting the next filled buffer. A model of 0 ms does nothing but
wait, by definition; how fast a model may be before it waits is searched for each pipeline.

`--network` trains nothing, but validates a real (small) DBNet with Lightning after each of the epochs;
there, waiting is what Lightning's own profiler says about fetching batches. It runs on fewer and
smaller pictures, because a CPU is no GPU.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

TENSORS = ("images", "prob_maps", "thresh_maps", "prob_masks", "thresh_masks")
PIPELINES = ("files", "dict", "store", "views")
LIMIT = 0.02
"""The share of waiting that counts as none."""


class Buffers:
    """Copies batches into reused buffers ahead of time, as a transfer to a GPU would."""

    def __init__(self, ahead: int) -> None:
        # those that are ready, the one in use, the one being filled
        self.slots: list[dict] = [{} for _ in range(ahead + 2)]
        self.turn = 0

    def enter_thread(self):
        pass

    def begin(self, batch):
        import torch

        buffers = self.slots[self.turn % len(self.slots)]
        self.turn += 1
        if hasattr(batch, "copy_into"):
            if not buffers:
                made = batch.empty_buffers()
                buffers.update({name: made[name] for name in TENSORS})
            return batch.copy_into(buffers)
        for name in TENSORS:
            if name not in buffers:
                buffers[name] = torch.empty_like(batch[name])
            buffers[name][: len(batch[name])].copy_(batch[name])
        return {name: buffers[name][: len(batch[name])] for name in TENSORS}

    def finish(self, filled):
        return filled


def make_loader(args):
    """Return the loader of a pipeline; all of them are read ahead by the same thread."""
    from torch.utils.data import DataLoader

    from ocrstore.torch import OCRStoreDataset, PrefetchLoader

    class Staging(PrefetchLoader):
        def make_stage(self):
            return Buffers(self.ahead)

    folder = Path(args.prepared)
    if args.pipeline in ("store", "views"):
        dataset = OCRStoreDataset(folder / "pictures.ocrs")
        kind = Staging if args.pipeline == "store" and not args.network else PrefetchLoader
        return kind(dataset, batch_size=args.batch_size, lists=args.network)
    from live import LiveDataset, collate

    place = json.loads((folder / "source.json").read_text())
    dataset = LiveDataset(
        Path(place["images"]),
        annotations=place["annotations"] and Path(place["annotations"]),
        size=args.size,
        npz=folder / "npz",
        cached=args.pipeline == "dict",
    )
    kind = DataLoader if args.network else Staging
    return kind(
        dataset,
        batch_size=args.batch_size,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        collate_fn=collate,
    )


class WaitProfiler:
    """The hook in the loop: what is spent on getting batches, and what on using them."""

    def __init__(self) -> None:
        self.waiting = self.model = 0.0
        self.batches = 0

    def watch(self, loader):
        before = time.perf_counter()
        for batch in loader:
            got = time.perf_counter()
            self.waiting += got - before
            yield batch
            before = time.perf_counter()
            self.model += before - got
            self.batches += 1
        self.waiting += time.perf_counter() - before

    def to_json(self) -> dict:
        return {"waiting": self.waiting, "model": self.model, "batches": self.batches}


def run_epoch(loader, ms: float) -> dict:
    profiler = WaitProfiler()
    started = time.perf_counter()
    for _batch in profiler.watch(loader):
        if ms:
            time.sleep(ms / 1000)
    return {"seconds": time.perf_counter() - started, **profiler.to_json()}


def run_fixed(args) -> dict:
    """Loop over epochs with a model that takes a fixed time; return seconds spent on what."""
    loader = make_loader(args)
    return {"epochs": [run_epoch(loader, args.ms) for _ in range(args.epochs)]}


def run_search(args) -> dict:
    """Find the fastest model that does not wait, in epochs after the first."""
    loader = make_loader(args)
    run_epoch(loader, 0)
    bare = run_epoch(loader, 0)
    low = 1000 * bare["seconds"] / bare["batches"]
    period, high = low, None
    for _ in range(args.steps):
        ms = 1.5 * low if high is None else (low + high) / 2
        epoch = run_epoch(loader, ms)
        if epoch["waiting"] / epoch["seconds"] < LIMIT:
            high = ms
        else:
            low = ms
    return {"period": period, "fast_enough": high}


def run_network(args) -> dict:
    """Validate a small DBNet with Lightning; its profiler says what fetching cost."""
    import lightning as L
    import torch
    from lightning.pytorch.profilers import SimpleProfiler

    from ocrstore.dbnet.module import DBNetModule

    class Validated(DBNetModule):
        def training_step(self, batch, batch_idx):  # noqa: ARG002  # Lightning's signature
            return next(self.net.parameters()).sum() * 0

    class Watch(L.Callback):
        def on_validation_start(self, *_):
            profiler.recorded_durations.clear()
            self.started = time.perf_counter()

        def on_validation_end(self, *_):
            seconds = time.perf_counter() - self.started
            recorded = profiler.recorded_durations
            waiting = sum(sum(v) for k, v in recorded.items() if k.endswith("val_next"))
            model = sum(sum(v) for k, v in recorded.items() if k.endswith(".validation_step"))
            epochs.append(
                {"seconds": seconds, "waiting": waiting, "model": model, "batches": args.batches}
            )

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")  # Lightning's advice on workers
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)  # how many boxes it finds, and so its time, depends on the weights
    epochs: list[dict] = []
    profiler = SimpleProfiler()
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        max_epochs=args.epochs,
        limit_val_batches=args.batches,
        profiler=profiler,
        callbacks=[Watch()],
    )
    module = Validated(model={"backbone": "resnet10", "width": 16, "inner": 32})
    nothing = torch.utils.data.DataLoader([0])
    trainer.fit(module, nothing, make_loader(args))
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


def measure(args, pipeline: str, mode: str, *, ms: float = 0.0, folder: Path) -> dict:
    """Run this program again in the measured mode; its start is part of the total."""
    command = [
        *(sys.executable, __file__, "--prepared", str(folder), "--pipeline", pipeline),
        *("--mode", mode, "--ms", str(ms), "--epochs", str(args.epochs)),
        *("--workers", str(args.workers), "--size", str(args.size), "--steps", str(args.steps)),
        *("--batch-size", str(args.batch_size), "--batches", str(args.batches)),
        *("--threads", str(args.threads), *(["--network"] if mode == "network" else [])),
    ]
    print(f"  {pipeline}, {mode} {ms:g}", file=sys.stderr, flush=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    total = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = sum(getattr(after, n) - getattr(before, n) for n in ("ru_utime", "ru_stime"))
    result = json.loads(done.stdout.splitlines()[-1])
    return {"pipeline": pipeline, "ms": ms, "total": total, "processor": processor, **result}


MODES = {"fixed": run_fixed, "search": run_search, "network": run_network}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=0, help="draw so many pictures")
    parser.add_argument("--size", type=int, help="640; 320 with --network")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2, help="of files and dict")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--speeds", default="0,2,5,10,20", help="milliseconds per batch")
    parser.add_argument("--pipelines", default=",".join(PIPELINES))
    parser.add_argument("--steps", type=int, default=7, help="of the search; 0: none")
    parser.add_argument("--plot", type=Path, help="draw the curves into a picture")
    parser.add_argument("--page", type=Path, help="write the tables there, for docs/benchmarks.md")
    parser.add_argument("--network", action="store_true", help="a real network instead")
    parser.add_argument("--batches", type=int, default=12, help="of an epoch, with --network")
    parser.add_argument("--threads", type=int, default=1, help="of torch, with --network")
    parser.add_argument("--keep", type=Path, help="where to prepare, and to find it prepared")
    parser.add_argument("--prepared", help=argparse.SUPPRESS)  # in the measured process
    parser.add_argument("--pipeline", help=argparse.SUPPRESS)
    parser.add_argument("--mode", default="fixed", help=argparse.SUPPRESS)
    parser.add_argument("--ms", type=float, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.size = args.size or (320 if args.network else 640)
    if args.prepared:
        print(json.dumps(MODES[args.mode](args)))
        return 0
    from epoch_report import plot, report, report_network, write_fragment

    names = args.pipelines.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "npz").is_dir():
            prepare(args, folder)
        if args.network:
            names = [name for name in names if name != "views"]
            results = [measure(args, n, "network", folder=folder) for n in names]
            text = report_network(results, args)
        else:
            speeds = [float(s) for s in args.speeds.split(",")]
            results = [
                measure(args, n, "fixed", ms=ms, folder=folder) for ms in speeds for n in names
            ]
            searched = [measure(args, n, "search", folder=folder) for n in names if args.steps]
            text = report(results, searched, args)
    print(text)
    if args.page:
        write_fragment(args.page, "tools/bench_epoch.py", text)
    if args.plot and not args.network:
        plot(results, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
