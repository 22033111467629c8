"""CVAT's XML for images: one file with `image` elements of polygons and boxes."""

from __future__ import annotations

from collections.abc import Iterator
from math import radians
from typing import Any

from ocrstore.sources.annotation_file import AnnotationFile, Flaw
from ocrstore.sources.dialect import Dialect, Entry, Region, register
from ocrstore.sources.validate import floats, ignored_in, number, rotated_box_points, text_in


@register
class Cvat(Dialect):
    """One file for all pictures (annotations.xml); the text is an attribute of a shape."""

    name = "cvat"
    looks_for = 'an XML file <annotations> with <image name="..."><polygon points="x,y;x,y">'
    suffixes = (".xml",)

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by `annotations` as root and an `image` with a `name`."""
        elements = file.xml_elements()
        images = [attributes for name, attributes in elements if name == "image"]
        return bool(images) and elements[0][0] == "annotations" and "name" in images[0]

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Yield one entry per image; its record is the shapes as plain tuples."""
        root, flaw = file.xml()
        if flaw:
            yield flaw
        for i, image in enumerate(root.iterfind("image")):
            where = f"{file.shown} image {i}"
            shapes = [
                (shape.tag, dict(shape.attrib), {a.get("name"): a.text for a in shape})
                for shape in image
                if shape.tag != "tag"
            ]
            name = image.get("name")
            if name:
                yield Entry((name,), shapes, where)
            else:
                yield Flaw("bad-name", f"{where}: no name", region=False)

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield polygons and boxes, straight or turned."""
        if not isinstance(entry.record, list):
            raise TypeError("an entry of another dialect")
        for i, (kind, shape, attributes) in enumerate(entry.record):
            where = f"{entry.where}, shape {i}"
            points = _points(kind, shape)
            if points is None:
                yield Flaw("unsupported-shape", f"{where}: a shape of type {kind!a}; left out")
            elif isinstance(points, str):
                yield Flaw("bad-box", f"{where}: {points}; left out")
            else:
                yield Region(points, text_in(attributes), ignored_in(attributes))


def _points(kind: str, shape: dict[str, str]) -> Any:
    """Return the points of a shape, what is wrong with it, or None for another kind of shape."""
    if kind == "polygon":
        pairs = (pair.split(",") for pair in shape.get("points", "").split(";") if pair)
        return [[number(value) for value in pair] for pair in pairs]
    if kind != "box":
        return None
    values = floats(shape.get(key) for key in ("xtl", "ytl", "xbr", "ybr"))
    angle = floats([shape.get("rotation", "0")])
    if values is None or angle is None:
        return "a box is four numbers and a rotation"
    left, top, right, bottom = values
    box = (left, top, right - left, bottom - top)
    return rotated_box_points(box, radians(angle[0]), centred=True)
