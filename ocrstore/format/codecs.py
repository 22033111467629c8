"""Encode and decode rows: raw, zstd, lz4 (FORMAT.md 5.4). JPEG bytes are stored as given."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ocrstore.errors import CorruptStoreError
from ocrstore.format.columns import Column

ZSTD_LEVEL = 3


def encode_row(column: Column, array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes to store for a conforming array; for `raw` a view of the array itself."""
    flat = array.reshape(-1).view(np.uint8)
    if column.is_raw:
        return flat
    compressed = _codec(column).compress(pa.py_buffer(flat))
    return np.frombuffer(compressed, np.uint8)


def decode_row(
    column: Column, data: memoryview, shape: tuple[int, ...], *, where: str
) -> npt.NDArray[Any]:
    """Decode a zstd or lz4 row into a read-only array of its own."""
    nbytes = column.nbytes_of(shape)
    if nbytes == 0:
        array: npt.NDArray[Any] = np.empty(shape, column.numpy_dtype)
        array.flags.writeable = False
        return array
    try:
        decoded = _decompress(column, data, nbytes)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as exc:
        raise CorruptStoreError(
            f"{where}: its {column.codec} bytes cannot be decoded to shape {shape} ({exc}). Run "
            "`ocrstore verify`; restore the file from a copy or build it again."
        ) from exc
    array = decoded.view(column.numpy_dtype).reshape(shape)
    array.flags.writeable = False  # Arrow's buffers are writable; a row never is
    return array


def _decompress(column: Column, data: memoryview, nbytes: int) -> npt.NDArray[np.uint8]:
    if column.codec == "zstd":
        buffer = _codec(column).decompress(pa.py_buffer(data), decompressed_size=nbytes)
        return np.frombuffer(buffer, np.uint8)
    # Codec.decompress() of lz4 does not report a frame that is shorter than asked for
    decoded = np.empty(nbytes, np.uint8)
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "lz4") as stream:
        found = stream.readinto(decoded)
        if found != nbytes or stream.read(1):
            raise ValueError(
                f"{nbytes} bytes expected, {'more' if found == nbytes else found} found"
            )
    return decoded


def _codec(column: Column) -> pa.Codec:
    if column.codec == "zstd":
        return pa.Codec("zstd", compression_level=ZSTD_LEVEL)
    return pa.Codec("lz4")
