"""LabelMe JSON files, one per picture: the label of a shape is its text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ocrstore.sources.annotation_file import AnnotationFile, Flaw, UnusableAnnotationError
from ocrstore.sources.dialect import Dialect, Entry, Region, register
from ocrstore.sources.match_names import folded, tidy
from ocrstore.sources.validate import box_points, brief, for_file, member, need, whole_document

_POLYGONS = frozenset({"polygon", "rotation", "quadrilateral"})
_IGNORE_FLAGS = ("ignore", "ignored", "difficult", "illegible")


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
        if not isinstance(entry.record, AnnotationFile):
            return ()
        try:
            document, _ = whole_document(entry.record.unread())
        except UnusableAnnotationError:
            return ()
        name = document.get("imagePath")
        return (name,) if isinstance(name, str) and name else ()

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield the shapes that are polygons or rectangles."""
        if not isinstance(entry.record, AnnotationFile):
            raise TypeError("an entry of another dialect")
        document, flaws = whole_document(entry.record.unread())
        yield from map(for_file, flaws)
        shapes = need(document, "shapes", list, where=entry.where)
        name = document.get("imagePath")
        if isinstance(name, str) and not self._agree(name, entry.names[0]):
            message = f"{entry.where}: its imagePath is {brief(name)}"
            yield Flaw("name-disagrees", message, region=False)
        for i, shape in enumerate(shapes):
            yield self._region(shape, f"{entry.where} shapes[{i}]")

    @staticmethod
    def _agree(image_path: str, stem: str) -> bool:
        picture, own = (folded(tidy(name)).rpartition("/")[2] for name in (image_path, stem))
        return picture == own or picture.rpartition(".")[0] == own

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
        flags = shape.get("flags")
        ignored = isinstance(flags, dict) and any(flags.get(flag) is True for flag in _IGNORE_FLAGS)
        return Region(points, shape.get("label"), ignored=ignored or shape.get("difficult"))
