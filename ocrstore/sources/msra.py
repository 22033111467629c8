"""MSRA-TD500: `.gt` files with lines of index, difficult, x, y, width, height, angle."""

from __future__ import annotations

from collections.abc import Iterator

from ocrstore.sources.annotation_file import LINE_END, AnnotationFile, Flaw
from ocrstore.sources.dialect import Dialect, Entry, Region, file_of, register
from ocrstore.sources.validate import brief, floats, rotated_box_points


def _numbers(line: str) -> list[float] | None:
    """Return the seven numbers of a line; None for another line."""
    values = floats(line.split())
    return values if values and len(values) == 7 else None


@register
class Msra(Dialect):
    """A file per picture (IMG_0001.gt); boxes are turned by radians about their centre."""

    name = "msra-td500"
    looks_for = "a .gt file per picture with lines of index, difficult, x, y, width, height, angle"
    suffixes = (".gt",)
    per_picture = True

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by seven numbers in every line."""
        lines = [_numbers(line) for line in LINE_END.split(file.head) if line.strip()]
        return bool(lines) and all(values and values[1] in (0, 1) for values in lines)

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield the boxes; difficult ones are ignored."""
        text, flaw = file_of(entry).text()
        if flaw:
            yield flaw
        for count, line in enumerate(LINE_END.split(text), start=1):
            where = f"{entry.where} line {count}"
            values = _numbers(line)
            if values is None:
                if line.strip():
                    yield Flaw("bad-line", f"{where}: seven numbers expected: {brief(line)}")
                continue
            points = rotated_box_points(values[2:6], values[6], centred=True)
            if isinstance(points, str):
                yield Flaw("bad-box", f"{where}: {points}; left out")
            else:
                yield Region(points, ignored=values[1])
