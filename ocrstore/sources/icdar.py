"""Text files with one line per region: numbers, then a text that may contain commas.

ICDAR's layouts and those that look like them:

| layout | a line |
|---|---|
| quad | 8 numbers, text: ICDAR 2015, 2017, 2019, SROIE |
| box | 4 numbers (x1, y1, x2, y2), text: ICDAR 2013 |
| mlt | 8 numbers, script, text: ICDAR MLT |
| poly | any even count of numbers from 6 on, text: Total-Text as DBNet's authors ship it |
| rctw | 8 numbers, 0 or 1 for difficult, quoted text: RCTW-17 |
| ctw1500 | 28 numbers, `####`, text: CTW1500, test |
| ctw1500-offsets | 4 numbers of a box, 28 offsets from its corner: CTW1500, training |
| yolo-obb | a class, 8 shares of the picture's size (more in YOLO's segmentations) |

One layout is chosen for all files of a source (box and quad: for each file), because one file alone
cannot tell a polygon of five points from a quadrilateral with the text "100,000".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ocrstore.errors import SourceError
from ocrstore.sources.annotation_file import (
    LINE_END,
    AnnotationFile,
    Flaw,
    UnusableAnnotationError,
)
from ocrstore.sources.dialect import Dialect, Entry, Region, file_of, get_dialect, register
from ocrstore.sources.validate import box_region_points, brief

_NUMBER = r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|inf(?:inity)?)"
_FIELD = {
    # a number counts only when the field ends after it: "12th" is a text
    ",": re.compile(rf"\s*({_NUMBER})\s*(?:,|$)", re.IGNORECASE | re.ASCII),
    " ": re.compile(rf"\s*({_NUMBER})(?:\s+|$)", re.IGNORECASE | re.ASCII),
}
_COMMA_FIRST = re.compile(rf"\s*{_NUMBER}\s*,", re.IGNORECASE | re.ASCII)
_FOREIGN = re.compile(r"\s*(?:[{\[<]|x:\s*\[\[)")
"""How others begin: JSON, XML, Total-Text, whose arrays go on in lines of numbers."""
SCRIPTS = frozenset(
    "arabic latin chinese japanese korean bangla hindi symbols mixed none".split()  # noqa: SIM905 - read
)
"""What MLT files name between numbers and text, in lower case."""


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    line: str
    values: tuple[float, ...]
    """Every leading field that is a number."""
    ends: tuple[int, ...]
    """Where in the line each of them ends, its separator included."""

    def rest(self, count: int) -> str | None:
        """The text after `count` numbers; None when the line ends with the last of them."""
        end = self.ends[count - 1]
        if end == len(self.line) and not self.line.rstrip().endswith(","):
            return None
        return self.line[end:].strip()


def _lines(text: str) -> list[_Line]:
    lines: list[_Line] = []
    for number, line in enumerate(LINE_END.split(text.removeprefix("\ufeff")), start=1):
        if not line.strip():
            continue
        field = _FIELD["," if _COMMA_FIRST.match(line) else " "]
        values: list[float] = []
        ends: list[int] = []
        at = 0
        while at < len(line) and (found := field.match(line, at)):
            values.append(float(found[1]))
            at = found.end()
            ends.append(at)
        lines.append(_Line(number, line, tuple(values), tuple(ends)))
    return lines


def _file_layout(lines: list[_Line]) -> str | None:
    """The layout of a file: `quad` if any line begins with eight numbers, `box` if with four."""
    if any(len(line.values) >= 8 for line in lines):
        return "quad"
    if any(len(line.values) == 4 for line in lines):
        return "box"
    return None


def _is_mlt(line: _Line) -> bool:
    rest = line.rest(8) if len(line.values) >= 8 else None
    return rest is not None and "," in rest and rest.split(",", 1)[0].strip().lower() in SCRIPTS


def _is_rctw(line: _Line) -> bool:
    if len(line.values) < 9 or line.values[8] not in (0, 1):
        return False
    text = line.rest(9)
    return text is not None and len(text) > 1 and text[0] == text[-1] == '"'


def _is_ctw1500(line: _Line) -> bool:
    return len(line.values) == 28 and (line.rest(28) or "").startswith("####")


def _is_ctw1500_offsets(line: _Line) -> bool:
    if len(line.values) != 32 or line.rest(32) is not None:
        return False
    left, top, right, bottom, *offsets = line.values
    inside = (0 <= x <= right - left for x in offsets[::2])
    return all(inside) and all(0 <= y <= bottom - top for y in offsets[1::2])


def _is_yolo(line: _Line) -> bool:
    shares = line.values[1:]
    return (
        len(shares) >= 8
        and len(shares) % 2 == 0
        and line.rest(len(line.values)) is None
        and line.values[0] >= 0
        and line.values[0].is_integer()
        and all(-0.5 <= share <= 1.5 for share in shares)  # corners may lie outside
    )


def _is_near(line: _Line) -> bool:
    """Return whether the numbers after the eighth lie near the first four points: more points.

    The numbers of a text ("100,000") are points far from the region, unless by accident.
    """
    xs, ys = line.values[0:8:2], line.values[1:8:2]
    reach = 3 * max(max(xs) - min(xs), max(ys) - min(ys), 8.0)
    extra = line.values[8 : len(line.values) - len(line.values) % 2]
    return all(min(xs) - reach <= x <= max(xs) + reach for x in extra[::2]) and all(
        min(ys) - reach <= y <= max(ys) + reach for y in extra[1::2]
    )


def _polygon_lines(lines: Sequence[_Line]) -> tuple[int, int]:
    """Count the lines of ten numbers or more that look like polygons, and those that do not."""
    longer = [line for line in lines if len(line.values) >= 10]
    near = sum(map(_is_near, longer))
    return near, len(longer) - near


_EVERY_LINE: tuple[tuple[str, Callable[[_Line], bool]], ...] = (
    ("yolo-obb", _is_yolo),
    ("rctw", _is_rctw),
    ("ctw1500", _is_ctw1500),
    ("ctw1500-offsets", _is_ctw1500_offsets),
    ("icdar-mlt", _is_mlt),
)
"""Dialects that are recognised when every line of all files looked at fits."""
_LOOKED_AT = 64


def _choose(files: Sequence[AnnotationFile]) -> str:
    """Return the dialect of files without --format; raise SourceError if it is ambiguous."""
    step = max(1, len(files) // _LOOKED_AT)
    lines = [line for file in files[::step] for line in _lines(file.head) if len(line.values) >= 4]
    if not lines:
        return "icdar"
    for name, fits in _EVERY_LINE:
        if all(map(fits, lines)):
            return name
    where = files[0].shown
    if all(0 <= value <= 1 for line in lines for value in line.values[1:8]):  # a class may be first
        raise SourceError(
            f"{where} and {len(files) - 1} more: every coordinate lies between 0 and 1, so they "
            "are shares of the picture's size or something else than points. Convert them to "
            "pixels, or name the dialect with --format (icdar takes them as pixels, yolo-obb as a "
            "class and shares)"
        )
    near, far = _polygon_lines(lines)
    quads = sum(len(line.values) >= 8 for line in lines)
    if near <= 0.02 * quads:
        return "icdar"
    if near >= 0.3 * quads and far <= 0.1 * near:
        return "icdar-poly"
    raise SourceError(
        f"{where} and {len(files) - 1} more: {near} of {quads} lines looked at begin with ten or "
        "more numbers that could be a polygon or four points and a text of numbers. Say which with "
        "--format icdar (four points) or --format icdar-poly (all numbers are points)"
    )


def _unquoted(text: str) -> str | None:
    """Return what is inside a well-formed quoted text; None for any other."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return None
    inner = text[1:-1]
    if '"' in inner.replace('""', "").replace('\\"', ""):
        return None
    return inner.replace('""', '"').replace('\\"', '"')


def _unquote_all(texts: list[str | None]) -> list[str | None]:
    """Remove quotes that a writer added: around every text, or around one that needed them."""
    inner = [None if text is None else _unquoted(text) for text in texts]
    every = all(
        i is not None for text, i in zip(texts, inner, strict=True) if text not in (None, "###")
    )
    return [
        i if i is not None and text and (every or "," in i or '""' in text[1:-1]) else text
        for text, i in zip(texts, inner, strict=True)
    ]


class Icdar(Dialect):
    """Text files in one of the layouts of this module."""

    suffixes = (".txt", ".csv")
    per_picture = True

    def __init__(self, name: str, layout: str, looks_for: str) -> None:
        self.name = name
        self.looks_for = looks_for
        self._layout = layout

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by lines that begin with eight numbers or more, or with just four.

        Only `icdar` recognises; `choose` then picks the layout from many files.
        """
        if self._layout != "auto" or _FOREIGN.match(file.head):
            return False
        return _file_layout(_lines(file.head)) is not None

    def choose(self, files: Sequence[AnnotationFile]) -> Dialect:
        """Pick the layout that all files have."""
        return get_dialect(_choose(files))

    def frame(self, entry: Entry) -> str | None:
        """Return `upright` where the points are shares of the upright picture."""
        del entry
        return "upright" if self._layout == "yolo-obb" else None

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Read the file's lines."""
        text, flaw = file_of(entry).text()
        if flaw:
            yield flaw
        lines = _lines(text)
        if not lines:
            yield Flaw("empty-annotation", f"{entry.where}: no line in it", region=False)
        if lines and "\x00" in text[:1024]:
            raise UnusableAnnotationError(
                "unreadable-annotation", f"{entry.where}: not a text file"
            )
        yield from self._regions(lines, entry.where)

    def _regions(self, lines: list[_Line], where: str) -> Iterator[Region | Flaw]:
        layout = self._layout if self._layout != "auto" else _file_layout(lines) or "quad"
        counts = [_numbers_used(line, layout) for line in lines]
        rests = [
            line.rest(count) if count else None for line, count in zip(lines, counts, strict=True)
        ]
        languages: list[str | None] = [None] * len(lines)
        if layout == "mlt":
            for i, rest in enumerate(rests):
                if rest is not None:
                    script, _, after = rest.partition(",")
                    languages[i], rests[i] = script.strip(), after.strip()
        if layout == "ctw1500":
            rests = [None if rest is None else rest.removeprefix("####") for rest in rests]
        if layout == "quad":
            near, far = _polygon_lines(lines)
            if near > far and 2 * near > len(lines):
                message = (
                    f"{where}: {near} of {len(lines)} lines begin with ten or more numbers that "
                    "look like points; four were taken. --format icdar-poly takes all"
                )
                yield Flaw("extra-numbers", message, region=False)
        texts = _unquote_all(rests)
        for line, count, text, language in zip(lines, counts, texts, languages, strict=True):
            yield _region(line, count, layout, text, language, where)


def _numbers_used(line: _Line, layout: str) -> int:
    """Return how many of a line's numbers are not text; 0 when they are fewer than needed."""
    found = len(line.values)
    if layout == "poly":
        return found - found % 2 if found >= 6 else 0
    if layout == "yolo-obb":
        return found if found >= 7 and found % 2 else 0
    need = {"box": 4, "rctw": 9, "ctw1500": 28, "ctw1500-offsets": 32}.get(layout, 8)
    return need if found >= need else 0


def _region(
    line: _Line, count: int, layout: str, text: str | None, language: str | None, where: str
) -> Region | Flaw:
    if count == 0:
        return _bad_line(line, layout, where)
    values = line.values[:count]
    if layout == "box":
        points = box_region_points(values, sides=False)
        if isinstance(points, str):
            return Flaw("bad-box", f"{where} line {line.number}: {points}; left out")
        return Region(points, text, language=language)
    if layout == "rctw":
        return Region(values[:8], text, ignored=values[8] == 1)
    if layout == "yolo-obb":
        return Region(values[1:], relative=True)
    if layout == "ctw1500-offsets":
        left, top = values[:2]
        return Region([v + (top if i % 2 else left) for i, v in enumerate(values[4:])], text)
    return Region(values, text, language=language)


def _bad_line(line: _Line, layout: str, where: str) -> Flaw:
    found = len(line.values)
    need = {
        "box": "four",
        "poly": "six or more",
        "rctw": "nine",
        "ctw1500": "28",
        "ctw1500-offsets": "32",
        "yolo-obb": "a class and six or more",
    }.get(layout, "eight")
    kind = "bad-line"
    if found % 2 and layout != "yolo-obb":
        kind = "odd-coordinates"
    elif found in (2, 4):
        kind = "too-few-points"
    what = f"begins with {found} numbers, {need} expected: {brief(line.line.strip())}"
    return Flaw(kind, f"{where} line {line.number}: {what}; left out")


for _name, _layout, _looks_for in (
    (
        "icdar",
        "auto",
        "a text or CSV file per picture (gt_img_1.txt, img_1.txt, 000.csv) with lines of eight "
        "numbers, or of four, and a text",
    ),
    ("icdar-mlt", "mlt", "as icdar, with lines of eight numbers, a script name and a text"),
    ("icdar-poly", "poly", "as icdar, with lines of any even count of numbers and a text"),
    ("rctw", "rctw", "as icdar, with lines of eight numbers, 0 or 1, and a quoted text"),
    ("ctw1500", "ctw1500", "as icdar, with lines of 28 numbers, #### and a text"),
    ("ctw1500-offsets", "ctw1500-offsets", "as icdar, with lines of a box and 28 offsets in it"),
    ("yolo-obb", "yolo-obb", "as icdar, with lines of a class and eight shares of the size"),
):
    register(Icdar(_name, _layout, _looks_for))
