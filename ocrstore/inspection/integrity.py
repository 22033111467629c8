"""The quick check: every extent's header and directory agree with the index; no row is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ocrstore.errors import CorruptStoreError
from ocrstore.format.extents import ENTRY, parse_extent
from ocrstore.format.layout import EXTENT_PREFIX, parse_extent_key
from ocrstore.format.pages import PageReader
from ocrstore.store import Store

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Integrity:
    """What a check of the headers found; `findings` is empty if all is well."""

    extents: int
    rows: int
    """Rows of the open generation that an extent's directory lists with the recorded hash."""
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing wrong was found."""
        return not self.findings


def check_headers(store: Store) -> Integrity:
    """Compare what the extents say about themselves with what the index says about them.

    Reads one or a few pages for each extent. Damage inside a row is found by `verify` only.
    """
    mapping = store.snapshot.mapping
    findings: list[str] = []
    listed: dict[str, list[np.ndarray]] = {name: [] for name in store.columns}
    extents = 0
    try:
        pages = PageReader(mapping.buffer, name=mapping.path)
        for key in pages.keys_with(EXTENT_PREFIX):
            place = parse_extent_key(key)
            if place is None:
                findings.append(f"an unknown record: {key!r}")
                continue
            group, column = place
            extents += 1
            try:
                value = pages.find(key)
                if value is None:
                    continue
                where = f"column {column!r}, row group {group}"
                extent = parse_extent(pages.view(value), group=group, column=column, where=where)
            except CorruptStoreError as exc:
                findings.append(str(exc))
                continue
            if column in listed:
                entries = extent.entries.copy()
                entries["offset"] += np.uint64(value.offset)
                listed[column].append(entries)
    except CorruptStoreError as exc:
        findings.append(str(exc))
    rows = 0
    for name, parts in listed.items():
        column_rows = store[name]
        known = np.concatenate(parts) if parts else np.empty(0, ENTRY)
        wanted = np.empty(len(column_rows), ENTRY)
        wanted["offset"], wanted["nbytes"] = column_rows.offsets, column_rows.nbytes
        wanted["hash"] = column_rows.hashes
        found = np.isin(_as_bytes(wanted), _as_bytes(known))
        rows += int(found.sum())
        missing = np.flatnonzero(~found)
        for row in missing[:_SHOWN].tolist():
            findings.append(
                f"sample {store.keys[row]!r}, column {name!r}: its row is in no sound extent"
            )
        if len(missing) > _SHOWN:
            findings.append(f"column {name!r}: {len(missing) - _SHOWN} more rows in no extent")
    return Integrity(extents, rows, tuple(findings))


def _as_bytes(entries: np.ndarray) -> np.ndarray:
    """Make each record one opaque value that can be compared."""
    return np.ascontiguousarray(entries).view(np.dtype(("V", ENTRY.itemsize))).reshape(-1)
