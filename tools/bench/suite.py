"""Runs the cells of a plan, each in a fresh process of its peer's environment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tools.bench import venvs
from tools.bench.peers import Peer
from tools.bench.plan import Cell, Settings, groundwork, measurements
from tools.bench.prepare import prepare
from tools.bench.results import FIGURES, Journal, Result

ROOT = Path(__file__).resolve().parents[2]
TIMEOUTS = {"build": 900.0, "check": 600.0}
TIMEOUT = 240.0


class Suite:
    """One run: its work folder, its journal, and the time that it may take."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        *,
        resume: bool = False,
        minutes: float | None = None,
        install: bool = True,
    ) -> None:
        self.folder, self.settings, self.install = folder, settings, install
        self.prepared = folder / f"prepared-{settings.samples}"
        self.built = folder / f"built-{settings.samples}"
        self.ends = time.monotonic() + 60 * minutes if minutes else float("inf")
        self.journal = Journal(folder / f"results-{settings.samples}.jsonl")
        self.journal.begin(asdict(settings), resume=resume)

    def run(self, peers: Sequence[Peer]) -> None:
        """Do everything for these peers, as far as the time goes."""
        say(f"preparing {self.settings.samples} samples")
        samples = prepare(self.prepared, count=self.settings.samples, size=self.settings.size)
        self.count = len(samples)
        ready = [(peer, python) for peer in peers if (python := self.environment(peer))]
        pythons = {peer.name: python for peer, python in ready}
        usable = [peer for peer, _ in ready if self.lay_ground(peer, pythons[peer.name])]
        for round in range(self.settings.rounds):
            cells = measurements(usable, self.settings, round)
            cells = [cell for cell in cells if not self.journal.has(cell)]
            for number, cell in enumerate(cells, 1):
                if time.monotonic() > self.ends:
                    say(f"time is up in round {round + 1}; --resume does the rest")
                    return
                place = f"round {round + 1}, {number}/{len(cells)}"
                self.do(cell, pythons[cell.peer], place)

    def environment(self, peer: Peer) -> Path | None:
        """Return a peer's interpreter; a peer without one is a result that says why."""
        place = self.folder / "venvs"
        cell = Cell("build", peer.name)
        if not self.install and not venvs.ready(peer, place):
            why = "its environment is not made yet: python -m tools.bench --install"
            self.journal.add(Result(cell, "not installed", {}, why=why))
            return None
        try:
            if not venvs.ready(peer, place):
                say(f"making an environment for {peer.title}")
            return venvs.make(peer, place)
        except venvs.InstallError as exc:
            say(f"{peer.title} cannot be installed: {exc}")
            self.journal.add(Result(cell, "not installed", {}, why=str(exc)))
            return None

    def lay_ground(self, peer: Peer, python: Path) -> bool:
        """Build and check a peer; only one with the right content is measured."""
        for cell in groundwork(peer, self.settings):
            if self.journal.has(cell) and (cell.kind != "build" or self.target(cell).exists()):
                continue
            if cell.kind == "build":
                shutil.rmtree(self.target(cell), ignore_errors=True)
            if self.do(cell, python, "first").status not in ("ok", "unsupported"):
                return False
        return True

    def target(self, cell: Cell) -> Path:
        return self.built / cell.peer

    def do(self, cell: Cell, python: Path, place: str) -> Result:
        """Run one cell, note what comes of it."""
        job = {
            **asdict(cell),
            "folder": str(self.target(cell)),
            "prepared": str(self.prepared),
            "batch_size": self.settings.batch_size,
            "samples": self.count,
            "seed": cell.round,
            "least_s": self.settings.least_s,
            "epoch_s": self.settings.epoch_s,
            "slow_s": self.settings.slow_s,
        }
        timeout = TIMEOUTS.get(cell.kind, TIMEOUT)
        result = to_result(cell, *run_cell(python, job, self.folder, timeout=timeout))
        self.journal.add(result)
        say(f"{place}: {cell}: {describe(result)}")
        return result


def run_cell(python: Path, job: dict, folder: Path, *, timeout: float) -> tuple[dict | None, str]:
    """Run `cell.py` in a process group of its own; return what it found, or why it did not."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "NO_ALBUMENTATIONS_UPDATE": "1",
        "HF_HOME": str((folder / "cache").resolve()),
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
    }
    process = subprocess.Popen(
        [str(python), "-m", "tools.bench.cell", json.dumps(job)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, f"it took more than {timeout:.0f} s"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    for line in reversed(output.splitlines()):
        if line.startswith("RESULT "):
            return json.loads(line[len("RESULT ") :]), ""
    if process.returncode < 0:
        return None, f"it was ended by {signal.Signals(-process.returncode).name}"
    return None, venvs.last_words(errors, lines=1) or f"it ended with {process.returncode}"


def to_result(cell: Cell, found: dict | None, why: str) -> Result:
    """Turn what a cell printed into a result."""
    if found is None:
        return Result(cell, "failed", {}, why=f"{cell}: {why}")
    if "unsupported" in found:
        return Result(cell, "unsupported", {}, why=found["unsupported"])
    figures = {name: float(found[name]) for name in FIGURES if name in found}
    if cell.kind == "check" and not found["equal"]:
        return Result(cell, "failed", figures, why="other content: " + "; ".join(found["problems"]))
    return Result(cell, "ok", figures, found.get("versions", ""))


def describe(result: Result) -> str:
    """Say in a few words what came of a cell."""
    if result.status != "ok":
        return f"{result.status}: {result.why}"
    units = {"rate": "samples/s", "build_s": "s", "first_batch_s": "s", "cold_epoch_s": "s"}
    found = [f"{result.figures[n]:.4g} {unit}" for n, unit in units.items() if n in result.figures]
    return (found[0] if found else "as prepared") + (" (disturbed)" if result.disturbed else "")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
