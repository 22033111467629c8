"""Transfers to a GPU, run on a fake of it: right tensors, bounded memory, the right device.

Each safeguard is also taken out, to show that its absence would be seen.
"""

import gc

import pytest
import torch
from torch.utils.data import DataLoader

from ocrstore.store import StoredColumn
from ocrstore.torch import Batch, OCRStoreDataset, PrefetchLoader, ResumableSampler
from ocrstore.torch.batch import ON_HOST
from ocrstore.torch.device import BlockingTransfer, Transfer, move, stage_for
from tests.fake_cuda import Event, Fake
from tests.torch_.making import make_store

TENSORS = ("images", "prob_maps", "thresh_maps", "prob_masks", "thresh_masks")


@pytest.fixture
def fake(monkeypatch):
    """Two fake GPUs; the loop is on the second one, as rank 1 of a training is."""
    device = Fake()
    device.install(monkeypatch)
    device.set_device(1)
    device.contexts.clear()
    yield device
    gc.collect()
    device.close()


def wrong_tensors(fake, loader, dataset, *, passes=1, leave_after=None):
    """Return how many tensors late kernels found to be others than those of the store."""
    read = []
    for _ in range(passes):
        for number, batch in enumerate(loader):
            for name in TENSORS:
                rows = batch["rows"].tolist()
                fake.read(
                    batch[name],
                    lambda value, name=name, rows=rows: read.append((name, rows, value)),
                )
            del batch  # its memory may be used again: the kernels have not run yet
            if number + 1 == leave_after:
                break
    fake.current_stream().synchronize()
    expected = {row: dataset[row : row + 1] for row in range(len(dataset))}
    wrong = 0
    for name, rows, value in read:
        wrong += not all(torch.equal(v, expected[r][name][0]) for r, v in zip(rows, value))
    assert len(read) >= passes * len(TENSORS)
    return wrong


def make_loader(dataset, **options):
    """Return a shuffled loader to the second GPU."""
    sampler = ResumableSampler(dataset, seed=3)
    options = {"batch_size": 4, "device": "cuda:1", **options}
    return PrefetchLoader(dataset, sampler=sampler, **options)


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_kernels_that_run_late_read_the_right_tensors(fake, store_path, ahead):
    """Whatever the order of streams, every kernel sees the bytes of its batch."""
    dataset = OCRStoreDataset(store_path, view="96")
    loader = make_loader(dataset, ahead=ahead)
    assert wrong_tensors(fake, loader, dataset, passes=2) == 0
    loader.close()
    assert fake.waits == 0


def test_compressed_rows_are_decoded_into_page_locked_memory(fake, tmp_path, monkeypatch):
    """No other memory is taken for rows on their way to the device."""
    path = make_store(tmp_path / "a.ocrs", samples=13, codec="lz4block")
    expected = OCRStoreDataset(make_store(tmp_path / "raw.ocrs", samples=13))
    loader = make_loader(OCRStoreDataset(path))
    monkeypatch.setattr(StoredColumn, "decoded", lambda *_: pytest.fail("a row was taken"))
    sizes = []
    empty = StoredColumn.empty_batch

    def note(column, count):
        sizes.append(column.spec.row_nbytes)
        return empty(column, count)

    monkeypatch.setattr(StoredColumn, "empty_batch", note)
    assert wrong_tensors(fake, loader, expected) == 0
    loader.close()
    assert max(sizes, default=0) <= 72  # matrices, which stay on the host


@pytest.mark.parametrize("pinned", [False, True])
def test_transformed_batches_of_workers(fake, store_path, pinned):
    """Batches that are no references arrive as well, also where torch has pinned them."""
    dataset = OCRStoreDataset(store_path, view="96")
    loader = make_loader(dataset, collate_fn=_materialized, pin_memory=pinned)
    assert wrong_tensors(fake, loader, dataset) == 0
    loader.close()
    assert fake.waits == 0


def _materialized(samples):
    from ocrstore.torch.collate import collate

    batch = collate(samples)
    return Batch(None, {name: batch[name] for name in batch})


def test_a_buffer_that_is_filled_too_early_is_seen(fake, store_path, monkeypatch):
    """Without waiting for the event of a buffer, tensors are wrong."""
    dataset = OCRStoreDataset(store_path, view="96")
    loader = make_loader(dataset)
    with monkeypatch.context() as context:
        context.setattr(Event, "synchronize", lambda _: None)
        batches = list(loader)  # nothing waits, so the buffers are refilled at once
    for stream in fake.streams:
        stream.synchronize()
    rows = [row for batch in batches for row in batch["rows"].tolist()]
    values = [image for batch in batches for image in batch["images"].raw]
    wrong = sum(not torch.equal(v, dataset[r]["image"]) for r, v in zip(rows, values, strict=True))
    loader.close()
    assert wrong > 0


def test_a_stream_that_does_not_wait_is_seen(fake, store_path, monkeypatch):
    """Without waiting for the transfer, kernels read what was there before."""
    dataset = OCRStoreDataset(store_path, view="96")
    monkeypatch.setattr(fake.Stream, "wait_event", lambda *_: None)
    fake.copy_seconds, fake.kernel_seconds = 0.01, 0.0
    loader = make_loader(dataset)
    assert wrong_tensors(fake, loader, dataset) > 0
    loader.close()


def test_memory_that_is_reused_too_early_is_seen(fake, store_path, monkeypatch):
    """Without `record_stream`, the next transfer writes over what kernels are to read."""
    dataset = OCRStoreDataset(store_path, view="96")
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    fake.copy_seconds = 0.0
    loader = make_loader(dataset)
    assert wrong_tensors(fake, loader, dataset, passes=2) > 0
    loader.close()


@pytest.mark.parametrize("pin_memory", [False, True])
def test_no_context_on_another_gpu(fake, store_path, monkeypatch, pin_memory):
    """The thread is on its own GPU from its first moment; else there is a context on GPU 0."""
    dataset = OCRStoreDataset(store_path, view="96")
    for device in ("cuda:1", "cuda"):  # without an index: that of the thread that makes the loader
        loader = make_loader(dataset, device=device, pin_memory=pin_memory)
        for batch in loader:
            assert batch["images"].device == torch.device("cuda:1")
        loader.close()
    assert fake.contexts == {1}
    monkeypatch.setattr(Transfer, "enter_thread", lambda _: None)
    loader = make_loader(dataset, pin_memory=pin_memory)
    list(loader)
    loader.close()
    assert 0 in fake.contexts


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_passes_that_are_left_early_use_the_same_memory(fake, store_path, workers):
    """Neither streams nor page-locked nor device memory grow from one pass to the next."""
    dataset = OCRStoreDataset(store_path, view="96")
    loader = make_loader(dataset, num_workers=workers)
    # a whole pass fills every buffer; one that is left early may end before the second
    assert wrong_tensors(fake, loader, dataset) == 0
    before = len(fake.streams), fake.pinned_nbytes
    for passes in range(8):
        assert wrong_tensors(fake, loader, dataset, leave_after=1 + passes % 3) == 0
    assert (len(fake.streams), fake.pinned_nbytes) == before
    assert fake.reserved <= 8 * 4 * 3 * 96 * 96 * 4
    loader.close()


def test_lost_stages_would_be_seen(fake, store_path):
    """A pass that does not give its stage back makes the next one allocate anew."""
    dataset = OCRStoreDataset(store_path, view="96")
    loader = make_loader(dataset)
    seen = []
    for _ in range(3):
        wrong_tensors(fake, loader, dataset, leave_after=2)
        loader._unused_stages.clear()
        seen.append((len(fake.streams), fake.pinned_nbytes))
    assert seen[0] < seen[1] < seen[2]
    loader.close()


def test_an_exception_gives_the_stage_back(fake):
    """After an error of the data set the same loader goes on with the same stream."""

    class Fragile(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, row):
            if row == 2:
                raise LookupError("row 2")
            return torch.full((3,), row)

    loader = PrefetchLoader(Fragile(), batch_size=1, device="cuda:1")
    for _ in range(3):
        passing = iter(loader)
        assert next(passing).cpu().tolist() == [[0, 0, 0]]
        with pytest.raises(LookupError, match="row 2"):
            list(passing)
        del passing
        gc.collect()
    assert len(fake.streams) == 3  # one default stream for each GPU, and that of the loader
    loader.close()


def test_buffers_are_used_again_and_fit(fake, store_path):
    """Two sets of page-locked buffers, in turn; a smaller batch fits, another view gets its own."""
    dataset = OCRStoreDataset(store_path)
    transfer = Transfer(torch.device("cuda:1"))
    transfer.enter_thread()
    for rows in ([3, 1, 2, 0], [7, 5, 6, 4], [9, 8]):
        batch = transfer.finish(transfer.begin(dataset[rows]))
        expected = dataset[rows]
        assert batch["image_filename"] == expected["image_filename"]
        for name in TENSORS:
            assert torch.equal(batch[name].cpu(), expected[name])
            assert batch[name].stride()[1:] == expected[name].stride()[1:]
    assert fake.pinned_nbytes == 2 * sum(dataset[0:4][name].nbytes for name in TENSORS)
    larger = OCRStoreDataset(store_path, view="96")
    assert transfer.finish(transfer.begin(larger[0:3]))["images"].shape == (3, 3, 96, 96)
    assert transfer.finish(transfer.begin({"a": torch.ones(2)}))["a"].cpu().tolist() == [1, 1]


def test_two_devices_at_once(fake, store_path):
    """Loaders to two GPUs do not disturb each other."""
    dataset = OCRStoreDataset(store_path, view="96")
    first, second = (make_loader(dataset, device=f"cuda:{index}") for index in range(2))
    for one, other in zip(first, second, strict=True):
        assert (one["images"].device.index, other["images"].device.index) == (0, 1)
        expected = dataset[one["rows"].tolist()]["images"]
        for batch in (one, other):
            index = batch["images"].device.index
            assert fake.current_stream(f"cuda:{index}").device.index == index
            assert torch.equal(batch["images"].cpu(), expected)
    first.close()
    second.close()


def test_what_describes_samples_stays_on_the_host(fake, store_path):
    """No small copy behind the large ones; matrices keep every bit."""
    dataset = OCRStoreDataset(store_path, view="96")
    loader = make_loader(dataset)
    batch = next(iter(loader))
    assert all(batch[name].device.type == "cpu" for name in ON_HOST)
    assert all(batch[name].device.type == "cuda" for name in TENSORS)
    expected = dataset[batch["rows"].tolist()]
    assert batch["inverse_matrix"].dtype == torch.float64
    assert torch.equal(batch["inverse_matrix"], expected["inverse_matrix"])
    del batch
    loader.close()


def test_a_stock_loader_that_pins_is_not_waited_for(fake, store_path):
    """Lightning calls `to(device)` without `non_blocking`; from page-locked memory none waits."""
    dataset = OCRStoreDataset(store_path, view="96")
    for batch in DataLoader(dataset, batch_size=4, pin_memory=True):
        moved = batch.to(torch.device("cuda:1"))
        assert fake.waits == 0
    assert moved["images"].device.type == "cuda"
    dataset[0:2].to("cuda:1")
    assert fake.waits == len(TENSORS)  # from the file: each waits
    fake.waits = 0
    batch.to("cuda:1", non_blocking=False)
    assert fake.waits == len(TENSORS)  # as asked


def test_pinning_copies_once(fake, store_path):
    """Transformed batches are written into page-locked memory that was allocated empty."""
    dataset = OCRStoreDataset(store_path, view="96")
    made = _materialized(dataset.__getitems__([3, 1]))
    pinned = made.pin_memory()
    assert fake.pinned_nbytes == sum(made[name].nbytes for name in TENSORS)
    for name in TENSORS:
        assert pinned[name].is_pinned() and torch.equal(pinned[name], made[name])
        assert pinned[name].stride() == made[name].stride()


class Recorder(torch.Tensor):
    """A tensor that notes how it is asked to move."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    calls: list

    def to(self, *args, **kwargs):
        """Note the call."""
        Recorder.calls.append((args, kwargs))
        return self


def test_nothing_is_sent_to_mps_unwaited_or_in_float64(store_path):
    """MPS may read freed memory and has no float64."""
    Recorder.calls = []
    small = torch.ones(2).as_subclass(Recorder)
    exact = torch.ones(2, dtype=torch.float64).as_subclass(Recorder)
    batch = Batch(None, {"images": small, "weights": exact, "inverse_matrix": exact})
    mps = torch.device("mps")
    batch.to(mps)
    batch.to("mps", non_blocking=True)
    move({"a": small}, mps)
    move(batch, mps)
    assert len(Recorder.calls) == 4
    assert not any(kwargs["non_blocking"] for _, kwargs in Recorder.calls)
    assert isinstance(stage_for("mps"), BlockingTransfer)


def test_precision_plugins_leave_matrices_alone(store_path):
    """Under 16-true and bf16-true maps are converted, matrices are not."""
    precision = pytest.importorskip("ocrstore.torch.lightning_bases").L.plugins.precision
    dataset = OCRStoreDataset(store_path, view="96")
    exact = dataset[0:3]["inverse_matrix"].clone()
    for name, dtype in (("16-true", torch.float16), ("bf16-true", torch.bfloat16)):
        converted = precision.HalfPrecision(name).convert_input(dataset[0:3])
        assert converted["prob_maps"].dtype == dtype
        assert converted["inverse_matrix"].dtype == torch.float64
        assert torch.equal(converted["inverse_matrix"], exact)
    matrix = dataset[0]["inverse_matrix"]
    assert matrix.float().dtype == torch.float32 and type(matrix + 1) is torch.Tensor
    assert matrix.to("cpu", torch.float32).dtype == torch.float32
