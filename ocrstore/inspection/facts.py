"""Everything `ocrstore inspect` answers about a store, as one record; no payload is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ocrstore.format.resume import Unfinished, find_unfinished
from ocrstore.inspection.freshness import (
    Freshness,
    build_problems,
    check_freshness,
    source_record,
)
from ocrstore.inspection.measures import measure, view_boxes
from ocrstore.inspection.views import StoredView, views_of
from ocrstore.store import Store
from ocrstore.summary import Summary, summarize
from ocrstore.verification import Integrity, check_headers


@dataclass(frozen=True, slots=True)
class Polygons:
    """How many polygons there are, and what becomes of them."""

    total: int
    ignored: int
    """By the source."""
    too_small: Mapping[str, int]
    """By view: not ignored by the source, but under the recipe's limit there."""
    samples_without: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What a store is, where it came from, whether it is sound, and what it costs."""

    summary: Summary
    views: tuple[StoredView, ...]
    polygons: Polygons | None
    """None where the store has no polygons attribute."""
    source: Mapping[str, Any]
    """What the build recorded about its source."""
    decoders: Mapping[str, str]
    problems: Mapping[str, int]
    freshness: Freshness
    integrity: Integrity
    unfinished: Unfinished | None
    """What was begun and is not published; it is no part of the store yet."""

    def to_json(self) -> dict[str, Any]:
        """Describe everything in JSON terms."""
        return {
            **self.summary.to_json(),
            "nbytes_per_sample": (
                self.summary.live_nbytes / self.summary.samples if self.summary.samples else None
            ),
            "polygons": None if self.polygons is None else asdict(self.polygons),
            "views": [view.to_json() for view in self.views],
            "source": {**self.source, **self.freshness.to_json()},
            "decoders": dict(self.decoders),
            "problems": dict(self.problems),
            "integrity": {"ok": self.integrity.ok, **asdict(self.integrity)},
            "unfinished": None if self.unfinished is None else self.unfinished.to_json(),
        }


def gather_facts(store: Store, *, images: Path | None = None) -> Facts:
    """Gather the facts from manifest, index, extent headers and the source folder's listing."""
    views = views_of(store)
    build = store.metadata.get("build")
    decoders = build.get("decoders") if isinstance(build, Mapping) else None
    return Facts(
        summary=summarize(store),
        views=views,
        polygons=_count_polygons(store, views),
        source=source_record(store),
        decoders=decoders if isinstance(decoders, Mapping) else {},
        problems=build_problems(store)[0],
        freshness=check_freshness(store, images=images),
        integrity=check_headers(store),
        unfinished=find_unfinished(store.path),
    )


def _count_polygons(store: Store, views: tuple[StoredView, ...]) -> Polygons | None:
    if "polygons" not in store.snapshot.index.attributes.names:
        return None
    measures = measure(store)
    too_small: dict[str, int] = {}
    for view in views:
        if not {"prob_map", "thresh_map", "prob_mask", "thresh_mask"} & view.columns.keys():
            continue
        sizes = view_boxes(measures, view, store)
        if sizes is not None:
            small = (sizes < view.min_size).any(axis=1) & ~measures.ignored
            too_small[view.name] = int(small.sum())
    return Polygons(
        total=len(measures.owner),
        ignored=int(measures.ignored.sum()),
        too_small=too_small,
        samples_without=int(np.count_nonzero(measures.counts == 0)),
    )
