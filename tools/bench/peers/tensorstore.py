"""TensorStore: Zarr version 3 arrays, one uncompressed chunk for each sample, read by its threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorstore

from tools.bench.peers.base import TENSORS
from tools.bench.peers.chunked import Rows, arrays_of, batch_loader
from tools.bench.prepared import Prepared

TITLE = "TensorStore"
REQUIREMENTS = ("tensorstore==0.1.86",)
NOTE = (
    "The same layout as Zarr's, all arrays of a batch read in one `Batch`. Its own threads, as "
    "many as cores, read and copy in each process, with 0 workers too."
)


def spec(folder: Path, name: str) -> dict:
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder / name}/"}}


def build(prepared: Prepared, folder: Path) -> None:
    for name, (array, chunks) in arrays_of(prepared).items():
        stored = tensorstore.open(
            {
                **spec(folder, name),
                "metadata": {
                    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
                    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                },
            },
            create=True,
            dtype=tensorstore.dtype(array.dtype),
            shape=array.shape,
        ).result()
        stored.write(array).result()


def open_arrays(folder: Path) -> dict[str, tensorstore.TensorStore]:
    names = (*TENSORS, "labels", "ends")
    opening = [tensorstore.open(spec(folder, name), read=True) for name in names]
    return dict(zip(names, (future.result() for future in opening)))


def read_rows(arrays: list[tensorstore.TensorStore], rows: Rows) -> list[np.ndarray]:
    with tensorstore.Batch() as batch:
        reading = [array[rows].read(batch=batch) for array in arrays]
    return [future.result() for future in reading]


def loader(folder: Path, *, prepared: Path, **options):
    return batch_loader(folder, prepared, open_arrays, read_rows, **options)
