"""Real pictures, where they are found: build, another worker count, against the source."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import ocrstore
from ocrstore.building.build import build
from ocrstore.geometry import transform_points
from ocrstore.verification import verify

PICTURES = os.environ.get("OCRSTORE_PICTURES")
pytestmark = [
    pytest.mark.pictures,
    pytest.mark.skipif(not PICTURES, reason="set OCRSTORE_PICTURES to a folder of real pictures"),
]


@pytest.mark.parametrize("name", ["icdar2015", "sroie"])
def test_real_pictures(name, tmp_path):
    """A dozen of each set: every polygon arrives, and the store matches its source."""
    source = Path(PICTURES) / name
    for folder in ("images", "gt"):
        (tmp_path / folder).mkdir()
    for path in sorted((source / "images").iterdir())[:12]:
        shutil.copy(path, tmp_path / "images")
        for annotation in (f"gt_{path.stem}.txt", f"{path.stem}.csv"):
            if (source / "gt" / annotation).exists():
                shutil.copy(source / "gt" / annotation, tmp_path / "gt")
    report = build(tmp_path / "images", tmp_path / "a.ocrs", workers=0)
    assert report.ok and report.samples == 12 and report.polygons > 12
    other = build(tmp_path / "images", tmp_path / "b.ocrs", workers=2)
    assert other.fingerprint == report.fingerprint
    assert verify(tmp_path / "a.ocrs", source=tmp_path / "images", workers=0).ok
    store = ocrstore.open(tmp_path / "a.ocrs")
    for row in range(len(store)):
        facts = store.attributes(row)
        back = store["inverse_matrix"][row]
        size = max(facts["width"], facts["height"])
        assert np.allclose(transform_points(back, [[640, 640]]), [[size, size]])
        if not all(facts["ignored"]):
            # what is drawn lies in the picture's part of the view
            ys, xs = np.nonzero(store["prob_map"][row])
            corner = transform_points(back, [[xs.max(), ys.max()]])[0]
            assert corner[0] <= facts["width"] + 2 and corner[1] <= facts["height"] + 2
