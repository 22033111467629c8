"""Makes the prepared samples from pictures, by the pipeline that a store replaces.

The 404 pictures of ICDAR 2015 where OCRSTORE_PICTURES names them, drawn ones of the same size and
number elsewhere: decoded, resized and padded by albumentations, their maps drawn. Where more samples
are asked for than there are pictures, pictures come again under other keys.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from tools.bench.prepared import Prepared, Sample, read, write
from tools.live import LiveDataset
from tools.scenes import write_scenes

COUNT = 404
SIZE = 640


def prepare(folder: Path, *, count: int = COUNT, size: int = SIZE) -> Prepared:
    """Return the prepared samples of a folder, made first if they are not there as asked."""
    pictures, source = find_pictures(folder.parent / "pictures", count)
    wanted = {"count": count, "size": size, "pictures": str(pictures)}
    described = folder / "wanted.json"
    if described.exists() and json.loads(described.read_text()) == wanted:
        return read(folder)
    described.unlink(missing_ok=True)
    dataset = LiveDataset(
        pictures / "images",
        annotations=pictures / "gt",
        size=size,
        map_dtype=torch.float16,
    )
    write(
        folder,
        samples(dataset, count),
        count=count,
        pictures=pictures / "images",
        source=source,
    )
    described.write_text(json.dumps(wanted))
    return read(folder)


def find_pictures(folder: Path, count: int) -> tuple[Path, str]:
    """Return a folder of `images` and `gt`, and what it is; pictures are drawn if none are there."""
    real = os.environ.get("OCRSTORE_PICTURES")
    if real and (Path(real) / "icdar2015" / "images").is_dir():
        return Path(real) / "icdar2015", "pictures of the ICDAR 2015 test set, 1280 x 720"
    stamp = folder / "drawn"
    if not stamp.exists() or int(stamp.read_text()) < count:
        write_scenes(folder, count, height=720, width=1280, words=10)
        stamp.write_text(str(count))
    return folder, "drawn pictures of text, 1280 x 720"


def samples(dataset: LiveDataset, count: int) -> Iterator[Sample]:
    for row in range(count):
        copy, number = divmod(row, len(dataset))
        sample = dataset[number]
        yield Sample(
            f"{copy}_{sample['image_filename']}" if copy else sample["image_filename"],
            sample["images"].permute(1, 2, 0).numpy(),
            sample["prob_maps"][0].numpy(),
            sample["thresh_maps"][0].numpy(),
            sample["polygons"],
        )
