"""docTR's labels.json: `polygons` for detection, `typed_words` for OCR."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ocrstore.sources.annotation_file import AnnotationFile, Flaw
from ocrstore.sources.dialect import Dialect, Entry, Region, register
from ocrstore.sources.validate import box_region_points, for_file, member, need, whole_document


def _is_picture(value: Any) -> bool:
    return isinstance(value, dict) and (
        isinstance(value.get("polygons"), list | dict) or isinstance(value.get("typed_words"), list)
    )


@register
class Doctr(Dialect):
    """One JSON file for all pictures, by picture name."""

    name = "doctr"
    looks_for = 'a JSON file {"a.jpg": {"polygons": [...]}} or {"a.jpg": {"typed_words": [...]}}'

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by `polygons` or `typed_words` in each of the first hundred pictures."""
        pictures = list(file.document().values())[:100]
        return bool(pictures) and all(map(_is_picture, pictures))

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Yield one entry per picture name."""
        document, flaws = whole_document(file)
        yield from map(for_file, flaws)
        for name, record in document.items():
            yield Entry(names=(name,), record=record, where=f"{file.shown}[{name!a}]")

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield the polygons (of all classes), or the words' boxes with their texts."""
        if isinstance(entry.record, dict) and "typed_words" in entry.record:
            words = need(entry.record, "typed_words", list, where=entry.where)
            for i, word in enumerate(words):
                yield _word(word, f"{entry.where} typed_words[{i}]")
            return
        polygons = need(entry.record, "polygons", (list, dict), where=entry.where)
        for group in polygons.values() if isinstance(polygons, dict) else [polygons]:
            yield from map(Region, group if isinstance(group, list) else [group])

    def frame(self, entry: Entry) -> str | None:
        """Return `upright` where the boxes are shares of the upright picture."""
        words = entry.record.get("typed_words") if isinstance(entry.record, dict) else None
        word = words[0] if isinstance(words, list) and words else None
        geometry = word.get("geometry") if isinstance(word, dict) else None
        return "upright" if isinstance(geometry, list) and _are_shares(geometry) else None


def _are_shares(geometry: list[Any]) -> bool:
    # no box of text lies within the first pixel
    return all(isinstance(value, int | float) and 0 <= value <= 1 for value in geometry[:4])


def _word(word: Any, where: str) -> Region | Flaw:
    geometry = member(word, "geometry", list, where=where)
    if isinstance(geometry, Flaw):
        return geometry
    points = box_region_points(geometry[:4], sides=False)
    if isinstance(points, str):
        return Flaw("bad-box", f"{where}: {points}; left out")
    return Region(points, word.get("value"), relative=_are_shares(geometry))
