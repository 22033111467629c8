"""LabelMe JSON files, one per picture: the label of a shape is its text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ocrstore.sources.annotation_file import AnnotationFile, Flaw, UnusableAnnotationError
from ocrstore.sources.dialect import Dialect, Entry, Region, file_of, register
from ocrstore.sources.match_names import name_disagrees
from ocrstore.sources.validate import (
    box_points,
    brief,
    for_file,
    ignored_in,
    member,
    need,
    whole_document,
)

_POLYGONS = ("polygon", "rotation", "quadrilateral")  # a tuple: a type may be any JSON value


@register
class LabelMe(Dialect):
    """A JSON file per picture, as LabelMe and similar tools write it."""

    name = "labelme"
    looks_for = 'a JSON file per picture (a.json) with {"imagePath": "a.jpg", "shapes": [...]}'
    per_picture = True

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by `shapes` being a list and `imagePath` being there."""
        document = file.document()
        return isinstance(document.get("shapes"), list) and "imagePath" in document

    def other_names(self, entry: Entry) -> Sequence[str]:
        """Read `imagePath`, for a file that is not named like its picture."""
        try:
            document, _ = whole_document(file_of(entry))
        except UnusableAnnotationError:
            return ()
        name = document.get("imagePath")
        return (name,) if isinstance(name, str) and name else ()

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield the shapes that are polygons or rectangles."""
        document, flaws = whole_document(file_of(entry))
        yield from map(for_file, flaws)
        shapes = need(document, "shapes", list, where=entry.where)
        name = document.get("imagePath")
        yield from name_disagrees(entry, name)
        for i, shape in enumerate(shapes):
            yield self._region(shape, f"{entry.where} shapes[{i}]")

    @staticmethod
    def _region(shape: Any, where: str) -> Region | Flaw:
        points = member(shape, "points", list, where=where)
        if isinstance(points, Flaw):
            return points
        kind = shape.get("shape_type") or "polygon"
        if kind == "rectangle" and len(points) == 2:
            if not all(isinstance(point, list) and len(point) == 2 for point in points):
                return Flaw("bad-points", f"{where}: two corners expected, found {brief(points)}")
            (left, top), (right, bottom) = points  # any two opposite corners, in any order
            points = box_points(left, top, right, bottom)
        elif kind not in _POLYGONS and kind != "rectangle":
            return Flaw("unsupported-shape", f"{where}: a shape of type {brief(kind)}; left out")
        ignored = ignored_in(shape.get("flags")) is True
        return Region(points, shape.get("label"), ignored=ignored or shape.get("difficult"))
