"""LMDB with one pickled sample for each key, opened by each process that reads."""

from __future__ import annotations

import pickle
from pathlib import Path

import lmdb
import numpy as np
import torch

from tools.bench.peers.base import collate, torch_loader
from tools.bench.prepared import Prepared

TITLE = "LMDB, pickled samples"
REQUIREMENTS = ()
NOTE = "Read-only, no lock, no readahead, zero-copy buffers; one read transaction for each batch."
DISTRIBUTION = "lmdb"


def build(prepared: Prepared, folder: Path) -> None:
    nbytes = prepared.images.nbytes + prepared.prob_maps.nbytes + prepared.thresh_maps.nbytes
    environment = lmdb.open(str(folder / "samples"), map_size=2 * nbytes + (1 << 26))
    for start in range(0, len(prepared), 64):
        with environment.begin(write=True) as transaction:
            for row in range(start, min(start + 64, len(prepared))):
                sample = prepared[row]
                value = {
                    "image": np.array(sample.image),
                    "prob_map": np.array(sample.prob_map),
                    "thresh_map": np.array(sample.thresh_map),
                    "polygons": sample.polygons,
                    "key": sample.key,
                }
                transaction.put(b"%08d" % row, pickle.dumps(value, protocol=5))
    environment.close()


class Pickled(torch.utils.data.Dataset):
    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "samples")
        self.environment = None
        with self._open() as environment:
            self.count = environment.stat()["entries"]

    def _open(self):
        return lmdb.open(
            self.path,
            readonly=True,
            lock=False,
            readahead=False,
            meminit=False,
            max_spare_txns=1,
        )

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, rows: list[int]) -> list[dict]:
        if self.environment is None:  # LMDB must not be carried through a fork
            self.environment = self._open()
        with self.environment.begin(buffers=True) as transaction:
            return [self._sample(transaction.get(b"%08d" % row)) for row in rows]

    def _sample(self, value) -> dict:
        sample = pickle.loads(value)
        return {
            "images": torch.from_numpy(sample["image"]),
            "prob_maps": torch.from_numpy(sample["prob_map"]),
            "thresh_maps": torch.from_numpy(sample["thresh_map"]),
            "polygons": sample["polygons"],
            "image_filename": sample["key"],
        }


def loader(folder: Path, *, prepared: Path, **options):
    return torch_loader(Pickled(folder), collate_fn=collate, **options)
