"""WebDataset: in a tar, `KEY.json` beside `KEY.jpg`; polygons, COCO-like boxes, or a list of words.

`ocrstore export --to webdataset` writes the first form, with the sample's own key: WebDataset's
keys end at the first dot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ocrstore.sources.annotation_file import AnnotationFile, Flaw, UnusableAnnotationError
from ocrstore.sources.dialect import Dialect, Entry, Region, register

_LISTS = ("annotations", "objects", "boxes", "words")
_TEXTS = ("text", "utf8_string", "transcription", "label", "word")
_POINTS = ("polygon", "points", "segmentation", "quad", "poly")
_IGNORED = ("ignore", "ignored", "iscrowd", "difficult")


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
        return bool(rows) and isinstance(rows[0], dict) and _place(rows[0]) is not None

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
                _list(record, name, len(polygons)) for name in ("texts", "ignored", "languages")
            ]
            for points, text, ignored, language in zip(polygons, *parts, strict=True):
                yield Region(points, text, ignored, language)
            return
        for row in _rows(record):
            if not isinstance(row, dict) or _place(row) is None:
                yield Flaw("missing-key", f"{entry.where}: a box without points or bbox")
                continue
            text = next((row[name] for name in _TEXTS if name in row), None)
            ignored = next((row[name] for name in _IGNORED if name in row), False)
            yield Region(_place(row), text, bool(ignored), row.get("language"))


def _record(entry: Entry) -> Mapping[str, Any]:
    assert isinstance(entry.record, AnnotationFile)
    value, _ = entry.record.json()
    if not isinstance(value, dict):
        raise UnusableAnnotationError("bad-structure", f"{entry.where}: expected a JSON object")
    return value


def _rows(record: Mapping[str, Any]) -> list[Any]:
    found = (record[name] for name in _LISTS if isinstance(record.get(name), list))
    return next(found, [])


def _list(record: Mapping[str, Any], name: str, count: int) -> list[Any]:
    given = record.get(name)
    if isinstance(given, list) and len(given) == count:
        return given
    return [None if name != "ignored" else False] * count


def _place(row: Mapping[str, Any]) -> object:
    """Return the points of a box; None if it has none."""
    for name in _POINTS:
        points = row.get(name)
        if isinstance(points, list) and points:
            # COCO has a list of outlines
            nested = isinstance(points[0], list) and len(points[0]) > 2
            return points[0] if nested else points
    box = row.get("bbox", row.get("box"))
    if isinstance(box, list) and len(box) == 4 and all(isinstance(v, int | float) for v in box):
        x, y, width, height = box
        return [x, y, x + width, y, x + width, y + height, x, y + height]
    return None
