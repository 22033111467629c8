"""As `files`, with each process keeping finished samples as tensors in a dict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tools.bench.peers import files
from tools.bench.peers.dict_decoded import cached_loader
from tools.bench.prepared import read

TITLE = "dict of tensors"
REQUIREMENTS = ()
NOTE = (
    "As files, each worker keeping finished samples; rates and memory with all dicts full, "
    "first batch and cold epoch with empty ones."
)
DISTRIBUTION = "albumentations"

build = files.build
extra_files = files.extra_files


class Tensors(files.Files):
    def __init__(self, folder: Path, prepared: Path) -> None:
        super().__init__(folder, prepared)
        self.prepared = prepared
        self.cache: dict[int, dict] = {}

    def __getitem__(self, row: int) -> dict:
        if row not in self.cache:
            made = super().__getitem__(row)
            self.cache[row] = made | {"images": made["images"].contiguous()}
        return self.cache[row]

    def fill(self) -> None:
        """Take the same samples from the prepared arrays: making them would take a long while."""
        for row, sample in enumerate(read(self.prepared)):
            self.cache[row] = {
                "images": torch.from_numpy(sample.image.transpose(2, 0, 1).copy()),
                "prob_maps": torch.from_numpy(np.array(sample.prob_map))[None],
                "thresh_maps": torch.from_numpy(np.array(sample.thresh_map))[None],
                "polygons": sample.polygons,
                "image_filename": sample.key,
            }


def loader(folder: Path, *, prepared: Path, **options):
    return cached_loader(Tensors(folder, prepared), **options)


def filled_loader(folder: Path, *, prepared: Path, **options):
    return cached_loader(Tensors(folder, prepared), fill=True, **options)
