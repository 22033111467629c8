"""How a row's array becomes stored bytes and back: raw, zstd, lz4. JPEG bytes pass through."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ocrstore.errors import CorruptStoreError
from ocrstore.format.columns import Column

ZSTD_LEVEL = 3


def encode_row(column: Column, array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes to store for a conforming array; for `raw` they are the array's own."""
    flat = array.reshape(-1).view(np.uint8)
    if column.is_raw:
        return flat
    compressed = _codec(column).compress(pa.py_buffer(flat))
    return np.frombuffer(compressed, np.uint8)


def decode_row(
    column: Column, data: memoryview, shape: tuple[int, ...], *, where: str
) -> npt.NDArray[Any]:
    """Return the read-only array of a zstd or lz4 row."""
    nbytes = column.nbytes_of(shape)
    if nbytes == 0:
        array: npt.NDArray[Any] = np.empty(shape, column.numpy_dtype)
        array.flags.writeable = False
        return array
    try:
        buffer = _codec(column).decompress(pa.py_buffer(data), decompressed_size=nbytes)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as exc:
        raise CorruptStoreError(
            f"{where}: its {column.codec} bytes cannot be decoded ({exc}). Run `ocrstore verify`."
        ) from exc
    if buffer.size != nbytes:
        raise CorruptStoreError(
            f"{where}: decoded to {buffer.size} bytes, its shape {shape} needs {nbytes}."
        )
    return np.frombuffer(buffer, column.numpy_dtype).reshape(shape)


def _codec(column: Column) -> pa.Codec:
    if column.codec == "zstd":
        return pa.Codec("zstd", compression_level=ZSTD_LEVEL)
    return pa.Codec("lz4")
