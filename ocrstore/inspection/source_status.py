"""Whether a store's source is newer than the store: by names, sizes and times; no file is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ocrstore.errors import SourceError
from ocrstore.store import Store

UP_TO_DATE, NEWER, MISSING, UNKNOWN = "up to date", "newer", "missing", "unknown"


@dataclass(frozen=True, slots=True)
class Freshness:
    """How the source stands to the store."""

    state: str
    """up to date, newer, missing (the folder is not there) or unknown (nothing is recorded)."""
    images: str | None = None
    pictures: int = 0
    """Pictures in the folder now."""
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Of another size, or written at another time."""
    annotations_newer: bool = False

    def to_json(self) -> dict[str, Any]:
        """Describe it in JSON terms."""
        return asdict(self)

    def in_words(self) -> str:
        """Say it in one sentence."""
        if self.state == UNKNOWN:
            return "not recorded (say --source FOLDER to compare)"
        if self.state == MISSING:
            return "not there any more (say --source FOLDER if it has moved)"
        if self.state == UP_TO_DATE:
            return f"unchanged since the build ({self.pictures} pictures)"
        parts = [
            f"{len(keys)} {word} ({keys[0]}{', …' if len(keys) > 1 else ''})"
            for word, keys in (("changed", self.changed), ("new", self.new), ("gone", self.gone))
            if keys
        ]
        if self.annotations_newer:
            parts.append("annotations written since")
        return ", ".join(parts)


def check_freshness(store: Store, *, images: Path | None = None) -> Freshness:
    """Compare the recorded sizes and times with the files in the source's folder now.

    `images` is the folder where it is not the recorded one. `ocrstore build --dry-run` also reads
    what it has to and says exactly what would be done.
    """
    recorded = source_record(store)
    place = images or (Path(recorded["images"]) if "images" in recorded else None)
    names = ("source_nbytes", "source_mtime_ns")
    if place is None or any(name not in store.index.column_names for name in names):
        return Freshness(UNKNOWN, images=None if place is None else str(place))
    # lists folders, needs no decoder; still of no use to other readers
    from ocrstore.sources.pictures import list_folder

    try:
        listing = list_folder(place)
    except SourceError:
        return Freshness(MISSING, images=str(place))
    sizes, times = (_whole_numbers(store, name) for name in names)
    known = {key: row for row, key in enumerate(store.keys)}
    skipped = _skipped(store)
    changed, new = [], []
    for file in listing.pictures:
        row = known.pop(file.key, None)
        if row is None:
            if file.key not in skipped:
                new.append(file.key)
            continue
        try:
            now = os.stat(file.path)  # noqa: PTH116 - one call for each of many files
        except OSError:
            changed.append(file.key)
            continue
        if (now.st_size, now.st_mtime_ns) != (sizes[row], times[row]):
            changed.append(file.key)
    annotations = _annotations_newer(recorded, listing)
    same = not (changed or new or known or annotations)
    return Freshness(
        UP_TO_DATE if same else NEWER,
        images=str(place),
        pictures=len(listing.pictures),
        new=tuple(new),
        gone=tuple(sorted(known)),
        changed=tuple(changed),
        annotations_newer=annotations,
    )


def source_record(store: Store) -> Mapping[str, Any]:
    """Return what the build recorded about its source; empty if it did not."""
    build = store.metadata.get("build")
    found = build.get("source") if isinstance(build, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def build_problems(store: Store) -> tuple[dict[str, int], list[Mapping[str, Any]]]:
    """Return the problems the build reported: how many of each kind, and the first of them.

    Stores whose build recorded none have those of deriving their samples in an attribute.
    """
    build = store.metadata.get("build")
    found = build.get("problems") if isinstance(build, Mapping) else None
    if isinstance(found, Mapping) and isinstance(found.get("first"), list):
        return dict(found.get("counts", {})), list(found["first"])
    if "problems" not in store.index.column_names:
        return {}, []
    counts: dict[str, int] = {}
    first: list[Mapping[str, Any]] = []
    for key, lines in zip(store.keys, store.index["problems"].to_pylist()):
        for line in lines or ():
            kind, _, message = str(line).partition(": ")
            counts[kind] = counts.get(kind, 0) + 1
            first.append({"kind": kind, "message": message, "key": key, "polygon": None})
    return counts, first


def _skipped(store: Store) -> set[str]:
    """Name the pictures that the build knew and left out."""
    _, problems = build_problems(store)
    there = set(store.keys)
    keys = {str(problem.get("key")) for problem in problems if problem.get("key") is not None}
    return keys - there


def _whole_numbers(store: Store, name: str) -> list[int]:
    values: list[int] = np.asarray(store.index[name].fill_null(-1).to_numpy()).tolist()
    return values


def _annotations_newer(recorded: Mapping[str, Any], listing: Any) -> bool:
    place, before = recorded.get("annotations"), recorded.get("annotations_mtime_ns", 0)
    if not place or not before:
        return False
    path = Path(place)
    try:
        if path.is_file():
            return bool(path.stat().st_mtime_ns > before)
        if str(path) == str(recorded.get("images")):
            files = listing.others
        else:
            from ocrstore.sources.pictures import list_folder

            files = list_folder(path).others
        return bool(any(file.path.stat().st_mtime_ns > before for file in files))
    except (OSError, SourceError):
        return False
