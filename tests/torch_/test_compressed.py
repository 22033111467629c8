"""Compressed columns arrive in batches as raw ones do, decoded straight into their place."""

import os
import pickle
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import ocrstore
import ocrstore.torch.collate as collate
from ocrstore import shared_slots
from ocrstore.errors import CorruptStoreError, OCRStoreError
from ocrstore.torch import OCRStoreDataset, PrefetchLoader, WindowShuffleSampler
from ocrstore.torch.memory import parallel_copy
from tests.torch_.making import make_store

CODECS = ("lz4block", "lz4", "zstd")
ORDERS = ([3], list(range(8)), [11, 2, 2, 7, 0, 12, 5])
SAMPLES = 13


@pytest.fixture(scope="module")
def raw_path(tmp_path_factory):
    """The same samples in raw columns."""
    return make_store(tmp_path_factory.mktemp("raw") / "raw.ocrs", samples=SAMPLES)


@pytest.fixture(scope="module", params=CODECS)
def path(request, tmp_path_factory):
    """A store whose columns are all compressed."""
    folder = tmp_path_factory.mktemp(request.param)
    return make_store(folder / "a.ocrs", samples=SAMPLES, codec=request.param)


@pytest.fixture(scope="module")
def block_path(tmp_path_factory):
    """A store whose columns are all compressed by the codec of the presets."""
    folder = tmp_path_factory.mktemp("block")
    return make_store(folder / "a.ocrs", samples=SAMPLES, codec="lz4block")


@pytest.fixture(params=[1, 3], ids=lambda count: f"{count} threads")
def threads(request, monkeypatch):
    """So many threads, also for small batches."""
    monkeypatch.setattr(parallel_copy, "_MIN_THREADED_NBYTES", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def tensors(record):
    """Return all tensors of a sample or a batch."""
    return {name: value for name, value in record.items() if isinstance(value, torch.Tensor)}


def assert_same(found, wanted):
    """Compare the tensors of two records bit by bit."""
    found, wanted = tensors(found), tensors(wanted)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].stride()[1:] == tensor.stride()[1:]
        assert torch.equal(found[name], tensor), name


@pytest.mark.usefixtures("threads")
def test_batches_and_samples_are_those_of_a_raw_store(path, raw_path):
    """Direct access, in any order, for one sample and for lists of whole pictures too."""
    found = OCRStoreDataset(path, columns=["tensor", "prob_map", "image", "inverse_matrix"])
    wanted = OCRStoreDataset(raw_path, columns=["tensor", "prob_map", "image", "inverse_matrix"])
    for order in ORDERS:
        assert_same(found[order], wanted[order])
        for one, other in zip(
            found[order]["whole_images"], wanted[order]["whole_images"], strict=True
        ):
            assert torch.equal(one, other)
    for row in range(3):
        assert_same(found[row], wanted[row])


@pytest.mark.usefixtures("threads")
def test_copy_into_buffers_of_any_layout(path, raw_path):
    """Into larger, planar and strided buffers; what lies around the rows is not written to."""
    found, wanted = OCRStoreDataset(path), OCRStoreDataset(raw_path)
    for order in ORDERS:
        batch, count = found[order], len(order)
        buffers = {n: torch.cat([b, b]).zero_() + 7 for n, b in batch.empty_buffers().items()}
        buffers["images"] = buffers["images"].contiguous()  # planar, unlike the stored rows
        wide = torch.full((2 * count, 1, 160, 320), 7, dtype=torch.float16)
        buffers["prob_maps"] = wide[..., ::2]
        filled = batch.copy_into(buffers)
        for name, tensor in tensors(wanted[order]).items():
            if name in filled:
                assert torch.equal(filled[name], tensor), name
                assert (buffers[name][count:] == 7).all(), name
        assert (wide[..., 1::2] == 7).all()


def test_rows_of_raw_and_compressed_stores_in_one_batch(path, raw_path):
    """Stores of one data set may have different codecs."""
    both = OCRStoreDataset([raw_path, path])
    batch = both[[0, SAMPLES + 4, 3, SAMPLES]]
    wanted = OCRStoreDataset(raw_path)[[0, 4, 3, 0]]
    for name in ("images", "prob_maps", "thresh_masks"):
        assert torch.equal(batch[name], wanted[name])


def test_batches_own_their_memory_and_give_it_back(path):
    """A batch may be written to; its memory is used for another one when it is gone."""
    dataset = OCRStoreDataset(path)
    first = dataset[[1, 5, 2]]["prob_maps"]
    wanted = first.clone()
    other = dataset[[1, 5, 2]]["prob_maps"]
    first.zero_()
    assert torch.equal(other, wanted)
    address = first.data_ptr()
    part = first[1]
    del first
    assert dataset[[4, 5, 6]]["prob_maps"].data_ptr() != address
    del part
    again = [dataset[[4, 5, 6]]["prob_maps"] for _ in range(2)]
    assert address in {tensor.data_ptr() for tensor in again}


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_send_references(block_path, raw_path, workers):
    """The parent decodes: what travels is as small as for a raw store."""
    dataset, wanted = OCRStoreDataset(block_path), OCRStoreDataset(raw_path)
    loader = DataLoader(dataset, 4, shuffle=True, num_workers=workers)
    for batch in loader:
        assert not batch._taken
        assert len(pickle.dumps(batch)) < 1000
        assert_same(batch, wanted[batch["rows"].tolist()])


# --- decoded ahead by workers -------------------------------------------------------------------

needs_memory_files = pytest.mark.skipif(
    not shared_slots.supported, reason="the system has no anonymous memory files"
)
KNOWS_AT = 7
"""With two workers that prefetch two batches each, the first batch by a worker that knows what was
read of an earlier one of its batches."""


def batches_of_one(dataset, rows=range(SAMPLES), **options):
    """Return a loader with two workers and batches of one sample."""
    return DataLoader(dataset, 1, sampler=list(rows), num_workers=2, **options)


@needs_memory_files
@pytest.mark.parametrize(
    ("start", "options"),
    [("fork", {}), ("spawn", {}), ("fork", {"normalize": True}), ("fork", {"numpy": True})],
)
def test_workers_decode_what_is_read_in_place(block_path, raw_path, start, options):
    """From the batch on whose worker knows of it; nothing else, and you own it as any other."""
    dataset = OCRStoreDataset(block_path, **options)
    wanted = OCRStoreDataset(raw_path, **options)
    kept = []
    for number, batch in enumerate(batches_of_one(dataset, multiprocessing_context=start)):
        found = set(batch._refs.decoded)
        assert found <= {"tensor", "prob_map"}
        assert number < KNOWS_AT or found == {"tensor", "prob_map"}
        copy = batch.copy()
        batch["images"][:] = 3
        kept.append((number, batch["prob_maps"], copy["images"], copy["prob_maps"]))
    for number, probabilities, *others in kept:
        other = wanted[[number]]
        assert np.array_equal(np.asarray(probabilities), np.asarray(other["prob_maps"]))
        for found, name in zip(others, ("images", "prob_maps"), strict=True):
            assert type(found) is type(other[name]) and found.dtype == other[name].dtype
            assert np.array_equal(np.asarray(found), np.asarray(other[name]))


@needs_memory_files
def test_workers_decode_nothing_that_is_copied(block_path, raw_path):
    """A loop that turns to copying gets the same bytes, and soon references alone."""
    dataset, wanted = OCRStoreDataset(block_path), OCRStoreDataset(raw_path)
    loader = batches_of_one(dataset, persistent_workers=True)
    for batch in loader:
        last = set(batch._refs.decoded)
        batch["thresh_maps"]
    assert last == {"thresh_map"}
    for epoch in range(2):
        for number, batch in enumerate(loader):
            assert set(batch._refs.decoded) <= {"thresh_map"}
            assert not epoch or not batch._refs.decoded
            filled = batch.copy_into(batch.empty_buffers())
            for name, tensor in tensors(wanted[[number]]).items():
                assert name not in filled or torch.equal(filled[name], tensor), name


@needs_memory_files
def test_columns_that_are_no_longer_read_are_no_longer_decoded(block_path):
    """After a few batches that nobody read, a worker sends references again."""
    loader = batches_of_one(OCRStoreDataset(block_path), persistent_workers=True)
    for batch in loader:
        batch["prob_masks"]
    for _ in range(3):
        decoded = [set(batch._refs.decoded) for batch in loader]
    assert decoded == [set()] * SAMPLES


@needs_memory_files
def test_workers_decode_ahead_within_their_memory(block_path, raw_path, monkeypatch):
    """Batches that are kept keep their slots; where these have no room, the parent decodes."""
    dataset, wanted = OCRStoreDataset(block_path), OCRStoreDataset(raw_path)
    one_slot_each = 1.5 * wanted[[0]]["images"].nbytes
    monkeypatch.setattr(collate, "AHEAD_NBYTES", int(2 * one_slot_each))
    kept, ahead = [], 0
    for batch in batches_of_one(dataset):
        ahead += bool(batch._refs.decoded)
        kept.append(batch["images"])
    assert ahead == 2
    for number, images in enumerate(kept):
        assert torch.equal(images, wanted[[number]]["images"])


@needs_memory_files
def test_damage_that_a_worker_meets_ahead(damaged):
    """The parent raises the error when it reads the row; the other batches arrive."""
    key = ocrstore.open(damaged).keys[6]
    rows = [row for row in range(SAMPLES) if row != 6] + [6]
    batches = iter(batches_of_one(OCRStoreDataset(damaged), rows))
    for _ in rows[:-1]:
        next(batches)["images"]
    last = next(batches)
    with pytest.raises(CorruptStoreError, match=rf"{key}' \(row 6\), column 'tensor'"):
        last["images"]


@pytest.mark.parametrize("workers", [0, 2])
def test_prefetched_batches(block_path, raw_path, workers):
    """Made by the thread ahead of the loop, sequential and shuffled."""
    wanted = OCRStoreDataset(raw_path)
    for shuffle in (False, True):
        loader = PrefetchLoader(
            OCRStoreDataset(block_path), 4, shuffle=shuffle, num_workers=workers
        )
        seen = []
        for batch in loader:
            seen += batch["rows"].tolist()
            assert_same(batch, wanted[batch["rows"].tolist()])
        assert sorted(seen) == list(range(SAMPLES))


def test_the_window_sampler_reads_stored_bytes(block_path, raw_path):
    """Windows, read-ahead and warming up count what is stored, not what it decodes to."""
    packed, raw = OCRStoreDataset(block_path), OCRStoreDataset(raw_path)
    for dataset in (packed, raw):
        view = dataset.views[0]
        stored = sum(int(view.column(name).nbytes.sum()) for name in view.names)
        ranges = sum(nbytes for _, nbytes in view.ranges(np.arange(SAMPLES)))
        assert dataset.warm() == stored
        assert stored <= ranges < stored + 2**20  # gaps that are read along
        assert sorted(WindowShuffleSampler(dataset, window=1)) == list(range(SAMPLES))
    assert packed.warm() < raw.warm()


def test_transforms_of_compressed_pictures(block_path, raw_path):
    """The pictures of a transform are decoded; the samples are the same."""

    def flip(image, keypoints):
        image = np.asarray(image)
        image[:, :2] = 9  # it may write to the picture
        points = np.stack([image.shape[1] - keypoints[:, 0], keypoints[:, 1]], axis=1)
        return {"image": image[:150, 149::-1], "keypoints": points}

    found = OCRStoreDataset(block_path, transform=flip)
    wanted = OCRStoreDataset(raw_path, transform=flip)
    for row in (0, 3, 0):
        assert_same(found[row], wanted[row])


# --- damage -------------------------------------------------------------------------------------


@pytest.fixture
def damaged(block_path, tmp_path):
    """A store in which the stored bytes of row 6 are wrong in each column of a view."""
    path = tmp_path / "damaged.ocrs"
    data = bytearray(block_path.read_bytes())
    store = ocrstore.open(block_path)
    for name in ("tensor", "prob_map", "image"):
        start, nbytes = int(store[name].offsets[6]), int(store[name].nbytes[6])
        data[start : start + nbytes] = b"\xff" * nbytes
    path.write_bytes(data)
    return path


@pytest.mark.usefixtures("threads")
def test_damage_names_sample_and_column(damaged):
    """However a damaged row is read; the others are read all the same."""
    key = ocrstore.open(damaged).keys[6]
    dataset = OCRStoreDataset(damaged)
    batch = dataset[[3, 6, 7, 8]]
    reads = {
        "tensor": [
            lambda: dataset[6]["image"],
            lambda: batch["images"],
            lambda: batch.copy_into({"images": batch.empty_buffers()["images"]}),
            lambda: ocrstore.open(damaged)["tensor"][6],
            lambda: ocrstore.open(damaged)["tensor"][5:8],
            lambda: next(iter(PrefetchLoader(dataset, 8))),
        ],
        "prob_map": [lambda: batch["prob_maps"]],
        "image": [lambda: OCRStoreDataset(damaged, transform=lambda **given: given)[6]],
    }
    for column, actions in reads.items():
        for action in actions:
            with pytest.raises(
                CorruptStoreError, match=rf"{key}' \(row 6\), column '{column}'.*ocrstore verify"
            ):
                action()
    assert torch.equal(batch["thresh_maps"], dataset[[3, 6, 7, 8]]["thresh_maps"])
    assert dataset[[3, 7]]["images"].any()


def test_damage_seen_by_a_worker(damaged):
    """A transform in a worker reports it with sample and column as well."""
    dataset = OCRStoreDataset(damaged, transform=lambda **given: given)
    with pytest.raises(OCRStoreError, match=r"\(row 6\), column 'image'"):
        list(DataLoader(dataset, 1, num_workers=1))


# --- threads and forks --------------------------------------------------------------------------


@pytest.mark.usefixtures("threads")
def test_callers_in_several_threads(block_path, raw_path):
    """Batches that are decoded at the same time do not mix."""
    dataset, wanted = OCRStoreDataset(block_path), OCRStoreDataset(raw_path)
    truth = wanted[list(range(SAMPLES))]["images"].clone()
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(15):
            rows = rng.permutation(SAMPLES)[:6].tolist()
            if not torch.equal(dataset[rows]["images"], truth[rows]):
                wrong.append(seed)

    started = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # since 3.12
@pytest.mark.usefixtures("threads")
def test_a_forked_child_decodes_batches(block_path):
    """A child of a process that has decoded has threads and memory of its own."""
    dataset = OCRStoreDataset(block_path)
    kept = dataset[[1, 2, 3]]["images"].numpy()
    wanted = kept.copy()
    pid = os.fork()
    if pid == 0:  # numpy only: torch's threads do not survive a fork
        code = 1
        try:
            mine = dataset[[1, 2, 3]]["images"].numpy()
            code = 0 if np.array_equal(mine, wanted) else 2
            kept[:] = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert np.array_equal(kept, wanted)
    assert np.array_equal(dataset[[1, 2, 3]]["images"].numpy(), wanted)
