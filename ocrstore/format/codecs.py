"""The codecs: how a row's array is encoded to stored bytes, and decoded (FORMAT.md 5.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ocrstore.errors import CorruptStoreError, DecodeError
from ocrstore.format.layout import DEFAULT_MAX_ROW_NBYTES

if TYPE_CHECKING:
    from ocrstore.format.columns import Column

_Bytes = npt.NDArray[np.uint8]
_ZSTD_LEVEL = 3


class Codec(NamedTuple):
    """How rows of one codec are stored."""

    encode: Callable[[_Bytes], _Bytes] | None
    """Encodes an array's bytes; None if rows are given encoded (`Encoded`)."""
    decode: Callable[[memoryview, int], _Bytes] | None
    """Decodes to exactly this many bytes; None if rows are used in place, or decoded elsewhere."""


# Arrow is imported where it is used: recipes need only the names, and so do workers of a build


def _zstd_encode(data: _Bytes) -> _Bytes:
    import pyarrow as pa

    codec = pa.Codec("zstd", compression_level=_ZSTD_LEVEL)
    return np.frombuffer(codec.compress(pa.py_buffer(data)), np.uint8)


def _zstd_decode(data: memoryview, nbytes: int) -> _Bytes:
    import pyarrow as pa

    declared = _zstd_nbytes(data)
    if declared not in (None, nbytes):
        raise ValueError(f"{nbytes} bytes expected, its frames declare {declared}")
    buffer = pa.Codec("zstd").decompress(pa.py_buffer(data), decompressed_size=nbytes)
    return np.frombuffer(buffer, np.uint8)


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


def _lz4_decode(data: memoryview, nbytes: int) -> _Bytes:
    import pyarrow as pa

    if len(data) > 14 and data[4] & 8:  # the frame's header has the size
        declared = int.from_bytes(data[6:14], "little")
        if declared != nbytes:
            raise ValueError(f"{nbytes} bytes expected, its frame declares {declared}")
    # a stream, because Codec.decompress() of lz4 does not report a frame that is too short
    decoded = np.empty(nbytes, np.uint8)
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "lz4") as stream:
        found = stream.readinto(decoded)
        if found != nbytes or stream.read(1):
            raise ValueError(
                f"{nbytes} bytes expected, {'more' if found == nbytes else found} found"
            )
    return decoded


LOSSLESS = "lz4"
"""The codec of presets and of pixels without a file."""
_PIXELS = b"OCRSPIX1"  # no picture file starts like this


def _pixels_encode(data: _Bytes) -> _Bytes:
    """Encode the pixels of a picture that has no file to keep (FORMAT.md 5.4, `file`)."""
    encode = CODECS[LOSSLESS].encode
    assert encode is not None
    return np.concatenate([np.frombuffer(_PIXELS, np.uint8), encode(data)])


CODECS = {
    "raw": Codec(lambda data: data, None),
    "zstd": Codec(_zstd_encode, _zstd_decode),
    "lz4": Codec(_lz4_encode, _lz4_decode),
    # the source's own bytes; store.py has them decoded to a picture
    "jpeg": Codec(None, None),
    "file": Codec(_pixels_encode, None),
}
"""All codecs, by the name they have in the manifest."""


def encode_row(column: Column, array: npt.NDArray[Any]) -> _Bytes:
    """Return the bytes to store for a conforming array; for `raw` a view of the array itself."""
    encode = CODECS[column.codec].encode
    if encode is None:
        raise TypeError(f"rows of a {column.codec} column are given encoded")
    return encode(array.reshape(-1).view(np.uint8))


def is_picture_file(column: Column, data: memoryview) -> bool:
    """Return whether a row is a picture's own file, which `ocrstore.decode` decodes."""
    return column.codec == "jpeg" or (column.codec == "file" and data[: len(_PIXELS)] != _PIXELS)


def check_row_nbytes(column: Column, shape: tuple[int, ...], limit: int, *, where: str) -> None:
    """Raise DecodeError if a row of this shape has more bytes, before anything is allocated."""
    nbytes = column.nbytes_of(shape)
    if nbytes > limit:
        raise DecodeError(
            f"{where}: decodes to {nbytes} bytes, shape {shape}; the limit is {limit}. If you "
            f"trust the store: ocrstore.open(path, max_row_nbytes={nbytes})"
        )


def decode_row(
    column: Column,
    data: memoryview,
    shape: tuple[int, ...],
    *,
    where: str,
    limit: int = DEFAULT_MAX_ROW_NBYTES,
) -> npt.NDArray[Any]:
    """Decode a compressed row into a new, read-only array.

    Raises:
        DecodeError: It has more than `limit` bytes; FORMAT.md 5.4.
        CorruptStoreError: It does not decode to exactly the bytes of its shape.
    """
    import pyarrow as pa

    codec = column.codec
    if codec == "file" and not is_picture_file(column, data):
        codec, data = LOSSLESS, data[len(_PIXELS) :]
    decode = CODECS[codec].decode
    if decode is None:
        raise TypeError(f"this row of a {codec} column is not compressed")
    check_row_nbytes(column, shape, limit, where=where)
    nbytes = column.nbytes_of(shape)
    try:
        # FORMAT.md 5.4: the stored bytes of an empty array do not count
        decoded = decode(data, nbytes) if nbytes else np.empty(0, np.uint8)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as exc:
        raise CorruptStoreError(
            f"{where}: its {column.codec} bytes cannot be decoded to shape {shape} ({exc}). Run "
            "`ocrstore verify`; restore the file from a copy or build it again."
        ) from exc
    array: npt.NDArray[Any] = decoded.view(column.numpy_dtype).reshape(shape)
    array.flags.writeable = False  # Arrow's buffers are writable
    return array
