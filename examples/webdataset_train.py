"""Train from WebDataset shards that `ocrstore export --to webdataset` wrote.

Needs webdataset and torch, not ocrstore. Batches have the arrays and annotations of
`ocrstore.torch.OCRStoreDataset`, without what only a store knows (`image_path`, `shape`,
`canonical_size`, `metadata`), and need the columns `tensor` and `inverse_matrix`:

    python examples/webdataset_train.py "shards/val-{000000..000003}.tar" --workers 4

Every rank and every worker reads shards of its own: there should be at least as many shards as
ranks times workers. The last batch of each worker may be smaller.
"""

from __future__ import annotations

import argparse
import glob
from typing import Any

import numpy as np
import torch
import webdataset as wds

BATCH_NAMES = {
    "tensor": "images",
    "prob_map": "prob_maps",
    "thresh_map": "thresh_maps",
    "prob_mask": "prob_masks",
    "thresh_mask": "thresh_masks",
    "inverse_matrix": "inverse_matrix",
}


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch: arrays as tensors with the channel first, annotations as lists."""
    batch: dict[str, Any] = {}
    for column, name in BATCH_NAMES.items():
        if f"{column}.npy" not in samples[0]:
            continue  # not exported
        arrays = torch.from_numpy(np.stack([sample[f"{column}.npy"] for sample in samples]))
        if column == "tensor":
            arrays = arrays.permute(0, 3, 1, 2).contiguous()
        elif column != "inverse_matrix":
            arrays = arrays.unsqueeze(1)
        batch[name] = arrays
    records = [sample["json"] for sample in samples]
    batch["polygons"] = [polygons_in_view(sample) for sample in samples]
    batch["annotated"] = [record["annotated"] for record in records]
    batch["ignored"] = [record["ignored"] for record in records]
    batch["texts"] = [record["texts"] for record in records]
    batch["image_filename"] = [record["key"] for record in records]
    batch["raw_size"] = torch.tensor(
        [record.get("raw_size", [record["width"], record["height"]]) for record in records]
    )
    batch["orientation"] = torch.ones(len(samples), dtype=torch.int64)  # pictures are upright
    batch["source_orientation"] = torch.tensor([r["source_orientation"] for r in records])
    batch["rows"] = torch.tensor([int(sample["__key__"]) for sample in samples])
    return batch


def polygons_in_view(sample: dict[str, Any]) -> list[np.ndarray]:
    """Return a sample's polygons in the picture of the batch."""
    polygons = sample["json"]["polygons"]
    if "view" in sample["json"]:  # exported without the whole picture: they are moved already
        return [np.array(polygon, np.float32) for polygon in polygons]
    return [move(polygon, sample["inverse_matrix.npy"]) for polygon in polygons]


def move(polygon: list[list[float]], inverse_matrix: np.ndarray) -> np.ndarray:
    """Move a polygon of the whole picture into the view."""
    matrix = np.linalg.inv(inverse_matrix)
    x, y, scale = matrix @ np.c_[np.array(polygon, np.float64), np.ones(len(polygon))].T
    return np.stack([x / scale, y / scale], axis=1).astype(np.float32)


def keep(batch: dict[str, Any]) -> dict[str, Any]:
    """Keep a batch as it is; torch would make tensors of the polygons."""
    return batch


def make_loader(
    shards: str, *, batch_size: int, workers: int, shuffle: int = 0, seed: int = 0
) -> wds.WebLoader:
    """Return a loader of batches.

    Args:
        shards: A pattern: `"a-*.tar"` or `"a-{000000..000003}.tar"`.
        batch_size: Samples in a batch.
        workers: Processes.
        shuffle: Samples that wait to be drawn at random; 0 keeps the order of the shards.
        seed: Of the shuffle.
    """
    urls = sorted(glob.glob(shards)) or shards  # noqa: PTH207  # an absolute pattern, too
    dataset = (
        wds.WebDataset(
            urls,
            shardshuffle=1000 if shuffle else False,
            nodesplitter=wds.split_by_node,
            workersplitter=wds.split_by_worker,
            empty_check=False,  # a worker may have no shard
            seed=seed,
        )
        .shuffle(shuffle)
        .decode()  # .npy and .json
        .batched(batch_size, collation_fn=collate)
    )
    return wds.WebLoader(dataset, batch_size=None, num_workers=workers, collate_fn=keep)


def main() -> None:
    """Read all batches once; put your network here."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("shards")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shuffle", type=int, default=1000)
    options = parser.parse_args()
    loader = make_loader(
        options.shards,
        batch_size=options.batch_size,
        workers=options.workers,
        shuffle=options.shuffle,
    )
    network = torch.nn.Conv2d(3, 1, 3, padding=1)
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    for number, batch in enumerate(loader):
        predicted = torch.sigmoid(network(batch["images"].float() / 255))
        mask = batch["prob_masks"].float()
        difference = (predicted - batch["prob_maps"].float()).abs() * mask
        loss = difference.sum() / mask.sum().clamp(min=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"batch {number}: {len(batch['image_filename'])} samples, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
