"""One measurement in a process of its own, started by the suite in the peer's environment.

    python -m tools.bench.cell '{"kind": "rate", "peer": "memmap", ...}'

prints one line, `RESULT` and a JSON object. The kinds:

    build   write the peer's own format, synced to disk
    check   every sample against the prepared arrays, bit for bit
    rate    samples/s, processor time and memory in the steady state
    start   time to the first batch
    cold    one epoch after the peer's files were dropped from the page cache
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from tools.bench import accounting
from tools.bench.prepared import ARRAYS, Prepared, read


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Do one job in this process."""
    import torch

    # what loads data in torch has one thread by torch's own choice: workers, pin-memory thread
    torch.set_num_threads(1)
    imported = time.perf_counter()
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    peer = importlib.import_module(f"tools.bench.peers.{job['peer']}")
    if why := why_unsupported(peer, job):
        return {"unsupported": why}
    if job["kind"] == "build":
        return build(peer, Path(job["folder"]), Path(job["prepared"]))
    if job["kind"] == "check":
        return check(peer, job)
    if job["kind"] == "rate":
        return rate(peer, job)
    if job["kind"] == "start":
        return start(peer, job, imported)
    if job["kind"] == "cold":
        return cold(peer, job)
    raise ValueError(f"no kind of cell is named {job['kind']!r}")


def make_loader(peer: ModuleType, job: dict[str, Any], *, filled: bool = False) -> Any:
    make = peer.loader
    if filled:
        make = getattr(peer, "filled_loader", make)
    return make(
        Path(job["folder"]),
        prepared=Path(job["prepared"]),
        workers=job["workers"],
        shuffle=job["shuffle"],
        batch_size=job["batch_size"],
        seed=job["seed"],
    )


def build(peer: ModuleType, folder: Path, prepared: Path) -> dict[str, Any]:
    """Write the peer's format; the time includes that all of it is on the disk."""
    samples = read(prepared)
    folder.mkdir(parents=True)
    started = time.perf_counter()
    peer.build(samples, folder)
    for path in files_below(folder):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    seconds = time.perf_counter() - started
    used = all_files(peer, folder, samples)
    return {
        "build_s": seconds,
        "disk_mb": sum(path.stat().st_size for path in used) / 1e6,
        "versions": versions(peer),
    }


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def why_unsupported(peer: ModuleType, job: dict[str, Any]) -> str:
    """Return why a peer cannot do this cell, "" if it can."""
    if job.get("workers") is None or not hasattr(peer, "unsupported"):
        return ""
    return peer.unsupported(workers=job["workers"], shuffle=job["shuffle"])


def all_files(peer: ModuleType, folder: Path, prepared: Prepared) -> list[Path]:
    """Return what the peer reads: what it built, and what it uses where it is."""
    extra = getattr(peer, "extra_files", None)
    return files_below(folder) + (list(extra(prepared)) if extra else [])


def versions(peer: ModuleType) -> str:
    from importlib.metadata import version

    if hasattr(peer, "version"):
        return peer.version()
    name = getattr(peer, "DISTRIBUTION", "")
    if not name and peer.REQUIREMENTS:
        name = peer.REQUIREMENTS[0].partition("==")[0].partition("[")[0]
    return f"{name} {version(name)}" if name else ""


def check(peer: ModuleType, job: dict[str, Any]) -> dict[str, Any]:
    """Compare an epoch with the prepared arrays; the first differences are named."""
    problems = compare(make_loader(peer, job), read(Path(job["prepared"])))
    return {"equal": not problems, "problems": problems[:5]}


def compare(batches: Any, prepared: Prepared) -> list[str]:
    """Return what is wrong with an epoch: samples missing, repeated, or with other bits."""
    import numpy as np

    rows = {key: row for row, key in enumerate(prepared.keys)}
    problems, seen = [], []
    for batch in batches:
        images = batch["images"].numpy()
        if images.shape[1] == 3:
            images = images.transpose(0, 2, 3, 1)
        arrays = [images, batch["prob_maps"].numpy(), batch["thresh_maps"].numpy()]
        for place, key in enumerate(batch["image_filename"]):
            key = str(key)
            if key not in rows:
                problems.append(f"{key}: no such sample")
                continue
            seen.append(key)
            row = rows[key]
            for name, array in zip(ARRAYS, arrays):
                expected, found = getattr(prepared, name)[row], array[place]
                found = found.reshape(found.shape[-2:]) if name != "images" else found
                if found.dtype != expected.dtype or found.shape != expected.shape:
                    problems.append(
                        f"{key}: {name} is {found.dtype} {found.shape}, not"
                        f" {expected.dtype} {expected.shape}"
                    )
                elif not np.array_equal(found.view(np.uint8), expected.view(np.uint8)):
                    problems.append(f"{key}: {name} differs")
            mine, theirs = prepared.polygons[row], list(batch["polygons"][place])
            theirs = [np.asarray(polygon) for polygon in theirs]
            same = len(mine) == len(theirs) and all(
                b.dtype == np.float32 and np.array_equal(a, b) for a, b in zip(mine, theirs)
            )
            if not same:
                problems.append(f"{key}: polygons differ")
    for key in sorted(set(rows) - set(seen)):
        problems.append(f"{key}: missing")
    problems += [f"{key}: more than once" for key in sorted({k for k in seen if seen.count(k) > 1})]
    return problems


class Stream:
    """Epochs of a loader one after the other, as a training loop takes them."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.iterator: Any = None
        self.batches = 0
        """taken from the running epoch"""

    def next(self) -> Any:
        """Return the next batch, or None where an epoch ends."""
        if self.iterator is None:
            self.iterator, self.batches = iter(self.loader), 0
        for batch in self.iterator:
            self.batches += 1
            return batch
        self.iterator = None
        return None


def rate(peer: ModuleType, job: dict[str, Any]) -> dict[str, Any]:
    """Measure the steady state.

    Whole epochs after one for warming up, until they have taken `least_s`. Where one would take
    more than `epoch_s`, the warming up ends after so many batches that all workers are at work,
    and batches are measured until they have taken `slow_s`, in multiples of the workers.
    """
    from tools.bench.consumers import CONSUMERS

    consume = getattr(peer, "consume", CONSUMERS[job["consumer"]])
    buffers: dict[str, Any] = {}
    accounting.read_into_cache(all_files(peer, Path(job["folder"]), read(Path(job["prepared"]))))
    loader = make_loader(peer, job, filled=True)
    stream = Stream(loader)
    step = max(1, job["workers"])
    warm_batches = 3 * step + 1  # two for each worker are under way from the beginning
    batch = stream.next()
    consume(batch, buffers)
    started = time.perf_counter()
    whole = True
    own = 0
    middle = max(1, job["samples"] // (2 * job["batch_size"]))
    while (batch := stream.next()) is not None:
        consume(batch, buffers)
        if stream.batches == middle:  # with batches under way, which the end of an epoch has not
            own = accounting.memory(accounting.descendants()).own
        spent = time.perf_counter() - started
        expected = spent * job["samples"] / (job["batch_size"] * stream.batches)
        if stream.batches >= warm_batches and expected > job["epoch_s"]:
            whole = False
            break
    pids = accounting.descendants()
    count = batches = 0
    before = accounting.moment(pids)
    while True:
        batch = None  # what a loop does: the last batch is free when the next one is taken
        batch = stream.next()
        spent = time.perf_counter() - before.clock
        if batch is None:
            if whole and spent >= job["least_s"]:
                break
            continue
        consume(batch, buffers)
        held = batch
        count += len(batch["images"])
        batches += 1
        spent = time.perf_counter() - before.clock
        if not whole and spent >= job["slow_s"] and batches % step == 0:
            break
    after = accounting.moment(pids)
    taken = accounting.memory(accounting.descendants())
    del held
    seconds = after.clock - before.clock
    return {
        "rate": count / seconds,
        "cpu_ms": 1000 * (after.own - before.own) / count,
        "own_mb": max(own, taken.own) / 1e6,
        "files_mb": taken.files / 1e6,
        "seconds": seconds,
        "samples": count,
        "whole": whole,
        "disturbance": accounting.disturbance(before, after),
    }


def start(peer: ModuleType, job: dict[str, Any], imported: float) -> dict[str, Any]:
    """Measure how long a fresh process takes to its first batch, all of it read."""
    from tools.bench.consumers import touch

    before = accounting.moment()
    batch = next(iter(make_loader(peer, job)))
    touch(batch)
    done, age = time.perf_counter(), accounting.process_age()
    after = accounting.moment()
    return {
        "first_batch_s": age,
        "first_batch_after_torch_s": done - imported,
        "disturbance": accounting.disturbance(before, after),
    }


def cold(peer: ModuleType, job: dict[str, Any]) -> dict[str, Any]:
    """Measure the first epoch when nothing of the peer's files is in the page cache."""
    from tools.bench.consumers import touch

    files = all_files(peer, Path(job["folder"]), read(Path(job["prepared"])))
    cached = accounting.drop_from_cache(files)
    before = accounting.moment()
    count = 0
    for batch in make_loader(peer, job):
        touch(batch)
        count += len(batch["images"])
    after = accounting.moment()
    return {
        "cold_epoch_s": after.clock - before.clock,
        "still_cached": cached,
        "samples": count,
        "disturbance": accounting.disturbance(before, after),
    }


if __name__ == "__main__":
    result = main(json.loads(sys.argv[1]))
    print("RESULT " + json.dumps(result), flush=True)
    # the interpreter's and the peers' tear-down is no part of a cell, and may hang in threads
    sys.stdout.flush()
    for child in accounting.descendants()[1:]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, 9)
    os._exit(0)
