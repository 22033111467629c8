"""The dialect of annotations that are at hand when a source is opened: rows of tables, Python."""

from __future__ import annotations

from collections.abc import Iterable

from ocrstore.sources.annotation_file import AnnotationFile, Flaw
from ocrstore.sources.dialect import Dialect, Entry, Region


class RowDialect(Dialect):
    """Entries hold their regions: points, text, flag, language. Not registered."""

    looks_for = "no file"
    suffixes = ()

    def __init__(self, name: str) -> None:
        self.name = name

    def recognise(self, file: AnnotationFile) -> bool:
        """Return False: rows are no files."""
        del file
        return False

    def regions(self, entry: Entry) -> Iterable[Region | Flaw]:
        """Yield the regions."""
        assert isinstance(entry.record, list)
        for position, (points, text, ignored, language) in enumerate(entry.record):
            flaws: tuple[Flaw, ...] = ()
            if isinstance(ignored, str):  # "no" would be true elsewhere in Python
                message = f"the ignore flag is the text {ignored!a}, not True or False"
                where = f"{entry.where}, region {position}"
                flaws = (Flaw("bad-flag", f"{where}: {message}; taken as false"),)
                ignored = False
            yield Region(points, text, ignored, language, flaws)
