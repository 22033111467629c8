"""The table of the migration guide: a project's own pipeline and caches against a store.

    OCRSTORE_PICTURES=... python tools/bench_migration.py

Batches of 16 normalised pictures of 640 pixels with their probability maps, from the ICDAR pictures, in a
process of its own for each way. The first three are the data set of `examples/lightning` with its
settings of `cache`, in 2 workers that persist; the last is `OCRStoreDataset(normalize=True)` in a
`PrefetchLoader`. The loop reads every batch once. H-mean is what the maps of the batches
give by the same post-processing and matching, in the pictures' own coordinates.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
WAYS = {
    "none": "their pipeline",
    "image": "their image cache",
    "tensor": "their tensor cache",
    "ocrstore": "ocrstore",
}


def measure(way: str, folder: str, store: str, epochs: int) -> dict:
    """Run some epochs; return the seconds of each, the PSS of all processes, and H-mean."""
    sys.path[:0] = [str(ROOT / "examples" / "lightning"), str(ROOT / "tools")]
    import torch
    from bench.accounting import memory
    from torch.utils.data import DataLoader

    torch.set_num_threads(2)
    if way == "ocrstore":
        from ocrstore.torch import OCRStoreDataset, PrefetchLoader

        columns = ["tensor", "prob_map", "inverse_matrix"]
        dataset = OCRStoreDataset(store, columns=columns, normalize=True)
        loader = PrefetchLoader(dataset, batch_size=16, lists=True)
    else:
        from data import ReceiptDataset, collate

        loader = DataLoader(
            ReceiptDataset(folder, 640, cache=way),
            batch_size=16,
            num_workers=2,
            persistent_workers=True,
            collate_fn=collate,
        )
    seconds = []
    for _ in range(epochs):
        began = time.perf_counter()
        for batch in loader:
            float(batch["images"].sum() + batch["prob_maps"].sum())
        seconds.append(time.perf_counter() - began)
    children = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "pid="],
        capture_output=True,
        text=True,
        check=False,
    )
    pids = [os.getpid(), *map(int, children.stdout.split())]
    taken = memory(pids)
    return {
        "seconds": seconds,
        "own": taken.own,
        "files": taken.files,
        "hmean": hmean(loader),
    }


def hmean(loader) -> float:
    """Return the H-mean of the batches' own maps."""
    from ocrstore.evaluation.postprocess import detect_one
    from ocrstore.evaluation.results import Results

    results = Results()
    for batch in loader:
        for row, prob in enumerate(np.asarray(batch["prob_maps"][:, 0])):
            matrix = np.asarray(batch["inverse_matrix"][row], np.float64)
            found = detect_one(prob, inverse_matrix=matrix)
            truths = [project(polygon, matrix) for polygon in batch["polygons"][row]]
            small = [np.ptp(polygon, axis=0).min() < 8 for polygon in batch["polygons"][row]]
            # the recipe ignores text under 8 pixels of the view
            flags = np.asarray(batch["ignored"][row], bool) | np.asarray(small, bool)
            results.add(
                batch["image_filename"][row], found.polygons, truths, flags, [None] * len(flags)
            )
    return results.icdar.hmean


def project(polygon, matrix):
    """Move points into the picture's own frame."""
    moved = np.c_[polygon, np.ones(len(polygon))] @ matrix.T
    return (moved[:, :2] / moved[:, 2:]).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--store", help="an existing store of the same pictures")
    parser.add_argument("--only", choices=list(WAYS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = str(Path(os.environ["OCRSTORE_PICTURES"], "icdar2015"))
    if options.only:
        print(json.dumps(measure(options.only, folder, options.store, options.epochs)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        store = options.store
        if store is None:
            import ocrstore

            store = str(Path(temporary, "val.ocrs"))
            ocrstore.build(Path(folder, "images"), store, annotations=Path(folder, "gt"))
        print(
            "| | first epoch | later epochs | memory | page cache | H-mean |\n|---|---|---|---|---|---|"
        )
        for way, title in WAYS.items():
            command = [sys.executable, __file__, "--only", way, "--store", store]
            done = subprocess.run(
                [*command, "--epochs", str(options.epochs)],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            found = json.loads(done.stdout.splitlines()[-1])
            first, *later = found["seconds"]
            print(
                f"| {title} | {first:.1f} s | {min(later):.1f} s | {found['own'] / 1e6:.0f} MB |"
                f" {found['files'] / 1e6:.0f} MB | {found['hmean']:.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
