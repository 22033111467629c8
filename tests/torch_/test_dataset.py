"""A stock DataLoader on stores: every way of starting, sampling and wrapping it."""

import copy
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
    random_split,
)

import ocrstore
from ocrstore.maps import MapParams
from ocrstore.recipe import Recipe
from ocrstore.torch import Batch, OCRStoreDataset, Sample
from ocrstore.torch.memory.page_cache import cached_pages, is_cached
from ocrstore.torch.open_views import _open_sets
from tests.torch_.making import make_store
from tests.waiting import once_in

# torch warns where workers outnumber cores: some tests are about just that
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
NAMES = ("tensor", "prob_map", "thresh_map", "prob_mask", "thresh_mask")


def check_batch(batch, store, rows=None):
    """Hold a batch against the stored arrays, tensor for tensor."""
    found = batch["rows"].tolist()
    if rows is not None:
        assert found == list(rows)
    tensors = {
        "images": ("tensor", lambda a: a.transpose(0, 3, 1, 2)),
        "prob_maps": ("prob_map", lambda a: a[:, None]),
        "thresh_maps": ("thresh_map", lambda a: a[:, None]),
        "prob_masks": ("prob_mask", lambda a: a[:, None]),
        "thresh_masks": ("thresh_mask", lambda a: a[:, None]),
        "inverse_matrix": ("inverse_matrix", lambda a: a),
    }
    for name, (column, turn) in tensors.items():
        expected = turn(np.stack([store[column][row] for row in found]))
        assert np.array_equal(batch[name].numpy(), expected), name
    assert batch["image_filename"] == [store.keys[row] for row in found]
    return found


@pytest.fixture(scope="module")
def store(store_path):
    """The store itself."""
    return ocrstore.open(store_path)


@pytest.fixture
def dataset(store_path):
    """The store as a data set."""
    return OCRStoreDataset(store_path)


@pytest.mark.parametrize("workers", [0, 1, 2, 8])
@pytest.mark.parametrize("shuffle", [False, True])
def test_any_number_of_workers_and_any_order(dataset, store, workers, shuffle):
    """Every sample comes once per epoch and is what the store holds."""
    loader = DataLoader(
        dataset,
        batch_size=8,
        num_workers=workers,
        shuffle=shuffle,
        persistent_workers=workers == 2,
    )
    for _ in range(2):
        seen = []
        for batch in loader:
            assert isinstance(batch, Batch)
            seen += check_batch(batch, store)
            batch["images"].zero_()
        assert len(batch["images"]) == 37 % 8
        assert sorted(seen) == list(range(37))
        assert shuffle or seen == list(range(37))


class Doubling(Dataset):
    """A user's own wrapper that changes what it takes."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, row):
        sample = self.inner[row]
        sample["image"] //= 2
        sample["prob_mask"] = torch.ones(3)
        return sample, row


def test_spawned_workers(store_path, other_path, store):
    """Spawned workers open the stores anew, several of them, and send references."""
    other = OCRStoreDataset(other_path)
    whole = ConcatDataset([OCRStoreDataset(store_path, columns=NAMES), other])
    loader = DataLoader(whole, batch_size=5, num_workers=1, multiprocessing_context="spawn")
    seen = [name for batch in loader for name in batch["image_filename"]]
    assert seen == [*store.keys, *other.views[0].store.keys]


def test_workers_of_a_fork_server(store_path, store):
    """Served workers compute, too: a wrapper that changes samples, inside a tuple."""
    dataset = Subset(Doubling(OCRStoreDataset(store_path)), [3, 9])
    loader = DataLoader(dataset, 2, num_workers=1, multiprocessing_context="forkserver")
    batch = next(iter(loader))
    assert np.array_equal(batch[0]["images"][1].permute(1, 2, 0), store["tensor"][9] // 2)
    assert batch[0]["prob_masks"].shape == (2, 3)
    assert batch[1].tolist() == [3, 9]


def test_subset_and_random_split(dataset, store):
    """Wrappers that pass lists of rows on keep batches by reference."""
    subset = Subset(dataset, [30, 2, 17, 5])
    for workers in (0, 1):
        batch = next(iter(DataLoader(subset, batch_size=4, num_workers=workers)))
        check_batch(batch, store, [30, 2, 17, 5])
    parts = random_split(dataset, [30, 7], generator=torch.Generator().manual_seed(1))
    seen = [
        row for part in parts for batch in DataLoader(part, 8) for row in batch["rows"].tolist()
    ]
    assert sorted(seen) == list(range(37))


@pytest.mark.parametrize("workers", [0, 1])
def test_concatenated_stores(dataset, other_path, workers):
    """A batch may hold rows of several stores, by ConcatDataset or by a list of paths."""
    other = OCRStoreDataset(other_path)
    first, second = dataset.views[0].store, other.views[0].store
    several = OCRStoreDataset([dataset.views[0].path, other_path])
    assert len(several) == 44
    for whole in (ConcatDataset([dataset, other]), several):
        loader = DataLoader(whole, batch_size=4, num_workers=workers, sampler=[36, 0, 39, 3, 43])
        batch = next(iter(loader))
        expected = [
            first["tensor"][36],
            first["tensor"][0],
            second["tensor"][2],
            first["tensor"][3],
        ]
        assert np.array_equal(batch["images"].permute(0, 2, 3, 1), np.stack(expected))
        assert batch["image_filename"][2] == second.keys[2]
        batch["images"].zero_()
    assert several[-1]["image_filename"] == second.keys[6]
    assert batch["rows"].tolist() == [36, 0, 39, 3]


def test_patterns_name_stores(tmp_path, store_path, other_path):
    """A glob opens the stores it matches in sorted order; one that matches nothing says so."""
    for name, path in (("b.ocrs", store_path), ("a.ocrs", other_path)):
        (tmp_path / name).symlink_to(path)
    dataset = OCRStoreDataset(str(tmp_path / "*.ocrs"))
    assert [Path(view.path).name for view in dataset.views] == ["a.ocrs", "b.ocrs"]
    with pytest.raises(ocrstore.NotAStoreError, match="matches this pattern"):
        OCRStoreDataset(str(tmp_path / "*.none"))
    with pytest.raises(ocrstore.NotAStoreError, match="no store was given"):
        OCRStoreDataset([])


def small_store(path, *, size=32, codec="raw", dtype="float16", whole=True, extra=(), **maps):
    """Write two samples of one view: a picture and a map, and whole pictures if asked for."""
    recipe = Recipe.make(size=size, maps=MapParams(**maps))
    columns = {
        "tensor": ocrstore.Column("uint8", (*recipe.size, 3), codec=codec),
        "prob_map": ocrstore.Column(dtype, recipe.size),
    }
    record = {
        "recipe": recipe.to_json(),
        "fingerprint": recipe.fingerprint,
        "columns": {name: name for name in columns},
    }
    if whole:
        columns["image"] = ocrstore.Column("uint8", (None, None, 3))
    columns |= {name: ocrstore.Column("uint8", (4,)) for name in extra}
    record["columns"] |= {name: name for name in extra}
    metadata = {"views": {"v": record}, "default_view": "v"}
    with ocrstore.create(path, columns=columns, metadata=metadata) as writer:
        for number in range(2):
            arrays = {
                name: np.zeros([side or 9 for side in column.shape], column.dtype)
                for name, column in columns.items()
            }
            writer.append(f"{number}.jpg", arrays)
    return path


@pytest.mark.parametrize("how", ["list", "pattern"])
@pytest.mark.parametrize(
    ("options", "differs"),
    [
        ({"size": 48}, ["recipe.size: [32, 32] -> [48, 48]"]),
        ({"shrink_ratio": 0.5}, ["recipe.maps.shrink_ratio: 0.4 -> 0.5"]),
        ({"dtype": "float32"}, ['columns.prob_map.dtype: "float16" -> "float32"']),
        ({"extra": ["edge"]}, ["columns.edge"]),
    ],
    ids=["size", "maps", "dtype", "column"],
)
def test_stores_that_differ_are_not_mixed(tmp_path, how, options, differs):
    """Other recipes, dtypes or columns in one data set are an error that lists them by store."""
    first, same = small_store(tmp_path / "a.ocrs"), small_store(tmp_path / "b.ocrs")
    other = small_store(tmp_path / "c.ocrs", **options)
    paths = [first, same, other] if how == "list" else str(tmp_path / "?.ocrs")
    with pytest.raises(ocrstore.RecipeMismatchError, match=r"(?s)a\.ocrs.*c\.ocrs") as caught:
        OCRStoreDataset(paths)
    message = str(caught.value)
    assert "b.ocrs" not in message and "ConcatDataset" in message
    for line in differs:
        assert line in message
    assert len(OCRStoreDataset([first, same])) == 4
    assert len(ConcatDataset([OCRStoreDataset(first), OCRStoreDataset(other)])) == 4


def test_what_does_not_matter_may_differ(tmp_path):
    """Codecs, whole pictures beside a view, and what a transform does not look at."""
    first = small_store(tmp_path / "a.ocrs")
    coded = small_store(tmp_path / "b.ocrs", codec="zstd")
    bare = small_store(tmp_path / "c.ocrs", whole=False)
    large = small_store(tmp_path / "d.ocrs", size=48)
    shrunk = small_store(tmp_path / "e.ocrs", shrink_ratio=0.5)
    assert len(OCRStoreDataset([first, coded, bare])) == 6
    assert len(OCRStoreDataset([first, large, shrunk], columns=["image"])) == 6

    def same(image, keypoints):
        return {"image": image, "keypoints": keypoints}

    assert len(OCRStoreDataset([first, large], transform=same)) == 4
    for others, line in (([shrunk], "recipe.maps"), ([bare], "columns.image: true -> false")):
        with pytest.raises(ocrstore.RecipeMismatchError, match=line):
            OCRStoreDataset([first, *others], transform=same)
    assert len(OCRStoreDataset([first, shrunk], transform=same, map_params=MapParams())) == 4


def test_samplers_of_torch(dataset, store):
    """Weighted, distributed and batch samplers, drop_last, and batches without collation."""
    weighted = WeightedRandomSampler([1.0] * 37, 20, generator=torch.Generator().manual_seed(2))
    for batch in DataLoader(dataset, 8, sampler=weighted, num_workers=1):
        check_batch(batch, store)
    halves = [DistributedSampler(dataset, 2, rank, shuffle=False) for rank in range(2)]
    seen = [
        row
        for half in halves
        for b in DataLoader(dataset, 6, sampler=half)
        for row in b["rows"].tolist()
    ]
    assert set(seen) == set(range(37))
    assert len(DataLoader(dataset, 8, drop_last=True)) == 4
    assert all(len(b["images"]) == 8 for b in DataLoader(dataset, 8, drop_last=True, num_workers=1))
    by_batch = BatchSampler(SequentialSampler(dataset), 10, drop_last=False)
    for options in ({"batch_sampler": by_batch}, {"sampler": by_batch, "batch_size": None}):
        for workers in (0, 1):
            batches = list(DataLoader(dataset, num_workers=workers, **options))
            assert [row for b in batches for row in check_batch(b, store)] == list(range(37))
            assert all(isinstance(b, Batch) for b in batches)


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_without_batches(dataset, store, workers):
    """batch_size=None gives samples, by reference from a worker, as dict-like records."""
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, sampler=[4, 31])
    samples = list(loader)
    assert all(isinstance(sample, Sample) for sample in samples)
    for row, sample in zip((4, 31), samples, strict=True):
        assert sample["row"] == row
        assert np.array_equal(sample["image"].permute(1, 2, 0), store["tensor"][row])
        assert sample["prob_map"].shape == (1, 160, 160)
        assert sample["inverse_matrix"].shape == (3, 3)
        assert {"image", "prob_map", "polygons", "texts", "row", "raw_size"} <= set(sample)
        assert dict(sample).keys() == set(sample.keys())
        assert sample.get("nothing", 3) == 3 and "nothing" not in sample
        assert sample["raw_size"].tolist() == [
            store.attributes(row)["width"],
            store.attributes(row)["height"],
        ]


def test_a_batch_pickles_to_a_few_hundred_bytes(dataset, store):
    """What crosses the process border is a reference; what was taken or set is sent as it is."""
    batch = dataset[list(range(16))]
    data = pickle.dumps(batch)
    assert len(data) < 500
    check_batch(pickle.loads(data), store, range(16))
    assert len(pickle.dumps(dataset[5])) < 500
    batch["prob_maps"].zero_()
    batch["note"] = "mine"
    again = pickle.loads(pickle.dumps(batch))
    assert not again["prob_maps"].any() and again["note"] == "mine"
    check = copy.copy(dataset[[3, 1]])
    check_batch(check, store, [3, 1])
    assert len(pickle.dumps(dataset)) < 600


def test_a_reference_is_resolved_where_no_data_set_is_open(store_path, store):
    """A pickled batch opens its store by itself when it must."""
    data = pickle.dumps(OCRStoreDataset(store_path, columns=["tensor"])[2:4])
    _open_sets.clear()
    batch = pickle.loads(data)
    assert np.array_equal(batch["images"].permute(0, 2, 3, 1), store["tensor"][2:4])
    assert "prob_maps" not in batch
    with pytest.raises(ocrstore.UnknownColumnError, match="it has images"):
        batch["prob_maps"]


def test_batches_of_stored_columns_use_no_shared_memory(dataset, shared_files):
    """Neither /dev/shm nor a memory file is mapped while batches of a worker are held."""
    held = []
    for batch in DataLoader(dataset, batch_size=8, num_workers=2):
        batch["images"].sum()
        held.append(batch)
    assert not shared_files()


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="needs posix_fadvise")
def test_the_worker_brings_pages_in_before_it_sends(store_path, tmp_path):
    """A batch's rows are in the page cache when it arrives, though nobody read them here."""
    path = Path(shutil.copy(store_path, tmp_path / "cold.ocrs"))
    with path.open("rb+") as file:
        os.fsync(file.fileno())  # pages that must still be written, or are mapped, are not evicted
    dataset = OCRStoreDataset(path, columns=["tensor", "prob_map"])
    view = dataset.views[0]
    handle = view.open_file()
    ranges = view.ranges(np.array([20, 21, 33]))
    if cached_pages(handle.fd, *ranges[0]) is None:
        pytest.skip("nobody tells what is cached here")
    loader = DataLoader(Subset(dataset, [20, 21, 33]), batch_size=3, num_workers=1)

    def evict():
        os.posix_fadvise(handle.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return not all(is_cached(handle.fd, *part) for part in ranges)

    def take():
        evict()
        batch = next(iter(loader))
        assert batch["rows"].tolist() == [20, 21, 33]
        return all(is_cached(handle.fd, *part) for part in ranges)

    assert once_in(5, take)
    if not once_in(5, evict):
        pytest.skip("this file system does not evict on demand")


def test_the_main_process_reads_before_and_after_workers_start(dataset, store):
    """One data set object serves the main process and its workers, and so does a second one."""
    before = dataset[0:4]
    before["images"].fill_(7)
    second = OCRStoreDataset(dataset.views[0].path)
    assert second.views[0] is dataset.views[0]
    for batch in DataLoader(dataset, batch_size=8, num_workers=1):
        check_batch(batch, store)
        again = second[batch["rows"].tolist()]
        check_batch(again, store)
    assert (before["images"] == 7).all()
    del before
    check_batch(dataset[0:4], store)


def test_nothing_needs_a_sampler_of_ours(dataset, store):
    """RandomSampler with replacement repeats rows inside a batch; each copy is its own."""
    sampler = RandomSampler(
        dataset, replacement=True, num_samples=64, generator=torch.Generator().manual_seed(3)
    )
    for batch in DataLoader(dataset, 32, sampler=sampler):
        rows = check_batch(batch, store)
        twice = next(row for row in rows if rows.count(row) > 1)
        first, second = [i for i, row in enumerate(rows) if row == twice][:2]
        batch["images"][first] = 0
        assert np.array_equal(batch["images"][second].permute(1, 2, 0), store["tensor"][twice])


def test_views_and_columns_are_chosen(store_path, store):
    """Another view, some columns, whole pictures beside a view."""
    small = OCRStoreDataset(store_path, view="96", columns=["tensor", "prob_map"])
    batch = small[0:3]
    assert batch["images"].shape == (3, 3, 96, 96)
    assert np.array_equal(batch["images"].permute(0, 2, 3, 1), store["96/tensor"][0:3])
    assert list(batch)[:2] == ["images", "prob_maps"]
    both = OCRStoreDataset(store_path, columns=["tensor", "image"])[0:3]
    assert both["images"].shape == (3, 3, 160, 160)
    assert [p.shape[1:] for p in both["whole_images"]] == [
        store["image"][i].shape[:2] for i in range(3)
    ]
    whole = OCRStoreDataset(store_path, columns=["image"])
    assert np.array_equal(whole[5]["image"].permute(1, 2, 0), store["image"][5])
    for batch in DataLoader(whole, 4, num_workers=1):
        assert isinstance(batch["images"], list) and batch["images"][0].shape[0] == 3


def test_annotations_for_evaluators(dataset, store):
    """`anns` has upright polygons by file name; a batch has them where its pictures show them."""
    assert list(dataset.anns) == list(store.keys)
    record = store.attributes(3)
    assert np.allclose(
        dataset.anns[store.keys[3]][0].reshape(-1), np.array(record["polygons"][0], np.float32)
    )
    assert dataset.annotations[store.keys[3]].ignored == record["ignored"]
    batch = dataset[[3, 8]]
    matrix = batch["inverse_matrix"][0].numpy()
    points = np.concatenate([batch["polygons"][0][0], np.ones((4, 1), np.float32)], axis=1)
    back = points @ matrix.T
    assert np.allclose(back[:, :2] / back[:, 2:], dataset.anns[store.keys[3]][0], atol=1e-2)
    assert batch["texts"][0] == record["texts"] and batch["ignored"][0] == record["ignored"]
    assert batch["source_orientation"].tolist() == [6, 1]
    assert batch["orientation"].tolist() == [1, 1]  # of the pixels that are handed out
    assert dataset[3]["source_orientation"] == 6 and dataset[3]["orientation"] == 1


def test_a_batch_behaves_as_a_mapping(dataset):
    """Training code that indexes a dict works unchanged."""
    from collections.abc import Mapping

    batch = dataset[0:4]
    assert isinstance(batch, Mapping)
    assert set(batch.keys()) == set(dict(batch)) == set(batch.as_dict())
    assert batch.as_dict()["images"] is batch["images"]
    assert len(list(batch.items())) == len(batch) == len(list(batch.values()))
    assert batch.batch_size == 4
    moved = batch.to(torch.device("cpu"), non_blocking=True)
    assert isinstance(moved, Batch) and torch.equal(moved["images"], batch["images"])
    doubled = batch.to(torch.float64)
    assert doubled["images"].dtype == torch.float64 and doubled["texts"] == batch["texts"]
    assert repr(batch).startswith("Batch of 4\n  images ")
    assert batch["images"].stride()[1:] == (1, 480, 3)  # channels last


def test_names_of_a_batch_can_be_removed_and_set(dataset):
    """What training code does with a dict: pop, update, setdefault, copy, del."""
    for record in (dataset[1:4], Batch(dataset[1:4].as_dict()), dataset[2]):
        names = set(record)
        other = record.copy()
        polygons = record.pop("polygons")
        assert len(polygons) and "polygons" not in record and len(record) == len(names) - 1
        for removed in (record, pickle.loads(pickle.dumps(record)), record.to("cpu")):
            assert set(removed) == names - {"polygons"} == set(removed.as_dict())
            with pytest.raises(
                KeyError, match=r"no 'polygons' in this (batch|sample); it has .*text"
            ):
                removed["polygons"]
            with pytest.raises(KeyError, match="no 'polygons'"):
                del removed["polygons"]
        with pytest.raises(KeyError, match="no 'polygons'"):
            record.pop("polygons")
        assert record.pop("polygons", None) is None and record.get("polygons") is None
        del record["texts"]
        record.update({"texts": 1}, more=2)
        assert record["texts"] == 1 and record.setdefault("more", 3) == 2
        assert record.setdefault("polygons", 4) == 4 == record["polygons"]
        assert record.pop("more") == 2 and "more" not in record and "texts" in record
        assert set(other) == names and len(other["polygons"]) == len(polygons)
    batch = dataset[1:4]
    batch.pop("images")
    assert "images" not in batch.pin_memory() and "images" not in batch.layouts()
    with pytest.raises(KeyError, match="no 'images'"):
        batch.copy_into({"images": torch.empty(3)})


def test_stores_of_several_sizes(dataset, tmp_path, monkeypatch):
    """Their pictures are lists of tensors that are moved and pinned as tensors are."""
    small = make_store(tmp_path / "small.ocrs", samples=3, sizes=(96,))
    both = [OCRStoreDataset(path, columns=["tensor"]) for path in (dataset.views[0].path, small)]

    def mixed():
        return next(iter(DataLoader(ConcatDataset(both), 2, sampler=[0, 38])))

    moved = mixed().to("meta")
    assert [image.device.type for image in moved["images"]] == ["meta", "meta"]
    assert [tuple(image.shape[1:]) for image in moved["images"]] == [(160, 160), (96, 96)]
    assert moved["polygons"] and moved["rows"].device.type == "cpu"  # what describes samples stays
    with pytest.raises(TypeError, match="'images' is a list, not a tensor"):
        mixed().copy_into({"images": torch.empty(2, 3, 160, 160, dtype=torch.uint8)})
    monkeypatch.setattr("ocrstore.torch.batch._has_accelerator", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    images = mixed()["images"]
    for pinned in (mixed().pin_memory(), Batch({"images": images}).pin_memory()):
        assert all(map(torch.equal, pinned["images"], [image + 1 for image in images]))


def test_copy_into_buffers(dataset, store, other_path):
    """Rows are copied into buffers of any layout and type; the last batch fills a part."""
    batch = dataset[[5, 3, 4]]
    buffers = dataset[0:4].empty_buffers()
    filled = batch.copy_into(buffers)
    assert filled["images"].data_ptr() == buffers["images"].data_ptr()
    assert not batch._taken  # nothing was mapped or made for it
    check_batch(Batch({**dict(batch), **filled}), store, [5, 3, 4])
    wide = torch.empty(3, 3, 160, 160, dtype=torch.float32)
    dataset[[5, 3, 4]].copy_into({"images": wide})
    assert np.array_equal(wide.permute(0, 2, 3, 1), store["tensor"][[5, 3, 4]])
    planar = torch.empty(3, 3, 160, 160, dtype=torch.uint8)
    dataset[[5, 3, 4]].copy_into({"images": planar})
    assert torch.equal(planar.float(), wide)
    changed = dataset[[5, 3, 4]]
    changed["images"].fill_(9)
    assert (changed.copy_into({"images": planar})["images"] == 9).all()
    with pytest.raises(ValueError, match="the buffer for 'images'"):
        dataset[0:3].copy_into({"images": torch.empty(3, 3, 96, 96, dtype=torch.uint8)})
    with pytest.raises(TypeError, match="not a tensor"):
        dataset[0:3].copy_into({"texts": planar})
    several = OCRStoreDataset([dataset.views[0].path, other_path])[[40, 1, 38]]
    several.copy_into({"images": planar})
    assert torch.equal(planar, several["images"])


def test_pin_memory_copies_once(dataset, store, monkeypatch):
    """Pinning gathers straight from the file; without an accelerator it is an ordinary copy."""
    batch = dataset[[7, 2]]
    pinned = batch.pin_memory()
    assert isinstance(pinned, Batch) and not batch._taken.keys() & {"images", "prob_maps"}
    check_batch(pinned, store, [7, 2])
    assert pinned["images"].stride()[1:] == (1, 480, 3)
    empty = torch.empty
    asked = []

    def recording(*args, pin_memory=False, **kwargs):
        asked.append(pin_memory)
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", recording)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_batch(dataset[[1, 2]].pin_memory(), store, [1, 2])
    assert any(asked)
    monkeypatch.undo()
    sample = dataset[4]
    assert sample.pin_memory() is sample
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
    assert np.array_equal(sample.pin_memory()["image"].permute(1, 2, 0), store["tensor"][4])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_of_ones_own(dataset, store, other_path, workers):
    """It sees a sequence of samples, each the right one."""
    several = OCRStoreDataset([dataset.views[0].path, other_path])
    for source, rows in ((dataset, [5, 9, 2]), (several, [5, 40, 2])):
        loader = DataLoader(source, 3, sampler=rows, num_workers=workers, collate_fn=list)
        samples = next(iter(loader))
        assert [sample["row"] for sample in samples] == rows
        assert np.array_equal(samples[0]["image"].permute(1, 2, 0), store["tensor"][5])
        if source is several:
            assert samples[1]["image_filename"] == "other_003.jpg"
    assert dataset[[]]["images"].shape == (0, 3, 160, 160)
    dataset[[]]._refs.load()
