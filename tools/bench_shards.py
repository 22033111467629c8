"""Read 100 shards as one data set, against one store of the same samples in the same order.

    python tools/bench_shards.py STORE          rates and opening times as ratios
    python tools/bench_shards.py STORE --many   1,000 shards x 1,000 samples: opening, memory

STORE is a store with a view of 640 pixels; its samples are copied `--copies` times. Both contenders
take turns in every round, and each ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
import xxhash

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from loader_contenders import Contender, copy_into, touch

import ocrstore
from ocrstore.catalog import Catalog, Shard, write_catalog
from ocrstore.machine import memory_of
from ocrstore.torch import OCRStoreDataset

SHARDS = 100
MANY = 1000


def bucket_of(key: str, shards: int) -> str:
    """Return the bucket of a key, of at least so many."""
    return f"{xxhash.xxh3_64_intdigest(key.encode()):064b}"[: (shards - 1).bit_length()]


def describe(path: Path, *, name: str, bucket: str) -> Shard:
    """Return the entry of a store in a catalog."""
    with ocrstore.open(path) as store:
        nbytes = {column: int(store[column].nbytes.sum()) for column in store.columns}
        full, rest = divmod(len(store), 16)
        groups = tuple((count, rows) for count, rows in ((full, 16), (1, rest)) if count and rows)
        return Shard(
            name,
            bucket,
            "0" * 64,
            path.stat().st_size,
            len(store),
            store.generation,
            store.fingerprint,
            groups,
            nbytes,
        )


def write_dataset(folder: Path, shards: list[Shard]) -> None:
    """Write the catalog of some shards in a folder."""
    with ocrstore.open(folder / shards[0].name) as store:
        known = ("views", "default_view")
        metadata = {name: store.metadata[name] for name in known if name in store.metadata}
        write_catalog(Catalog(str(folder), dict(store.columns), metadata, tuple(shards), {}))


def prepare(path: Path, folder: Path, copies: int) -> tuple[Path, Path]:
    """Write the samples of a store, several times over, as one store and as shards."""
    one, many = folder / f"one-{copies}.ocrs", folder / f"shards-{copies}"
    if (many / "dataset.json").exists():
        return one, many
    many.mkdir(parents=True, exist_ok=True)
    store = ocrstore.open(path)
    samples = [(f"{copy}/{key}", row) for copy in range(copies) for row, key in enumerate(store)]
    # so many buckets that some may be empty; neighbours make a shard, as `build` would not
    samples.sort(key=lambda sample: bucket_of(sample[0], 2**32))
    write_store(one, store, samples)
    shards = []
    size = -(-len(samples) // SHARDS)
    for number, group in groupby(enumerate(samples), key=lambda item: item[0] // size):
        bucket = f"{number:07b}"
        target = many / f"{bucket}.ocrs"
        write_store(target, store, [sample for _, sample in group])
        shards.append(describe(target, name=target.name, bucket=bucket))
    write_dataset(many, shards)
    return one, many


def write_store(target: Path, store: ocrstore.Store, samples: list[tuple[str, int]]) -> None:
    """Write samples of a store as they are stored, under other keys."""
    names = store.snapshot.index.attributes
    metadata = {name: store.metadata[name] for name in ("views", "default_view")}
    with ocrstore.create(
        target, columns=store.columns, attributes=names, metadata=metadata, overwrite=True
    ) as writer:
        for key, row in samples:
            arrays = {name: store[name].encoded(row) for name in store.columns}
            writer.append(key, arrays, attributes=store.attributes(row, as_stored=True))


def evict(paths: list[Path]) -> None:
    """Drop files from the page cache: pages that are read lie better there than written ones."""
    for path in paths:
        with path.open("rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def compare(one: Path, many: Path, rounds: int) -> None:
    """Print the rate of the shards as a share of that of the one store."""
    torch.set_num_threads(1)
    sets = {"one store": OCRStoreDataset(one), "shards": OCRStoreDataset(many)}
    evict([one, *many.glob("*.ocrs")])
    for dataset in sets.values():
        dataset.warm()
    samples = len(sets["shards"])
    print(f"{samples} samples in {len(sets['shards'].shards)} shards; {rounds} rounds")
    print("workers       order   consumer   by the clock   processor   one store/s")
    for workers in (0, 2):
        for shuffle in (False, True):
            contenders = {name: Contender(data, workers, shuffle) for name, data in sets.items()}
            for contender in contenders.values():
                contender.run(touch, seconds=0)
            for name, consume in (("touch", touch), ("copy_into", copy_into)):
                clock, processor, rates = [], [], []
                for number in range(rounds):
                    order = list(contenders) if number % 2 else list(contenders)[::-1]
                    found = {who: contenders[who].run(consume) for who in order}
                    clock.append(found["shards"].clock / found["one store"].clock)
                    processor.append(found["shards"].processor / found["one store"].processor)
                    rates.append(found["one store"].clock)
                print(
                    f"{workers:7}  {'shuffled' if shuffle else 'sequential':>10}  {name:>9}"
                    f"  {statistics.median(clock):12.2f}  {statistics.median(processor):10.2f}"
                    f"  {statistics.median(rates):12.0f}",
                    flush=True,
                )
            del contenders
    opening = {name: [] for name in sets}
    sets.clear()
    del dataset
    for _ in range(rounds * 10):
        for name, path in (("one store", one), ("shards", many)):
            started = time.perf_counter()
            opened = OCRStoreDataset(path)
            opening[name].append(time.perf_counter() - started)
            del opened
    times = {name: statistics.median(found) * 1e3 for name, found in opening.items()}
    print(
        f"opening: one store {times['one store']:.2f} ms, shards {times['shards']:.2f} ms:"
        f" {times['shards'] / times['one store']:.2f} times"
    )


def make_many(folder: Path) -> Path:
    """Make a data set of 1,000 shards x 1,000 samples: one small store under many names."""
    many = folder / "many"
    if (many / "dataset.json").exists():
        return many
    many.mkdir(parents=True, exist_ok=True)
    columns = {
        "tensor": ocrstore.Column("uint8", (8, 8, 3)),
        "prob_map": ocrstore.Column("float16", (8, 8)),
        "thresh_map": ocrstore.Column("float16", (8, 8)),
    }
    arrays = {name: np.zeros(c.shape, c.dtype) for name, c in columns.items()}
    first = many / "0.ocrs"
    with ocrstore.create(first, columns=columns, overwrite=True) as writer:
        for row in range(MANY):
            writer.append(f"{row:05d}.jpg", arrays)
    shards = []
    for number in range(MANY):
        name = f"{number}.ocrs"
        if number:
            os.link(first, many / name)
        shards.append(describe(first, name=name, bucket=f"{number:010b}"))
    write_dataset(many, shards)
    return many


def measure_many(many: Path, limit: int) -> None:
    """Print how long opening takes, and the memory of workers after some shuffled batches."""
    import resource

    resource.setrlimit(
        resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    started = time.perf_counter()
    dataset = OCRStoreDataset(many)
    seconds = time.perf_counter() - started
    print(f"{limit} descriptors: opened {len(dataset):,} samples in {1000 * seconds:.0f} ms")
    loader = torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2)
    batches = iter(loader)
    for number, batch in enumerate(batches):
        batch["images"].sum()
        if number in (2, 100, 200, 400, 800, 1600):
            pids = [worker.pid for worker in batches._workers]
            own = [memory_of(pid).own / 1e6 for pid in (os.getpid(), *pids)]
            print(f"  batch {number}: private MB of parent and workers {[round(mb) for mb in own]}")
        if number == 1600:
            break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "bench-shards")
    parser.add_argument("--many", action="store_true")
    parser.add_argument("--limit", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.limit:
        measure_many(make_many(given.folder), given.limit)
    elif given.many:
        for limit in (1024, 16384):
            command = [sys.executable, __file__, given.store, "--limit", str(limit)]
            subprocess.run([*command, "--folder", given.folder], check=True)
    else:
        compare(*prepare(given.store, given.folder, given.copies), given.rounds)


if __name__ == "__main__":
    main()
