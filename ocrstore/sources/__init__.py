"""Read pictures and their annotations from folders and files; one module per dialect.

`open_source` returns a `Source`; iterating it yields samples; `register` makes a new `Dialect`
known. Importing this package registers the dialects that come with it.
"""

from ocrstore.keys import key_of, path_of
from ocrstore.sources import coco, icdar, labelme, mmocr, paddle, webdataset, words
from ocrstore.sources.annotation_file import AnnotationFile, Flaw, UnusableAnnotationError
from ocrstore.sources.dialect import (
    Dialect,
    Entry,
    Region,
    all_dialects,
    get_dialect,
    register,
    unregister,
)
from ocrstore.sources.source import Source, open_source

__all__ = [
    "AnnotationFile",
    "Dialect",
    "Entry",
    "Flaw",
    "Region",
    "Source",
    "UnusableAnnotationError",
    "all_dialects",
    "coco",
    "get_dialect",
    "icdar",
    "key_of",
    "labelme",
    "mmocr",
    "open_source",
    "paddle",
    "path_of",
    "register",
    "unregister",
    "webdataset",
    "words",
]
