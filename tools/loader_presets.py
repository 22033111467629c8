"""The tables of bench_loader.py for compressed columns: raw against maps against all compressed.

*fast* is raw, *balanced* has maps and masks as LZ4 blocks, *small* the picture as well. The decoded
bytes are the same, so are the buffers. *prefetch* is a PrefetchLoader that stages each batch in
reused buffers, as it does in page-locked ones for a GPU. A second table compares, for batches of
workers, what ocrstore does by itself with a parent that decodes everything.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from loader_contenders import BATCH, MIN_SECONDS, Rate, Watch

import ocrstore
from ocrstore.schema import MAPS, TENSOR
from ocrstore.torch import Batch, OCRStoreDataset, PrefetchLoader, collate
from tools.bench.consumers import PAGE, flat

PRESETS = {"fast": (), "balanced": tuple(MAPS), "small": (TENSOR, *MAPS)}
FIELDS = ("images", "prob_maps", "thresh_maps", "prob_masks", "thresh_masks")


def make_stores(source: Path, folder: Path) -> dict[str, Path]:
    """Write a view's columns once for each preset."""
    store = ocrstore.open(source)
    paths = {preset: folder / f"{preset}.ocrs" for preset in PRESETS}
    for preset, path in paths.items():
        if path.exists():
            continue
        columns = {
            name: replace(store.columns[name], codec="lz4block" if name in compressed else "raw")
            for name in (TENSOR, *MAPS)
            for compressed in (PRESETS[preset],)
        }
        with ocrstore.create(path, columns) as writer:
            for row, key in enumerate(store.keys):
                writer.append(key, {name: store[name][row] for name in columns})
    return paths


class Staging:
    """The stage of a PrefetchLoader that copies batches into two sets of reused buffers."""

    def __init__(self) -> None:
        self._slots: list[dict[str, Any]] = [{}, {}]

    def enter_thread(self) -> None:
        """Do nothing."""

    def begin(self, batch: Batch) -> dict[str, Any]:
        """Copy a batch."""
        self._slots.reverse()
        self._slots[0] = self._slots[0] or batch.empty_buffers()
        return batch.copy_into(self._slots[0])

    def finish(self, begun: dict[str, Any]) -> dict[str, Any]:
        """Return the buffers."""
        return begun


class StagingLoader(PrefetchLoader):
    """A PrefetchLoader without a device."""

    def make_stage(self) -> Staging:
        """Return the stage."""
        return Staging()


class Contender:
    """The loaders of one store, which stay open between turns."""

    def __init__(self, path: Path, workers: int, shuffle: bool, init: Any = None) -> None:
        self.dataset = OCRStoreDataset(path)
        self.dataset.warm()
        options: dict[str, Any] = {"batch_size": BATCH, "shuffle": shuffle, "num_workers": workers}
        options |= {"persistent_workers": workers > 0, "worker_init_fn": init}
        self.loader = DataLoader(self.dataset, **options)
        self.staging = StagingLoader(self.dataset, **options)
        self.buffers = self.dataset[:BATCH].empty_buffers()

    def run(self, consumer: str) -> Rate:
        """Consume whole epochs for at least half a second."""
        watch, epochs = Watch(), 0
        while not epochs or watch.seconds() < MIN_SECONDS:
            for batch in self.staging if consumer == "prefetch" else self.loader:
                if consumer == "copy_into":
                    batch.copy_into(self.buffers)
                elif consumer == "direct":
                    for name in FIELDS:
                        for row in batch[name]:  # rows of raw columns have gaps between them
                            flat(row)[:: PAGE // row.element_size()].sum()
            del batch
            epochs += 1
        return watch.rate(epochs * len(self.dataset))


def compare_presets(source: Path, folder: Path, rounds: int, workers: list[int]) -> None:
    """Print epochs from a cold cache, and both tables."""
    paths = make_stores(source, folder)
    for preset, path in paths.items():
        print(f"{preset:9} {path.stat().st_size / 1e6:8.1f} MB without whole pictures")
    # before this process maps the files: what is mapped does not leave the page cache
    print("\ncold cache, copy_into, seconds for an epoch")
    for order in ("sequential", "shuffled"):
        turns = [
            {preset: _cold(path, order) for preset, path in paths.items()} for _ in range(rounds)
        ]
        medians = {p: round(statistics.median(turn[p] for turn in turns), 2) for p in paths}
        gains = {
            preset: round(statistics.median(turn["fast"] / turn[preset] for turn in turns), 2)
            for preset in paths
        }
        print(f"{order:10} {medians}, times as fast as fast {gains}", flush=True)
    print(f"\nsamples/s and ratio to fast by the clock (by processor time), {rounds} rounds")
    for number in workers:
        for shuffle in (False, True):
            stores = {preset: Contender(path, number, shuffle) for preset, path in paths.items()}
            order = f"{number} workers {'shuffled' if shuffle else 'sequential':10}"
            for consumer in ("copy_into", "prefetch", "direct"):
                _compare(f"{order} {consumer:9}", stores, consumer, "fast", rounds)
    print(
        "\nwho decodes the batches of workers: the parent always, or the worker for direct access"
    )
    for number in [count for count in workers if count]:
        for preset in ("balanced", "small"):
            who = {
                "parent": Contender(paths[preset], number, True, _leave_to_parent),
                "ours": Contender(paths[preset], number, True),
            }
            for consumer in ("copy_into", "prefetch", "direct"):
                _compare(
                    f"{number} workers {preset:8} {consumer:9}", who, consumer, "parent", rounds
                )


def _leave_to_parent(_worker: int) -> None:
    collate.AHEAD_NBYTES = -1


def _compare(
    title: str, stores: dict[str, Contender], consumer: str, base: str, rounds: int
) -> None:
    for contender in stores.values():  # start the workers, fill page tables
        contender.run(consumer)
    rates: dict[str, list[Rate]] = {name: [] for name in stores}
    for _ in range(rounds):
        for name, contender in stores.items():
            rates[name].append(contender.run(consumer))
    shown = [f"{name} {statistics.median(r.clock for r in rates[name]):6.0f}" for name in stores]
    for name in stores:
        if name != base:
            pairs = list(zip(rates[name], rates[base], strict=True))
            clock, processor = (
                statistics.median(getattr(a, kind) / getattr(b, kind) for a, b in pairs)
                for kind in Rate._fields
            )
            shown.append(f"{name}/{base} {clock:.2f} ({processor:.2f})")
    print(title, "|", "  ".join(shown), flush=True)


def _cold(path: Path, order: str) -> float:
    """Return the seconds of an epoch from a cold cache, in a fresh process."""
    command = [sys.executable, __file__, path, order]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def cold_epoch(path: Path, order: str) -> float:
    """Drop a file from the page cache and read it once."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    dataset = OCRStoreDataset(path)
    buffers = dataset[:BATCH].empty_buffers()
    start = time.perf_counter()
    for batch in DataLoader(dataset, BATCH, shuffle=order == "shuffled"):
        batch.copy_into(buffers)
    return time.perf_counter() - start


if __name__ == "__main__":
    print(cold_epoch(Path(sys.argv[1]), sys.argv[2]))
