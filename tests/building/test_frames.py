"""In which frame the polygons of pictures with an EXIF rotation are."""

import json

import pytest

import ocrstore
from ocrstore.building.check_source import check_source
from ocrstore.errors import SchemaError, SourceError
from tests.building.conftest import draw, encode, with_exif

RAW = [[80, 10], [110, 10], [110, 25], [80, 25]]  # fits 120 x 90 only
UPRIGHT = [[10, 80], [25, 80], [25, 110], [10, 110]]  # fits 90 x 120 only
EITHER = [[10, 30], [60, 30], [60, 45], [10, 45]]


class Words:
    """A folder of turned pictures with one words JSON."""

    def __init__(self, root):
        self.images = root / "images"
        self.images.mkdir()
        self.file = root / "words.json"
        self.store = root / "out.ocrs"
        self.pictures = {}

    def add(self, name, quad, **said):
        """Add a picture of 120 x 90 pixels that is shown as 90 x 120."""
        jpeg = encode(draw(90, 120, seed=len(self.pictures)))
        (self.images / name).write_bytes(with_exif(jpeg, 6))
        self.pictures[name] = {"words": {"1": {"points": quad, "transcription": "a"}}, **said}
        self.file.write_text(json.dumps({"images": self.pictures}))

    def build(self, **options):
        """Build small."""
        options = {"annotations": self.file, "size": 64, "workers": 0, **options}
        return ocrstore.build(self.images, self.store, **options)

    def frames(self):
        """Return the frame of each picture's polygons, as it was stored."""
        store = ocrstore.open(self.store)
        return {
            key: "upright" if record["problems"][0].startswith("polygons-upright") else "raw"
            for key in store.keys
            for record in [store.attributes(key)]
        }


@pytest.fixture
def words(tmp_path):
    """An empty source."""
    return Words(tmp_path)


@pytest.mark.parametrize(("evident", "frame"), [(UPRIGHT, "upright"), (RAW, "raw")])
def test_the_whole_source_decides(words, evident, frame):
    """Polygons that fit both frames are in that of the others."""
    words.add("a.jpg", evident)
    words.add("b.jpg", EITHER)
    report = words.build()
    assert words.frames() == {"a.jpg": frame, "b.jpg": frame}
    assert any(f"are taken as {frame}" in reason for reason in report.reasons)
    recorded = ocrstore.open(words.store).metadata["build"]["polygons_frame"]
    assert recorded == {"asked": "auto", "ambiguous": frame}
    assert check_source(words.store, words.images, annotations=words.file).ok


def test_mixed_evidence_asks(words):
    """Both counts and the open pictures are named; what is said then is kept by later builds."""
    words.add("raw.jpg", RAW)
    words.add("up1.jpg", UPRIGHT)
    words.add("up2.jpg", UPRIGHT)
    mixed = words.build()  # nothing is open yet
    assert words.frames() == {"raw.jpg": "raw", "up1.jpg": "upright", "up2.jpg": "upright"}
    words.add("open.jpg", EITHER)
    with pytest.raises(SourceError, match=r"1 have .* raw .* 2 that .* 1 fit both \(open.jpg\)"):
        words.build()
    assert ocrstore.open(words.store).fingerprint == mixed.fingerprint
    assert words.build(polygons_frame="upright").derived == 1
    assert words.frames()["open.jpg"] == "upright" and words.frames()["raw.jpg"] == "raw"
    assert words.build().action == "nothing"
    words.add("more.jpg", EITHER)
    words.build()
    assert words.frames()["more.jpg"] == "upright"


def test_another_choice_derives_only_what_it_turns(words):
    """A later choice updates the pictures concerned, and equals a build from scratch."""
    words.add("a.jpg", EITHER)
    words.add("b.jpg", RAW)
    assert words.build().action == "create" and words.frames() == {"a.jpg": "raw", "b.jpg": "raw"}
    report = words.build(polygons_frame="upright")
    assert (report.action, report.derived) == ("update", 1)
    assert "polygons are taken as upright now" in report.reasons[0]
    updated = report.fingerprint
    assert words.build(polygons_frame="upright", force=True).fingerprint == updated
    assert check_source(words.store, words.images, annotations=words.file).ok


def test_evidence_that_comes_later(words):
    """Pictures that were guessed before are corrected when others show the frame."""
    words.add("a.jpg", EITHER)
    words.build()
    words.add("b.jpg", UPRIGHT)
    assert words.build().derived == 2
    assert words.frames() == {"a.jpg": "upright", "b.jpg": "upright"}


def test_an_annotation_that_says_it(words):
    """A dialect's word counts for its picture, whatever the others show."""
    words.add("a.jpg", RAW)
    words.add("b.jpg", EITHER, polygons_frame="upright")
    words.build()
    assert words.frames() == {"a.jpg": "raw", "b.jpg": "upright"}
    words.pictures["b.jpg"]["polygons_frame"] = "raw"
    words.file.write_text(json.dumps({"images": words.pictures}))
    assert words.build().derived == 1 and words.frames()["b.jpg"] == "raw"


def test_an_unknown_frame_is_refused(words):
    """What is not a choice is named before anything is read."""
    words.add("a.jpg", RAW)
    with pytest.raises(SchemaError, match="auto, raw, upright, not 'sideways'"):
        words.build(polygons_frame="sideways")


def test_pictures_without_annotations(words):
    """They make no map columns; asked for, there are empty ones."""
    words.add("a.jpg", RAW)
    words.file.unlink()
    report = words.build(annotations=None)
    assert set(report.columns) == {"image", "tensor", "inverse_matrix"}
    assert any("no annotations, so no maps" in reason for reason in report.reasons)
    asked = words.build(annotations=None, columns=["tensor", "prob_map"], force=True)
    assert set(asked.columns) == {"tensor", "prob_map"}


def test_annotations_that_come_later(words):
    """With a size the store gets its maps then."""
    words.add("a.jpg", RAW)
    ocrstore.build(words.images, words.store, annotations=None, format="folder", size=64)
    assert "prob_map" not in ocrstore.open(words.store).columns
    words.build()
    assert "prob_map" in ocrstore.open(words.store).columns
