"""What goes wrong says what, where and what to do; a changed file is no bus error."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import ocrstore
from ocrstore.recipe import Recipe
from ocrstore.torch import OCRStoreDataset
from ocrstore.torch.open_views import _open_sets
from ocrstore.views import View, views_metadata
from tests.torch_.making import make_store


@pytest.fixture
def own_path(store_path, tmp_path):
    """A copy of the store that a test may damage."""
    return Path(shutil.copy(store_path, tmp_path / "own.ocrs"))


def test_another_recipe_shows_the_difference(store_path):
    """A view of another recipe than expected is refused, field by field."""
    good = Recipe.make(size=160)
    assert len(OCRStoreDataset(store_path, expect=good)) == 37
    assert len(OCRStoreDataset(store_path, expect=good.fingerprint)) == 37
    with pytest.raises(ocrstore.RecipeMismatchError, match=r"size.*(640|160)") as caught:
        OCRStoreDataset(store_path, expect=Recipe.make(size=640, interpolation="area"))
    assert "interpolation" in str(caught.value) and "val.ocrs" in str(caught.value)
    with pytest.raises(ocrstore.RecipeMismatchError, match="expected abc"):
        OCRStoreDataset(store_path, expect="abc")
    with pytest.raises(
        ocrstore.RecipeMismatchError, match=r"no view '320'; it has 160, 96|96, 160"
    ):
        OCRStoreDataset(store_path, view="320")
    with pytest.raises(ocrstore.UnknownColumnError, match="no column 'edge'"):
        OCRStoreDataset(store_path, columns=["edge"])


def test_an_added_view_is_expected_without_pictures(tmp_path):
    """Whole pictures are the store's, so no added view has them; a default view must."""
    both, bare = ["image", "tensor"], ["tensor"]
    default = View("16", Recipe.make(size=16, columns=both), default=True)
    added = View("8", Recipe.make(size=8, columns=bare), default=False)
    arrays = {
        "image": np.zeros((20, 20, 3), np.uint8),
        "tensor": np.zeros((16, 16, 3), np.uint8),
        "8/tensor": np.zeros((8, 8, 3), np.uint8),
    }
    columns = {name: ocrstore.Column("uint8", array.shape) for name, array in arrays.items()}
    path = tmp_path / "own.ocrs"
    with ocrstore.create(path, columns, metadata=views_metadata((default, added))) as writer:
        writer.append("a.jpg", arrays)
    for names in (both, bare):
        assert len(OCRStoreDataset(path, view=8, expect=Recipe.make(size=8, columns=names))) == 1
    with pytest.raises(ocrstore.RecipeMismatchError, match="interpolation"):
        other = Recipe.make(size=8, columns=both, interpolation="area")
        OCRStoreDataset(path, view="8", expect=other)
    assert len(OCRStoreDataset(path, view="16", expect=default.recipe)) == 1
    with pytest.raises(ocrstore.RecipeMismatchError, match="image"):
        OCRStoreDataset(path, expect=Recipe.make(size=16, columns=bare))


def test_arguments_of_other_kinds(store_path):
    """What cannot be meant is refused when the data set is made, with what was expected."""
    assert len(OCRStoreDataset(store_path, view=96)[0:2]["images"]) == 2
    with pytest.raises(ValueError, match=r"memory='bogus': expected one of leases, fresh, copy"):
        OCRStoreDataset(store_path, memory="bogus")
    with pytest.raises(TypeError, match=r"columns='tensor': expected a list of names"):
        OCRStoreDataset(store_path, columns="tensor")
    with pytest.raises(TypeError, match=r"a Recipe or its fingerprint, found dict"):
        OCRStoreDataset(store_path, expect={"size": 160})
    for paths in (None, 3, b"val.ocrs", [store_path, None], [3]):
        with pytest.raises(TypeError, match=r"is not a path: expected a path, several, or"):
            OCRStoreDataset(paths)
    for paths in ("", [str(store_path), ""], []):
        with pytest.raises(ocrstore.NotAStoreError, match="expected a path, several, or a pattern"):
            OCRStoreDataset(paths)


def test_a_store_without_views_has_no_recipe(tmp_path):
    """Plain columns work, and `expect` says that nothing made them."""
    path = tmp_path / "plain.ocrs"
    with ocrstore.create(path, {"edge": ocrstore.Column("float32", (40, 40))}) as writer:
        for row in range(5):
            writer.append(str(row), {"edge": np.full((40, 40), row, np.float32)})
    dataset = OCRStoreDataset(path)
    assert dataset[[4, 1]]["edge"][:, 0, 0].tolist() == [4, 1]
    assert dataset[0]["polygons"] == [] and dataset[0]["raw_size"].tolist() == [40, 40]
    with pytest.raises(ocrstore.RecipeMismatchError, match="has no view"):
        OCRStoreDataset(path, expect="abc")


def test_rows_that_are_not_there(store_path):
    """A wrong row is an IndexError that names the store, and negative rows count from the end."""
    dataset = OCRStoreDataset(store_path)
    for index in (37, -38, [1, 37]):
        with pytest.raises(IndexError, match=r"val.ocrs: no row .*0 to 36"):
            dataset[index]
    assert dataset[-1]["row"] == 36
    assert dataset[[-1, 0]]["rows"].tolist() == [36, 0]
    assert dataset[np.int64(3)]["row"] == 3
    assert dataset[30:]["rows"].tolist() == list(range(30, 37))


def test_masks_select_rows(store_path):
    """A mask of all rows selects those that are set; one of another length is an IndexError."""
    dataset = OCRStoreDataset(store_path)
    mask = np.arange(37) % 5 == 1
    expected = np.flatnonzero(mask).tolist()
    for given in (mask, mask.tolist(), torch.from_numpy(mask)):
        assert dataset[given]["rows"].tolist() == expected
    assert dataset[np.zeros(37, bool)]["rows"].tolist() == []
    for given in (mask[:36], [True, False]):
        with pytest.raises(IndexError, match=r"37 samples .*val.ocrs.* length (36|2): expected 37"):
            dataset[given]


def test_what_is_no_row_is_never_taken_for_one(store_path):
    """Numbers that are not whole, keys and tables of rows are TypeErrors; empty lists are not."""
    dataset = OCRStoreDataset(store_path)
    odd = [1.0, np.float32(2), torch.tensor(2.0), None, np.True_, [1.0], np.array([0.5]), ["a"]]
    for index in (*odd, [[1, 2], [3, 4]], [[1], [2, 3]], np.zeros((2, 37), bool)):
        with pytest.raises(TypeError, match=r"val.ocrs.*not a valid index"):
            dataset[index]
    with pytest.raises(TypeError, match=r"open\('.*val.ocrs'\).row\('img_001.jpg'\)"):
        dataset["img_001.jpg"]
    for indices in ([0.5, 1.5], [[0, 1]]):
        with pytest.raises(TypeError, match="expected a list of ints"):
            dataset.__getitems__(indices)
    assert dataset[[]]["rows"].tolist() == [] and dataset[()]["images"].shape[0] == 0
    assert dataset[torch.tensor(3)]["row"] == 3 and dataset[np.uint8(3)]["row"] == 3
    assert dataset[torch.tensor([3, 1])]["rows"].tolist() == [3, 1]
    assert dataset[np.array([3, 1], np.uint16)]["rows"].tolist() == [3, 1]
    assert dataset[[torch.tensor(3), torch.tensor(1)]]["rows"].tolist() == [3, 1]


def flipped(image, keypoints):
    """A transform that spawned workers can import."""
    moved = keypoints.copy()
    moved[:, 0] = image.shape[1] - 1 - moved[:, 0]
    return {"image": np.ascontiguousarray(image[:, ::-1]), "keypoints": moved}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("transform", [None, "some"])
def test_a_store_that_was_cut(own_path, workers, transform):
    """A store truncated under a running training is an error that says so."""
    options = {} if transform is None else {"transform": lambda image, keypoints: None}
    dataset = OCRStoreDataset(own_path, **options)
    batch = None if transform else dataset[0:4]
    os.truncate(own_path, 8192)
    with pytest.raises(ocrstore.StoreChangedError, match=r"own.ocrs: was truncated from"):
        for taken in DataLoader(dataset, 4, num_workers=workers):
            taken["images"]
    if batch is not None:
        with pytest.raises(ocrstore.StoreChangedError, match="was truncated"):
            batch["prob_maps"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_store_that_was_replaced(own_path, tmp_path, workers):
    """Another file in its place is an error; the old rows are never mixed with the new ones."""
    dataset = OCRStoreDataset(own_path)
    batch = dataset[0:4]
    reference = pickle.dumps(batch)
    pickled = pickle.dumps(dataset)
    images = batch["images"].clone()
    make_store(tmp_path / "new.ocrs", samples=40, seed=77)
    (tmp_path / "new.ocrs").replace(own_path)
    with pytest.raises(ocrstore.StoreChangedError, match="was replaced by another file"):
        for taken in DataLoader(dataset, 4, num_workers=workers):
            taken["images"]
    assert np.array_equal(batch["images"], images)
    _open_sets.clear()  # as a spawned worker finds it
    for data in (reference, pickled):
        with pytest.raises(ocrstore.StoreChangedError, match="was replaced"):
            pickle.loads(data)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("transform", [None, flipped])
def test_a_store_that_was_compacted(own_path, start, transform):
    """The same content in a new file, at other offsets, is no reason to stop a training."""
    with ocrstore.edit(own_path) as writer:
        writer.delete(ocrstore.open(own_path).keys[0])  # leaves a gap that compacting closes
    dataset = OCRStoreDataset(own_path, columns=["tensor", "prob_map"], transform=transform)
    store = ocrstore.open(own_path)
    pictures = [store["tensor" if transform is None else "image"][row] for row in range(36)]
    inode = own_path.stat().st_ino
    loader = DataLoader(
        dataset, None, sampler=range(35, -1, -1), num_workers=2, multiprocessing_context=start
    )
    batch, reference = dataset[0:1], pickle.dumps(dataset)
    for epoch in range(3):
        for taken in loader:
            picture = pictures[int(taken["row"])]
            picture = picture if transform is None else picture[:, ::-1]
            assert np.array_equal(taken["image"].permute(1, 2, 0), picture)
        if epoch < 2:
            ocrstore.compact(own_path)
            assert own_path.stat().st_ino != inode
    assert np.array_equal(batch["images"], dataset[0:1]["images"])
    _open_sets.clear()  # as a spawned worker finds it
    again = pickle.loads(reference)
    assert np.array_equal(again[0]["image"], batch["images"][0])
    make_store(own_path.with_name("new.ocrs"), samples=36, seed=78)
    own_path.with_name("new.ocrs").replace(own_path)
    for data in (dataset, again):
        with pytest.raises(ocrstore.StoreChangedError, match="was replaced by another file"):
            data[0]["image"].sum()


def test_a_descriptor_that_was_closed_after_a_fork(own_path):
    """A daemon closes what it inherited; the numbers of descriptors are then other files'."""
    view = OCRStoreDataset(own_path).views[0]
    truth = view.take("tensor", np.arange(3)).copy()
    child = os.fork()
    if child == 0:
        try:
            number = view._handle.fd
            os.dup2(os.open(os.devnull, os.O_RDONLY), number)
            equal = np.array_equal(view.take("tensor", np.arange(3)), truth)
            os._exit(0 if equal else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_a_store_that_was_removed_stays_readable(own_path):
    """What is open stays whole when only its name is gone."""
    dataset = OCRStoreDataset(own_path)
    truth = ocrstore.open(own_path)["tensor"][3].copy()
    dataset[0]["image"]
    own_path.unlink()
    assert np.array_equal(dataset[3]["image"].permute(1, 2, 0), truth)


def test_an_appended_store_goes_on_with_what_it_opened(own_path):
    """More samples in the file change nothing for a data set that is open."""
    dataset = OCRStoreDataset(own_path)
    store = ocrstore.open(own_path)
    row = {name: store[name][0] for name in store.columns}
    with ocrstore.edit(own_path) as writer:
        writer.append("more.jpg", row, attributes=store.attributes(0))
    assert len(dataset) == 37
    assert sum(len(b["images"]) for b in DataLoader(dataset, 8, num_workers=1)) == 37
    assert len(OCRStoreDataset(own_path)) == 38


def _overwrite(path, data, *, offset=0):
    """Write into a file in place, and make sure that its times differ from before."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
    os.utime(path, ns=(10**18, 10**18))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("transform", [None, "some"])
def test_a_store_that_was_overwritten(own_path, tmp_path, workers, transform):
    """Another store written into the same file is an error; its rows are never given out."""
    options = {} if transform is None else {"transform": lambda image, keypoints: None}
    dataset = OCRStoreDataset(own_path, **options)
    batch = None if transform else dataset[0:4]
    other = make_store(tmp_path / "new.ocrs", samples=40, seed=77, sizes=(160, 96))
    assert other.stat().st_size >= own_path.stat().st_size
    inode = own_path.stat().st_ino
    shutil.copyfile(other, own_path)
    os.utime(own_path, ns=(10**18, 10**18))
    assert own_path.stat().st_ino == inode
    message = r"own.ocrs: was overwritten .*generation 1 .* by renaming"
    for _ in range(2):
        with pytest.raises(ocrstore.StoreChangedError, match=message):
            for taken in DataLoader(dataset, 4, num_workers=workers):
                taken["images"]
    if batch is not None:
        with pytest.raises(ocrstore.StoreChangedError, match=message):
            batch["prob_maps"]
    assert len(OCRStoreDataset(own_path)[0:40]["images"]) == 40


def test_a_store_that_is_being_overwritten(own_path, tmp_path):
    """A file of which only the beginning was written over is noticed, and so is its end."""
    other = make_store(tmp_path / "new.ocrs", samples=40, seed=77, sizes=(160, 96))
    before = own_path.read_bytes()
    for offset, data in (
        (0, other.read_bytes()[: 1 << 16]),
        (len(before) // 2, bytes(len(before) - len(before) // 2)),
    ):
        dataset = OCRStoreDataset(own_path)
        _overwrite(own_path, data, offset=offset)
        with pytest.raises(ocrstore.StoreChangedError, match=r"own.ocrs: was overwritten"):
            dataset[1:3]["images"]
        own_path.write_bytes(before)


def test_an_equal_store_written_over_is_opened_anew(tmp_path, monkeypatch):
    """Equal samples from a later build: who had it open is reported, a new data set reads it."""
    first = OCRStoreDataset(make_store(tmp_path / "val.ocrs", samples=5))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    later = make_store(tmp_path / "later.ocrs", samples=5)
    _overwrite(tmp_path / "val.ocrs", later.read_bytes())
    second = OCRStoreDataset(tmp_path / "val.ocrs")
    assert second.views[0].ref == first.views[0].ref
    assert len(second[0:5]["images"]) == 5
    with pytest.raises(ocrstore.StoreChangedError, match="was overwritten"):
        first[0:5]["images"]


def test_a_store_that_was_only_touched(own_path):
    """Other times, or the same bytes again, change nothing; the file is looked at once."""
    dataset = OCRStoreDataset(own_path)
    view = dataset.views[0]
    _overwrite(own_path, own_path.read_bytes())
    truth = ocrstore.open(own_path)["tensor"][3]
    assert np.array_equal(dataset[3]["image"].permute(1, 2, 0), truth)
    view._check_content = None  # would fail if it was called once more
    assert len(dataset[0:9]["images"]) == 9


def test_a_store_that_is_changed_by_its_writers(own_path):
    """Added columns, deleted and replaced samples leave an open data set as it was."""
    dataset = OCRStoreDataset(own_path)
    store = ocrstore.open(own_path)
    truth = np.stack(list(store["tensor"]))
    row = {name: store[name][0] for name in store.columns} | {"edge": np.zeros((8, 8), "float32")}
    for change in range(3):
        if change == 0:
            edges = [np.full((8, 8), number, np.float32) for number in range(37)]
            ocrstore.add_column(own_path, "edge", ocrstore.Column("float32", (8, 8)), edges)
        else:
            with ocrstore.edit(own_path) as writer:
                if change == 1:
                    writer.delete(store.keys[5])
                else:
                    writer.replace(store.keys[0], row, attributes=store.attributes(0))
                assert len(dataset[0:2]["images"]) == 2
        os.utime(own_path, ns=(change, change))
        for taken in DataLoader(dataset, 10, num_workers=change % 2):
            assert np.array_equal(taken["images"].permute(0, 2, 3, 1), truth[taken["rows"]])
