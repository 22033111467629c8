"""A memory-mapped columnar data-set format for training text detectors.

>>> import ocrstore
>>> with ocrstore.create(
...     "val.ocrs", {"image": ocrstore.Column("uint8", (None, None, 3))}
... ) as writer:
...     writer.append("img_1.jpg", {"image": pixels}, attributes={"width": 1280})
>>> store = ocrstore.open("val.ocrs")
>>> store["image"][0]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    WorkerDiedError,
    WriteError,
)
from ocrstore.format.columns import Column, Encoded
from ocrstore.format.editing import add_column, add_columns, compact
from ocrstore.format.writer import Writer, append, create
from ocrstore.store import Store, StoredColumn
from ocrstore.store import open_store as open
from ocrstore.verify import verify
from ocrstore.version import __version__

if TYPE_CHECKING:
    from ocrstore.building.add_view import add_view
    from ocrstore.building.build import build
    from ocrstore.building.check_source import check_source
    from ocrstore.recipe import Recipe

# what needs decoders is imported when it is first used: reading a store needs none of it
_BUILDING = {
    "Recipe": "ocrstore.recipe",
    "add_view": "ocrstore.building.add_view",
    "build": "ocrstore.building.build",
    "check_source": "ocrstore.building.check_source",
}

__all__ = [
    "Column",
    "CorruptStoreError",
    "DecodeError",
    "Encoded",
    "NotAStoreError",
    "OCRStoreError",
    "Recipe",
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
    "WorkerDiedError",
    "WriteError",
    "Writer",
    "__version__",
    "add_column",
    "add_columns",
    "add_view",
    "append",
    "build",
    "check_source",
    "compact",
    "create",
    "open",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _BUILDING:
        raise AttributeError(f"module 'ocrstore' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_BUILDING[name]), name)
