"""Total-Text's own text files: `x: [[...]], y: [[...]], ornt: [u'c'], transcriptions: [u'...']`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from ocrstore.sources.annotation_file import AnnotationFile, Flaw
from ocrstore.sources.dialect import Dialect, Entry, Region, file_of, register
from ocrstore.sources.validate import brief, number

_BEGIN = re.compile(r"^\s*x:\s*\[\[", re.MULTILINE)
_ARRAY = r"\s*:\s*\[\[([^\]]*)\]\]\s*,\s*"
_RECORD = re.compile(
    rf"\s*x{_ARRAY}y{_ARRAY}ornt\s*:\s*\[[^\]]*\]\s*,\s*transcriptions\s*:\s*\[(.*)\]\s*",
    re.DOTALL,
)
_QUOTED = re.compile(r"u?(['\"])(.*)\1", re.DOTALL)


@register
class TotalText(Dialect):
    """A text file per picture (poly_gt_img1.txt); long arrays go on in the next line."""

    name = "totaltext"
    looks_for = "a text file per picture with x: [[...]], y: [[...]], ornt: [...], transcriptions"
    suffixes = (".txt",)
    per_picture = True

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by how the file begins."""
        return _BEGIN.match(file.head) is not None

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield a region for each record; `#` as text means ignored."""
        text, flaw = file_of(entry).text()
        if flaw:
            yield flaw
        starts = [found.start() for found in _BEGIN.finditer(text)]
        if text[: starts[0] if starts else None].strip():
            yield Flaw("bad-line", f"{entry.where}: begins with {brief(text[:60])}; left out")
        for i, (start, end) in enumerate(pairwise([*starts, len(text)])):
            yield _region(text[start:end], f"{entry.where} record {i}")


def _region(record: str, where: str) -> Region | Flaw:
    found = _RECORD.fullmatch(record)
    if found is None:
        return Flaw("bad-line", f"{where}: x, y, ornt and transcriptions expected; left out")
    xs, ys = (numbers.replace(",", " ").split() for numbers in found.group(1, 2))
    if len(xs) != len(ys):
        return Flaw("odd-coordinates", f"{where}: {len(xs)} x and {len(ys)} y; left out")
    quoted = _QUOTED.fullmatch(found[3].strip())
    text = quoted[2].replace(f"\\{quoted[1]}", quoted[1]) if quoted else found[3].strip() or None
    points = [[number(x), number(y)] for x, y in zip(xs, ys, strict=True)]
    return Region(points, text, ignored=text == "#")
