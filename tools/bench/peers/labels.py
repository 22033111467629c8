"""A sample's name and polygons as one run of bytes, for peers that store arrays and bytes only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tools.bench.prepared import pack_polygons, unpack_polygons


def pack_label(key: str, polygons: Sequence[np.ndarray]) -> bytes:
    """Write a name and polygons; the polygons begin at a multiple of 4 bytes."""
    name = key.encode()
    padding = bytes(-len(name) % 4)
    return len(name).to_bytes(4, "little") + name + padding + pack_polygons(polygons)


def unpack_label(data: bytes | np.ndarray) -> tuple[str, list[np.ndarray]]:
    """Read what `pack_label` wrote, polygons as views of the given bytes; a tail is ignored."""
    view = memoryview(data)
    length = int.from_bytes(view[:4], "little")
    return str(view[4 : 4 + length], "utf-8"), unpack_polygons(view[4 + length + -length % 4 :])
