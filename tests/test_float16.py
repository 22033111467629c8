"""The fast way to float16 gives numpy's bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ocrstore.float16 import to_float16


def same_bits(values):
    """Compare with numpy bit by bit, so that NaN and -0 count too."""
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16)
        found = to_float16(values)
    assert found.dtype == np.float16 and found.shape == values.shape
    assert np.array_equal(found.view(np.uint16), wanted.view(np.uint16))


@given(arrays.arrays(np.float32, st.integers(0, 30), elements=st.floats(width=32)))
def test_any_floats(values):
    """Infinities, NaN, subnormals and zeros of both signs come out as numpy has them."""
    same_bits(values)


@given(arrays.arrays(np.float32, st.integers(1, 30), elements=st.floats(2.0**-14, 65504, width=32)))
def test_normal_floats(values):
    """The range of the fast path, to its ends."""
    same_bits(values)


def test_every_tie_and_neighbour():
    """All float32 between 0.25 and 1 that lie at, just below and just above a tie."""
    halves = np.arange(0x3400, 0x3C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves.view(np.uint32) + 0x1000)[:, None] + np.array([-1, 0, 1])
    same_bits(ties.astype(np.uint32).view(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_zeros_and_ones(dtype):
    """The probability map's values, in two dimensions and from other dtypes."""
    same_bits(np.random.default_rng(0).integers(0, 2, (20, 30)).astype(dtype))
    same_bits(np.zeros((3, 4), dtype))


def test_the_largest_values_round_to_infinity():
    """What lies above the largest float16 is numpy's business."""
    same_bits(np.array([1.0, 65504, 65519.9, 65520], np.float32))
