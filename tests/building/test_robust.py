"""One row for each odd thing that pictures and annotations can be; nothing is dropped silently."""

import json
import os
import sys
import unicodedata
from pathlib import Path

import pytest

import ocrstore
from ocrstore.building.build import build
from ocrstore.problems import KINDS
from tests.building.conftest import SIZE, draw, encode, kinds

GOOD = ["good.jpg"]
JPEG = encode(draw(seed=1))
SQUARE = [[5, 5], [60, 5], [60, 40], [5, 40]]


def words(dataset, name, **regions):
    """Annotate by the JSON of images and words."""
    for path in dataset.gt.iterdir():
        path.unlink()
    dataset.gt.rmdir()
    record = {"images": {"good.jpg": {"words": {"1": {"points": SQUARE}}}}}
    record["images"][name] = {"words": regions}
    (dataset.root / "gt.json").write_text(json.dumps(record))


def region(points):
    """A row's set-up: one good and one odd polygon."""

    def prepare(dataset):
        dataset.add("odd.jpg", seed=2, quads=None)
        words(dataset, "odd.jpg", a={"points": SQUARE}, b={"points": points})

    return prepare


def broken_json(text):
    """A row's set-up: LabelMe files, one of which is not what it should be."""

    def prepare(dataset):
        dataset.add("odd.jpg", seed=2, quads=None)
        for path in dataset.gt.iterdir():
            path.unlink()
        shape = {"label": "x", "points": SQUARE, "shape_type": "polygon"}
        good = {"imagePath": "good.jpg", "shapes": [shape]}
        (dataset.gt / "good.json").write_text(json.dumps(good))
        (dataset.gt / "odd.json").write_text(text)

    return prepare


def picture(name, data=JPEG):
    """A row's set-up: one more picture, whatever its bytes are."""
    return lambda dataset: dataset.add(name, data, quads=None)


def loop(dataset):
    """Make a folder that contains itself."""
    (dataset.images / "sub").mkdir()
    (dataset.images / "sub" / "again").symlink_to(dataset.images, target_is_directory=True)


def link(dataset):
    """Make a link to a picture elsewhere."""
    (dataset.root / "elsewhere.jpg").write_bytes(JPEG)
    (dataset.images / "link.jpg").symlink_to(dataset.root / "elsewhere.jpg")


def dead_link(dataset):
    """Make a link to nothing."""
    (dataset.images / "dead.jpg").symlink_to(dataset.root / "nowhere.jpg")


def unreadable(dataset):
    """Make a regular file that fails to be read, even for root."""
    (dataset.images / "odd.jpg").symlink_to("/proc/self/mem")


def not_utf8(dataset):
    """Make a name that is no Unicode."""
    folder = os.fsencode(dataset.images)
    Path(os.fsdecode(folder + b"/caf\xe9.jpg")).write_bytes(JPEG)


def long_path(dataset):
    """Make a path whose key, with every byte escaped, is longer than keys may be."""
    name = os.fsdecode(b"\xff" * 230)
    folder = os.open(dataset.images, os.O_RDONLY)
    for _ in range(10):
        os.mkdir(name, dir_fd=folder)
        inner = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    file = os.open("odd.jpg", os.O_WRONLY | os.O_CREAT, dir_fd=folder)
    os.write(file, JPEG)
    os.close(file)
    os.close(folder)


def unicode_forms(dataset):
    """Make two names that look the same."""
    for form in ("NFC", "NFD"):
        dataset.add(unicodedata.normalize(form, "é.jpg"), JPEG, quads=None)


def pipe(dataset):
    """Make a named pipe, which would block who opens it."""
    os.mkfifo(dataset.images / "pipe.jpg")


def case(dataset):
    """Make two names that differ by case."""
    dataset.add("A.jpg", JPEG, quads=None)
    dataset.add("a.jpg", JPEG, quads=None)


def locked_folder(dataset):
    """Annotate a picture that is not there."""
    dataset.annotate("ghost.jpg", "5,5,60,5,60,40,5,40,boo")


NOT_ANNOTATED = "no-annotation"
# name: (set-up, further samples, kinds of problems)
ROWS = {
    "zero bytes": (picture("odd.jpg", b""), [], {"bad-picture"}),
    "truncated": (picture("odd.jpg", JPEG[: len(JPEG) // 2]), [], {"bad-picture"}),
    "truncated png": (picture("odd.png", encode(draw(), ".png")[:999]), [], {"bad-picture"}),
    "mislabelled": (picture("odd.png"), ["odd.png"], {"mislabelled"}),
    "a text with a picture's name": (picture("odd.jpg", b"hello"), [], {"bad-picture"}),
    "not a picture": (picture("notes.pdf", b"%PDF"), [], {"not-a-picture"}),
    "unreadable": (unreadable, [], {"unreadable"}),
    "dead link": (dead_link, [], {"broken-link"}),
    "link": (link, ["link.jpg"], set()),
    "loop": (loop, [], {"folder-seen-twice"}),
    "pipe": (pipe, [], {"not-a-file"}),
    "hidden": (picture(".odd.jpg"), [], {"hidden-files"}),
    "spaces": (picture(" a  b .jpg"), [" a  b .jpg"], set()),
    "quotes": (picture("\"'`$.jpg"), ["\"'`$.jpg"], set()),
    "newline": (picture("a\nb.jpg"), ["a\nb.jpg"], set()),
    "emoji": (picture("🙂‍↔️.jpg"), ["🙂‍↔️.jpg"], set()),
    "backslash": (picture("a\\b.jpg"), ["a\\\\b.jpg"], set()),
    "not UTF-8": (not_utf8, ["caf\\xe9.jpg"], set()),
    "case": (case, ["A.jpg", "a.jpg"], {"case-collision"}),
    "Unicode form": (
        unicode_forms,
        sorted(unicodedata.normalize(form, "é.jpg") for form in ("NFC", "NFD")),
        {"unicode-collision"},
    ),
    "a path too long for a key": (long_path, [], {"bad-key"}),
    "annotation without picture": (locked_folder, [], {"missing-picture"}),
    "NaN": (region([[1, 1], [float("nan"), 5], [9, 9]]), ["odd.jpg"], {"not-finite"}),
    "infinite": (region([[1, 1], [float("inf"), 5], [9, 9]]), ["odd.jpg"], {"not-finite"}),
    "two points": (region([[1, 1], [9, 9]]), ["odd.jpg"], {"too-few-points"}),
    "odd count": (region([1, 1, 9, 1, 9, 9, 5]), ["odd.jpg"], {"odd-coordinates"}),
    "huge": (region([[1, 1], [1e30, 5], [9, 9]]), ["odd.jpg"], {"huge-coordinates"}),
    "words for numbers": (region([["a", "b"], [1, 2], [3, 4]]), ["odd.jpg"], {"not-a-number"}),
    "outside": (
        region([[9000, 9000], [9050, 9000], [9050, 9050]]),
        ["odd.jpg"],
        {"polygon-outside"},
    ),
    "wrong JSON": (broken_json('{"imagePath": "odd.jpg", '), ["odd.jpg"], {"bad-json"}),
    "missing key": (broken_json('{"imagePath": "odd.jpg"}'), ["odd.jpg"], {"missing-key"}),
    "wrong type": (
        broken_json('{"imagePath": "odd.jpg", "shapes": 7}'),
        ["odd.jpg"],
        {"bad-structure"},
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_every_odd_thing_is_built_or_reported(dataset, name, tmp_path):
    """The good picture is always built, the odd thing kept or reported, and the report is whole."""
    prepare, further, wanted = ROWS[name]
    dataset.add("good.jpg", seed=9)
    if sys.platform != "linux" and name in (
        "unreadable",
        "not UTF-8",
        "pipe",
        "case",
        "a path too long for a key",
    ):
        pytest.skip("this file system does not have such names or files")
    prepare(dataset)
    report = build(dataset.images, dataset.store, size=SIZE, workers=0)
    store = ocrstore.open(dataset.store)
    assert sorted(store.keys) == sorted(GOOD + further)
    assert kinds(report) - {NOT_ANNOTATED} == wanted
    assert report.ok == (not any(KINDS[kind].loses for kind in wanted))
    assert set(report.skipped) == set(report.skipped) - set(store.keys)
    # a picture is in the store or in the report, and so is every polygon
    named = {problem.key for problem in report.problems}
    assert set(report.skipped) <= named
    assert ocrstore.verify(dataset.store).ok
    report.write(tmp_path / "report.json")
    record = json.loads((tmp_path / "report.json").read_text())
    assert {p["kind"] for p in record["problems"]} == kinds(report)
    if "odd.jpg" in further and wanted & {"not-finite", "too-few-points", "huge-coordinates"}:
        (problem,) = [p for p in report.problems if p.key == "odd.jpg"]
        assert problem.polygon == 1
        assert len(store.attributes("odd.jpg")["polygons"]) == 1


def test_all_of_it_at_once_with_workers(dataset):
    """Every odd picture in one folder, through worker processes: the same counts."""
    dataset.add("good.jpg", seed=9)
    rows = [name for name, (_, _, wanted) in ROWS.items() if wanted <= {"bad-picture"}]
    for name in rows:
        if name not in ("truncated", "a text with a picture's name", "not UTF-8"):
            ROWS[name][0](dataset)
    one = build(dataset.images, dataset.store, size=SIZE, workers=0)
    two = build(dataset.images, dataset.root / "two.ocrs", size=SIZE, workers=2)
    assert one.fingerprint == two.fingerprint
    assert one.counts() == two.counts() and one.skipped == two.skipped
