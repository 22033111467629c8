"""Read pictures and their annotations from folders and files; one module per dialect.

`open_source` returns a `Source`; iterating it yields samples; `register` makes a new `Dialect`
known. Importing this package registers the dialects that come with it.
"""

from ocrstore.keys import key_of, path_of
from ocrstore.sources import (
    art,
    coco,
    ctw1500,
    cvat,
    doctr,
    funsd,
    hiertext,
    icdar,
    labelme,
    labelstudio,
    matlab,
    mmocr,
    msra,
    paddle,
    totaltext,
    via,
    voc,
    webdataset,
    wildreceipt,
    words,
)
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
    "art",
    "coco",
    "ctw1500",
    "cvat",
    "doctr",
    "funsd",
    "get_dialect",
    "hiertext",
    "icdar",
    "key_of",
    "labelme",
    "labelstudio",
    "matlab",
    "mmocr",
    "msra",
    "open_source",
    "paddle",
    "path_of",
    "register",
    "totaltext",
    "unregister",
    "via",
    "voc",
    "webdataset",
    "wildreceipt",
    "words",
]
