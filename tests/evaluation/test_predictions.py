"""Predictions: file formats, matching to samples, scores."""

import json

import numpy as np
import pytest

import ocrstore
from ocrstore.errors import SourceError
from ocrstore.evaluation.predictions import Scores, read_predictions
from tests.viewer.conftest import QUADS, write_store

KEYS = ["a/img_1.jpg", "a/img_2.jpg", "b/img_2.jpg", "gt_odd.png"]
LINE = "10,10,90,10,90,34,10,34"


def read(tmp_path, files, keys=KEYS):
    """Write files and read them as predictions."""
    for name, text in files.items():
        path = tmp_path / "boxes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return read_predictions(tmp_path / "boxes", keys)


def test_names(tmp_path):
    """Found by path, with or without res_, by bare name where it is unique."""
    found = read(
        tmp_path,
        {
            "a/res_img_2.txt": LINE,
            "b/img_2.txt": f"{LINE}\n{LINE}\n",
            "res_img_1.txt": "",
            "gt_odd.txt": LINE,
            "img_2.txt": LINE,
            "other.txt": LINE,
        },
    )
    assert {row: len(boxes) for row, boxes in found.boxes.items()} == {0: 0, 1: 1, 2: 2, 3: 1}
    assert set(found.unknown) == {"img_2", "other"}


@pytest.mark.parametrize(
    ("line", "points", "score"),
    [
        (LINE, 4, None),
        (LINE + ",0.93", 4, 0.93),
        (LINE + ",Total, and 3 more", 4, None),
        (LINE + ",12 Street", 4, None),
        ("10 10 90 34", 4, None),
        ("10,10,90,34,0.5", 4, 0.5),
        ("0,0,9,0,9,9,5,12,0,9", 5, None),
        ("0,0,9,0,9,9", 3, None),
        ("1.5, 2.5, 9, 2, 9, 8, 1, 8", 4, None),
    ],
)
def test_lines(tmp_path, line, points, score):
    """Quadrilaterals, boxes and polygons; a score or a text behind them."""
    found = read(tmp_path, {"img_1.txt": f"\ufeff{line}\r\n\r\n"})
    (box,) = found.boxes[0]
    assert box.points.shape == (points, 2) and box.score == score


def test_json(tmp_path):
    """As `ocrstore predict` writes it, and shorter forms; it goes before text files."""
    record = {
        "a/img_1.jpg": [{"points": [[1, 2], [3, 4], [5, 6]], "score": 0.5}, [1, 2, 3, 4, 5, 6]],
        "a/img_2": [],
    }
    path = tmp_path / "found.json"
    path.write_text(json.dumps(record))
    found = read_predictions(path, KEYS)
    assert [box.score for box in found.boxes[0]] == [0.5, None] and found.boxes[1] == ()
    files = {"boxes.json": json.dumps(record), "a/img_1.txt": LINE, "b/img_2.txt": LINE}
    found = read(tmp_path, files)
    assert {row: len(boxes) for row, boxes in found.boxes.items()} == {0: 2, 1: 0, 2: 1}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"img_1.txt": f"{LINE}\n1,2,3\n"}, "img_1.txt line 2.*found 3"),
        ({"img_1.txt": "1,2,3,4,5,6,7,nan"}, "not finite"),
        ({"boxes.json": "{"}, "not valid JSON"),
        ({"boxes.json": "[]"}, "object with picture names"),
        ({"boxes.json": '{"a/img_1.jpg": [{"points": "x"}]}'}, "box 0.*three or more"),
        ({"boxes.json": '{"a/img_1.jpg": [{"points": [1,2,3,4,5,6], "score": "x"}]}'}, "score"),
        (
            {"boxes.json": '{"a/img_1.jpg": [[1,2,3,4,5,1%s]]}' % ("0" * 400)},
            "box 0.*three or more",
        ),
        ({"boxes.json": '{"a": [{"points": [1,2,3,4,5,6], "score": 1%s}]}' % ("0" * 400)}, "score"),
        ({"boxes.json": '{"": [], "/": [], "res_.": [], "..": []}'}, "none of its 4 pictures"),
        ({"elsewhere.txt": LINE}, "none of its 1 pictures"),
        ({"readme.md": ""}, "contains no predictions"),
    ],
)
def test_what_is_wrong(tmp_path, files, words):
    """The message names the file, the place in it and what was expected."""
    with pytest.raises(SourceError, match=words):
        read(tmp_path, files)


def test_odd_keys(tmp_path):
    """Keys that are no file names do not matter."""
    keys = ["/", "..", ".", "a/", "res_.", ".jpg", "a/img_1.jpg"]
    assert list(read(tmp_path, {"img_1.txt": LINE}, keys).boxes) == [6]


def test_neither_folder_nor_json(tmp_path):
    """Any other file is refused."""
    (tmp_path / "boxes.zip").write_bytes(b"PK")
    with pytest.raises(SourceError, match="expected a folder"):
        read_predictions(tmp_path / "boxes.zip", KEYS)


def test_scores(tmp_path):
    """Hits, misses and false alarms by the ICDAR protocol; ignored regions do not count."""
    store = ocrstore.open(write_store(tmp_path / "s.ocrs", samples=4))
    hit = np.reshape(QUADS[0], (-1, 2)) + 1
    ignored = np.reshape(QUADS[2], (-1, 2))
    false = np.array([[120, 90], [150, 90], [150, 110], [120, 110]])
    record = {"img_03.jpg": [p.tolist() for p in (false, hit, ignored)], "img_00.jpg": []}
    path = tmp_path / "boxes.json"
    path.write_text(json.dumps(record))
    scores = Scores(store, read_predictions(path, store.keys))
    pairing = scores.pairing(3)
    assert pairing.pairs == ((0, 1),)
    assert pairing.counted_truths == (0, 1) and pairing.counted_detections == (0, 1)
    assert scores.numbers["hmean"][3] == pytest.approx(0.5)
    assert [scores.numbers[n][3] for n in ("hits", "misses", "false_alarms")] == [1, 1, 1]
    assert scores.numbers["hmean"][0] == 1.0 and np.isnan(scores.numbers["hmean"][1])
    assert (scores.total.matched, scores.total.truths, scores.total.detections) == (1, 2, 2)
