"""As `files`, with each process keeping the decoded pictures in a dict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tools.bench.peers import files
from tools.bench.peers.base import collate, torch_loader

TITLE = "dict of decoded pictures"
REQUIREMENTS = ()
NOTE = (
    "As files, each worker keeping its decoded pictures; rates and memory with all dicts full, "
    "first batch and cold epoch with empty ones."
)
DISTRIBUTION = "albumentations"

build = files.build
extra_files = files.extra_files


class Decoded(files.Files):
    def __init__(self, folder: Path, prepared: Path) -> None:
        super().__init__(folder, prepared)
        self.cache: dict[int, np.ndarray] = {}

    def decode(self, row: int) -> np.ndarray:
        if row not in self.cache:
            self.cache[row] = super().decode(row)
        return self.cache[row]

    def fill(self) -> None:
        for row in range(len(self)):
            self.decode(row)


def fill_worker(_number: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.fill()


def cached_loader(dataset, *, fill: bool = False, **options):
    """Return a loader whose processes have filled their caches, or not."""
    if fill and not options["workers"]:
        dataset.fill()
    started = fill_worker if fill else None
    return torch_loader(dataset, collate_fn=collate, worker_init_fn=started, **options)


def loader(folder: Path, *, prepared: Path, **options):
    return cached_loader(Decoded(folder, prepared), **options)


def filled_loader(folder: Path, *, prepared: Path, **options):
    return cached_loader(Decoded(folder, prepared), fill=True, **options)
