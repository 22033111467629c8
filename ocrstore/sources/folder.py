"""A folder of pictures without annotations."""

from __future__ import annotations

from collections.abc import Iterator

from ocrstore.sources.annotation_file import AnnotationFile, Flaw
from ocrstore.sources.dialect import Dialect, Entry, Region, register


@register
class Folder(Dialect):
    """Pictures only; no sample is annotated."""

    name = "folder"
    looks_for = "a folder of pictures without annotations"
    suffixes = ()

    def recognise(self, file: AnnotationFile) -> bool:
        """Return False: no file is an annotation."""
        del file
        return False

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Yield nothing."""
        del file
        yield from ()

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield nothing."""
        del entry
        yield from ()
