"""HierText JSON: words in lines in paragraphs, one document or a line per picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ocrstore.sources.annotation_file import AnnotationFile, Flaw
from ocrstore.sources.dialect import Dialect, Entry, Region, register
from ocrstore.sources.validate import for_file, member, need

_BELOW = {"paragraphs": "lines", "lines": "words"}


def _is_picture(value: Any) -> bool:
    return isinstance(value, dict) and {"image_id", "paragraphs"} <= value.keys()


@register
class HierText(Dialect):
    """One file for all pictures; `gt/train.jsonl` is a single JSON object in spite of its name."""

    name = "hiertext"
    looks_for = 'a JSON file {"annotations": [{"image_id": ..., "paragraphs": [...]}]}'
    suffixes = (".json", ".jsonl")

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by `image_id` and `paragraphs` of the first picture."""
        first = file.first_object()
        pictures = first.get("annotations")
        return _is_picture(pictures[0] if isinstance(pictures, list) and pictures else first)

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Yield one entry per picture."""
        document = file.document()
        if document and not _is_picture(document):
            yield from map(for_file, file.json()[1])
            listed = need(document, "annotations", list, where=file.shown)
            pictures = [(f"{file.shown} annotations[{i}]", p) for i, p in enumerate(listed)]
        else:
            pictures = list(file.json_lines())
        for where, picture in pictures:
            if isinstance(picture, Flaw):
                yield picture
                continue
            name = member(picture, "image_id", str, where=where)
            yield for_file(name) if isinstance(name, Flaw) else Entry((name,), picture, where)

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield the words, and lines and paragraphs that have no parts."""
        paragraphs = need(entry.record, "paragraphs", list, where=entry.where)
        yield from _regions(paragraphs, "paragraphs", entry.where)


def _regions(items: list[Any], level: str, where: str) -> Iterator[Region | Flaw]:
    for i, item in enumerate(items):
        here = f"{where} {level}[{i}]"
        parts = item.get(_BELOW.get(level)) if isinstance(item, dict) else None
        if isinstance(parts, list) and parts:
            yield from _regions(parts, _BELOW[level], here)
            continue
        points = member(item, "vertices", list, where=here)
        if isinstance(points, Flaw):
            yield points
        else:
            yield Region(points, item.get("text"), ignored=item.get("legible") in (False, 0))
