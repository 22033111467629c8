"""PaddleOCR label files: a line per picture, `path<TAB>[{"transcription": ..., "points": ...}]`."""

from __future__ import annotations

from collections.abc import Iterator

from ocrstore.sources.annotation_file import (
    LINE_END,
    AnnotationFile,
    Flaw,
    UnusableAnnotationError,
    parse_json,
)
from ocrstore.sources.dialect import Dialect, Entry, Region, register
from ocrstore.sources.validate import brief, for_file, member

_IGNORED = frozenset({"###", "*"})


@register
class Paddle(Dialect):
    """One text file for all pictures, as PaddleOCR and PPOCRLabel write it."""

    name = "paddleocr"
    looks_for = (
        'a text file (Label.txt) with lines of path<TAB>[{"transcription": ..., "points": ...}]'
    )
    suffixes = (".txt", ".tsv")

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by a JSON list after the tab of the first line that is not empty."""
        line = file.head.lstrip().partition("\n")[0]
        path, tab, payload = line.partition("\t")
        return bool(path and tab) and payload.lstrip().startswith("[") and '"points"' in file.head

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Yield one entry per line; its JSON is parsed later."""
        text, flaw = file.text()
        if flaw:
            yield flaw
        for number, line in enumerate(LINE_END.split(text), start=1):
            if not line.strip():
                continue
            where = f"{file.shown} line {number}"
            path, tab, payload = line.partition("\t")
            if not tab:
                message = f"{where}: no tab between path and regions: {brief(line)}; left out"
                yield Flaw("bad-line", message, region=False)
            elif not path.strip():
                yield Flaw("bad-name", f"{where}: no path before the tab; left out", region=False)
            else:
                yield Entry(names=(path,), record=payload, where=where)

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Parse the line's JSON."""
        value, flaws = parse_json(str(entry.record), where=entry.where)
        yield from map(for_file, flaws)
        if not isinstance(value, list):
            message = f"{entry.where}: expected a JSON list, found {brief(value)}"
            raise UnusableAnnotationError("bad-structure", message)
        for i, region in enumerate(value):
            points = member(region, "points", object, where=f"{entry.where}, region {i}")
            if isinstance(points, Flaw):
                yield points
                continue
            shown = region.get("transcription")
            ignored = (
                True if isinstance(shown, str) and shown in _IGNORED else region.get("difficult")
            )
            if "text" in region:  # an export, whose transcription is for PaddleOCR
                shown, ignored = region["text"], region.get("difficult")
            yield Region(points, shown, ignored=ignored, language=region.get("language"))
