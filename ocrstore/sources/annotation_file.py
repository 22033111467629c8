"""Read annotation files as text or JSON: encodings, duplicate keys, errors with their position."""

from __future__ import annotations

import codecs
import json
import os
from dataclasses import dataclass
from typing import Any

from ocrstore.annotation import ReadableFile
from ocrstore.errors import SourceError
from ocrstore.keys import shown

_HEAD_NBYTES = 1 << 16
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


class AnnotationFile:
    """One annotation file, read lazily; JSON is parsed once. Keeps no file open."""

    def __init__(self, path: ReadableFile, relative: str) -> None:
        self.path = path
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
        """The relative path, escaped for messages."""
        return shown(self.relative)

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

    def document(self) -> dict[str, Any]:
        """Return the parsed JSON if it is an object, else {}; for recognising only."""
        if not self.looks_like_json():
            return {}
        try:
            value, _ = self.json()
        except UnusableAnnotationError:
            return {}
        return value if isinstance(value, dict) else {}

    def unread(self) -> AnnotationFile:
        """Return a copy without cached content, cheap to pickle."""
        return AnnotationFile(self.path, self.relative)
