"""Compressed rows are decoded bit by bit into their place, and nothing else is written."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocrstore
from ocrstore.errors import CorruptStoreError
from ocrstore.format.codecs import CODECS, decode_row_into, encode_row
from ocrstore.format.columns import DTYPES
from tests.strategies import same

COMPRESSED = [name for name, codec in CODECS.items() if codec.decode_into]
CANARY = 0xA5
quick = settings(max_examples=150)


@st.composite
def rows(draw):
    """A column, and an array for it: short and long, of runs, patterns and noise, any bits."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 40), max_size=3)))
    column = ocrstore.Column(dtype, shape, codec=draw(st.sampled_from(COMPRESSED)))
    pattern = np.frombuffer(draw(st.binary(min_size=1, max_size=50)), np.uint8)
    data = np.resize(pattern, column.row_nbytes)
    if draw(st.booleans()):
        data = data ^ np.random.default_rng(draw(st.integers(0, 9))).integers(
            0, 2, len(data), np.uint8
        )
    data = data & 1 if dtype == "bool" else data
    return column, np.frombuffer(data.tobytes(), column.numpy_dtype).reshape(shape)


def place_in_buffer(column, before):
    """Return a buffer full of canaries and a row's place in it, at any alignment."""
    buffer = np.full(before + column.row_nbytes + 33, CANARY, np.uint8)
    place = buffer[before : before + column.row_nbytes]
    return buffer, place.view(column.numpy_dtype).reshape(column.shape)


def canaries_are_alive(buffer, before, column):
    """Tell whether nothing around the row was written to."""
    after = buffer[before + column.row_nbytes :]
    return (buffer[:before] == CANARY).all() and (after == CANARY).all()


@quick
@given(row=rows(), before=st.integers(0, 40))
def test_any_row_into_a_part_of_a_buffer(row, before):
    """Every bit arrives, wherever the place lies, and the bytes around it stay."""
    column, array = row
    buffer, out = place_in_buffer(column, before)
    decode_row_into(column, encode_row(column, array).data, out, where="it")
    assert same(out, array)
    assert canaries_are_alive(buffer, before, column)


@settings(max_examples=400)
@given(row=rows(), before=st.integers(0, 40), data=st.data())
def test_damaged_streams(row, before, data):
    """Truncated, longer and flipped streams are an error or other bytes, never a byte outside."""
    column, array = row
    stream = encode_row(column, array).copy()
    damage = data.draw(st.sampled_from(["truncate", "extend", "flip", "replace"]))
    if damage == "truncate":
        stream = stream[: data.draw(st.integers(0, len(stream) - 1))]
    elif damage == "extend":
        more = data.draw(st.binary(min_size=1, max_size=9))
        stream = np.append(stream, np.frombuffer(more, np.uint8))
    else:
        at = data.draw(st.integers(0, len(stream) - 1))
        bits = data.draw(st.integers(1, 255))
        stream[at : at + (1 if damage == "flip" else 9)] ^= np.uint8(bits)
    buffer, out = place_in_buffer(column, before)
    decoded = True
    try:
        decode_row_into(column, stream.data, out, where="sample 'x', column 'y'")
    except CorruptStoreError as exc:
        decoded = False
        assert str(exc).startswith(f"sample 'x', column 'y': its {column.codec} bytes")
    assert canaries_are_alive(buffer, before, column)
    if damage == "truncate" and column.row_nbytes:
        assert not decoded
    if damage == "extend" and column.row_nbytes and column.codec == "lz4block":
        assert not decoded


@pytest.mark.parametrize("codec", COMPRESSED)
def test_memory_of_another_layout_is_refused(codec):
    """A row is not scattered over a strided array, and no copy is decoded into silently."""
    column = ocrstore.Column("uint8", (4, 6), codec)
    stream = encode_row(column, np.ones((4, 6), np.uint8))
    wide = np.zeros((4, 12), np.uint8)
    for out in (wide[:, ::2], wide[:, :6], np.zeros((6, 4), np.uint8).T):
        with pytest.raises(ValueError, match="C-contiguous"):
            decode_row_into(column, stream.data, out, where="it")
    assert not wide.any()


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0), (3, 1)], ids=str)
def test_batches_of_scalars_and_empty_rows(tmp_path, codec, shape):
    """Every row arrives in its batch, also one that is no array of its own."""
    path = tmp_path / "a.ocrs"
    with ocrstore.create(path, {"a": ocrstore.Column("int32", shape, codec)}) as writer:
        for row in range(5):
            writer.append(str(row), {"a": np.full(shape, row, np.int32)})
    column = ocrstore.open(path)["a"]
    wanted = np.stack([np.full(shape, row, np.int32) for row in range(5)])
    np.testing.assert_array_equal(column[:], wanted)
    np.testing.assert_array_equal(column[[4, 1]], wanted[[4, 1]])
    np.testing.assert_array_equal(column[3], wanted[3])


@pytest.fixture(params=COMPRESSED)
def column(request, tmp_path):
    """A column of 24 different rows of 80 kB."""
    path = tmp_path / "a.ocrs"
    spec = ocrstore.Column("float16", (200, 200), request.param)
    with ocrstore.create(path, {"prob_map": spec}) as writer:
        for row in range(24):
            writer.append(f"{row}.jpg", {"prob_map": wanted(row)})
    return ocrstore.open(path)["prob_map"]


def wanted(row):
    """Return what the row holds."""
    return (np.arange(40_000).reshape(200, 200) // (row + 3) % 7).astype(np.float16)


def test_rows_share_memory_only_when_they_are_gone(column):
    """Memory is used again after the last reference, not before."""
    first = column[0]
    address, view = first.ctypes.data, first[3:]
    del first
    assert column[1].ctypes.data != address
    np.testing.assert_array_equal(view, wanted(0)[3:])
    del view
    seen = {column[row].ctypes.data for row in range(3)}
    assert address in seen


def test_threads_decode_at_the_same_time(column):
    """Rows of one column, decoded by several threads, do not mix."""

    def work(seed):
        order = np.random.default_rng(seed).permutation(24)
        batch = column[order]
        return all(np.array_equal(batch[i], wanted(row)) for i, row in enumerate(order)) and all(
            np.array_equal(column[row], wanted(row)) for row in order
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(12)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # since 3.12
def test_a_forked_child_decodes(column):
    """Parent and child have decoders and memory of their own."""
    kept = column[5]
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            right = all(np.array_equal(column[row], wanted(row)) for row in range(24))
            code = 0 if right else 2
        finally:
            os._exit(code)
    batch = column[3:9]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    np.testing.assert_array_equal(batch[2], kept)
    np.testing.assert_array_equal(kept, wanted(5))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_the_gil_is_released(codec):
    """Another thread gets the GIL while a row is decoded, although nobody is made to give it up."""
    column = ocrstore.Column("uint8", (20_000_000,), codec)
    stream = encode_row(column, np.resize(np.arange(251, dtype=np.uint8), 20_000_000))
    out = np.zeros(20_000_000, np.uint8)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        for _ in range(50):  # on a busy machine the other thread may come too late
            started, done = threading.Event(), []

            def decode(started=started, done=done):
                started.set()
                decode_row_into(column, stream.data, out, where="it")
                done.append(True)

            thread = threading.Thread(target=decode)
            thread.start()
            started.wait()
            in_between = not done
            thread.join()
            if in_between:
                return
    finally:
        sys.setswitchinterval(before)
    pytest.fail("no other thread ran while a row was decoded")
