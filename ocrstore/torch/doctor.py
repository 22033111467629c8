"""Find out how a store will train on this machine: page cache, memory, cost of workers.

The loader is measured in a fresh process (`python -m ocrstore.torch.doctor`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from ocrstore import errors
from ocrstore.machine import (
    Memory,
    ProcessMemory,
    look_at_memory,
    memory_of,
    shared_memory_nbytes,
)
from ocrstore.torch.dataset import OCRStoreDataset
from ocrstore.torch.memory.column_memory import best_strategy
from ocrstore.torch.memory.written_pages import best_finder

FINDERS = {
    "scan": "PAGEMAP_SCAN finds written pages exactly",
    "read": "/proc/self/pagemap finds written pages exactly",
    "all": "no page map: whole batches are mapped again",
}
"""What each finder of written pages means to the user."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found; sizes in bytes, None if the system does not report them."""

    path: str
    samples: int
    file_nbytes: int
    view_nbytes: int
    """What one epoch of the default view reads."""
    cached_nbytes: int | None
    """How much of that is in the page cache."""
    memory: Memory
    """Of the machine or its control group; the page cache counts as available."""
    shm_nbytes: int | None
    """Size of /dev/shm."""
    strategy: str
    finder: str
    workers: int
    store: ProcessMemory | None
    """The loader's process and its workers after an epoch."""
    bare: ProcessMemory | None
    """The same with an empty data set, in a process that has read a batch of the store."""
    shm_growth: int | None
    """The most shared memory in use at any time."""

    @property
    def fits(self) -> bool:
        """Return whether what an epoch reads fits into memory."""
        return self.view_nbytes < self.memory.available_nbytes

    @property
    def worker_nbytes(self) -> int | None:
        """Return what the store adds to each process beyond interpreter, torch and Arrow."""
        if self.store is None or self.bare is None:
            return None
        return max(0, self.store.own - self.bare.own) // (self.workers + 1)


def diagnose(path: str | os.PathLike[str], *, workers: int = 4, batch_size: int = 16) -> Diagnosis:
    """Inspect a store and run one epoch of it in a fresh process."""
    dataset = OCRStoreDataset(path)
    cached: int | None = 0
    file_nbytes = 0
    for view in dataset.views:
        mapping = view.store.snapshot.mapping
        needed = view.ranges(np.arange(len(view), dtype=np.int64), names=view.names)
        resident = view.mapped_rows.resident_nbytes(needed)
        cached = None if cached is None or resident is None else cached + resident
        file_nbytes += mapping.nbytes
    strategy = best_strategy()
    finder = "none"
    if strategy == "leases":
        finder = best_finder(dataset.views[0].open_file().fd).name
    measured: dict[str, Any] = {}
    if sys.platform == "linux" and len(dataset):
        measured = measure(os.fspath(path), workers=workers, batch_size=batch_size)
    return Diagnosis(
        path=os.fspath(path),
        samples=len(dataset),
        file_nbytes=file_nbytes,
        view_nbytes=dataset.nbytes,
        # with the gaps between rows it may be a little more
        cached_nbytes=None if cached is None else min(cached, dataset.nbytes),
        memory=look_at_memory(),
        shm_nbytes=shared_memory_nbytes(),
        strategy=strategy,
        finder=finder,
        workers=workers,
        store=measured.get("store"),
        bare=measured.get("bare"),
        shm_growth=measured.get("shm"),
    )


def measure(
    path: str, *, workers: int, batch_size: int = 16, context: str = "fork"
) -> dict[str, Any]:
    """Run one epoch of a loader in a fresh process, after one of an empty data set.

    Returns:
        `store` and `bare`: the memory of the process and its workers with the store and with the
        empty data set. The difference is what the store costs; what its first batch imports and
        opens is in both. `shm`: how much shared memory was in use.
    """
    command = [sys.executable, "-m", "ocrstore.torch.doctor", path]
    command += [str(workers), str(batch_size), context]
    environment = dict(os.environ)
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join([root, environment.get("PYTHONPATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring {path} failed:\n{done.stderr.strip()[-2000:]}")
    record = json.loads(done.stdout.splitlines()[-1])
    if "error" in record:
        raise getattr(errors, record["error"], errors.OCRStoreError)(record["message"])
    return {
        "store": ProcessMemory(**record["store"]),
        "bare": ProcessMemory(**record["bare"]),
        "shm": record["shm"],
        "workers": workers,
    }


def _epoch(
    dataset: Any, workers: int, batch_size: int, context: str, *, batches: int | None = None
) -> tuple[ProcessMemory, int]:
    """Iterate once, touching every page, and measure while the workers are alive."""
    options: dict[str, Any] = {}
    if workers:
        options = {"persistent_workers": True, "multiprocessing_context": context}
    loader: Any = DataLoader(dataset, batch_size=batch_size, num_workers=workers, **options)
    most = 0
    page = os.sysconf("SC_PAGE_SIZE")
    for number, batch in enumerate(loader):
        values = batch.values() if hasattr(batch, "values") else batch
        for value in values:
            if isinstance(value, torch.Tensor):
                # one byte of each page: a sum over all would convert them to int64 first
                data = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
                data[::page].sum()
        if number % 8 == 2:
            most = max(most, _together(loader).pss_shared)
        if number + 1 == batches:
            break
    total = _together(loader)
    return total, max(most, total.pss_shared)


def _together(loader: Any) -> ProcessMemory:
    total = memory_of(os.getpid())
    for process in getattr(loader._iterator, "_workers", ()):
        total += memory_of(process.pid)
    return total


def _main(path: str, workers: int, batch_size: int, context: str) -> None:
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(1)
    try:
        dataset = OCRStoreDataset(path)
        _epoch(dataset, 0, batch_size, context, batches=1)
        bare, _ = _epoch(TensorDataset(torch.zeros(len(dataset), 1)), workers, batch_size, context)
        store, shm = _epoch(dataset, workers, batch_size, context)
    except errors.OCRStoreError as exc:  # of the store, not of the measurement
        print(json.dumps({"error": type(exc).__name__, "message": str(exc)}))
    else:
        print(json.dumps({"store": asdict(store), "bare": asdict(bare), "shm": shm}))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
