"""Owns what it costs to bring a batch from a worker to its parent, by each of the ways there are.

One worker per way sends a batch whenever it is asked to; the parent reads one element of each page
of it. What the worker spends is counted, too, and putting the batch together is part of each way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.multiprocessing

from ocrstore.profiling.clock import Clock, Spent
from ocrstore.profiling.records import BY_REFERENCE, COMPACT, STOCK
from ocrstore.shared_slots import supported
from ocrstore.torch.collate import Computed, ComputedBatch
from ocrstore.torch.dataset import OCRStoreDataset
from ocrstore.torch.fields import as_tensor
from ocrstore.torch.records import OutgoingBatch

_WARM = 3
"""Batches that are not counted: the first ones find no memory to use again."""
_PAGE = 4096


class _Way:
    """A worker that sends one batch for each request."""

    def __init__(self, name: str, payload: Any, clock: Clock) -> None:
        context = torch.multiprocessing.get_context()
        self.name = name
        self._clock = clock
        self._requests = context.SimpleQueue()
        self._replies = context.SimpleQueue()
        arguments = (name, payload, clock, self._requests, self._replies)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()

    def run(self, batches: int) -> Spent:
        """Return what so many batches cost parent and worker together, one after the other."""
        total = Spent()
        for _ in range(batches):
            before = self._clock()
            self._requests.put(True)
            batch, worker = self._replies.get()
            if isinstance(batch, str):
                raise RuntimeError(f"the worker of {self.name!r} failed: {batch}")
            touch(batch)
            del batch
            after = self._clock()
            cpu = after[1] - before[1] + worker
            total += Spent((after[0] - before[0]) / 1e6, cpu / 1e6)
        return total

    def close(self) -> None:
        self._requests.put(False)
        self._process.join(5)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


def touch(batch: Mapping[str, Any]) -> None:
    """Read one byte of each page of every tensor of a batch."""
    for name in batch:
        value = batch[name]
        if isinstance(value, torch.Tensor) and value.ndim:
            flat = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
            flat[::_PAGE].sum()


@contextmanager
def _opened(ways: Mapping[str, Any], clock: Clock) -> Iterator[list[_Way]]:
    opened: list[_Way] = []
    try:
        for name, payload in ways.items():
            opened.append(_Way(name, payload, clock))
        yield opened
    finally:
        for way in opened:
            way.close()


def measure_handover(
    samples: Sequence[Computed],
    *,
    stored: tuple[OCRStoreDataset, Sequence[int]] | None,
    repeats: int,
    batches: int,
    clock: Clock,
) -> dict[str, list[Spent]]:
    """Return, by way, what one sample cost in each repeat.

    `samples` are one batch of transformed samples; `stored` is a data set without a transform and
    rows of it, sent by reference.
    """
    ways: dict[str, Any] = {}
    counts: dict[str, int] = {}
    if stored is not None:
        ways[BY_REFERENCE] = stored
        counts[BY_REFERENCE] = len(stored[1])
    if samples:
        plain = [dict(sample) for sample in samples]
        if supported:
            ways[COMPACT] = plain
        ways[STOCK] = plain
        counts |= dict.fromkeys((COMPACT, STOCK), len(samples))
    found: dict[str, list[Spent]] = {name: [] for name in ways}
    with _opened(ways, clock) as opened:
        for way in opened:
            way.run(_WARM)
        for _ in range(repeats):
            for way in opened:
                found[way.name].append(way.run(batches).per(batches * counts[way.name]))
    return found


def _serve(name: str, payload: Any, clock: Clock, requests: Any, replies: Any) -> None:
    """Send a batch whenever asked; with it goes what this process spent since the one before."""
    torch.set_num_threads(1)
    last = clock()[1]
    while requests.get():
        try:
            batch = _make(name, payload)
        except Exception as exc:  # the parent says so
            replies.put((f"{type(exc).__name__}: {exc}", 0))
            return
        now = clock()[1]
        replies.put((batch, now - last))
        last = now
        del batch


def _make(name: str, payload: Any) -> Any:
    if name == BY_REFERENCE:
        dataset, rows = payload
        parts = dataset[list(rows)]._parts
        parts.bring_in()
        return OutgoingBatch(parts)
    samples = [Computed(sample) for sample in payload]
    return ComputedBatch(samples) if name == COMPACT else _stock(samples)


def _stock(samples: list[Computed]) -> dict[str, torch.Tensor]:
    """Stack as torch's default collation does in a worker: into fresh shared memory."""
    batch: dict[str, torch.Tensor] = {}
    for name, value in samples[0].items():
        if not isinstance(value, np.ndarray):
            continue
        tensors = [as_tensor(sample[name]) for sample in samples]
        nbytes = len(tensors) * value.nbytes
        storage = torch.UntypedStorage._new_shared(nbytes)  # type: ignore[no-untyped-call]  # torch's own
        out = torch.empty(0, dtype=tensors[0].dtype).set_(storage)
        out = out.view(len(tensors), *value.shape)
        batch[name] = torch.stack(tensors, out=out)
    return batch
