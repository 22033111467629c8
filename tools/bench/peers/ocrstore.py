"""A store with the same three columns, through torch's own DataLoader."""

from __future__ import annotations

from pathlib import Path

from tools.bench.peers.base import torch_loader
from tools.bench.prepared import Prepared

TITLE = "ocrstore"
REQUIREMENTS = ()
NOTE = "`OCRStoreDataset` in a stock DataLoader, nothing set."


def build(prepared: Prepared, folder: Path) -> None:
    import ocrstore

    size = prepared.images.shape[1:3]
    columns = {
        "tensor": ocrstore.Column("uint8", (*size, 3)),
        "prob_map": ocrstore.Column("float16", size),
        "thresh_map": ocrstore.Column("float16", size),
    }
    with ocrstore.create(folder / "samples.ocrs", columns=columns) as writer:
        for sample in prepared:
            arrays = {
                "tensor": sample.image,
                "prob_map": sample.prob_map,
                "thresh_map": sample.thresh_map,
            }
            polygons = [polygon.reshape(-1) for polygon in sample.polygons]
            writer.append(sample.key, arrays, attributes={"polygons": polygons})


def loader(folder: Path, *, prepared: Path, **options):
    from ocrstore.torch import OCRStoreDataset

    return torch_loader(OCRStoreDataset(folder / "samples.ocrs"), **options)


def version() -> str:
    import ocrstore

    return f"ocrstore {ocrstore.__version__}"
