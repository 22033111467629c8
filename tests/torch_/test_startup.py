"""What a fresh process imports before its first batch: only what reading needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ocrstore.torch

UNWANTED = {
    "PIL", "albumentations", "click", "cv2", "lightning", "lmdb",
    "pyclipper", "rich", "simplejpeg", "torchmetrics", "turbojpeg",
    "ocrstore.building", "ocrstore.decode", "ocrstore.format.writer", "ocrstore.maps",
    "ocrstore.recipe", "ocrstore.shared_slots", "ocrstore.torch.augmented",
    "ocrstore.torch.samplers",
    "ocrstore.verification",
}  # fmt: skip

# the modules that torch itself brings in are not ours to forbid
CODE = """
import sys
import torch
from torch.utils.data import DataLoader

unwanted = {unwanted!r} - set(sys.modules)
from ocrstore.torch import OCRStoreDataset

class Watched(OCRStoreDataset):
    def __getitems__(self, rows):
        found = super().__getitems__(rows)
        assert not unwanted & set(sys.modules), unwanted & set(sys.modules)
        return found

if __name__ == "__main__":
    dataset = Watched(sys.argv[1])
    loader = DataLoader(dataset, 2, num_workers={workers}, shuffle=True, drop_last=True)
    for batch in loader:
        assert batch["images"].shape[0] == len(batch["image_filename"]) == 2
        for name in ("prob_maps", "rows"):
            batch[name].sum()
    print(sorted(unwanted & set(sys.modules)))
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_the_first_batch_needs_neither_lmdb_nor_decoders(workers, other_path):
    """Importing, opening and taking batches leaves them alone."""
    code = CODE.format(unwanted=UNWANTED, workers=workers)
    done = subprocess.run(
        [sys.executable, "-c", code, str(other_path)], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["[]"]


def test_all_names_of_the_package_are_listed():
    """`dir()` shows what is imported by need, too."""
    assert set(ocrstore.torch.__all__) <= set(dir(ocrstore.torch))
    for name in ocrstore.torch.__all__:
        assert getattr(ocrstore.torch, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Bacth'"):
        ocrstore.torch.Bacth  # the access is the test
