"""What an interrupted build leaves in its hidden file, and how the next run takes it up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from ocrstore.errors import OCRStoreError
from ocrstore.format.blobs import GROUP_MAGIC, PENDING_MAGIC, decode_blob, encode_blob
from ocrstore.format.columns import Column
from ocrstore.format.environment import check_structure
from ocrstore.format.extents import parse_extent
from ocrstore.format.index import Rows, parse_index, serialize
from ocrstore.format.layout import (
    GROUP_PREFIX,
    PENDING_KEY,
    extent_key,
    numbered_key,
    parse_numbered_key,
)
from ocrstore.format.manifest import encode_json
from ocrstore.format.mapping import Mapping as FileMapping
from ocrstore.format.pages import PageReader
from ocrstore.format.payload import located


@dataclass(frozen=True, slots=True)
class ResumedGroup:
    """A row group that an interrupted run had committed, checked row by row."""

    number: int
    keys: list[str]
    rows: dict[str, Rows]
    attributes: pa.Table


def encode_pending(columns: Mapping[str, Column], token: str, page_size: int) -> dict[bytes, bytes]:
    """Make the record that marks a file as unfinished and says what is being built."""
    payload = _pending(columns, token)
    return {PENDING_KEY: encode_blob(PENDING_MAGIC, 0, payload, page_size=page_size)}


def _pending(columns: Mapping[str, Column], token: str) -> bytes:
    described = [{"name": name, **column.to_json()} for name, column in columns.items()]
    return encode_json({"columns": described, "token": token})


def encode_group(number: int, table: pa.Table, *, page_size: int) -> dict[bytes, bytes]:
    """Make the record of one group: its part of the index, with offsets inside its extents."""
    blob = encode_blob(GROUP_MAGIC, number, serialize(table), page_size=page_size)
    return {numbered_key(GROUP_PREFIX, number): blob}


def leftovers(groups: int) -> list[bytes]:
    """Name the records that publication makes superfluous."""
    return [PENDING_KEY, *(numbered_key(GROUP_PREFIX, number) for number in range(groups))]


def load(partial: Path, columns: Mapping[str, Column], token: str) -> list[ResumedGroup] | None:
    """Return the groups of an interrupted run of the same work; None if there is nothing to use.

    Every row is compared with its hash: after a power failure the file may hold anything. What
    is not sound in every byte is not used at all.
    """
    try:
        check_structure(str(partial))
        pages = PageReader(FileMapping(partial).buffer, name=str(partial))
        last = pages.last()
        if last is None or last[0] != PENDING_KEY or last[1] is None:
            return None
        pending = decode_blob(PENDING_MAGIC, 0, pages.view(last[1]), what="pending")
        if bytes(pending) != _pending(columns, token):
            return None
        groups = [
            _load_group(pages, columns, position, key, value)
            for position, (key, value) in enumerate(pages.items(GROUP_PREFIX))
        ]
    except OCRStoreError:
        return None
    return groups


def _load_group(
    pages: PageReader, columns: Mapping[str, Column], position: int, key: bytes, value: Any
) -> ResumedGroup:
    where = f"{pages.name}: group record {position}"
    number = parse_numbered_key(GROUP_PREFIX, key)
    if number != position or value is None:
        raise pages.corrupt(f"{where} is missing")
    payload = decode_blob(GROUP_MAGIC, number, pages.view(value), what=where)
    # the table outlives the file it was read from, so it gets memory of its own
    copied = memoryview(bytes(payload))
    with pa.ipc.open_file(pa.py_buffer(copied)) as reader:
        samples = sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
    index = parse_index(copied, columns, samples=samples, where=where)
    rows: dict[str, Rows] = {}
    for name in columns:
        place = pages.find(extent_key(number, name))
        if place is None:
            raise pages.corrupt(f"{where}: column {name!r} is missing")
        data = pages.view(place)
        extent = parse_extent(data, group=number, column=name, where=where)
        entries, part = extent.entries, index.rows[name]
        if (
            len(entries) != samples
            or (entries["offset"] != part.offset).any()
            or (entries["nbytes"] != part.nbytes).any()
            or any(
                xxhash.xxh3_64_intdigest(data[start : start + nbytes]) != digest
                for start, nbytes, digest in entries.tolist()
            )
        ):
            raise pages.corrupt(f"{where}: column {name!r} is not what was written")
        rows[name] = located(part, place.offset)
    keys = index.table["key"].to_pylist()
    return ResumedGroup(number, keys, rows, index.table.select(index.attributes.names))
