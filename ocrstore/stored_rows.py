"""Decode a row of a store, of any codec, into an array."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ocrstore.errors import CorruptStoreError, DecodeError
from ocrstore.format.codecs import check_row_nbytes, decode_row, is_picture_file, row_limit
from ocrstore.format.columns import Column

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"
Empty: TypeAlias = "Callable[[tuple[int, ...], np.dtype[Any]], Array]"
"""Returns uninitialized memory, as `numpy.empty` does."""


def decode_stored(
    column: Column,
    data: memoryview,
    shape: tuple[int, ...],
    *,
    where: object,
    limit: int | None = None,
    empty: Empty = np.empty,
) -> Array:
    """Decode a row of any codec but raw into an array from `empty`.

    Raises:
        DecodeError: It has more than `limit` bytes (None: `row_limit()`), or its file cannot be
            decoded here.
        CorruptStoreError: It does not decode to exactly its shape.
    """
    if not is_picture_file(column, data):
        return decode_row(column, data, shape, where=where, limit=limit, empty=empty)
    check_row_nbytes(column, shape, row_limit(limit), where=where)
    from ocrstore.decode import (  # only pictures' files need decoders
        TooManyPixelsError,
        decode,
        open_picture,
    )

    try:
        picture = open_picture(bytes(data), max_pixels=shape[0] * shape[1])
    except TooManyPixelsError as exc:
        raise CorruptStoreError(f"{where}: its header contradicts {shape}: {exc}") from exc
    except DecodeError as exc:
        raise DecodeError(f"{where}: {exc}") from exc
    pixels: Array = decode(picture, name=str(where), empty=empty).pixels
    if pixels.shape != shape:
        raise CorruptStoreError(f"{where}: decodes to {pixels.shape}, recorded is {shape}.")
    return pixels
