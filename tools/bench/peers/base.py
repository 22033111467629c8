"""What several peers need for the suite's interface: collation, DataLoader options, Arrow."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tools.bench.prepared import unpack_polygons

# Arrow's memory is read-only; said here, because workers by spawn import this, too
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

TENSORS = ("images", "prob_maps", "thresh_maps")


def collate(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Stack the tensors of samples and list the rest, as torch's default collation stacks.

    In a worker the stack is made in shared memory, so that sending it takes no further copy.
    """
    batch: dict[str, Any] = {}
    for name in samples[0]:
        values = [sample[name] for sample in samples]
        if isinstance(values[0], torch.Tensor):
            batch[name] = torch.utils.data.default_collate(values)
        else:
            batch[name] = values
    return batch


def torch_loader(
    dataset: Any, *, workers: int, shuffle: bool, batch_size: int, seed: int, **options: Any
) -> torch.utils.data.DataLoader:
    """Make torch's DataLoader as a user who cares for speed does: workers persist."""
    generator = torch.Generator().manual_seed(seed)
    if shuffle:  # streams shuffle by themselves and refuse the option
        options["shuffle"] = True
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=workers,
        persistent_workers=workers > 0,
        generator=generator,
        **options,
    )


ARRAYS = {"images": "uint8", "prob_maps": "float16", "thresh_maps": "float16"}
"""Columns of the peers that keep samples in Arrow tables."""


def batch_of_table(table: Any, view: Callable[..., np.ndarray]) -> dict:
    """Return the rows of an Arrow table; `view` makes an array of one chunk of a column."""
    batch: dict = {}
    for name, dtype in ARRAYS.items():
        parts = [view(part, name, dtype) for part in table[name].chunks]
        batch[name] = torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))
    batch["polygons"] = [unpack_polygons(packed) for packed in table["polygons"].to_pylist()]
    batch["image_filename"] = table["image_filename"].to_pylist()
    return batch


def as_it_is(batch: dict) -> dict:
    """Return the batch; the `collate_fn` of data sets that make whole batches."""
    return batch
