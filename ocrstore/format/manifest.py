"""The manifest: the JSON record of one generation, and its validation (FORMAT.md 7)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ocrstore.errors import UnsupportedFormatError, corrupt
from ocrstore.format.codecs import CODECS, KNOWN_FEATURES
from ocrstore.format.columns import Column
from ocrstore.format.layout import FORMAT_VERSION, is_valid_name

MAX_MANIFEST_NBYTES = 64 * 2**20
MAX_JSON_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Manifest:
    """One generation; the format itself does not interpret `metadata` and `history`."""

    generation: int
    samples: int
    groups: int
    """Row groups written so far; extents with a higher number were never published."""
    columns: Mapping[str, Column]
    fingerprint: str
    history: tuple[Mapping[str, Any], ...]
    metadata: Mapping[str, Any]
    version: tuple[int, int]

    def to_json(self) -> bytes:
        """Encode canonically: the same manifest always gives the same bytes."""
        record = {
            "format": {"major": self.version[0], "minor": self.version[1]},
            "required_features": required_features(self.columns),
            "generation": self.generation,
            "samples": self.samples,
            "groups": self.groups,
            # a list keeps the order of the columns
            "columns": [{"name": n, **c.to_json()} for n, c in self.columns.items()],
            "fingerprint": self.fingerprint,
            "history": list(self.history),
            "metadata": dict(self.metadata),
        }
        return encode_json(record)


def required_features(columns: Mapping[str, Column]) -> list[str]:
    """Return what a reader must know to read these columns."""
    found = {CODECS[column.codec].feature for column in columns.values()}
    return sorted(feature for feature in found if feature)


def needed_version(columns: Mapping[str, Column]) -> tuple[int, int]:
    """Return the oldest format version that has all that these columns need (FORMAT.md 14)."""
    return FORMAT_VERSION if required_features(columns) else (1, 0)


def encode_json(record: object) -> bytes:
    """Encode JSON canonically: sorted names, no blanks, UTF-8, no NaN."""
    text = json.dumps(
        record, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8")


def json_depth_fits(record: object) -> bool:
    """Return whether lists and objects are nested no deeper than allowed (FORMAT.md 7.1)."""
    level = [record]
    for _ in range(MAX_JSON_DEPTH + 1):
        level = [
            item
            for outer in level
            if isinstance(outer, (list, tuple, Mapping))
            for item in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
        if not level:
            return True
    return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return record


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def decode_json(payload: bytes | memoryview, *, where: str) -> dict[str, Any]:
    """Decode a JSON object; CorruptStoreError for any other bytes."""
    if len(payload) > MAX_MANIFEST_NBYTES:
        raise corrupt(where, f"{len(payload)} bytes are too many.")
    try:
        record = json.loads(
            bytes(payload).decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
        )
    except (ValueError, RecursionError) as exc:
        raise corrupt(where, f"not JSON: {exc}") from exc
    if not isinstance(record, dict):
        raise corrupt(where, "not a JSON object.")
    if not json_depth_fits(record):
        raise corrupt(where, f"nested deeper than {MAX_JSON_DEPTH} levels")
    return record


def parse_manifest(payload: bytes | memoryview, *, generation: int, where: str) -> Manifest:
    """Parse a manifest and check every field (FORMAT.md 7.2)."""
    record = decode_json(payload, where=where)
    version = _version(record, where)
    features = _field(record, "required_features", list, where)
    unknown = [name for name in features if not isinstance(name, str) or name not in KNOWN_FEATURES]
    if unknown:
        raise UnsupportedFormatError(
            f"{where}: needs the feature {unknown[0]!r}, which this ocrstore does not have. "
            "Update ocrstore: pip install -U ocrstore."
        )
    numbers = [_count(record, name, where) for name in ("generation", "samples", "groups")]
    if numbers[0] != generation:
        raise corrupt(where, f"says generation {numbers[0]}, expected {generation}.")
    fingerprint = _field(record, "fingerprint", str, where)
    if len(fingerprint) != 64 or set(fingerprint) - set("0123456789abcdef"):
        raise corrupt(where, "the fingerprint is not 64 hexadecimal digits.")
    columns = parse_columns(_field(record, "columns", list, where), where=where)
    undeclared = set(required_features(columns)) - set(features)
    if undeclared:
        raise corrupt(where, f"its columns need the feature {min(undeclared)!r}, not declared.")
    history = _field(record, "history", list, where)
    if not all(isinstance(entry, dict) for entry in history):
        raise corrupt(where, "the history is not a list of objects.")
    return Manifest(
        generation=numbers[0],
        samples=numbers[1],
        groups=numbers[2],
        columns=columns,
        fingerprint=fingerprint,
        history=tuple(history),
        metadata=_field(record, "metadata", dict, where),
        version=version,
    )


def parse_columns(records: list[Any], *, where: str) -> dict[str, Column]:
    """Parse the list of named columns."""
    columns: dict[str, Column] = {}
    for record in records:
        name = record.get("name") if isinstance(record, dict) else None
        if not is_valid_name(name) or name in columns:
            raise corrupt(where, f"a column has the impossible name {name!r:.80}.")
        columns[str(name)] = Column.from_json(record, where=f"{where}: column {name!r}")
    return columns


def _version(record: dict[str, Any], where: str) -> tuple[int, int]:
    version = _field(record, "format", dict, where)
    major, minor = (_count(version, name, where) for name in ("major", "minor"))
    if major != FORMAT_VERSION[0]:
        raise UnsupportedFormatError(
            f"{where}: format {major}.{minor}; this ocrstore reads format {FORMAT_VERSION[0]}. "
            "Update ocrstore (pip install -U ocrstore), or build the store again."
        )
    return major, minor


def _field(record: dict[str, Any], name: str, kind: type, where: str) -> Any:
    value = record.get(name)
    if not isinstance(value, kind):
        raise corrupt(where, f"field {name!r} is missing or not a {kind.__name__}.")
    return value


def _count(record: dict[str, Any], name: str, where: str) -> int:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise corrupt(where, f"field {name!r} is not a count: {value!r:.80}")
    return value
