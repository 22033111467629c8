"""Shared memory in which a worker leaves the arrays of one sample for the build to write.

A slot is an anonymous file (where Linux makes one) or a temporary one that both processes map.
It grows to what a sample needs and shrinks again after an unusually large one.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.building.derive import JPEGBytes

_ALIGNMENT = 64

Columns = Mapping[str, "npt.NDArray[Any] | JPEGBytes"]


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an array lies in a slot."""

    offset: int
    dtype: str
    shape: tuple[int, ...]
    jpeg_shape: tuple[int, ...] | None = None
    """Set for JPEG bytes: the shape they decode to."""


@dataclass(frozen=True, slots=True)
class SlotName:
    """How another process finds a slot: an inherited descriptor, or a path."""

    descriptor: int | None
    path: str | None


class Slot:
    """One process's hold on a slot."""

    def __init__(self, descriptor: int, path: str | None = None, *, owner: bool = False) -> None:
        self._descriptor = descriptor
        self._path = path
        self._owner = owner
        self._map: mmap.mmap | None = None

    @classmethod
    def create(cls) -> Slot:
        """Make a new slot."""
        if hasattr(os, "memfd_create"):
            # neither bounded by the size of /dev/shm nor left behind by a crash
            return cls(os.memfd_create("ocrstore-slot"), owner=True)
        descriptor, path = tempfile.mkstemp(prefix="ocrstore-slot-")
        return cls(descriptor, path, owner=True)

    @classmethod
    def attach(cls, name: SlotName) -> Slot:
        """Take hold of a slot that another process made."""
        if name.descriptor is not None:
            return cls(name.descriptor)
        assert name.path is not None
        return cls(os.open(name.path, os.O_RDWR | getattr(os, "O_BINARY", 0)), name.path)

    @property
    def name(self) -> SlotName:
        """What a worker needs to attach."""
        if self._path is None:
            return SlotName(self._descriptor, None)
        return SlotName(None, self._path)

    def put(self, columns: Columns, *, keep_nbytes: int) -> dict[str, Placed]:
        """Copy arrays into the slot; a slot larger than `keep_nbytes` shrinks if it can."""
        placed: dict[str, Placed] = {}
        flat: dict[str, npt.NDArray[np.uint8]] = {}
        end = 0
        for name, value in columns.items():
            offset = -(-end // _ALIGNMENT) * _ALIGNMENT
            if isinstance(value, JPEGBytes):
                flat[name] = np.frombuffer(value.data, np.uint8)
                placed[name] = Placed(offset, "uint8", flat[name].shape, value.shape)
            else:
                flat[name] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
                placed[name] = Placed(offset, value.dtype.name, value.shape)
            end = offset + flat[name].nbytes
        self._resize(max(end, 1), keep_nbytes)
        target = np.frombuffer(self._mapped(end), np.uint8)
        for name, data in flat.items():
            target[placed[name].offset : placed[name].offset + data.nbytes] = data
        return placed

    def get(self, placed: Mapping[str, Placed]) -> dict[str, npt.NDArray[Any] | JPEGBytes]:
        """Return the arrays; they point into the slot and change when it is used again."""
        columns: dict[str, npt.NDArray[Any] | JPEGBytes] = {}
        for name, place in placed.items():
            dtype = np.dtype(place.dtype)
            count = int(np.prod(place.shape, dtype=np.int64))
            mapped = self._mapped(place.offset + count * dtype.itemsize)
            array = np.frombuffer(mapped, dtype, count, place.offset).reshape(place.shape)
            columns[name] = (
                array if place.jpeg_shape is None else JPEGBytes(array.tobytes(), place.jpeg_shape)
            )
        return columns

    def close(self) -> None:
        """Let go; the one who made the slot also removes it."""
        self._map = None  # the mapping ends with the last array that points into it
        with suppress(OSError):
            os.close(self._descriptor)
        if self._owner and self._path is not None:
            with suppress(OSError):
                os.unlink(self._path)  # noqa: PTH108 - a path from mkstemp

    def _resize(self, nbytes: int, keep_nbytes: int) -> None:
        size = os.fstat(self._descriptor).st_size
        if nbytes > size or (size > keep_nbytes >= nbytes):
            self._map = None
            wanted = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
            os.ftruncate(self._descriptor, wanted)
            if self._path is not None and hasattr(os, "posix_fallocate"):
                # on a full disk this is an error here; a hole would kill the process later
                os.posix_fallocate(self._descriptor, 0, wanted)

    def _mapped(self, nbytes: int) -> mmap.mmap:
        if self._map is None or len(self._map) < nbytes:
            size = os.fstat(self._descriptor).st_size
            self._map = mmap.mmap(self._descriptor, max(size, 1))
        return self._map
