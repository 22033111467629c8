"""Who competes in bench_loader.py, what a consumer does with a batch, and how both are timed."""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ocrstore
from tools.bench.consumers import NAMES, copy, touch

SIZE = 640
BATCH = 16
COLUMNS = {"images": "tensor", "prob_maps": "prob_map", "thresh_maps": "thresh_map"}
MIN_SECONDS = 0.5
"""A turn is as many whole epochs as take this long: one of a fast contender is over in 0.03 s."""


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


def make_plain_files(path: Path, folder: Path) -> int:
    """Write the columns of a store as plain files for `Mapped`; return the number of samples."""
    store = ocrstore.open(path)
    for name, column in COLUMNS.items():
        target = folder / f"{name}.bin"
        if not target.exists():
            with target.open("wb") as file:
                for row in range(len(store)):
                    file.write(store[column][row].tobytes())
    return len(store)


class Ready(Dataset):
    """A dict cache of ready tensors, filled before the workers start: the best that is done by
    hand.
    """

    images = "planar"

    def __init__(self, path: Path) -> None:
        store = ocrstore.open(path)
        self.cache = {}
        for row in range(len(store)):
            self.cache[row] = {
                "images": torch.from_numpy(store["tensor"][row].copy())
                .permute(2, 0, 1)
                .contiguous(),
                "prob_maps": torch.from_numpy(store["prob_map"][row].copy())[None],
                "thresh_maps": torch.from_numpy(store["thresh_map"][row].copy())[None],
            }

    def __len__(self) -> int:
        return len(self.cache)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return self.cache[row]


class Mapped(Dataset):
    """numpy.memmap of three plain files, the usual way."""

    images = "as stored"

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
            "images": torch.from_numpy(self.arrays["images"][row]),
            "prob_maps": torch.from_numpy(self.arrays["prob_maps"][row])[None],
            "thresh_maps": torch.from_numpy(self.arrays["thresh_maps"][row])[None],
        }


def copy_into(batch, buffers) -> None:
    batch.copy_into(buffers)


def memmove(batch, buffers) -> None:
    for name in NAMES:
        source = batch[name]
        ctypes.memmove(buffers[name].data_ptr(), source.data_ptr(), source.nbytes)


def make_buffers(images: str = "channels last") -> dict[str, torch.Tensor]:
    """Return buffers with pictures in the order that a contender delivers: all only memcpy."""
    stored = torch.zeros(BATCH, SIZE, SIZE, 3, dtype=torch.uint8)
    shown = stored if images == "as stored" else stored.permute(0, 3, 1, 2)
    if images == "planar":
        shown = shown.contiguous()
    halves = {n: torch.zeros(BATCH, 1, SIZE, SIZE, dtype=torch.float16) for n in NAMES[1:]}
    return {"images": shown, **halves}


class Rate(NamedTuple):
    """Samples for each second of the clock, and of this process's processor time."""

    clock: float
    processor: float


class Watch:
    """Measures both times at once: on a busy machine the processor's is the truer one."""

    def __init__(self) -> None:
        self.started = time.perf_counter(), time.process_time()

    def seconds(self) -> float:
        return time.perf_counter() - self.started[0]

    def rate(self, count: int) -> Rate:
        clock, processor = self.started
        return Rate(
            count / (time.perf_counter() - clock), count / (time.process_time() - processor)
        )


def limits() -> dict[str, Rate]:
    """Return the rate of reading resident memory: one element per page, and every byte.

    Every byte by memmove, which is one thread's, and by Tensor.copy_, which uses torch's threads:
    what counts is the faster one.
    """
    buffers = make_buffers()
    resident = [
        {n: b.clone(memory_format=torch.preserve_format) for n, b in buffers.items()}
        for _ in range(6)
    ]
    found = {}
    for name, consume in (("touch", touch), ("copy", copy), ("memmove", memmove)):
        for batch in resident:
            consume(batch, buffers)
        watch = Watch()
        for _ in range(4):
            for batch in resident:
                consume(batch, buffers)
        found[name] = watch.rate(24 * BATCH)
    found["copy"] = max(found["copy"], found["memmove"])
    return found


class Contender:
    """A DataLoader that stays open between turns."""

    def __init__(self, dataset, workers: int, shuffle: bool) -> None:
        options = {"persistent_workers": True} if workers else {}
        self.loader = DataLoader(
            dataset, batch_size=BATCH, num_workers=workers, shuffle=shuffle, **options
        )
        self.buffers = make_buffers(getattr(dataset, "images", "channels last"))

    def run(self, consume, *, seconds: float = MIN_SECONDS) -> Rate:
        """Consume whole epochs for at least `seconds`."""
        watch = Watch()
        epochs = 0
        while not epochs or watch.seconds() < seconds:
            for batch in self.loader:
                consume(batch, self.buffers)
            del batch
            epochs += 1
        return watch.rate(epochs * len(self.loader.dataset))
