"""A plain folder of pictures: no annotations, and none are looked for when it is named."""

from __future__ import annotations

from collections.abc import Iterator

from ocrstore.sources.annotation_file import AnnotationFile, Flaw
from ocrstore.sources.dialect import Dialect, Entry, Region, register


@register
class Folder(Dialect):
    """Pictures alone; every sample is not annotated."""

    name = "folder"
    looks_for = "a folder of pictures without annotations"
    suffixes = ()

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise nothing: no file is an annotation here."""
        del file
        return False

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Give nothing."""
        del file
        yield from ()

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Give nothing."""
        del entry
        yield from ()
