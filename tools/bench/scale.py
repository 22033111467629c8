"""What ocrstore costs as things grow: samples, bytes, workers, pictures, and a memory limit.

    python tools/bench/scale.py                 all series, about ten minutes on an idle machine
    python tools/bench/scale.py --quick         a look at everything, about two minutes
    python tools/bench/scale.py --resume        go on with what an interrupted run has left
    python tools/bench/scale.py --report-only   draw and write the page again from the records

Every cell runs in a process of its own, rounds are interleaved (each round goes through all cells),
and figures are medians. The result is the slopes: what one more sample, worker or megabyte costs.
Writes docs/figures/scale.md, docs/benchmarks-scale.csv and docs/images/scale.svg. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(HERE))

from scaling.limits import evict, limited  # noqa: E402  # its folder is on the path only now
from scaling.page import write_page  # noqa: E402  # the same
from scaling.stores import (  # noqa: E402  # the same
    GB,
    StorePlan,
    make_store,
    plan_stores,
    room_for,
)

BATCH = 16
OWN_NBYTES = int(0.35 * GB)
"""What interpreter, torch and two workers take of a limit; the rest is left to the page cache."""
GROUP_SAMPLES = 64


def plan_cells(stores: dict[str, list[StorePlan]], options: argparse.Namespace) -> list[dict]:
    """Return all cells of one round, in the order they run."""
    seconds = 1.0 if options.quick else 2.0
    cells: list[dict] = []

    def add(series: str, store: StorePlan, x: float, **changes: object) -> None:
        cell = {
            "series": series,
            "store": store.name,
            "x": x,
            "samples": store.samples,
            "workers": 0,
            "order": "shuffled",
            "batch": BATCH,
            "seconds": seconds,
            "epochs": 1,
            "warm": True,
            "limit": None,
        }
        cells.append({**cell, **changes})

    for store in stores["samples"]:
        add("samples", store, store.samples)
    for store in stores["bytes"]:
        add("bytes", store, store.nbytes / GB, workers=2)
    middle = stores["bytes"][1]
    for workers in options.workers:
        add("workers", middle, workers, workers=workers)
        add("workers", middle, workers, workers=workers, order="bare")
    for store in stores["size"]:
        add("size", store, store.sample_nbytes / 1e6)
    return cells if options.only is None else [c for c in cells if c["series"] in options.only]


def plan_limits(stores: dict[str, list[StorePlan]], options: argparse.Namespace) -> list[dict]:
    """Return the cells of a store larger than its memory; they take longest and run last."""
    store = stores["limit"][0]
    group = GROUP_SAMPLES * store.sample_nbytes
    cells: list[dict] = []
    for share in (None, 2, 4):
        cache = store.nbytes if share is None else store.nbytes // share
        # the window in use and the one that is read ahead must both find room
        fitting = max(1, int(0.9 * cache / (2 * group)))
        orders = [("shuffled", 0), ("window", min(fitting, 8)), ("sequential", 0)]
        for order, window in orders:
            cells.append(
                {
                    "series": "limit",
                    "store": store.name,
                    "x": 1.0 if share is None else 1 / share,
                    "samples": store.samples,
                    "workers": 2,
                    "order": order,
                    "window": window,
                    "batch": BATCH,
                    "seconds": 6.0 if options.quick else 15.0,
                    "epochs": 2,
                    "warm": False,
                    "limit": None if share is None else OWN_NBYTES + cache,
                }
            )
        # the same samples in every preset, shuffled, in the page cache that the raw ones get
        shuffled = next(cell for cell in reversed(cells) if cell["order"] == "shuffled")
        cells += [
            {**shuffled, "series": "presets", "store": plan.name} for plan in stores["presets"]
        ]
    only = options.only or ("limit", "presets")
    return [cell for cell in cells if cell["series"] in only]


def run_cell(cell: dict, folder: Path) -> dict:
    """Run a cell in a fresh process; a failure is a record, too."""
    path = folder / f"{cell['store']}.ocrs"
    if cell["series"] in ("limit", "presets"):
        evict(path)  # what others have read would not be charged to the group
    load = os.getloadavg()[0]
    with limited(cell["limit"]) as (words, group, kind):
        given = {**cell, "path": str(path), "group": None if group is None else str(group)}
        command = [*words, sys.executable, str(HERE / "scaling" / "cell.py"), json.dumps(given)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            return {**cell, "kind": kind, "load": load, "error": "took more than 300 s"}
    if done.returncode:
        return {**cell, "kind": kind, "load": load, "error": done.stderr.strip()[-500:]}
    return {**cell, "kind": kind, "load": load, **json.loads(done.stdout.splitlines()[-1])}


def identity(cell: dict) -> str:
    names = ("series", "store", "workers", "order", "limit", "window", "seconds", "round")
    return json.dumps([cell.get(name) for name in names])


def measure(options: argparse.Namespace, folder: Path) -> list[dict]:
    stores = plan_stores(cap_nbytes=options.cap_gb * GB, quick=options.quick)
    log = folder / "cells.jsonl"
    done: dict[str, dict] = {}
    if options.resume and log.exists():
        for line in log.read_text().splitlines():
            record = json.loads(line)
            done[identity(record)] = record
    else:
        log.unlink(missing_ok=True)
    cells = [
        {**cell, "round": number}
        for number in range(options.rounds)
        for cell in plan_cells(stores, options)
    ]
    cells += [
        {**cell, "round": number}
        for number in range(options.limit_rounds)
        for cell in plan_limits(stores, options)
    ]
    used = {cell["store"] for cell in cells}
    for plans in stores.values():
        for plan in plans:
            if plan.name in used:
                started = time.perf_counter()
                make_store(plan, folder)
                took = time.perf_counter() - started
                print(f"{plan.name}: {plan.nbytes / GB:.2f} GB, {took:.1f} s", flush=True)
    records = []
    for number, cell in enumerate(cells, 1):
        record = done.get(identity(cell))
        if record is None or "error" in record:
            record = run_cell(cell, folder)
            with log.open("a") as file:
                file.write(json.dumps(record) + "\n")
        records.append(record)
        told = record.get("error") or f"{record.get('rate') or 0:.0f} samples/s"
        what = f"{cell['series']} {cell['store']} {cell['workers']} workers {cell['order']}"
        print(f"[{number}/{len(cells)}] {what}: {told}", flush=True)
    return records


def command_of(options: argparse.Namespace) -> str:
    """Write the command down with what decides the figures; where files lie does not."""
    words = ["python tools/bench/scale.py"] + (["--quick"] if options.quick else [])
    words += [f"--rounds {options.rounds}", f"--cap-gb {options.cap_gb:g}"]
    words += ["--workers", *map(str, options.workers)]
    return " ".join(words + (["--only", *options.only] if options.only else []))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and smaller stores, one round")
    parser.add_argument("--resume", action="store_true", help="keep the cells that are measured")
    parser.add_argument("--report-only", action="store_true", help="measure nothing")
    parser.add_argument("--cap-gb", type=float, help="largest store in GB (default 8; quick: 1)")
    parser.add_argument("--rounds", type=int, help="rounds (default 3; quick: 1)")
    parser.add_argument("--limit-rounds", type=int, default=1, help="rounds under a memory limit")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--only", nargs="+", help="samples, bytes, workers, size, limit, presets")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "scale")
    parser.add_argument("--docs", type=Path, help="docs; --quick: the folder of its stores")
    parser.add_argument("--keep", action="store_true", help="keep the stores for another run")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    # a look at everything takes nobody's place
    options.docs = options.docs or (options.folder if options.quick else ROOT / "docs")
    options.cap_gb = options.cap_gb or (1.0 if options.quick else 8.0)
    options.cap_gb = room_for(options.folder, options.cap_gb * GB) / GB
    options.rounds = options.rounds or (1 if options.quick else 3)
    started = time.perf_counter()
    saved = options.folder / "records.json"
    if options.report_only:
        kept = json.loads(saved.read_text())
    else:
        kept = {
            "records": measure(options, options.folder),
            "command": command_of(options),
            "date": time.strftime("%Y-%m-%d"),
            "minutes": (time.perf_counter() - started) / 60,
        }
        saved.write_text(json.dumps(kept))
        if not options.keep:
            for path in options.folder.glob("*.ocrs"):
                path.unlink()
    write_page(kept, options.docs, options.folder)
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
