"""What the peers with environments of their own are made of, as far as it runs without them."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest

from tools.bench import cell, venvs
from tools.bench.peers import chunked, ffcv, streaming
from tools.bench.peers.labels import pack_label, unpack_label


@pytest.mark.parametrize("name", ["a", "ab.jpg", "Straße 7.jpg", "x" * 300])
@pytest.mark.parametrize("lengths", [[], [4], [4, 6, 3]])
def test_labels_come_back(name, lengths):
    """Any name and any number of polygons, whatever bytes follow."""
    polygons = [np.random.default_rng(n).random((n, 2), np.float32) for n in lengths]
    data = np.frombuffer(pack_label(name, polygons) + b"left over", np.uint8)
    found, unpacked = unpack_label(data)
    assert found == name
    assert len(unpacked) == len(polygons)
    assert all(map(np.array_equal, unpacked, polygons))


@pytest.mark.parametrize("shuffle", [False, True])
def test_chunked_arrays_are_read_in_batches(samples, shuffle):
    """An epoch has every sample; rows in order are asked for as a slice, others as a list."""
    arrays = {name: np.array(array) for name, (array, _) in chunked.arrays_of(samples).items()}
    asked = []

    def read_rows(opened, rows):
        asked.append(type(rows))
        return [array[rows] for array in opened]

    batches = chunked.batch_loader(
        samples.folder,
        samples.folder,
        lambda _: arrays,
        read_rows,
        workers=0,
        shuffle=shuffle,
        batch_size=4,
        seed=1,
    )
    assert cell.compare(batches, samples) == []
    assert set(asked[1:]) == {list if shuffle else slice}


def test_chunks_are_samples(samples):
    """Each large array is cut by sample, the rest is one chunk."""
    for array, chunks in chunked.arrays_of(samples).values():
        assert chunks == (array.shape if array.ndim == 1 else (1, *array.shape[1:]))


class Recorded:
    """An environment that only takes notes."""

    def __init__(self):
        self.calls = []

    def pip(self, *arguments):
        """Note what would be installed."""
        self.calls.append(arguments)


@pytest.mark.parametrize("missing", ffcv.LIBRARIES)
def test_ffcv_names_the_library_that_is_missing(monkeypatch, missing):
    """Before anything is built, with the package that has it."""

    def run(command, **_):
        return subprocess.CompletedProcess(command, int(command[-1] == missing))

    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", run)
    environment = Recorded()
    with pytest.raises(venvs.InstallError, match=f"{missing} .*{ffcv.LIBRARIES[missing]}"):
        ffcv.install(environment)
    assert environment.calls == []


def test_ffcv_names_the_tools_that_are_missing(monkeypatch):
    """Without a compiler there is no use in asking for libraries."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(venvs.InstallError, match="compiler and pkg-config"):
        ffcv.install(Recorded())


def test_streaming_takes_no_dependencies_of_torchvision():
    """torchvision pins another torch, so it and what asks for it come without dependencies."""
    environment = Recorded()
    streaming.install(environment)
    first, second = environment.calls
    assert "torch" in first
    assert second[0] == "--no-deps"
    assert {name.partition("==")[0] for name in second[1:]} == {"mosaicml-streaming", "torchvision"}


def test_ffcv_cannot_do_without_workers():
    """No workers is a cell that says why it is empty."""
    assert ffcv.unsupported(workers=0, shuffle=True)
    assert not ffcv.unsupported(workers=1, shuffle=True)
    assert cell.why_unsupported(ffcv, {"workers": 0, "shuffle": False})
    assert not cell.why_unsupported(ffcv, {"workers": None, "shuffle": False}), "building has none"
