"""A limit: batches that are slices of arrays in memory, nothing copied, nothing collated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from tools.bench.peers.base import TENSORS
from tools.bench.prepared import Prepared, read

TITLE = "limit: a bare view"
REQUIREMENTS = ()
NOTE = "Slices of arrays in memory; shuffled, the slices come in random order, their rows do not."
LIMIT = True


def build(prepared: Prepared, folder: Path) -> None:
    """Nothing to build: it reads the prepared arrays into memory."""


class Slices:
    def __init__(self, prepared: Path, *, shuffle: bool, batch_size: int, seed: int) -> None:
        described = read(prepared)
        self.keys, self.polygons = described.keys, described.polygons
        self.arrays = {n: torch.from_numpy(np.array(getattr(described, n))) for n in TENSORS}
        self.batch_size, self.shuffle = batch_size, shuffle
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[dict]:
        starts = torch.arange(0, len(self.keys), self.batch_size)
        if self.shuffle:
            starts = starts[torch.randperm(len(starts), generator=self.generator)]
        for start in starts.tolist():
            part = slice(start, start + self.batch_size)
            yield {
                **{name: array[part] for name, array in self.arrays.items()},
                "polygons": self.polygons[part],
                "image_filename": self.keys[part],
            }


def unsupported(*, workers: int, shuffle: bool) -> str:
    return "a limit of one process" if workers else ""


def loader(folder: Path, *, prepared: Path, workers: int, **options):
    return Slices(prepared, **options)
