"""Hypothesis strategies shared by the tests: columns, arrays that fit them, attributes, keys."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ocrstore
from ocrstore.format.columns import DTYPES

names = st.from_regex(r"[a-z][a-z0-9_.\-/]{0,8}", fullmatch=True).filter(lambda n: n != "key")
keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
sizes = st.one_of(st.none(), st.integers(0, 5))


@st.composite
def columns(draw):
    """Any column that holds arrays."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(sizes, max_size=3)))
    codec = draw(st.sampled_from(["raw", "raw", "zstd", "lz4", "lz4block"]))
    return ocrstore.Column(dtype, shape, codec=codec)


@st.composite
def specs(draw, min_size=0):
    """Any set of named columns."""
    return draw(st.dictionaries(names, columns(), min_size=min_size, max_size=3))


def arrays_for(column):
    """Arrays that fit a column, NaN payloads and all."""
    shape = st.tuples(*(st.integers(0, 6) if s is None else st.just(s) for s in column.shape))
    return shape.flatmap(
        lambda s: hnp.arrays(np.uint8, (*s, np.dtype(column.dtype).itemsize)).map(
            lambda raw: _reinterpret(raw, column.dtype, s)
        )
    )


def _reinterpret(raw, dtype, shape):
    if dtype == "bool":
        raw = raw & 1
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape)


@st.composite
def samples(draw, spec):
    """One array for every column of a spec."""
    return {name: draw(arrays_for(column)) for name, column in spec.items()}


def same(left, right):
    """Tell whether two arrays are equal in dtype, shape and every bit."""
    return (
        left.dtype.name == right.dtype.name
        and left.shape == right.shape
        and np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes()
    )
