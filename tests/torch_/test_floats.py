"""Batches for code that normalises nowhere, takes no tensors, or expects further keys."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import ocrstore
from ocrstore.errors import SchemaError
from ocrstore.torch import OCRStoreDataset, PrefetchLoader
from ocrstore.torch.annotations import ON_ACCESS
from ocrstore.torch.memory import float_rows
from tests.building.test_frames import EITHER, Words

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
MAPS = ("prob_maps", "thresh_maps", "prob_masks", "thresh_masks")


def assert_normalised(batch, plain):
    """Compare a batch with what torch makes of the stored one."""
    images = torch.as_tensor(batch["images"])
    assert images.dtype == torch.float32 and images.shape == plain["images"].shape
    assert torch.allclose(images, (plain["images"].float() / 255 - MEAN) / STD, atol=2e-6)
    for name in MAPS:
        values = torch.as_tensor(batch[name])
        assert values.dtype == torch.float32 and torch.equal(values, plain[name].float())


@pytest.mark.parametrize("workers", [0, 2])
def test_normalised_batches(store_path, workers):
    """Float32 pictures and maps from a stock DataLoader and from a prefetching one."""
    plain = OCRStoreDataset(store_path)
    dataset = OCRStoreDataset(store_path, normalize=True)
    for kind in (DataLoader, PrefetchLoader):
        loader = kind(dataset, batch_size=5, num_workers=workers)
        for number, batch in enumerate(loader):
            assert_normalised(batch, plain[number * 5 : number * 5 + 5])
    assert len(pickle.dumps(dataset[0:16])) < 500


def test_every_way_to_a_normalised_picture(store_path):
    """Samples, shuffled rows, buffers and several stores."""
    plain = OCRStoreDataset(store_path)
    dataset = OCRStoreDataset(store_path, normalize=True)
    sample = dataset[3]
    assert torch.equal(sample["image"], dataset[3:4]["images"][0])
    assert_normalised(dataset[[5, 1, 3]], plain[[5, 1, 3]])
    batch = dataset[0:4]
    buffers = batch.empty_buffers()
    assert buffers["images"].dtype == torch.float32
    assert_normalised(batch.copy_into(buffers), plain[0:4])
    several = OCRStoreDataset([store_path, store_path], normalize=True)
    assert torch.equal(several[len(dataset) + 2]["image"], dataset[2]["image"])


def test_memory_is_used_again(store_path):
    """A batch that is gone leaves its memory to the next one, and only then."""
    dataset = OCRStoreDataset(store_path, normalize=True)
    first = dataset[0:4]["images"]
    kept, address = first.clone(), first.data_ptr()
    second = dataset[4:8]["images"]
    assert second.data_ptr() != address and torch.equal(first, kept)
    first.zero_()
    assert float(second.abs().sum()) > 0
    del first
    assert dataset[0:4]["images"].data_ptr() == address


def test_pictures_of_any_size():
    """Tiles end anywhere; the channels stay where they are."""
    rng = np.random.default_rng(0)
    for shape in ((1, 1, 3), (129, 127, 3), (200, 300, 3)):
        picture = rng.integers(0, 256, shape, np.uint8)
        out = np.full(shape, np.nan, np.float32)
        float_rows.write_normalized([picture], [out], mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
        expected = (picture / 255 - np.array([0.1, 0.2, 0.3])) / np.array([0.5, 1.0, 2.0])
        assert np.allclose(out, expected, atol=2e-6)


@pytest.mark.parametrize("workers", [0, 2])
def test_arrays_in_place_of_tensors(store_path, workers):
    """No value of a batch or a sample is a tensor; values are the same."""
    plain = OCRStoreDataset(store_path)
    dataset = OCRStoreDataset(store_path, numpy=True)
    (batch,) = DataLoader(dataset, batch_size=len(dataset), num_workers=workers)
    whole = plain[:]
    for name in whole:
        if isinstance(whole[name], torch.Tensor):
            assert isinstance(batch[name], np.ndarray)
            assert np.array_equal(batch[name], whole[name].numpy())
    assert isinstance(dataset[0]["image"], np.ndarray)
    assert not any(isinstance(value, torch.Tensor) for value in dataset[0].values())
    assert isinstance(batch.pin_memory()["images"], np.ndarray)


@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_transform(store_path, workers):
    """A transform's batches are normalised, are arrays if asked for, and have all keys."""

    def twice(image, keypoints):
        return {"image": np.ascontiguousarray(image[:96, :96]), "keypoints": keypoints}

    plain = OCRStoreDataset(store_path, transform=twice)[0:4]
    dataset = OCRStoreDataset(store_path, transform=twice, normalize=True)
    loader = DataLoader(dataset, batch_size=4, num_workers=workers, multiprocessing_context=None)
    batch = next(iter(loader))
    images = (plain["images"].float() / 255 - MEAN) / STD
    assert torch.allclose(batch["images"], images, atol=2e-6)
    assert all(batch[name].dtype == torch.float32 for name in MAPS)
    assert batch["canonical_size"] == [tuple(size) for size in plain["raw_size"].tolist()]
    assert batch["orientation"].tolist() == [1] * 4
    arrays = OCRStoreDataset(store_path, transform=twice, numpy=True)
    found = next(iter(DataLoader(arrays, batch_size=4, num_workers=workers)))
    assert isinstance(found["images"], np.ndarray) and isinstance(found["rows"], np.ndarray)
    assert isinstance(arrays[0]["image"], np.ndarray)


def test_what_cannot_be_normalised(tmp_path, store_path):
    """A store without a recipe, and a transform that has normalised already."""
    path = tmp_path / "plain.ocrs"
    column = {"tensor": ocrstore.Column("uint8", (4, 4, 3))}
    with ocrstore.create(path, columns=column) as writer:
        writer.append("a", {"tensor": np.zeros((4, 4, 3), np.uint8)})
    with pytest.raises(SchemaError, match="no mean and std"):
        OCRStoreDataset(path, normalize=True)

    def normalised(image, keypoints):
        return {"image": image.astype(np.float32), "keypoints": keypoints}

    with pytest.raises(SchemaError, match="Take Normalize out"):
        OCRStoreDataset(store_path, transform=normalised, normalize=True)[0]


def test_further_keys(tmp_path):
    """Paths, sizes and metadata come from the index when they are accessed, not before."""
    words = Words(tmp_path)
    words.add("a.jpg", EITHER)
    words.add("b.jpg", EITHER)
    (words.images / "c.jpg").write_bytes((words.images / "a.jpg").read_bytes())
    words.build()
    dataset = OCRStoreDataset(words.store)
    batch = dataset[0:3]
    assert batch["image_path"] == [str(words.images / name) for name in ("a.jpg", "b.jpg", "c.jpg")]
    assert batch["shape"] == [(120, 90)] * 3 and batch["canonical_size"] == [(90, 120)] * 3
    assert batch["orientation"].tolist() == [1, 1, 1]
    assert batch["source_orientation"].tolist() == [6, 6, 6]
    assert batch["annotated"] == [True, True, False]
    metadata = batch["metadata"][0]
    assert metadata["source_orientation"] == 6 and "polygons" not in metadata
    sample = dataset[0]
    assert sample["shape"] == (120, 90) and sample["image_path"] == batch["image_path"][0]
    fresh = dataset[0:3]
    assert set(ON_ACCESS) <= set(fresh)
    moved = fresh.to("meta")
    assert not set(ON_ACCESS) & set(moved._taken) and moved["shape"] == [(120, 90)] * 3
    assert moved["source_orientation"].device.type == "cpu"
    assert pickle.loads(pickle.dumps(fresh))["annotated"] == [True, True, False]
    del moved["metadata"]
    assert "metadata" not in moved and "metadata" in fresh


def test_pictures_without_an_annotation(tmp_path):
    """`anns` has None for them; an empty list is an annotation without text."""
    words = Words(tmp_path)
    words.add("a.jpg", EITHER)
    words.add("b.jpg", EITHER)
    words.pictures["b.jpg"]["words"] = {}
    words.add("a.jpg", EITHER)
    (words.images / "c.jpg").write_bytes((words.images / "a.jpg").read_bytes())
    words.build()
    anns = OCRStoreDataset(words.store).anns
    assert len(anns["a.jpg"]) == 1 and anns["b.jpg"] == [] and anns["c.jpg"] is None
