"""WildReceipt: a JSON object per picture and line, with `file_name` and `annotations`."""

from __future__ import annotations

from collections.abc import Iterator

from ocrstore.sources.annotation_file import AnnotationFile, Flaw
from ocrstore.sources.dialect import Dialect, Entry, Region, register
from ocrstore.sources.validate import for_file, member, need


@register
class WildReceipt(Dialect):
    """One file for all pictures (train.txt); regions of the class 0, `Ignore`, are ignored."""

    name = "wildreceipt"
    looks_for = 'a text file with lines of {"file_name": ..., "annotations": [{"box": ...}]}'
    suffixes = (".txt", ".jsonl")

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by the first line."""
        first = file.first_object()
        regions = first.get("annotations")
        if not isinstance(regions, list) or "file_name" not in first:
            return False
        return all(isinstance(region, dict) and "box" in region for region in regions)

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Yield one entry per line."""
        for where, picture in file.json_lines():
            if isinstance(picture, Flaw):
                yield for_file(picture)
                continue
            name = member(picture, "file_name", str, where=where)
            yield for_file(name) if isinstance(name, Flaw) else Entry((name,), picture, where)

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield the quadrilaterals."""
        for i, item in enumerate(need(entry.record, "annotations", list, where=entry.where)):
            box = member(item, "box", list, where=f"{entry.where} annotations[{i}]")
            if isinstance(box, Flaw):
                yield box
            else:
                yield Region(box, item.get("text"), ignored=item.get("label") == 0)
