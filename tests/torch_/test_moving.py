"""Shuffled rows moved together and home again: what is read, what is written, what is refused."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from columns import PAGE, ROWS, linux, memory_of, rows_of  # noqa: E402

from ocrstore.torch import _region, assembly, fares, leases  # noqa: E402
from ocrstore.torch._rows import FileHandle  # noqa: E402


@pytest.fixture
def moving(column, monkeypatch):
    """Memory that moves rows together whenever it can; one shuffled batch was taken before."""
    monkeypatch.setattr(fares.Fares, "choose_moving", lambda self: True)
    memory = memory_of(column, strategy="leases")
    memory.take(rows_of(3, 1))  # one batch alone is put together without a mapping of all rows
    file = FileHandle(column[0])
    if not _region.can_move(file.fd):
        pytest.skip("this kernel moves no pages of files")
    return memory


def pages_present(array):
    """Which pages of an array are in this process's page table, without touching them."""
    first = array.ctypes.data // PAGE
    count = _region.round_up(array.nbytes) // PAGE
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
        words = np.frombuffer(os.pread(file.fileno(), 8 * count, 8 * first), np.uint64)
    return (words >> np.uint64(63)).astype(bool)


@linux
def test_shuffled_rows_are_moved_together_with_their_page_table(column, moving):
    """What was read once is read again without a page fault, wherever the rows go."""
    truth = column[2]
    order = rows_of(20, 3, 11, 4, 16)
    first = moving.take(order)
    assert isinstance(first.base, leases.Lease) and moving.leased_rows == 5
    assert np.array_equal(first, truth[order])
    del first
    assert moving.leased_rows == 0
    again = moving.take(order[::-1])
    assert pages_present(again).all()
    assert np.array_equal(again, truth[order[::-1]])
    del again
    run = moving.take(np.arange(2, 6))  # at home
    assert pages_present(run[1:3]).all()
    assert np.array_equal(run, truth[2:6])


@pytest.mark.parametrize("write", [slice(None), 0, 2, slice(1, None)], ids=repr)
def test_writing_to_shuffled_rows_never_shows_again(column, options, write):
    """Neither in another order, nor at home, nor in the rows beside the written ones."""
    memory = memory_of(column, **options)
    truth = column[2]
    for order in ([20, 3, 11], [3, 4, 20], [4, 20, 3], [2, 3, 4, 11], [4, 11, 3]):
        taken = memory.take(rows_of(*order))
        assert np.array_equal(taken, truth[order])
        taken[write, 5::3000] = 1
        expected = truth[order]
        expected[write, 5::3000] = 1
        assert np.array_equal(taken, expected)
        del taken
    assert np.array_equal(memory.take(np.arange(ROWS)), truth)


@linux
def test_a_row_that_is_out_or_comes_twice_is_put_together_elsewhere(column, moving):
    """Rows are moved only if all of them are free."""
    truth = column[2]
    held = moving.take(rows_of(5, 2))
    held[:] = 1
    for rows in (rows_of(7, 5), rows_of(8, 4, 8), np.arange(1, 4)):
        other = moving.take(rows)
        assert isinstance(other.base, assembly._Assembled)
        assert np.array_equal(other, truth[rows])
    assert (held == 1).all() and moving.leased_rows == 2


@linux
@pytest.mark.parametrize("which", [0, 1, 3])
@pytest.mark.parametrize("error", [OSError(22, "mremap"), _region.MapLimitError("mremap")])
def test_when_the_kernel_refuses_to_move_all_rows_are_home_again(
    column, moving, monkeypatch, which, error
):
    """The taker gets its rows another way, and so does the next one."""
    truth = column[2]
    moving.take(rows_of(9, 6, 0, 3))
    move = _region.Region.move
    calls = []

    def refuse(self, *args):
        calls.append(args)
        if len(calls) == which + 1:
            raise error
        move(self, *args)

    monkeypatch.setattr(_region.Region, "move", refuse)
    taken = moving.take(rows_of(9, 6, 0, 3))
    monkeypatch.setattr(_region.Region, "move", move)
    assert isinstance(taken.base, assembly._Assembled)
    assert len(calls) == which + 1
    assert moving.leased_rows == 0
    assert np.array_equal(taken, truth[[9, 6, 0, 3]])
    assert np.array_equal(moving.take(np.arange(ROWS)), truth)


@linux
def test_rows_that_cannot_come_home_are_never_handed_out_again(column, moving, monkeypatch):
    """The error shows, and everybody sees the file all the same."""
    truth = column[2]
    taken = moving.take(rows_of(9, 6))
    shown = []

    def refuse(self, *args):
        raise _region.MapLimitError("mremap: Cannot allocate memory")

    monkeypatch.setattr(_region.Region, "move", refuse)
    monkeypatch.setattr(sys, "unraisablehook", lambda given: shown.append(given.exc_value))
    del taken
    monkeypatch.undo()
    assert [type(error) for error in shown] == [_region.MapLimitError]
    assert moving.leased_rows == 1  # there may be a hole at the home of the first one
    for rows in (rows_of(9, 6), np.arange(5, 11), np.arange(ROWS), rows_of(1, 8)):
        assert np.array_equal(moving.take(rows), truth[rows])


def test_rows_are_moved_while_that_takes_less_than_mapping_them():
    """One slow batch does not decide; when the average is too long, mapping has its turn."""
    choice = fares.Fares(mapping=10e-6)
    for _ in range(20):
        assert choice.choose_moving()
        choice.note("away", 16 * 3e-6, 16)
        choice.note("home", 16 * 4e-6, 16)
    choice.note("away", 16 * 9e-6, 16)  # interrupted once
    assert choice.choose_moving()
    for _ in range(3):
        choice.note("home", 16 * 20e-6, 16)
    turns = [choice.choose_moving() for _ in range(fares._REST + 1)]
    assert turns == [False] * fares._REST + [True]
    choice.note("away", 16 * 3e-6, 16)
    choice.note("home", 16 * 4e-6, 16)
    assert choice.choose_moving()


@linux
def test_where_moving_takes_long_batches_are_mapped_again(column, monkeypatch):
    """The choice is followed, and makes no difference to what is read."""
    monkeypatch.setattr(leases, "time_mapping", lambda *args: 1e-9)
    memory = memory_of(column, strategy="leases")
    kinds = []
    for rows in [rows_of(5, 2), rows_of(9, 4)] * 4:
        taken = memory.take(rows)
        assert np.array_equal(taken, column[2][rows])
        kinds.append(type(taken.base))
        del taken
    assert kinds == [assembly._Assembled, leases.Lease] + [assembly._Assembled] * 6


@linux
def test_a_taker_is_not_told_of_somebody_elses_rows(column, moving, monkeypatch):
    """A lease that ends while the lock is held is settled by the next taker, who did no wrong."""
    truth = column[2]
    taken = moving.take(rows_of(9, 6))

    def refuse(self, *args):
        raise _region.MapLimitError("mremap: Cannot allocate memory")

    monkeypatch.setattr(_region.Region, "move", refuse)
    with moving._mapping._lock:
        del taken
    assert moving.leased_rows == 2
    other = moving.take(np.arange(3))
    assert np.array_equal(other, truth[:3])
    assert moving.leased_rows == 1 + 3


@linux
def test_an_interrupted_move_leaves_all_rows_free(column, moving, monkeypatch):
    """Ctrl-C between two rows reaches the user, and costs nothing else."""
    move = _region.Region.move
    calls = []

    def interrupted(self, *args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        move(self, *args)

    monkeypatch.setattr(_region.Region, "move", interrupted)
    with pytest.raises(KeyboardInterrupt):
        moving.take(rows_of(9, 6, 0))
    assert moving.leased_rows == 0
    assert np.array_equal(moving.take(rows_of(9, 6, 0)), column[2][[9, 6, 0]])


@linux
@pytest.mark.parametrize(
    "reason", ["an old kernel", "strict overcommit", "a column larger than memory"]
)
def test_where_pages_are_not_moved_batches_are_put_together(column, monkeypatch, reason):
    """Rows come from fresh mappings then."""
    if reason == "an old kernel":
        monkeypatch.setattr(leases, "can_move", lambda fd: False)
    elif reason == "strict overcommit":
        monkeypatch.setattr(_region, "_has_strict_overcommit", lambda: True)
    else:
        monkeypatch.setattr("ocrstore.torch.memory._memory_nbytes", lambda: PAGE)
    memory = memory_of(column, strategy="leases")
    for rows in (rows_of(3, 1), rows_of(5, 2), rows_of(5, 2)):
        taken = memory.take(rows)
        assert isinstance(taken.base, assembly._Assembled)
        assert np.array_equal(taken, column[2][rows])
