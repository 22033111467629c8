"""The contact sheet: pictures with their polygons drawn, maps laid over, toggled by CSS alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ocrstore.errors import CorruptStoreError, DecodeError
from ocrstore.inspection.sample import SampleFacts, sample_facts
from ocrstore.inspection.views import StoredView
from ocrstore.report.markup import Markup, join, tag
from ocrstore.report.suspects import Suspect
from ocrstore.report.thumbnails import Thumbnail, make_thumbnail
from ocrstore.store import Store

SIDE = 640
"""Longest side of a picture on the sheet, in pixels."""
_FAR = 1e6


def contact_sheet(
    store: Store,
    rows: Sequence[int],
    view: StoredView | None,
    suspects: dict[int, Suspect],
) -> Markup:
    """Draw the chosen samples; empty where the store has no picture column."""
    cards = []
    names: set[str] = set()
    has_polygons = "polygons" in store.snapshot.index.attributes.names
    for place, row in enumerate(rows):
        try:
            thumbnail = make_thumbnail(store, row, side=SIDE, view=view)
        except (CorruptStoreError, DecodeError) as exc:
            cards.append(_damaged(store.keys[row], row, str(exc)))
            continue
        if thumbnail is None:
            continue
        names |= set(thumbnail.overlays)
        facts = sample_facts(store, store.keys[row])
        before, after = rows[place - 1], rows[(place + 1) % len(rows)]
        cards.append(_card(facts, thumbnail, suspects.get(row), before, after))
    if not cards:
        return tag("p", "The store has no column of pictures to show.", class_="note")
    shown = tag("div", *cards, class_="cards")
    return join([_toolbar(names, polygons=has_polygons), shown])


def outlines(facts: SampleFacts, thumbnail: Thumbnail) -> Markup | None:
    """Draw a sample's polygons over its thumbnail."""
    drawn = [
        _polygon(points, ignored, text, thumbnail)
        for points, ignored, text in zip(facts.polygons, facts.ignored, facts.texts)
    ]
    if not drawn:
        return None
    box = f"0 0 {thumbnail.width} {thumbnail.height}"
    return tag("svg", *drawn, viewBox=box, preserveAspectRatio="none", class_="marks")


def _toolbar(names: set[str], *, polygons: bool) -> Markup:
    boxes = []
    if polygons:
        boxes.append(_toggle("polygons", "polygons", "counted", checked=True))
        boxes.append(_toggle("ignored", "ignored", "ignored", checked=True))
    if "prob_map" in names:
        boxes.append(_toggle("prob", "probability", "prob"))
    if "thresh_map" in names:
        boxes.append(_toggle("thresh", "threshold", "thresh"))
    return tag("div", *boxes, class_="toolbar")


def _toggle(name: str, words: str, colour: str, *, checked: bool = False) -> Markup:
    box = tag("input", type="checkbox", id=f"show-{name}", checked="" if checked else None)
    return tag("label", box, tag("i", class_=f"swatch {colour}"), words, class_="toggle")


def _card(
    facts: SampleFacts, thumbnail: Thumbnail, suspect: Suspect | None, before: int, after: int
) -> Markup:
    name = f"s{facts.row}"
    frame = tag(
        "a",
        tag("img", src=thumbnail.uri, alt=facts.key, loading="lazy"),
        *(
            tag("img", src=uri, alt="", class_=f"over {kind.removesuffix('_map')}")
            for kind, uri in thumbnail.overlays.items()
        ),
        outlines(facts, thumbnail),
        href=f"#{name}",
        class_="frame",
        style=f"--ratio:{thumbnail.width / thumbnail.height:.4f}",
    )
    count, ignored = len(facts.polygons), sum(facts.ignored)
    words = [f"{thumbnail.width} x {thumbnail.height}"]
    if isinstance(facts.attributes.get("polygons"), list):
        words.append(f"{count} polygon{'' if count == 1 else 's'}")
        if ignored:
            words.append(f"{ignored} ignored")
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
    """Say in place of a picture why there is none; a report is for finding such things."""
    words = tag("span", f"cannot be shown: {why}", class_="odd")
    caption = tag("figcaption", tag("b", tag("bdi", key)), words)
    return tag("figure", caption, id=f"s{row}", class_="card")


def _polygon(
    points: npt.NDArray[np.float64], ignored: bool, text: str | None, thumbnail: Thumbnail
) -> Markup | None:
    moved = np.c_[points, np.ones(len(points))] @ thumbnail.to_frame.T
    with np.errstate(all="ignore"):
        placed = moved[:, :2] / moved[:, 2:]
    if not len(placed) or not np.isfinite(placed).all() or np.abs(placed).max() > _FAR:
        return None
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed.tolist())
    title = tag("title", text) if text else None
    return tag("polygon", title, points=corners, class_="ignored" if ignored else "counted")
