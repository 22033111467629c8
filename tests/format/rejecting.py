"""The table of wrong files: how a row of it is entered and checked; the good store behind it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import ocrstore
from tools import crafting as craft

REMEDY = re.compile(
    r"restore|build it again|update ocrstore|check|copy|`ocrstore |run the build|name the file",
    re.I,
)
COLUMNS = {
    "image": ocrstore.Column("uint8", (None, None, 3)),
    "map": ocrstore.Column("float16", (48, 48)),
    "tags": ocrstore.Column("int32", (None,), codec="zstd"),
    "fast": ocrstore.Column("int32", (None,), codec="lz4"),
    "block": ocrstore.Column("int32", (None,), codec="lz4block"),
    "one": ocrstore.Column("float64"),
}


def write_store(path: Path) -> None:
    """Write a small store with one generation and every kind of column."""
    path.write_bytes(_good_store())


@cache
def _good_store() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "good.ocrs"
        _write(path)
        return path.read_bytes()


def _write(path: Path) -> None:
    with ocrstore.create(path, COLUMNS) as writer:
        for row in range(5):
            arrays = {
                "image": np.full((30, 50 + row, 3), row, np.uint8),
                "map": np.full((48, 48), row, np.float16),
                "tags": np.arange(100 + row, dtype=np.int32),
                "fast": np.arange(100 + row, dtype=np.int32),
                "block": np.arange(100 + row, dtype=np.int32),
                "one": np.float64(row),
            }
            attributes = {"text": f"word {row}", "polygons": [[1.0, 2.0, row]], "ok": row > 2}
            writer.append(f"img_{row}.jpg", arrays, attributes=attributes)


@dataclass(frozen=True)
class Case:
    """One way to be wrong."""

    rule: str
    name: str
    make: Callable[[Path], Any]
    error: type[Exception]
    words: str
    action: Callable[[Path], Any] = ocrstore.open


class Cases(list[Case]):
    """A table of cases, filled by a decorator or by name."""

    def add(
        self, rule: str, error: type[Exception], words: str, **options: Any
    ) -> Callable[..., Any]:
        """Enter the decorated function, which spoils the file at a path."""

        def enter(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
            self.append(Case(rule, make.__name__, make, error, words, **options))
            return make

        return enter

    def add_all(
        self, rule: str, error: type[Exception], words: str, **makers: Callable[[Path], Any]
    ) -> None:
        """Enter several short functions at once."""
        for name, make in makers.items():
            self.append(Case(rule, name, make, error, words))

    @property
    def names(self) -> list[str]:
        """What pytest calls them."""
        return [f"{case.rule}-{case.name}" for case in self]


def check_refusal(case: Case, path: Path) -> None:
    """Spoil a copy of a good store, open it, and look at the error."""
    write_store(path)
    case.make(path)
    with pytest.raises(case.error, match=case.words) as caught:
        case.action(path)
    assert type(caught.value) is case.error
    message = str(caught.value)
    assert str(path) in message
    assert REMEDY.search(message), message
    assert len(message) < 1000


def edit_fields(**changes: Any) -> Callable[[Path], None]:
    """Change fields of the manifest."""
    return lambda path: craft.edit_manifest(path, lambda record: record.update(changes))
