"""One generation of a store as a reader holds it: mapping, manifest and index, all checked."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from ocrstore.errors import (
    CorruptStoreError,
    NotAStoreError,
    UnknownGenerationError,
    UnsupportedFormatError,
)
from ocrstore.format.blobs import INDEX_MAGIC, MANIFEST_MAGIC, decode_blob
from ocrstore.format.index import Index, check_places, parse_index
from ocrstore.format.layout import (
    INDEX_PREFIX,
    MANIFEST_PREFIX,
    PENDING_KEY,
    numbered_key,
    parse_numbered_key,
)
from ocrstore.format.manifest import Manifest, parse_manifest
from ocrstore.format.mapping import Mapping
from ocrstore.format.pages import META_NBYTES, PageReader

_ATTEMPTS = 16


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was opened; it stays true whatever is appended to the file or renamed over it."""

    mapping: Mapping
    manifest: Manifest
    index: Index
    newest: int
    """The newest generation when this was read."""


def take_snapshot(path: str | os.PathLike[str], *, generation: int | None = None) -> Snapshot:
    """Read manifest and index of the newest generation, or of the one asked for.

    Readers take no lock. A commit that happens meanwhile may reuse tree pages being read; then
    the meta pages have changed, and reading starts again.
    """
    if sys.byteorder != "little":
        raise UnsupportedFormatError("ocrstore files are little-endian; this machine is not.")
    for attempt in range(_ATTEMPTS):
        mapping = Mapping(path)
        before = _metas(mapping)
        try:
            return _read(mapping, generation)
        except (CorruptStoreError, UnknownGenerationError, NotAStoreError):
            if attempt == _ATTEMPTS - 1 or _metas(mapping) == before:
                raise
    raise AssertionError("unreachable")  # the last attempt returns or raises


def _metas(mapping: Mapping) -> bytes:
    """Return the bytes that every commit changes: both meta pages, for any page size."""
    buffer = mapping.buffer
    starts = (0, 4096, 8192, 16384, 32768)
    return b"".join(bytes(buffer[start : start + META_NBYTES]) for start in starts)


def _read(mapping: Mapping, generation: int | None) -> Snapshot:
    name = mapping.path
    pages = PageReader(mapping.buffer, name=name)
    newest = newest_generation(pages)
    if generation is None:
        generation = newest
    manifest = read_manifest(pages, generation)
    index = read_index(pages, manifest)
    check_places(index, first=2 * pages.page_size, end=mapping.nbytes, where=name)
    return Snapshot(mapping, manifest, index, newest)


def newest_generation(pages: PageReader) -> int:
    """Return the newest published generation, or say why there is none (FORMAT.md 3.1)."""
    last = pages.last()
    if last is not None:
        generation = parse_numbered_key(MANIFEST_PREFIX, last[0])
        if generation is not None:
            return generation
        if last[0] == PENDING_KEY:
            raise NotAStoreError(
                f"{pages.name}: an unfinished build, not a store. Run the build again: it goes on "
                "where it stopped."
            )
    raise NotAStoreError(
        f"{pages.name}: an LMDB file, but not an ocrstore file (it has no manifest). "
        "`ocrstore build` makes a store."
    )


def list_generations(pages: PageReader) -> list[int]:
    """Return the generations that can be opened, oldest first."""
    found = (parse_numbered_key(MANIFEST_PREFIX, key) for key, _ in pages.items(MANIFEST_PREFIX))
    return [generation for generation in found if generation is not None]


def read_manifest(pages: PageReader, generation: int) -> Manifest:
    """Read and check the manifest of one generation."""
    where = f"{pages.name}: manifest of generation {generation}"
    valid = isinstance(generation, int) and 0 <= generation < 10**8
    value = pages.find(numbered_key(MANIFEST_PREFIX, generation)) if valid else None
    if value is None:
        known = ", ".join(map(str, list_generations(pages)))
        raise UnknownGenerationError(
            f"{pages.name}: has no generation {generation}; it has {known}."
        )
    payload = decode_blob(MANIFEST_MAGIC, generation, pages.view(value), what=where)
    return parse_manifest(bytes(payload), generation=generation, where=where)


def read_index(pages: PageReader, manifest: Manifest) -> Index:
    """Read and check the index that belongs to a manifest; its table points into the file."""
    where = f"{pages.name}: index of generation {manifest.generation}"
    value = pages.find(numbered_key(INDEX_PREFIX, manifest.generation))
    if value is None:
        raise CorruptStoreError(f"{where}: is not there. Restore the file from a copy.")
    payload = decode_blob(INDEX_MAGIC, manifest.generation, pages.view(value), what=where)
    return parse_index(payload, manifest.columns, samples=manifest.samples, where=where)
