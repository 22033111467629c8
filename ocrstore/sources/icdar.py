"""ICDAR text files, one per picture: numbers, then a text that may contain commas; SROIE's CSV.

Hides the layouts: eight numbers (2015, 2017, 2019, SROIE), four (2013), with a script between
numbers and text (MLT), any even count (Total-Text and kin, only when asked for by name).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ocrstore.sources.annotation_file import AnnotationFile, Flaw, UnusableAnnotationError
from ocrstore.sources.dialect import Dialect, Entry, Region, register
from ocrstore.sources.validate import box_region_points, brief

_NUMBER = r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|inf(?:inity)?)"
_FIELD = {
    # a number counts only when the field ends after it: "12th" is a text
    ",": re.compile(rf"\s*({_NUMBER})\s*(?:,|$)", re.IGNORECASE | re.ASCII),
    " ": re.compile(rf"\s*({_NUMBER})(?:\s+|$)", re.IGNORECASE | re.ASCII),
}
_COMMA_FIRST = re.compile(rf"\s*{_NUMBER}\s*,", re.IGNORECASE | re.ASCII)
_LINE_END = re.compile(r"\r\n|\n|\r")  # not str.splitlines, which also cuts at U+2028 and its kin
_PREFIX = re.compile(r"^(?:poly_)?(?:gt|res)_", re.IGNORECASE)
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
    for number, line in enumerate(_LINE_END.split(text.removeprefix("\ufeff")), start=1):
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


def _layout(lines: list[_Line]) -> str | None:
    """The layout of a file: `quad` if any line begins with eight numbers, `box` if with four."""
    if any(len(line.values) >= 8 for line in lines):
        return "quad"
    if any(len(line.values) == 4 for line in lines):
        return "box"
    return None


def _script(line: _Line) -> bool:
    rest = line.rest(8) if len(line.values) >= 8 else None
    return rest is not None and "," in rest and rest.split(",", 1)[0].strip().lower() in SCRIPTS


def _is_mlt(lines: list[_Line]) -> bool:
    return bool(lines) and all(_script(line) for line in lines)


def _unquoted(text: str) -> str | None:
    """What stands inside a well-formed quoted text; None for any other."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return None
    inner = text[1:-1]
    if '"' in inner.replace('""', "").replace('\\"', ""):
        return None
    return inner.replace('""', '"').replace('\\"', '"')


def _unquote_all(texts: list[str | None]) -> list[str | None]:
    """Take quotes off where a writer put them: around every text, or one that needed them."""
    inner = [None if text is None else _unquoted(text) for text in texts]
    every = all(
        i is not None for text, i in zip(texts, inner, strict=True) if text not in (None, "###")
    )
    return [
        i if i is not None and text and (every or "," in i or '""' in text[1:-1]) else text
        for text, i in zip(texts, inner, strict=True)
    ]


class Icdar(Dialect):
    """ICDAR text files in one of their layouts."""

    suffixes = (".txt", ".csv")
    per_picture = True

    def __init__(self, name: str, layout: str, looks_for: str) -> None:
        self.name = name
        self.looks_for = looks_for
        self._layout = layout

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by lines that begin with eight numbers, or with just four."""
        if self._layout not in ("auto", "mlt") or file.looks_like_json():
            return False
        lines = _lines(file.head)
        if _layout(lines) is None:
            return False
        return _is_mlt(lines) == (self._layout == "mlt")

    def entries(self, file: AnnotationFile) -> Iterable[Entry]:
        """Give the one picture the file is named after: `gt_img_1.txt`, `img_1.jpg.txt`."""
        folder, slash, stem = file.stem.rpartition("/")
        bare = _PREFIX.sub("", stem)
        names = (file.stem,) if bare in (stem, "") else (file.stem, folder + slash + bare)
        yield Entry(names=names, record=file.unread(), where=file.shown)

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Read the file's lines."""
        file = entry.record
        if not isinstance(file, AnnotationFile):
            raise TypeError("an entry of another dialect")
        text, flaw = file.text()
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
        layout = self._layout if self._layout != "auto" else _layout(lines) or "quad"
        counts = [self._count(line, layout) for line in lines]
        rests = [
            line.rest(count) if count else None for line, count in zip(lines, counts, strict=True)
        ]
        languages: list[str | None] = [None] * len(lines)
        if layout == "mlt":
            for i, rest in enumerate(rests):
                if rest is not None:
                    script, _, after = rest.partition(",")
                    languages[i], rests[i] = script.strip(), after.strip()
        if layout == "quad" and lines and all(_even_polygon(line) for line in lines):
            message = (
                f"{where}: every line has ten numbers or more; --format icdar-poly reads polygons"
            )
            yield Flaw("extra-numbers", message, region=False)
        texts = _unquote_all(rests)
        for line, count, text, language in zip(lines, counts, texts, languages, strict=True):
            if count == 0:
                yield _bad_line(line, layout, where)
            elif layout == "box":
                points = box_region_points(line.values[:4], sides=False)
                if isinstance(points, str):
                    yield Flaw("bad-box", f"{where} line {line.number}: {points}; left out")
                else:
                    yield Region(points, text, language=language)
            else:
                yield Region(line.values[:count], text, language=language)

    @staticmethod
    def _count(line: _Line, layout: str) -> int:
        """How many of a line's numbers are coordinates; 0 when they are fewer than needed."""
        found = len(line.values)
        if layout == "poly":
            return found - found % 2 if found >= 6 else 0
        need = 4 if layout == "box" else 8
        return need if found >= need else 0


def _even_polygon(line: _Line) -> bool:
    return len(line.values) >= 10 and len(line.values) % 2 == 0


def _bad_line(line: _Line, layout: str, where: str) -> Flaw:
    found = len(line.values)
    need = {"box": "four", "poly": "six or more"}.get(layout, "eight")
    kind = "bad-line"
    if found % 2:
        kind = "odd-coordinates"
    elif found in (2, 4):
        kind = "too-few-points"
    what = f"begins with {found} numbers, {need} expected: {brief(line.line.strip())}"
    return Flaw(kind, f"{where} line {line.number}: {what}; left out")


register(
    Icdar(
        "icdar",
        "auto",
        "a text or CSV file per picture (gt_img_1.txt, img_1.txt, 000.csv) with lines of eight "
        "numbers, or of four, and a text",
    )
)
register(
    Icdar("icdar-mlt", "mlt", "as icdar, with lines of eight numbers, a script name and a text")
)
register(
    Icdar(
        "icdar-poly",
        "poly",
        "as icdar, with lines of any even count of numbers and a text",
    )
)
