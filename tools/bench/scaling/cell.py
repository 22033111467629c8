"""One cell of the scale study, in a process of its own: opens a store, reads it, tells what it took.

    python cell.py '{"path": ..., "workers": 2, "order": "shuffled", ...}'

Every byte of each batch is copied into a buffer that is used again, as staging for a GPU does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

MB = 1e6


def main() -> None:
    spec = json.loads(sys.argv[1])
    if spec.get("group"):
        from scaling.limits import join

        join(spec["group"])
    print(json.dumps(run(spec)))


def run(spec: dict) -> dict:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from ocrstore.machine import memory_of
    from ocrstore.torch import OCRStoreDataset

    torch.set_num_threads(1)
    workers = spec["workers"]
    options = {"persistent_workers": True, "multiprocessing_context": "fork"} if workers else {}
    give_back()
    before = memory_of(os.getpid()).own
    result: dict = {}
    clock, cpu = time.perf_counter(), time.process_time()
    if spec["order"] == "bare":
        dataset = TensorDataset(torch.zeros(spec["samples"], 1))
    else:
        dataset = OCRStoreDataset(spec["path"])
        result["open_ms"] = 1000 * (time.perf_counter() - clock)
        result["open_cpu_ms"] = 1000 * (time.process_time() - cpu)
    result["opened_nbytes"] = memory_of(os.getpid()).own - before
    give_back()
    result["live_nbytes"] = memory_of(os.getpid()).own - before
    if spec.get("warm") and spec["order"] != "bare":
        dataset.warm()
    sampler = make_sampler(dataset, spec)
    loader = DataLoader(
        dataset, batch_size=spec["batch"], num_workers=workers, sampler=sampler, **options
    )
    consume = Consumer()
    clock = time.perf_counter()
    batches = iter(loader)
    consume(next(batches))
    result["first_batch_ms"] = 1000 * (time.perf_counter() - clock)
    for epoch in range(spec.get("epochs", 1)):
        if epoch:
            batches = iter(loader)
        consume.count = 0
        started, spent = time.perf_counter(), cpu_seconds(loader)
        until = started + spec["seconds"]
        for batch in batches:
            consume(batch)
            if time.perf_counter() > until:
                break
        seconds = time.perf_counter() - started
        result["rate"] = consume.count / seconds if consume.count else None
        result["cpu_ms"] = 1000 * (cpu_seconds(loader) - spent) / max(consume.count, 1)
        result["took_s"] = seconds
    del batch
    processes = [os.getpid(), *(w.pid for w in getattr(loader._iterator, "_workers", ()))]
    memory = [memory_of(pid) for pid in processes]
    result["own_nbytes"] = sum(one.own for one in memory)
    result["file_nbytes"] = sum(one.pss_file for one in memory)
    # the buffer that batches are copied into is the consumer's, not the store's
    result["buffer_nbytes"] = consume.nbytes
    result["added_nbytes"] = memory[0].own - before - consume.nbytes
    return result


def give_back() -> None:
    """Have the C library return memory that nothing uses any more, so that what is left is in use."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def make_sampler(dataset, spec: dict):
    from torch.utils.data import RandomSampler, SequentialSampler

    from ocrstore.torch import WindowShuffleSampler

    if spec["order"] == "window":
        return WindowShuffleSampler(dataset, window=spec.get("window", 2))
    return RandomSampler(dataset) if spec["order"] == "shuffled" else SequentialSampler(dataset)


class Consumer:
    """Copies batches into one set of buffers."""

    def __init__(self) -> None:
        self.buffers: dict | None = None
        self.count = 0
        self.nbytes = 0

    def __call__(self, batch) -> None:
        if isinstance(batch, (list, tuple)):
            self.count += len(batch[0])
            return
        if self.buffers is None:
            self.buffers = batch.empty_buffers()
            self.nbytes = sum(buffer.nbytes for buffer in self.buffers.values())
        batch.copy_into(self.buffers)
        self.count += batch.batch_size


def cpu_seconds(loader) -> float:
    """Return the processor time of this process and its workers."""
    total = time.process_time()
    for worker in getattr(loader._iterator, "_workers", ()):
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


if __name__ == "__main__":
    main()
