"""WebDataset: tar shards of uncompressed .ten members, batched in the worker, through WebLoader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tools.bench.peers.base import collate
from tools.bench.prepared import Prepared, pack_polygons, unpack_polygons

TITLE = "WebDataset"
REQUIREMENTS = ("webdataset==1.0.2",)
NOTE = (
    "8 tar shards with members in its own binary tensor format, batched in the worker; shuffled: "
    "the shards, and 48 samples in a buffer of each worker."
)
SHARDS = 8


def build(prepared: Prepared, folder: Path) -> None:
    import webdataset as wds

    count = -(-len(prepared) // SHARDS)
    pattern = str(folder / "samples-%06d.tar")
    with wds.ShardWriter(pattern, maxcount=count, maxsize=1 << 40, verbose=0) as sink:
        for row, sample in enumerate(prepared):
            sink.write(
                {
                    "__key__": f"{row:08d}",
                    "image.ten": [np.array(sample.image)],
                    "prob.ten": [np.array(sample.prob_map)],
                    "thresh.ten": [np.array(sample.thresh_map)],
                    "polygons.bin": pack_polygons(sample.polygons),
                    "name.txt": sample.key,
                }
            )


def to_sample(member: dict) -> dict:
    return {
        "images": torch.from_numpy(member["image.ten"][0]),
        "prob_maps": torch.from_numpy(member["prob.ten"][0]),
        "thresh_maps": torch.from_numpy(member["thresh.ten"][0]),
        "polygons": unpack_polygons(member["polygons.bin"]),
        "image_filename": member["name.txt"],
    }


def loader(
    folder: Path, *, prepared: Path, workers: int, shuffle: bool, batch_size: int, seed: int
):
    import warnings

    import webdataset as wds

    # members are read-only bytes; the batch is a copy
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    shards = sorted(str(path) for path in folder.glob("*.tar"))
    samples = wds.WebDataset(
        shards, shardshuffle=len(shards) if shuffle else False, seed=seed, empty_check=False
    )
    if shuffle:
        samples = samples.shuffle(48, initial=48)
    samples = samples.decode().map(to_sample).batched(batch_size, collation_fn=collate)
    return wds.WebLoader(
        samples, batch_size=None, num_workers=workers, persistent_workers=workers > 0
    )
