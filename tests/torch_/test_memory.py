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

from columns import PAGE, ROWS, SHAPE, linux, memory_of, rows_of  # noqa: E402

from ocrstore.torch import _pagemap, _region, assembly, fares, leases  # noqa: E402
from ocrstore.torch._rows import FileHandle, RowLayout  # noqa: E402
from ocrstore.torch.memory import ColumnMemory, best_strategy  # noqa: E402


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
