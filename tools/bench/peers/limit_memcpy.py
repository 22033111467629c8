"""A limit: the rows of a batch copied from memory into reused buffers, the least a copy costs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import torch

from tools.bench.peers.limit_view import Slices, unsupported
from tools.bench.prepared import Prepared

TITLE = "limit: memcpy from RAM"
REQUIREMENTS = ()
NOTE = "Rows copied one by one from arrays in memory into a reused buffer, by memcpy."
LIMIT = True

__all__ = ["LIMIT", "NOTE", "REQUIREMENTS", "TITLE", "build", "loader", "unsupported"]


def build(prepared: Prepared, folder: Path) -> None:
    """Nothing to build: it reads the prepared arrays into memory."""


class Copied(Slices):
    def __init__(self, prepared: Path, **options) -> None:
        super().__init__(prepared, **options)
        size = self.batch_size
        self.buffers = {
            n: torch.zeros(size, *a.shape[1:], dtype=a.dtype) for n, a in self.arrays.items()
        }

    def __iter__(self) -> Iterator[dict]:
        rows = torch.arange(len(self.keys))
        if self.shuffle:
            rows = torch.randperm(len(rows), generator=self.generator)
        size, buffers = self.batch_size, self.buffers
        for start in range(0, len(rows), size):
            chosen = rows[start : start + size].tolist()
            for name, buffer in buffers.items():
                array = self.arrays[name]
                nbytes = array[0].nbytes
                source, target = array.data_ptr(), buffer.data_ptr()
                for place, row in enumerate(chosen):
                    ctypes.memmove(target + place * nbytes, source + row * nbytes, nbytes)
            yield {
                **{name: buffer[: len(chosen)] for name, buffer in buffers.items()},
                "polygons": [self.polygons[row] for row in chosen],
                "image_filename": [self.keys[row] for row in chosen],
            }


def loader(folder: Path, *, prepared: Path, workers: int, **options):
    return Copied(prepared, **options)
