"""Gather what `ocrstore inspect` shows about a store; no payload is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ocrstore.annotation import AnnotationReader, Turned
from ocrstore.catalog import Shard
from ocrstore.format.columns import Column
from ocrstore.format.resume import Unfinished, find_unfinished
from ocrstore.inspection.polygon_stats import measure_polygons, view_boxes
from ocrstore.inspection.source_status import (
    SourceStatus,
    build_problems,
    check_source_status,
)
from ocrstore.metadata import readable_build
from ocrstore.store import Store
from ocrstore.store_set import catalog_of
from ocrstore.verification import Integrity, check_headers
from ocrstore.views import StoredView, ViewBound, readable_views, recorded_bounds


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """Type, shape and size of one column."""

    name: str
    spec: Column
    stored_nbytes: int
    decoded_nbytes: int
    min_shape: tuple[int, ...]
    max_shape: tuple[int, ...]

    @property
    def ratio(self) -> float | None:
        """Decoded bytes for each stored one; None if there are none."""
        return self.decoded_nbytes / self.stored_nbytes if self.stored_nbytes else None

    @property
    def is_view(self) -> bool:
        """Whether its arrays are views of the file: no copy, nothing to decode."""
        return self.spec.is_raw


@dataclass(frozen=True, slots=True)
class Summary:
    """Sizes, columns and history of one generation of a store."""

    path: str
    nbytes: int
    format_version: str
    generation: int
    generations: tuple[int, ...]
    samples: int
    fingerprint: str
    columns: tuple[ColumnSummary, ...]
    attributes: dict[str, str]
    history: tuple[dict[str, Any], ...]
    resident_nbytes: int | None
    """Bytes in the page cache; None where the system has no call for it."""
    shards: tuple[Shard, ...] = ()
    """The stores of a data set of many."""

    @property
    def live_nbytes(self) -> int:
        """Return the bytes of the rows of this generation."""
        return sum(column.stored_nbytes for column in self.columns)

    def to_json(self) -> dict[str, Any]:
        """Return everything in JSON types."""
        return {
            "path": self.path,
            "nbytes": self.nbytes,
            "format": self.format_version,
            "generation": self.generation,
            "generations": list(self.generations),
            "samples": self.samples,
            "fingerprint": self.fingerprint,
            "columns": [
                {
                    "name": column.name,
                    **column.spec.to_json(),
                    "stored_nbytes": column.stored_nbytes,
                    "decoded_nbytes": column.decoded_nbytes,
                    "ratio": column.ratio,
                    "zero_copy": column.is_view,
                    "min_shape": list(column.min_shape),
                    "max_shape": list(column.max_shape),
                }
                for column in self.columns
            ],
            "attributes": self.attributes,
            "history": list(self.history),
            "live_nbytes": self.live_nbytes,
            "resident_nbytes": self.resident_nbytes,
            "shards": [shard._asdict() for shard in self.shards],
        }


@dataclass(frozen=True, slots=True)
class Polygons:
    """Numbers of polygons: in all, ignored, too small."""

    total: int
    ignored: int
    """Marked as ignored in the source."""
    too_small: Mapping[str, int]
    """View -> polygons that count in the source but are smaller than the recipe's limit."""
    samples_without: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Content, origin, integrity and size of a store."""

    summary: Summary
    views: tuple[StoredView, ...]
    polygons: Polygons | None
    """None if the store has no polygons attribute."""
    turned: Mapping[str, Turned]
    """Key -> what was done to the polygons of a picture with an EXIF rotation."""
    unreadable: tuple[str, ...]
    """What of the metadata is not as a build writes it, and was passed over."""
    bounds: Mapping[str, ViewBound]
    """View -> the accuracy it allows, as the build measured it."""
    source: Mapping[str, Any]
    """What the build recorded about its source."""
    decoders: Mapping[str, str]
    problems: Mapping[str, int]
    source_status: SourceStatus | None
    """None if the source was not checked."""
    integrity: Integrity
    unfinished: Unfinished | None
    """An interrupted or running write that is not published yet."""

    def to_json(self) -> dict[str, Any]:
        """Return everything in JSON types."""
        return {
            **self.summary.to_json(),
            "nbytes_per_sample": (
                self.summary.live_nbytes / self.summary.samples if self.summary.samples else None
            ),
            "polygons": None if self.polygons is None else asdict(self.polygons),
            "turned": {key: turned._asdict() for key, turned in self.turned.items()},
            "upper_bounds": {name: asdict(bound) for name, bound in self.bounds.items()},
            "views": [view.to_json() for view in self.views],
            "unreadable": list(self.unreadable),
            "source": {
                **self.source,
                **(asdict(self.source_status) if self.source_status else {}),
            },
            "decoders": dict(self.decoders),
            "problems": dict(self.problems),
            "integrity": {"ok": self.integrity.ok, **asdict(self.integrity)},
            "unfinished": None if self.unfinished is None else self.unfinished.to_json(),
        }


def gather_facts(store: Store, *, source: Path | None = None, check_source: bool = True) -> Facts:
    """Gather the facts from manifest, index, extent headers and the source's files.

    Args:
        source: the folder of pictures, to be listed; see `check_source_status`.
        check_source: whether to look at the source at all.
    """
    views, no_views = readable_views(store)
    build, no_build = readable_build(store)
    return Facts(
        summary=summarize(store),
        views=views,
        polygons=_count_polygons(store, views),
        turned=turned_pictures(store),
        unreadable=tuple(reason for reason in (no_views, no_build) if reason),
        bounds=recorded_bounds(store.metadata),
        source=build.get("source", {}),
        decoders=build.get("decoders", {}),
        problems=build_problems(store)[0],
        source_status=check_source_status(store, source=source) if check_source else None,
        integrity=check_headers(store),
        unfinished=find_unfinished(store.path),
    )


def turned_pictures(store: Store) -> dict[str, Turned]:
    """Return the samples whose source had an EXIF rotation, by key."""
    found = AnnotationReader(store, strict=False).turned()
    return {store.keys[turned.row]: turned for turned in found}


def _count_polygons(store: Store, views: tuple[StoredView, ...]) -> Polygons | None:
    if "polygons" not in store.snapshot.index.attributes.names:
        return None
    stats = measure_polygons(store)
    too_small: dict[str, int] = {}
    for view in views:
        if not view.has_maps:
            continue
        sizes = view_boxes(stats, view, store)
        if sizes is not None:
            small = (sizes < view.maps["min_size"]).any(axis=1) & ~stats.ignored
            too_small[view.name] = int(small.sum())
    return Polygons(
        total=len(stats.owner),
        ignored=int(stats.ignored.sum()),
        too_small=too_small,
        samples_without=int(np.count_nonzero(stats.counts == 0)),
    )


def summarize(store: Store) -> Summary:
    """Summarize the generation that is open."""
    snapshot = store.snapshot
    manifest = snapshot.manifest
    catalog = catalog_of(store)
    return Summary(
        path=str(store.path) if store.presence is None else store.presence.url,
        nbytes=snapshot.mapping.nbytes,
        format_version=".".join(map(str, manifest.version)),
        generation=store.generation,
        generations=tuple(store.generations),
        samples=len(store),
        fingerprint=store.fingerprint,
        columns=tuple(_summarize_column(store, name) for name in store.columns),
        attributes={field.name: str(field.type) for field in store.attribute_fields},
        history=tuple(dict(entry) for entry in store.history),
        resident_nbytes=snapshot.mapping.resident_nbytes(),
        shards=() if catalog is None else catalog.shards,
    )


def _summarize_column(store: Store, name: str) -> ColumnSummary:
    column = store[name]
    shapes = column.shapes.astype(np.int64)
    decoded = int(shapes.prod(axis=1).sum()) * column.spec.numpy_dtype.itemsize
    ends = (shapes.min(axis=0), shapes.max(axis=0)) if len(shapes) else ((), ())
    return ColumnSummary(
        name,
        column.spec,
        int(column.nbytes.sum()),
        decoded,
        tuple(int(size) for size in ends[0]),
        tuple(int(size) for size in ends[1]),
    )
