"""Read annotation files as text, JSON or XML: encodings, duplicate keys, where errors are."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from ocrstore.annotation import ReadableFile
from ocrstore.errors import SourceError
from ocrstore.keys import shown

_HEAD_NBYTES = 1 << 16
LINE_END = re.compile(r"\r\n|\n|\r")
"""Not `str.splitlines`, which also splits at U+2028 and the like."""
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16: its mark begins with that one
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something wrong in an annotation, before it is known which sample it concerns."""

    kind: str
    message: str
    region: bool = True
    """True when it stands in place of a region, and takes its position."""


class UnusableAnnotationError(SourceError):
    """An annotation as a whole cannot be used."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return self.message


def decode_text(data: bytes, *, where: str, whole: bool = True) -> tuple[str, Flaw | None]:
    """Decode by byte order mark, else as UTF-8, else as Latin-1 with a flaw; never fail.

    With `whole=False` a character cut off at the end is left out.
    """
    encoding, skip = "utf-8", 0
    for mark, name in _BOMS:
        if data.startswith(mark):
            encoding, skip = name, len(mark)
            break
    try:
        return codecs.getincrementaldecoder(encoding)().decode(data[skip:], final=whole), None
    except UnicodeDecodeError as exc:
        at = skip + exc.start
        message = f"{where}: not {encoding} at byte {at} (0x{data[at]:02x}); read as Latin-1"
        # every byte has a meaning in Latin-1, so nothing is lost and the bytes can be restored
        return data[skip:].decode("latin-1"), Flaw("not-utf8", message, region=False)


def parse_json(text: str, *, where: str) -> tuple[Any, list[Flaw]]:
    """Parse JSON in linear time, keeping the first of duplicate keys with a flaw for each."""
    flaws: list[Flaw] = []

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            result = {}
            for key, value in pairs:
                if key in result:
                    message = f"{where}: the key {shown(key)!r} stands twice in one object"
                    flaws.append(Flaw("duplicate-json-key", message, region=False))
                else:
                    result[key] = value
        return result

    try:
        return json.loads(text, object_pairs_hook=build), flaws
    except json.JSONDecodeError as exc:
        message = f"{where}: not JSON at line {exc.lineno}, column {exc.colno}: {exc.msg}"
        raise UnusableAnnotationError("bad-json", message) from exc
    except RecursionError as exc:
        raise UnusableAnnotationError("bad-json", f"{where}: JSON nested too deeply") from exc
    except ValueError as exc:  # an integer of thousands of digits
        raise UnusableAnnotationError("bad-json", f"{where}: not usable JSON: {exc}") from exc


def _xml_parser(where: str) -> expat.XMLParserType:
    """Return a parser that refuses entities: they expand without bound, or name other files."""

    def refuse(name: str, *_: object) -> None:
        message = f"{where}: declares the entity {shown(name)!r}; XML with entities is not read"
        raise UnusableAnnotationError("bad-xml", message)

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.EntityDeclHandler = refuse
    return parser


def parse_xml(text: str, *, where: str) -> Element:
    """Parse XML without a document type's entities."""
    parser, tree = _xml_parser(where), TreeBuilder()
    parser.StartElementHandler = tree.start
    parser.EndElementHandler = tree.end
    parser.CharacterDataHandler = tree.data
    try:
        parser.Parse(text.lstrip(), True)
    except expat.ExpatError as exc:
        message = f"{where}: not XML at line {exc.lineno}: {expat.errors.messages[exc.code]}"
        raise UnusableAnnotationError("bad-xml", message) from exc
    return tree.close()


class AnnotationFile:
    """One annotation file, read lazily; JSON is parsed once. Keeps no file open."""

    def __init__(self, path: ReadableFile, relative: str, listed_as: str = "") -> None:
        self.path = path
        self._listed_as = listed_as
        self.relative = relative
        """POSIX path from the annotations folder (or just the name)."""
        self._head: str | None = None
        self._json: tuple[Any, list[Flaw]] | UnusableAnnotationError | None = None

    @property
    def stem(self) -> str:
        """The relative path without its last suffix."""
        return os.path.splitext(self.relative)[0]  # noqa: PTH122 - a name, with POSIX slashes

    @property
    def shown(self) -> str:
        """The relative path, or that of a list file as given there, escaped for messages."""
        return shown(self._listed_as or self.relative)

    @property
    def head(self) -> str:
        """The first 64 KB as text, whole lines only when the file is longer; "" if unreadable."""
        if self._head is None:
            try:
                with self.path.open("rb") as stream:
                    data = stream.read(_HEAD_NBYTES)
                    more = bool(stream.read(1))
            except OSError:
                data, more = b"", False
            text, _ = decode_text(data, where=self.shown, whole=not more)
            if more and "\n" in text:
                text = text[: text.rindex("\n") + 1]
            self._head = text
        return self._head

    def text(self) -> tuple[str, Flaw | None]:
        """Return the whole text, and a flaw if its encoding is wrong."""
        try:
            data = self.path.read_bytes()
        except OSError as exc:
            message = f"{self.shown}: cannot be read: {exc.strerror}"
            raise UnusableAnnotationError("unreadable-annotation", message) from exc
        return decode_text(data, where=self.shown)

    def json(self) -> tuple[Any, list[Flaw]]:
        """Return the parsed JSON and its flaws; raise UnusableAnnotationError if it is not JSON."""
        if self._json is None:
            try:
                text, flaw = self.text()
                value, flaws = parse_json(text, where=self.shown)
                self._json = value, ([flaw] if flaw else []) + flaws
            except UnusableAnnotationError as exc:
                self._json = exc
        if isinstance(self._json, UnusableAnnotationError):
            raise self._json
        return self._json

    def looks_like_json(self) -> bool:
        """Whether the file begins as a JSON object or list does, without reading all of it."""
        return self.head.lstrip()[:1] in ("{", "[")

    def value(self) -> Any:
        """Return the parsed JSON, None if it is none; for recognising only."""
        if not self.looks_like_json():
            return None
        try:
            return self.json()[0]
        except UnusableAnnotationError:
            return None

    def document(self) -> dict[str, Any]:
        """Return the parsed JSON if it is an object, else {}; for recognising only."""
        value = self.value()
        return value if isinstance(value, dict) else {}

    def first_object(self) -> dict[str, Any]:
        """Return the JSON object of the whole file, or of its first line; for recognising only."""
        value = self.value()
        if value is None and self.looks_like_json():
            try:
                value = next(self.json_lines(), ("", None))[1]
            except UnusableAnnotationError:
                return {}
        return value if isinstance(value, dict) else {}

    def json_lines(self) -> Iterator[tuple[str, Any]]:
        """Yield where each line that is not empty stands, and its JSON; or a Flaw in its place."""
        text, flaw = self.text()
        if flaw:
            yield self.shown, flaw
        for number, line in enumerate(LINE_END.split(text), start=1):
            if line.strip():
                where = f"{self.shown} line {number}"
                try:
                    value, flaws = parse_json(line, where=where)
                except UnusableAnnotationError as exc:
                    yield where, Flaw(exc.kind, f"{exc.message}; left out", region=False)
                else:
                    yield from ((where, found) for found in flaws)
                    yield where, value

    def xml(self) -> tuple[Element, Flaw | None]:
        """Return the root of an XML file, and a flaw if its encoding is wrong."""
        text, flaw = self.text()
        return parse_xml(text, where=self.shown), flaw

    def xml_elements(self) -> list[tuple[str, dict[str, str]]]:
        """Return names and attributes of the elements in the head; for recognising only."""
        found: list[tuple[str, dict[str, str]]] = []
        if self.head.lstrip()[:1] == "<":
            parser = _xml_parser(self.shown)
            parser.StartElementHandler = lambda name, attributes: found.append((name, attributes))
            try:
                parser.Parse(self.head.lstrip(), False)
            except (expat.ExpatError, UnusableAnnotationError):
                return found
        return found

    def unread(self) -> AnnotationFile:
        """Return a copy without cached content, cheap to pickle."""
        return AnnotationFile(self.path, self.relative, self._listed_as)
