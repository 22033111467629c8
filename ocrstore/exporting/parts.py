"""The interface of a format: the files that samples become, and how one of them is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ocrstore.exporting.sample_reader import SampleReader
from ocrstore.schema import IMAGE
from ocrstore.store import Store
from ocrstore.views import find_view


class Part(NamedTuple):
    """A file, and the rows that it is made of."""

    name: str
    """Path below the target, with slashes."""
    rows: Sequence[int]


@dataclass(frozen=True, slots=True)
class Request:
    """What to export; None where the caller leaves the choice to the format."""

    store: Store
    rows: Sequence[int]
    columns: Sequence[str] | None = None
    view: str | None = None
    shard_size: int | None = None


class Format(ABC):
    """Writes one format. The parts are planned first, then each is written by itself."""

    takes: ClassVar[tuple[str, ...]] = ("view",)
    """The options that it has a use for, of `columns`, `view` and `shard_size`."""

    def __init__(self, request: Request) -> None:
        self.store = request.store
        self.rows = request.rows
        self.notes: list[str] = []
        """What the format cannot hold and had to be changed; complete after `finish`."""

    @abstractmethod
    def parts(self) -> list[Part]:
        """Return the files with pictures or arrays; equal requests give equal ones."""

    @abstractmethod
    def nbytes(self, rows: list[int]) -> list[int]:
        """Return the most bytes that `encode` will return for each row, about."""

    @abstractmethod
    def encode(self, row: int) -> Any:
        """Return what a sample takes in its file; called by several threads, in order."""

    @abstractmethod
    def write(self, path: Path, samples: Iterator[Any]) -> None:
        """Write one part from what `encode` returned for its rows."""

    def finish(self, folder: Path) -> None:
        """Write the files about all samples, from the index alone; may be called again."""
        del folder


def pictures_of(request: Request) -> SampleReader:
    """Return a reader of the whole pictures; of a view's, if one is named or there is no other."""
    if request.view is None and IMAGE in request.store:
        return SampleReader(request.store, None)
    needs = ("tensor", "inverse_matrix")
    return SampleReader(request.store, find_view(request.store, request.view, needs=needs))
