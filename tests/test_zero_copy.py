"""Danger: arrays that are copies, or that outlive the memory they point to."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import ocrstore

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def _mappings(path):
    """Return the address ranges at which this process has a file mapped."""
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5] == str(path):
            start, end = (int(number, 16) for number in parts[0].split("-"))
            ranges.append((start, end, parts[1]))
    return ranges


def _lies_in(array, path):
    start = array.ctypes.data
    return any(low <= start and start + array.nbytes <= high for low, high, _ in _mappings(path))


def _anonymous_nbytes():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


@LINUX
def test_arrays_lie_in_the_mapping(make_store):
    """Rows, slices, stored bytes and the index point into the file's one read-only mapping."""
    path = make_store(samples=100)
    store = ocrstore.open(path)
    assert [access for _, _, access in _mappings(path)] == ["r--s"]
    for column in ("image", "tensor"):
        for row in (0, 63, 64, 99):
            assert _lies_in(store[column][row], path)
    assert _lies_in(store["tensor"][0:64], path)
    assert _lies_in(store["tensor"][64:100], path)
    assert _lies_in(store["tensor"][70:71], path)
    assert _lies_in(np.frombuffer(store["text"].stored(5), np.uint8), path)
    assert _lies_in(store["tensor"].offsets, path)
    (low, high, _) = _mappings(path)[0]
    buffers = [
        buffer
        for column in store.index.columns
        for chunk in column.chunks
        for buffer in chunk.buffers()
        if buffer is not None and buffer.size
    ]
    assert buffers
    assert all(low <= buffer.address < high for buffer in buffers)


def test_rows_start_on_pages_and_slices_have_one_stride(make_store):
    """A batch inside a row group is one array, and it is what the samples are one by one."""
    store = ocrstore.open(make_store(samples=70))
    tensor = store["tensor"]
    assert not (tensor.offsets % 4096).any()
    assert not (store["image"].offsets % 64).any()
    batch = tensor[3:40]
    assert batch.shape == (37, 64, 64, 3)
    assert all((batch[i] == tensor[3 + i]).all() for i in range(37))
    across = tensor[60:70]  # over the border of a row group
    assert all((across[i] == tensor[60 + i]).all() for i in range(10))


@LINUX
def test_reading_a_gigabyte_allocates_next_to_nothing(make_store):
    """1 GiB of slices, every page touched: no memory of Python's, none of anybody's."""
    path = make_store(samples=256, side=200)  # 31 MB
    tensor = ocrstore.open(path)["tensor"]
    read = 0
    before = _anonymous_nbytes()
    tracemalloc.start()
    try:
        while read < 2**30:
            for start in range(0, 256, 64):
                batch = tensor[start : start + 64]
                batch.reshape(64, -1)[:, ::4096].max()
                read += batch.nbytes
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**17
    assert _anonymous_nbytes() - before < 2**21


def test_writing_raises(make_store):
    """No array of a store can be written to, nor be made writable, by any column or way."""
    path = make_store()
    store = ocrstore.open(path)
    content = path.read_bytes()
    arrays = [
        *(store[name][0] for name in ("image", "tensor", "text")),
        store["tensor"][0:4],
        store["tensor"][[0, 5, 2]],
        store["tensor"][::2],
        store["tensor"][3:4],
        store["tensor"].offsets,
    ]
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    for array in arrays[1], arrays[3], arrays[6]:
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
        with pytest.raises(ValueError, match="read-only"):
            array.reshape(-1)[:1] += 1
    with pytest.raises(TypeError):
        store["text"].stored(3)[0] = 1
    assert path.read_bytes() == content


@pytest.mark.parametrize("way", ["close", "forget", "unlink", "replace", "compact"])
def test_arrays_outlive_the_store(make_store, way):
    """Arrays stay as they were when the store is closed, gone, unlinked or replaced."""
    path = make_store(samples=20)
    store = ocrstore.open(path)
    taken = [store["tensor"][7], store["tensor"][0:16], store["image"][7], store["text"][7]]
    stored = store["text"].stored(6)
    column = store["tensor"]
    index = store.index
    expected = [array.copy() for array in taken], bytes(stored), index.to_pydict()
    if way == "close":
        store.close()
        store.close()
    elif way == "forget":
        del store
    elif way == "unlink":
        path.unlink()
    elif way == "replace":
        make_store("other.ocrs", samples=1).replace(path)
    else:
        ocrstore.compact(path)
    gc.collect()
    for array, copy in zip(taken, expected[0]):
        assert (array == copy).all()
    assert bytes(stored) == expected[1]
    assert index.to_pydict() == expected[2]
    assert (column[7] == expected[0][0]).all()


def test_a_closed_store_says_so(make_store):
    """Every use of a closed store is an error of ours, never a crash."""
    store = ocrstore.open(make_store())
    store.close()
    uses = [
        lambda: len(store),
        lambda: store["tensor"],
        lambda: store.keys,
        lambda: store.index,
        lambda: store.row("s1"),
        lambda: store.refresh(),
        lambda: pickle.dumps(store),
        lambda: "tensor" in store,
    ]
    for use in uses:
        with pytest.raises(ocrstore.StoreClosedError, match="closed"):
            use()
    assert "closed" in repr(store)


@LINUX
def test_the_mapping_goes_with_the_last_array(make_store):
    """The file stays mapped as long as an array needs it, and no longer."""
    path = make_store()
    store = ocrstore.open(path)
    row = store["tensor"][1]
    del store
    gc.collect()
    assert _mappings(path)
    del row
    gc.collect()
    assert not _mappings(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_arrays_are_valid_after_fork(make_store):
    """A forked child reads arrays taken before, also when the parent's store is closed."""
    store = ocrstore.open(make_store())
    batch = store["tensor"][0:8]
    total = int(batch.sum())
    store.close()
    child = os.fork()
    if child == 0:
        os._exit(0 if int(batch.sum()) == total else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert int(batch.sum()) == total


ODD_ORDERS = """
import itertools, sys
import numpy as np
import ocrstore

path = sys.argv[1]
for order in itertools.permutations(range(5)):
    store = ocrstore.open(path)
    column = store["tensor"]
    things = [store, column, column[2], column[0:4], store.index]
    views = [things[2][1:], things[3][1, ..., 0], memoryview(things[2])]
    del store, column
    for position in order:
        if position == 0:
            things[0].close()
        things[position] = None
    assert views[0].sum() and views[1].sum() and views[2][1, 1, 1] == 2
    base = views[0]
    while isinstance(base, np.ndarray):
        base = base.base
    try:
        base.obj.close()  # a user who pulls the map away from under the arrays
    except BufferError:
        held = True
    assert held and views[0].sum()
# at exit everything goes in whatever order the interpreter takes
keep = [ocrstore.open(path) for _ in range(5)]
keep.append([store["tensor"][0] for store in keep])
keep.append(keep)
"""


def test_odd_orders_of_closing_do_not_crash(make_store):
    """All orders of letting go, and leaving it to the end of the process, end in exit code 0."""
    command = [sys.executable, "-X", "faulthandler", "-c", ODD_ORDERS, str(make_store())]
    root = str(Path(__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_file_that_was_cut_is_an_error_not_a_crash(make_store):
    """Touching a page behind the end of a file would kill the process: it is asked before."""
    path = make_store()
    store = ocrstore.open(path)
    column = store["tensor"]
    with path.open("r+b") as file:
        file.truncate(8192)
    for read in (
        lambda: column[7],
        lambda: column[0:4],
        lambda: column[[1, 3]],
        lambda: store["text"][5],
        lambda: store["text"].stored(5),
        lambda: column.is_run(0, 4),
        lambda: list(column),
        lambda: store.keys,
        lambda: store.index,
        lambda: store.attributes(3),
    ):
        with pytest.raises(ocrstore.StoreChangedError, match="was truncated from"):
            read()
