"""What a build records in the manifest about where a store came from and what came up."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ocrstore.annotation import Problem
from ocrstore.sources import Source

KEPT_PROBLEMS = 1000
"""So many problems are recorded one by one; all of them are counted."""


def describe_source(source: Source) -> dict[str, Any]:
    """Say where the pictures and annotations are, and how old the annotations were."""
    files = source.annotation_files
    return {
        "description": source.description,
        "images": os.path.abspath(source.images),  # noqa: PTH100 - links stay links
        "pictures": len(source),
        "annotations": _common_place(files),
        "annotation_files": len(files),
        "annotations_mtime_ns": max((_mtime_ns(path) for path in files), default=0),
    }


def describe_problems(problems: Iterable[Problem]) -> dict[str, Any]:
    """Count problems by kind and keep the first of them, in an order that no worker changes."""
    ordered = sorted(problems, key=_order)
    counts = Counter(problem.kind for problem in ordered)
    return {
        "counts": dict(sorted(counts.items())),
        "first": [asdict(problem) for problem in ordered[:KEPT_PROBLEMS]],
    }


def _order(problem: Problem) -> tuple[str, str, int, str]:
    position = -1 if problem.polygon is None else problem.polygon
    return problem.key or "", problem.kind, position, problem.message


def _common_place(files: tuple[Path, ...]) -> str | None:
    """Name the file, or the folder that all files lie in."""
    if not files:
        return None
    paths = [os.path.abspath(path) for path in files]  # noqa: PTH100 - links stay links
    if len(paths) == 1:
        return paths[0]
    try:
        return os.path.commonpath(paths)
    except ValueError:  # on different drives
        return str(Path(paths[0]).parent)


def _mtime_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
