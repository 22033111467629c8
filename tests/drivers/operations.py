"""What the drivers do to a store: operations that can be repeated, and what must hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ocrstore
from ocrstore.format.column_writer import ColumnWriter
from ocrstore.format.lmdb_update import drop_unfinished

COLUMNS = {
    "image": ocrstore.Column("uint8", (None, None, 3)),
    "text": ocrstore.Column("int16", (None,), codec="zstd"),
}
SAMPLES = 7


def arrays(number: int) -> dict[str, np.ndarray]:
    """Return the arrays of one sample; the same number gives the same."""
    rng = np.random.default_rng(number)
    return {
        "image": rng.integers(0, 256, (50 + number, 30, 3), np.uint8),
        "text": np.arange(number, dtype=np.int16),
    }


def fill(writer: ocrstore.Writer, start: int, stop: int) -> None:
    """Append the samples that are not there yet."""
    for number in range(start, stop):
        if f"s{number}" not in writer:
            writer.append(f"s{number}", arrays(number), attributes={"number": number})


def create(path: Path) -> int:
    """Write a new store in several row groups."""
    with ocrstore.create(path, COLUMNS, group_rows=4, overwrite=True) as writer:
        fill(writer, 0, SAMPLES)
    return writer.resumed


def resume(path: Path) -> int:
    """Do the same as `create`, but go on where an interrupted run stopped."""
    with ocrstore.create(path, COLUMNS, group_rows=4, resume="work", overwrite=True) as writer:
        fill(writer, 0, SAMPLES)
    return writer.resumed


def append(path: Path) -> None:
    """Add, replace and delete samples."""
    with ocrstore.edit(path) as writer:
        fill(writer, SAMPLES, SAMPLES + 3)
        writer.replace("s1", arrays(50), attributes={"number": 50})
        if "s2" in writer:
            writer.delete("s2")


def add_column(path: Path) -> None:
    """Add a column."""
    with ocrstore.open(path) as store:
        if "edge" in store:
            return
        count = len(store)
    spec = ocrstore.Column("float16", (30, 30))
    maps = (np.full((30, 30), number, np.float16) for number in range(count))
    ocrstore.add_column(path, "edge", spec, maps)


def update(path: Path) -> int:
    """Change samples in place in several row groups, going on where an interrupted run stopped."""
    with ocrstore.edit(path, resume="work", group_rows=3) as writer:
        done = set(writer.resumed_attributes()["key"].to_pylist())
        for number in range(3):
            if f"s{number}" not in done:
                writer.replace(f"s{number}", arrays(50 + number), attributes={"number": 1})
        fill(writer, SAMPLES, SAMPLES + 4)
        if "s5" in writer:
            writer.delete("s5")
    return writer.resumed


def add_view(path: Path) -> int:
    """Add two columns in several row groups, going on where an interrupted run stopped."""
    with ocrstore.open(path) as store:
        if "view/edge" in store:
            drop_unfinished(path, if_useless=True)
            return 0
    columns = {f"view/{name}": ocrstore.Column("float16", (30, 30)) for name in ("edge", "map")}
    with ColumnWriter(path, columns, resume="work", group_rows=3) as writer:
        for number in range(writer.resumed, len(writer.keys)):
            writer.add(dict.fromkeys(columns, np.full((30, 30), number, np.float16)))
    return writer.resumed


def compact(path: Path) -> None:
    """Rewrite the store."""
    ocrstore.compact(path)


OPERATIONS = {
    f.__name__: f for f in (create, resume, append, update, add_column, add_view, compact)
}


def prepare(path: Path, operation: str) -> None:
    """Make the store that an operation starts from: for `create` and `resume`, none."""
    if operation not in ("create", "resume"):
        create(path)
    if operation == "compact":
        append(path)


def state(path: Path) -> str | None:
    """Return the fingerprint of a store that is sound in every byte; None if there is none."""
    if not path.exists():
        return None
    result = ocrstore.verify(path)
    if not result.ok:
        raise AssertionError(f"{path}: {[finding.message for finding in result.findings]}")
    with ocrstore.open(path) as store:
        for row in range(len(store)):  # what verify says is what a reader gets
            store["image"][row].sum()
        return store.fingerprint


def beside(path: Path) -> list[str]:
    """List what else is in the store's folder."""
    return sorted(entry.name for entry in path.parent.iterdir() if entry != path)
