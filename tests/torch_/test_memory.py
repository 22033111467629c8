"""Memory that is the taker's alone: leases, written pages, assembly, limits, forks, threads."""

import gc
import mmap
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ocrstore.torch import _pagemap, _region, assembly, fares, leases  # noqa: E402
from ocrstore.torch._rows import FileHandle, RowLayout  # noqa: E402
from ocrstore.torch.memory import ColumnMemory, best_strategy  # noqa: E402

PAGE = mmap.PAGESIZE
ROWS = 24
SHAPE = (17 * PAGE // 2 - 100,)  # 17 pages, the last one not full
linux = pytest.mark.skipif(not _region.supported, reason="needs Linux' private mappings")


@pytest.fixture
def column(tmp_path):
    """A file of page-aligned rows in three pieces, the second piece first, and its layout."""
    rng = np.random.default_rng(7)
    truth = rng.integers(0, 60000, (ROWS, *SHAPE), np.uint16)
    pitch = _region.round_up(truth[0].nbytes)
    places = [*range(8, 16), *range(8), *range(17, 25)]
    offsets = np.array(places, np.int64) * pitch + 3 * PAGE
    data = np.zeros(3 * PAGE + 26 * pitch, np.uint8)
    for row, offset in enumerate(offsets):
        data[offset : offset + truth[row].nbytes] = truth[row].view(np.uint8)
    path = tmp_path / "rows.bin"
    data.tofile(path)
    return path, RowLayout(offsets, SHAPE, np.dtype(np.uint16)), truth


def memory_of(column, **options):
    """Return the memory of the column, as the data set would make it."""
    path, layout, _ = column
    data = np.memmap(path, np.uint8, mode="r")
    return ColumnMemory(lambda: FileHandle(path), data, layout, **options)


STRATEGIES = [
    pytest.param({"strategy": "leases", "finder": "scan"}, marks=linux, id="scan"),
    pytest.param({"strategy": "leases", "finder": "read"}, marks=linux, id="pagemap"),
    pytest.param({"strategy": "leases", "finder": "all"}, marks=linux, id="all"),
    pytest.param({"strategy": "fresh"}, id="fresh"),
    pytest.param({"strategy": "copy"}, id="copy"),
]


@pytest.fixture(params=STRATEGIES)
def options(request):
    """Every way to get memory, forced."""
    name = request.param.get("finder")
    if name == "scan":
        with Path(sys.executable).resolve().open("rb") as file:
            if not _pagemap.works(_pagemap.make_finder(name), file.fileno()):
                pytest.skip("no PAGEMAP_SCAN here")
    return request.param


def rows_of(*rows):
    """Return rows as the engine wants them."""
    return np.array(rows, np.int64)


def test_a_seeded_storm_of_takes_writes_and_drops_never_shows_a_foreign_byte(column, options):
    """Whatever was written before, a taker sees the file."""
    memory = memory_of(column, **options)
    path, _, truth = column
    before = path.read_bytes()
    rng = random.Random(3)
    held = []
    for step in range(120):
        if held and rng.random() < 0.5:
            held.pop(rng.randrange(len(held)))
        if rng.random() < 0.5:
            first = rng.randrange(ROWS)
            rows = np.arange(first, min(ROWS, first + rng.randint(1, 9)), dtype=np.int64)
        else:
            rows = np.array([rng.randrange(ROWS) for _ in range(rng.randint(1, 6))], np.int64)
        tensor = torch.from_numpy(memory.take(rows))
        assert np.array_equal(tensor.numpy(), truth[rows])
        part = slice(rng.randrange(SHAPE[0]), None, rng.randint(1, 4000))
        tensor[rng.randrange(len(rows)), part] = step
        copy = tensor.numpy().copy()
        held.append((tensor[:1] if rng.random() < 0.3 else tensor, copy))
        for kept, was in held:
            assert np.array_equal(kept.numpy(), was[: len(kept)])
    held.clear()
    del tensor
    gc.collect()
    assert memory.leased_rows == 0
    assert np.array_equal(memory.take(np.arange(ROWS)), truth)
    assert path.read_bytes() == before


@linux
def test_adjoining_rows_are_a_slice_of_one_mapping(column):
    """Two takes of the same rows, one after the other, lie at the same address."""
    memory = memory_of(column, strategy="leases")
    first = memory.take(np.arange(4, 12))  # across two pieces of the file
    address = first.ctypes.data
    first[:] = 0
    del first
    second = memory.take(np.arange(4, 12))
    assert second.ctypes.data == address
    assert np.array_equal(second, column[2][4:12])


@linux
@pytest.mark.parametrize("finder", ["scan", "read"])
def test_only_written_pages_are_found(column, finder):
    """The finder names the pages that were written and no others."""
    path = column[0]
    file = FileHandle(path)
    if not _pagemap.works(_pagemap.make_finder(finder), file.fd):
        pytest.skip("this kernel has no such finder")
    region = _region.Region(8 * PAGE, 1)
    region.place(0, 8 * PAGE, file.fd, 0)
    pages = np.ctypeslib.as_array(
        (np.ctypeslib.ctypes.c_ubyte * (8 * PAGE)).from_address(region.address)
    )
    pages.sum()
    for page in (1, 2, 5):
        pages[page * PAGE + 9] ^= 1
    found = _pagemap.make_finder(finder).written(region.address, region.address + 8 * PAGE)
    start = region.address
    assert found == [(start + PAGE, start + 3 * PAGE), (start + 5 * PAGE, start + 6 * PAGE)]
    region.drop(start + PAGE, start + 6 * PAGE)
    assert _pagemap.make_finder(finder).written(start, start + 8 * PAGE) == []


@linux
def test_scan_finds_more_regions_than_one_call_returns(column):
    """A comb of written pages longer than the answer's buffer comes back whole."""
    path = column[0]
    file = FileHandle(path)
    if not _pagemap.works(_pagemap.make_finder("scan"), file.fd):
        pytest.skip("this kernel has no PAGEMAP_SCAN")
    count = min(2 * _pagemap._REGIONS + 100, path.stat().st_size // PAGE)
    repeats = -(-(2 * _pagemap._REGIONS + 100) // count)
    region = _region.Region(repeats * count * PAGE, repeats)
    for i in range(repeats):
        region.place(i * count * PAGE, count * PAGE, file.fd, 0)
    total = repeats * count * PAGE
    pages = np.ctypeslib.as_array(
        (np.ctypeslib.ctypes.c_ubyte * total).from_address(region.address)
    )
    pages[:: 2 * PAGE] = 1
    expected = [
        (region.address + at, region.address + at + PAGE) for at in range(0, total, 2 * PAGE)
    ]
    assert _pagemap.make_finder("scan").written(region.address, region.address + total) == expected


@pytest.mark.parametrize(
    "keep",
    [
        lambda t: t.numpy(),
        lambda t: t[2:3],
        lambda t: t.view(torch.int16)[1],
        lambda t: t.untyped_storage(),
        lambda t: torch.from_dlpack(t)[1],
        lambda t: memoryview(t.numpy()),
        lambda t: t.permute(1, 0),
        lambda t: np.asarray(t)[0, ::7],
    ],
)
@linux
def test_the_lease_lives_as_long_as_anything_that_points_into_it(column, keep):
    """Views, storages, numpy arrays and capsules each keep the rows leased until they die."""
    memory = memory_of(column, strategy="leases")
    tensor = torch.from_numpy(memory.take(np.arange(4)))
    kept = keep(tensor)
    del tensor
    gc.collect()
    assert memory.leased_rows == 4
    del kept
    gc.collect()
    assert memory.leased_rows == 0


@linux
def test_autograd_keeps_the_lease_for_its_saved_tensors(column):
    """A tensor that autograd saved for the backward pass is still the file's."""
    memory = memory_of(column, strategy="leases")
    weight = torch.ones(SHAPE, dtype=torch.float32, requires_grad=True)
    inputs = torch.from_numpy(memory.take(np.arange(2)).view(np.int16))
    halves = inputs.view(torch.float16)
    loss = (halves.nan_to_num(0, 0, 0).float() * weight).sum()
    del inputs
    assert memory.leased_rows == 2
    del halves
    loss.backward()
    assert weight.grad is not None


@linux
def test_rows_leased_already_come_from_elsewhere(column):
    """A second taker of the same rows gets other memory, also when only one row overlaps."""
    memory = memory_of(column, strategy="leases")
    first = memory.take(np.arange(0, 4))
    first[:] = 1
    second = memory.take(np.arange(3, 6))
    second[:] = 2
    third = memory.take(rows_of(3))
    assert (first == 1).all() and (second == 2).all()
    assert np.array_equal(third[0], column[2][3])


@linux
def test_a_lease_that_ends_inside_the_lock_is_settled_afterwards(column, monkeypatch):
    """Garbage collection may end a lease in the middle of a take, in the same thread."""
    memory = memory_of(column, strategy="leases")
    cycle = [memory.take(np.arange(4, 8))]
    cycle[0][:] = 9
    cycle.append(cycle)
    mapping = memory._mapping
    original = leases.Lease.__init__

    def collecting(self, *args):
        nonlocal cycle
        cycle = None
        gc.collect()
        original(self, *args)

    monkeypatch.setattr(leases.Lease, "__init__", collecting)
    taken = memory.take(np.arange(0, 2))
    assert mapping.leased_rows == 2
    monkeypatch.undo()
    assert np.array_equal(memory.take(np.arange(4, 8)), column[2][4:8])
    del taken


@linux
def test_threads_take_write_and_drop_at_once(column, options):
    """Eight threads on the same rows never see each other's writing."""
    memory = memory_of(column, **options)
    truth = column[2]
    wrong = []

    def work(number):
        rng = random.Random(number)
        for _ in range(25):
            first = rng.randrange(ROWS - 3)
            rows = rows_of(first, first + 1, first + 2)
            if rng.random() < 0.5:
                rows = rows_of(*rng.sample(range(ROWS), 3))
            array = memory.take(rows)
            if not np.array_equal(array, truth[rows]):
                wrong.append((number, rows))
            array[:] = number
            if not (array == number).all():
                wrong.append((number, rows, "changed"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert memory.leased_rows == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_childs_lease_end_does_not_disturb_its_parent(column, options):
    """After a fork both sides go on with what they held, and take anew, without meeting."""
    memory = memory_of(column, **options)
    truth = column[2]
    held = memory.take(np.arange(0, 4))
    held[:] = 5
    memory.take(rows_of(9, 7))
    moved = memory.take(rows_of(9, 7))
    moved[0] = 5
    pid = os.fork()
    if pid == 0:
        good = bool((held == 5).all() and (moved[0] == 5).all())
        held[:] = moved[:] = 6
        del moved
        again = memory.take(np.arange(0, 4))
        good = good and np.array_equal(again, truth[:4])
        again[:] = 7
        del held
        good = good and (again == 7).all() and memory.leased_rows in (0, 4)
        other = memory.take(rows_of(3, 1))
        good = good and np.array_equal(other, truth[[3, 1]])
        os._exit(0 if good else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert (held == 5).all() and (moved[0] == 5).all()
    assert np.array_equal(moved[1], truth[7])
    del held, moved
    assert np.array_equal(memory.take(np.arange(ROWS)), truth)


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


@linux
def test_a_column_in_too_many_pieces_is_mapped_as_it_lies(column, monkeypatch):
    """Runs stay slices; what does not adjoin in the file is put together."""
    monkeypatch.setattr(leases, "_MAX_PIECES", 2)
    memory = memory_of(column, strategy="leases")
    truth = column[2]
    inside = memory.take(np.arange(0, 8))
    assert memory.leased_rows == 8
    across = memory.take(np.arange(6, 20))
    assert memory.leased_rows == 8
    assert np.array_equal(inside, truth[:8])
    assert np.array_equal(across, truth[6:20])


@linux
def test_near_the_kernels_map_limit_batches_are_copied(column, monkeypatch):
    """Many living shuffled batches never run into vm.max_map_count."""
    memory = memory_of(column, strategy="leases")
    memory.take(rows_of(0))
    monkeypatch.setattr(fares.Fares, "choose_moving", lambda self: True)
    monkeypatch.setattr(_region.budget, "limit", _region.budget._used + 12)
    held = [memory.take(rows_of(5, 2, 9)) for _ in range(20)]
    mapped = [array for array in held if not array.flags.owndata]
    assert 0 < len(mapped) < len(held)
    assert all(np.array_equal(array, column[2][[5, 2, 9]]) for array in held)
    held.clear()
    del mapped
    assert isinstance(memory.take(rows_of(5, 2, 9)).base, leases.Lease)


@linux
def test_when_the_kernel_refuses_a_mapping_a_copy_is_made(column, monkeypatch):
    """ENOMEM from mmap(MAP_FIXED) is no error for the taker."""
    memory = memory_of(column, strategy="leases")
    memory.take(rows_of(0))

    def refuse(self, at, nbytes, fd, offset):
        raise _region.MapLimitError("mmap: Cannot allocate memory")

    monkeypatch.setattr(_region.Region, "place", refuse)
    assert np.array_equal(memory.take(rows_of(5, 2)), column[2][[5, 2]])


@linux
def test_a_region_refuses_what_lies_outside_it(column):
    """No wrong address ever reaches mmap(MAP_FIXED) or madvise."""
    file = FileHandle(column[0])
    region = _region.Region(4 * PAGE, 1)
    for at, nbytes, offset in (
        (0, 5 * PAGE, 0),
        (-PAGE, PAGE, 0),
        (PAGE, 4 * PAGE, 0),
        (1, PAGE, 0),
        (0, 100, 0),
        (0, PAGE, 1),
        (0, PAGE, -PAGE),
        (0, 0, 0),
    ):
        with pytest.raises(ValueError, match=r"region|page boundaries"):
            region.place(at, nbytes, file.fd, offset)
    with pytest.raises(ValueError, match="outside"):
        region.drop(region.address, region.address + 5 * PAGE)
    with pytest.raises(ValueError, match="whole pages"):
        _region.Region(100, 1)
    other = _region.Region(2 * PAGE, 1)
    for at, nbytes, target_at in (
        (0, 5 * PAGE, 0),
        (-PAGE, PAGE, 0),
        (0, 4 * PAGE, 0),
        (0, PAGE, 2 * PAGE),
        (0, PAGE, -PAGE),
        (1, PAGE, 0),
        (0, PAGE, 1),
        (0, 100, 0),
        (0, 0, 0),
    ):
        with pytest.raises(ValueError, match=r"region|page boundaries"):
            region.move(at, nbytes, other, target_at)
    with pytest.raises(OSError, match="mmap"):
        region.place(0, PAGE, 9999, 0)
    address = region.address
    del region  # a part of it may be somebody else's by now: never unmapped
    lines = Path("/proc/self/maps").read_text().splitlines()
    left = [[int(part, 16) for part in line.split()[0].split("-")] for line in lines]
    assert any(first <= address < last for first, last in left)
    assert _region._libc().munmap(address, PAGE) == 0


def test_rows_outside_the_column_are_refused(column, options):
    """A wrong row is an IndexError, not a wrong address."""
    memory = memory_of(column, **options)
    for rows in ((-1,), (ROWS,), (ROWS - 1, ROWS)):
        with pytest.raises(IndexError):
            memory.take(rows_of(*rows))
    assert memory.take(rows_of()).shape == (0, *SHAPE)


def test_rows_that_share_pages_are_copied(tmp_path):
    """Small or unaligned rows are never handed out by reference."""
    data = np.arange(64, dtype=np.uint8)
    data.tofile(tmp_path / "small.bin")
    layout = RowLayout(np.array([0, 16, 32], np.int64), (2, 2), np.dtype(np.float32))
    assert not layout.mappable
    memory = ColumnMemory(lambda: FileHandle(tmp_path / "small.bin"), data, layout)
    array = memory.take(rows_of(2, 0))
    assert array.flags.owndata and array.flags.writeable
    assert np.array_equal(array[1], data[:16].view(np.float32).reshape(2, 2))
    repeated = RowLayout(np.array([PAGE, PAGE], np.int64), (PAGE,), np.dtype(np.uint8))
    assert not repeated.mappable
    with pytest.raises(ValueError, match="pages of their own"):
        leases.ColumnMapping(FileHandle(tmp_path / "small.bin"), layout, _pagemap.AllFinder())
    with pytest.raises(ValueError, match="pages of their own"):
        assembly.assemble(FileHandle(tmp_path / "small.bin"), layout, rows_of(0))


def test_copies_are_true_to_the_file_while_rows_are_written(column, options):
    """`copy` never sees what a taker wrote."""
    memory = memory_of(column, **options)
    taken = memory.take(np.arange(0, 6))
    taken[:] = 0
    out = np.empty((2, *SHAPE), np.uint16)
    memory.copy(rows_of(3, 1), out)
    assert np.array_equal(out, column[2][[3, 1]])


def test_the_strategy_can_be_chosen_by_the_environment(monkeypatch):
    """OCRSTORE_MEMORY names the strategy; a wrong name says which there are."""
    for name in ("fresh", "copy"):
        monkeypatch.setenv("OCRSTORE_MEMORY", name)
        assert best_strategy() == name
    monkeypatch.setenv("OCRSTORE_MEMORY", "magic")
    with pytest.raises(ValueError, match="leases, fresh, copy"):
        best_strategy()
    monkeypatch.delenv("OCRSTORE_MEMORY")
    monkeypatch.setattr(_region, "supported", False)
    assert best_strategy() == "fresh"


@linux
def test_no_mapping_or_descriptor_is_left_behind(column):
    """A thousand takes of every kind leave as many mappings and descriptors as there were."""
    memory = memory_of(column, strategy="leases")
    memory.take(np.arange(4))
    memory.take(rows_of(3, 1))
    gc.collect()
    maps = len(Path("/proc/self/maps").read_text().splitlines())
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for i in range(1000):
        memory.take(rows_of(i % ROWS, (i * 7) % ROWS))[:] = 1
        memory.take(np.arange(i % 20, i % 20 + 4))[:] = 2
    gc.collect()
    assert len(Path("/proc/self/maps").read_text().splitlines()) <= maps + 4
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


@linux
@pytest.mark.parametrize("error", [OSError(12, "mmap"), _region.MapLimitError("mmap")])
def test_a_column_that_cannot_be_mapped_is_taken_batch_by_batch(column, monkeypatch, error):
    """Strict overcommit refuses large private mappings; then small ones, then copies do."""
    memory = memory_of(column, strategy="leases")

    def refuse(*args, **options):
        raise error

    monkeypatch.setattr(_region.Region, "place", refuse)
    assert np.array_equal(memory.take(np.arange(3)), column[2][:3])
    assert np.array_equal(memory.take(rows_of(5, 2)), column[2][[5, 2]])
    monkeypatch.setattr(mmap, "mmap", refuse)
    if isinstance(error, OSError):
        assert memory.take(np.arange(3)).flags.owndata


@linux
def test_interpreter_exit_with_everything_alive(column, tmp_path):
    """Leases, assembled batches and threads may be alive when Python ends: no crash, no message."""
    path, layout, _ = column
    np.save(tmp_path / "offsets.npy", layout.offsets)
    code = f"""
import sys, threading
sys.path.insert(0, {str(Path(_region.__file__).parents[2])!r})
import numpy as np, torch
from ocrstore.torch._rows import FileHandle, RowLayout
from ocrstore.torch.memory import ColumnMemory
layout = RowLayout(np.load({str(tmp_path / "offsets.npy")!r}), {SHAPE!r}, np.dtype(np.uint16))
data = np.memmap({str(path)!r}, np.uint8, mode="r")
memory = ColumnMemory(lambda: FileHandle({str(path)!r}), data, layout)
held = []
for rows in ([0, 1, 2, 3], [9, 7], [9, 7], [8, 5]):
    held.append(torch.from_numpy(memory.take(np.array(rows))))
for tensor in held:
    tensor.fill_(1)
sys.modules["keeper"] = held
cycle = [held]
cycle.append(cycle)
event = threading.Event()
threading.Thread(target=event.wait, args=(held,), daemon=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
