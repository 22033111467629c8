"""The scale study: its slopes, its plan, its page, and a real cell."""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "tools" / "bench"

linux = pytest.mark.skipif(sys.platform != "linux", reason="the study needs Linux")


@pytest.fixture
def load(monkeypatch):
    """Import a part of the study as its script does."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def records(rounds=3):
    """Cells whose slopes are known: 2 µs and 6 bytes per sample, 30 MB per worker, 2 GB/s."""
    base = {"kind": "none", "load": 0.1, "limit": None, "store": "s", "window": 0, "file_nbytes": 0}
    made = []
    for number in range(rounds):
        noise = 0.01 * (number - 1)
        common = {**base, "round": number, "first_batch_ms": 10, "cpu_ms": 0.1, "rate": 100.0}
        for count in (100, 1_000, 10_000):
            open_ms = 3 + 0.002 * count + noise
            memory = {"opened_nbytes": 60 * count, "live_nbytes": 6 * count}
            memory |= {"added_nbytes": 100 * count, "own_nbytes": 1e8}
            row = {"series": "samples", "x": count, "order": "shuffled", "workers": 0}
            made.append({**common, **row, **memory, "open_ms": open_ms, "open_cpu_ms": open_ms})
        for workers in (0, 1, 2, 4):
            for order, each in (("shuffled", 30e6), ("bare", 29e6)):
                row = {"series": "workers", "x": workers, "order": order, "workers": workers}
                own = {"own_nbytes": 2e8 + each * workers, "open_ms": 3.0}
                made.append({**common, **row, **own})
        for size in (0.5, 2.0, 8.0):
            row = {"series": "size", "x": size, "order": "shuffled", "workers": 0}
            rate = 1000 / (0.1 + size / 2)
            made.append({**common, **row, "rate": rate, "own_nbytes": 1e8, "open_ms": 3.0})
        for share, limit in ((1.0, None), (0.25, 500_000_000)):
            for order, rate in (("shuffled", 50.0), ("window", 200.0), ("sequential", 300.0)):
                row = {"series": "limit", "x": share, "order": order, "workers": 2, "limit": limit}
                kind = "none" if limit is None else "cgroup v1"
                made.append({**common, **row, "rate": rate, "kind": kind, "window": 2})
            for preset, rate in (("fast", 50.0), ("balanced", 90.0), ("small", 180.0)):
                row = {"series": "presets", "x": share, "order": "shuffled", "limit": limit}
                made.append({**common, **row, "rate": rate, "kind": kind, "store": preset})
    return made


def test_slopes_are_found(load):
    """A line through medians gives back what was put in, and a straight line grows as N^1."""
    results = load("scaling.fits").Results(records())
    line = results.line("samples", "open_ms")
    assert 1000 * line.slope == pytest.approx(2.0)
    assert line.start == pytest.approx(3.0)
    assert results.line("workers", "own_nbytes", order="shuffled").slope == pytest.approx(30e6)
    fit = load("scaling.fits").fit
    assert fit([10, 100], [5, 50]).exponent == pytest.approx(1)
    assert fit([10, 100], [5, 500]).exponent == pytest.approx(2)
    assert fit([10], [5]) is None


def test_figures_are_medians_with_extremes(load):
    """Rounds become one figure; what was not measured is left out."""
    summarize = load("scaling.fits").summarize
    found = summarize([3.0, None, 1.0, 2.0])
    assert (found.median, found.low, found.high) == (2.0, 1.0, 3.0)
    assert summarize([None]) is None


def test_the_page_states_the_slopes(load, tmp_path, capsys):
    """Markdown, CSV and figure are written, disturbed and failed cells are named."""
    pytest.importorskip("matplotlib")
    made = records()
    made[0]["load"] = 1000.0
    made.append({**made[1], "error": "it broke"})
    kept = {"records": made, "command": "scale.py", "date": "2026-01-01", "minutes": 1.0}
    load("scaling.page").write_page(kept, tmp_path / "docs", tmp_path)
    text = (tmp_path / "docs" / "figures" / "scale.md").read_text()
    for words in (
        "Opening: 2.00 µs per sample",
        "holds 6.0 bytes per sample",
        "30.0 MB per worker",
        "that is 2.0 GB/s, and 100 µs per sample",
        "4.0 times as fast as a full shuffle (200 against 50 samples/s)",
        "**1 of 79 cells were disturbed",
        "it broke",
        "| 4 | 0.50 GB (cgroup v1) | window shuffle, 2 row groups | 200 | 0.10 |",
        "| 4 | 0.50 GB (cgroup v1) | 50 | 90 | 180 |",
    ):
        assert words in text, words
    assert "Opening: 2.00 µs per sample" in capsys.readouterr().out
    with (tmp_path / "docs" / "benchmarks-scale.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(made)
    assert (tmp_path / "docs" / "images" / "scale.svg").stat().st_size > 10_000


def test_the_plan_stays_below_its_cap(load):
    """No store is larger than the cap, and all series are there."""
    stores = load("scaling.stores").plan_stores(cap_nbytes=1e9, quick=False)
    scale = load("scale")
    options = argparse.Namespace(quick=False, workers=[0, 2], only=None)
    cells = scale.plan_cells(stores, options) + scale.plan_limits(stores, options)
    assert {cell["series"] for cell in cells} == {
        *("samples", "bytes", "workers", "size", "limit", "presets")
    }
    large = [plan for name in ("bytes", "limit") for plan in stores[name]]
    assert max(plan.nbytes for plan in large) <= 1e9
    assert [plan.samples for plan in stores["samples"]] == [100, 1_000, 10_000, 100_000]
    names = [scale.identity({**cell, "round": 0}) for cell in cells]
    assert len(set(names)) == len(names)
    only = argparse.Namespace(quick=True, workers=[0], only=["size"])
    assert {cell["series"] for cell in scale.plan_cells(stores, only)} == {"size"}
    assert scale.plan_limits(stores, only) == []


@linux
@pytest.mark.parametrize("order", ["shuffled", "window", "bare"])
def test_a_cell_tells_what_it_took(load, tmp_path, order):
    """A real store in a process of its own: times, memory, and every sample once."""
    stores = load("scaling.stores")
    path = stores.make_store(stores.StorePlan("tiny", 40, 32), tmp_path)
    cell = {"path": str(path), "workers": 1, "order": order, "batch": 8, "seconds": 30}
    cell |= {"samples": 40, "warm": True}
    done = subprocess.run(
        [sys.executable, str(BENCH / "scaling" / "cell.py"), json.dumps(cell)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rate"] > 0 and found["first_batch_ms"] > 0 and found["own_nbytes"] > 1e6
    assert ("open_ms" in found) == (order != "bare")
    # a record is the cell and its result: --resume knows it by the cell's own words
    assert not found.keys() & cell.keys()


@linux
def test_no_limit_asks_for_nothing(load):
    """Without a limit a command runs as it is; every group that is named is a real place."""
    limits = load("scaling.limits")
    with limits.limited(None) as (words, group, kind):
        assert (words, group, kind) == ([], None, "none")
    assert all(version in ("v1", "v2") for version, _ in limits.own_groups())
