"""Which picture an annotation means: one row for each rule."""

# A table reads best with one row per line:
# ruff: noqa: E501

import unicodedata

import pytest

from ocrstore.sources import open_source

NFC = unicodedata.normalize("NFC", "Café.jpg")
NFD = unicodedata.normalize("NFD", "Café.jpg")


def words(*names):
    """A words JSON in which the n-th name has one region whose text is n."""
    square = [[0, 0], [9, 0], [9, 9], [0, 9]]
    word = {"points": square}
    return {
        "images": {
            n: {"words": {"1": {**word, "transcription": str(i)}}} for i, n in enumerate(names)
        }
    }


def texts(source):
    """Each key's text; None where the picture is not annotated."""
    return {s.key: s.polygons[0].text if s.annotated else None for s in source}


ROWS = [
    # pictures, names in the annotation, which picture gets which, problems
    ("exact", ["a.jpg"], ["a.jpg"], {"a.jpg": "0"}, {}),
    ("exact path", ["x/a.jpg", "y/a.jpg"], ["y/a.jpg", "x/a.jpg"], {"x/a.jpg": "1", "y/a.jpg": "0"}, {"same-name": 1}),
    ("exact beats form", [NFC, NFD], [NFD, NFC], {NFC: "1", NFD: "0"}, {"unicode-collision": 1}),
    ("form", [NFD], [NFC], {NFD: "0"}, {}),
    ("form, other way", [NFC], [NFD], {NFC: "0"}, {}),
    ("exact beats case", ["A.jpg", "a.jpg"], ["a.jpg", "A.jpg"], {"A.jpg": "1", "a.jpg": "0"}, {"case-collision": 1}),
    ("case", ["img.jpg"], ["IMG.JPG"], {"img.jpg": "0"}, {}),
    ("case, ambiguous", ["A.jpg", "a.jpg", "b.jpg"], ["b.jpg", "a.JPG"], {"A.jpg": None, "a.jpg": None, "b.jpg": "0"},
     {"case-collision": 1, "ambiguous-name": 1, "no-annotation": 2}),
    ("prefix in annotation", ["a.jpg"], ["train/images/a.jpg"], {"a.jpg": "0"}, {}),
    ("absolute path", ["x/a.jpg"], ["/home/me/x/a.jpg"], {"x/a.jpg": "0"}, {}),
    ("windows path", ["x/a.jpg"], ["C:\\data\\x\\a.jpg"], {"x/a.jpg": "0"}, {}),
    ("dots", ["x/a.jpg"], ["./y/../x/a.jpg"], {"x/a.jpg": "0"}, {}),
    ("prefix tells two apart", ["x/a.jpg", "y/a.jpg"], ["d/x/a.jpg", "d/y/a.jpg"], {"x/a.jpg": "0", "y/a.jpg": "1"}, {"same-name": 1}),
    ("prefix on disk", ["x/a.jpg"], ["a.jpg"], {"x/a.jpg": "0"}, {}),
    ("two of one name", ["x/a.jpg", "y/a.jpg", "b.jpg"], ["a.jpg", "b.jpg"],
     {"x/a.jpg": None, "y/a.jpg": None, "b.jpg": "1"}, {"same-name": 1, "ambiguous-name": 1, "no-annotation": 2}),
    ("root beats folder", ["a.jpg", "y/a.jpg"], ["a.jpg"], {"a.jpg": "0", "y/a.jpg": None}, {"same-name": 1, "no-annotation": 1}),
    ("last part", ["x/a.jpg"], ["other/a.jpg"], {"x/a.jpg": "0"}, {}),
    ("last part is taken", ["test/a.jpg"], ["train/a.jpg", "test/a.jpg"], {"test/a.jpg": "1"}, {"missing-picture": 1}),
    ("flattened", ["a.jpg", "b.jpg"], ["train/a.jpg", "test/a.jpg", "b.jpg"], {"a.jpg": None, "b.jpg": "2"},
     {"ambiguous-name": 2, "no-annotation": 1}),
    ("one twice", ["a.jpg"], ["a.jpg", "./a.jpg"], {"a.jpg": "0"}, {"duplicate-annotation": 1}),
    ("stem", ["a.jpg"], ["a.png"], {"a.jpg": "0"}, {}),
    ("stem without ending", ["a.jpg"], ["a"], {"a.jpg": "0"}, {}),
    ("stem with a dot", ["v1.jpg", "v1.2.jpg"], ["v1.2"], {"v1.jpg": None, "v1.2.jpg": "0"}, {"no-annotation": 1}),
    ("stem is taken", ["a.jpg"], ["a.png", "a.jpg"], {"a.jpg": "1"}, {"missing-picture": 1}),
    ("stem, ambiguous", ["a.jpg", "a.png", "b.jpg"], ["a", "b"], {"a.jpg": None, "a.png": None, "b.jpg": "1"},
     {"ambiguous-name": 1, "no-annotation": 2}),
    ("not there", ["a.jpg"], ["a.jpg", "gone.jpg"], {"a.jpg": "0"}, {"missing-picture": 1}),
    ("not annotated", ["a.jpg", "b.jpg"], ["a.jpg"], {"a.jpg": "0", "b.jpg": None}, {"no-annotation": 1}),
    ("empty name", ["a.jpg"], ["a.jpg", ""], {"a.jpg": "0"}, {"bad-name": 1}),
    ("only dots", ["a.jpg"], ["a.jpg", "../.."], {"a.jpg": "0"}, {"missing-picture": 1}),
    ("spaces, quotes, newline, emoji", ["a b.jpg", "it's \"q\".jpg", "n\nl.jpg", "🎉.jpg"], ["a b.jpg", "it's \"q\".jpg", "n\nl.jpg", "🎉.jpg"],
     {"a b.jpg": "0", "it's \"q\".jpg": "1", "n\nl.jpg": "2", "🎉.jpg": "3"}, {}),
    ("bytes that are no UTF-8, by Latin-1", [b"caf\xe9.jpg"], ["café.jpg"], {"caf\\xe9.jpg": "0"}, {}),
    ("bytes that are no UTF-8, by key", [b"caf\xe9.jpg"], ["caf\\xe9.jpg"], {"caf\\xe9.jpg": "0"}, {}),
    ("bytes that are no UTF-8, by escape", [b"caf\xe9.jpg"], ["caf\udce9.jpg"], {"caf\\xe9.jpg": "0"}, {}),
    ("backslash on disk", ["a\\b.jpg"], ["a\\b.jpg"], {"a\\\\b.jpg": "0"}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("pictures", "names", "expected", "problems"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])  # fmt: skip
def test_rule(make, kinds, pictures, names, expected, problems):
    """Each rule of matching gives the documented picture and the documented problems."""
    images = make(dict.fromkeys(pictures))
    annotations = make({"w.json": words(*names)}, into="ann") / "w.json"
    source = open_source(images, annotations=annotations)
    assert texts(source) == expected
    assert kinds(source) == problems
    for problem in source.problems:
        problem.message.encode("utf-8")


def test_no_annotation_names_any_picture(make):
    """Annotations that were named and fit nothing are refused, with the first reason."""
    from ocrstore.errors import SourceError

    images = make({"a.jpg": None})
    annotations = make({"w.json": words("x.jpg", "y.jpg")}, into="ann")
    with pytest.raises(SourceError, match=r"none of the 2 words annotations.*x\.jpg"):
        open_source(images, annotations=annotations)


def test_many_folders_with_one_name_stay_fast(make):
    """A thousand pictures of one name in different folders are distinguished without comparing all."""
    names = [f"{n}/img.jpg" for n in range(1000)]
    images = make(dict.fromkeys(names))
    annotations = make({"w.json": words(*(f"data/{name}" for name in names))}, into="ann")
    source = open_source(images, annotations=annotations)
    assert texts(source) == {name: str(i) for i, name in enumerate(names)}
