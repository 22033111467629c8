"""A source as an object: order, length, laziness, pickling, errors."""

import pickle

import pytest

from ocrstore.errors import UnknownSampleError
from ocrstore.problems import SOURCE_KINDS
from ocrstore.sources import open_source

LINE = "0,0,9,0,9,9,0,9,w\n"


@pytest.fixture
def source(make):
    """Three pictures with ICDAR files, one of them without."""
    images = make({"b.jpg": None, "a.jpg": None, "c/d.jpg": None})
    make({"gt_a.txt": LINE, "gt_d.txt": LINE * 2, "gt_gone.txt": LINE}, into="gt")
    return open_source(images)


def test_order_and_length(source):
    """Samples come in key order, as many as there are pictures, every time."""
    assert len(source) == 3 and source.keys == ("a.jpg", "b.jpg", "c/d.jpg")
    for _ in range(2):
        found = [(s.key, s.annotated, len(s.polygons)) for s in source]
        assert found == [("a.jpg", True, 1), ("b.jpg", False, 0), ("c/d.jpg", True, 2)]


def test_access_by_key(source):
    """A sample is also had by key, and its path is the picture's."""
    assert source["c/d.jpg"].path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UnknownSampleError, match=r"no picture has the key 'x\.jpg'"):
        source["x.jpg"]


def test_missing_pictures_are_known_at_once(source):
    """What concerns the listing is known from opening, before any file is read."""
    assert [p.kind for p in source.problems] == ["missing-picture"]


def test_files_are_read_when_asked_for(source, tmp_path):
    """A file of one picture is read with its sample, each time again."""
    (tmp_path / "gt" / "gt_a.txt").write_text(LINE * 5)
    assert len(source["a.jpg"].polygons) == 5


def test_pickles(source):
    """A source and its samples cross a process border."""
    other = pickle.loads(pickle.dumps(source))
    assert other.description == source.description and other.problems == source.problems
    for ours, theirs in zip(source, other, strict=True):
        again = pickle.loads(pickle.dumps(ours))
        for sample in (theirs, again):
            assert (sample.key, sample.path, sample.problems) == (
                ours.key,
                ours.path,
                ours.problems,
            )
            assert [p.points.tolist() for p in sample.polygons] == [
                p.points.tolist() for p in ours.polygons
            ]


def test_annotation_files_are_listed(source):
    """The files that were taken as annotations are there to be hashed or watched."""
    assert sorted(path.name for path in source.annotation_files) == [
        "gt_a.txt",
        "gt_d.txt",
        "gt_gone.txt",
    ]


def test_every_kind_that_can_be_reported_is_described():
    """Each kind named in the code stands in the table of kinds, and each there is used."""
    import re
    from pathlib import Path

    import ocrstore.sources

    folder = Path(ocrstore.sources.__file__).parent
    code = "".join(p.read_text("utf-8") for p in folder.glob("*.py"))
    pattern = (
        r'(?:Flaw|Problem|_RejectedError|UnusableAnnotationError|_report|report)\(\s*"([a-z0-9-]+)"'
    )
    used = set(re.findall(pattern, code))
    used |= set(re.findall(r'kind = "([a-z-]+)"', code))
    used |= set(re.findall(r'odd\.append\(\("([a-z-]+)"', code))
    assert used == set(SOURCE_KINDS)
