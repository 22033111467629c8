"""Prepare batches ahead of their use: make their tensors, or start their transfer to a device."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ocrstore.torch.annotations import LISTS, ON_ACCESS
from ocrstore.torch.batch import ASYNCHRONOUS, ON_HOST, Batch, Record


class Stage(Protocol):
    """What is done to a batch before the loop gets it, in two threads. One thread calls each."""

    def enter_thread(self) -> None:
        """Prepare the prefetching thread; called in it before the first batch is read."""

    def begin(self, batch: Any) -> Any:
        """Do what can be done ahead, in the prefetching thread."""

    def finish(self, begun: Any) -> Any:
        """Return the batch, in the thread of the loop."""


class Resolve:
    """Makes the tensors of a batch; with `lists` everything."""

    def __init__(self, *, lists: bool = False) -> None:
        self.lists = lists

    def enter_thread(self) -> None:
        """Do nothing."""

    def begin(self, batch: Any) -> Any:
        """Make the values of a batch; anything else is returned as it is."""
        make_values(batch, lists=self.lists)
        return batch

    def finish(self, begun: Any) -> Any:
        """Return the batch."""
        return begun


def make_values(batch: Any, *, lists: bool) -> None:
    """Make the tensors of a batch or sample; with `lists` also polygons, texts and names."""
    if isinstance(batch, Record):
        for name in batch:
            if name not in ON_ACCESS and (lists or name not in LISTS):
                batch[name]


@dataclass(slots=True)
class _Slot:
    """Page-locked buffers, and the event after which the device has read them."""

    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    event: Any = None


class Transfer:
    """Copies batches through reused page-locked buffers to a device, on a separate stream.

    Rows are copied once on the host, from the file into page-locked memory. The stream of the loop
    waits for the transfer, the loop itself does not. A buffer is reused when the device has read
    it.
    """

    _SLOTS = 2

    def __init__(self, device: torch.device, *, lists: bool = False) -> None:
        self.lists = lists
        self._api = getattr(torch, device.type)
        self._stream = self._api.Stream(device=device)
        self.device = self._stream.device  # with an index: "cuda" means another one in a thread
        self._slots = [_Slot() for _ in range(self._SLOTS)]
        self._turn = 0

    def enter_thread(self) -> None:
        """Make the device the current one of the prefetching thread.

        A new thread is on device 0: page-locked memory and the end of `with stream(...)` would make
        a context there, of half a gigabyte for every rank.
        """
        enter_device(self.device)

    def begin(self, batch: Any) -> tuple[Any, Any]:
        """Fill a buffer and start the transfer."""
        slot = self._slots[self._turn % self._SLOTS]
        self._turn += 1
        if slot.event is not None:
            slot.event.synchronize()
        staged = self._stage_record(batch, slot) if isinstance(batch, Record) else batch
        with self._api.stream(self._stream):
            moved = move(staged, self.device)
            event = self._api.Event()
            event.record(self._stream)
        slot.event = event
        return moved, event

    def finish(self, begun: tuple[Any, Any]) -> Any:
        """Let the current stream wait for the transfer, and tell the allocator of its use."""
        batch, event = begun
        current = self._api.current_stream(self.device)
        current.wait_event(event)
        for tensor in tensors_of(batch):
            if tensor.device.type == self.device.type:
                tensor.record_stream(current)
        return batch

    def _stage_record(self, batch: Record, slot: _Slot) -> Any:
        if not isinstance(batch, Batch):
            return batch
        wanted = {
            name: like
            for name, like in batch.layouts().items()
            if name not in ON_HOST and like.device.type in ("cpu", "meta") and not like.is_pinned()
        }
        fresh: dict[str, torch.Tensor] = {}
        for name, like in wanted.items():
            if not _holds(slot.buffers.get(name), like):
                fresh = fresh or batch.empty_buffers(pin_memory=True)
                slot.buffers[name] = fresh[name]
        filled = batch.copy_into({name: slot.buffers[name] for name in wanted})
        staged = copy.copy(batch)
        for name, tensor in filled.items():
            staged[name] = tensor
        make_values(staged, lists=self.lists)
        return staged


class BlockingTransfer:
    """Moves batches to a device without streams, in the prefetching thread."""

    def __init__(self, device: torch.device, *, lists: bool = False) -> None:
        self.device = device
        self.lists = lists

    def enter_thread(self) -> None:
        """Do nothing."""

    def begin(self, batch: Any) -> Any:
        """Move the batch."""
        make_values(batch, lists=self.lists)
        return move(batch, self.device)

    def finish(self, begun: Any) -> Any:
        """Return the batch."""
        return begun


def stage_for(device: torch.device | str | None, *, lists: bool = False) -> Stage:
    """Return the stage for a device; None is the CPU."""
    where = None if device is None else torch.device(device)
    if where is None or where.type == "cpu":
        return Resolve(lists=lists)
    kind = Transfer if _has_streams(where) else BlockingTransfer
    return kind(where, lists=lists)


def enter_device(device: torch.device) -> None:
    """Make a device the current one of a thread that waits for it; a new thread is on device 0."""
    if _has_streams(device):
        getattr(torch, device.type).set_device(device)


def start_fetch(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Start to copy a tensor to the host.

    Returns:
        The copy, and the event after which it is filled; None if it is filled already.
    """
    tensor = tensor.detach()
    if not _has_streams(tensor.device):
        return tensor.cpu(), None
    api = getattr(torch, tensor.device.type)
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    event = api.Event()
    event.record(api.current_stream(tensor.device))
    return host, event


def move(value: Any, device: torch.device) -> Any:
    """Return a nested structure with its tensors on a device; waits only where it has to."""
    if isinstance(value, (torch.Tensor, Record)):
        return value.to(device, non_blocking=device.type in ASYNCHRONOUS)
    if isinstance(value, Mapping):
        return {name: move(part, device) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(move(part, device) for part in value))
    if isinstance(value, (list, tuple)):
        return type(value)(move(part, device) for part in value)
    return value


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in a nested structure."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Record):
        for name in value:
            if name not in LISTS and name not in ON_ACCESS:
                yield from tensors_of(value[name])
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_of(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_of(part)


def _holds(buffer: torch.Tensor | None, like: torch.Tensor) -> bool:
    return (
        buffer is not None
        and buffer.dtype == like.dtype
        and buffer.shape[1:] == like.shape[1:]
        and len(buffer) >= len(like)
    )


def _has_streams(device: torch.device) -> bool:
    module = getattr(torch, device.type, None)
    needed = ("Stream", "Event", "stream", "current_stream", "set_device")
    return device.type in ASYNCHRONOUS and all(hasattr(module, name) for name in needed)
