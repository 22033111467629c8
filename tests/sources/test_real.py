"""Real annotations, where they are found."""

import os
from pathlib import Path

import pytest

from ocrstore.sources import open_source

ROOT = os.environ.get("OCRSTORE_PICTURES")
pytestmark = [
    pytest.mark.pictures,
    pytest.mark.skipif(not ROOT, reason="OCRSTORE_PICTURES is not set"),
]


@pytest.mark.parametrize("name", ["icdar2015", "sroie"])
def test_everything_is_read(name):
    """Every line of every real file becomes a polygon with the text that stands in it."""
    folder = Path(ROOT) / name
    source = open_source(folder / "images")
    assert source.dialect == "icdar" and source.problems == ()
    assert len(source) == len(list((folder / "images").iterdir()))
    for sample in source:
        stem = Path(sample.key).stem
        (path,) = [p for p in (folder / "gt").iterdir() if p.stem in (stem, f"gt_{stem}")]
        lines = [line for line in path.read_text("utf-8-sig").split("\n") if line.strip()]
        assert sample.annotated and sample.problems == ()
        assert len(sample.polygons) == len(lines)
        for polygon, line in zip(sample.polygons, lines, strict=True):
            fields = line.strip().split(",", 8)
            assert polygon.points.ravel().tolist() == [float(field) for field in fields[:8]]
            assert polygon.text == fields[8].strip() and polygon.ignored == (
                fields[8].strip() == "###"
            )
