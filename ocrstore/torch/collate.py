"""Owns how samples become a batch under torch's default collation, and how computed batches travel.

Importing this module tells torch what to do with samples, so that nothing needs to be passed to a
DataLoader.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from ocrstore.errors import SchemaError
from ocrstore.torch._rows import AnyArray
from ocrstore.torch.fields import Field, field_of, pack_polygons, unpack_polygons
from ocrstore.torch.parts import Parts, join
from ocrstore.torch.records import Batch, OutgoingBatch, Sample

if TYPE_CHECKING:
    from ocrstore.shared_slots import Placed, Ticket


class SampleList(Sequence[Sample]):
    """The samples of one call to a data set; each is made when it is asked for.

    The default collation needs none of them. A collate function of the user's own sees a sequence.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts.local)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [Sample(self.parts.one(i)) for i in range(len(self))[index]]
        return Sample(self.parts.one(range(len(self))[index]))


class Computed(dict[str, Any]):
    """A transformed sample: its arrays as they will be stacked (HWC, HW), and its annotations."""

    recyclable = False
    """Whether nobody else points to its arrays."""


class ComputedList(Sequence[Sample]):
    """Transformed samples of one call to a data set, for any collation."""

    def __init__(self, computed: list[Computed]) -> None:
        self.computed = computed

    def __len__(self) -> int:
        return len(self.computed)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [show_sample(computed) for computed in self.computed[index]]
        return show_sample(self.computed[index])


def show_sample(computed: Computed) -> Sample:
    """Return a transformed sample with its tensors turned as records show them."""
    taken: dict[str, Any] = {}
    for name, value in computed.items():
        if isinstance(value, np.ndarray):
            taken[name] = _show(name, np.ascontiguousarray(value)[None])[0]
        else:
            taken[name] = value
    if "raw_size" in taken:
        taken["raw_size"] = torch.tensor(taken["raw_size"], dtype=torch.int64)
    return Sample(None, taken)


def plural_of(name: str) -> str:
    """Return the name in a batch of what a sample calls `name`."""
    if name == "row":
        return "rows"
    return _field(name).plural


def collate(samples: Sequence[Sample], *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001  # torch's signature
    """Return a batch of samples: by reference where nothing of them was taken or changed."""
    if isinstance(samples, ComputedList):
        return collate_computed(samples.computed)
    inside = get_worker_info() is not None
    kind = OutgoingBatch if inside else Batch
    parts: Parts | None = None
    if isinstance(samples, SampleList):
        parts = samples.parts
    elif all(sample.is_reference for sample in samples):
        parts = join([sample._parts for sample in samples if sample._parts is not None])
    if parts is not None:
        if inside:
            parts.bring_in()
        return kind(parts)
    return collate_computed([_as_computed(sample) for sample in samples])


def _as_computed(sample: Sample) -> Computed:
    """Return a sample whose tensors were taken or set, as arrays that can be stacked."""
    computed = Computed()
    for name in sample:
        value = sample[name]
        if isinstance(value, torch.Tensor) and value.ndim:
            value = _field(name).unshow(value.detach()[None])[0].numpy()
        computed[name] = value
    return computed


def collate_computed(samples: Sequence[Computed]) -> Any:
    """Return a batch of transformed samples; in a worker it is stacked where it will be sent."""
    if not samples:
        return Batch(None, {})
    first = samples[0]
    for name, value in first.items():
        if isinstance(value, np.ndarray):
            for other in samples[1:]:
                if other[name].shape != value.shape or other[name].dtype != value.dtype:
                    raise _differ(name, first, other)
    if get_worker_info() is not None:
        return ComputedBatch(list(samples))
    batch = stack_computed(samples)
    _recycle(samples)
    return batch


def _recycle(samples: Sequence[Computed]) -> None:
    """Let the next samples be computed into what these were, now that they are stacked."""
    from ocrstore.torch.recycling import give_back  # for transformed samples alone

    for sample in samples:
        for value in sample.values():
            if isinstance(value, np.ndarray) and sample.recyclable:
                give_back(value)
        sample.clear()


def _differ(name: str, first: Computed, other: Computed) -> SchemaError:
    names = [first.get("image_filename", "the first"), other.get("image_filename", "another")]
    return SchemaError(
        f"the samples of a batch differ in {name!r}: {names[0]!r} has {first[name].dtype}"
        f" {first[name].shape}, {names[1]!r} has {other[name].dtype} {other[name].shape}. End the"
        " transform with a crop, a resize or a pad to one size, or use batch_size=1."
    )


def stack_computed(samples: Sequence[Computed]) -> Batch:
    """Return transformed samples as a batch in ordinary memory."""
    taken: dict[str, Any] = {}
    for name, value in samples[0].items():
        values = [sample[name] for sample in samples]
        taken[plural_of(name)] = (
            _show(name, np.stack(values))
            if isinstance(value, np.ndarray)
            else _listed(name, values)
        )
    return Batch(None, taken)


def _field(name: str) -> Field:
    return field_of("tensor" if name == "image" else name)


def _show(name: str, stacked: AnyArray) -> torch.Tensor:
    return _field(name).tensor(stacked)


def _listed(name: str, values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(values)
    if name == "raw_size" or (isinstance(first, int) and not isinstance(first, bool)):
        return torch.tensor(values, dtype=torch.int64)
    return values


class ComputedBatch:
    """Transformed samples inside a worker; stacked into shared memory when they are sent."""

    def __init__(self, samples: list[Computed]) -> None:
        self.samples = samples

    def __reduce__(self) -> tuple[Any, ...]:
        # any other pickle than that of a worker's queue
        return Batch, (None, stack_computed(self.samples)._taken)


def _send(batch: ComputedBatch) -> tuple[Any, ...]:
    """Stack a batch into a slot of shared memory that is used again and again."""
    from ocrstore.shared_slots import needed_nbytes, place, take_slot  # for computed batches alone

    if not batch.samples:
        raise RuntimeError("a batch of a worker can be sent once only")
    first, samples = batch.samples[0], batch.samples
    arrays = {name: value for name, value in first.items() if isinstance(value, np.ndarray)}
    placed = place({n: (a.dtype, (len(samples), *a.shape)) for n, a in arrays.items()})
    slot = take_slot(needed_nbytes(placed.values()))
    if slot is None:
        return batch.__reduce__()
    ticket, memory = slot
    for name, at in placed.items():
        target = at.array(memory)
        for position, sample in enumerate(samples):
            np.copyto(target[position], sample[name])
    others: dict[str, Any] = {}
    for name in first:
        if name in arrays:
            continue
        values = [sample[name] for sample in samples]
        others[name] = [pack_polygons(v) for v in values] if name == "polygons" else values
    batch.samples = []  # sent once and for all
    _recycle(samples)
    return _receive, (ticket, placed, others)


def _receive(ticket: Ticket, placed: dict[str, Placed], others: dict[str, Any]) -> Batch:
    from ocrstore.shared_slots import receive

    memory = receive(ticket)
    taken: dict[str, Any] = {}
    for name, at in placed.items():
        taken[plural_of(name)] = _show(name, at.array(memory))
    for name, values in others.items():
        if name == "polygons":
            taken[name] = [unpack_polygons(*packed) for packed in values]
        else:
            taken[plural_of(name)] = _listed(name, values)
    return Batch(None, taken)


default_collate_fn_map[Sample] = collate
ForkingPickler.register(ComputedBatch, _send)
