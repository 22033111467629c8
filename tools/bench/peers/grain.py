"""Grain: an ArrayRecord file of whole samples, batched by worker processes in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import grain
import numpy as np
import torch
from array_record.python.array_record_module import ArrayRecordWriter

from tools.bench.peers.base import TENSORS
from tools.bench.peers.labels import pack_label, unpack_label
from tools.bench.prepared import Prepared, read

TITLE = "Grain, ArrayRecord"
REQUIREMENTS = ("grain==0.2.18", "array-record==0.8.6")
NOTE = (
    "One uncompressed record for each sample (`group_size:1`), `MapDataset` batched and repeated "
    "so that its worker processes live as long as the loader. Polygons and name are bytes padded "
    "to one length, so that Grain can stack the batch in shared memory itself. Two threads read "
    "ahead in each process, with 0 workers in the training process."
)


def build(prepared: Prepared, folder: Path) -> None:
    labels = [pack_label(sample.key, sample.polygons) for sample in prepared]
    longest = max(map(len, labels))
    writer = ArrayRecordWriter(str(folder / "samples.array_record"), "group_size:1,uncompressed")
    for sample, label in zip(prepared, labels):
        parts = (sample.image, sample.prob_map, sample.thresh_map)
        record = [np.ascontiguousarray(part).tobytes() for part in parts]
        writer.write(b"".join([*record, label.ljust(longest, b"\0")]))
    writer.close()


class Parse:
    """Bytes of a record to a sample of arrays, views of the record."""

    def __init__(self, height: int, width: int) -> None:
        self.fields = (
            ("images", np.dtype(np.uint8), (height, width, 3)),
            ("prob_maps", np.dtype(np.float16), (height, width)),
            ("thresh_maps", np.dtype(np.float16), (height, width)),
        )

    def __call__(self, record: bytes) -> dict[str, np.ndarray]:
        sample, start = {}, 0
        for name, dtype, shape in self.fields:
            count = int(np.prod(shape))
            sample[name] = np.frombuffer(record, dtype, count, offset=start).reshape(shape)
            start += count * dtype.itemsize
        sample["labels"] = np.frombuffer(record, np.uint8, offset=start)
        return sample


class Batches:
    """Epochs cut from one endless iterator: a new one would start new workers."""

    def __init__(self, dataset, count: int) -> None:
        self.dataset = dataset
        self.count = count
        self.endless = None

    def __iter__(self) -> Iterator[dict]:
        if self.endless is None:
            self.endless = iter(self.dataset)
        for batch in islice(self.endless, self.count):
            names, polygons = zip(*map(unpack_label, batch["labels"]))
            yield {
                **{name: torch.from_numpy(batch[name]) for name in TENSORS},
                "polygons": list(polygons),
                "image_filename": list(names),
            }


def loader(
    folder: Path, *, prepared: Path, workers: int, shuffle: bool, batch_size: int, seed: int
):
    source = grain.sources.ArrayRecordDataSource(str(folder / "samples.array_record"))
    samples = grain.MapDataset.source(source)
    if shuffle:
        samples = samples.shuffle(seed=seed)
    height, width = read(prepared).images.shape[1:3]
    batches = samples.map(Parse(height, width)).batch(batch_size, drop_remainder=False)
    count = len(batches)
    # the default of 500 elements read ahead would be 500 batches here
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=2)
    epochs = batches.repeat().to_iter_dataset(options)
    if workers:
        epochs = epochs.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    return Batches(epochs, count)
