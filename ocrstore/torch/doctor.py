"""Owns the answer to "will this store train well on this machine?"."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocrstore.pagecache import resident_nbytes
from ocrstore.torch._pagemap import best_finder
from ocrstore.torch.dataset import OCRStoreDataset
from ocrstore.torch.memory import best_strategy
from ocrstore.torch.processes import Memory, measure

FINDERS = {
    "scan": "PAGEMAP_SCAN finds written pages exactly",
    "read": "/proc/self/pagemap finds written pages exactly",
    "all": "no page map: whole batches are mapped anew",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found; sizes in bytes, None where the system does not tell."""

    path: str
    samples: int
    file_nbytes: int
    view_nbytes: int
    """What one epoch of the default view reads."""
    cached_nbytes: int | None
    available_nbytes: int | None
    """Memory that could hold page cache now."""
    limit_nbytes: int | None
    """The control group's limit, None if there is none."""
    shm_nbytes: int | None
    """Size of /dev/shm."""
    strategy: str
    finder: str
    workers: int
    store: Memory | None
    """The loader's process and its workers after an epoch."""
    bare: Memory | None
    """The same with a data set of nothing, in a process that has read a batch of the store."""
    shm_growth: int | None
    """The most shared memory that they had at any time."""

    @property
    def fits(self) -> bool | None:
        """Return whether memory can hold what an epoch reads."""
        if self.available_nbytes is None:
            return None
        room = self.available_nbytes + (self.cached_nbytes or 0)
        if self.limit_nbytes is not None:
            room = min(room, self.limit_nbytes)
        return self.view_nbytes < room

    @property
    def worker_nbytes(self) -> int | None:
        """Return what the store adds to each process, beyond interpreter, torch and Arrow."""
        if self.store is None or self.bare is None:
            return None
        return max(0, self.store.own - self.bare.own) // (self.workers + 1)


def diagnose(path: str | os.PathLike[str], *, workers: int = 4, batch_size: int = 16) -> Diagnosis:
    """Look at a store and run one epoch of it in a fresh process."""
    dataset = OCRStoreDataset(path)
    view = dataset.views[0]
    cached = resident_nbytes(view.store.snapshot.mapping)
    strategy = best_strategy()
    finder = best_finder(view.open_file().fd).name if strategy == "leases" else "none"
    measured: dict[str, Any] = {}
    if sys.platform == "linux" and len(dataset):
        measured = measure(os.fspath(path), workers=workers, batch_size=batch_size)
    return Diagnosis(
        path=os.fspath(path),
        samples=len(dataset),
        file_nbytes=view.store.snapshot.mapping.nbytes,
        view_nbytes=view.nbytes,
        cached_nbytes=cached,
        available_nbytes=_available(),
        limit_nbytes=_limit(),
        shm_nbytes=_shm(),
        strategy=strategy,
        finder=finder,
        workers=workers,
        store=measured.get("store"),
        bare=measured.get("bare"),
        shm_growth=measured.get("shm"),
    )


def _available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _limit(
    root: Path = Path("/sys/fs/cgroup"), self_: Path = Path("/proc/self/cgroup")
) -> int | None:
    """Return the smallest memory limit of the control groups this process is in."""
    found: list[int] = []
    try:
        lines = self_.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory") and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        folder = base / path.lstrip("/")
        while True:
            for name in ("memory.max", "memory.limit_in_bytes"):
                try:
                    text = (folder / name).read_text().strip()
                except OSError:
                    continue
                if text.isdigit() and int(text) < 1 << 60:
                    found.append(int(text))
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent
    return min(found, default=None)


def _shm() -> int | None:
    try:
        status = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None
    return status.f_blocks * status.f_frsize
