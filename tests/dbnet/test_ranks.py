"""Two processes with gloo: resumed by another number, uneven sets, and the mean of the loss."""

import json
import os

import pytest

from tests.torch_.making import make_store

pytestmark = [
    pytest.mark.slow,  # processes that import Lightning
    pytest.mark.timeout(300),  # ranks that wait for each other would never end
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of 37 samples: two ranks cannot divide them."""
    return make_store(tmp_path_factory.mktemp("ranks") / "val.ocrs", samples=37, sizes=(96,))


def rows_by_epoch(folder):
    """Return the rows that all ranks have trained in each epoch, and steps of each rank."""
    seen, steps = {0: [], 1: []}, []
    for path in sorted(folder.glob("rows-*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        steps.append(len(lines))
        for epoch, rows in lines:
            seen[epoch] += rows
    return seen, steps


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_an_epoch_is_resumed_by_another_number_of_ranks(run_driver, store, tmp_path, first, second):
    """What was left comes once, up to what is drawn twice to be even; then a whole epoch."""
    run_driver("ranks.py", "resume", store, tmp_path, first, 3)
    seen, _ = rows_by_epoch(tmp_path)
    assert len(seen[0]) == 9 * first and not seen[1]
    run_driver("ranks.py", "resume", store, tmp_path, second)
    seen, _ = rows_by_epoch(tmp_path)
    for epoch, rows in seen.items():
        assert set(rows) == set(range(37)), epoch
        assert len(rows) <= 38


def test_ranks_train_the_same_number_of_steps(run_driver, store, tmp_path):
    """37 samples on two ranks: neither waits for the other, every sample is trained."""
    run_driver("ranks.py", "uneven", store, tmp_path, 2)
    seen, steps = rows_by_epoch(tmp_path)
    assert steps == [14, 14]
    assert all(set(rows) == set(range(37)) for rows in seen.values())


def test_the_loss_is_that_of_one_process(run_driver, store, tmp_path):
    """19 and 18 pictures on two ranks weigh as 37 on one, up to how batches are balanced."""
    (one,) = run_driver("ranks.py", "loss", store, tmp_path, 1)
    (two,) = run_driver("ranks.py", "loss", store, tmp_path, 2)
    assert two["loss"] == pytest.approx(one["loss"], rel=0.01)
    assert two["hmean"] == pytest.approx(one["hmean"])
