"""What is done with a batch: *touch* reads one element of each page, *copy* copies every byte.

Copying goes into reused buffers of the batch's own memory layout, as staging for a GPU does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

NAMES = ("images", "prob_maps", "thresh_maps")
PAGE = 4096
Batch = Mapping[str, torch.Tensor]
Buffers = dict[str, torch.Tensor]


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements in the order of its memory; a view unless there are gaps."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(order).reshape(-1)


def touch(batch: Batch, buffers: Buffers | None = None) -> None:  # noqa: ARG001  # one signature
    """Read one element of each page."""
    for name in NAMES:
        elements = flat(batch[name])
        pages = elements[:: PAGE // elements.element_size()]
        pages.view(torch.uint8 if elements.element_size() == 1 else torch.int16).sum()


def copy(batch: Batch, buffers: Buffers) -> None:
    """Copy every byte into buffers, which are made for the first batch and then used again."""
    for name in NAMES:
        tensor = batch[name]
        if name not in buffers:
            buffers[name] = torch.zeros_like(tensor, memory_format=torch.preserve_format)
        buffers[name][: len(tensor)].copy_(tensor)


CONSUMERS: dict[str, Callable[[Batch, Buffers], None]] = {"touch": touch, "copy": copy}
