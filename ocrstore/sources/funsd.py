"""FUNSD: a JSON file per picture with `form`, whose blocks have words with boxes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ocrstore.sources.annotation_file import AnnotationFile, Flaw
from ocrstore.sources.dialect import Dialect, Entry, Region, file_of, register
from ocrstore.sources.validate import box_region_points, for_file, member, need, whole_document


@register
class Funsd(Dialect):
    """A JSON file per picture; the words of all blocks are taken."""

    name = "funsd"
    looks_for = 'a JSON file per picture (a.json) with {"form": [{"box": ..., "words": [...]}]}'
    per_picture = True

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by `form` being a list of objects with `box`."""
        form = file.document().get("form")
        if not isinstance(form, list) or not form:
            return False
        return all(isinstance(block, dict) and "box" in block for block in form[:100])

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield the words of each block, or the block where it has none."""
        document, flaws = whole_document(file_of(entry))
        yield from map(for_file, flaws)
        for i, block in enumerate(need(document, "form", list, where=entry.where)):
            where = f"{entry.where} form[{i}]"
            words = block.get("words") if isinstance(block, dict) else None
            if isinstance(words, list) and words:
                yield from (_region(word, f"{where} words[{j}]") for j, word in enumerate(words))
            else:
                yield _region(block, where)


def _region(item: Any, where: str) -> Region | Flaw:
    box = member(item, "box", list, where=where)
    points = box if isinstance(box, Flaw) else box_region_points(box, sides=False)
    if isinstance(points, str):
        return Flaw("bad-box", f"{where}: {points}; left out")
    return points if isinstance(points, Flaw) else Region(points, item.get("text"))
