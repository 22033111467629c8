"""Reading numbers out of untrusted bytes: what lies outside them is a DecodeError."""

from __future__ import annotations

import struct
from typing import Any

from ocrstore.errors import DecodeError


def unpack(fmt: str, data: bytes, offset: int, *, what: str) -> tuple[Any, ...]:
    """Unpack `fmt` at `offset`; `what` names the structure in the error."""
    size = struct.calcsize(fmt)
    if offset < 0 or offset + size > len(data):
        raise DecodeError(
            f"truncated: {what} needs bytes {offset} to {offset + size}, "
            f"the file has {len(data)}; restore it from its origin"
        )
    return struct.unpack_from(fmt, data, offset)


def checked_size(width: int, height: int, *, what: str) -> tuple[int, int]:
    """Return (width, height) if both are positive."""
    if width <= 0 or height <= 0:
        raise DecodeError(f"{what} has no pixels: its header says {width} x {height}")
    return width, height
