"""What goes wrong says what, where and what to do; a changed file is no bus error."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from making import make_store
from torch.utils.data import DataLoader

import ocrstore
from ocrstore.recipe import Recipe
from ocrstore.torch import OCRStoreDataset
from ocrstore.torch.view import _open_views


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


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("transform", [None, "some"])
def test_a_store_that_was_cut(own_path, workers, transform):
    """A store truncated under a running training is an error that says so."""
    options = {} if transform is None else {"transform": lambda image, keypoints: None}
    dataset = OCRStoreDataset(own_path, **options)
    batch = None if transform else dataset[0:4]
    os.truncate(own_path, 8192)
    with pytest.raises(ocrstore.StoreChangedError, match=r"own.ocrs: was cut from"):
        for taken in DataLoader(dataset, 4, num_workers=workers):
            taken["images"]
    if batch is not None:
        with pytest.raises(ocrstore.StoreChangedError, match="was cut"):
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
    with pytest.raises(ocrstore.StoreChangedError, match="another file took its place"):
        for taken in DataLoader(dataset, 4, num_workers=workers):
            taken["images"]
    assert np.array_equal(batch["images"], images)
    _open_views.clear()  # as a spawned worker finds it
    for data in (reference, pickled):
        with pytest.raises(ocrstore.StoreChangedError, match="was replaced"):
            pickle.loads(data)


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
    with ocrstore.append(own_path) as writer:
        writer.append("more.jpg", row, attributes=store.attributes(0))
    assert len(dataset) == 37
    assert sum(len(b["images"]) for b in DataLoader(dataset, 8, num_workers=1)) == 37
    assert len(OCRStoreDataset(own_path)) == 38
