"""What the readers of chunked arrays share: samples as chunks, read in whole batches by a worker.

Beside the three arrays there are `labels`, the packed names and polygons end to end, and `ends`,
where each of them ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tools.bench.peers.base import TENSORS, as_it_is, torch_loader
from tools.bench.peers.labels import pack_label, unpack_label
from tools.bench.prepared import Prepared, read

Rows = slice | list[int]


def arrays_of(prepared: Prepared) -> dict[str, tuple[np.ndarray, tuple[int, ...]]]:
    """Return each array that is to be written with the shape of its chunks."""
    labels = [pack_label(sample.key, sample.polygons) for sample in prepared]
    small = {
        "labels": np.frombuffer(b"".join(labels), np.uint8),
        "ends": np.cumsum([len(label) for label in labels]),
    }
    large = {name: getattr(prepared, name) for name in TENSORS}
    return {
        **{name: (array, (1, *array.shape[1:])) for name, array in large.items()},
        **{name: (array, array.shape) for name, array in small.items()},
    }


class Chunked(torch.utils.data.Dataset):
    """Reads batches; the arrays are opened in the process that reads, after any fork."""

    def __init__(
        self,
        folder: Path,
        count: int,
        open_arrays: Callable[[Path], Mapping[str, Any]],
        read_rows: Callable[[list[Any], Rows], list[np.ndarray]],
    ) -> None:
        self.folder = folder
        self.count = count
        self.open_arrays = open_arrays
        self.read_rows = read_rows
        self.arrays: list[Any] = []
        self.labels: list[np.ndarray] = []

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, rows: list[int]) -> dict[str, Any]:
        if not self.arrays:
            opened = self.open_arrays(self.folder)
            self.arrays = [opened[name] for name in TENSORS]
            labels, ends = self.read_rows([opened["labels"], opened["ends"]], slice(None))
            self.labels = np.split(labels, ends[:-1])
        in_order = rows == list(range(rows[0], rows[0] + len(rows)))
        found = self.read_rows(
            self.arrays, slice(rows[0], rows[0] + len(rows)) if in_order else rows
        )
        names, polygons = zip(*(unpack_label(self.labels[row]) for row in rows))
        return {
            **{name: torch.from_numpy(array) for name, array in zip(TENSORS, found)},
            "polygons": list(polygons),
            "image_filename": list(names),
        }


def batch_loader(
    folder: Path,
    prepared: Path,
    open_arrays: Callable[[Path], Mapping[str, Any]],
    read_rows: Callable[[list[Any], Rows], list[np.ndarray]],
    **options: Any,
) -> torch.utils.data.DataLoader:
    """Make torch's DataLoader of a folder of chunked arrays."""
    dataset = Chunked(folder, len(read(prepared)), open_arrays, read_rows)
    return torch_loader(dataset, collate_fn=as_it_is, **options)
