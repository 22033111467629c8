"""Write the golden stores: `python tests/golden/make_golden.py [folder]`.

One of format 1.0, and one for each feature since. Their content is a function of the row number
alone and is written out again, independently, in `tests/format/test_golden.py`. The stores in this
folder are never made again: they stand for all stores of their kind that exist, and every later
version reads them.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import ocrstore
from ocrstore import Column, Encoded
from ocrstore.format import publish

EPOCH = 1_750_000_000  # 2025-06-15T15:06:40Z
WRITER = "0.1.0"  # the version that goes into the history, whatever this one is

COLUMNS = {
    "image": Column("uint8", (None, None, 3)),
    "tensor": Column("uint8", (32, 32, 4)),
    "prob_map": Column("float16", (8, 8)),
    "score": Column("float64", ()),
    "words": Column("int32", (None,)),
    "labels": Column("int64", (None, 2), codec="zstd"),
    "mask": Column("bool", (16, 16), codec="lz4"),
    "scan": Column("uint8", (None, None, 3), codec="jpeg"),
}

ATTRIBUTES = pa.schema(
    [
        ("width", pa.int32()),
        ("polygons", pa.list_(pa.list_(pa.float32()))),
        ("texts", pa.list_(pa.string())),
        ("ignored", pa.list_(pa.bool_())),
        ("origin", pa.struct([("folder", pa.string()), ("number", pa.uint16())])),
        ("corner", pa.list_(pa.float64(), 2)),
        ("digest", pa.binary()),
        ("weight", pa.float16()),
    ]
)

METADATA = {"made_for": "tests", "nested": {"list": [1, 2.5, None, True, "é"]}}

# an 8x8 picture; embedded, because another encoder would give other bytes
JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERX"
    "RTc4UG1RV19iZ2hnPk1xeXBkeFxlZ2P/2wBDARESEhgVGC8aGi9jQjhCY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2Nj"
    "Y2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2P/wAARCAAIAAgDASIAAhEBAxEB/8QAHwAAAQUBAQEBAQEAAAAAAAAA"
    "AAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKBkaEII0KxwRVS0fAk"
    "M2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKT"
    "lJWWl5iZmqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/8QA"
    "HwEAAwEBAQEBAQEBAQAAAAAAAAECAwQFBgcICQoL/8QAtREAAgECBAQDBAcFBAQAAQJ3AAECAxEEBSExBhJBUQdh"
    "cRMiMoEIFEKRobHBCSMzUvAVYnLRChYkNOEl8RcYGRomJygpKjU2Nzg5OkNERUZHSElKU1RVVldYWVpjZGVmZ2hp"
    "anN0dXZ3eHl6goOEhYaHiImKkpOUlZaXmJmaoqOkpaanqKmqsrO0tba3uLm6wsPExcbHyMnK0tPU1dbX2Nna4uPk"
    "5ebn6Onq8vP09fb3+Pn6/9oADAMBAAIRAxEAPwChpuhbsfJRRRXJS9+N2Xg8ZV9ktT//2Q=="
)


def arrays(row: int) -> dict[str, Any]:
    """Return what row number `row` holds (the replaced sample gets the number 13)."""
    height, width = (40, 34 + row) if row % 4 == 1 else (2, 1 + row)
    image = np.arange(height * width * 3) * (row + 1) % 251
    return {
        "image": image.astype(np.uint8).reshape(height, width, 3),
        "tensor": ((np.arange(4096) + row) % 256).astype(np.uint8).reshape(32, 32, 4),
        "prob_map": (np.arange(64).reshape(8, 8) / 64 + row).astype(np.float16),
        "score": np.float64(row) / 8,
        "words": np.arange(row % 3, dtype=np.int32) - row,
        "labels": np.arange(row * 2, dtype=np.int64).reshape(row, 2) * 10**10,
        "mask": np.tri(16, 16, row % 16 - 8, dtype=np.bool_),
        "scan": Encoded(JPEG, (8, 8, 3)),
    }


def attributes(row: int) -> dict[str, Any]:
    """Return the attributes of row number `row`; every third sample has none."""
    if row % 3 == 2:
        return {}
    return {
        "width": 41 + row,
        "polygons": [[0.0, 0.5, row, 0.5, row, 9.25], []][: row + 1],
        "texts": [f"größe {row}", None, ""],
        "ignored": [True, None, False],
        "origin": {"folder": "a/b", "number": None if row == 1 else row},
        "corner": [row + 0.1, -0.0],
        "digest": bytes([row, 0, 255]),
        "weight": np.float16(row / 3),
    }


def edge_map(position: int) -> np.ndarray[Any, Any]:
    """Return the array that generation 3 adds at this position of the store."""
    return np.full((2, 2), position - 2, np.int8)


@contextmanager
def fixed_history() -> Iterator[None]:
    """Record a fixed time and version in the history."""
    before = os.environ.get("SOURCE_DATE_EPOCH"), publish.__version__
    os.environ["SOURCE_DATE_EPOCH"], publish.__version__ = str(EPOCH), WRITER
    try:
        yield
    finally:
        publish.__version__ = before[1]
        if before[0] is None:
            del os.environ["SOURCE_DATE_EPOCH"]
        else:
            os.environ["SOURCE_DATE_EPOCH"] = before[0]


@fixed_history()
def make(target: Path) -> None:
    """Write format 1.0 in three generations: created, changed, given one more column."""
    with ocrstore.create(
        target, COLUMNS, attributes=ATTRIBUTES, metadata=METADATA, overwrite=True
    ) as writer:
        for row in range(4):
            writer.append(f"img/{row}.jpg", arrays(row), attributes=attributes(row))
    with ocrstore.edit(target, action="append") as writer:
        writer.replace("img/1.jpg", arrays(13), attributes=attributes(13))
        writer.delete("img/2.jpg")
        writer.append("ünï/6.jpg", arrays(6), attributes=attributes(6))
    ocrstore.add_column(target, "view/edge_map", Column("int8", (2, 2)), map(edge_map, range(4)))


BLOCK_COLUMNS = {
    "prob_map": Column("float16", (64, 64), codec="lz4block"),
    "image": Column("uint8", (None, None, 3), codec="lz4block"),
    "score": Column("float64", (), codec="lz4block"),
    "mask": Column("bool", (16, 16), codec="lz4block"),
    "row": Column("int32", ()),
}


def block_arrays(row: int) -> dict[str, Any]:
    """Return what row number `row` holds: runs, noise, a scalar, and empty arrays in row 0."""
    noise = np.arange(row * 40 * 3, dtype=np.uint64) * 2654435761 % 2**32 >> 24
    return {
        "prob_map": (np.arange(4096).reshape(64, 64) // 100 == row).astype(np.float16),
        "image": noise.astype(np.uint8).reshape(row, 40, 3),
        "score": np.float64(row) / 8,
        "mask": np.tri(16, 16, row, dtype=np.bool_),
        "row": np.int32(row),
    }


@fixed_history()
def make_lz4block(target: Path) -> None:
    """Write one generation of format 1.1 with columns of the codec lz4block."""
    with ocrstore.create(target, BLOCK_COLUMNS, overwrite=True) as writer:
        for row in range(4):
            writer.append(f"{row}.jpg", block_arrays(row))


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAIAAAASFvFNAAAAE0lEQVR4nGPkYmCAIEYGBg0IGwADXABdy/72UgAA"
    "AABJRU5ErkJggg=="
)


@fixed_history()
def make_file(target: Path) -> None:
    """Write one generation with a column of the codec file: two files, and pixels without one."""
    columns = {"image": Column("uint8", (None, None, 3), codec="file")}
    pixels = (np.arange(4 * 50 * 3) // 75).astype(np.uint8).reshape(4, 50, 3)
    with ocrstore.create(target, columns, overwrite=True) as writer:
        writer.append("a.jpg", {"image": Encoded(JPEG, (8, 8, 3))})
        writer.append("b.png", {"image": Encoded(PNG, (2, 3, 3))})
        writer.append("c", {"image": pixels})


STORES = {"format-1.0.ocrs": make, "lz4block.ocrs": make_lz4block, "file.ocrs": make_file}

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, write in STORES.items():
        if not (folder / name).exists():
            write(folder / name)
