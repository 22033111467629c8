"""Owns samples and batches: mappings that point to rows until a tensor is asked for.

A record holds (store, rows). A tensor is made when its name is first asked for, and is then the
record's own. Pickling sends the reference; what was taken or set is sent as it is, because it may
have been changed.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, TypeVar

import torch

from ocrstore.errors import UnknownColumnError
from ocrstore.torch.annotations import ANNOTATIONS, LISTS, annotate
from ocrstore.torch.fields import Field
from ocrstore.torch.parts import Parts

R = TypeVar("R", bound="Record")


class _Removed:
    """Stands for a value that is none any more; stays the same one when it is pickled."""

    def __reduce__(self) -> str:
        return "_REMOVED"


_REMOVED = _Removed()


class Record:
    """What samples and batches have in common. One thread at a time."""

    __slots__ = ("_parts", "_taken")

    def __init__(self, parts: Parts | None, taken: dict[str, Any] | None = None) -> None:
        self._parts = parts
        self._taken: dict[str, Any] = {} if taken is None else taken

    def _field_name(self, field: Field) -> str:
        raise NotImplementedError

    def _annotation_names(self) -> dict[str, str]:
        raise NotImplementedError

    def _take_field(self, parts: Parts, field: Field) -> Any:
        raise NotImplementedError

    def _take_annotation(self, parts: Parts, name: str) -> Any:
        raise NotImplementedError

    def _names(self) -> list[str]:
        names: dict[str, None] = {}
        if self._parts is not None:
            names.update((self._field_name(field), None) for field in self._parts.fields)
            names.update((name, None) for name in self._annotation_names().values())
        for name, value in self._taken.items():
            if value is _REMOVED:
                names.pop(name, None)
            else:
                names[name] = None
        return list(names)

    def _removed(self) -> dict[str, Any]:
        return {name: value for name, value in self._taken.items() if value is _REMOVED}

    def __getitem__(self, name: str) -> Any:
        if name not in self._taken:
            self._taken[name] = self._resolve(name)
        value = self._taken[name]
        return self._resolve(name) if value is _REMOVED else value

    def _resolve(self, name: str) -> Any:
        parts = self._parts
        if parts is not None and name not in self._taken:
            for field in parts.fields:
                if self._field_name(field) == name:
                    return self._take_field(parts, field)
            for known, mine in self._annotation_names().items():
                if mine == name:
                    return self._take_annotation(parts, known)
        known_names = ", ".join(self._names())
        raise UnknownColumnError(
            f"no {name!r} in this {type(self).__name__.lower()}; it has {known_names}."
        )

    def __setitem__(self, name: str, value: Any) -> None:
        self._taken[name] = value

    def __delitem__(self, name: str) -> None:
        if name not in self._names():
            self._resolve(name)  # says what there is
        if self._parts is None:
            del self._taken[name]
        else:
            self._taken[name] = _REMOVED  # it would be taken again

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a name and return its value, or `default` if one is given and there is no name."""
        if default and name not in self._names():
            return default[0]
        value = self[name]
        del self[name]
        return value

    def update(self, *others: Any, **values: Any) -> None:
        """Set several values, as of a dict."""
        self._taken.update(dict(*others, **values))

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return a value; `default` is set if there is no such name."""
        if name not in self._names():
            self[name] = default
        return self[name]

    def copy(self: R) -> R:
        """Return another record of the same values, whose names are its own."""
        return self.__copy__()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return KeysView(self)

    def values(self) -> ValuesView[Any]:
        """Return the values; takes every tensor."""
        return ValuesView(self)

    def items(self) -> ItemsView[str, Any]:
        """Return names and values; takes every tensor."""
        return ItemsView(self)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or `default` if there is no such name."""
        return self[name] if name in self._names() else default

    def as_dict(self) -> dict[str, Any]:
        """Return a plain dict of plain tensors and lists."""
        return {name: self[name] for name in self}

    def to(self: R, *args: Any, **kwargs: Any) -> R:
        """Return the record with every tensor sent through `Tensor.to(...)`; the rest is kept.

        Lists (polygons, texts, ...) that nobody has asked for yet are still made when asked for.
        """
        moved: dict[str, Any] = {}
        for name in self._names():
            if not self._is_deferred(name):
                moved[name] = _each_tensor(self[name], lambda tensor: tensor.to(*args, **kwargs))
        return type(self)(self._parts, self._removed() | moved)

    def _is_deferred(self, name: str) -> bool:
        return self._parts is not None and name in LISTS and name not in self._taken

    def __copy__(self: R) -> R:
        return type(self)(self._parts, dict(self._taken))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._parts, self._taken or None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self._names())}>"


class Sample(Record):
    """One sample of a data set, as a dict-like record.

    It is no `collections.abc.Mapping`, because torch would take every tensor of one before
    sending it.
    """

    __slots__ = ()

    def _field_name(self, field: Field) -> str:
        return field.singular

    def _annotation_names(self) -> dict[str, str]:
        return {name: "row" if name == "rows" else name for name in ANNOTATIONS}

    def _take_field(self, parts: Parts, field: Field) -> Any:
        taken = parts.take(field)
        rows = taken[0][None] if isinstance(taken, list) else taken
        return field.tensor(rows)[0]

    def _take_annotation(self, parts: Parts, name: str) -> Any:
        value = annotate(parts, name)[0]
        return int(value) if name in ("rows", "orientation") else value

    def pin_memory(self) -> Sample:
        """Return the sample in page-locked memory where there is an accelerator, else itself."""
        if not _has_accelerator():
            return self
        pinned = {
            name: _each_tensor(value, torch.Tensor.pin_memory) for name, value in self.items()
        }
        return Sample(None, pinned)

    @property
    def is_reference(self) -> bool:
        """Return whether nothing of it was taken or changed."""
        return self._parts is not None and not self._taken


class _BatchRecord(Record):
    __slots__ = ()

    def _field_name(self, field: Field) -> str:
        return field.plural

    def _annotation_names(self) -> dict[str, str]:
        return {name: name for name in ANNOTATIONS}

    def _take_field(self, parts: Parts, field: Field) -> Any:
        taken = parts.take(field)
        if isinstance(taken, list):
            return [field.tensor(array[None])[0] for array in taken]
        return field.tensor(taken)

    def _take_annotation(self, parts: Parts, name: str) -> Any:
        return annotate(parts, name)

    @property
    def batch_size(self) -> int:
        """Return the number of samples; `len()` is the number of names, as of any mapping."""
        if self._parts is not None:
            return len(self._parts.rows)
        return len(next(iter(self._taken.values()))) if self._taken else 0

    def copy_into(self, buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy the tensors named in `buffers` into them, each row once, straight from the file.

        A buffer may hold more samples than the batch; returned are the parts that were filled.
        Tensors that were taken before are copied as they are now.
        """
        count = self.batch_size
        filled: dict[str, torch.Tensor] = {}
        fields = {} if self._parts is None else {f.plural: f for f in self._parts.fields}
        for name, buffer in buffers.items():
            target = buffer[:count]
            field = fields.get(name)
            if (
                name in self._taken
                or field is None
                or self._parts is None
                or self._parts.torch_dtype(field) is None  # views of several sizes: a list
            ):
                value = self[name]
                if not isinstance(value, torch.Tensor):
                    raise TypeError(
                        f"{name!r} is not one tensor and cannot be copied into a buffer"
                    )
                _check_buffer(name, value.shape, target)
                target.copy_(value)
            else:
                _check_buffer(name, field.shown_shape(self._parts.shape(field)), target)
                stored = field.unshow(target)
                if not self._parts.copy(field, stored):
                    target.copy_(self[name])
            filled[name] = target
        return filled

    def layouts(self) -> dict[str, torch.Tensor]:
        """Return the shape, type and strides that each tensor has, without taking any.

        The tensors that stand for stored rows have no memory (device `meta`); those that were
        taken before are given as they are.
        """
        found: dict[str, torch.Tensor] = {}
        if self._parts is not None:
            for field in self._parts.fields:
                dtype = self._parts.torch_dtype(field)
                if dtype is not None and field.plural not in self._taken:
                    empty = torch.empty(self._parts.shape(field), dtype=dtype, device="meta")
                    found[field.plural] = field.show(empty)
        found.update((n, v) for n, v in self._taken.items() if isinstance(v, torch.Tensor))
        return found

    def empty_buffers(self, *, pin_memory: bool = False) -> dict[str, torch.Tensor]:
        """Return buffers for `copy_into`, laid out as the stored rows are (channels last)."""
        buffers: dict[str, torch.Tensor] = {}
        if self._parts is not None:
            for field in self._parts.fields:
                dtype = self._parts.torch_dtype(field)
                if dtype is not None and field.plural not in self._taken:
                    shape = self._parts.shape(field)
                    empty = torch.empty(shape, dtype=dtype, pin_memory=pin_memory)
                    buffers[field.plural] = field.show(empty)
        for name, value in self._taken.items():
            if isinstance(value, torch.Tensor):
                empty = torch.empty_like(value, memory_format=torch.preserve_format)
                buffers[name] = empty.pin_memory() if pin_memory else empty
        return buffers

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory: the one copy that it needs before a GPU.

        Without an accelerator there is none to lock pages for; the copy is an ordinary one then.
        """
        pinned = _has_accelerator()
        buffers = self.empty_buffers(pin_memory=pinned)
        filled: dict[str, Any] = dict(self.copy_into(buffers))
        for name in self._names():
            if name not in filled and not self._is_deferred(name):
                value = self[name]
                if pinned and isinstance(value, list):
                    value = _each_tensor(value, torch.Tensor.pin_memory)
                filled[name] = value
        return Batch(self._parts, self._removed() | filled)


def _each_tensor(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a tensor changed, or a list with each of its tensors changed; the rest as it is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list) and any(isinstance(item, torch.Tensor) for item in value):
        return [_each_tensor(item, change) for item in value]
    return value


def _has_accelerator() -> bool:
    if hasattr(torch, "accelerator") and torch.accelerator.is_available():
        return True
    return torch.cuda.is_available()


def _check_buffer(name: str, shape: tuple[int, ...], target: torch.Tensor) -> None:
    if target.shape != shape:
        raise ValueError(
            f"the buffer for {name!r} holds {tuple(target.shape)}, the batch {tuple(shape)}"
        )


class Batch(_BatchRecord):
    """Several samples, as a mapping: `batch["images"]`, `batch["polygons"]`, ...

    Every tensor is yours to write on; nobody else sees it, and the file never changes. It stays
    valid as long as it, or anything that shares its memory, is referenced.
    """

    __slots__ = ()

    def __init__(
        self, parts: Parts | Mapping[str, Any] | None, taken: dict[str, Any] | None = None
    ) -> None:
        if parts is None or isinstance(parts, Parts):
            super().__init__(parts, taken)
        else:
            super().__init__(None, dict(parts))  # torch rebuilds mappings from a dict


Mapping.register(Batch)


class OutgoingBatch(_BatchRecord):
    """A batch inside a worker: no Mapping, so that torch leaves it; arrives as a `Batch`."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (self._parts, self._taken or None)
