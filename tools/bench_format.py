"""Measure the format against its limits: memcpy, numpy.memmap, a plain file, the bare hash.

    python tools/bench_format.py [--rounds 5] [--folder DIR] [--json out.json]

Everything is compared in one run, rounds interleaved, as ratios of medians; the page cache is warm.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash
from rich.console import Console
from rich.table import Table

import ocrstore

SAMPLES, BATCH = 404, 16
COLUMNS = {
    "tensor": ocrstore.Column("uint8", (640, 640, 3)),
    "prob_map": ocrstore.Column("float16", (640, 640)),
    "thresh_map": ocrstore.Column("float16", (640, 640)),
}
SAMPLE_NBYTES = sum(column.row_nbytes for column in COLUMNS.values())


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def interleaved(
    works: dict[str, Callable[[], object]],
    rounds: int,
    *,
    before: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Time each work once a round; `before` prepares the ground for each, untimed."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for round_ in range(rounds + 1):
        for name, work in works.items():
            before()
            elapsed = seconds(work)
            if round_:  # the first round warms up
                times[name].append(elapsed)
    return times


def ratio(times: dict[str, list[float]], ours: str, limit: str) -> float:
    """Return the median over rounds of (limit's seconds / our seconds): above 1 we are faster."""
    return statistics.median(b / a for a, b in zip(times[ours], times[limit]))


def make_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        name: rng.integers(0, 255, (SAMPLES, column.row_nbytes), np.uint8)
        .view(column.dtype)
        .reshape(SAMPLES, *column.shape)
        for name, column in COLUMNS.items()
    }


def write_store(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with ocrstore.create(path, COLUMNS, overwrite=True) as writer:
        for row in range(SAMPLES):
            writer.append(f"img_{row}.jpg", {name: a[row] for name, a in arrays.items()})


def write_plain(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        for row in range(SAMPLES):
            for array in arrays.values():
                file.write(array[row])
        file.flush()
        os.fsync(file.fileno())


def bench_reading(folder: Path, arrays: dict[str, np.ndarray], rounds: int) -> list[tuple]:
    store = ocrstore.open(folder / "bench.ocrs")
    maps = {}
    for name, array in arrays.items():
        array.tofile(folder / name)
        maps[name] = np.memmap(folder / name, array.dtype, "r", shape=array.shape)
    buffers = {n: np.empty((BATCH, *c.shape), c.dtype) for n, c in COLUMNS.items()}
    starts = range(0, SAMPLES - BATCH + 1, BATCH)

    def copy(source: dict[str, np.ndarray]) -> None:
        for start in starts:
            for name, buffer in buffers.items():
                np.copyto(buffer, source[name][start : start + BATCH])

    def touch(source: dict[str, np.ndarray]) -> None:
        for start in starts:
            for name in COLUMNS:
                source[name][start : start + BATCH].reshape(-1).view(np.uint8)[::4096].sum()

    times = interleaved(
        {
            "copy store": lambda: copy(store),
            "copy memory": lambda: copy(arrays),
            "copy memmap": lambda: copy(maps),
            "touch store": lambda: touch(store),
            "touch memmap": lambda: touch(maps),
        },
        rounds * 2,
    )
    rng = np.random.default_rng(2)
    rows = rng.integers(0, SAMPLES, 3000).tolist()
    column = store["tensor"]
    single = statistics.median(
        seconds(lambda: [column[row][0, 0, 0] for row in rows]) / len(rows) for _ in range(rounds)
    )
    speed = len(starts) * BATCH / statistics.median(times["copy store"])
    return [
        ("copy batches of 16, against memcpy from memory", ratio(times, "copy store", "copy memory"), 0.9, f"{speed:.0f} samples/s"),
        ("the same, against numpy.memmap", ratio(times, "copy store", "copy memmap"), None, ""),
        ("touch a byte per page, against numpy.memmap", ratio(times, "touch store", "touch memmap"), 0.7, ""),
        ("random single-sample read, µs (below 20)", single * 1e6, -20, ""),
    ]  # fmt: skip


def bench_opening(folder: Path, rounds: int) -> list[tuple]:
    opening = statistics.median(
        seconds(lambda: ocrstore.open(folder / "bench.ocrs")) for _ in range(rounds * 4)
    )
    times = {}
    for count in (1000, 100_000):
        path = folder / f"small-{count}.ocrs"
        schema = {"width": pa.int32(), "polygons": pa.list_(pa.list_(pa.float32()))}
        spec = {"a": ocrstore.Column("uint8", (8,)), "b": ocrstore.Column("float32", (2, 2))}
        row = {"a": np.zeros(8, np.uint8), "b": np.zeros((2, 2), np.float32)}
        polygons = [[0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]] * 4
        started = time.perf_counter()
        with ocrstore.create(path, spec, attributes=schema) as writer:
            for number in range(count):
                writer.append(
                    f"{number:06d}.jpg", row, attributes={"width": 1, "polygons": polygons}
                )
        print(f"wrote {count} small samples in {time.perf_counter() - started:.1f} s, "
              f"{path.stat().st_size / 1e6:.0f} MB")  # fmt: skip
        times[count] = statistics.median(seconds(lambda p=path: ocrstore.open(p)) for _ in range(9))
    slope = (times[100_000] - times[1000]) / 99_000
    return [
        ("open of the 404 samples, ms (below 20)", opening * 1e3, -20, ""),
        ("open, µs per sample from 1,000 to 100,000 (below 2)", slope * 1e6, -2, f"{times[100_000] * 1e3:.0f} ms at 100,000"),
    ]  # fmt: skip


def bench_writing(folder: Path, arrays: dict[str, np.ndarray], rounds: int) -> list[tuple]:
    def clean() -> None:
        # both write a new file into memory that the system has just got back
        for name in ("write.ocrs", "write.bin"):
            (folder / name).unlink(missing_ok=True)
        os.sync()

    times = interleaved(
        {
            "store": lambda: write_store(folder / "write.ocrs", arrays),
            "plain": lambda: write_plain(folder / "write.bin", arrays),
        },
        rounds,
        before=clean,
    )
    speed = SAMPLES * SAMPLE_NBYTES / statistics.median(times["store"]) / 1e6
    return [("writing, against a plain file with fsync", ratio(times, "store", "plain"), 0.5, f"{speed:.0f} MB/s")]  # fmt: skip


def bench_verify(folder: Path, rounds: int) -> list[tuple]:
    path = folder / "bench.ocrs"
    nbytes = path.stat().st_size

    def bare_hash() -> None:
        store = ocrstore.open(path)
        for name in COLUMNS:
            for row in store[name]:
                xxhash.xxh3_64_intdigest(row.data)

    times = interleaved({"verify": lambda: ocrstore.verify(path), "hash": bare_hash}, rounds)
    speed = nbytes / statistics.median(times["verify"]) / 1e9
    return [
        ("verify, GB/s on one core (at least 1)", speed, 1, ""),
        ("verify, against the bare hash", ratio(times, "verify", "hash"), None, ""),
    ]


MEMORY_SCRIPT = """
import sys
import numpy as np
sys.path.insert(0, {root!r})
import ocrstore
columns = {{"tensor": ocrstore.Column("uint8", (640, 640, 3)),
           "prob_map": ocrstore.Column("float16", (640, 640)),
           "thresh_map": ocrstore.Column("float16", (640, 640))}}
row = {{n: np.ones(c.shape, c.dtype) for n, c in columns.items()}}
def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
before = peak()
with ocrstore.create({path!r}, columns, overwrite=True) as writer:
    for i in range({count}):
        row["tensor"][0, 0, 0] = i % 251
        writer.append(f"{{i}}", row)
print(peak() - before)
"""


def bench_memory(folder: Path) -> list[tuple]:
    root = str(Path(__file__).resolve().parents[1])
    rows = []
    group = min(256 * 2**20, 64 * SAMPLE_NBYTES)
    for count in (200, 600):
        script = MEMORY_SCRIPT.format(root=root, path=str(folder / "memory.ocrs"), count=count)
        grown = int(
            subprocess.run(
                [sys.executable, "-c", script], capture_output=True, text=True, check=True
            ).stdout
        )
        rows.append(
            (
                f"memory of writing {count} samples, row groups (below 4)",
                grown / group,
                -4,
                f"{grown / 1e6:.0f} MB",
            )
        )
    return rows  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary folder")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        arrays = make_arrays()
        write_store(folder / "bench.ocrs", arrays)
        rows = [
            *bench_reading(folder, arrays, options.rounds),
            *bench_verify(folder, options.rounds),
            *bench_writing(folder, arrays, options.rounds),
            *bench_opening(folder, options.rounds),
            *bench_memory(folder),
        ]
    table = Table(
        "what",
        "measured",
        "wanted",
        "",
        "note",
        title=f"{SAMPLES} samples, {SAMPLE_NBYTES / 1e6:.1f} MB each; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
    )
    missed = 0
    for what, value, target, note in rows:
        if target is None:
            wanted, sign = "", ""
        else:
            good = value >= target if target > 0 else value <= -target
            missed += not good
            wanted = f">= {target}" if target > 0 else f"< {-target}"
            sign = "✓" if good else "✗"
        table.add_row(what, f"{value:.2f}", wanted, sign, note)
    Console(width=130).print(table)
    if options.json:
        options.json.write_text(
            json.dumps(
                [dict(zip(("what", "value", "target", "note"), row)) for row in rows], indent=1
            )
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
