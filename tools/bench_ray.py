"""Compare a build on Ray with the same build on this machine, and kill nodes and tasks of it.

    OCRSTORE_PICTURES=... python -m tools.bench_ray [--rounds 3] [--kills 20] [--shard-size 60MB]

A cluster of two nodes with half of the cores each is started here (`ray.cluster_utils`), and warmed
up by one build. Then builds from scratch take turns, on Ray and in one local process with as many
workers as there are cores; the table has the median of the rounds' ratios. Then, `--kills` times, a
node or the process of a task is killed at a random moment of a build; catalog and fingerprints have
to be those of the undisturbed build, and `gc` has to leave nothing but the catalog's files.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

import ocrstore
from ocrstore.building.build_dataset import collect_garbage
from ocrstore.catalog import CATALOG, read_catalog
from ocrstore.machine import usable_cpus


def build(out: Path, size: str, on: str | None, **options: Any) -> float:
    """Build the data set from the real pictures; return the seconds."""
    pictures = Path(os.environ["OCRSTORE_PICTURES"]) / "icdar2015"
    started = time.perf_counter()
    report = ocrstore.build(
        pictures / "images", out, annotations=pictures / "gt", shard_size=size, on=on, **options
    )
    assert report.ok, report.problems
    return time.perf_counter() - started


def check(out: Path, expected: bytes) -> None:
    """Compare a data set with the undisturbed one, and remove what is left of killed attempts."""
    assert (out / CATALOG).read_bytes() == expected
    catalog = read_catalog(out)
    for shard in catalog.shards:
        with ocrstore.open(catalog.shard_path(shard)) as store:
            assert store.fingerprint == shard.fingerprint
    removed = collect_garbage(out)
    left = {path.name for path in out.iterdir() if not path.name.endswith(".lock")}
    assert left == {CATALOG, *(shard.name for shard in catalog.shards)}, left
    print(f"  equal; gc removed {len(removed)} files", flush=True)


def kill_a_node(cluster: Cluster, node: Any) -> None:
    """Kill the processes of a node, as a power failure does."""
    cluster.remove_node(node, allow_graceful=False)


def kill_a_task() -> None:
    """Kill the process of a task that is running."""
    running = [
        process
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [""])[0].startswith("ray::_make")
    ]
    if running:
        random.choice(running).kill()


def disturb(cluster: Cluster, folder: Path, size: str, seconds: float, expected: bytes) -> None:
    """Build while a node or a task is killed at a random moment."""
    out = folder / "killed"
    shutil.rmtree(out, ignore_errors=True)
    whole_node = random.random() < 0.5
    node = cluster.add_node(num_cpus=1) if whole_node else None
    wait = random.random() * seconds
    strike = (lambda: kill_a_node(cluster, node)) if whole_node else kill_a_task
    timer = threading.Timer(wait, strike)
    timer.start()
    build(out, size, "ray")
    timer.join()
    print(f"{'node' if whole_node else 'task'} killed after {wait:.1f} s", flush=True)
    check(out, expected)


def main() -> None:
    """Measure, then kill."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--shard-size", default="60MB")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    random.seed(asked.seed)
    cores = usable_cpus()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cores - cores // 2})
    cluster.add_node(num_cpus=cores // 2)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"warming up: {build(folder / 'ray', asked.shard_size, 'ray'):.2f} s")
        print(f"nothing to do: {build(folder / 'ray', asked.shard_size, 'ray'):.2f} s")
        ratios, seconds = [], []
        for _ in range(asked.rounds):
            local = build(folder / "local", asked.shard_size, None, force=True)
            there = build(folder / "ray", asked.shard_size, "ray", force=True)
            print(f"local {local:.2f} s, Ray {there:.2f} s, ratio {there / local:.2f}", flush=True)
            ratios.append(there / local)
            seconds.append(there)
        print(f"median ratio {statistics.median(ratios):.2f}")
        expected = (folder / "local" / CATALOG).read_bytes()
        for _ in range(asked.kills):
            disturb(cluster, folder, asked.shard_size, statistics.median(seconds), expected)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
