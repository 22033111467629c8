"""Zarr: version 3 arrays with one uncompressed chunk for each sample, read by zarr-python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr

from tools.bench.peers.chunked import Rows, arrays_of, batch_loader
from tools.bench.prepared import Prepared

TITLE = "Zarr"
REQUIREMENTS = ("zarr==3.1.6",)
NOTE = (
    "One uncompressed chunk, and so one file, for each sample and array; a worker of torch's "
    "DataLoader reads a batch in one selection, whose chunks zarr-python reads concurrently."
)


def build(prepared: Prepared, folder: Path) -> None:
    group = zarr.create_group(folder / "samples.zarr")
    for name, (array, chunks) in arrays_of(prepared).items():
        stored = group.create_array(
            name, shape=array.shape, dtype=array.dtype, chunks=chunks, compressors=None
        )
        stored[...] = array


def open_arrays(folder: Path) -> zarr.Group:
    return zarr.open_group(folder / "samples.zarr", mode="r")


def read_rows(arrays: list[zarr.Array], rows: Rows) -> list[np.ndarray]:
    return [array.oindex[rows] for array in arrays]


def loader(folder: Path, *, prepared: Path, **options):
    return batch_loader(folder, prepared, open_arrays, read_rows, **options)
