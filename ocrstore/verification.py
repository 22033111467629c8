"""Verify a store: every byte (`verify`), or the headers only (`check_headers`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import xxhash

from ocrstore.errors import (
    CorruptStoreError,
    DecodeError,
    OCRStoreError,
    SchemaError,
    StoreBusyError,
)
from ocrstore.format.columns import Column
from ocrstore.format.extents import ENTRY, Extent, parse_extent
from ocrstore.format.fingerprint import fingerprint
from ocrstore.format.index import Index, check_places
from ocrstore.format.layout import (
    DEFAULT_MAX_ROW_NBYTES,
    EXTENT_PREFIX,
    INDEX_PREFIX,
    MANIFEST_PREFIX,
    parse_extent_key,
    parse_numbered_key,
)
from ocrstore.format.lmdb_check import check_pages
from ocrstore.format.lmdb_reader import Node, PageReader, Value
from ocrstore.format.mapped_file import MappedFile
from ocrstore.format.snapshot import (
    has_changed,
    newest_generation,
    read_index,
    read_manifest,
    read_metas,
)
from ocrstore.store import Store, is_local_copy, local_path
from ocrstore.stored_rows import decode_stored

if TYPE_CHECKING:
    from ocrstore.building.check_source import Pictures, SourceCheck

_ATTEMPTS = 64
_SHOWN = 20

StrPath = str | os.PathLike[str]
Progress = Callable[[int, int], None]
"""Called with (done, total)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem."""

    message: str
    sample: str | None = None
    column: str | None = None


@dataclass(slots=True)
class Verification:
    """The result of `verify`; `notes` are no damage: dead space, unpublished extents."""

    path: str
    nbytes: int = 0
    samples: int = 0
    generations: list[int] = field(default_factory=list)
    rows: int = 0
    extents: int = 0
    checked_nbytes: int = 0
    dead_nbytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing wrong was found."""
        return not self.findings


@overload
def verify(
    path: StrPath, *, source: None = None, quick: bool = False, progress: Progress | None = None
) -> Verification: ...


@overload
def verify(
    path: StrPath,
    *,
    source: Pictures,
    annotations: StrPath | None = None,
    format: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    columns_map: Mapping[str, str] | None = None,
    stored_only: bool = False,
    maps: StrPath | None = None,
    targets: Any = None,
    allow_modules: Sequence[str] = (),
    sample: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> SourceCheck: ...


def verify(
    path: StrPath,
    *,
    source: Pictures | None = None,
    quick: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Verification | SourceCheck:
    """Read the whole file and check every byte, or compare a store with its source.

    Rows are compared with their hashes, and decoded unless they are raw. Takes no lock; if the
    store was changed meanwhile and something looks wrong, the check is repeated.

    Args:
        path: The store, or a data set of many stores: each shard is compared with the catalog, too.
        source: The pictures or samples, as for `build`. Every sample is derived from them again and
            compared bit by bit with the store, instead of checking the file.
        quick: Compare rows with their hashes only, and decode nothing.
        annotations: With `source`, as in `build`; so are `format`, `include`, `exclude`,
            `columns_map`, `maps`, `targets`, `allow_modules` and `workers`.
        stored_only: With `source`: its pictures that are not in the store are no findings.
        sample: With `source`: compare only so many samples, chosen at random.
        progress: Called with (done, total), in bytes; with `source`, in samples.

    Raises:
        NotAStoreError: The file cannot be opened as a store. All other damage is a finding.
        SourceError: The source cannot be opened.
    """
    if source is not None:
        from ocrstore.building.check_source import check_source  # reading needs no decoders

        return check_source(path, source, progress=progress, **options)
    if options:
        raise SchemaError(f"{', '.join(options)}: only with `source`")
    if "://" in os.fspath(path) or is_local_copy(path):
        from ocrstore.remote.transfer import whole_object  # the local copy has not all of it

        with whole_object(local_path(path)) as (url, whole):
            return replace(verify(whole, quick=quick, progress=progress), path=url)
    if os.path.isdir(path) or os.path.basename(path) == "dataset.json":  # noqa: PTH112, PTH119  # a string, too
        return _verify_shards(path, progress, quick=quick)
    for _ in range(_ATTEMPTS):
        mapping = MappedFile(path)
        before = read_metas(mapping)
        try:
            result = _verify(mapping, progress, quick=quick)
        except OCRStoreError:
            if not has_changed(mapping, before):
                raise
        else:
            if result.ok or not has_changed(mapping, before):
                return result
    raise StoreBusyError(f"{mapping.path}: is changed faster than it can be checked. Try it later.")


def _verify_shards(path: StrPath, progress: Progress | None, *, quick: bool) -> Verification:
    """Verify every shard of a data set, and compare it with the catalog."""
    from ocrstore.catalog import read_catalog  # a store alone needs neither
    from ocrstore.store_set import open_shard

    catalog = read_catalog(path)
    total = sum(shard.nbytes for shard in catalog.shards)
    result = Verification(catalog.folder, nbytes=total, samples=len(catalog))
    done = 0
    for shard in catalog.shards:
        before = done

        def tell(part: int, whole: int, before: int = before, nbytes: int = shard.nbytes) -> None:
            if progress is not None:
                progress(before + part * nbytes // max(1, whole), total)

        found: list[Finding] = []
        try:
            one = verify(catalog.shard_path(shard), quick=quick, progress=tell)
            found += one.findings
            result.rows += one.rows
            result.extents += one.extents
            result.checked_nbytes += one.checked_nbytes
            result.dead_nbytes += one.dead_nbytes
            with open_shard(catalog, shard) as store:
                stray = [key for key in store.keys if not shard.holds(key)]
            found += [Finding(f"the key is not of bucket {shard.bucket}", key) for key in stray]
        except OCRStoreError as exc:
            found.append(Finding(str(exc)))
        result.findings += [replace(one, message=_of_shard(shard.name, one)) for one in found]
        done += shard.nbytes
        if progress is not None:
            progress(done, total)
    return result


def _of_shard(name: str, finding: Finding) -> str:
    """Return a message that names the shard."""
    return finding.message if name in finding.message else f"shard {name}: {finding.message}"


def _verify(mapping: MappedFile, progress: Progress | None, *, quick: bool) -> Verification:
    pages = PageReader(mapping.buffer, name=mapping.path)
    newest_generation(pages)
    result = Verification(mapping.path, nbytes=mapping.nbytes)
    report = check_pages(pages)
    result.findings += [Finding(problem) for problem in report.problems]
    values = report.values or dict(_reachable(pages))
    places = _check_generations(pages, mapping, values, result)
    columns = {} if quick else _columns(pages, result)
    _check_extents(pages, values, places, columns, result, progress)
    _note_orphans(pages, values, result)
    _note_dead_space(pages, mapping, report.free_pages, result)
    return result


def _reachable(pages: PageReader) -> Iterator[tuple[bytes, Value]]:
    """Yield the values that can still be found in a damaged tree."""
    with suppress(CorruptStoreError):
        for key in pages.keys_with(b""):
            with suppress(CorruptStoreError):
                value = pages.find(key)
                if value is not None:
                    yield key, value


_Place = tuple[str, int, int]
"""Column, file offset, nbytes; an empty row and the next one may share their offset."""

_Places = dict[_Place, tuple[str, int, tuple[int, ...]]]
"""place -> (sample, hash, shape), over all generations."""


def _check_generations(
    pages: PageReader, mapping: MappedFile, values: dict[bytes, Value], result: Verification
) -> _Places:
    places: _Places = {}
    indexes = {parse_numbered_key(INDEX_PREFIX, key) for key in values} - {None}
    for key in sorted(values):
        generation = parse_numbered_key(MANIFEST_PREFIX, key)
        if generation is None:
            continue
        indexes.discard(generation)
        try:
            manifest = read_manifest(pages, generation)
            index = read_index(pages, manifest)
            check_places(index, first=2 * pages.page_size, end=mapping.nbytes, where=pages.name)
            found = fingerprint(index)
        except OCRStoreError as exc:
            result.findings.append(Finding(str(exc)))
            continue
        result.generations.append(generation)
        result.samples = manifest.samples
        if found != manifest.fingerprint:
            result.findings.append(
                Finding(f"generation {generation}: its content does not match its fingerprint")
            )
        _collect(index, places)
    for orphan in indexes:
        result.findings.append(Finding(f"index {orphan} belongs to no manifest"))
    for key in values:
        if not key.startswith((INDEX_PREFIX, MANIFEST_PREFIX)) and parse_extent_key(key) is None:
            result.findings.append(Finding(f"an unknown record: {key!r}"))
    return places


def _collect(index: Index, places: _Places) -> None:
    keys = index.keys
    for name, rows in index.rows.items():
        lines = zip(
            keys,
            rows.offset.tolist(),
            rows.nbytes.tolist(),
            rows.hash.tolist(),
            map(tuple, rows.shape.tolist()),
        )
        for key, offset, nbytes, digest, shape in lines:
            places[name, offset, nbytes] = (key, digest, shape)


def _check_extents(
    pages: PageReader,
    values: dict[bytes, Value],
    places: _Places,
    columns: Mapping[str, Column],
    result: Verification,
    progress: Progress | None,
) -> None:
    """Check every extent and its rows; those of `columns` are decoded as well."""
    extents = [(key, place) for key in values if (place := parse_extent_key(key)) is not None]
    total = sum(values[key].nbytes for key, _ in extents)
    found: set[_Place] = set()
    for key, (group, name) in extents:
        value = values[key]
        where = f"column {name!r}, row group {group}"
        try:
            data = pages.view(value)
            extent = parse_extent(data, group=group, column=name, where=where)
        except OCRStoreError as exc:
            samples = _samples_in(places, name, value)
            result.findings.append(
                Finding(f"{exc} It holds samples {samples}.", sample=samples, column=name)
            )
            continue
        result.extents += 1
        found |= _check_rows(pages, value, extent, places, columns.get(name), result)
        _check_gaps(data, extent, where, result)
        result.checked_nbytes += value.nbytes
        if progress is not None:
            progress(result.checked_nbytes, total)
    for name, offset, nbytes in sorted(places.keys() - found):
        message = f"its row of {nbytes} bytes at byte {offset} is in no extent"
        sample = places[name, offset, nbytes][0]
        result.findings.append(Finding(message, sample=sample, column=name))


def _columns(pages: PageReader, result: Verification) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for generation in result.generations:
        columns.update(read_manifest(pages, generation).columns)
    return columns


def _check_rows(
    pages: PageReader,
    value: Value,
    extent: Extent,
    places: _Places,
    column: Column | None,
    result: Verification,
) -> set[_Place]:
    found: set[_Place] = set()
    data = pages.view(value)
    for start, nbytes, digest in extent.entries.tolist():
        row = data[start : start + nbytes]
        place = (extent.column, value.offset + start, nbytes)
        found.add(place)
        sample, said_digest, shape = places.get(place, (None, digest, None))
        result.rows += 1
        if digest != said_digest:
            why = "the index and the extent record different rows"
        elif xxhash.xxh3_64_intdigest(row) != digest:
            why = f"its {nbytes} bytes at byte {place[1]} do not match their hash"
        else:
            why = ""
            if column is not None and not column.is_raw and shape is not None:
                why = _why_undecodable(column, row, shape, result)
        if why:
            result.findings.append(Finding(why, sample=sample, column=extent.column))
    return found


def _why_undecodable(
    column: Column, row: memoryview, shape: tuple[int, ...], result: Verification
) -> str:
    """Return why a row does not decode to its shape; empty if it does, or cannot be tried here."""
    which = f"rows of more than {DEFAULT_MAX_ROW_NBYTES:,} bytes"
    if column.nbytes_of(shape) <= DEFAULT_MAX_ROW_NBYTES:
        try:
            decode_stored(column, row, shape, where="its row")
        except (CorruptStoreError, DecodeError, ImportError) as exc:
            missing = _missing_package(exc)
            if not missing:
                return str(exc)
            which = f"pictures that need {missing}, which is not installed,"
        else:
            return ""
    note = f"{which} were not decoded; they match their hashes"
    if note not in result.notes:
        result.notes.append(note)
    return ""


def _missing_package(exc: BaseException | None) -> str:
    """Return the package whose absence caused an error; empty if it has another cause."""
    while exc is not None and not isinstance(exc, ImportError):
        exc = exc.__cause__
    return "" if exc is None else exc.name or "a decoder"


def _check_gaps(data: memoryview, extent: Extent, where: str, result: Verification) -> None:
    """Check that the padding before, between and after the rows is zero."""
    bytes_ = np.frombuffer(data, np.uint8)
    starts = [*extent.entries["offset"].tolist(), len(data)]
    ends = [extent.start, *(extent.entries["offset"] + extent.entries["nbytes"]).tolist()]
    for gap_start, gap_end in zip(ends, starts):
        if bytes_[gap_start:gap_end].any():
            result.findings.append(
                Finding(f"{where}: padding from byte {gap_start} on is not zero")
            )


def _samples_in(places: _Places, column: str, value: Value) -> str:
    inside = [
        place[0]
        for (name, offset, _), place in places.items()
        if name == column and value.offset <= offset < value.offset + value.nbytes
    ]
    if not inside:
        return "none"
    return inside[0] if len(inside) == 1 else f"{inside[0]} to {inside[-1]}"


def _note_orphans(pages: PageReader, values: dict[bytes, Value], result: Verification) -> None:
    """Note extents that were committed but not published; they are checked like others."""
    if not result.generations:
        return
    groups = read_manifest(pages, result.generations[-1]).groups
    orphans = [key for key in values if (place := parse_extent_key(key)) and place[0] >= groups]
    if orphans:
        nbytes = sum(values[key].nbytes for key in orphans)
        result.notes.append(
            f"{len(orphans)} extents ({nbytes} bytes) are not published: a writer is at work, or "
            "was interrupted. The same command resumes them, any other writer frees them."
        )


def _note_dead_space(
    pages: PageReader, mapping: MappedFile, free_pages: int, result: Verification
) -> None:
    used = (pages.meta.last_page + 1) * pages.page_size
    tail = max(0, mapping.nbytes - used)
    result.dead_nbytes = free_pages * pages.page_size + tail
    if free_pages:
        result.notes.append(
            f"{free_pages} pages ({free_pages * pages.page_size} bytes) are free; later appends "
            "reuse them, `ocrstore compact` removes them."
        )
    if tail:
        result.notes.append(
            f"dead space behind the last page: {tail} byte{'' if tail == 1 else 's'} (a killed "
            "append, or something appended to the file); `ocrstore compact` removes it."
        )


# --- headers only ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Integrity:
    """The result of `check_headers`."""

    extents: int
    rows: int
    """Rows of the open generation that an extent's directory lists with the recorded hash."""
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing wrong was found."""
        return not self.findings


def check_headers(store: Store) -> Integrity:
    """Compare the headers of all extents with the index; no row is read.

    Reads one or a few pages for each extent. Damage inside a row is found by `verify` only. Of a
    store behind a URL no headers are here: each row is compared with the index when it is fetched.
    """
    from ocrstore.store_set import catalog_of, open_shard  # which imports the store

    catalog = catalog_of(store)
    if catalog is not None:
        each = []
        for shard in catalog.shards:
            with open_shard(catalog, shard) as opened:
                each.append((shard.name, check_headers(opened)))
        return Integrity(
            sum(found.extents for _, found in each),
            sum(found.rows for _, found in each),
            tuple(f"shard {name}: {line}" for name, found in each for line in found.findings),
        )
    if store.presence is not None:
        return Integrity(0, len(store) * len(store.columns), ())
    mapping = store.snapshot.mapping
    for _ in range(_ATTEMPTS):
        before = read_metas(mapping)
        result = _compare_headers(store, mapping)
        if result.ok or not has_changed(mapping, before):
            return result
        # a commit meanwhile may have reused tree pages that were being read; rows never move
        fresh = MappedFile(store.path)
        if (fresh.device, fresh.inode) == (mapping.device, mapping.inode):
            mapping = fresh
    return result


def _compare_headers(store: Store, mapping: MappedFile) -> Integrity:
    findings: list[str] = []
    listed: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in store.columns}
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
            findings.append(f"not an extent: {node.key!r}")
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
    """Return the tree nodes of all extents; damaged pages are findings."""
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


def _as_bytes(entries: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """View each entry as one opaque value, which `np.isin` can compare."""
    return np.ascontiguousarray(entries).view(np.dtype(("V", ENTRY.itemsize))).reshape(-1)
