"""What a DataLoader delivers from a store, against the limit and against what people do by hand.

    python tools/bench_loader.py                   all tables
    python tools/bench_loader.py --only stored     only stored columns (also: augmented, startup)

Everything is measured in turns inside one run, and what counts are the ratios: a machine that is busy
is busy for all. Two consumers: *touch* reads one element of each page, *copy* copies every byte into a reused
buffer, as staging for a GPU does. The limit is the faster of memmove and Tensor.copy_ from resident memory.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ocrstore
from ocrstore.torch import OCRStoreDataset

SIZE = 640
BATCH = 16
NAMES = ("images", "prob_maps", "thresh_maps")


def make_store(path: Path, samples: int) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (SIZE + samples, SIZE, 3), np.uint8)
    halves = rng.random((SIZE + samples, SIZE)).astype(np.float16)
    columns = {
        "tensor": ocrstore.Column("uint8", (SIZE, SIZE, 3)),
        "prob_map": ocrstore.Column("float16", (SIZE, SIZE)),
        "thresh_map": ocrstore.Column("float16", (SIZE, SIZE)),
    }
    with ocrstore.create(path, columns=columns, overwrite=True) as writer:
        for row in range(samples):
            part = slice(row, row + SIZE)
            arrays = {"tensor": noise[part], "prob_map": halves[part], "thresh_map": halves[part]}
            writer.append(f"{row:05d}.jpg", arrays)


class Ready(Dataset):
    """A dict cache of ready tensors, filled before the workers start: the best that is done by hand."""

    def __init__(self, path: Path) -> None:
        store = ocrstore.open(path)
        self.cache = {}
        for row in range(len(store)):
            self.cache[row] = {
                "images": torch.from_numpy(store["tensor"][row].copy()).permute(2, 0, 1),
                "prob_maps": torch.from_numpy(store["prob_map"][row].copy())[None],
                "thresh_maps": torch.from_numpy(store["thresh_map"][row].copy())[None],
            }

    def __len__(self) -> int:
        return len(self.cache)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return self.cache[row]


class Mapped(Dataset):
    """numpy.memmap of three plain files, the usual way."""

    def __init__(self, folder: Path, samples: int) -> None:
        self.folder, self.samples = folder, samples
        self.arrays = None

    def __len__(self) -> int:
        return self.samples

    def _open(self):
        shapes = {"images": ("u1", (SIZE, SIZE, 3)), "prob_maps": ("f2", (SIZE, SIZE))}
        shapes["thresh_maps"] = shapes["prob_maps"]
        return {
            name: np.memmap(self.folder / f"{name}.bin", dtype, "c", shape=(self.samples, *shape))
            for name, (dtype, shape) in shapes.items()
        }

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        if self.arrays is None:
            self.arrays = self._open()
        return {
            "images": torch.from_numpy(self.arrays["images"][row]).permute(2, 0, 1),
            "prob_maps": torch.from_numpy(self.arrays["prob_maps"][row])[None],
            "thresh_maps": torch.from_numpy(self.arrays["thresh_maps"][row])[None],
        }


def pages(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.permute(0, 2, 3, 1).reshape(-1)
    return flat[:: 4096 // flat.element_size()]


def touch(batch, _buffers) -> None:
    for name in NAMES:
        tensor = batch[name]
        if not tensor.permute(0, 2, 3, 1).is_contiguous():
            tensor = tensor.permute(0, 3, 1, 2)  # collated another way: any order will do
        pages(tensor).view(torch.uint8 if tensor.dtype == torch.uint8 else torch.int16).sum()


def copy(batch, buffers) -> None:
    for name in NAMES:
        tensor = batch[name]
        buffers[name][: len(tensor)].copy_(tensor)


def copy_into(batch, buffers) -> None:
    batch.copy_into(buffers)


def make_buffers() -> dict[str, torch.Tensor]:
    images = torch.zeros(BATCH, SIZE, SIZE, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    halves = {n: torch.zeros(BATCH, 1, SIZE, SIZE, dtype=torch.float16) for n in NAMES[1:]}
    return {"images": images, **halves}


def limits() -> dict[str, float]:
    """Return samples/s of reading resident memory: one element per page, and every byte."""
    buffers = make_buffers()
    resident = [{n: b.clone(memory_format=torch.preserve_format) for n, b in buffers.items()}
                for _ in range(6)]
    found = {}
    for name, consume in (("touch", touch), ("copy", copy), ("memmove", memmove)):
        for batch in resident:
            consume(batch, buffers)
        started = time.perf_counter()
        for _ in range(4):
            for batch in resident:
                consume(batch, buffers)
        found[name] = 24 * BATCH / (time.perf_counter() - started)
    found["copy"] = max(found["copy"], found.pop("memmove"))
    return found


def memmove(batch, buffers) -> None:
    for name in NAMES:
        source = batch[name]
        ctypes.memmove(buffers[name].data_ptr(), source.data_ptr(), source.nbytes)


class Contender:
    """A DataLoader that stays open between rounds."""

    def __init__(self, dataset, workers: int, shuffle: bool) -> None:
        options = {"persistent_workers": True} if workers else {}
        self.loader = DataLoader(
            dataset, batch_size=BATCH, num_workers=workers, shuffle=shuffle, **options
        )
        self.buffers = make_buffers()

    def run(self, consume) -> float:
        count = 0
        started = time.perf_counter()
        for batch in self.loader:
            consume(batch, self.buffers)
            count += len(batch["images"]) if consume is not copy_into else BATCH
        del batch
        seconds = time.perf_counter() - started
        return min(count, len(self.loader.dataset)) / seconds


def median(values) -> float:
    return statistics.median(values)


def stored(path: Path, rounds: int, workers: list[int]) -> dict[str, float]:
    samples = len(ocrstore.open(path))
    ready = Ready(path)
    ours = OCRStoreDataset(path)
    ours.warm()
    results: dict[tuple, list[float]] = {}
    for count in workers:
        for shuffle in (False, True):
            a, b = Contender(ours, count, shuffle), Contender(ready, count, shuffle)
            order = "shuffled" if shuffle else "sequential"
            kinds = [("touch", touch), ("copy", copy)]
            for _, consume in kinds:
                a.run(consume)
            b.run(touch)
            for _ in range(rounds):
                for name, value in limits().items():
                    results.setdefault(("limit", count, order, name), []).append(value)
                for name, consume in kinds:
                    results.setdefault(("ocrstore", count, order, name), []).append(a.run(consume))
                    results.setdefault(("dict cache", count, order, name), []).append(b.run(consume))
                results.setdefault(("ocrstore", count, order, "copy_into"), []).append(a.run(copy_into))
            del a, b
    print(f"\nstored columns: {samples} samples, batch {BATCH}, samples/s (median of {rounds})")
    print(f"{'workers':>7} {'order':>10} {'consumer':>9} | {'ocrstore':>9} {'by hand':>8} {'limit':>9}"
          f" | {'of limit':>8} {'x by hand':>9}")
    for count in workers:
        for order in ("sequential", "shuffled"):
            for name in ("touch", "copy", "copy_into"):
                mine = results["ocrstore", count, order, name]
                base = "copy" if name == "copy_into" else name
                limit = results["limit", count, order, base]
                hand = results["dict cache", count, order, base]
                of_limit = median([m / n for m, n in zip(mine, limit)])
                times = median([m / n for m, n in zip(mine, hand)])
                print(f"{count:>7} {order:>10} {name:>9} | {median(mine):>9.0f} {median(hand):>8.0f}"
                      f" {median(limit):>9.0f} | {of_limit:>8.2f} {times:>8.1f}x")
    return {}


def main() -> None:
    torch.set_num_threads(1)  # the limit is one core's memcpy; the workers need the others
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=404)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2, 4])
    parser.add_argument("--only", choices=["stored", "augmented", "startup"])
    parser.add_argument("--folder", type=Path, help="where to put the files (a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        path = folder / "bench.ocrs"
        if not path.exists():
            make_store(path, options.samples)
        if options.only in (None, "stored"):
            stored(path, options.rounds, options.workers)


if __name__ == "__main__":
    main()
