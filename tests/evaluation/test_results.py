"""Figures over a data set and their CSV table."""

import csv

import numpy as np
import pytest

from ocrstore.errors import WriteError
from ocrstore.evaluation.results import Results


def box(left, top, right, bottom):
    """Return a rectangle's corners, clockwise from the upper left one."""
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)], float)


A = box(0, 0, 100, 20)
FAR = box(0, 500, 100, 520)


@pytest.fixture
def results():
    """Two pictures: 1 of 1 and 1 of 3 truths found, with 2 detections each."""
    results = Results()
    results.add("good", [A, FAR], [A], [False], ["five!"])
    results.add("bad", [A, box(500, 0, 600, 20)], [A, FAR, FAR], [False] * 3, ["five!", None, None])
    return results


def test_sums_are_divided_not_means(results):
    """Precision 2 / 4, recall 2 / 4; CLEval found the characters of the words it was given."""
    assert results.icdar == (0.5, 0.5, 0.5)
    assert results.characters.hits == 10 and 0 < results.cleval.recall < 1


def test_nothing_counted_is_zero():
    """No truth and no detection: zeros, not nan."""
    empty = Results()
    empty.add("empty", [], [], [], [])
    assert empty.icdar == empty.cleval == (0, 0, 0)


def test_the_table_has_the_worst_first(results, tmp_path):
    """One row for each picture with its counts and figures."""
    results.write_table(tmp_path / "table.csv")
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert [row["picture"] for row in rows] == ["bad", "good"]
    assert (rows[0]["recall"], rows[0]["precision"], rows[0]["hmean"]) == (
        *("0.3333", "0.5000", "0.4000"),
    )
    assert rows[1]["matched"] == "1"


def test_a_table_that_cannot_be_written(results, tmp_path):
    """The error names the file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"table\.csv"):
        results.write_table(tmp_path / "file" / "table.csv")
