"""MosaicML Streaming: MDS shards in a local folder, read by worker processes."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from tools.bench.peers.base import TENSORS, collate
from tools.bench.prepared import Prepared, pack_polygons, unpack_polygons

with suppress(ModuleNotFoundError):  # absent where the suite imports this file to install it
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

TITLE = "MosaicML Streaming"
REQUIREMENTS = (
    "mosaicml-streaming==0.13.0",
    "torchvision==0.16.2",
    "numpy==2.1.3",
    "transformers==4.57.6",
    "xxhash==3.8.2",
    "brotli==1.2.1",
    "catalogue==2.0.10",
    "python-snappy==0.7.3",
    "zstd==1.5.7.2",
)
NOTE = (
    "Uncompressed MDS shards of `ndarray` columns, `StreamingDataset` on the local folder. "
    "Installed without the cloud clients it does not import here, and with torchvision 0.16.2, "
    "the last one that imports beside a CPU build of torch; none of its functions are called."
)


def install(environment) -> None:
    """Install without dependencies: they are cloud clients, and torchvision pins a CUDA torch."""
    environment.pip("torch", *REQUIREMENTS[2:], "requests", "pillow", "tqdm", "filelock")
    environment.pip("--no-deps", *REQUIREMENTS[:2])


def build(prepared: Prepared, folder: Path) -> None:
    height, width = prepared.images.shape[1:3]
    columns = {
        "images": f"ndarray:uint8:{height},{width},3",
        "prob_maps": f"ndarray:float16:{height},{width}",
        "thresh_maps": f"ndarray:float16:{height},{width}",
        "polygons": "bytes",
        "image_filename": "str",
    }
    with MDSWriter(out=str(folder / "mds"), columns=columns) as writer:
        for sample in prepared:
            values = (
                np.ascontiguousarray(sample.image),
                np.ascontiguousarray(sample.prob_map),
                np.ascontiguousarray(sample.thresh_map),
                pack_polygons(sample.polygons),
                sample.key,
            )
            writer.write(dict(zip(columns, values)))


def to_batch(samples: list[dict]) -> dict:
    """Collate in the worker: arrays stacked in shared memory, polygons unpacked."""
    for sample in samples:
        for name in TENSORS:
            sample[name] = torch.from_numpy(sample[name])
        sample["polygons"] = unpack_polygons(sample["polygons"])
    return collate(samples)


def loader(
    folder: Path,
    *,
    prepared: Path,  # all is in the shards
    workers: int,
    shuffle: bool,
    batch_size: int,
    seed: int,
):
    # its arrays are read-only views of the bytes read, and collation only reads them
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    clean_stale_shared_memory()  # of cells before, which were ended without ceremony
    dataset = StreamingDataset(
        local=str(folder / "mds"), shuffle=shuffle, shuffle_seed=seed, batch_size=batch_size
    )
    return StreamingDataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=to_batch,
    )
