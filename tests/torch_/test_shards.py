"""Data sets of many stores: the catalog is read, shards are opened on first use."""

import gc
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import ocrstore
from ocrstore.catalog import read_catalog, write_catalog
from ocrstore.torch import OCRDataModule, OCRStoreDataset, WindowShuffleSampler, open_views
from ocrstore.torch.doctor import diagnose
from tests.sharded import shard_store
from tests.torch_.making import make_store


@pytest.fixture(scope="module")
def folder(store_path, tmp_path_factory):
    """The samples of the store of all tests in 8 shards."""
    return shard_store(store_path, tmp_path_factory.mktemp("shards") / "train", bits=3)


@pytest.fixture
def own_folder(folder, tmp_path):
    """A copy that a test may damage."""
    return Path(shutil.copytree(folder, tmp_path / "own"))


def check_equal(batch, whole, keys):
    """Compare all tensors of a batch with those of the same samples in one store."""
    expected = whole[[keys[name] for name in batch["image_filename"]]]
    for name in expected:
        if name != "rows" and isinstance(expected[name], torch.Tensor):
            assert torch.equal(batch[name], expected[name]), name
    copied = batch.copy().copy_into(expected.empty_buffers())
    assert all(torch.equal(copied[name], expected[name]) for name in copied if name != "rows")


@pytest.fixture(scope="module")
def keys(store_path):
    """The row of each key in the one store."""
    return {key: row for row, key in enumerate(ocrstore.open(store_path))}


@pytest.mark.parametrize("workers", [None, "fork", "spawn"])
def test_shards_are_read_as_one_store(folder, store_path, keys, workers):
    """Sequential and shuffled, in this process and in workers: the same tensors as of one store."""
    dataset, whole = OCRStoreDataset(folder), OCRStoreDataset(store_path)
    for shuffle in (False, True):
        loader = DataLoader(
            dataset,
            batch_size=8,
            shuffle=shuffle,
            num_workers=0 if workers is None else 1,
            multiprocessing_context=workers,
        )
        seen = []
        for batch in loader:
            check_equal(batch, whole, keys)
            seen += batch["rows"].tolist()
        assert sorted(seen) == list(range(len(keys)))


@pytest.mark.parametrize("memory", ["fresh", "copy", None])
@pytest.mark.parametrize("codec", ["raw", "lz4block"])
def test_rows_of_several_shards_in_every_memory(tmp_path, memory, codec):
    """Stored raw or compressed, mapped or copied: batches over several shards are right."""
    path = make_store(tmp_path / "all.ocrs", samples=9, codec=codec)
    dataset = OCRStoreDataset(shard_store(path, tmp_path / "train"), memory=memory)
    whole = OCRStoreDataset(path)
    rows = {key: row for row, key in enumerate(ocrstore.open(path))}
    for chosen in ([0, 8, 3, 3], list(range(9)), [8], []):
        check_equal(dataset[chosen], whole, rows) if chosen else dataset[chosen]


def test_opening_reads_the_catalog_alone(own_folder, store_path):
    """Lengths, sizes, row groups and columns are known without any shard."""
    store = ocrstore.open(store_path)
    for shard in own_folder.glob("*.ocrs"):
        shard.unlink()
    for place in (own_folder, str(own_folder), own_folder / "dataset.json"):
        dataset = OCRStoreDataset(place)
        assert len(dataset) == len(store)
    lengths = [shard.samples for shard in read_catalog(own_folder).shards]
    assert [last - first for first, last in dataset.shards] == lengths
    assert dataset.row_groups == dataset.shards
    names = dataset.views.sets[0].names
    assert dataset.nbytes == sum(int(store[name].nbytes.sum()) for name in names)
    assert len(pickle.dumps(dataset)) < 500
    assert "dataset.json" in repr(dataset)
    with pytest.raises(ocrstore.CorruptStoreError, match=r"shard 000\.ocrs .*ocrstore build"):
        dataset[0]


def test_a_shard_that_is_not_the_catalogs(own_folder, store_path):
    """Another store, a damaged one and one that grew are refused by name when they are used."""
    first, second = sorted(own_folder.glob("*.ocrs"))[:2]
    dataset = OCRStoreDataset(own_folder)
    content = first.read_bytes()
    for changed, why in (
        (store_path.read_bytes(), "expected bytes"),
        (content + bytes(4096), "expected bytes"),
        (content[: len(content) // 2], "damaged"),
        (b"no store", "not"),
    ):
        first.write_bytes(changed)
        with pytest.raises(ocrstore.CorruptStoreError, match=f"(?s)shard {first.name}.*{why}"):
            dataset[0]
    shard = next(shard for shard in read_catalog(own_folder).shards if shard.name == second.name)
    other = shard_store(store_path, own_folder.parent / "other", bits=2)
    catalog = read_catalog(own_folder)
    lying = shard._replace(fingerprint="f" * 64)
    shards = tuple(lying if one == shard else one for one in catalog.shards)
    write_catalog(type(catalog)(str(own_folder), catalog.columns, catalog.metadata, shards, {}))
    row = OCRStoreDataset(own_folder).shards[1][0]
    with pytest.raises(ocrstore.CorruptStoreError, match=f"shard {second.name}.*fingerprint"):
        OCRStoreDataset(own_folder)[row]
    assert len(OCRStoreDataset([other, first.parent / second.name])) > 0


def test_few_shards_stay_open(folder, store_path, keys, monkeypatch):
    """With room for two, eight shards are read all the same, and descriptors do not add up."""
    monkeypatch.setattr(open_views, "max_open", lambda: 2)
    dataset, whole = OCRStoreDataset(folder, columns=["tensor"]), OCRStoreDataset(store_path)
    rng = np.random.default_rng(0)
    gc.disable()  # nothing may wait for the garbage collector
    try:
        before = None
        for _ in range(20):
            batch = dataset[rng.permutation(len(dataset))[:6]]
            check_rows = [keys[name] for name in batch["image_filename"]]
            assert torch.equal(batch["images"], whole[check_rows]["images"])
            del batch
            assert len(dataset.views.sets[0].opened) == 2
            if Path("/proc/self/fd").exists():
                count = len(list(Path("/proc/self/fd").iterdir()))
                before = count if before is None else before
                assert count <= before
    finally:
        gc.enable()


def test_references_to_shards_are_small(folder):
    """A batch of several shards names the data set once."""
    dataset = OCRStoreDataset(folder)
    one, several = dataset[[0, 1]], dataset[[0, 5, 9, 15, 20, 29, 31, 36]]
    assert len(pickle.dumps(several)) < len(pickle.dumps(one)) + 200
    again = pickle.loads(pickle.dumps(several))
    assert torch.equal(again["images"], several["images"])


def test_a_data_set_that_was_built_again(own_folder):
    """Who unpickles a data set whose catalog has changed is told so."""
    dataset = OCRStoreDataset(own_folder)
    pickled = pickle.dumps(dataset)
    catalog = read_catalog(own_folder)
    write_catalog(
        type(catalog)(str(own_folder), catalog.columns, catalog.metadata, catalog.shards[1:], {})
    )
    del dataset
    open_views._open_sets.clear()
    with pytest.raises(ocrstore.StoreChangedError, match="was built again"):
        pickle.loads(pickled)


def test_a_batch_over_the_border_of_two_shards(folder):
    """It is leased as others are: what is written to it is private, and gone when it ends."""
    dataset = OCRStoreDataset(folder, columns=["tensor"])
    first = dataset.shards[2][1]
    rows = slice(first - 2, first + 2)
    before = dataset[rows]["images"].clone()
    batch = dataset[rows]
    batch["images"].fill_(7)
    assert torch.equal(dataset[rows]["images"], before)  # the rows are leased: mapped anew
    assert (batch["images"] == 7).all()
    del batch
    assert torch.equal(dataset[rows]["images"], before)


def test_transforms_on_shards(folder, store_path, keys):
    """The same pictures and polygons as of one store, in any shard."""
    A = pytest.importorskip("albumentations")
    dataset = OCRStoreDataset(folder, transform=A.HorizontalFlip(p=1))
    whole = OCRStoreDataset(store_path, transform=A.HorizontalFlip(p=1))
    for row in (0, 17, 36):
        sample = dataset[row]
        expected = whole[keys[sample["image_filename"]]]
        assert torch.equal(sample["image"], expected["image"])
        assert torch.equal(sample["prob_map"], expected["prob_map"])
        assert np.array_equal(sample["polygons"][0], expected["polygons"][0])
    assert dataset.nbytes == whole.nbytes == dataset.warm()


def test_stores_that_differ_are_told_apart_by_catalogs(own_folder, tmp_path, other_path):
    """Which differ and in what, without opening a shard; equal ones go together."""
    small = make_store(tmp_path / "small.ocrs", samples=4, sizes=(96,))
    others = shard_store(small, tmp_path / "small")
    both = OCRStoreDataset([own_folder, other_path])
    assert len(both) == 44 and both.shards[-1] == (37, 44)
    for shard in [*own_folder.glob("*.ocrs"), *others.glob("*.ocrs")]:
        shard.unlink()
    with pytest.raises(ocrstore.RecipeMismatchError) as raised:
        OCRStoreDataset([own_folder, others])
    text = str(raised.value)
    assert str(others) in text and "recipe.size: [160, 160] -> [96, 96]" in text
    assert "columns.tensor.shape" in text


def test_samplers_and_modules_take_shards(folder):
    """Window shuffling, and a share of the samples for validation."""
    dataset = OCRStoreDataset(folder)
    assert sorted(WindowShuffleSampler(dataset, window=8)) == list(range(37))
    module = OCRDataModule(train=str(folder), val=0.3, batch_size=4, num_workers=0)
    assert module.count("train") + module.count("val") == 37
    assert 0 < module.count("val") < 20


def test_the_doctor_sees_all_shards(folder):
    """Samples and bytes of the whole data set."""
    found = diagnose(folder, workers=0)
    assert found.samples == 37
    assert found.file_nbytes == sum(path.stat().st_size for path in folder.glob("*.ocrs"))
    assert found.view_nbytes == OCRStoreDataset(folder).nbytes


def test_a_folder_without_a_catalog(tmp_path):
    """It is no data set, whatever stores are in it."""
    with pytest.raises(ocrstore.NotAStoreError, match=r"there is no dataset\.json"):
        OCRStoreDataset(tmp_path)
