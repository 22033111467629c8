"""Samples and batches: mappings that refer to rows and make each tensor at its first access.

Pickling sends the reference. Values that were accessed or set are sent as they are, because they
may have been changed.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
import torch

from ocrstore.errors import OCRStoreError, UnknownColumnError
from ocrstore.torch.annotations import (
    ANNOTATIONS,
    LISTS,
    ON_ACCESS,
    BatchTensor,
    SampleTensor,
    annotate,
)
from ocrstore.torch.memory.parallel_copy import Job, run_jobs
from ocrstore.torch.row_refs import Field, RowRefs

if TYPE_CHECKING:
    import numpy.typing as npt

    _Mapping = Mapping[str, Any]
else:
    _Mapping = object  # `Batch` is registered as one: it has all methods itself

R = TypeVar("R", bound="Record")

ON_HOST = ("inverse_matrix", "raw_size", "orientation", "source_orientation", "rows")
"""Tensors that describe samples. They stay on the host, in their dtype: no kernel reads them, and
a small copy from pageable memory behind the large ones makes the driver synchronise."""

ASYNCHRONOUS = ("cuda", "xpu")
"""Devices that copy from page-locked memory while the host goes on. Not MPS: there a copy that is
not waited for may read memory that was freed since (pytorch#83015, pytorch#189690)."""


class _Removed:
    """Sentinel for a deleted key; a singleton across pickling."""

    def __reduce__(self) -> str:
        return "_REMOVED"


_REMOVED = _Removed()


class Record:
    """What samples and batches have in common. Not thread-safe.

    A key that was deleted is kept in `_taken` as `_REMOVED`, else it would be read from the store
    again.

    Args:
        refs: The rows to read; None if all values are in `taken`, as those of a transform are.
        taken: The values that were made already.
        index: The rows that `ON_ACCESS` is read from if `refs` is None.
    """

    __slots__ = ("_index", "_refs", "_taken")

    def __init__(
        self,
        refs: RowRefs | None,
        taken: dict[str, Any] | None = None,
        index: RowRefs | None = None,
    ) -> None:
        self._refs = refs
        self._taken: dict[str, Any] = {} if taken is None else taken
        self._index = index if refs is None else refs

    @classmethod
    def of_values(cls: type[R], taken: dict[str, Any], index: RowRefs | None) -> R:
        """Make one of computed values, as arrays if the data set was asked for them."""
        if index is not None and index.as_numpy:
            taken = {name: _each_tensor(value, _as_array) for name, value in taken.items()}
        return cls(None, taken, index)

    def _field_name(self, field: Field) -> str:
        raise NotImplementedError

    def _annotation_names(self) -> dict[str, str]:
        raise NotImplementedError

    def _take_field(self, refs: RowRefs, field: Field) -> Any:
        raise NotImplementedError

    def _take_annotation(self, refs: RowRefs, name: str) -> Any:
        raise NotImplementedError

    def _names(self) -> list[str]:
        names: dict[str, None] = {}
        if self._refs is not None:
            names.update((self._field_name(field), None) for field in self._refs.fields)
            names.update((name, None) for name in self._annotation_names().values())
        for name, value in self._taken.items():
            if value is _REMOVED:
                names.pop(name, None)
            else:
                names[name] = None
        if self._index is not None:
            further = (name for name in ON_ACCESS if self._taken.get(name) is not _REMOVED)
            names.update(dict.fromkeys(further))
        return list(names)

    def _removed(self) -> dict[str, Any]:
        return {name: value for name, value in self._taken.items() if value is _REMOVED}

    def __getitem__(self, name: str) -> Any:
        if name not in self._taken:
            self._taken[name] = self._resolve(name)
        value = self._taken[name]
        return self._resolve(name) if value is _REMOVED else value

    def _resolve(self, name: str) -> Any:
        if self._index is not None and name not in self._taken:
            found = self._read(name)
            if found is not None:
                return _each_tensor(found, _as_array) if self._index.as_numpy else found
        known_names = ", ".join(self._names())
        raise UnknownColumnError(
            f"no {name!r} in this {type(self).__name__.lower()}; it has {known_names}."
        )

    def _read(self, name: str) -> Any:
        """Return a value of the store; None if there is no such key."""
        refs = self._refs
        if refs is not None:
            for field in refs.fields:
                if self._field_name(field) == name:
                    return self._take_field(refs, field)
            for known, mine in self._annotation_names().items():
                if mine == name:
                    return self._take_annotation(refs, known)
        if self._index is not None and name in ON_ACCESS:
            return self._take_annotation(self._index, name)
        return None

    def __setitem__(self, name: str, value: Any) -> None:
        self._taken[name] = value

    def __delitem__(self, name: str) -> None:
        if name not in self._names():
            self._resolve(name)  # raises, and lists the names
        if self._index is None:
            del self._taken[name]
        else:
            self._taken[name] = _REMOVED

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a key and return its value, or `default` if it is given and there is no key."""
        if default and name not in self._names():
            return default[0]
        value = self[name]
        del self[name]
        return value

    def update(self, *others: Any, **values: Any) -> None:
        """Set several values, as `dict.update` does."""
        self._taken.update(dict(*others, **values))

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return a value; set it to `default` if there is no such key."""
        if name not in self._names():
            self[name] = default
        return self[name]

    def copy(self: R) -> R:
        """Return a shallow copy."""
        return self.__copy__()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def keys(self) -> KeysView[str]:
        """Return the keys."""
        return KeysView(self)

    def values(self) -> ValuesView[Any]:
        """Return the values; makes every tensor."""
        return ValuesView(self)

    def items(self) -> ItemsView[str, Any]:
        """Return keys and values; makes every tensor."""
        return ItemsView(self)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or `default` if there is no such key."""
        return self[name] if name in self._names() else default

    def as_dict(self) -> dict[str, Any]:
        """Return a plain dict of plain tensors and lists."""
        return {name: self[name] for name in self}

    def to(self: R, *args: Any, **kwargs: Any) -> R:
        """Return a copy with its tensors passed through `Tensor.to(...)`.

        Those that describe samples (`ON_HOST`) are left as they are, and so are arrays. Copies
        from page-locked memory to CUDA and XPU are not waited for, unless `non_blocking=False` is
        given. Lists (polygons, texts, ...) that were not accessed yet are still made at first
        access.
        """
        move = _mover(args, kwargs)
        moved: dict[str, Any] = {}
        for name in self._names():
            if not self._is_deferred(name):
                moved[name] = self[name] if name in ON_HOST else _each_tensor(self[name], move)
        return type(self)(self._refs, self._removed() | moved, self._index)

    def _is_deferred(self, name: str) -> bool:
        if name in self._taken:
            return False
        return name in ON_ACCESS or (self._refs is not None and name in LISTS)

    def __copy__(self: R) -> R:
        return type(self)(self._refs, dict(self._taken), self._index)

    def _state(self) -> tuple[Any, ...]:
        """Return the arguments to make an equal one of."""
        if self._refs is None and self._index is not None:
            return None, self._taken, self._index
        return self._refs, self._taken or None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._state()

    def _title(self) -> str:
        return type(self).__name__

    def _outline(self, name: str) -> Any:
        """Return what has the type, dtype and shape of a value that was not accessed yet."""
        raise NotImplementedError

    def _lines(self) -> list[tuple[str, str, str]]:
        """Return name, dtype and shape of each value; no payload is read, no tensor is kept."""
        from ocrstore.display import describe

        lines = []
        for name in self._names():
            try:
                value = self._taken[name] if name in self._taken else self._outline(name)
                lines.append((name, *describe(value)))
            except OCRStoreError as exc:
                lines.append((name, "not readable", str(exc)))
        return lines

    def __repr__(self) -> str:
        from ocrstore.display import as_text

        return as_text(self._title(), self._lines())

    def _repr_html_(self) -> str:
        from ocrstore.display import as_html

        return as_html(self._title(), self._lines())


class Sample(Record):
    """One sample of a data set, dict-like: `sample["image"]`, `sample["polygons"]`, ...

    Not a `collections.abc.Mapping`: torch would make every tensor of a Mapping before sending it.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, name: SampleTensor) -> torch.Tensor: ...
        @overload
        def __getitem__(self, name: Literal["polygons"]) -> list[npt.NDArray[np.float32]]: ...
        @overload
        def __getitem__(self, name: Literal["ignored"]) -> list[bool]: ...
        @overload
        def __getitem__(self, name: Literal["texts"]) -> list[str | None]: ...
        @overload
        def __getitem__(self, name: Literal["image_filename", "image_path"]) -> str: ...
        @overload
        def __getitem__(self, name: Literal["orientation", "source_orientation", "row"]) -> int: ...
        @overload
        def __getitem__(self, name: Literal["shape", "canonical_size"]) -> tuple[int, int]: ...
        @overload
        def __getitem__(self, name: Literal["annotated"]) -> bool: ...
        @overload
        def __getitem__(self, name: Literal["metadata"]) -> dict[str, Any]: ...
        @overload
        def __getitem__(self, name: str) -> Any: ...
        def __getitem__(self, name: str) -> Any: ...

    def _outline(self, name: str) -> Any:
        refs = self._refs
        for field in () if refs is None else refs.fields:
            if refs is not None and field.singular == name:
                ((view, row),) = refs.each()
                column = view.column(field.column)
                # memory that nobody writes to costs nothing
                empty = np.empty((1, *column.shapes[row].tolist()), column.spec.numpy_dtype)
                like = field.tensor(empty)[0]
                dtype = refs.torch_dtype(field) or like.dtype
                return torch.empty_like(like, dtype=dtype, device="meta")
        return self._resolve(name)

    def _repr_html_(self) -> str:
        from ocrstore.display import as_html, picture_html

        try:
            picture = picture_html(self.copy())  # a copy: this sample stays a reference
        except OCRStoreError:
            picture = ""  # the table names what can be read
        return as_html(self._title(), self._lines(), picture)

    def _field_name(self, field: Field) -> str:
        return field.singular

    def _annotation_names(self) -> dict[str, str]:
        return {name: "row" if name == "rows" else name for name in ANNOTATIONS}

    def _take_field(self, refs: RowRefs, field: Field) -> Any:
        taken = refs.take(field)
        rows = taken[0][None] if isinstance(taken, list) else taken
        return field.tensor(rows)[0]

    def _take_annotation(self, refs: RowRefs, name: str) -> Any:
        value = annotate(refs, name)[0]
        return int(value) if name in ("rows", "orientation", "source_orientation") else value

    def pin_memory(self) -> Sample:
        """Return the sample in page-locked memory; without an accelerator, the sample itself."""
        if not _has_accelerator():
            return self
        pinned = {
            name: _each_tensor(self[name], torch.Tensor.pin_memory)
            for name in self
            if not self._is_deferred(name) or name in LISTS
        }
        return Sample(None, pinned, self._index)

    @property
    def is_reference(self) -> bool:
        """Return whether no value was accessed, set or deleted."""
        return self._refs is not None and not self._taken


class _BatchRecord(Record):
    """What a batch has in common with a batch inside a worker."""

    __slots__ = ()

    def _field_name(self, field: Field) -> str:
        return field.plural

    def _annotation_names(self) -> dict[str, str]:
        return {name: name for name in ANNOTATIONS}

    def _take_field(self, refs: RowRefs, field: Field) -> Any:
        taken = refs.take(field)
        if isinstance(taken, list):
            return [field.tensor(array[None])[0] for array in taken]
        return field.tensor(taken)

    def _take_annotation(self, refs: RowRefs, name: str) -> Any:
        return annotate(refs, name)

    def _title(self) -> str:
        return f"{type(self).__name__} of {self.batch_size}"

    def _outline(self, name: str) -> Any:
        layout = self.layouts().get(name)
        if layout is not None:
            return layout
        fields = () if self._refs is None else self._refs.fields
        if self._is_deferred(name) or name in (field.plural for field in fields):
            return [None] * self.batch_size  # a list, which takes long to make
        return self._resolve(name)

    @property
    def batch_size(self) -> int:
        """Return the number of samples; `len()` is the number of keys, as of any mapping."""
        if self._index is not None:
            return len(self._index)
        return len(next(iter(self._taken.values()))) if self._taken else 0

    def copy_into(self, buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy tensors into `buffers`, each row straight from the file.

        Tensors that were accessed before are copied as they are now.

        Args:
            buffers: For each tensor a buffer of its shape; it may have room for more samples.

        Returns:
            The parts of the buffers that were filled.
        """
        count = self.batch_size
        filled: dict[str, torch.Tensor] = {}
        jobs: list[Job] = []
        if self._refs is not None:
            self._refs.check()
        fields = {} if self._refs is None else {f.plural: f for f in self._refs.fields}
        for name, buffer in buffers.items():
            target = buffer[:count]
            field = fields.get(name)
            if (
                name in self._taken
                or field is None
                or self._refs is None
                or self._refs.torch_dtype(field) is None  # a list: views of several sizes
            ):
                value = self[name]
                if not isinstance(value, torch.Tensor):
                    kind = type(value).__name__
                    raise TypeError(f"{name!r} is a {kind}, not a tensor: it has no buffer")
                _check_buffer(name, value.shape, target)
                target.copy_(value)
            else:
                _check_buffer(name, field.presented_shape(self._refs.shape(field)), target)
                found = self._refs.copy_jobs(field, field.stored(target))
                if found is None:
                    target.copy_(self[name])
                jobs += found or ()
            filled[name] = target
        run_jobs(jobs)
        return filled

    def layouts(self) -> dict[str, torch.Tensor]:
        """Return the shape, dtype and strides of each tensor without reading any.

        Tensors that were not accessed yet are on device `meta`, without memory.
        """
        found: dict[str, torch.Tensor] = {}
        if self._refs is not None:
            for field in self._refs.fields:
                dtype = self._refs.torch_dtype(field)
                if dtype is not None and field.plural not in self._taken:
                    empty = torch.empty(self._refs.shape(field), dtype=dtype, device="meta")
                    found[field.plural] = field.present(empty)
        found.update((n, v) for n, v in self._taken.items() if isinstance(v, torch.Tensor))
        return found

    def empty_buffers(self, *, pin_memory: bool = False) -> dict[str, torch.Tensor]:
        """Return buffers for `copy_into`, with the strides of the stored rows (channels last).

        Those of `ON_HOST` are never page-locked.
        """
        buffers: dict[str, torch.Tensor] = {}
        if self._refs is not None:
            for field in self._refs.fields:
                dtype = self._refs.torch_dtype(field)
                if dtype is not None and field.plural not in self._taken:
                    shape = self._refs.shape(field)
                    pinned = pin_memory and field.plural not in ON_HOST
                    empty = torch.empty(shape, dtype=dtype, pin_memory=pinned)
                    buffers[field.plural] = field.present(empty)
        for name, value in self._taken.items():
            if isinstance(value, torch.Tensor):
                pinned = pin_memory and name not in ON_HOST
                buffers[name] = torch.empty_like(value, device="cpu", pin_memory=pinned)
        return buffers

    def pin_memory(self) -> Batch:
        """Return a copy in page-locked memory, in ordinary memory if there is no accelerator.

        Arrays stay what they are: page-locked memory is for transfers of tensors.
        """
        if self._index is not None and self._index.as_numpy:
            return Batch(*self._state())
        pinned = _has_accelerator()
        buffers = self.empty_buffers(pin_memory=pinned)
        sent = {name: buffer for name, buffer in buffers.items() if name not in ON_HOST}
        filled: dict[str, Any] = dict(self.copy_into(sent))
        for name in self._names():
            if name not in filled and not self._is_deferred(name):
                value = self[name]
                if pinned and isinstance(value, list):
                    value = _each_tensor(value, torch.Tensor.pin_memory)
                filled[name] = value
        return Batch(self._refs, self._removed() | filled, self._index)


def _each_tensor(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Apply a function to a tensor or to each tensor of a list; return anything else as it is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list) and any(isinstance(item, torch.Tensor) for item in value):
        return [_each_tensor(item, change) for item in value]
    return value


def _as_array(tensor: torch.Tensor) -> Any:
    """Return a tensor of the host as an array that shares its memory."""
    return tensor.numpy()


def _mover(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what `Record.to` does to each tensor."""
    target = kwargs.get("device", args[0] if args else None)
    if isinstance(target, torch.Tensor):
        target = target.device
    kind = torch.device(target).type if isinstance(target, (str, torch.device)) else None
    may_wait = len(args) < 2 and "non_blocking" not in kwargs  # not said by the caller

    def move(tensor: torch.Tensor) -> torch.Tensor:
        options = kwargs
        if kind == "mps":
            if tensor.dtype == torch.float64:
                return tensor  # MPS has no float64
            options = {**kwargs, "non_blocking": False}
        elif kind in ASYNCHRONOUS and may_wait:
            options = {**kwargs, "non_blocking": tensor.is_pinned()}
        return tensor.to(*args, **options)

    return move


def _has_accelerator() -> bool:
    if hasattr(torch, "accelerator") and torch.accelerator.is_available():
        return True
    return torch.cuda.is_available()


def _check_buffer(name: str, shape: tuple[int, ...], target: torch.Tensor) -> None:
    if target.shape != shape:
        raise ValueError(
            f"the buffer for {name!r} has shape {tuple(target.shape)}: expected {tuple(shape)}"
        )


class Batch(_BatchRecord, _Mapping):
    """Several samples, as a mapping: `batch["images"]`, `batch["polygons"]`, ...

    You own every tensor of a batch and may modify it in place: neither another batch nor the file
    sees that. A tensor is valid as long as anything that shares its memory is referenced.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, name: BatchTensor) -> torch.Tensor: ...
        @overload
        def __getitem__(self, name: Literal["whole_images"]) -> list[torch.Tensor]: ...
        @overload
        def __getitem__(self, name: Literal["polygons"]) -> list[list[npt.NDArray[np.float32]]]: ...
        @overload
        def __getitem__(self, name: Literal["ignored"]) -> list[list[bool]]: ...
        @overload
        def __getitem__(self, name: Literal["texts"]) -> list[list[str | None]]: ...
        @overload
        def __getitem__(self, name: Literal["image_filename", "image_path"]) -> list[str]: ...
        @overload
        def __getitem__(
            self, name: Literal["shape", "canonical_size"]
        ) -> list[tuple[int, int]]: ...
        @overload
        def __getitem__(self, name: Literal["annotated"]) -> list[bool]: ...
        @overload
        def __getitem__(self, name: Literal["metadata"]) -> list[dict[str, Any]]: ...
        @overload
        def __getitem__(self, name: str) -> Any: ...
        def __getitem__(self, name: str) -> Any: ...

    def __init__(
        self,
        refs: RowRefs | Mapping[str, Any] | None,
        taken: dict[str, Any] | None = None,
        index: RowRefs | None = None,
    ) -> None:
        if refs is None or isinstance(refs, RowRefs):
            super().__init__(refs, taken, index)
        else:
            super().__init__(None, dict(refs))  # torch rebuilds a Mapping from a dict


Mapping.register(Batch)


class WorkerBatch(_BatchRecord):
    """A batch inside a worker; unpickled as a `Batch`.

    Not a Mapping: torch would copy every tensor of a Mapping into shared memory.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, self._state()
