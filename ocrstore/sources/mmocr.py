"""mmocr's JSON: `{"data_list": [{"img_path", "instances": [{"polygon", "bbox", "ignore"}]}]}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ocrstore.sources.annotation_file import AnnotationFile, Flaw
from ocrstore.sources.dialect import Dialect, Entry, Region, register
from ocrstore.sources.validate import box_region_points, for_file, member, need, whole_document


@register
class Mmocr(Dialect):
    """One JSON file for all pictures, as mmocr 1.x writes it."""

    name = "mmocr"
    looks_for = 'a JSON file {"data_list": [{"img_path": "a.jpg", "instances": [...]}]}'

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by `data_list` being a list."""
        return isinstance(file.document().get("data_list"), list)

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Yield one entry per element of `data_list`."""
        document, flaws = whole_document(file)
        yield from map(for_file, flaws)
        for i, record in enumerate(need(document, "data_list", list, where=file.shown)):
            where = f"{file.shown} data_list[{i}]"
            name = member(record, "img_path", str, where=where)
            if isinstance(name, Flaw):
                yield for_file(name)
            else:
                yield Entry(names=(name,), record=record, where=where)

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield the polygon of each instance, or its box where it has no polygon."""
        for i, instance in enumerate(need(entry.record, "instances", list, where=entry.where)):
            yield self._region(instance, f"{entry.where} instances[{i}]")

    @staticmethod
    def _region(instance: Any, where: str) -> Region | Flaw:
        points: Any
        if isinstance(instance, dict) and instance.get("polygon") is None and "bbox" in instance:
            points = box_region_points(instance["bbox"], sides=False)
            if isinstance(points, str):
                return Flaw("bad-box", f"{where}: {points}; left out")
        else:
            points = member(instance, "polygon", object, where=where)
            if isinstance(points, Flaw):
                return points
        language = instance.get("language")
        return Region(points, instance.get("text"), instance.get("ignore"), language)
