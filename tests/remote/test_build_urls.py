"""`ocrstore build` from pictures in a bucket, and into a bucket."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

pytest.importorskip("obstore")

import ocrstore
from ocrstore.catalog import read_catalog
from ocrstore.remote.objects import Place
from ocrstore.remote.transfer import pull
from tests.remote.servers import Proxy

BOX = "5,5,60,5,60,30,5,30,word\n"
SMALL = ("--size", "64", "--workers", "0")


def put_pictures(place: Place, names: tuple[str, ...]) -> None:
    """Write small pictures with ICDAR annotations into a bucket."""
    for seed, name in enumerate(names):
        pixels = np.random.default_rng(seed).integers(0, 256, (60, 80, 3), np.uint8)
        data = cv2.imencode(".jpg", pixels)[1].tobytes()
        place.put(f"images/{name}.jpg", data, replacing=place.find(f"images/{name}.jpg"))
        place.put(f"gt/gt_{name}.txt", BOX.encode(), replacing=place.find(f"gt/gt_{name}.txt"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a command with a cache folder of its own; returns exit code and output."""
    monkeypatch.setenv("OCRSTORE_CACHE", str(tmp_path / "cache"))

    def run(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "ocrstore", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def test_from_a_bucket_into_a_bucket(bucket: str, proxy: Proxy, tmp_path: Path, run) -> None:
    """Pictures are downloaded once; shards that did not change are not sent again."""
    place = Place(bucket)
    put_pictures(place, ("a", "b c", "d%20e"))
    build = ("build", f"{bucket}/images/", "--annotations", f"{bucket}/gt/", *SMALL)
    out = ("--out", f"{bucket}/train/")
    code, said = run(*build, *out, "--shard-size", "30kB")
    assert code == 0, said
    pull(f"{bucket}/train/", tmp_path / "train")
    catalog = read_catalog(tmp_path / "train")
    assert len(catalog) == 3 and len(catalog.shards) > 1
    keys = []
    for shard in catalog.shards:
        with ocrstore.open(catalog.shard_path(shard)) as store:
            keys += list(store)
    assert sorted(keys) == ["a.jpg", "b c.jpg", "d%20e.jpg"]

    proxy.requests.clear()
    code, said = run(*build, *out)
    assert code == 0 and "0 files sent" in said, said
    assert proxy.downloaded("/images/a.jpg") == 0

    info = place.head("images/a.jpg")
    pixels = cv2.imencode(".jpg", np.zeros((60, 80, 3), np.uint8))[1].tobytes()
    place.put("images/a.jpg", pixels, replacing=info)
    code, said = run(*build, *out)
    assert code == 0 and "2 files sent" in said, said


def test_a_single_store_into_a_bucket(bucket: str, tmp_path: Path, run) -> None:
    """A URL that ends in .ocrs is one store; the exit code of the build stays."""
    place = Place(bucket)
    put_pictures(place, ("a", "b"))
    place.put("images/c.jpg", b"no picture", replacing=None)
    code, said = run("build", f"{bucket}/images", "--out", f"{bucket}/val.ocrs", *SMALL)
    assert code == 1 and "1 file sent" in said, said
    pull(f"{bucket}/val.ocrs", tmp_path / "val.ocrs")
    with ocrstore.open(tmp_path / "val.ocrs") as store:
        assert list(store) == ["a.jpg", "b.jpg"]


def test_what_cannot_be_built(bucket: str, tmp_path: Path, run) -> None:
    """Empty places, parts of a data set without a shared folder, URLs of no kind."""
    (tmp_path / "images").mkdir()
    cv2.imwrite(str(tmp_path / "images" / "a.png"), np.zeros((60, 80, 3), np.uint8))
    images = str(tmp_path / "images")
    for words, code, message in (
        ((f"{bucket}/nothing/", "--out", "x.ocrs"), 1, "nothing: no such object"),
        ((images, "--out", f"{bucket}/x/", "--shard-part", "1/2"), 2, "a folder that all machines"),
        ((images, "--out", f"{bucket}/x/", "--split", "a=0.5,b=0.5"), 2, "--split needs a folder"),
        ((images, "--out", "ftp://host/x.ocrs"), 1, "is no URL of an object store"),
    ):
        assert (found := run("build", *words))[0] == code and message in found[1], found
