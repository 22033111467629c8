"""LitData: chunks written by its `optimize`, read by its StreamingDataset and -DataLoader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tools.bench.peers.base import collate
from tools.bench.prepared import Prepared, pack_polygons, read, unpack_polygons

TITLE = "LitData"
REQUIREMENTS = (
    "litdata==0.2.76",
    "boto3==1.44.3",
    "filelock==4.2.10",
    "lightning-utilities==0.15.3",
    "obstore==0.12.1",
    "python-dateutil==2.9.0.post0",
    "requests==2.34.2",
    "tifffile==2026.3.3",
)
NOTE = (
    "Optimised chunks of 64 MB with tensors, no compression, streamed from the local folder; "
    "shuffled by its own chunk-wise shuffle."
)


def install(environment) -> None:
    """Install without dependencies: torchvision, which it only uses for pictures, pins a CUDA torch."""
    environment.pip("torch", "numpy", *REQUIREMENTS[1:])
    environment.pip("--no-deps", REQUIREMENTS[0])


class Item:
    """Makes one item in a process of `optimize`."""

    def __init__(self, prepared: Path) -> None:
        self.prepared = prepared
        self.samples: Prepared | None = None

    def __call__(self, row: int) -> dict:
        if self.samples is None:
            self.samples = read(self.prepared)
        sample = self.samples[row]
        return {
            "images": torch.from_numpy(np.array(sample.image)),
            "prob_maps": torch.from_numpy(np.array(sample.prob_map)),
            "thresh_maps": torch.from_numpy(np.array(sample.thresh_map)),
            "polygons": pack_polygons(sample.polygons),
            "image_filename": sample.key,
        }


def build(prepared: Prepared, folder: Path) -> None:
    from litdata import optimize

    optimize(
        fn=Item(prepared.folder),
        inputs=list(range(len(prepared))),
        output_dir=str(folder / "chunks"),
        chunk_bytes="64MB",
        num_workers=2,
        verbose=False,
    )


def collate_items(items: list[dict]) -> dict:
    batch = collate(items)
    return batch | {"polygons": [unpack_polygons(packed) for packed in batch["polygons"]]}


def loader(
    folder: Path, *, prepared: Path, workers: int, shuffle: bool, batch_size: int, seed: int
):
    import warnings

    from litdata import StreamingDataLoader, StreamingDataset

    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    samples = StreamingDataset(str(folder / "chunks"), shuffle=shuffle, drop_last=False, seed=seed)
    return StreamingDataLoader(
        samples,
        batch_size=batch_size,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=collate_items,
    )
