"""Hugging Face datasets: an Arrow data set with fixed-shape arrays, memory-mapped from disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from tools.bench.peers.base import ARRAYS, as_it_is, batch_of_table, torch_loader
from tools.bench.prepared import Prepared, pack_polygons

TITLE = "Hugging Face datasets"
REQUIREMENTS = ("datasets==5.2.0",)
NOTE = (
    "Memory-mapped Arrow files, whole batches in its arrow format, viewed as numpy arrays (its "
    "numpy and torch formats turn uint8 into int64)."
)


def build(prepared: Prepared, folder: Path) -> None:
    import datasets

    shapes = {name: getattr(prepared, name).shape[1:] for name in ARRAYS}
    kinds = {2: datasets.Array2D, 3: datasets.Array3D}
    features = {name: kinds[len(shapes[name])](shapes[name], ARRAYS[name]) for name in ARRAYS}
    features |= {"polygons": datasets.Value("binary"), "image_filename": datasets.Value("string")}
    described = datasets.Features(features)
    cache = folder / "cache"

    def rows() -> Iterator[dict]:
        for sample in prepared:
            yield {
                "images": sample.image,
                "prob_maps": sample.prob_map,
                "thresh_maps": sample.thresh_map,
                "polygons": pack_polygons(sample.polygons),
                "image_filename": sample.key,
            }

    made = datasets.Dataset.from_generator(
        rows, features=described, cache_dir=str(cache), writer_batch_size=32
    )
    made.save_to_disk(str(folder / "samples"))
    del made
    import shutil

    shutil.rmtree(cache)


class Rows(torch.utils.data.Dataset):
    """The data set in its arrow format: a list of rows gives one table."""

    def __init__(self, folder: Path) -> None:
        import datasets

        self.samples = datasets.load_from_disk(str(folder / "samples")).with_format("arrow")
        self.shapes = {name: self.samples.features[name].shape for name in ARRAYS}

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, rows: list[int]) -> dict:
        return batch_of_table(self.samples[rows], self._view)

    def _view(self, part, name: str, dtype: str) -> np.ndarray:
        """Return an array of Arrow's nested lists as one numpy array, without a copy."""
        values = part.storage
        while hasattr(values, "flatten") and values.type.num_fields:
            values = values.flatten()
        return values.to_numpy(zero_copy_only=True).view(dtype).reshape(-1, *self.shapes[name])


def loader(folder: Path, *, prepared: Path, **options):
    return torch_loader(Rows(folder), collate_fn=as_it_is, **options)
