"""Exports: round trips, hostile keys and texts, the same bytes, interruptions, choices, refusals."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ocrstore
from ocrstore.errors import (
    SchemaError,
    StoreExistsError,
    UnknownColumnError,
    UnknownSampleError,
    WriteError,
)
from ocrstore.exporting.export import FOLDERS, MARK
from ocrstore.exporting.folders import beside, file_names
from ocrstore.keys import key_of
from tests.building.conftest import draw, encode, with_exif

ROOT = Path(__file__).parents[2]
PICTURES = [name for name in FOLDERS if name != "npz"]
"""Formats that a store can be built from again."""
LANGUAGES = [name for name in PICTURES if name not in ("icdar", "labelme")]
"""Those that have a place for languages."""
QUAD = [10.5, 10, 60.25, 12, 60, 30.1, 9, 28]
POLYGON = [5, 40, 30, 38.7, 60, 40, 61, 55, 33, 54, 4, 56]


def source_of(out, to):
    """Return what `ocrstore build` is given for an export."""
    if to == "webdataset":
        return str(out / "*.tar")
    return out if to == "hf" else out / "pictures.tsv"


def content(path, *, languages=True):
    """Everything that has to survive: keys, pixels, polygons, texts, flags, languages."""
    found = []
    with ocrstore.open(path) as store:
        for row, key in enumerate(store.keys):
            own = store.attributes(row)
            parts = (own["annotated"], own["polygons"], own["texts"], own["ignored"])
            found.append((key, store["image"][row].tobytes(), *parts))
            if languages:
                found[-1] += (own["languages"],)
    return found


def listing(folder):
    """Names and hashes of all files below a folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def samples():
    """Pictures of several formats, with EXIF turns, odd names, without text, without annotation."""
    give = ocrstore.SourceSample
    jpeg = encode(draw(seed=1))
    texts, flags = ["Straße, 12", "###"], [False, True]
    both = {"polygons": [QUAD, POLYGON], "texts": texts, "ignored": flags}
    yield give("a.jpg", jpeg, **both, languages=["de", None])
    yield give("a.png", draw(seed=2), [QUAD], ['"in quotes", 100,000'])
    yield give("sub/ümlaut/日本 語.jpg", encode(draw(seed=3)), [QUAD], ["日本語"], [False], ["ja"])
    yield give("turned.jpg", with_exif(encode(draw(seed=4)), 6), [QUAD], ["up"])
    yield give("empty.webp", encode(draw(seed=5), ".webp"), [])
    yield give("nobody.jpg", encode(draw(seed=6)))
    yield give("gt_a.bmp", encode(draw(seed=7), ".bmp"), [QUAD], ["10,20,30,40"])
    yield give("A.jpg", encode(draw(seed=8)), [POLYGON], ["5,6"])
    yield give("a.jpg/b", encode(draw(seed=9)), [QUAD], ["x" * 300])
    yield give("../../etc/\n\tpass\\wd\u202e.jpg", encode(draw(seed=10)), [QUAD], ["text"])


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """The samples with pictures as pixels, and as the files of JPEGs."""
    folder = tmp_path_factory.mktemp("stores")
    ocrstore.build(samples(), folder / "raw.ocrs", size=64, workers=0, codecs={"image": "raw"})
    jpegs = [s for s in samples() if isinstance(s.picture, bytes) and s.picture[:2] == b"\xff\xd8"]
    ocrstore.build(jpegs, folder / "jpeg.ocrs", size=64, workers=0, codecs={"image": "jpeg"})
    return folder


@pytest.mark.parametrize("name", ["raw", "jpeg"])
@pytest.mark.parametrize("to", PICTURES)
def test_round_trip(stores, tmp_path, to, name):
    """A store that is built from an export has the same samples, whatever they are called."""
    store, again = stores / f"{name}.ocrs", tmp_path / "again.ocrs"
    result = ocrstore.export(store, to=to, out=tmp_path / "out")
    # not all regions have four points, and texts are numbers
    dialect = "icdar-poly" if to == "icdar" else None
    report = ocrstore.build(
        source_of(tmp_path / "out", to), again, size=64, workers=0, format=dialect
    )
    assert report.ok and "mislabelled" not in {problem.kind for problem in report.problems}
    languages = to in LANGUAGES
    assert content(again, languages=languages) == content(store, languages=languages)
    assert result.samples == len(ocrstore.open(store)) and result.resumed == 0
