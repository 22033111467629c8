"""A memory-mapped columnar data-set format for training text detectors.

>>> import ocrstore
>>> with ocrstore.create(
...     "val.ocrs", {"image": ocrstore.Column("uint8", (None, None, 3))}
... ) as writer:
...     writer.append("img_1.jpg", {"image": pixels}, attributes={"width": 1280})
>>> store = ocrstore.open("val.ocrs")
>>> store["image"][0]
"""

from ocrstore.errors import (
    CorruptStoreError,
    DecodeError,
    NotAStoreError,
    OCRStoreError,
    RecipeMismatchError,
    SchemaError,
    SourceError,
    StoreBusyError,
    StoreChangedError,
    StoreClosedError,
    StoreExistsError,
    UnknownColumnError,
    UnknownGenerationError,
    UnknownRowError,
    UnknownSampleError,
    UnsupportedFormatError,
    WriteError,
)
from ocrstore.format.columns import Column, Encoded
from ocrstore.format.editing import add_column, add_columns, compact
from ocrstore.format.writer import Writer, append, create
from ocrstore.store import Store, StoredColumn
from ocrstore.store import open_store as open
from ocrstore.verify import verify
from ocrstore.version import __version__

__all__ = [
    "Column",
    "CorruptStoreError",
    "DecodeError",
    "Encoded",
    "NotAStoreError",
    "OCRStoreError",
    "RecipeMismatchError",
    "SchemaError",
    "SourceError",
    "Store",
    "StoreBusyError",
    "StoreChangedError",
    "StoreClosedError",
    "StoreExistsError",
    "StoredColumn",
    "UnknownColumnError",
    "UnknownGenerationError",
    "UnknownRowError",
    "UnknownSampleError",
    "UnsupportedFormatError",
    "WriteError",
    "Writer",
    "__version__",
    "add_column",
    "add_columns",
    "append",
    "compact",
    "create",
    "open",
    "verify",
]
