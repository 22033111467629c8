"""Make batches of samples under torch's default collation, and send them to the parent.

A batch of stored rows is sent as a reference. Where the parent reads compressed columns in place,
the worker decodes them into shared memory beforehand; where the parent copies the batch into
buffers, it decodes them into these itself. The parent tells each worker what it does.

Importing this module registers the collation with torch, so that a DataLoader needs no
`collate_fn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from ocrstore.errors import OCRStoreError, SchemaError
from ocrstore.torch.annotations import ON_ACCESS
from ocrstore.torch.batch import Batch, Sample, WorkerBatch
from ocrstore.torch.memory.row_layout import AnyArray
from ocrstore.torch.row_refs import Field, RowRefs, field_of, join

if TYPE_CHECKING:
    from ocrstore.shared_slots import Placed, Ticket

AHEAD_NBYTES = 256 << 20
"""The most bytes of columns that all workers of a DataLoader decode ahead; each has its share."""


class SampleList(Sequence[Sample]):
    """The samples that a DataLoader collates into one batch; each is made when it is accessed.

    The default collation needs only the references. A custom `collate_fn` sees a sequence.
    """

    def __init__(self, refs: RowRefs) -> None:
        self.refs = refs

    def __len__(self) -> int:
        return len(self.refs)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [Sample(self.refs.one(i)) for i in range(len(self))[index]]
        return Sample(self.refs.one(range(len(self))[index]))


class Computed(dict[str, Any]):
    """A transformed sample: its arrays as they will be stacked (HWC, HW), and its annotations."""

    index: RowRefs | None = None
    """The sample's row, for what is read from the index on access."""


class ComputedList(Sequence[Sample]):
    """The transformed samples of one batch, for any collation."""

    def __init__(self, computed: list[Computed]) -> None:
        self.computed = computed

    def __len__(self) -> int:
        return len(self.computed)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [present_sample(computed) for computed in self.computed[index]]
        return present_sample(self.computed[index])


def present_sample(computed: Computed) -> Sample:
    """Return a transformed sample with its tensors in the layout of samples (CHW, 1HW)."""
    taken: dict[str, Any] = {}
    for name, value in computed.items():
        if isinstance(value, np.ndarray):
            taken[name] = _field(name).tensor(np.ascontiguousarray(value)[None])[0]
        else:
            taken[name] = value
    if "raw_size" in taken:
        taken["raw_size"] = torch.tensor(taken["raw_size"], dtype=torch.int64)
    return Sample.of_values(taken, computed.index)


def plural_of(name: str) -> str:
    """Return the key in a batch for a key of a sample."""
    if name == "row":
        return "rows"
    return _field(name).plural


def collate(samples: Sequence[Sample], *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001  # torch's signature
    """Return a batch of samples; a reference if no value of them was accessed or set."""
    if isinstance(samples, ComputedList):
        return collate_computed(samples.computed)
    refs: RowRefs | None = None
    if isinstance(samples, SampleList):
        refs = samples.refs
    elif all(sample.is_reference for sample in samples):
        refs = join([sample._refs for sample in samples if sample._refs is not None])
    if refs is not None:
        return make_batch(refs)
    return collate_computed([_as_computed(sample) for sample in samples])


def make_batch(refs: RowRefs) -> Batch | WorkerBatch:
    """Return a batch that refers to rows; a worker loads them into the page cache first."""
    if get_worker_info() is None:
        return Batch(refs)
    refs.load()
    return WorkerBatch(refs)


def _as_computed(sample: Sample) -> Computed:
    """Return a sample with tensors of its own as arrays that can be stacked."""
    computed = Computed()
    computed.index = sample._index
    for name in sample:
        if name in ON_ACCESS:
            continue
        value = sample[name]
        if isinstance(value, torch.Tensor) and value.ndim:
            value = _field(name).stored(value.detach()[None])[0].numpy()
        computed[name] = value
    return computed


def collate_computed(samples: Sequence[Computed]) -> Any:
    """Return a batch of transformed samples; a worker stacks it when it is sent."""
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
    return stack_computed(samples)


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
            _field(name).tensor(np.stack(values))
            if isinstance(value, np.ndarray)
            else _collate_values(name, values)
        )
    return Batch.of_values(taken, _index_of(samples))


def _index_of(samples: Sequence[Computed]) -> RowRefs | None:
    """Return the rows of all samples; None if one of them is not of a store."""
    known = [sample.index for sample in samples if sample.index is not None]
    return join(known) if known and len(known) == len(samples) else None


def _field(name: str) -> Field:
    return field_of("tensor" if name == "image" else name)


def _collate_values(name: str, values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(values)
    if name == "raw_size" or (isinstance(first, int) and not isinstance(first, bool)):
        return torch.tensor(values, dtype=torch.int64)
    return values


class ComputedBatch:
    """Transformed samples inside a worker, stacked into shared memory when they are pickled."""

    def __init__(self, samples: list[Computed]) -> None:
        self.samples = samples

    def __reduce__(self) -> tuple[Any, ...]:
        # for any pickler but that of a worker's queue, which calls `_send`
        return stack_computed(self.samples).__reduce__()


def _send(batch: ComputedBatch) -> tuple[Any, ...]:
    """Stack a batch into a slot of shared memory that is used again."""
    from ocrstore.shared_slots import needed_nbytes, place, take_slot  # for computed batches alone

    if not batch.samples:
        raise RuntimeError("a batch of a worker can be sent only once")
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
        others[name] = [_pack_polygons(v) for v in values] if name == "polygons" else values
    batch.samples = []  # the queue may keep the batch alive, and the next one needs the memory
    return _receive, (ticket, placed, others, _index_of(samples))


def _receive(
    ticket: Ticket, placed: dict[str, Placed], others: dict[str, Any], index: RowRefs | None
) -> Batch:
    from ocrstore.shared_slots import receive

    memory = receive(ticket)
    taken: dict[str, Any] = {}
    for name, at in placed.items():
        taken[plural_of(name)] = _field(name).tensor(at.array(memory))
    for name, values in others.items():
        if name == "polygons":
            taken[name] = [_unpack_polygons(*packed) for packed in values]
        else:
            taken[plural_of(name)] = _collate_values(name, values)
    return Batch.of_values(taken, index)


def _pack_polygons(polygons: list[AnyArray]) -> tuple[AnyArray, AnyArray]:
    """Return all points as one (n, 2) float32 array, and where each polygon ends."""
    ends = np.cumsum([len(points) for points in polygons], dtype=np.int64)
    points = np.concatenate([*polygons, np.empty((0, 2), np.float32)]).astype(np.float32)
    return points, ends


def _unpack_polygons(points: AnyArray, ends: AnyArray) -> list[AnyArray]:
    """Undo `_pack_polygons`."""
    return np.split(points, ends[:-1].tolist()) if len(ends) else []


def _send_stored(batch: WorkerBatch) -> tuple[Any, ...]:
    """Send a reference, with the columns decoded that the parent reads in place."""
    refs, taken = batch._refs, batch._taken
    if refs is None or not any(map(refs.is_decoded, refs.fields)):
        return batch.__reduce__()
    from ocrstore.shared_slots import own_notes

    found = own_notes()
    if found is None:
        return batch.__reduce__()
    sender, notes = found
    names: list[str] = []
    for number, field in enumerate(refs.fields[: len(notes)]):
        if notes[number] and field.plural not in taken:
            notes[number] -= 1
            names.append(field.column)
    ahead = _decode_ahead(refs, names) if names else None
    return _receive_stored, (refs, taken or None, sender, ahead)


def _decode_ahead(refs: RowRefs, names: list[str]) -> tuple[Ticket, dict[str, Placed]] | None:
    """Decode columns into a slot; None if all slots are in use and there is no room for another.

    A column that cannot be decoded is left out, and all after it: the parent reads the same rows,
    and raises the same error.
    """
    from ocrstore.shared_slots import needed_nbytes, place, take_slot

    fields = {field.column: field for field in refs.fields if field.column in names}
    placed = place({name: refs.array_type(field) for name, field in fields.items()})
    worker = get_worker_info()
    limit = AHEAD_NBYTES // (worker.num_workers if worker else 1)
    slot = take_slot(needed_nbytes(placed.values()), limit=limit)
    if slot is None:
        return None
    ticket, memory = slot
    decoded: dict[str, Placed] = {}
    try:
        refs.check()
        for name, at in placed.items():
            refs.write_into(fields[name], at.array(memory))
            decoded[name] = at
    except OCRStoreError:
        pass
    return ticket, decoded


def _receive_stored(
    refs: RowRefs,
    taken: dict[str, Any] | None,
    sender: Ticket,
    ahead: tuple[Ticket, dict[str, Placed]] | None,
) -> Batch:
    from ocrstore.shared_slots import receive

    refs.sender = sender
    if ahead is not None:
        ticket, placed = ahead
        try:
            memory = receive(ticket)
            refs.decoded = {name: at.array(memory) for name, at in placed.items()}
        except RuntimeError:
            pass  # the worker has ended, the rows are still in the file
    return Batch(refs, taken)


default_collate_fn_map[Sample] = collate
ForkingPickler.register(ComputedBatch, _send)
ForkingPickler.register(WorkerBatch, _send_stored)
