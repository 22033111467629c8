"""Compare a store with the pictures it was built from: by names, sizes, times, then bytes.

The manifest may come from anybody, so a folder that it names is never listed: only the files of the
index are looked up in it. A folder that the user names is listed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash

from ocrstore.annotation import AnnotationReader, ReadableFile
from ocrstore.errors import SourceError
from ocrstore.metadata import readable_build
from ocrstore.store import Store

UP_TO_DATE, NEWER, MISSING, UNKNOWN = "up to date", "newer", "missing", "unknown"

LIMIT = 10_000
"""Files that are looked at in a folder that the user did not name."""
READ_LIMIT = 256 * 2**20
"""Bytes that are read to tell touched pictures from changed ones."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How a store's source has changed since the build."""

    state: str
    """up to date, newer, missing (the folder does not exist) or unknown (nothing is recorded)."""
    images: str | None = None
    pictures: int = 0
    """Pictures that were looked at."""
    listed: bool = False
    """Whether the folder was listed; otherwise new pictures were not looked for."""
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    annotations_newer: bool = False
    from_python: bool = False
    """Whether the samples came from Python: then there are no files to look at."""

    def in_words(self) -> str:
        """Say it in one sentence."""
        if self.state == UNKNOWN:
            if self.images is not None:
                return "no folder of pictures; compare with `ocrstore verify --source`"
            if self.from_python:
                return "samples from Python; compare with ocrstore.verify(store, source=samples)"
            return "not recorded; compare with --source FOLDER"
        if self.state == MISSING:
            return "folder not found; if it has moved, name it with --source FOLDER"
        hint = "" if self.listed else "; only its pictures were compared (--source FOLDER: all)"
        if self.state == UP_TO_DATE:
            return f"unchanged since the build ({self.pictures:,} pictures){hint}"
        parts = [
            f"{len(keys):,} {word} ({keys[0]}{', …' if len(keys) > 1 else ''})"
            for word, keys in (("changed", self.changed), ("new", self.new), ("gone", self.gone))
            if keys
        ]
        if self.annotations_newer:
            parts.append("annotations written since")
        return ", ".join(parts) + hint


def check_source_status(store: Store, *, source: Path | None = None) -> SourceStatus:
    """Compare the recorded sizes and times of pictures with the files now.

    A picture of the same size but another time is read, up to `READ_LIMIT` bytes in all, and counts
    as changed only if its bytes did.

    Args:
        source: the folder of pictures, which is listed. Without it the first `LIMIT` files of the
            index are looked up in the recorded folder, and nothing else.
    """
    build = readable_build(store)[0]
    recorded = build.get("source", {})
    folder = source or (Path(recorded["images"]) if recorded.get("images") else None)
    names = ("source_nbytes", "source_mtime_ns")
    if folder is None or any(name not in store.index.column_names for name in names):
        return SourceStatus(
            UNKNOWN,
            images=None if folder is None else str(folder),
            from_python=folder is None and build.get("dialect") == "python",
        )
    rows = {key: row for row, key in enumerate(store.keys)}
    new: list[str] = []
    gone: list[str] = []
    changed: list[str] = []
    try:
        if folder.is_file() or "{" in folder.name or "*" in folder.name:  # an archive, a list
            return SourceStatus(UNKNOWN, images=str(folder))
        if not folder.is_dir():
            return SourceStatus(MISSING, images=str(folder))
        files = _named_files(store, folder) if source is None else _listed_files(folder)
        pictures = 0
        same = _Comparison(store)
        skipped = _skipped(store)
        for key, path in files:
            row = rows.pop(key, None)
            found = _file_status(path)
            pictures += found is not None
            if row is None:
                if key not in skipped:
                    new.append(key)
            elif found is None:
                gone.append(key)
            elif not same(row, path, found):
                changed.append(key)
    except SourceError:
        return SourceStatus(MISSING, images=str(folder))
    if source is not None:
        gone += rows
    annotations = _annotations_newer(recorded, listed=source is not None)
    return SourceStatus(
        NEWER if changed or new or gone or annotations else UP_TO_DATE,
        images=str(folder),
        pictures=pictures,
        listed=source is not None,
        new=tuple(new),
        gone=tuple(sorted(gone)),
        changed=tuple(changed),
        annotations_newer=annotations,
    )


def build_problems(store: Store) -> tuple[dict[str, int], list[Mapping[str, Any]]]:
    """Return the problems the build reported: how many of each kind, and the first of them.

    Stores whose build recorded none have those of deriving their samples in an attribute.
    """
    found = readable_build(store)[0].get("problems")
    if found is not None:
        return dict(found["counts"]), list(found["first"])
    counts: dict[str, int] = {}
    first: list[Mapping[str, Any]] = []
    for key, lines in zip(store.keys, AnnotationReader(store, strict=False).problems()):
        for line in lines:
            kind, _, message = line.partition(": ")
            counts[kind] = counts.get(kind, 0) + 1
            first.append({"kind": kind, "message": message, "key": key, "polygon": None})
    return counts, first


def _named_files(store: Store, folder: Path) -> Iterator[tuple[str, ReadableFile]]:
    """Yield key and path of the index's first pictures, if they lie below the folder."""
    from ocrstore.keys import path_of

    for key in islice(store.keys, LIMIT):
        relative = PurePosixPath(path_of(key))
        if not relative.is_absolute() and ".." not in relative.parts:
            yield key, folder / relative


def _listed_files(folder: Path) -> Iterator[tuple[str, ReadableFile]]:
    from ocrstore.sources.pictures import list_folder

    return ((file.key, file.path) for file in list_folder(folder).pictures)


def _file_status(path: ReadableFile) -> os.stat_result | None:
    """Return the status of a regular file; None where there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - one call for each of many files
    except (OSError, ValueError):  # ValueError: a name with a null character
        return None
    return found if stat.S_ISREG(found.st_mode) else None


class _Comparison:
    """Tells whether files are still those that rows were made from."""

    def __init__(self, store: Store) -> None:
        index = store.index
        names = ("source_nbytes", "source_mtime_ns", "source_hash")
        self._nbytes, self._times, self._hashes = (
            index[name].to_pylist() if name in index.column_names else None for name in names
        )
        self._may_read = READ_LIMIT

    def __call__(self, row: int, path: ReadableFile, found: os.stat_result) -> bool:
        assert self._nbytes is not None and self._times is not None
        if found.st_size != self._nbytes[row]:
            return False
        if found.st_mtime_ns == self._times[row]:
            return True
        # a build compares the bytes as well, and leaves the recorded time of equal ones as it is
        if self._hashes is None or found.st_size > self._may_read:
            return False
        self._may_read -= found.st_size
        try:
            return bool(xxhash.xxh3_64_intdigest(path.read_bytes()) == self._hashes[row])
        except OSError:
            return False


def _skipped(store: Store) -> set[str]:
    """Return the keys of pictures that the build knew and left out."""
    _, problems = build_problems(store)
    there = set(store.keys)
    return {problem["key"] for problem in problems if problem.get("key") is not None} - there


def _annotations_newer(recorded: Mapping[str, Any], *, listed: bool) -> bool:
    """Return whether an annotation file is younger than the newest one at the build.

    A recorded file is looked at; a recorded folder, without those below it, only if `listed`.
    """
    place, before = recorded.get("annotations"), recorded.get("annotations_mtime_ns")
    if not isinstance(place, str) or not isinstance(before, int) or not before:
        return False
    from ocrstore.sources.pictures import is_picture_name

    try:
        if Path(place).is_file():
            return Path(place).stat().st_mtime_ns > before
        if not listed:
            return False
        with os.scandir(place) as entries:
            files = [entry for entry in islice(entries, LIMIT) if entry.is_file()]
        return any(
            file.stat().st_mtime_ns > before for file in files if not is_picture_name(file.name)
        )
    except (OSError, ValueError):
        return False
