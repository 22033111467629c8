"""Assemble the sections of a report into one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocrstore.annotation import Turned
from ocrstore.errors import CorruptStoreError, DecodeError, SchemaError
from ocrstore.inspection.facts import Facts
from ocrstore.inspection.sample_facts import sample_facts
from ocrstore.problems import KINDS
from ocrstore.report.charts import Markup, join, percent, tag
from ocrstore.report.contact_sheet import make_thumbnail, outlines
from ocrstore.report.distributions import Distribution
from ocrstore.report.suspects import KINDS as SUSPICIONS
from ocrstore.report.suspects import Suspect, count_kinds
from ocrstore.store import Store
from ocrstore.version import __version__
from ocrstore.views import recipe_in_words

_PROBLEMS_SHOWN = 100
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(title: str, sections: Sequence[tuple[str, str, Markup]], lead: Markup) -> str:
    """Return a whole HTML document of sections (name, heading, content)."""
    style = Path(__file__).with_name("style.css").read_text("utf-8")
    links = [tag("a", heading, href=f"#{name}") for name, heading, _ in sections]
    head = join(
        [
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            # the browser refuses to load anything from outside of this file
            tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            tag("meta", name="generator", content=f"ocrstore {__version__}"),
            tag("title", title),
            tag("style", Markup(style)),
        ]
    )
    body = join(
        [
            lead,
            tag("nav", *links, class_="contents"),
            *(
                tag("section", tag("h2", heading), content, id=name)
                for name, heading, content in sections
            ),
            tag("footer", f"Made by ocrstore {__version__}."),
        ]
    )
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def lead_in(facts: Facts) -> Markup:
    """Return the header: figures and origin of the store."""
    summary = facts.summary
    tiles = [_tile(f"{summary.samples:,}", "samples")]
    if facts.polygons is not None:
        polygons = facts.polygons
        tiles.append(_tile(f"{polygons.total:,}", "polygons"))
        tiles.append(_tile(percent(polygons.ignored, polygons.total), "ignored by the source"))
        for view in facts.views[:1]:
            if view.name in polygons.too_small:
                count = polygons.too_small[view.name]
                tiles.append(_tile(f"{count:,}", f"more under {view.maps['min_size']:g} px"))
            if view.name in facts.bounds:
                hmean = facts.bounds[view.name].hmean
                tiles.append(_tile(f"{hmean:.3f}", "H-mean with perfect maps"))
    tiles.append(_tile(_bytes(summary.nbytes), "in the file"))
    if summary.samples:
        tiles.append(_tile(_bytes(summary.live_nbytes / summary.samples), "per sample"))
    return tag(
        "header",
        tag("h1", tag("bdi", Path(summary.path).name)),
        tag("div", *tiles, class_="tiles"),
        _about(facts),
    )


def suspects_section(store: Store, suspects: Sequence[Suspect], *, shown: int) -> Markup:
    """List the suspicious samples, the first ones with pictures."""
    if not suspects:
        return tag("p", "Nothing suspicious was found.", class_="note good")
    counts = count_kinds(list(suspects))
    kinds = [
        tag("li", tag("b", f"{count:,}"), tag("span", SUSPICIONS[kind]))
        for kind, count in counts.items()
    ]
    listed = [(suspect.row, suspect.reasons) for suspect in suspects]
    return join([tag("ul", *kinds, class_="kinds"), _thumbnails(store, listed, shown=shown)])


def turned_section(store: Store, turned: Sequence[Turned], *, shown: int) -> Markup:
    """List the pictures with an EXIF rotation: a wrong frame is seen at once, and only by eye."""
    listed = []
    for one in turned:
        reason = one.reason if one.frame else f"EXIF orientation {one.source_orientation}"
        listed.append((one.row, [reason]))
    return _thumbnails(store, listed, shown=shown)


def _thumbnails(
    store: Store, samples: Sequence[tuple[int, Sequence[str]]], *, shown: int
) -> Markup:
    """List rows with their polygons drawn over and some lines of text."""
    rows = []
    for place, (row, reasons) in enumerate(samples[:shown], start=1):
        key = store.keys[row]
        try:
            thumbnail = make_thumbnail(store, row, side=240)
        except (CorruptStoreError, DecodeError, SchemaError):
            thumbnail = None  # the sheet, or `verify`, says why
        picture: Markup | str = ""
        if thumbnail is not None:
            picture = tag(
                "span",
                tag("img", src=thumbnail.uri, alt="", loading="lazy"),
                outlines(sample_facts(store, key), thumbnail),
                class_="frame",
                style=f"--ratio:{thumbnail.width / thumbnail.height:.4f}",
            )
        words = tag("div", tag("b", tag("bdi", key)), *(tag("span", reason) for reason in reasons))
        rows.append(tag("li", tag("i", str(place)), picture, words))
    more = len(samples) - len(rows)
    return join(
        [
            tag("ol", *rows, class_="suspects"),
            tag("p", f"… and {more:,} more.", class_="note") if more > 0 else None,
        ]
    )


def distributions_section(found: Sequence[Distribution]) -> Markup:
    """Arrange the charts."""
    if not found:
        return tag("p", "The index has neither sizes nor polygons.", class_="note")
    return tag(
        "div",
        *(tag("article", tag("h3", one.title), tag("p", one.sentence), one.chart) for one in found),
        class_="charts",
    )


def problems_section(
    counts: Mapping[str, int], first: Sequence[Mapping[str, Any]], *, recorded: bool
) -> Markup:
    """List what the build reported, by kind."""
    if not counts:
        text = "The build reported no problem." if recorded else "No build is recorded."
        return tag("p", text, class_="note good" if recorded else "note")
    parts = []
    for kind, count in sorted(counts.items(), key=lambda item: -item[1]):
        known = KINDS.get(kind)
        mark = "lost" if known is None or known.loses else "noted"
        lines = [problem for problem in first if problem.get("kind") == kind]
        items = [
            tag(
                "li",
                tag("b", tag("bdi", line["key"])) if line.get("key") else None,
                " ",
                tag("bdi", line.get("message", "")),
            )
            for line in lines[:_PROBLEMS_SHOWN]
        ]
        left = count - len(items)
        if left > 0:
            items.append(tag("li", f"… and {left:,} more."))
        summary = tag(
            "summary",
            tag("b", f"{count:,}"),
            tag("code", kind),
            tag("span", known.meaning if known else ""),
            tag("em", "left out" if mark == "lost" else "good to know", class_=mark),
        )
        parts.append(tag("details", summary, tag("ul", *items)))
    return tag("div", *parts, class_="problems")


def columns_section(facts: Facts) -> Markup:
    """Write the table of columns and their sizes."""
    head = tag("tr", *(tag("th", name) for name in ("column", "type", "shape", "codec", "bytes")))
    rows = []
    for column in facts.summary.columns:
        sizes = zip(column.min_shape, column.max_shape)
        shape = " x ".join(str(a) if a == b else f"{a}…{b}" for a, b in sizes)
        cells = (column.name, column.spec.dtype, shape, column.spec.codec)
        rows.append(
            tag(
                "tr",
                *(tag("td", cell) for cell in cells),
                tag("td", _bytes(column.stored_nbytes), class_="number"),
            )
        )
    return tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="wide")


def _about(facts: Facts) -> Markup:
    lines: list[tuple[str, str | Markup]] = []
    for entry in facts.summary.history[-1:]:
        at = str(entry.get("at")).replace("T", " ").replace("Z", " UTC")
        lines.append(("written", f"{at} by {entry.get('by')}"))
    if facts.source.get("description"):
        lines.append(("source", str(facts.source["description"])))
    for view in facts.views:
        lines.append((f"view {view.name}", " ".join(recipe_in_words(view.recipe_json))))
        lines.append(("recipe", tag("code", view.fingerprint)))
        bound = facts.bounds.get(view.name)
        if bound is not None:
            lines.append(("upper bound", bound.in_words()))
        if bound is not None and bound.warning():
            lines.append(("warning", bound.warning()))
    lines += [("not read", reason) for reason in facts.unreadable]
    lines.append(("content", tag("code", facts.summary.fingerprint[:32] + "…")))
    sound = (
        "headers are sound (a quick check)"
        if facts.integrity.ok
        else f"damaged: {facts.integrity.findings[0]}"
    )
    lines.append(("integrity", sound))
    return tag("dl", *(join([tag("dt", name), tag("dd", text)]) for name, text in lines))


def _tile(figure: str, words: str) -> Markup:
    return tag("div", tag("b", figure), tag("span", words))


def _bytes(nbytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2f} TB"
