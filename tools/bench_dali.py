"""What does DALI's CPU backend make of the same augmentation, against `OCRStoreDataset(transform=)`?

    python tools/bench_dali.py train.ocrs                       96 samples a pass, 5 rounds
    python tools/bench_dali.py raw.ocrs jpeg.ocrs --device cuda

Needs `ocrstore[dali]`. Each pass loads batches of 8 with maps and masks and reads nothing of them. The rounds are
interleaved. The rate is that of the median round; the processor time, workers included, changes less on a busy
machine. With a GPU the data set's batches are sent there, too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

from ocrstore.augment import BasicAugmentation
from ocrstore.dali import DALILoader
from ocrstore.torch import OCRStoreDataset, ResumableSampler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stores", nargs="+")
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    for store in options.stores:
        print(
            f"{Path(store).name}, {options.size} px, {options.threads} threads of DALI, {options.device}"
        )
        measure(contenders(store, options), options.rounds)


def contenders(store: str, options: argparse.Namespace) -> dict[str, Callable[[], Iterable]]:
    dataset = OCRStoreDataset(store, transform=BasicAugmentation(options.size, options.size))
    rows = np.arange(min(options.samples, len(dataset)))
    found: dict[str, Callable[[], Iterable]] = {}
    for workers in (0, 2):
        common = {
            "batch_size": 8,
            "num_workers": workers,
            "sampler": ResumableSampler(dataset, rows=rows),
        }
        loader = DataLoader(dataset, **common)
        found[f"data set, {workers} workers"] = lambda loader=loader: (
            b.to(options.device) for b in loader
        )
        dali = DALILoader(dataset, **common, device=options.device, num_threads=options.threads)
        found[f"DALI, {workers} workers"] = lambda dali=dali: dali
    return found


def measure(passes: dict[str, Callable[[], Iterable]], rounds: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in passes}
    costs: dict[str, list[float]] = {name: [] for name in passes}
    for number in range(rounds + 1):
        for name, load in passes.items():
            before, began = sum(os.times()[:4]), time.perf_counter()
            count = sum(batch.batch_size for batch in load())
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            took, used = time.perf_counter() - began, sum(os.times()[:4]) - before
            if number:  # the first warms up
                rates[name].append(count / took)
                costs[name].append(1000 * used / count)
    print(f"  {'':22} {'samples/s':>10} {'ms of processor time per sample':>32}")
    for name in passes:
        print(
            f"  {name:22} {statistics.median(rates[name]):10.0f} {statistics.median(costs[name]):32.1f}"
        )


if __name__ == "__main__":
    main()
