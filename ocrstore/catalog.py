"""The catalog of a data set of many stores: the file `dataset.json` (FORMAT.md 16).

It lists the shards, which are ordinary stores beside it, with what a reader needs of each before
opening it, and has once what all of them share: columns and views.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ocrstore.errors import NotAStoreError, UnsupportedFormatError, WriteError, corrupt
from ocrstore.format.columns import Column
from ocrstore.format.manifest import (
    MAX_MANIFEST_NBYTES,
    decode_json,
    encode_json,
    parse_columns,
)
from ocrstore.keys import hash_of
from ocrstore.whole_file import replaced

CATALOG = "dataset.json"
FORMAT = "ocrstore-dataset"
VERSION = (1, 0)
MAX_SHARDS = 1_000_000
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,199}\.ocrs")
"""A shard lies in the folder of its catalog: no separator, no hidden file, no device."""
_BUCKET = re.compile(r"[01]{0,64}")
_HEX = re.compile(r"[0-9a-f]{64}")
_MOST = 2**53
"""The largest int that every JSON reader has."""


class Shard(NamedTuple):
    """A store of the data set, as its catalog describes it."""

    name: str
    bucket: str
    """The leading bits of the hash of every key in it, such as "0110"; "" for all keys."""
    inputs: str
    """The hash of what it was made of: pictures, annotations, recipe."""
    nbytes: int
    """The size of its file."""
    samples: int
    generation: int
    fingerprint: str
    """Of its content, as its manifest has it."""
    row_groups: tuple[tuple[int, int], ...]
    """(count, rows) in order: ((62, 16), (1, 8)) is 62 groups of 16 rows and one of 8."""
    column_nbytes: Mapping[str, int]
    """The stored bytes of each column."""

    def holds(self, key: str) -> bool:
        """Return whether a key is in the shard's bucket."""
        return f"{hash_of(key):064b}".startswith(self.bucket)


@dataclass(frozen=True)
class Catalog:
    """A data set of many stores; `stored_views` reads its views as those of a store."""

    folder: str
    columns: Mapping[str, Column]
    metadata: Mapping[str, Any]
    """The entries of the shards' manifests about views, which all of them share."""
    shards: tuple[Shard, ...]
    build: Mapping[str, Any]
    """What the build recorded for the next one."""
    fingerprint: str = ""
    """The sha256 of the file that it was read from."""

    @property
    def path(self) -> str:
        """The catalog's file."""
        return f"{self.folder}/{CATALOG}"

    def __len__(self) -> int:
        """Return the number of samples."""
        return sum(shard.samples for shard in self.shards)

    def shard_path(self, shard: Shard) -> str:
        """Return where a shard lies."""
        return f"{self.folder}/{shard.name}"

    def to_json(self) -> bytes:
        """Encode canonically: the same catalog always gives the same bytes."""
        names = list(self.columns)
        shards = [
            {
                **shard._asdict(),
                "column_nbytes": [shard.column_nbytes[name] for name in names],
            }
            for shard in sorted(self.shards, key=lambda shard: (shard.bucket, shard.name))
        ]
        record = {
            "format": {"name": FORMAT, "major": VERSION[0], "minor": VERSION[1]},
            "columns": [{"name": name, **spec.to_json()} for name, spec in self.columns.items()],
            "metadata": dict(self.metadata),
            "shards": shards,
            "build": dict(self.build),
        }
        return encode_json(record)


def find_catalog(place: str | os.PathLike[str]) -> str | None:
    """Return the catalog's file if a path is a data set: its folder, or the catalog itself."""
    path = os.path.abspath(place)  # noqa: PTH100  # keeps symbolic links as they are
    if os.path.isdir(path):  # noqa: PTH112  # strings throughout
        path = f"{path}/{CATALOG}"
    is_one = os.path.basename(path) == CATALOG and os.path.isfile(path)  # noqa: PTH113, PTH119  # as above
    return path if is_one else None


def read_catalog(place: str | os.PathLike[str]) -> Catalog:
    """Read a catalog; no shard is opened.

    Args:
        place: The folder of the data set, or its catalog.

    Raises:
        NotAStoreError: There is no catalog.
        UnsupportedFormatError: It needs a newer ocrstore.
        CorruptStoreError: It is damaged, or names files outside of its folder.
    """
    path = find_catalog(place)
    if path is None:
        raise NotAStoreError(
            f"{os.fspath(place)}: is a directory, and there is no {CATALOG} in it. `ocrstore build"
            " --out FOLDER --shard-size SIZE` writes it last, when all shards are there."
        )
    with Path(path).open("rb") as file:
        payload = file.read(MAX_MANIFEST_NBYTES + 1)
    return parse_catalog(payload, path=path)


def parse_catalog(payload: bytes, *, path: str) -> Catalog:
    """Parse a catalog and check every field (FORMAT.md 16.2)."""
    record = decode_json(payload, where=path)
    version = record.get("format")
    if not isinstance(version, dict) or version.get("name") != FORMAT:
        raise NotAStoreError(f"{path}: not the catalog of a data set.")
    if version.get("major") != VERSION[0]:
        raise UnsupportedFormatError(
            f"{path}: catalog format {version.get('major')!r:.20}; this ocrstore reads"
            f" {VERSION[0]}. Update ocrstore: pip install -U ocrstore."
        )
    for name, kind in (("columns", list), ("metadata", dict), ("shards", list), ("build", dict)):
        if not isinstance(record.get(name), kind):
            raise corrupt(path, f"field {name!r} is missing or not a {kind.__name__}.")
    if len(record["shards"]) > MAX_SHARDS:
        raise corrupt(path, f"{len(record['shards'])} shards are too many.")
    columns = parse_columns(record["columns"], where=path)
    names = tuple(columns)
    shards = tuple(_shard(entry, names, path) for entry in record["shards"])
    _check_buckets(shards, path)
    return Catalog(
        os.path.dirname(path),  # noqa: PTH120  # strings throughout
        columns,
        record["metadata"],
        shards,
        record["build"],
        hashlib.sha256(payload).hexdigest(),
    )


def write_catalog(catalog: Catalog) -> None:
    """Write a catalog whole or not at all; readers see the old one or the new one.

    Raises:
        CorruptStoreError: Two shards may hold the same keys.
        WriteError: The file system refuses.
    """
    payload = catalog.to_json()
    if len(payload) > MAX_MANIFEST_NBYTES:
        raise WriteError(
            f"{catalog.path}: the catalog of {len(catalog.shards):,} shards would have"
            f" {len(payload):,} bytes; at most {MAX_MANIFEST_NBYTES:,}. Build with a larger"
            " --shard-size into another folder."
        )
    parse_catalog(payload, path=catalog.path)  # what is written can be read
    with replaced(catalog.path) as partial, partial.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def _shard(entry: Any, columns: tuple[str, ...], path: str) -> Shard:
    if not isinstance(entry, dict) or entry.keys() != set(Shard._fields):
        raise corrupt(path, f"a shard has other fields than {', '.join(Shard._fields)}.")
    name, bucket, groups, sizes = (
        entry[field] for field in ("name", "bucket", "row_groups", "column_nbytes")
    )
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise corrupt(path, f"a shard has the impossible name {name!r:.80}.")
    where = f"{path}: shard {name}"
    if not isinstance(bucket, str) or not _BUCKET.fullmatch(bucket):
        raise corrupt(where, f"its bucket is not a string of bits: {bucket!r:.80}")
    for field in ("inputs", "fingerprint"):
        if not isinstance(entry[field], str) or not _HEX.fullmatch(entry[field]):
            raise corrupt(where, f"field {field!r} is not 64 hexadecimal digits.")
    if not isinstance(groups, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and _are_counts(pair) and all(pair)
        for pair in groups
    ):
        raise corrupt(where, "its row groups are not pairs of counts above 0.")
    if not isinstance(sizes, list) or len(sizes) != len(columns) or not _are_counts(sizes):
        raise corrupt(where, f"field 'column_nbytes' is not {len(columns)} counts.")
    nbytes, samples, generation = (entry[field] for field in ("nbytes", "samples", "generation"))
    if not _are_counts([nbytes, samples, generation]) or samples >= 2**31:
        raise corrupt(where, "its sizes are no counts, or too large.")
    if sum(number * rows for number, rows in groups) != samples or sum(sizes) > nbytes:
        raise corrupt(where, "its row groups are not its samples, or its columns exceed its file.")
    return Shard(
        name,
        bucket,
        entry["inputs"],
        nbytes,
        samples,
        generation,
        entry["fingerprint"],
        tuple((number, rows) for number, rows in groups),
        dict(zip(columns, sizes, strict=True)),
    )


def _are_counts(values: list[Any]) -> bool:
    return all(type(value) is int and 0 <= value < _MOST for value in values)


def _check_buckets(shards: tuple[Shard, ...], path: str) -> None:
    """Raise CorruptStoreError if a name occurs twice, or two buckets can hold the same key."""
    if len({shard.name for shard in shards}) != len(shards):
        raise corrupt(path, "the name of a shard occurs twice.")
    for one, other in pairwise(sorted(shard.bucket for shard in shards)):
        if other.startswith(one):
            raise corrupt(path, f"the buckets {one!r} and {other!r} of two shards overlap.")
