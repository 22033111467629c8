"""Open one generation of a store without a lock: mapped file, manifest and index, all checked."""

from __future__ import annotations

import os
import struct
import sys
from typing import NamedTuple

from ocrstore.errors import (
    CorruptStoreError,
    NotAStoreError,
    UnknownGenerationError,
    UnsupportedFormatError,
    corrupt,
)
from ocrstore.format.index import Index, check_places, parse_index
from ocrstore.format.layout import (
    EXTENT_MAGIC,
    HEADER_NBYTES,
    INDEX_MAGIC,
    INDEX_PREFIX,
    MANIFEST_MAGIC,
    MANIFEST_PREFIX,
    VALUE_OFFSET,
    decode_record,
    numbered_key,
    parse_numbered_key,
)
from ocrstore.format.lmdb_reader import META_NBYTES, PageReader, Value
from ocrstore.format.manifest import Manifest, parse_manifest
from ocrstore.format.mapped_file import MappedFile

_ATTEMPTS = 64
_EXTENT_START = struct.Struct("<8sI")  # magic, group (FORMAT.md 5.1)
_SEAL_NBYTES = 256
"""The header of an extent with its hash, and some rows' hashes; less than a page."""


class Snapshot:
    """One opened generation; later commits, or a file renamed over it, do not change it."""

    __slots__ = ("generations", "index", "manifest", "mapping", "seals")

    def __init__(
        self,
        mapping: MappedFile,
        manifest: Manifest,
        index: Index,
        generations: tuple[int, ...],
        seals: tuple[tuple[int, bytes], ...],
    ) -> None:
        self.mapping = mapping
        self.manifest = manifest
        self.index = index
        self.generations = generations
        """All generations the file held when this was read, oldest first."""
        self.seals = seals
        """(offset, bytes) pairs that identify this generation: no writer ever changes them."""

    @property
    def newest(self) -> int:
        """The newest generation when this was read."""
        return self.generations[-1]

    def is_in(self, descriptor: int) -> bool:
        """Return whether an open file still holds this generation.

        Reads a few hundred bytes, with pread and not through the map: the file may have been
        truncated, and reading a mapped page behind its end would kill the process.
        """
        return all(
            _read_at(descriptor, offset, len(sealed)) == sealed for offset, sealed in self.seals
        )


def _read_at(descriptor: int, offset: int, nbytes: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, nbytes, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)  # Windows
    return os.read(descriptor, nbytes)


def take_snapshot(path: str | os.PathLike[str], *, generation: int | None = None) -> Snapshot:
    """Read manifest and index of the newest generation, or of `generation`.

    No lock is taken. That is safe because published values are never overwritten; only tree pages
    are. A commit during the lookup may reuse a tree page that is being read, or write pages behind
    the end of the map. In both cases the meta pages or the file size have changed afterwards, and
    the lookup is repeated; if they have not, what was found (or the damage) is real.
    """
    if sys.byteorder != "little":
        raise UnsupportedFormatError("ocrstore files are little-endian; this machine is not.")
    for attempt in range(_ATTEMPTS):
        mapping = MappedFile(path)
        before = read_metas(mapping)
        try:
            found = _find(mapping, generation)
        except (CorruptStoreError, UnknownGenerationError, NotAStoreError):
            if attempt == _ATTEMPTS - 1 or not has_changed(mapping, before):
                raise
        else:
            if attempt == _ATTEMPTS - 1 or read_metas(mapping) == before:
                return _load(mapping, found)
    raise AssertionError("unreachable")  # the last attempt returns or raises


def read_metas(mapping: MappedFile) -> bytes:
    """Return both meta pages, for any page size: every commit changes one of them."""
    buffer = mapping.buffer
    starts = (0, 4096, 8192, 16384, 32768)
    return b"".join(bytes(buffer[start : start + META_NBYTES]) for start in starts)


def has_changed(mapping: MappedFile, before: bytes) -> bool:
    """Return whether a commit was made or begun since `read_metas` returned `before`."""
    return mapping.has_grown() or read_metas(mapping) != before


class _Found(NamedTuple):
    """Where the records of one generation lie."""

    pages: PageReader
    generations: tuple[int, ...]
    generation: int
    manifest_place: Value
    index_place: Value


def _find(mapping: MappedFile, generation: int | None) -> _Found:
    pages = PageReader(mapping.buffer, name=mapping.path)
    newest = newest_generation(pages)
    if generation is None:
        generation = newest
    return _Found(
        pages,
        tuple(list_generations(pages)),
        generation,
        _find_manifest(pages, generation),
        _find_index(pages, generation),
    )


def _load(mapping: MappedFile, found: _Found) -> Snapshot:
    pages = found.pages
    # these headers hold the hashes of manifest and index, and the index those of all rows
    seals = [
        (place.offset, bytes(pages.view(place)[:HEADER_NBYTES]))
        for place in (found.manifest_place, found.index_place)
    ]
    manifest = _parse_manifest(pages, found.generation, found.manifest_place)
    index = _parse_index(pages, manifest, found.index_place)
    check_places(index, first=2 * pages.page_size, end=mapping.nbytes, where=mapping.path)
    # manifest and index lie behind the rows: a file that is being overwritten from its start
    # would still have them, so the first extent is compared, too
    seals += _seal_of_rows(mapping, 2 * pages.page_size + VALUE_OFFSET, manifest.groups)
    return Snapshot(mapping, manifest, index, found.generations, tuple(seals))


def _seal_of_rows(mapping: MappedFile, start: int, groups: int) -> list[tuple[int, bytes]]:
    """Return the first bytes of the extent at `start`, if a published one is there."""
    first = bytes(mapping.buffer[start : start + _SEAL_NBYTES])
    magic, group = _EXTENT_START.unpack(first[: _EXTENT_START.size].ljust(_EXTENT_START.size))
    # the pages of an unpublished extent may be reused
    return [(start, first)] if magic == EXTENT_MAGIC and group < groups else []


def newest_generation(pages: PageReader) -> int:
    """Return the newest published generation; NotAStoreError if there is none (FORMAT.md 3.1)."""
    last = pages.last()
    if last is not None:
        generation = parse_numbered_key(MANIFEST_PREFIX, last[0])
        if generation is not None:
            return generation
    elif pages.is_unfinished():
        raise NotAStoreError(
            f"{pages.name}: an unfinished build, not a store. Run the build again: it "
            "continues where it stopped."
        )
    raise NotAStoreError(
        f"{pages.name}: an LMDB file, but not an ocrstore file (it has no manifest). "
        "`ocrstore build` makes a store."
    )


def list_generations(pages: PageReader) -> list[int]:
    """Return the generations that can be opened, oldest first."""
    found = (parse_numbered_key(MANIFEST_PREFIX, key) for key in pages.keys_with(MANIFEST_PREFIX))
    return [generation for generation in found if generation is not None]


def read_manifest(pages: PageReader, generation: int) -> Manifest:
    """Read and check the manifest of one generation."""
    return _parse_manifest(pages, generation, _find_manifest(pages, generation))


def read_index(pages: PageReader, manifest: Manifest) -> Index:
    """Read and check the index that belongs to a manifest; its table points into the file."""
    return _parse_index(pages, manifest, _find_index(pages, manifest.generation))


def _find_manifest(pages: PageReader, generation: int) -> Value:
    valid = isinstance(generation, int) and 0 <= generation < 10**8
    value = pages.find(numbered_key(MANIFEST_PREFIX, generation)) if valid else None
    if value is None:
        known = ", ".join(map(str, list_generations(pages)))
        raise UnknownGenerationError(
            f"{pages.name}: has no generation {generation}; it has {known}. Older ones are gone "
            "after `ocrstore compact`."
        )
    return value


def _find_index(pages: PageReader, generation: int) -> Value:
    value = pages.find(numbered_key(INDEX_PREFIX, generation))
    if value is None:
        raise corrupt(f"{pages.name}: index of generation {generation}", "is not there")
    return value


def _parse_manifest(pages: PageReader, generation: int, value: Value) -> Manifest:
    where = f"{pages.name}: manifest of generation {generation}"
    payload = decode_record(MANIFEST_MAGIC, generation, pages.view(value), what=where)
    return parse_manifest(payload, generation=generation, where=where)


def _parse_index(pages: PageReader, manifest: Manifest, value: Value) -> Index:
    where = f"{pages.name}: index of generation {manifest.generation}"
    payload = decode_record(INDEX_MAGIC, manifest.generation, pages.view(value), what=where)
    return parse_index(payload, manifest.columns, samples=manifest.samples, where=where)
