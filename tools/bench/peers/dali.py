"""NVIDIA DALI without a GPU: one .npy file for each array, read by the pipeline's threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from nvidia.dali import fn, pipeline_def
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from tools.bench.peers.base import TENSORS
from tools.bench.peers.labels import pack_label, unpack_label
from tools.bench.prepared import Prepared

TITLE = "DALI (CPU)"
REQUIREMENTS = ("nvidia-dali-cuda130==2.4.0",)
NOTE = (
    "`fn.readers.numpy` on the CPU, batches handed to torch by DLPack without a copy. Workers are "
    "`num_threads` of the pipeline (there is no 0). Polygons and name are bytes padded to one "
    "length, because the iterator for torch makes dense batches only."
)
OUTPUTS = (*TENSORS, "labels")


def build(prepared: Prepared, folder: Path) -> None:
    labels = [pack_label(sample.key, sample.polygons) for sample in prepared]
    longest = max(map(len, labels))
    for name in OUTPUTS:
        (folder / name).mkdir()
    for row, label in enumerate(labels):
        for name in TENSORS:
            np.save(folder / name / f"{row:06}.npy", getattr(prepared, name)[row])
        np.save(
            folder / "labels" / f"{row:06}.npy",
            np.frombuffer(label.ljust(longest, b"\0"), np.uint8),
        )


def unsupported(*, workers: int, shuffle: bool) -> str:  # one signature
    return "" if workers else "a DALI pipeline has at least one thread of its own"


class Batches:
    """Epochs of DALI's iterator, in the suite's names."""

    def __init__(self, epochs) -> None:
        self.epochs = epochs

    def __iter__(self) -> Iterator[dict]:
        for (batch,) in self.epochs:
            names, polygons = zip(*map(unpack_label, batch.pop("labels").numpy()))
            yield {**batch, "polygons": list(polygons), "image_filename": list(names)}


def loader(
    folder: Path,
    *,
    prepared: Path,  # all is in the files
    workers: int,
    shuffle: bool,
    batch_size: int,
    seed: int,
):
    @pipeline_def(
        batch_size=batch_size,
        num_threads=workers,
        device_id=None,
        exec_dynamic=True,  # what lets the iterator hand out batches without a copy
    )
    def samples():
        # all readers shuffle by the same seed and so stay in step; shuffling after each epoch is
        # over all samples, where random_shuffle has a buffer
        return tuple(
            fn.readers.numpy(
                name=name,
                device="cpu",
                file_root=str(folder / name),
                cache_header_information=True,
                shuffle_after_epoch=shuffle,
                shuffle_after_epoch_seed=seed,
                pad_last_batch=True,
            )
            for name in OUTPUTS
        )

    return Batches(
        DALIGenericIterator(
            samples(),
            list(OUTPUTS),
            reader_name=OUTPUTS[0],
            last_batch_policy=LastBatchPolicy.PARTIAL,
            auto_reset=True,
        )
    )
