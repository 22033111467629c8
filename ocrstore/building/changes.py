"""What is new, changed and gone between a source and what was built from it before, and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from ocrstore.building.derive import annotation_hash
from ocrstore.building.files import file_state, read_picture
from ocrstore.errors import SourceError
from ocrstore.sample import Problem, SourceSample
from ocrstore.sources import Source


@dataclass(frozen=True, slots=True)
class Known:
    """What was recorded of a picture when its sample was made."""

    row: int
    nbytes: int
    mtime_ns: int
    hash: int
    annotation_hash: int


@dataclass(slots=True)
class Changes:
    """The keys of a source and of an earlier state, sorted into what has to be done."""

    new: list[str] = field(default_factory=list)
    changed: dict[str, str] = field(default_factory=dict)
    """Key to reason."""
    removed: list[str] = field(default_factory=list)
    unchanged: dict[str, int] = field(default_factory=dict)
    """Key to row in the earlier state."""
    problems: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    """What the source says about unchanged pictures."""

    @property
    def any(self) -> bool:
        """Whether anything has to be done."""
        return bool(self.new or self.changed or self.removed)

    def without(self, keys: Collection[str]) -> Changes:
        """Return the same, but for what is unchanged among `keys`."""
        return replace(
            self,
            unchanged={key: row for key, row in self.unchanged.items() if key not in keys},
            problems={key: found for key, found in self.problems.items() if key not in keys},
        )

    def reasons(self) -> list[str]:
        """Say what changed in words, one sentence for each kind."""
        lines = []
        if self.new:
            lines.append(_counted(len(self.new), "new picture", self.new))
        by_reason: dict[str, list[str]] = {}
        for key, reason in self.changed.items():
            by_reason.setdefault(reason, []).append(key)
        for reason, keys in by_reason.items():
            lines.append(f"{_counted(len(keys), 'changed picture', keys)}: {reason}")
        if self.removed:
            lines.append(_counted(len(self.removed), "removed picture", self.removed))
        return lines


def known_from(table: pa.Table) -> dict[str, Known]:
    """Read what an index, or a part of one, recorded of its pictures; empty if it did not."""
    names = ("source_nbytes", "source_mtime_ns", "source_hash", "annotation_hash")
    if any(name not in table.column_names for name in ("key", *names)):
        return {}
    columns = [table[name].to_pylist() for name in names]
    keys = table["key"].to_pylist()
    return {key: Known(row, *facts) for row, (key, *facts) in enumerate(zip(keys, *columns))}


def compare(source: Source, known: Mapping[str, Known], *, maps_folder: Path | None) -> Changes:
    """Hold a source against what is known of it.

    A picture of the same size and time is the same; where only the time differs its bytes decide.
    """
    changes = Changes()
    gone = dict(known)
    if not known:
        changes.new = list(source.keys)  # without reading a single annotation
        return changes
    for sample in source:
        before = gone.pop(sample.key, None)
        if before is None:
            changes.new.append(sample.key)
            continue
        reason = _difference(sample, before, maps_folder)
        if reason is None:
            changes.unchanged[sample.key] = before.row
            if sample.problems:
                changes.problems[sample.key] = sample.problems
        else:
            changes.changed[sample.key] = reason
    changes.removed = sorted(gone)
    return changes


def _difference(sample: SourceSample, before: Known, maps_folder: Path | None) -> str | None:
    try:
        state = file_state(sample.path)
        if state.nbytes != before.nbytes:
            return "another size"
        if (
            state.mtime_ns != before.mtime_ns
            and read_picture(sample.path, sample.key).hash != before.hash
        ):
            return "other bytes"
    except (OSError, SourceError):
        return "its file cannot be read any more"
    if annotation_hash(sample, maps_folder) != before.annotation_hash:
        return "another annotation" + (" or map file" if maps_folder is not None else "")
    return None


def _counted(count: int, what: str, keys: list[str]) -> str:
    shown = ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
    return f"{count} {what}{'' if count == 1 else 's'} ({shown})"
