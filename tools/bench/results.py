"""What was measured: appended cell by cell, written as one CSV file, and summed up for the page."""

from __future__ import annotations

import contextlib
import csv
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.bench.accounting import DISTURBED
from tools.bench.plan import Cell

NAMES = ("kind", "peer", "workers", "shuffle", "consumer", "round")
STATUS = ("ok", "unsupported", "failed", "not installed")
FIGURES = (
    "rate",
    "cpu_ms",
    "own_mb",
    "files_mb",
    "first_batch_s",
    "first_batch_after_torch_s",
    "cold_epoch_s",
    "still_cached",
    "build_s",
    "disk_mb",
    "samples",
    "seconds",
    "disturbance",
)
WORDS = ("status", "versions", "why")


@dataclass(frozen=True)
class Result:
    """One cell and what came of it."""

    cell: Cell
    status: str
    figures: Mapping[str, float]
    versions: str = ""
    why: str = ""

    @property
    def disturbed(self) -> bool:
        return self.figures.get("disturbance", 0.0) > DISTURBED

    def row(self) -> dict[str, Any]:
        """Return it as a row of the CSV file."""
        words = {"status": self.status, "versions": self.versions, "why": self.why}
        return {**asdict(self.cell), **self.figures, **words}


def from_row(row: Mapping[str, Any]) -> Result:
    """Read a row back; what is empty is left out."""
    given = {name: value for name, value in row.items() if value not in ("", None)}
    cell = Cell(
        given["kind"],
        given["peer"],
        int(given["workers"]) if "workers" in given else None,
        str(given["shuffle"]) == "True" if "shuffle" in given else None,
        given.get("consumer"),
        int(given["round"]),
    )
    figures = {name: float(given[name]) for name in FIGURES if name in given}
    return Result(cell, given["status"], figures, given.get("versions", ""), given.get("why", ""))


class Journal:
    """The results of a run under way: a line for each cell, so that nothing is lost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[tuple[Any, ...], Result] = {}

    def begin(self, settings: Mapping[str, Any], *, resume: bool) -> None:
        """Start anew, or go on where the journal ends; other settings cannot be gone on with.

        Fewer or more rounds can.
        """
        described = json.loads(json.dumps(settings))
        if resume and self.path.exists():
            lines = self.path.read_text("utf-8").splitlines()
            if {**json.loads(lines[0]), "rounds": None} != {**described, "rounds": None}:
                raise SystemExit(
                    f"{self.path} has results of other settings: {lines[0]}; "
                    "go on with those, or start anew without --resume"
                )
            for line in lines[1:]:
                # the last line may have been under way when the run was stopped
                with contextlib.suppress(json.JSONDecodeError):
                    self._keep(from_row(json.loads(line)))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = [json.dumps(result.row()) for result in self.results.values()]
        self.path.write_text("\n".join([json.dumps(described), *kept]) + "\n", "utf-8")

    def _keep(self, result: Result) -> None:
        self.results[result.cell.name] = result

    def has(self, cell: Cell) -> bool:
        """Return whether a cell is done; a failed one is tried again."""
        found = self.results.get(cell.name)
        return found is not None and found.status in ("ok", "unsupported")

    def add(self, result: Result) -> None:
        self._keep(result)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result.row()) + "\n")


def write_csv(path: Path, results: Iterable[Result], about: Mapping[str, str]) -> None:
    """Write results with what is known about the run in comment lines before them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        for name, value in about.items():
            file.write(f"# {name}: {value}\n")
        writer = csv.DictWriter(file, [*NAMES, *FIGURES, *WORDS], lineterminator="\n")
        writer.writeheader()
        for result in results:
            row = {n: f"{v:.5g}" if isinstance(v, float) else v for n, v in result.row().items()}
            writer.writerow(row)


def read_csv(path: Path) -> tuple[list[Result], dict[str, str]]:
    """Read what `write_csv` wrote."""
    about, lines = {}, path.read_text("utf-8").splitlines()
    while lines and lines[0].startswith("# "):
        name, _, value = lines.pop(0)[2:].partition(": ")
        about[name] = value
    return [from_row(row) for row in csv.DictReader(lines)], about


@dataclass(frozen=True)
class Spread:
    """Median, least and most of the rounds of a cell."""

    median: float
    least: float
    most: float
    disturbed: bool
    """in every round; rounds that were not disturbed are preferred to those that were"""


class Table:
    """Looks up figures over all rounds."""

    def __init__(self, results: Iterable[Result]) -> None:
        self.results = list(results)

    def rounds(self, kind: str, peer: str, **chosen: Any) -> list[Result]:
        return [
            result
            for result in self.results
            if result.cell.kind == kind
            and result.cell.peer == peer
            and all(getattr(result.cell, name) == value for name, value in chosen.items())
        ]

    def spread(self, figure: str, kind: str, peer: str, **chosen: Any) -> Spread | None:
        """Return a figure over the rounds, or None if it was not measured."""
        found = [r for r in self.rounds(kind, peer, **chosen) if figure in r.figures]
        quiet = [result for result in found if not result.disturbed]
        values = [result.figures[figure] for result in quiet or found]
        if not values:
            return None
        return Spread(statistics.median(values), min(values), max(values), not quiet)

    def ratio(self, figure: str, kind: str, peer: str, other: str, **chosen: Any) -> float | None:
        """Return the median of the rounds' ratios between two peers, each from one round."""
        theirs = {r.cell.round: r for r in self.rounds(kind, other, **chosen)}
        ratios = [
            result.figures[figure] / theirs[result.cell.round].figures[figure]
            for result in self.rounds(kind, peer, **chosen)
            if figure in result.figures
            and result.cell.round in theirs
            and theirs[result.cell.round].figures.get(figure)
        ]
        return statistics.median(ratios) if ratios else None

    def why(self, peer: str, **chosen: Any) -> str:
        """Return why a peer has no figures, "" if nothing is known."""
        for result in self.results:
            matches = all(getattr(result.cell, name) == value for name, value in chosen.items())
            if result.cell.peer == peer and result.why and matches:
                return result.why
        return ""
