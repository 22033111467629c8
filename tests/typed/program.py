"""A program of a user, for type checkers: every type is known, and none of them is Any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

import ocrstore
from ocrstore.format.index import IndexTable
from ocrstore.torch import Batch, OCRStoreDataset, PrefetchLoader, Sample


def read(path: str) -> list[str]:
    """Columns, rows by number and key, and the index."""
    with ocrstore.open(path) as store:
        assert_type(store["image"][0], npt.NDArray[np.uint8])
        assert_type(store["image"]["img_1.jpg"], npt.NDArray[np.uint8])
        assert_type(store["prob_map"][0], npt.NDArray[np.floating[Any]])
        assert_type(store["inverse_matrix"][-1], npt.NDArray[np.float64])
        assert_type(store["960/tensor"][0], npt.NDArray[Any])
        several = store["tensor"][0:16]
        if isinstance(several, np.ndarray):
            assert_type(several, npt.NDArray[np.uint8])
        assert_type(store.index, IndexTable)
        assert_type(store.index.num_rows, int)
        assert_type(store.index["width"].to_pylist(), list[Any])
        assert_type(store.index.select(["key"]).to_pydict(), dict[str, list[Any]])
        assert_type(store.attributes("img_1.jpg"), dict[str, Any])
        return [key for key in store if len(key) > 3]


def look(path: str) -> torch.Tensor:
    """One sample."""
    dataset = OCRStoreDataset(path)
    sample = dataset[0]
    assert_type(sample, Sample)
    assert_type(sample["image"], torch.Tensor)
    assert_type(sample["polygons"], list[npt.NDArray[np.float32]])
    assert_type(sample["ignored"], list[bool])
    assert_type(sample["texts"], list[str | None])
    assert_type(sample["image_filename"], str)
    assert_type(sample["row"], int)
    assert_type(sample["source_orientation"], int)
    assert_type(sample["canonical_size"], tuple[int, int])
    assert_type(sample["annotated"], bool)
    assert_type(sample["metadata"], dict[str, Any])
    ocrstore.plot(sample).savefig("sample.png")
    return sample["image"].float() / 255


def train(path: str) -> float:
    """Batches of a slice, of a loader of ocrstore, and of torch's own."""
    dataset = OCRStoreDataset(path)
    assert_type(dataset[0:16], Batch)
    assert_type(dataset[[0, 2, 4]], Batch)
    total = 0.0
    for batch in PrefetchLoader(dataset, batch_size=16):
        assert_type(batch, Batch)
        assert_type(batch["images"], torch.Tensor)
        assert_type(batch["prob_maps"].mean(), torch.Tensor)
        assert_type(batch["polygons"][0][0], npt.NDArray[np.float32])
        assert_type(batch["image_path"], list[str])
        assert_type(batch["shape"], list[tuple[int, int]])
        assert_type(batch["metadata"], list[dict[str, Any]])
        assert_type(batch.to("cpu"), Batch)
        total += batch["rows"].sum().item()
    loaded: Batch  # torch does not say what its DataLoader yields
    for loaded in DataLoader(dataset, batch_size=16):
        total += loaded["thresh_masks"].sum().item()
    return total


def count(batch: Mapping[str, Any]) -> int:
    """Take a batch as a mapping."""
    return len(batch)


def use(path: str) -> int:
    """Hand a batch to code that knows mappings only."""
    return count(OCRStoreDataset(path)[0:2])
