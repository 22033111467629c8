"""JSON of the ICDAR 2019 competitions: ArT and LSVT (one file), ReCTS (a file per picture)."""

from __future__ import annotations

from collections.abc import Iterator

from ocrstore.sources.annotation_file import AnnotationFile, Flaw, UnusableAnnotationError
from ocrstore.sources.dialect import Dialect, Entry, Region, file_of, register
from ocrstore.sources.validate import brief, for_file, member, need, whole_document


def _is_rects(document: dict[str, object]) -> bool:
    return all(isinstance(document.get(key), list) for key in ("chars", "lines"))


def _regions(items: list[object], where: str) -> Iterator[Region | Flaw]:
    for i, item in enumerate(items):
        points = member(item, "points", list, where=f"{where}[{i}]")
        if isinstance(points, Flaw) or not isinstance(item, dict):
            yield points
            continue
        ignored = item.get("illegibility", item.get("ignore"))
        yield Region(points, item.get("transcription"), ignored, item.get("language"))


@register
class Art(Dialect):
    """One JSON file for all pictures, lists of regions by the picture's name without its ending."""

    name = "art"
    looks_for = 'a JSON file {"gt_1": [{"transcription": ..., "points": [[x, y], ...]}]}'

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by lists whose first element has `points` and `transcription`."""
        document = file.document()
        lists = [v for v in list(document.values())[:100] if isinstance(v, list) and v]
        return bool(lists and not _is_rects(document)) and all(
            isinstance(v[0], dict) and {"points", "transcription"} <= v[0].keys() for v in lists
        )

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Yield one entry per name."""
        document, flaws = whole_document(file)
        yield from map(for_file, flaws)
        for name, record in document.items():
            yield Entry(names=(name,), record=record, where=f"{file.shown}[{name!a}]")

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield the regions of the picture's list."""
        if not isinstance(entry.record, list):
            message = f"{entry.where}: expected a list, found {brief(entry.record)}"
            raise UnusableAnnotationError("bad-structure", message)
        yield from _regions(entry.record, entry.where)


@register
class Rects(Dialect):
    """A JSON file per picture with `lines`; `chars`, which are parts of them, are not taken."""

    name = "rects"
    looks_for = 'a JSON file per picture (a.json) with {"chars": [...], "lines": [...]}'
    per_picture = True

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by `chars` and `lines` both being lists."""
        return _is_rects(file.document())

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield the lines."""
        document, flaws = whole_document(file_of(entry))
        yield from map(for_file, flaws)
        lines = need(document, "lines", list, where=entry.where)
        yield from _regions(lines, f"{entry.where} lines")
