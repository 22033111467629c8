"""The dialect of annotations that are at hand when a source is opened: rows of tables, Python."""

from __future__ import annotations

from collections.abc import Iterable

from ocrstore.sources.annotation_file import AnnotationFile, Flaw, UnusableAnnotationError
from ocrstore.sources.dialect import Dialect, Entry, Region


class RowDialect(Dialect):
    """Entries hold their regions: points, text, flag, language. Not registered.

    A `Flaw` stands in place of a region, or of all regions of a picture.
    """

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
        if isinstance(entry.record, Flaw):
            raise UnusableAnnotationError(entry.record.kind, entry.record.message)
        assert isinstance(entry.record, list)
        for region in entry.record:
            yield region if isinstance(region, Flaw) else Region(*region)
