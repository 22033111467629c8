"""CTW1500's XML: a file per picture with `box` elements of a `label` and 14 points in `segs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ocrstore.sources.annotation_file import AnnotationFile, Flaw, UnusableAnnotationError
from ocrstore.sources.dialect import Dialect, Entry, Region, file_of, register
from ocrstore.sources.match_names import name_disagrees
from ocrstore.sources.validate import number


@register
class Ctw1500(Dialect):
    """An XML file per picture (0200.xml); its text layouts are with ICDAR's."""

    name = "ctw1500-xml"
    looks_for = 'an XML file per picture with <Annotations><image file="..."><box><segs>'
    suffixes = (".xml",)
    per_picture = True

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by `Annotations` as root and `image` with `file` below."""
        elements = file.xml_elements()[:2]
        return [name for name, _ in elements] == ["Annotations", "image"] and "file" in elements[1][
            1
        ]

    def other_names(self, entry: Entry) -> Sequence[str]:
        """Read `file` of the image, for a file that is not named like its picture."""
        try:
            image = file_of(entry).xml()[0].find("image")
        except UnusableAnnotationError:
            return ()
        name = None if image is None else image.get("file")
        return (name,) if name else ()

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield the polygon of each box."""
        root, flaw = file_of(entry).xml()
        if flaw:
            yield flaw
        image = root.find("image")
        if image is None:
            raise UnusableAnnotationError("missing-key", f"{entry.where}: no <image>")
        yield from name_disagrees(entry, image.get("file"))
        for i, box in enumerate(image.iterfind("box")):
            numbers = box.findtext("segs")
            if numbers is None:
                yield Flaw("missing-key", f"{entry.where} box {i}: no <segs>; left out")
            else:
                points = [number(value.strip()) for value in numbers.strip().split(",")]
                yield Region(points, box.findtext("label"))
