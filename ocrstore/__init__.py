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
    CheckpointError,
    CorruptStoreError,
    DecodeError,
    FilterError,
    MissingPackageError,
    NotAStoreError,
    OCRStoreError,
    RecipeMismatchError,
    RemoteError,
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
from ocrstore.version import __version__

if TYPE_CHECKING:
    from ocrstore.building.add_view import add_view
    from ocrstore.building.build import build
    from ocrstore.building.convert import convert
    from ocrstore.display import plot
    from ocrstore.exporting.export import export
    from ocrstore.format.column_writer import add_column, add_columns
    from ocrstore.format.columns import Column, Encoded
    from ocrstore.format.compact import compact
    from ocrstore.format.writer import Writer, create, edit
    from ocrstore.recipe import Recipe
    from ocrstore.sources.given import SourceSample
    from ocrstore.store import Store, StoredColumn
    from ocrstore.store import open_store as open
    from ocrstore.verification import verify

# Everything is imported when it is first used: who reads needs no decoders and no LMDB, and
# a training starts a process for every worker. No module below ocrstore/ may have one of these
# names: importing it would put the module in the name's place.
_HOMES = {
    "Column": "ocrstore.format.columns",
    "Encoded": "ocrstore.format.columns",
    "Recipe": "ocrstore.recipe",
    "SourceSample": "ocrstore.sources.given",
    "Store": "ocrstore.store",
    "StoredColumn": "ocrstore.store",
    "Writer": "ocrstore.format.writer",
    "add_column": "ocrstore.format.column_writer",
    "add_columns": "ocrstore.format.column_writer",
    "add_view": "ocrstore.building.add_view",
    "build": "ocrstore.building.build",
    "compact": "ocrstore.format.compact",
    "convert": "ocrstore.building.convert",
    "create": "ocrstore.format.writer",
    "edit": "ocrstore.format.writer",
    "export": "ocrstore.exporting.export",
    "open": "ocrstore.store",
    "plot": "ocrstore.display",
    "verify": "ocrstore.verification",
}

__all__ = [
    "CheckpointError",
    "Column",
    "CorruptStoreError",
    "DecodeError",
    "Encoded",
    "FilterError",
    "MissingPackageError",
    "NotAStoreError",
    "OCRStoreError",
    "Recipe",
    "RecipeMismatchError",
    "RemoteError",
    "SchemaError",
    "SourceError",
    "SourceSample",
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
    "build",
    "compact",
    "convert",
    "create",
    "edit",
    "export",
    "open",
    "plot",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ocrstore' has no attribute {name!r}")
    import importlib

    from ocrstore.packages import explain_imports

    with explain_imports():
        home = importlib.import_module(_HOMES[name])
    value = globals()[name] = getattr(home, "open_store" if name == "open" else name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
