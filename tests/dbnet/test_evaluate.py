"""Scoring beside the network: one copy per batch, in order, on the right device, and it ends."""

import threading

import numpy as np
import pytest
import torch

from ocrstore.dbnet import evaluate
from ocrstore.dbnet.evaluate import Scoring
from ocrstore.evaluation.postprocess import PostParams
from ocrstore.evaluation.results import ground_truth_of
from tests.fake_cuda import Event, Fake


@pytest.fixture
def fake(monkeypatch):
    """Two fake GPUs; the network is on the second one."""
    device = Fake()
    device.install(monkeypatch)
    device.set_device(1)
    device.contexts.clear()
    yield device
    device.close()


def maps_of(batch):
    """Return perfect probability maps of a batch."""
    return batch["prob_maps"].float()


def run(prob_maps, batches, device):
    """Score batches and return the counts of all pictures."""
    scores = Scoring(PostParams(), torch.device(device), characters=True)
    for prob, batch in zip(prob_maps, batches, strict=True):
        scores.submit(prob, ground_truth_of(batch))
    return scores.finish()


def test_scores_come_in_order(bars_loader):
    """Every bar is found; keys are those of the loader; no thread lives on."""
    batches = list(bars_loader(20))
    scored = run(map(maps_of, batches), batches, "cpu")
    assert [key for batch in scored for key in batch.keys] == [f"bar-{n}.jpg" for n in range(20)]
    assert [score.matched for batch in scored for score in batch.pictures] == [1] * 20
    assert sum(len(batch.characters) for batch in scored) == 20
    assert not [t for t in threading.enumerate() if t.name.startswith("ocrstore-score")]


def test_an_error_comes_out(bars_loader):
    """What fails in a thread is raised at the end, and the threads end."""
    (batch,) = bars_loader(2)
    scores = Scoring(PostParams(), torch.device("cpu"), characters=False)
    scores.submit(torch.zeros(2, 3, 4), ground_truth_of({**batch, "ignored": [[], [], []]}))
    with pytest.raises(ValueError, match="1 truths with 0 flags"):
        scores.finish()
    assert not [t for t in threading.enumerate() if t.name.startswith("ocrstore-score")]


def on_device(fake, batches):
    """Yield maps that a late kernel writes, and whose memory is used again at once."""
    for batch in batches:
        yield fake.copy_to(fake.pin(maps_of(batch)), "cuda:1", non_blocking=True)


def matched(scored):
    """Return how many bars were found."""
    return sum(score.matched for batch in scored for score in batch.pictures)


def test_maps_are_fetched_late_and_right(fake, bars_loader):
    """Nobody waits in the loop; the threads wait for their batch, on the GPU of the network."""
    batches = list(bars_loader(20))
    assert matched(run(on_device(fake, batches), batches, "cuda:1")) == 20
    assert fake.waits == 0 and fake.contexts == {1}


def test_a_thread_that_does_not_wait_is_seen(fake, bars_loader, monkeypatch):
    """Without waiting for the copy, boxes are sought in memory that is not filled yet."""
    batches = list(bars_loader(20))
    monkeypatch.setattr(Event, "synchronize", lambda _: None)
    fake.copy_seconds = 0.02
    assert matched(run(on_device(fake, batches), batches, "cuda:1")) < 20


def test_a_thread_on_the_wrong_gpu_is_seen(fake, bars_loader, monkeypatch):
    """Waiting in a thread that is still on GPU 0 makes a context there."""
    batches = list(bars_loader(2))
    monkeypatch.setattr(evaluate, "enter_device", lambda _: None)
    run(on_device(fake, batches), batches, "cuda:1")
    assert fake.contexts == {0, 1}


def test_scores_are_those_of_the_maps(bars_loader):
    """An empty map finds nothing."""
    (batch,) = bars_loader(2)
    (scored,) = run([torch.zeros_like(maps_of(batch))], [batch], "cpu")
    assert [len(found.polygons) for found in scored.found] == [0, 0]
    assert np.mean([score.truths for score in scored.pictures]) == 1
