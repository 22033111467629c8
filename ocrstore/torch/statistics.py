"""Statistics of loading, one line every n batches: page-cache hits, residency, bytes and waits."""

from __future__ import annotations

import multiprocessing
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ocrstore.torch.batch import Batch
from ocrstore.torch.dataset import OCRStoreDataset


@dataclass(frozen=True, slots=True)
class LoadingFigures:
    """What some batches of a loop took."""

    step: int
    """Batches since the beginning."""
    batches: int
    nbytes: int
    """Bytes of the rows in these batches, as they are stored."""
    read_nbytes: int | None
    """Bytes that this process and its workers read from the disk meanwhile, of any file; None
    where the system does not count them."""
    resident_nbytes: int | None
    """Bytes of the open stores in the page cache now; None if unknown."""
    store_nbytes: int
    """Bytes of the open stores."""
    seconds: float
    waited: float
    """Seconds that the loop waited for batches."""

    @property
    def hits(self) -> float | None:
        """Return the share of the bytes that were in the page cache already; None if unknown."""
        if self.read_nbytes is None or not self.nbytes:
            return None
        return max(0.0, 1 - self.read_nbytes / self.nbytes)

    @property
    def resident(self) -> float | None:
        """Return the share of the stores in the page cache; None if unknown."""
        if self.resident_nbytes is None or not self.store_nbytes:
            return None
        return self.resident_nbytes / self.store_nbytes

    def scalars(self) -> dict[str, float]:
        """Return the figures by name, for TensorBoard; without those that are unknown."""
        found = {
            "ocrstore/page_cache_hits": self.hits,
            "ocrstore/residency": self.resident,
            "ocrstore/mb_per_s": self.nbytes / 1e6 / max(self.seconds, 1e-9),
            "ocrstore/wait_ms": 1000 * self.waited / max(1, self.batches),
            "ocrstore/wait_share": self.waited / max(self.seconds, 1e-9),
        }
        return {name: value for name, value in found.items() if value is not None}

    def line(self) -> str:
        """Return the figures as one line of text."""
        hits = "unknown" if self.hits is None else f"{self.hits:.1%}"
        resident = "unknown" if self.resident is None else f"{self.resident:.0%}"
        return (
            f"ocrstore: batch {self.step}: page-cache hits {hits}, resident {resident} of "
            f"{self.store_nbytes / 1e6:.0f} MB, {self.nbytes / 1e6:.0f} MB in {self.seconds:.2f} s,"
            f" waited {1000 * self.waited / max(1, self.batches):.2f} ms a batch"
            f" ({self.waited / max(self.seconds, 1e-9):.0%} of the time)"
        )


class LoadingMeter:
    """Counts batches of one loop. Call `wait` before a batch is taken, `got` after it is there."""

    def __init__(self, dataset: OCRStoreDataset, *, log_every_n: int) -> None:
        if log_every_n < 1:
            raise ValueError(f"log_every_n={log_every_n}: expected at least 1")
        self._views = dataset.views
        self._row_nbytes = dataset.nbytes / max(1, len(dataset))
        self.log_every_n = log_every_n
        self._step = 0
        self._waiting_since: float | None = None
        self._restart()

    def _restart(self) -> None:
        self._since = time.perf_counter()
        self._read = _read_nbytes()
        self._batches = self._samples = 0
        self._waited = 0.0

    def wait(self) -> None:
        """Note that the loop begins to wait for a batch."""
        self._waiting_since = time.perf_counter()

    def got(self, batch: Any) -> None:
        """Note that the loop has a batch."""
        if self._waiting_since is not None:
            self._waited += time.perf_counter() - self._waiting_since
        self._waiting_since = None
        self._batches += 1
        self._samples += _samples_in(batch)
        self._step += 1

    def figures(self) -> LoadingFigures | None:
        """Return the figures of the last `log_every_n` batches; None if these are not over yet."""
        if self._batches < self.log_every_n:
            return None
        before, after = self._read, _read_nbytes()
        read = None if before is None or after is None else max(0, after - before)
        # of shards those that are open in this process: they stand for the others
        opened = [view for one in self._views.sets for view in list(one.opened.values())]
        resident = [view.store.snapshot.mapping.resident_nbytes() for view in opened]
        known = [nbytes for nbytes in resident if nbytes is not None]
        found = LoadingFigures(
            self._step,
            self._batches,
            round(self._samples * self._row_nbytes),
            read,
            sum(known) if len(known) == len(resident) else None,
            sum(view.store.snapshot.mapping.nbytes for view in opened),
            time.perf_counter() - self._since,
            self._waited,
        )
        self._restart()
        return found


_METERS: weakref.WeakKeyDictionary[Iterable[Any], LoadingMeter] = weakref.WeakKeyDictionary()
"""Those of loaders that are in use."""


def log_every_n(
    loader: Iterable[Any], n: int, *, emit: Callable[[str], None] = print, writer: Any = None
) -> Iterator[Any]:
    """Yield the batches of a loader, and say every n batches what loading took.

    Batches are counted over all passes of a loader; the time between two passes counts, too.

    Args:
        loader: A DataLoader of an `OCRStoreDataset`.
        n: After how many batches.
        emit: Called with the line.
        writer: A TensorBoard SummaryWriter, which also gets the figures.
    """
    meter = _METERS.get(loader)
    if meter is None or meter.log_every_n != n:
        meter = _METERS[loader] = LoadingMeter(find_dataset(loader), log_every_n=n)
    batches = iter(loader)
    while True:
        meter.wait()
        try:
            batch = next(batches)
        except StopIteration:
            return
        meter.got(batch)
        yield batch
        found = meter.figures()
        if found is not None:
            emit(found.line())
            for name, value in found.scalars().items() if writer is not None else ():
                writer.add_scalar(name, value, found.step)


def find_dataset(loader: Any) -> OCRStoreDataset:
    """Return the data set behind a loader, also where subsets or a few loaders are around it."""
    if isinstance(loader, OCRStoreDataset):
        return loader
    if isinstance(loader, Mapping):
        inner: Any = list(loader.values())
    else:
        inner = getattr(loader, "dataset", getattr(loader, "iterables", loader))
    for part in inner if isinstance(inner, (list, tuple)) else [inner]:
        if part is not loader and part is not None:
            return find_dataset(part)
    raise TypeError(
        f"statistics of loading are those of an OCRStoreDataset: expected a loader of one, found"
        f" {type(loader).__name__}"
    )


def _samples_in(batch: Any) -> int:
    if isinstance(batch, Batch):
        return batch.batch_size
    if isinstance(batch, Mapping):
        batch = next(iter(batch.values()), ())
    if isinstance(batch, (list, tuple)) and batch and isinstance(batch[0], torch.Tensor):
        batch = batch[0]
    return len(batch) if hasattr(batch, "__len__") else 0


def _read_nbytes() -> int | None:
    """Return what this process and its workers have read from the disk; None if not counted."""
    workers = [child.pid for child in multiprocessing.active_children()]
    total = 0
    for pid in ("self", *workers):
        try:
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        except OSError:
            if pid == "self":
                return None
            continue  # the worker has just ended
        total += sum(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))
    return total
