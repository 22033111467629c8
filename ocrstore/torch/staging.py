"""Owns what is done to a batch ahead of its use: its tensors taken, or on their way to a device."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ocrstore.torch.annotations import LISTS
from ocrstore.torch.records import Batch, Record


class Stage(Protocol):
    """Two halves of handing over a batch. State may be kept: one thread calls each of them."""

    def begin(self, batch: Any) -> Any:
        """Do what can be done ahead of time, in the reading thread."""

    def finish(self, begun: Any) -> Any:
        """Return the batch, in the thread that uses it."""


class Resolve:
    """Takes the tensors of a batch, so that the loop finds them made; with `lists` all of it."""

    def __init__(self, *, lists: bool = False) -> None:
        self.lists = lists

    def begin(self, batch: Any) -> Any:
        """Take what is wanted; what is no record of ocrstore's is passed on."""
        take_ahead(batch, lists=self.lists)
        return batch

    def finish(self, begun: Any) -> Any:
        """Return the batch."""
        return begun


def take_ahead(batch: Any, *, lists: bool) -> None:
    """Take the tensors of a record; with `lists` also polygons, texts and what else are lists."""
    if isinstance(batch, Record):
        for name in batch:
            if lists or name not in LISTS:
                batch[name]


@dataclass(slots=True)
class _Slot:
    """Page-locked buffers, and the moment at which the device has read them."""

    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    event: Any = None


class Transfer:
    """Copies batches through reused page-locked buffers to a device, on a stream of its own.

    The copy into page-locked memory reads straight from the file and is the only one on this side
    of the bus. The loop's stream waits for the transfer, the loop itself does not. A buffer is
    filled again when the device has read it.
    """

    _SLOTS = 2
    _PINNED = True

    def __init__(self, device: torch.device, *, lists: bool = False) -> None:
        self.device = device
        self.lists = lists
        self._api = getattr(torch, device.type)
        self._stream = self._api.Stream(device=device)
        self._slots = [_Slot() for _ in range(self._SLOTS)]
        self._turn = 0

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
        """Let the current stream wait for the transfer, and tell the allocator who uses it."""
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
        wanted = {name: like for name, like in batch.layouts().items() if not like.is_pinned()}
        fresh: dict[str, torch.Tensor] = {}
        for name, like in wanted.items():
            if not _holds(slot.buffers.get(name), like):
                fresh = fresh or batch.empty_buffers(pin_memory=self._PINNED)
                slot.buffers[name] = fresh[name]
        filled = batch.copy_into({name: slot.buffers[name] for name in wanted})
        staged = copy.copy(batch)
        for name, tensor in filled.items():
            staged[name] = tensor
        take_ahead(staged, lists=self.lists)
        return staged


class BlockingTransfer:
    """Moves batches to a device without streams of its own, in the reading thread."""

    def __init__(self, device: torch.device, *, lists: bool = False) -> None:
        self.device = device
        self.lists = lists

    def begin(self, batch: Any) -> Any:
        """Move the batch."""
        take_ahead(batch, lists=self.lists)
        return move(batch, self.device)

    def finish(self, begun: Any) -> Any:
        """Return the batch."""
        return begun


def stage_for(device: torch.device | str | None, *, lists: bool = False) -> Stage:
    """Return what is to be done for batches that are used on a device; None is this memory."""
    where = None if device is None else torch.device(device)
    if where is None or where.type == "cpu":
        return Resolve(lists=lists)
    kind = Transfer if _has_streams(where) else BlockingTransfer
    return kind(where, lists=lists)


def move(value: Any, device: torch.device) -> Any:
    """Return tensors on a device, in whatever they are; starts transfers without waiting."""
    if isinstance(value, (torch.Tensor, Record)):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: move(part, device) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(move(part, device) for part in value))
    if isinstance(value, (list, tuple)):
        return type(value)(move(part, device) for part in value)
    return value


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in a batch, whatever its form."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Record):
        for name in value:
            if name not in LISTS:
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
    return all(hasattr(module, name) for name in ("Stream", "Event", "stream", "current_stream"))
