"""One row for each odd case of names and annotations a build has to survive, through `open_source`."""

# A table reads best with one row per line:
# ruff: noqa: E501

import json
import unicodedata

import pytest

from ocrstore.problems import SOURCE_KINDS
from ocrstore.sources import open_source

SQUARE = [[0, 0], [9, 0], [9, 9], [0, 9]]
NFC, NFD = (unicodedata.normalize(form, "é.jpg") for form in ("NFC", "NFD"))


def regions(*points):
    """A words JSON in which a.jpg has a good region and then these."""
    words = {str(i): {"points": p} for i, p in enumerate([SQUARE, *points])}
    return {"images": {"a.jpg": {"words": words}}}


def lines(*more):
    """An ICDAR file with a good line and then these."""
    return "\n".join(["0,0,9,0,9,9,0,9,w", *more])


def label(name, payload=None):
    """A PaddleOCR file with one line."""
    return f"{name}\t" + (payload or json.dumps([{"transcription": "w", "points": SQUARE}]))


ONE = {"a.jpg": (True, 1)}

ROWS = {
    # case: (pictures, annotation file, its content, {key: (annotated, polygons)}, {kind: count})
    "spaces": (["a b .jpg"], "l.txt", label("a b .jpg"), {"a b .jpg": (True, 1)}, {}),
    "quotes": (["it's \"a\".jpg"], "l.txt", label("it's \"a\".jpg"), {"it's \"a\".jpg": (True, 1)}, {}),
    "newlines": (["a\nb.jpg"], "w.json", {"images": {"a\nb.jpg": {"words": {}}}}, {"a\nb.jpg": (True, 0)}, {}),
    "emoji": (["🧾.jpg"], "l.txt", label("🧾.jpg"), {"🧾.jpg": (True, 1)}, {}),
    "non-UTF-8 bytes": ([b"\xff\xfe.jpg"], "w.json", {"images": {"\udcff\udcfe.jpg": {"words": {}}}}, {"\\xff\\xfe.jpg": (True, 0)}, {}),
    "non-UTF-8 bytes in the label file": ([b"\xe9.jpg", "b.jpg"], "l.txt", (label("b.jpg") + "\n" + label("é.jpg")).encode("latin-1"), {"\\xe9.jpg": (True, 1), "b.jpg": (True, 1)}, {"not-utf8": 1}),
    "names by case": (["A.jpg", "a.jpg"], "l.txt", label("A.jpg"), {"A.jpg": (True, 1), "a.jpg": (False, 0)}, {"case-collision": 1, "no-annotation": 1}),
    "names by Unicode form": ([NFC, NFD], "l.txt", label(NFD), {NFC: (False, 0), NFD: (True, 1)}, {"unicode-collision": 1, "no-annotation": 1}),
    "two pictures of one name": (["x/a.jpg", "y/a.jpg"], "l.txt", label("x/a.jpg"), {"x/a.jpg": (True, 1), "y/a.jpg": (False, 0)}, {"same-name": 1, "no-annotation": 1}),
    "picture that is not there": (["a.jpg"], "l.txt", label("a.jpg") + "\n" + label("b.jpg"), ONE, {"missing-picture": 1}),
    "picture without annotation": (["a.jpg", "b.jpg"], "l.txt", label("a.jpg"), {"a.jpg": (True, 1), "b.jpg": (False, 0)}, {"no-annotation": 1}),
    "picture annotated twice": (["a.jpg"], "l.txt", label("a.jpg") + "\n" + label("a.jpg"), ONE, {"duplicate-annotation": 1}),
    "NaN": (["a.jpg"], "w.json", regions([[0, 0], [1, float("nan")], [1, 1]]), ONE, {"not-finite": 1}),
    "NaN in a line": (["a.jpg"], "a.txt", lines("0,0,9,0,9,nan,0,9,w"), ONE, {"not-finite": 1}),
    "infinities": (["a.jpg"], "w.json", regions([[0, 0], [1, float("inf")], [1, 1]], [[0, 0], [float("-inf"), 1], [1, 1]]), ONE, {"not-finite": 2}),
    "infinities in a line": (["a.jpg"], "a.txt", lines("0,0,9,0,9,inf,0,9,w"), ONE, {"not-finite": 1}),
    "under three points": (["a.jpg"], "w.json", regions([], [[1, 1]], [[1, 1], [2, 2]]), ONE, {"too-few-points": 3}),
    "under three points in a line": (["a.jpg"], "a.txt", lines("1,1,2,2,w"), ONE, {"too-few-points": 1}),
    "odd counts": (["a.jpg"], "w.json", regions([1, 2, 3, 4, 5, 6, 7], [[0, 0], [1, 1], [2]]), ONE, {"odd-coordinates": 2}),
    "odd counts in a line": (["a.jpg"], "a.txt", lines("1,2,3,4,5,6,7,w"), ONE, {"odd-coordinates": 1}),
    "huge coordinates": (["a.jpg"], "w.json", regions([[0, 0], [1e30, 0], [1, 1]], [[0, 0], [10**50, 0], [1, 1]]), ONE, {"huge-coordinates": 2}),
    "huge coordinates in a line": (["a.jpg"], "a.txt", lines("0,0,9,0,9,1e9,0,9,w"), ONE, {"huge-coordinates": 1}),
    "wrong JSON in a line": (["a.jpg", "b.jpg"], "l.txt", label("a.jpg") + "\n" + label("b.jpg", "[{"), {"a.jpg": (True, 1), "b.jpg": (False, 0)}, {"bad-json": 1}),
    "missing keys": (["a.jpg"], "w.json", {"images": {"a.jpg": {"words": {"1": {"points": SQUARE}, "2": {}}}}}, ONE, {"missing-key": 1}),
    "missing keys of a picture": (["a.jpg", "b.jpg"], "w.json", {"images": {"a.jpg": {"words": {"1": {"points": SQUARE}}}, "b.jpg": {}}}, {"a.jpg": (True, 1), "b.jpg": (False, 0)}, {"missing-key": 1}),
    "not a picture": (["a.jpg", "notes.md"], "l.txt", label("a.jpg"), ONE, {"not-a-picture": 1}),
    "zero-byte annotation": (["a.jpg"], "a.txt", "", {"a.jpg": (True, 0)}, {"empty-annotation": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", ROWS)
def test_row(make, kinds, case):
    """Each odd case ends in the documented samples and problems; nothing vanishes, nothing raises."""
    pictures, name, content, expected, problems = ROWS[case]
    images = make(dict.fromkeys(pictures))
    format = {"l.txt": "paddleocr", "a.txt": "icdar", "w.json": "words"}[name]
    source = open_source(images, annotations=make({name: content}, into="ann"), format=format)
    assert {s.key: (s.annotated, len(s.polygons)) for s in source} == expected
    assert kinds(source) == problems
    for problem in [*source.problems, *(p for s in source for p in s.problems)]:
        assert problem.kind in SOURCE_KINDS
        problem.message.encode("utf-8")  # fit for any report


def test_wrong_json_of_a_picture_file(make, kinds):
    """Wrong JSON in a picture's own file loses the annotation of that picture, and is reported."""
    images = make({"a.jpg": None, "a.json": '{"shapes": [}'})
    source = open_source(images, annotations=images, format="labelme")
    assert not source["a.jpg"].annotated and kinds(source) == {"bad-json": 1}
