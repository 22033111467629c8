"""Owns what decoding a sample's own file costs, where that file is still to be found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ocrstore.decode import decode, read_picture
from ocrstore.errors import DecodeError, SourceError
from ocrstore.inspection.freshness import source_record
from ocrstore.profiling.clock import Tally
from ocrstore.store import Store

DECODE = "decode the file"
"""What the way from files costs more; a store has paid it."""


def find_files(
    store: Store, rows: Sequence[int], *, source: Path | None = None
) -> tuple[list[Path], str]:
    """Find the files of rows in the given or the recorded folder; says why if there are none."""
    recorded = source_record(store).get("images")
    folder = source or (Path(recorded) if recorded else None)
    if folder is None:
        return [], "decode was not timed: the store records no source (say --source FOLDER)"
    from ocrstore.sources.pictures import list_folder

    try:
        known = {file.key: file.path for file in list_folder(folder).pictures}
    except SourceError:
        return [], (
            f"decode was not timed: the source {folder} is not there (say --source FOLDER if it "
            "has moved)"
        )
    keys = [store.keys[row] for row in rows]
    found = [known[key] for key in keys if key in known]
    if not found:
        return [], f"decode was not timed: {folder} has no picture named {keys[0]!r} or the others"
    missing = len(keys) - len(found)
    return found, f"decode was timed on {len(found)} files; {missing} are gone" if missing else ""


def time_decoding(path: Path, tally: Tally) -> str:
    """Read and decode one file as a build does; returns what went wrong, if anything."""
    try:
        with tally.measure(DECODE):
            decode(read_picture(path), name=str(path))
    except DecodeError as exc:
        return f"a file could not be decoded: {exc}"
    return ""
