"""The report of a build: what was done, what was left out and why."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ocrstore.annotation import Problem
from ocrstore.problems import KINDS, loses
from ocrstore.views import ViewBound
from ocrstore.whole_file import write_whole

KEPT_PROBLEMS = 1000
"""Number of problems that the manifest lists; all of them are counted."""


@dataclass(slots=True)
class BuildReport:
    """The result of a build; `ok` is False if anything was left out."""

    store: str
    source: str
    """Description of pictures and annotations, and how they were found."""
    action: str = ""
    """create, update, rewrite or nothing."""
    reasons: list[str] = field(default_factory=list)
    """Why, one line for each kind of change."""
    pictures: int = 0
    """In the source."""
    samples: int = 0
    """In the store, after the build."""
    polygons: int = 0
    ignored_polygons: int = 0
    derived: int = 0
    """Samples derived in this run."""
    reused: int = 0
    """Samples that existed already and had not changed."""
    resumed: int = 0
    """Those of the reused samples that come from an interrupted build."""
    discarded: str = ""
    """What of an interrupted build was discarded, and why."""
    removed: int = 0
    skipped: list[str] = field(default_factory=list)
    """Keys of pictures that are not in the store."""
    problems: list[Problem] = field(default_factory=list)
    columns: dict[str, int] = field(default_factory=dict)
    """Stored bytes by column."""
    nbytes: int = 0
    """Size of the file, or of all shards."""
    shards: int = 0
    """Number of stores of a data set of many; 0 for a single store."""
    fingerprint: str = ""
    bounds: dict[str, ViewBound] = field(default_factory=dict)
    """View to the accuracy that it allows; without views that have no polygons to measure."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing was left out."""
        return not any(loses(problem) for problem in self.problems)

    @property
    def rate(self) -> float:
        """Samples derived per second."""
        return self.derived / self.seconds if self.seconds > 0 else 0.0

    def counts(self) -> dict[str, int]:
        """Number of problems of each kind, the most frequent first."""
        return dict(Counter(problem.kind for problem in self.problems).most_common())

    def to_json(self) -> dict[str, Any]:
        """Return the report for json.dumps, with the meaning of each kind of problem."""
        record = asdict(self)
        record["problems"] = [
            {**asdict(problem), "lost": loses(problem)} for problem in self.problems
        ]
        meanings = {kind: KINDS[kind].meaning for kind in self.counts() if kind in KINDS}
        return {
            "ok": self.ok,
            **record,
            "rate": self.rate,
            "counts": self.counts(),
            "meanings": meanings,
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON; raises WriteError."""
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False)
        # undecodable bytes of a path are surrogates, which UTF-8 has not
        write_whole(path, f"{text}\n".encode("utf-8", "backslashreplace"))


def describe_problems(problems: Iterable[Problem]) -> dict[str, Any]:
    """Count problems by kind and list the first, sorted: workers must not change the manifest."""
    ordered = sorted(problems, key=_order)
    counts = Counter(problem.kind for problem in ordered)
    return {
        "counts": dict(sorted(counts.items())),
        "first": [asdict(problem) for problem in ordered[:KEPT_PROBLEMS]],
    }


def _order(problem: Problem) -> tuple[str, str, int, str]:
    position = -1 if problem.polygon is None else problem.polygon
    return problem.key or "", problem.kind, position, problem.message


def stored_problems(key: str, attributes: Mapping[str, Any]) -> list[Problem]:
    """Return the problems that are stored with a sample."""
    problems = []
    lines = attributes.get("problems")
    for line in lines if isinstance(lines, list) else ():
        if not isinstance(line, str):
            continue  # no build wrote that
        kind, _, message = line.partition(": ")
        problems.append(Problem(kind, message, key=key))
    return problems
