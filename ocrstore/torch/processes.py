"""Owns what processes cost: the memory of a loader and its workers, as Linux accounts for it.

RSS counts a page in every process that maps it; PSS divides it by their number, so that the PSS
of several processes adds up to what they really take. Measured in a fresh process (`python -m
ocrstore.torch.processes`).
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_FIELDS = {
    "Rss": "rss",
    "Pss": "pss",
    "Pss_Anon": "pss_anonymous",
    "Pss_File": "pss_file",
    "Pss_Shmem": "pss_shared",
}


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process or a group of them takes, in bytes."""

    rss: int = 0
    pss: int = 0
    pss_anonymous: int = 0
    """Memory of the processes' own."""
    pss_file: int = 0
    """Pages of files: the page cache, which the kernel takes back when it must."""
    pss_shared: int = 0
    """Shared memory, /dev/shm among it."""

    def __add__(self, other: Memory) -> Memory:
        mine, others = asdict(self), asdict(other)
        return Memory(**{name: mine[name] + others[name] for name in mine})

    @property
    def own(self) -> int:
        """Return what is not page cache."""
        return self.pss_anonymous + self.pss_shared


def memory_of(pid: int) -> Memory:
    """Return the memory of one process; needs Linux 5.4 for the parts of PSS."""
    found: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        if name in _FIELDS:
            found[_FIELDS[name]] = int(rest.split()[0]) * 1024
    return Memory(**found)


def measure(
    path: str, *, workers: int, batch_size: int = 16, context: str = "fork"
) -> dict[str, Any]:
    """Run one epoch of a loader in a fresh process, before it one of a data set of nothing.

    Returns `store` and `bare` (memory of the loader's process and its workers), and `shm`, how
    much /dev/shm grew. The difference is what the store costs; what its first batch imports and
    opens, once for all processes, is in both.
    """
    command = [sys.executable, "-m", "ocrstore.torch.processes", path]
    command += [str(workers), str(batch_size), context]
    environment = dict(os.environ)
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join([root, environment.get("PYTHONPATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring {path} failed:\n{done.stderr.strip()[-2000:]}")
    record = json.loads(done.stdout.splitlines()[-1])
    return {
        "store": Memory(**record["store"]),
        "bare": Memory(**record["bare"]),
        "shm": record["shm"],
        "workers": workers,
    }


def _epoch(
    dataset: Any, workers: int, batch_size: int, context: str, *, batches: int | None = None
) -> tuple[Memory, int]:
    """Iterate once, touching every page, and account while the workers still live."""
    import torch
    from torch.utils.data import DataLoader

    options: dict[str, Any] = {}
    if workers:
        options = {"persistent_workers": True, "multiprocessing_context": context}
    loader: Any = DataLoader(dataset, batch_size=batch_size, num_workers=workers, **options)
    most = 0
    for number, batch in enumerate(loader):
        values = batch.values() if hasattr(batch, "values") else batch
        for value in values:
            if isinstance(value, torch.Tensor):
                # a byte of each page; to add up all would make whole numbers of 8 bytes of them
                data = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
                data[:: mmap.PAGESIZE].sum()
        if number % 8 == 2:
            most = max(most, _together(loader).pss_shared)
        if number + 1 == batches:
            break
    total = _together(loader)
    return total, max(most, total.pss_shared)


def _together(loader: Any) -> Memory:
    total = memory_of(os.getpid())
    for process in getattr(loader._iterator, "_workers", ()):
        total += memory_of(process.pid)
    return total


def _main(path: str, workers: int, batch_size: int, context: str) -> None:
    import warnings

    import torch
    from torch.utils.data import TensorDataset

    from ocrstore.torch.dataset import OCRStoreDataset

    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(1)
    dataset = OCRStoreDataset(path)
    _epoch(dataset, 0, batch_size, context, batches=1)
    bare, _ = _epoch(TensorDataset(torch.zeros(len(dataset), 1)), workers, batch_size, context)
    store, shm = _epoch(dataset, workers, batch_size, context)
    print(json.dumps({"store": asdict(store), "bare": asdict(bare), "shm": shm}))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
