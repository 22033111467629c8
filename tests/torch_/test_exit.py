"""Scripts that end while batches are in use: finalizers run late, and must not print anything."""

import subprocess
import sys

import pytest

# What an early module refers to is finalized when the names of later modules are gone.
CODE = """
import sys
import numpy as np
from torch.utils.data import DataLoader
from ocrstore.torch import OCRStoreDataset, PrefetchLoader

def crop(image, keypoints):
    return {"image": image[:64, :64].copy(), "keypoints": keypoints}

if __name__ == "__main__":
    path, workers, transformed, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    dataset = OCRStoreDataset(path, transform=crop if transformed == "transform" else None)
    loader = {"plain": DataLoader, "prefetch": PrefetchLoader}[kind]
    options = {"multiprocessing_context": "fork"} if workers else {}
    iterator = iter(loader(dataset, batch_size=4, num_workers=workers, **options))
    batch = next(iterator)
    images = batch["images"]
    images.fill_(3)
    maps = next(iterator)["prob_maps"]
    view = dataset.views[0]
    leased, mapped = (view.take("tensor", np.array(rows)) for rows in ([20, 21], [9, 3]))
    leased[:] = mapped[:] = 1
    np.kept_until_late = [batch, images, maps, iterator, leased, mapped, view, view.open_file()]
    assert type(leased.base).__name__ == "Lease" or sys.platform != "linux"
"""


@pytest.mark.parametrize(
    ("workers", "transformed", "kind"),
    [
        (0, "stored", "plain"),
        (2, "stored", "plain"),
        (0, "transform", "plain"),
        (2, "transform", "plain"),
        (2, "stored", "prefetch"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="workers are forked")
def test_a_script_may_end_with_batches_alive(store_path, workers, transformed, kind):
    """Neither leases nor mappings, slots, descriptors or threads say anything at exit."""
    arguments = [str(store_path), str(workers), transformed, kind]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
