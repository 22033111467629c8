"""Owns the answer to "will this store train well on this machine?"."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ocrstore.pagecache import resident_nbytes
from ocrstore.torch._pagemap import best_finder
from ocrstore.torch.dataset import OCRStoreDataset
from ocrstore.torch.memory import best_strategy
from ocrstore.torch.processes import Memory, memory_of

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
        measured = _measure(os.fspath(path), workers, batch_size)
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


def _measure(path: str, workers: int, batch_size: int) -> dict[str, Any]:
    """Run one epoch in a fresh process, before it one of nothing: memory of all processes."""
    command = [sys.executable, "-m", __name__, path, str(workers), str(batch_size)]
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
    }


def _epoch(dataset: Any, workers: int, batch_size: int, *, batches: int | None = None) -> Any:
    """Iterate, touching every page; returns the memory at the end and the most shared memory."""
    import torch
    from torch.utils.data import DataLoader

    options: dict[str, Any] = {}
    if workers:
        options = {"persistent_workers": True, "multiprocessing_context": "fork"}
    loader: Any = DataLoader(dataset, batch_size=batch_size, num_workers=workers, **options)
    most = 0

    def together() -> Memory:
        total = memory_of(os.getpid())
        for process in getattr(loader._iterator, "_workers", ()):
            total += memory_of(process.pid)
        return total

    for number, batch in enumerate(loader):
        for value in batch.values() if hasattr(batch, "values") else batch:
            if isinstance(value, torch.Tensor):
                value.amax()  # not sum(), which makes whole numbers of 8 bytes of it first
        if number % 8 == 2:
            most = max(most, together().pss_shared)
        if number + 1 == batches:
            break
    total = together()
    return total, max(most, total.pss_shared)


def _main(path: str, workers: int, batch_size: int) -> None:
    import warnings

    import torch
    from torch.utils.data import TensorDataset

    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(1)
    dataset = OCRStoreDataset(path)
    # what is imported and opened once, by the first batch, is no cost of each process
    _epoch(dataset, 0, batch_size, batches=1)
    bare, _ = _epoch(TensorDataset(torch.zeros(len(dataset), 1)), workers, batch_size)
    store, shm = _epoch(dataset, workers, batch_size)
    print(json.dumps({"store": asdict(store), "bare": asdict(bare), "shm": shm}))


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


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
