"""numpy.memmap of one plain file for each array, opened in each process, default collation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tools.bench.peers.base import TENSORS, collate, torch_loader
from tools.bench.prepared import Prepared, read

TITLE = "numpy.memmap"
REQUIREMENTS = ()
NOTE = "Mapped copy-on-write, rows collated in the worker and sent through shared memory."
DISTRIBUTION = "numpy"


def build(prepared: Prepared, folder: Path) -> None:
    for name in TENSORS:
        np.save(folder / f"{name}.npy", getattr(prepared, name))


class Mapped(torch.utils.data.Dataset):
    def __init__(self, folder: Path, prepared: Path) -> None:
        self.folder = folder
        self.arrays = None
        described = read(prepared)
        self.keys, self.polygons = described.keys, described.polygons

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, row: int) -> dict:
        if self.arrays is None:  # in the process that reads, so that nothing is pickled to it
            self.arrays = {name: np.load(self.folder / f"{name}.npy", "c") for name in TENSORS}
        return {
            **{name: torch.from_numpy(array[row]) for name, array in self.arrays.items()},
            "polygons": self.polygons[row],
            "image_filename": self.keys[row],
        }


def loader(folder: Path, *, prepared: Path, **options):
    return torch_loader(Mapped(folder, prepared), collate_fn=collate, **options)
