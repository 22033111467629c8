"""The contact sheet of a report: varied samples with their polygons and maps drawn over."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore.errors import CorruptStoreError, DecodeError, SchemaError
from ocrstore.evaluation.predictions import Scores
from ocrstore.inspection.polygon_stats import PolygonStats
from ocrstore.inspection.sample_facts import SampleFacts, picture_of, sample_facts
from ocrstore.report.charts import Markup, join, tag
from ocrstore.report.suspects import Suspect
from ocrstore.schema import COLUMNS, INVERSE_MATRIX, MAP
from ocrstore.store import Store
from ocrstore.views import StoredView

Matrix = npt.NDArray[np.float64]
_JPEG = [cv2.IMWRITE_JPEG_QUALITY, 78]
_PNG = [cv2.IMWRITE_PNG_COMPRESSION, 9]
SIDE = 640
"""Longest side of a picture on the sheet, in pixels."""
_FAR = 1e6


def choose_varied(stats: PolygonStats, count: int) -> list[int]:
    """Choose varied rows, in row order; deterministic for a store.

    Pictures are described by size, shape, number and heights of polygons, and share of ignored
    ones; each next choice is the one farthest from all before. A part of them are spread evenly,
    since the unusual alone would show a wrong picture of the store.
    """
    if count >= stats.samples:
        return list(range(stats.samples))
    if count <= 0:
        return []
    even = np.linspace(0, stats.samples - 1, max(1, count // 2)).astype(np.int64)
    chosen = dict.fromkeys(even.tolist())
    features = _features(stats)
    distance = np.full(stats.samples, np.inf)
    for row in chosen:
        distance = np.minimum(distance, ((features - features[row]) ** 2).sum(axis=1))
    while len(chosen) < count:
        distance[list(chosen)] = -1.0
        row = int(distance.argmax())
        chosen[row] = None
        distance = np.minimum(distance, ((features - features[row]) ** 2).sum(axis=1))
    return sorted(chosen)


def _features(stats: PolygonStats) -> npt.NDArray[np.float64]:
    heights = np.nan_to_num(stats.box_sizes.min(axis=1)) if stats.has_polygons else np.zeros(0)
    wide = np.maximum(stats.width, 1).astype(np.float64)
    high = np.maximum(stats.height, 1).astype(np.float64)
    some = np.maximum(stats.counts, 1)
    total = np.bincount(stats.owner, heights, minlength=stats.samples)
    ignored = np.bincount(stats.owner, stats.ignored, minlength=stats.samples)
    columns = np.stack(
        [
            np.log2(wide * high),
            np.log2(wide / high),
            np.log2(1 + stats.counts),
            np.log2(1 + np.maximum(total, 0) / some),
            ignored / some,
            (stats.source_orientation != 1).astype(np.float64),
        ],
        axis=1,
    )
    spread = columns.std(axis=0)
    return np.asarray((columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A shrunk picture with its maps in the same frame."""

    uri: str
    width: int
    """Of the frame that polygons are drawn in: the upright picture, or the view."""
    height: int
    overlays: Mapping[str, str] = field(default_factory=dict)
    """Data URIs of prob_map and thresh_map, where the store has them."""
    to_frame: Matrix = field(default_factory=lambda: np.eye(3))
    """3x3: from the upright picture, in which polygons are given, to the frame."""


def contact_sheet(
    store: Store,
    rows: Sequence[int],
    view: StoredView | None,
    suspects: dict[int, Suspect],
    scores: Scores | None = None,
) -> Markup:
    """Draw the chosen samples; a note if the store has no picture column."""
    cards = []
    names: set[str] = set()
    has_polygons = "polygons" in store.snapshot.index.attributes.names
    for place, row in enumerate(rows):
        try:
            thumbnail = make_thumbnail(store, row, side=SIDE, view=view)
        except (CorruptStoreError, DecodeError, SchemaError) as exc:
            cards.append(_damaged(store.keys[row], row, str(exc)))
            continue
        if thumbnail is None:
            continue
        names |= set(thumbnail.overlays)
        facts = sample_facts(store, store.keys[row])
        before, after = rows[place - 1], rows[(place + 1) % len(rows)]
        cards.append(_card(facts, thumbnail, suspects.get(row), before, after, scores))
    if not cards:
        return tag("p", "The store has no column of pictures to show.", class_="note")
    shown = tag("div", *cards, class_="cards")
    toolbar = _toolbar(names, polygons=has_polygons, predictions=scores is not None)
    return join([toolbar, shown])


def outlines(
    facts: SampleFacts, thumbnail: Thumbnail, scores: Scores | None = None
) -> Markup | None:
    """Draw a sample's polygons, and boxes that a detector found, over its thumbnail."""
    drawn = [
        _polygon(points, "ignored" if ignored else "counted", text, thumbnail)
        for points, ignored, text in zip(*(facts.annotation or ([], [], []))[:3], strict=True)
    ]
    for found in () if scores is None else scores.boxes(facts.row):
        score = None if found.score is None else f"{found.score:.2f}"
        drawn.append(_polygon(found.points, "found", score, thumbnail))
    if not drawn:
        return None
    box = f"0 0 {thumbnail.width} {thumbnail.height}"
    return tag("svg", *drawn, viewBox=box, preserveAspectRatio="none", class_="marks")


def _toolbar(names: set[str], *, polygons: bool, predictions: bool) -> Markup:
    boxes = []
    if polygons:
        boxes.append(_toggle("polygons", "polygons", "counted", checked=True))
        boxes.append(_toggle("ignored", "ignored", "ignored", checked=True))
    if predictions:
        boxes.append(_toggle("found", "predictions", "found", checked=True))
    for name, words in (("prob_map", "probability"), ("thresh_map", "threshold")):
        if name in names:
            boxes.append(_toggle(name, words, name))
    return tag("div", *boxes, class_="toolbar")


def _toggle(name: str, words: str, colour: str, *, checked: bool = False) -> Markup:
    box = tag("input", type="checkbox", id=f"show-{name}", checked="" if checked else None)
    return tag("label", box, tag("i", class_=f"swatch {colour}"), words, class_="toggle")


def _card(
    facts: SampleFacts,
    thumbnail: Thumbnail,
    suspect: Suspect | None,
    before: int,
    after: int,
    scores: Scores | None,
) -> Markup:
    name = f"s{facts.row}"
    frame = tag(
        "a",
        tag("img", src=thumbnail.uri, alt=facts.key, loading="lazy"),
        *(
            tag("img", src=uri, alt="", class_=f"over {kind}")
            for kind, uri in thumbnail.overlays.items()
        ),
        outlines(facts, thumbnail, scores),
        href=f"#{name}",
        class_="frame",
        style=f"--ratio:{thumbnail.width / thumbnail.height:.4f}",
    )
    words = [f"{thumbnail.width} x {thumbnail.height}"]
    if facts.annotation is not None:
        count, ignored = len(facts.annotation.polygons), sum(facts.annotation.ignored)
        words.append(f"{count} polygon{'' if count == 1 else 's'}")
        if ignored:
            words.append(f"{ignored} ignored")
    if scores is not None:
        words.append(f"H-mean {scores.numbers['hmean'][facts.row]:.3f}")
    caption = tag(
        "figcaption",
        tag("b", tag("bdi", facts.key)),
        tag("span", " · ".join(words)),
        tag("span", "; ".join(suspect.reasons), class_="odd") if suspect else None,
    )
    steps = tag(
        "nav",
        tag("a", "← before", href=f"#s{before}"),
        tag("a", "close", href="#sheet"),
        tag("a", "next →", href=f"#s{after}"),
    )
    return tag("figure", frame, caption, steps, id=name, class_="card")


def _damaged(key: str, row: int, why: str) -> Markup:
    """Show the reason in place of a picture that cannot be read."""
    words = tag("span", f"cannot be shown: {why}", class_="odd")
    caption = tag("figcaption", tag("b", tag("bdi", key)), words)
    return tag("figure", caption, id=f"s{row}", class_="card")


def _polygon(
    points: npt.NDArray[np.floating], kind: str, text: str | None, thumbnail: Thumbnail
) -> Markup | None:
    moved = np.c_[points, np.ones(len(points))] @ thumbnail.to_frame.T
    with np.errstate(all="ignore"):
        placed = moved[:, :2] / moved[:, 2:]
    if not len(placed) or not np.isfinite(placed).all() or np.abs(placed).max() > _FAR:
        return None
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed.tolist())
    title = tag("title", text) if text else None
    return tag("polygon", title, points=corners, class_=kind)


def make_thumbnail(
    store: Store, row: int, *, side: int, view: StoredView | None = None
) -> Thumbnail | None:
    """Make a picture of at most `side` pixels, with the maps of a view if one is given."""
    found = picture_of(store, row)
    if found is None:
        return None
    height, width = found.pixels.shape[:2]
    scale = min(1.0, side / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small = np.asarray(cv2.resize(found.pixels, size, interpolation=cv2.INTER_AREA), np.uint8)
    overlays: dict[str, str] = {}
    if view is not None:
        # maps are smooth: half the size is enough
        half = max(1, size[0] // 2), max(1, size[1] // 2)
        place = np.diag((half[0] / width, half[1] / height, 1.0))
        overlays = _overlays(store, row, view, found.to_pixels, place, half)
    return Thumbnail(
        _uri("image/jpeg", ".jpg", np.ascontiguousarray(small[..., ::-1]), _JPEG),
        width,
        height,
        overlays,
        found.to_pixels,
    )


def _overlays(
    store: Store,
    row: int,
    view: StoredView,
    to_pixels: Matrix,
    place: Matrix,
    size: tuple[int, int],
) -> dict[str, str]:
    inverse = view.columns.get(INVERSE_MATRIX)
    if inverse not in store.columns:
        return {}
    back = np.asarray(store[str(inverse)][row], np.float64)  # view -> upright picture
    matrix = place @ to_pixels @ back
    lowest = view.maps["thresh_min"]
    overlays: dict[str, str] = {}
    for name, built_in in COLUMNS.items():
        column = view.columns.get(name)
        if built_in.role != MAP or column not in store.columns:
            continue
        values = np.asarray(store[str(column)][row], np.float32)
        if name == "thresh_map":
            values = (values - lowest) / max(1e-6, 1.0 - lowest) * 1.4
        shrink = np.hypot(matrix[0, 0], matrix[1, 0])
        if 0 < shrink < 1:  # warping does not average: without a blur there would be aliasing
            values = np.asarray(cv2.GaussianBlur(values, (0, 0), 0.5 / shrink), np.float32)
        moved = cv2.warpPerspective(values, matrix, size, flags=cv2.INTER_LINEAR)
        picture = np.empty((size[1], size[0], 4), np.uint8)
        picture[..., :3] = built_in.colour[::-1]
        # sixteen steps are plenty for an overlay, and compress well
        picture[..., 3] = (np.clip(moved, 0, 1) * 12).astype(np.uint8) * 17
        overlays[name] = _uri("image/png", ".png", picture, _PNG)
    return overlays


def _uri(kind: str, suffix: str, pixels: npt.NDArray[np.uint8], params: list[int]) -> str:
    done, data = cv2.imencode(suffix, pixels, params)
    assert done  # a picture of at least one pixel, in memory
    return f"data:{kind};base64,{base64.b64encode(data.tobytes()).decode()}"
