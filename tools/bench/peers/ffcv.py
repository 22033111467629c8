"""FFCV: one .beton file, copied by compiled threads into a ring of batch buffers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from tools.bench.peers.base import TENSORS
from tools.bench.peers.labels import pack_label, unpack_label
from tools.bench.prepared import Prepared

# numba refuses more threads than cores unless it is told before it is imported
os.environ.setdefault("NUMBA_NUM_THREADS", str(max(4, os.cpu_count() or 1)))
with suppress(ModuleNotFoundError):  # absent where the suite imports this file to install it
    from ffcv.fields import BytesField, NDArrayField
    from ffcv.loader import Loader, OrderOption
    from ffcv.writer import DatasetWriter

TITLE = "FFCV"
REQUIREMENTS = ("ffcv==1.0.2", "numba==0.68.1", "setuptools==84.2.1", "wheel==0.48.0")
NOTE = (
    "Workers are threads of the training process (there is no 0), and a batch lies in one of five "
    "buffers that are written again: keep it longer than three batches and it changes. Polygons "
    "and name as bytes, unpacked in the loop as FFCV's manual asks. Its maps are stored as int16 "
    "and reinterpreted, because its compiler knows no float16."
)
LIBRARIES = {"opencv4": "libopencv-dev", "libturbojpeg": "libturbojpeg0-dev"}
"""what its build asks pkg-config for, and the Debian packages that have it"""


def install(environment) -> None:
    """Build FFCV from source: its own requirements name GPU packages that loading does not use."""
    import shutil
    import subprocess

    from tools.bench.venvs import InstallError

    if not shutil.which("pkg-config") or not shutil.which("c++"):
        raise InstallError("built from source: needs a C++ compiler and pkg-config")
    for library, package in LIBRARIES.items():
        found = subprocess.run(["pkg-config", "--exists", library], check=False)
        if found.returncode:
            raise InstallError(
                f"built from source: needs the library {library} with its headers"
                f" (Debian: {package})"
            )
    environment.pip("torch", "numpy", "opencv-python-headless", "pillow", "tqdm", *REQUIREMENTS[1:])
    environment.pip("--no-deps", "--no-build-isolation", REQUIREMENTS[0])


class Rows:
    """The samples as FFCV's writer takes them: by row, from several processes."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared

    def __len__(self) -> int:
        return len(self.prepared)

    def __getitem__(self, row: int) -> tuple:
        sample = self.prepared[row]
        maps = (sample.prob_map.view(np.int16), sample.thresh_map.view(np.int16))
        label = np.frombuffer(pack_label(sample.key, sample.polygons), np.uint8)
        return sample.image, *maps, label


def build(prepared: Prepared, folder: Path) -> None:
    size = prepared.images.shape[1:3]
    fields = {
        "images": NDArrayField(np.dtype("uint8"), (*size, 3)),
        "prob_maps": NDArrayField(np.dtype("int16"), size),
        "thresh_maps": NDArrayField(np.dtype("int16"), size),
        "label": BytesField(),
    }
    # a sample never spans pages: of the default of 8 MB a third would be empty
    writer = DatasetWriter(str(folder / "samples.beton"), fields, page_size=1 << 25)
    writer.from_indexed_dataset(Rows(prepared))


def unsupported(*, workers: int, shuffle: bool) -> str:  # one signature
    return "" if workers else "FFCV has no loading in the calling thread: 0 means all cores"


class Batches:
    """Epochs of FFCV's loader, in the suite's names."""

    def __init__(self, loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[dict]:
        epoch = iter(self.loader)
        torch.set_num_threads(1)  # FFCV sets it to its workers; the consumer is the same for all
        for *arrays, labels in epoch:
            images, *maps = arrays
            tensors = [images, *(array.view(torch.float16) for array in maps)]
            names, polygons = zip(*map(unpack_label, labels.numpy().copy()))
            yield {
                **dict(zip(TENSORS, tensors)),
                "polygons": list(polygons),
                "image_filename": list(names),
            }


def loader(
    folder: Path,
    *,
    prepared: Path,  # all is in the file
    workers: int,
    shuffle: bool,
    batch_size: int,
    seed: int,
):
    # the tuning guide for data that fits in memory: os_cache, true random order
    return Batches(
        Loader(
            str(folder / "samples.beton"),
            batch_size=batch_size,
            num_workers=workers,
            os_cache=True,
            order=OrderOption.RANDOM if shuffle else OrderOption.SEQUENTIAL,
            seed=seed,
            drop_last=False,
        )
    )
