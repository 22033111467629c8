"""Small prepared samples, and results as a run leaves them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from tools.bench import prepared
from tools.bench.plan import Cell
from tools.bench.results import Result

SIZE, COUNT = 64, 16


def make_samples():
    """Random samples of one size; some without polygons."""
    rng = np.random.default_rng(0)
    for row in range(COUNT):
        yield prepared.Sample(
            f"img_{row}.jpg",
            rng.integers(0, 256, (SIZE, SIZE, 3), np.uint8),
            rng.random((SIZE, SIZE)).astype(np.float16),
            rng.random((SIZE, SIZE)).astype(np.float16),
            [rng.random((4 + n, 2), np.float32) for n in range(row % 3)],
        )


@pytest.fixture
def samples(tmp_path):
    """Prepared samples in a folder."""
    folder = tmp_path / "prepared"
    prepared.write(folder, make_samples(), count=COUNT, pictures=tmp_path, source="noise")
    return prepared.read(folder)


def rate(peer, value, *, round=0, workers=2, shuffle=True, consumer="touch", disturbance=0.0):
    """One cell of the matrix, measured."""
    figures = {"rate": value, "cpu_ms": value / 1000, "own_mb": 200.0, "files_mb": 50.0}
    cell = Cell("rate", peer, workers, shuffle, consumer, round)
    return Result(cell, "ok", figures | {"disturbance": disturbance})


def make_results():
    """A small run: ocrstore, a peer that is slower and smaller, a limit, one not installed."""
    results = [
        Result(Cell("build", "ocrstore"), "ok", {"build_s": 2.0, "disk_mb": 1000.0}),
        Result(Cell("build", "lmdb"), "ok", {"build_s": 1.0, "disk_mb": 900.0}, "lmdb 3.0.0"),
        Result(Cell("build", "lance"), "not installed", {}, why="no wheel | for this"),
    ]
    for round in range(3):
        for workers in (0, 2):
            for consumer in ("touch", "copy"):
                where = {"round": round, "workers": workers, "consumer": consumer}
                results.append(rate("ocrstore", 1000.0 + round, **where))
                results.append(rate("lmdb", 100.0 + round, **where))
            results.append(rate("limit_view", 5000.0, round=round, workers=0))
        for peer, seconds in (("ocrstore", 2.0), ("lmdb", 1.5)):
            start = Cell("start", peer, 2, True, None, round)
            results.append(Result(start, "ok", {"first_batch_s": seconds}))
            cold = Cell("cold", peer, 2, False, None, round)
            results.append(Result(cold, "ok", {"cold_epoch_s": seconds}))
    return results


ABOUT = {
    "date": "2026-01-02",
    "machine": "2 cores",
    "system": "Linux",
    "torch": "2",
    "command": "python -m tools.bench",
    "pictures": "pictures",
    "count": "16",
    "jpeg_mb": "50",
    "batch_size": "16",
    "rounds": "3",
    "least_s": "0.7",
    "epoch_s": "3",
    "slow_s": "1",
    "cold_workers": "2",
}
