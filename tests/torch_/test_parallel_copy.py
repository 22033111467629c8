"""Copies of rows into buffers: every layout, one thread and several, forks, errors."""

import gc
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ocrstore.torch.memory import parallel_copy
from ocrstore.torch.memory.row_layout import RowLayout, round_up

ROWS = 12


def copy_rows(data, layout, rows, out):
    """Copy rows of a column."""
    parallel_copy.run_jobs(parallel_copy.copy_jobs(data, layout, rows, out))


def make_column(shape, dtype, *, gap=3):
    """Return a file's bytes, the layout of rows in them with a gap in the middle, and the rows."""
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 200, (ROWS, *shape)).astype(dtype)
    pitch = round_up(truth[0].nbytes)
    places = [row + (gap if row >= ROWS // 2 else 0) for row in range(ROWS)]
    offsets = np.array(places, np.int64) * pitch + 4096
    data = np.zeros(4096 + (ROWS + gap) * pitch, np.uint8)
    for row, offset in enumerate(offsets.tolist()):
        data[offset : offset + truth[row].nbytes] = truth[row].reshape(-1).view(np.uint8)
    data.flags.writeable = False
    return data, RowLayout(offsets, shape, np.dtype(dtype)), truth


@pytest.fixture(params=[1, 2, 4], ids=lambda count: f"{count} threads")
def threads(request, monkeypatch):
    """So many threads, also for small copies."""
    monkeypatch.setattr(parallel_copy, "_MIN_THREADED_NBYTES", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


ORDERS = [[0], list(range(ROWS)), list(range(ROWS))[::-1], [7, 2, 2, 9, 3, 4, 5, 6], []]


@pytest.mark.parametrize("shape", [(3,), (50, 41), (160, 150, 3), (64 << 10,)], ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.float16])
@pytest.mark.usefixtures("threads")
def test_rows_arrive_in_any_order(shape, dtype):
    """Whatever the order, the row's size and the number of threads, the copy is the file's rows."""
    data, layout, truth = make_column(shape, dtype)
    for order in ORDERS:
        rows = np.array(order, np.int64)
        out = np.full((len(rows), *shape), 7, dtype)
        copy_rows(data, layout, rows, out)
        np.testing.assert_array_equal(out, truth[rows])


@pytest.mark.usefixtures("threads")
def test_a_buffer_may_have_other_strides():
    """A planar buffer is filled through its strides, and nothing beside it is touched."""
    data, layout, truth = make_column((160, 150, 3), np.uint8)
    planar = np.full((ROWS + 1, 3, 160, 150), 9, np.uint8)
    copy_rows(data, layout, np.arange(ROWS), planar[:ROWS].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(planar[:ROWS], truth.transpose(0, 3, 1, 2))
    assert (planar[ROWS] == 9).all()


@pytest.mark.parametrize("threads", [4], indirect=True)
def test_helpers_that_never_come_keep_nobody_waiting(threads, monkeypatch):
    """If no helper gets a thread in time the caller does every job itself."""
    started = threading.Event()
    blocked = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(lambda: (started.set(), blocked.wait()))
        started.wait()
        monkeypatch.setattr(parallel_copy, "_executor", lambda: executor)
        data, layout, truth = make_column((64 << 10,), np.uint8)
        out = np.empty_like(truth)
        copy_rows(data, layout, np.arange(ROWS), out)
        np.testing.assert_array_equal(out, truth)
        blocked.set()


@pytest.mark.parametrize("threads", [4], indirect=True)
def test_copies_work_when_no_more_threads_may_start(threads, monkeypatch):
    """While the interpreter exits executors refuse work: the caller copies alone."""
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    monkeypatch.setattr(parallel_copy, "_executor", lambda: executor)
    data, layout, truth = make_column((64 << 10,), np.uint8)
    out = np.empty_like(truth)
    copy_rows(data, layout, np.arange(ROWS), out)
    np.testing.assert_array_equal(out, truth)


@pytest.mark.parametrize("threads", [4], indirect=True)
def test_an_error_in_a_helper_reaches_the_caller(threads):
    """A job that cannot be done raises where the copy was asked for; the next copy works."""
    good = (np.copyto, np.zeros(3, np.uint8), np.ones(3, np.uint8))
    bad = (np.copyto, np.zeros(3, np.uint8), np.ones(4, np.uint8))
    with pytest.raises(ValueError, match="broadcast"):
        parallel_copy.run_jobs([good, bad, good, bad])
    parallel_copy.run_jobs([good, good])
    assert good[1].tolist() == [1, 1, 1]


@pytest.mark.usefixtures("threads")
def test_nobody_keeps_the_buffer():
    """When a copy has returned, no waiting thread points to the buffer."""
    data, layout, truth = make_column((64 << 10,), np.uint8)
    out = np.empty_like(truth)
    copy_rows(data, layout, np.arange(ROWS), out)
    alive = weakref.ref(out)
    del out
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("threads", [2], indirect=True)
def test_callers_in_several_threads(threads):
    """Copies at the same time do not mix."""
    data, layout, truth = make_column((64 << 10,), np.uint8)
    wrong = []

    def work(seed):
        torch.set_num_threads(threads)  # torch's number is each thread's own
        rng = np.random.default_rng(seed)
        for _ in range(20):
            rows = rng.permutation(ROWS)
            out = np.zeros_like(truth)
            copy_rows(data, layout, rows, out)
            if not np.array_equal(out, truth[rows]):
                wrong.append(seed)

    started = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("threads", [2], indirect=True)
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # since 3.12
def test_a_forked_child_has_threads_of_its_own(threads):
    """A child of a process with helpers copies, too; its parent goes on."""
    data, layout, truth = make_column((64 << 10,), np.uint8)
    out = np.zeros_like(truth)
    copy_rows(data, layout, np.arange(ROWS), out)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            mine = np.zeros_like(truth)
            copy_rows(data, layout, np.arange(ROWS), mine)
            code = 0 if np.array_equal(mine, truth) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    copy_rows(data, layout, np.arange(ROWS)[::-1].copy(), out)
    np.testing.assert_array_equal(out, truth[::-1])
