"""Column: the dtype, shape and codec of one array per sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ocrstore.errors import SchemaError, corrupt
from ocrstore.format.codecs import CODECS
from ocrstore.format.layout import MAX_DIMENSION, MAX_NDIM, MAX_ROW_NBYTES

DTYPES = (
    "bool",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
)

Shape = tuple[int | None, ...]


class Encoded(NamedTuple):
    """An already encoded row: the bytes, and the shape they decode to."""

    data: bytes | memoryview
    shape: tuple[int, ...]
    trusted: bool = False
    """ocrstore itself encoded it, so a writer need not decode it to see that it is what it says."""


@dataclass(frozen=True, slots=True)
class Column:
    """One named, typed array per sample; None in `shape` varies from sample to sample.

    Example: ``Column("uint8", (None, None, 3))`` for pictures of any size.
    """

    dtype: str
    shape: Shape = ()
    codec: str = "raw"

    def __post_init__(self) -> None:
        try:
            name = np.dtype(self.dtype).name
        except TypeError as exc:
            raise SchemaError(f"Unknown dtype {self.dtype!r}; one of {', '.join(DTYPES)}.") from exc
        if name not in DTYPES:
            raise SchemaError(f"dtype {name!r} cannot be stored; one of {', '.join(DTYPES)}.")
        if self.codec not in CODECS:
            raise SchemaError(f"Unknown codec {self.codec!r}; one of {', '.join(CODECS)}.")
        object.__setattr__(self, "dtype", name)
        object.__setattr__(self, "shape", _check_shape(self.shape))
        if self.holds_files and (name != "uint8" or self.shape != (None, None, 3)):
            raise SchemaError(
                f"A {self.codec} column holds pictures: dtype uint8, shape (None, None, 3); found "
                f"{name}, {self.shape}."
            )
        # None counts as 1: what is fixed must fit whatever varies
        if not self.fits(tuple(size or 1 for size in self.shape)):
            raise SchemaError(
                f"A row of shape {self.shape} {name} could be larger than 2 GiB (sizes of 0 count "
                "as 1)."
            )

    @property
    def is_fixed(self) -> bool:
        """Whether every row has the same shape."""
        return None not in self.shape

    @property
    def is_raw(self) -> bool:
        """Whether rows are stored uncompressed, as they are in memory."""
        return self.codec == "raw"

    @property
    def holds_files(self) -> bool:
        """Whether rows are the pictures' own files."""
        return self.codec in ("jpeg", "file")

    @property
    def is_compressed(self) -> bool:
        """Whether rows are decoded into memory of their shape."""
        return CODECS[self.codec].decode_into is not None

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The stored dtype: little-endian."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def row_nbytes(self) -> int:
        """Decoded bytes of a row of a fixed-shape column."""
        return self.nbytes_of(tuple(size or 0 for size in self.shape))

    def nbytes_of(self, shape: tuple[int, ...]) -> int:
        """Decoded bytes of a row of this shape."""
        nbytes = self.numpy_dtype.itemsize
        for size in shape:
            nbytes *= size
        return nbytes

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether a row of this shape keeps to the limits (FORMAT.md 10)."""
        return (
            max(shape, default=0) <= MAX_DIMENSION
            and self.nbytes_of(tuple(size or 1 for size in shape)) <= MAX_ROW_NBYTES
        )

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Return whether a row of this shape matches the column's."""
        return len(shape) == len(self.shape) and all(
            want is None or want == found for want, found in zip(self.shape, shape)
        )

    def conform(self, value: npt.ArrayLike, *, where: str) -> npt.NDArray[Any]:
        """Return `value` as a C-contiguous little-endian array; SchemaError if it does not fit.

        An array must have the column's dtype: a silent cast could hide a pipeline that
        changed. Lists and scalars are converted.
        """
        if isinstance(value, np.ndarray) or hasattr(value, "dtype"):
            array = np.asarray(value)
            # the first comparison is cheaper; the second allows for another byte order
            if array.dtype != self.numpy_dtype and array.dtype.name != self.dtype:
                raise SchemaError(
                    f"{where}: expected {self.dtype}, found {array.dtype.name}. Convert it with "
                    f".astype({self.dtype!r}) if that loses nothing you need."
                )
        else:
            try:
                array = np.asarray(value, dtype=self.dtype)
            except (TypeError, ValueError, OverflowError) as exc:
                raise SchemaError(
                    f"{where}: cannot be converted to a {self.dtype} array: {exc}"
                ) from exc
        if not self.accepts(array.shape):
            raise SchemaError(f"{where}: expected shape {self.shape}, found {array.shape}.")
        if not self.fits(array.shape):
            raise SchemaError(
                f"{where}: shape {array.shape}; a row may have at most 2 GiB (sizes of 0 count as "
                "1). Split the sample."
            )
        # ascontiguousarray would make a scalar one-dimensional
        return np.asarray(array, dtype=self.numpy_dtype, order="C")

    def to_json(self) -> dict[str, Any]:
        """Return the column as a JSON object."""
        return {"dtype": self.dtype, "shape": list(self.shape), "codec": self.codec}

    @classmethod
    def from_json(cls, record: object, *, where: str) -> Column:
        """Parse what `to_json` returned; CorruptStoreError for anything else."""
        if not isinstance(record, dict) or not isinstance(record.get("shape"), list):
            raise corrupt(where, f"not a column description: {record!r:.200}")
        dtype, codec = record.get("dtype"), record.get("codec")
        if dtype not in DTYPES or not isinstance(codec, str):
            raise corrupt(where, f"unknown dtype or codec in {record!r:.200}")
        try:
            return cls(dtype, tuple(record["shape"]), codec=codec)
        except (SchemaError, TypeError) as exc:
            raise corrupt(where, f"{exc}") from exc


def _check_shape(shape: Shape) -> Shape:
    """Return a shape as a tuple of ints and None; SchemaError if it is not one."""
    try:
        sizes = tuple(shape)
    except TypeError as exc:
        raise SchemaError(f"shape must be a tuple such as (640, 640), not {shape}.") from exc
    if len(sizes) > MAX_NDIM:
        raise SchemaError(f"shape {sizes} has more than {MAX_NDIM} dimensions.")
    for size in sizes:
        if size is not None and (
            isinstance(size, bool)
            or not isinstance(size, (int, np.integer))
            or not 0 <= size <= MAX_DIMENSION
        ):
            raise SchemaError(
                f"shape {sizes}: every size is None or an int from 0 to {MAX_DIMENSION}."
            )
    return tuple(None if size is None else int(size) for size in sizes)
