"""What several peers need to speak the suite's interface: collation, and DataLoader options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

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
