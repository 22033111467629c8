"""The quick check: every extent's header and directory agree with the index; no row is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ocrstore.errors import CorruptStoreError, OCRStoreError
from ocrstore.format.extents import ENTRY, parse_extent
from ocrstore.format.layout import EXTENT_PREFIX, parse_extent_key
from ocrstore.format.lmdb_reader import Meta, Node, PageReader
from ocrstore.format.mapped_file import MappedFile
from ocrstore.store import Store

_SHOWN = 20
_ATTEMPTS = 8


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
    for _ in range(_ATTEMPTS):
        before = _metas(mapping)
        result = _check(store, mapping)
        if result.ok or (_metas(mapping) == before and not mapping.has_grown()):
            return result
        # a commit meanwhile may have reused tree pages that were being read; rows never move
        fresh = MappedFile(store.path)
        if (fresh.device, fresh.inode) == (mapping.device, mapping.inode):
            mapping = fresh
    return result


def _metas(mapping: MappedFile) -> tuple[Meta, Meta] | None:
    try:
        return PageReader(mapping.buffer, name=mapping.path).metas
    except OCRStoreError:
        return None


def _check(store: Store, mapping: MappedFile) -> Integrity:
    findings: list[str] = []
    listed: dict[str, list[np.ndarray]] = {name: [] for name in store.columns}
    extents = 0
    try:
        pages = PageReader(mapping.buffer, name=mapping.path)
        nodes = _extent_nodes(pages, findings)
    except CorruptStoreError as exc:
        findings.append(str(exc))
        nodes = []
    for node in nodes:
        place = parse_extent_key(node.key)
        if place is None or node.value is None:
            findings.append(f"a record that is no extent: {node.key!r}")
            continue
        group, column = place
        where = f"column {column!r}, row group {group}"
        try:
            value = pages.check_value(node) or node.value
            extent = parse_extent(pages.view(value), group=group, column=column, where=where)
        except CorruptStoreError as exc:
            findings.append(str(exc))
            continue
        extents += 1
        if column in listed:
            entries = extent.entries.copy()
            entries["offset"] += np.uint64(value.offset)
            listed[column].append(entries)
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


def _extent_nodes(pages: PageReader, findings: list[str]) -> list[Node]:
    """List the extents of all groups in one walk over the tree; damaged pages are findings."""
    records: list[Node] = []
    if pages.meta.main.is_empty:
        return records
    waiting = [pages.meta.main.root]
    visited: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number in visited:
            findings.append(f"page {number} is in the tree twice")
            continue
        visited.add(number)
        try:
            leaf, nodes = pages.read_page(number)
            for node in nodes:
                if not leaf:
                    waiting.append(node.child)
                elif node.key.startswith(EXTENT_PREFIX):
                    records.append(node)
        except CorruptStoreError as exc:
            findings.append(str(exc))
    return records


def _as_bytes(entries: np.ndarray) -> np.ndarray:
    """Make each record one opaque value that can be compared."""
    return np.ascontiguousarray(entries).view(np.dtype(("V", ENTRY.itemsize))).reshape(-1)
