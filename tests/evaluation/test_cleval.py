"""CLEval's detection score: by hand, and against figures made by the measure's own program."""

import json
from pathlib import Path

import pytest

from ocrstore.evaluation.cleval import CharacterScore, score_characters

SCENES = json.loads((Path(__file__).parent / "cleval_scenes.json").read_text())


def box(left, top, right, bottom):
    """Return a rectangle's corners, clockwise from the upper left one."""
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


WORD = box(0, 0, 80, 20)


@pytest.mark.parametrize(
    ("detections", "expected"),
    [
        ([WORD], CharacterScore(4, 4, 4, 0, 0)),
        ([box(0, 0, 45, 20)], CharacterScore(4, 2, 2, 0, 0)),
        ([box(0, 0, 40, 20), box(40, 0, 80, 20)], CharacterScore(4, 4, 4, 1, 0)),
        ([WORD, WORD], CharacterScore(4, 8, 4, 1, 0)),
        ([], CharacterScore(4, 0, 0, 0, 0)),
        ([box(100, 0, 120, 60)], CharacterScore(4, 3, 0, 0, 0)),
    ],
    ids=["whole", "half", "split", "twice", "none", "elsewhere"],
)
def test_one_word_of_four_characters(detections, expected):
    """Characters lie at 10, 30, 50 and 70; what is found of them is counted, splits are dear."""
    assert score_characters(detections, [WORD], [False], ["word"]) == expected


def test_a_detection_over_two_words_is_a_merge():
    """All characters are found, one penalty for the merge."""
    truths = [box(0, 0, 40, 20), box(50, 0, 90, 20)]
    score = score_characters([box(0, 0, 90, 20)], truths, [False, False], ["ab", "cd"])
    assert score == CharacterScore(4, 4, 4, 0, 1)


def test_detections_in_ignored_regions_do_not_count():
    """Neither as found nor as false."""
    assert score_characters([WORD], [WORD], [True], ["###"]) == CharacterScore(0, 0, 0, 0, 0)


def test_a_word_without_text_gets_characters_by_its_shape():
    """80 x 20 makes round(0.5 + 4) = 4."""
    score = score_characters([WORD], [WORD], [False], [None])
    assert score.truth_characters == score.hits == 4


def test_a_curved_word_has_its_characters_on_its_middle_line():
    """A polygon of six points: the characters follow the bend and all are found."""
    bend = [(0, 0), (50, 30), (100, 0), (100, 20), (50, 50), (0, 20)]
    score = score_characters([bend], [bend], [False], ["curved"])
    assert score == CharacterScore(6, 6, 6, 0, 0)


@pytest.mark.parametrize("number", range(len(SCENES)))
def test_scenes_scored_by_the_measures_own_program(number):
    """Counts equal those of the `cleval` package, version 0.1.1, on drawn scenes."""
    scene = SCENES[number]
    score = score_characters(scene["detections"], scene["truths"], scene["ignored"], scene["texts"])
    assert score == CharacterScore(*scene["expected"])


def test_figures_divide_sums_over_pictures():
    """Recall 6 / 8, precision 6 / 9; nothing counted gives zeros; penalties never go below 0."""
    false = box(100, 0, 120, 60)
    total = score_characters([WORD], [WORD], [False], ["word"])
    total += score_characters([box(0, 0, 45, 20), false], [WORD], [False], ["word"])
    assert total.figures == pytest.approx((6 / 9, 6 / 8, 2 * 36 / (6 * 8 + 6 * 9)))
    assert CharacterScore(0, 0, 0, 0, 0).figures == (0, 0, 0)
    assert CharacterScore(4, 4, 1, 2, 3).figures == (0, 0, 0)
