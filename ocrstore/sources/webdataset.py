"""WebDataset: in a tar, `KEY.json` beside `KEY.jpg`; polygons, COCO-like boxes, or a list of words.

`ocrstore export --to webdataset` writes the first form, with the sample's own key: WebDataset's
keys end at the first dot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ocrstore.sources.annotation_file import AnnotationFile, Flaw, UnusableAnnotationError
from ocrstore.sources.dialect import Dialect, Entry, Region, register
from ocrstore.sources.validate import box_region_points
from ocrstore.sources.words import tagged_ignored

_LISTS = ("annotations", "objects", "boxes", "words")
_TEXTS = ("text", "utf8_string", "transcription", "label", "word")
_POINTS = ("polygon", "points", "segmentation", "quad", "poly")
_IGNORED = ("ignore", "ignored", "iscrowd", "difficult", "illegibility")


@register
class WebDataset(Dialect):
    """One JSON object for each picture."""

    name = "webdataset"
    looks_for = 'KEY.json beside KEY.jpg: {"polygons": [...], "texts": [...]}, or a list of boxes'
    per_picture = True

    def recognise(self, file: AnnotationFile) -> bool:
        """Return whether it is an object with polygons, or with a list of boxes."""
        record = file.document()
        if "shapes" in record or "images" in record:  # LabelMe, COCO
            return False
        if isinstance(record.get("polygons"), list):
            return True
        rows = _rows(record)
        return bool(rows) and isinstance(rows[0], dict) and _has_place(rows[0])

    def key(self, entry: Entry) -> str | None:
        """Return the sample's own key, which the export wrote."""
        record = _record(entry)
        given = record.get("key")
        return given if isinstance(given, str) and given else None

    def regions(self, entry: Entry) -> Iterable[Region | Flaw]:
        """Yield the polygons, or the boxes as four points."""
        record = _record(entry)
        if record.get("annotated") is False:
            raise UnusableAnnotationError("no-annotation", f"{entry.where}: not annotated")
        polygons = record.get("polygons")
        if isinstance(polygons, list):
            parts = [
                _list(record, name, len(polygons), entry.where)
                for name in ("texts", "ignored", "languages")
            ]
            for points, text, ignored, language in zip(polygons, *parts, strict=True):
                yield Region(points, text, ignored, language)
            return
        for at, row in enumerate(_rows(record)):
            place = _place(row) if isinstance(row, dict) else None
            if place is None:
                yield Flaw("missing-key", f"{entry.where}: a box without points or bbox")
            elif isinstance(place, str):
                yield Flaw("bad-box", f"{entry.where}, region {at}: {place}; left out")
            else:
                text = next((row[name] for name in _TEXTS if name in row), None)
                ignored = next((row[name] for name in _IGNORED if name in row), False)
                ignored = True if tagged_ignored(row) else ignored
                yield Region(place, text, ignored, row.get("language"))


def _record(entry: Entry) -> Mapping[str, Any]:
    assert isinstance(entry.record, AnnotationFile)
    value, _ = entry.record.json()
    if not isinstance(value, dict):
        raise UnusableAnnotationError("bad-structure", f"{entry.where}: expected a JSON object")
    return value


def _rows(record: Mapping[str, Any]) -> list[Any]:
    found = (record[name] for name in _LISTS if isinstance(record.get(name), list))
    return next(found, [])


def _list(record: Mapping[str, Any], name: str, count: int, where: str) -> list[Any]:
    given = record.get(name)
    if not isinstance(given, list):
        return [None] * count
    if len(given) != count:
        message = f"{where}: {count} polygons, but {len(given)} {name}"
        raise UnusableAnnotationError("bad-structure", message)
    return given


def _has_place(row: Mapping[str, Any]) -> bool:
    """Return whether a box looks like one of this dialect: with points, or four numbers."""
    box = row.get("bbox", row.get("box"))
    return isinstance(_place(row), list) or (
        isinstance(box, list) and len(box) == 4 and all(isinstance(v, int | float) for v in box)
    )


def _place(row: Mapping[str, Any]) -> list[Any] | str | None:
    """Return the points of a box, or what is wrong with it; None if it has none."""
    for name in _POINTS:
        points = row.get(name)
        if isinstance(points, list) and points:
            # COCO has a list of outlines
            nested = isinstance(points[0], list) and len(points[0]) > 2
            return points[0] if nested else points
    box = row.get("bbox", row.get("box"))
    return None if box is None else box_region_points(box, sides=True)
