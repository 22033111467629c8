"""Pascal VOC XML, as LabelImg and others write it: a file per picture with `object` elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from ocrstore.sources.annotation_file import AnnotationFile, Flaw, UnusableAnnotationError
from ocrstore.sources.dialect import Dialect, Entry, Region, file_of, register
from ocrstore.sources.match_names import name_disagrees
from ocrstore.sources.validate import box_region_points, floats, rotated_box_points, text_in


@register
class Voc(Dialect):
    """An XML file per picture. `name` is a class and not taken as text."""

    name = "voc"
    looks_for = "an XML file per picture with <annotation> and <object><bndbox>"
    suffixes = (".xml",)
    per_picture = True

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by `annotation` as root with an `object` or a `filename`."""
        names = [name for name, _ in file.xml_elements()]
        return names[:1] == ["annotation"] and not {"object", "filename"}.isdisjoint(names)

    def other_names(self, entry: Entry) -> Sequence[str]:
        """Read `filename`, for a file that is not named like its picture."""
        try:
            root, _ = file_of(entry).xml()
        except UnusableAnnotationError:
            return ()
        name = root.findtext("filename")
        return (name,) if name else ()

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield the boxes, straight or (roLabelImg) turned."""
        root, flaw = file_of(entry).xml()
        if flaw:
            yield flaw
        yield from name_disagrees(entry, root.findtext("filename"))
        for i, item in enumerate(root.iterfind("object")):
            yield _region(item, f"{entry.where} object {i}")


def _region(item: Element, where: str) -> Region | Flaw:
    points: Any = "no bndbox or robndbox of numbers"
    if corners := _numbers(item.find("bndbox"), "xmin", "ymin", "xmax", "ymax"):
        points = box_region_points(corners, sides=False)
    elif turned := _numbers(item.find("robndbox"), "cx", "cy", "w", "h", "angle"):
        x, y, width, height, angle = turned
        box = (x - width / 2, y - height / 2, width, height)
        points = rotated_box_points(box, angle, centred=True)
    if isinstance(points, str):
        return Flaw("bad-box", f"{where}: {points}; left out")
    named = {a.findtext("name"): a.findtext("value") for a in item.iterfind("attributes/attribute")}
    text = text_in({child.tag: child.text for child in item}, named)
    return Region(points, text, ignored=item.findtext("difficult"))


def _numbers(element: Element | None, *names: str) -> list[float] | None:
    return None if element is None else floats(element.findtext(name) for name in names)
