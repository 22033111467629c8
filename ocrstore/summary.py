"""What a store is and costs, as one record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ocrstore.format.columns import Column
from ocrstore.store import Store


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """One column's spec and cost."""

    name: str
    spec: Column
    stored_nbytes: int
    decoded_nbytes: int
    min_shape: tuple[int, ...]
    max_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """Facts about one generation of a store."""

    path: str
    nbytes: int
    format_version: str
    generation: int
    generations: tuple[int, ...]
    samples: int
    fingerprint: str
    columns: tuple[ColumnSummary, ...]
    attributes: dict[str, str]
    history: tuple[dict[str, Any], ...]
    resident_nbytes: int | None
    """Bytes in the page cache; None where the system does not tell."""

    @property
    def live_nbytes(self) -> int:
        """Bytes of the rows of this generation."""
        return sum(column.stored_nbytes for column in self.columns)

    def to_json(self) -> dict[str, Any]:
        """Describe everything in JSON terms."""
        return {
            "path": self.path,
            "nbytes": self.nbytes,
            "format": self.format_version,
            "generation": self.generation,
            "generations": list(self.generations),
            "samples": self.samples,
            "fingerprint": self.fingerprint,
            "columns": [
                {
                    "name": column.name,
                    **column.spec.to_json(),
                    "stored_nbytes": column.stored_nbytes,
                    "decoded_nbytes": column.decoded_nbytes,
                    "min_shape": list(column.min_shape),
                    "max_shape": list(column.max_shape),
                }
                for column in self.columns
            ],
            "attributes": self.attributes,
            "history": list(self.history),
            "live_nbytes": self.live_nbytes,
            "resident_nbytes": self.resident_nbytes,
        }


def summarize(store: Store) -> Summary:
    """Gather the facts; no payload is read."""
    snapshot = store.snapshot
    manifest = snapshot.manifest
    return Summary(
        path=str(store.path),
        nbytes=snapshot.mapping.nbytes,
        format_version=".".join(map(str, manifest.version)),
        generation=store.generation,
        generations=tuple(store.generations),
        samples=len(store),
        fingerprint=store.fingerprint,
        columns=tuple(_summarize_column(store, name) for name in store.columns),
        attributes={field.name: str(field.type) for field in snapshot.index.attributes},
        history=tuple(dict(entry) for entry in store.history),
        resident_nbytes=snapshot.mapping.resident_nbytes(),
    )


def _summarize_column(store: Store, name: str) -> ColumnSummary:
    column = store[name]
    shapes = column.shapes.astype(np.int64)
    decoded = int(shapes.prod(axis=1).sum()) * column.spec.numpy_dtype.itemsize
    ends = (shapes.min(axis=0), shapes.max(axis=0)) if len(shapes) else ((), ())
    return ColumnSummary(
        name,
        column.spec,
        int(column.nbytes.sum()),
        decoded,
        tuple(int(size) for size in ends[0]),
        tuple(int(size) for size in ends[1]),
    )
