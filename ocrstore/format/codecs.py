"""The codecs: how a row's array is encoded to stored bytes, and decoded (FORMAT.md 5.4)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import cramjam
import numpy as np
import numpy.typing as npt

from ocrstore.errors import CorruptStoreError, DecodeError, SchemaError
from ocrstore.format.layout import DEFAULT_MAX_ROW_NBYTES

if TYPE_CHECKING:
    from ocrstore.format.columns import Column

_Bytes = npt.NDArray[np.uint8]
_ZSTD_LEVEL = 3
ROW_LIMIT = "OCRSTORE_MAX_ROW_NBYTES"
"""The environment variable for how many bytes a compressed row may decode to."""
_LZ4_MAX_RATIO = 255
"""A stored byte of LZ4 stands for at most this many."""


class Codec(NamedTuple):
    """How rows of one codec are stored."""

    encode: Callable[[_Bytes], _Bytes] | None
    """Encodes an array's bytes; None if rows are given encoded (`Encoded`)."""
    decode_into: Callable[[memoryview, memoryview], int] | None = None
    """Decodes into memory, without the GIL, and returns the number of bytes; None if rows are used
    in place, or decoded elsewhere."""
    check: Callable[[memoryview, int], None] = lambda _data, _nbytes: None
    """Raises ValueError if a row cannot decode to this many bytes, before they are allocated."""
    feature: str | None = None
    """What a store with such a column requires of its readers (FORMAT.md 14)."""


# Arrow is imported where it is used: recipes need only the names, and so do workers of a build


def _zstd_encode(data: _Bytes) -> _Bytes:
    import pyarrow as pa

    codec = pa.Codec("zstd", compression_level=_ZSTD_LEVEL)
    return np.frombuffer(codec.compress(pa.py_buffer(data)), np.uint8)


def _zstd_check(data: memoryview, nbytes: int) -> None:
    declared = _zstd_nbytes(data)
    if declared not in (None, nbytes):
        raise ValueError(f"{nbytes} bytes expected, its frames declare {declared}")


def _zstd_nbytes(data: memoryview) -> int | None:
    """Return the size that a row's frames declare, from their headers; None if one does not.

    RFC 8878, 3.1. What is no frame is left to the decoder to refuse.
    """
    at = total = 0
    try:
        while at < len(data):
            magic = int.from_bytes(data[at : at + 4], "little")
            if magic >> 4 == 0x184D2A5:  # a skippable frame
                at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
                continue
            flags = data[at + 4]
            single = flags >> 5 & 1
            width = (single, 2, 4, 8)[flags >> 6]
            if magic != 0xFD2FB528 or not width:
                return None
            at += 6 - single + (0, 1, 2, 4)[flags & 3]
            declared = int.from_bytes(data[at : at + width], "little")
            total += declared + (256 if width == 2 else 0)
            at += width
            last = 0
            while not last:
                block = data[at] | data[at + 1] << 8 | data[at + 2] << 16
                last = block & 1
                at += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)  # 1: one byte, repeated
            at += 4 * (flags >> 2 & 1)  # a checksum
    except IndexError:  # cut off
        return None
    return total


def _lz4_encode(data: _Bytes) -> _Bytes:
    import pyarrow as pa

    return np.frombuffer(pa.Codec("lz4").compress(pa.py_buffer(data)), np.uint8)


def _lz4_check(data: memoryview, nbytes: int) -> None:
    if len(data) > 14 and data[4] & 8:  # the frame's header has the size
        declared = int.from_bytes(data[6:14], "little")
        if declared != nbytes:
            raise ValueError(f"{nbytes} bytes expected, its frame declares {declared}")


def _lz4block_encode(data: _Bytes, head: bytes = b"") -> _Bytes:
    # into memory that nobody has cleared: `compress_block` takes half as long again
    row = np.empty(len(head) + cramjam.lz4.compress_block_bound(data.data), np.uint8)
    row[: len(head)] = np.frombuffer(head, np.uint8)
    nbytes = cramjam.lz4.compress_block_into(data.data, row[len(head) :].data, store_size=False)
    return row[: len(head) + nbytes]


def _lz4block_decode_into(data: memoryview, out: memoryview) -> int:
    return cramjam.lz4.decompress_block_into(data, out, output_len=out.nbytes)


def _lz4block_check(data: memoryview, nbytes: int) -> None:
    if nbytes > _LZ4_MAX_RATIO * len(data):
        raise ValueError(f"{nbytes} bytes expected, {len(data)} stored bytes cannot hold as many")


LOSSLESS = "lz4block"
"""The codec of presets and of pixels without a file."""
_PIXELS = b"OCRSPIX1"  # no picture file starts like this


def _pixels_encode(data: _Bytes) -> _Bytes:
    """Encode the pixels of a picture that has no file to keep (FORMAT.md 5.4, `file`)."""
    return _lz4block_encode(data, _PIXELS)


CODECS = {
    "raw": Codec(lambda data: data),
    "zstd": Codec(_zstd_encode, cramjam.zstd.decompress_into, _zstd_check),
    "lz4": Codec(_lz4_encode, cramjam.lz4.decompress_into, _lz4_check),
    "lz4block": Codec(_lz4block_encode, _lz4block_decode_into, _lz4block_check, "lz4block"),
    # the source's own bytes; store.py has them decoded to a picture
    "jpeg": Codec(None),
    "file": Codec(_pixels_encode, feature="file"),
}
"""All codecs, by the name they have in the manifest."""

KNOWN_FEATURES = frozenset(codec.feature for codec in CODECS.values() if codec.feature)
"""Required features this version understands; a store that needs any other is refused."""


def encode_row(column: Column, array: npt.NDArray[Any]) -> _Bytes:
    """Return the bytes to store for a conforming array; for `raw` a view of the array itself."""
    encode = CODECS[column.codec].encode
    if encode is None:
        raise TypeError(f"rows of a {column.codec} column are given encoded")
    return encode(array.reshape(-1).view(np.uint8))


def row_limit(given: int | None = None) -> int:
    """Return how many bytes a row may decode to: `given`, else the environment's, else 600 MB."""
    text = os.environ.get(ROW_LIMIT, str(DEFAULT_MAX_ROW_NBYTES))
    if given is None and not text.isdecimal():
        raise SchemaError(f"{ROW_LIMIT}={text!r}: expected a number of bytes")
    return int(text) if given is None else given


def is_picture_file(column: Column, data: memoryview) -> bool:
    """Return whether a row is a picture's own file, which `ocrstore.decode` decodes."""
    return column.codec == "jpeg" or (
        column.codec == "file" and bytes(data[: len(_PIXELS)]) != _PIXELS
    )


def check_row_nbytes(column: Column, shape: tuple[int, ...], limit: int, *, where: object) -> None:
    """Raise DecodeError if a row of this shape has more bytes, before anything is allocated."""
    nbytes = column.nbytes_of(shape)
    if nbytes > limit:
        raise DecodeError(
            f"{where}: decodes to {nbytes} bytes, shape {shape}; the limit is {limit}. If you "
            f"trust the store, set {ROW_LIMIT}={nbytes} in the environment, or pass "
            f"max_row_nbytes={nbytes} to ocrstore.open or OCRStoreDataset"
        )


def decode_row(
    column: Column,
    data: memoryview,
    shape: tuple[int, ...],
    *,
    where: object,
    limit: int | None = None,
    empty: Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]] = np.empty,
) -> npt.NDArray[Any]:
    """Decode a compressed row into an array from `empty`.

    Raises:
        DecodeError: It has more than `limit` bytes (None: `row_limit()`); FORMAT.md 5.4.
        CorruptStoreError: It does not decode to exactly the bytes of its shape.
    """
    if column.codec == "file":  # the pixels of a picture without a file
        column, data = replace(column, codec=LOSSLESS), data[len(_PIXELS) :]
    check_row_nbytes(column, shape, row_limit(limit), where=where)
    nbytes = column.nbytes_of(shape)
    try:
        if nbytes:
            CODECS[column.codec].check(data, nbytes)
        array = empty(shape, column.numpy_dtype)
    except (ValueError, MemoryError) as exc:
        raise _undecodable(column, shape, where, exc) from exc
    decode_row_into(column, data, array, where=where)
    return array


def decode_row_into(
    column: Column, data: memoryview, out: npt.NDArray[Any], *, where: object
) -> None:
    """Decode a compressed row into `out`, a C-contiguous array of its shape.

    Releases the GIL, allocates nothing, and writes nothing outside of `out`. After an error the
    content of `out` is undefined.

    Raises:
        CorruptStoreError: It does not decode to exactly the bytes of `out`.
    """
    decode_into = CODECS[column.codec].decode_into
    if decode_into is None:
        raise TypeError(f"rows of a {column.codec} column are not compressed")
    if not out.flags.c_contiguous:
        raise ValueError("rows are decoded into C-contiguous memory only")
    if not out.nbytes:
        return  # FORMAT.md 5.4: the stored bytes of an empty array do not count
    try:
        found = decode_into(data, out.reshape(-1).view(np.uint8).data)
        if found != out.nbytes:
            raise ValueError(f"{out.nbytes} bytes expected, {found} found")
    except (cramjam.DecompressionError, ValueError, MemoryError) as exc:
        raise _undecodable(column, out.shape, where, exc) from exc


def _undecodable(
    column: Column, shape: tuple[int, ...], where: object, exc: Exception
) -> CorruptStoreError:
    return CorruptStoreError(
        f"{where}: its {column.codec} bytes cannot be decoded to shape {shape} ({exc}). Run "
        "`ocrstore verify`; restore the file from a copy or build it again."
    )
