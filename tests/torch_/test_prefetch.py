"""Reading ahead: same batches, bounded, stopped cleanly, and no epoch lost or drawn twice."""

import gc
import linecache
import signal
import subprocess
import sys
import threading
import traceback
from collections import namedtuple

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ocrstore.torch import (
    OCRStoreDataset,
    Prefetcher,
    PrefetchLoader,
    ResumableSampler,
)
from ocrstore.torch.annotations import ON_ACCESS
from ocrstore.torch.device import BlockingTransfer, Resolve, move, stage_for, tensors_of
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def threads():
    """Return the reading threads that are alive."""
    return [t for t in threading.enumerate() if t.name == "ocrstore-prefetch"]


def line_of(frame):
    """Return the line of code that a frame is at."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def order(dataset, seed, epoch):
    """Return the rows of an epoch."""
    sampler = ResumableSampler(dataset, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """Every test ends with as many reading threads as it began with."""
    yield
    gc.collect()
    try:
        wait_until(lambda: not threads(), seconds=60)
    except AssertionError:
        frames = sys._current_frames()
        for thread in threads():  # where it hangs is what one has to know
            traceback.print_stack(frames[thread.ident])
        raise


def test_it_is_ahead_by_as_many_batches_as_said():
    """The source is asked for `ahead` batches more than were handed out, and for no more."""
    asked, allowed, excess = 0, 3, []

    def source():
        nonlocal asked
        for number in range(100):
            asked += 1
            excess.append(max(0, asked - allowed))
            yield number

    with Prefetcher(source(), ahead=3) as prefetcher:
        for number in range(100):
            wait_until(lambda: asked >= min(3 + prefetcher.handed, 100))
            assert number > 90 or not prefetcher.ended
            allowed += 1  # from here on it may ask for one more
            assert next(prefetcher) == number
        assert sum(excess) == 0
        assert prefetcher.handed == 100 and prefetcher.waited > 0
        assert next(prefetcher, "nothing") == "nothing"
    with pytest.raises(ValueError, match="at least one"):
        Prefetcher([], ahead=0)


def test_an_exception_comes_where_its_batch_would_have():
    """Batches before it are handed out; it keeps its type and where it was raised."""

    def source():
        yield 1
        raise LookupError("batch 2 is broken")

    prefetcher = Prefetcher(source())
    assert next(prefetcher) == 1
    with pytest.raises(LookupError, match="batch 2") as caught:
        next(prefetcher)
    assert any(entry.name == "source" for entry in caught.traceback)
    assert next(prefetcher, None) is None and not threads()


def test_dropped_in_the_middle_it_stops():
    """Neither a forgotten nor a closed one leaves a thread or a batch behind."""
    source = (torch.zeros(1) for _ in range(100))
    prefetcher = Prefetcher(source)
    next(prefetcher)
    del prefetcher
    gc.collect()
    assert not threads()
    prefetcher = Prefetcher(iter(range(100)))
    prefetcher.close()
    assert not threads() and list(prefetcher) == []


def test_ctrl_c_while_waiting_ends_the_thread():
    """The interrupt reaches the loop although it is waiting, and the thread is stopped."""
    go_on = threading.Event()

    def source():
        go_on.wait(300)
        yield 1

    def on_interrupt(*_):
        go_on.set()  # closing waits for the batch that is being made
        raise KeyboardInterrupt

    def interrupt():
        main = threading.main_thread().ident
        wait_until(lambda: "ready.get()" in line_of(sys._current_frames()[main]))
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, on_interrupt)
    prefetcher = Prefetcher(source())
    interrupting = threading.Thread(target=interrupt)
    try:
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            next(prefetcher)
    finally:
        signal.signal(signal.SIGINT, before)
        interrupting.join()
    assert not threads()


def test_a_process_ends_with_one_still_open(store_path):
    """Neither a pass left in the middle nor an epoch begun ahead keeps a process from ending."""
    code = (
        "from ocrstore.torch import OCRStoreDataset, PrefetchLoader\n"
        f"dataset = OCRStoreDataset({str(store_path)!r})\n"
        "ended = PrefetchLoader(dataset, batch_size=4)\n"
        "assert sum(1 for _ in ended) == 10\n"
        "middle = iter(PrefetchLoader(dataset, batch_size=4, num_workers=1))\n"
        "next(middle)\n"
        "print('done')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_batches_are_those_of_a_plain_loader(store_path, workers):
    """Three epochs, shuffled: same rows, same bytes, also with persistent workers."""
    dataset = OCRStoreDataset(store_path)

    def epochs(kind, **options):
        loader = kind(
            dataset,
            batch_size=4,
            sampler=ResumableSampler(dataset, seed=3),
            num_workers=workers,
            persistent_workers=workers > 0,
            **options,
        )
        assert len(loader) == 10
        return [
            [
                (
                    b["rows"].tolist(),
                    int(b["images"].sum()),
                    b["texts"],
                    float(b["prob_maps"].sum()),
                )
                for b in loader
            ]
            for _ in range(3)
        ]

    assert epochs(PrefetchLoader, ahead=3) == epochs(DataLoader)


def test_the_next_epoch_is_begun_ahead(store_path):
    """When the last batch is handed out the first ones of the next epoch are made already."""
    dataset = OCRStoreDataset(store_path)
    sampler = ResumableSampler(dataset, seed=3)
    loader = PrefetchLoader(dataset, batch_size=4, sampler=sampler)
    orders = [order(dataset, 3, epoch) for epoch in range(6)]

    def drawn(batches=10):
        passing = iter(loader)  # as Lightning: no more than it needs
        return [row for _ in range(batches) for row in next(passing)["rows"].tolist()]

    assert not threads()
    assert drawn() == orders[0] and len(threads()) == 1
    iter(loader)  # thrown away
    assert drawn() == orders[1]
    sampler.set_epoch(2)  # as Lightning does: it is that one
    assert drawn() == orders[2]
    sampler.set_epoch(5)  # another than what was begun
    assert drawn() == orders[5]
    state = {**sampler.state_dict(), "epoch": 4, "position": 8}
    sampler.load_state_dict(state)
    assert [row for batch in loader for row in batch["rows"].tolist()] == orders[4][8:]
    assert drawn(3) == orders[5][:12]
    gc.collect()
    loader.close()
    assert not threads()


def test_two_passes_at_once_and_small_stores(store_path, other_path):
    """Passes do not disturb each other; a store of fewer batches than `ahead` works."""
    loader = PrefetchLoader(OCRStoreDataset(store_path), batch_size=4)
    pairs = [(a["rows"].tolist(), b["rows"].tolist()) for a, b in zip(loader, loader, strict=True)]
    assert len(pairs) == 10 and all(a == b for a, b in pairs)
    small = OCRStoreDataset(other_path)
    loader = PrefetchLoader(small, batch_size=4, sampler=ResumableSampler(small, seed=1), ahead=5)
    seen = [[row for b in loader for row in b["rows"].tolist()] for _ in range(3)]
    assert seen == [order(small, 1, epoch) for epoch in range(3)]
    with pytest.raises(ValueError, match="at least one"):
        PrefetchLoader(small, ahead=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_counts_what_was_used(store_path, workers):
    """At every batch of three epochs `consumed` gives the state to go on from."""
    dataset = OCRStoreDataset(store_path)
    sampler = ResumableSampler(dataset, seed=3)
    loader = PrefetchLoader(
        dataset, batch_size=4, sampler=sampler, num_workers=workers, persistent_workers=workers > 0
    )
    for epoch in range(3):
        used = 0
        for batch in loader:
            used += len(batch["rows"])
            state = sampler.state_dict(consumed=used)
            there = (epoch, used) if used < 37 else (epoch + 1, 0)
            assert (state["epoch"], state["position"]) == there


def test_any_dataset_and_collation():
    """What is not of ocrstore passes through; so do workers' errors."""
    loader = PrefetchLoader(TensorDataset(torch.arange(10)), batch_size=4, shuffle=True)
    assert sorted(int(v) for (values,) in loader for v in values) == list(range(10))
    loader = PrefetchLoader([1, 2, "three"], batch_size=3, num_workers=1)
    with pytest.raises(TypeError, match="worker process 0"):
        list(loader)


def test_tensors_are_taken_ahead(store_path):
    """The loop finds tensors made, with `lists` everything; they are its own to write on."""
    dataset = OCRStoreDataset(store_path)
    batch = Resolve(lists=True).begin(dataset[0:4])
    assert set(batch._taken) == set(batch) - set(ON_ACCESS)
    assert "texts" not in Resolve().begin(dataset[0:4])._taken
    batch["images"].zero_()
    assert int(dataset[0:4]["images"].sum()) > 0
    assert Resolve().begin([1]) == [1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_arrive_on_a_gpu(store_path):
    """On a real device: equal to the file's bytes in every epoch, channels last."""
    dataset = OCRStoreDataset(store_path)
    loader = PrefetchLoader(dataset, batch_size=4, device="cuda")
    for _ in range(3):
        for number, batch in enumerate(loader):
            expected = dataset[number * 4 : number * 4 + 4]
            assert batch["images"].is_cuda
            for name in ("images", "prob_maps", "thresh_masks"):
                assert torch.equal(batch[name].cpu(), expected[name])


def test_devices_and_forms_of_batches():
    """Each device gets its stage; tensors move in whatever they are."""
    pair = namedtuple("pair", "a b")
    meta = torch.device("meta")
    batch = {"x": [torch.ones(2), pair(torch.ones(3), "text")], "y": (torch.zeros(1), 5)}
    moved = move(batch, meta)
    assert all(tensor.device == meta for tensor in tensors_of(moved))
    assert len(list(tensors_of(moved))) == 3
    assert moved["x"][1].b == "text" and moved["y"][1] == 5
    assert isinstance(stage_for(None), Resolve) and isinstance(stage_for("cpu"), Resolve)
    blocking = stage_for("meta")
    assert isinstance(blocking, BlockingTransfer)
    assert blocking.finish(blocking.begin(torch.ones(2))).device == meta
    assert isinstance(stage_for(meta), BlockingTransfer)
