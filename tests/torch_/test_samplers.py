"""Orders that can be interrupted, split over ranks and read from disk in large runs."""

import itertools
import json

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ocrstore.torch import OCRStoreDataset, ResumableSampler, WindowShuffleSampler, sampler_state
from tests.waiting import wait_until


class Grouped:
    """Rows in groups of eight, as a store larger than memory would have them."""

    def __init__(self, rows=100):
        self.rows = rows
        self.asked = []

    def __len__(self):
        return self.rows

    @property
    def row_groups(self):
        """As of a store."""
        return [(a, min(a + 8, self.rows)) for a in range(0, self.rows, 8)]

    def read_ahead(self, rows):
        """Remember what was asked for."""
        self.asked.append(rows.tolist())


def make(kind, **options):
    """Return a sampler of either kind."""
    if kind == "window":
        return WindowShuffleSampler(Grouped(), window=3, **options)
    return ResumableSampler(Grouped(), **options)


@pytest.mark.parametrize("kind", ["resumable", "window"])
def test_every_sample_once_and_another_order_each_epoch(kind):
    """The order follows from seed and epoch alone."""
    sampler = make(kind, seed=4)
    epochs = [list(sampler) for _ in range(3)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    sampler.set_epoch(1)
    assert list(sampler) == epochs[1]
    assert list(make(kind, seed=4)) == epochs[0]
    assert list(make(kind, seed=5)) != epochs[0]
    assert len(sampler) == 100


@pytest.mark.parametrize("kind", ["resumable", "window"])
@pytest.mark.parametrize("position", [0, 1, 37, 99, 100])
def test_the_rest_of_an_epoch_comes_exactly_once(kind, position):
    """State goes through JSON; a new sampler draws what the old one had left, then new epochs."""
    sampler = make(kind, seed=4)
    list(sampler)
    iterator = iter(sampler)
    drawn = list(itertools.islice(iterator, position))
    state = json.loads(json.dumps(sampler.state_dict()))
    resumed = make(kind, seed=0)
    resumed.load_state_dict(state)
    assert len(resumed) == 100
    rest = list(resumed)
    assert sorted(drawn + rest) == list(range(100))
    assert rest == list(iterator)
    assert list(resumed) == list(sampler)


def test_used_samples_count_not_those_drawn_ahead():
    """`consumed` corrects for what a loader draws ahead; a finished epoch is the next one."""
    sampler = make("resumable", seed=1)
    order = list(sampler)
    sampler.set_epoch(0)
    list(itertools.islice(sampler, 60))
    other = make("resumable")
    other.load_state_dict(sampler.state_dict(consumed=24))
    other.set_epoch(0)  # as Lightning does at the start of a run
    assert list(other) == order[24:]
    assert sampler.state_dict(consumed=100)["epoch"] == 1


@pytest.mark.parametrize("consumed", [0, 8, 100])
def test_an_epoch_drawn_to_its_end_may_be_unused(consumed):
    """What was used counts in the epoch drawn last, until the next is begun or chosen."""
    sampler = make("resumable", seed=1)
    order = list(sampler)  # as workers do that are ahead by a whole epoch
    other = make("resumable")
    other.load_state_dict(sampler.state_dict(consumed=consumed))
    if consumed < 100:
        assert list(other) == order[consumed:]
    assert other.epoch == 1 and list(other) == list(make_at(1))
    sampler.set_epoch(1)
    assert sampler.state_dict(consumed=0)["epoch"] == 1
    list(itertools.islice(sampler, 20))
    assert sampler.state_dict(consumed=8)["epoch"] == 1
    assert sampler.state_dict(consumed=80)["epoch"] == 0


def make_at(epoch):
    """Return a sampler that draws this epoch."""
    sampler = make("resumable", seed=1)
    sampler.set_epoch(epoch)
    return sampler


def test_workers_that_are_a_whole_epoch_ahead(store_path):
    """A state before the first batch was used is that of the epoch's beginning."""
    dataset = OCRStoreDataset(store_path)
    sampler = ResumableSampler(dataset, seed=3)
    batches = iter(DataLoader(dataset, 16, sampler=sampler, num_workers=2))
    state = sampler.state_dict(consumed=0)
    assert (state["epoch"], state["position"]) == (0, 0)
    assert sum(len(batch["rows"]) for batch in batches) == 37
    assert sampler.state_dict(consumed=37)["epoch"] == 1


@pytest.mark.parametrize("kind", ["resumable", "window"])
@pytest.mark.parametrize("uneven", ["exact", "pad", "drop"])
def test_ranks_share_the_samples(kind, uneven):
    """Exactly once, padded, or dropped: the union and the lengths are as promised."""
    ranks = [make(kind, seed=2, num_replicas=3, rank=rank, uneven=uneven) for rank in range(3)]
    drawn = [list(rank) for rank in ranks]
    assert [len(part) for part in drawn] == [len(rank) for rank in ranks]
    together = sorted(itertools.chain(*drawn))
    if uneven == "exact":
        assert together == list(range(100))
    elif uneven == "pad":
        assert len(together) == 102 and set(together) == set(range(100))
    else:
        assert len(together) == 99 == len(set(together))


@pytest.mark.parametrize("kind", ["resumable", "window"])
@pytest.mark.parametrize("uneven", ["exact", "pad", "drop"])
def test_the_rest_of_an_epoch_is_dealt_to_other_ranks(kind, uneven):
    """Begun by 2 ranks, gone on with by 3, ended by 1: every sample once, then whole epochs."""
    drawn, state = [], make(kind, seed=2).state_dict()
    for replicas, each in ((2, 11), (3, 7), (1, None)):
        ranks = [
            make(kind, num_replicas=replicas, rank=rank, uneven=uneven) for rank in range(replicas)
        ]
        for rank in ranks:
            rank.load_state_dict(state)
            before = rank.position
            part = list(itertools.islice(rank, each))
            drawn += part
            if each is not None:
                assert rank.position == before + each
        state = json.loads(json.dumps(ranks[0].state_dict()))
    assert sorted(drawn) == list(range(100))
    assert (state["epoch"], state["position"], state["earlier"]) == (1, 0, [])
    assert sorted(ranks[0]) == list(range(100))


def test_a_position_is_kept_when_the_rest_is_resumed_again():
    """A state of the same ranks in an epoch that others have begun, also by what was used."""
    first = make("resumable", seed=2, num_replicas=4, rank=0)
    list(itertools.islice(first, 10))
    second = make("resumable", num_replicas=3, rank=1, uneven="pad")
    second.load_state_dict(first.state_dict())
    assert (len(second), second.position, second.remaining) == (34, 14, 20)
    rest = list(second)
    state = second.state_dict(consumed=14 + 8)
    assert (state["epoch"], state["position"], state["earlier"]) == (0, 8, [[4, 1, 10]])
    third = make("resumable", num_replicas=3, rank=1, uneven="pad")
    third.load_state_dict(state)
    assert list(third) == rest[8:]
    assert len(list(third)) == 34
    third.load_state_dict(state)
    third.set_epoch(5)
    assert len(list(third)) == 34


def test_another_number_of_ranks_at_an_epochs_start():
    """Between epochs the number of ranks does not matter."""
    state = {**make("resumable", seed=2).state_dict(), "epoch": 3, "replicas": 5}
    sampler = make("resumable", num_replicas=2, rank=1)
    sampler.load_state_dict(state)
    assert (sampler.epoch, len(list(sampler))) == (3, 50)


def test_in_order_without_shuffling():
    """shuffle=False draws in stored order; two iterators do not disturb each other."""
    sampler = ResumableSampler(Grouped(10), shuffle=False)
    assert list(sampler) == list(range(10))
    pairs = list(zip(iter(sampler), iter(sampler), strict=True))
    assert pairs == [(i, i) for i in range(10)]


def test_wrong_states_are_refused():
    """A state of another data set or version says so."""
    sampler = make("resumable")
    state = sampler.state_dict()
    with pytest.raises(ValueError, match="has 7 samples, this sampler has 100"):
        sampler.load_state_dict({**state, "samples": 7})
    with pytest.raises(ValueError, match="version"):
        sampler.load_state_dict({})
    with pytest.raises(ValueError, match="expected 'exact'"):
        ResumableSampler(Grouped(), uneven="odd")
    with pytest.raises(ValueError, match="at least one"):
        WindowShuffleSampler(Grouped(), window=0)


def test_windows_keep_the_disk_reading_in_runs():
    """A window's samples come from its groups alone, and the next window is asked for in order."""
    source = Grouped(96)
    sampler = WindowShuffleSampler(source, window=3, seed=9)
    order = list(sampler)
    for start in range(0, 96, 24):
        window = order[start : start + 24]
        assert len({row // 8 for row in window}) == 3
        assert window != sorted(window)
    wait_until(lambda: len(source.asked) == 4)
    assert sorted(map(tuple, source.asked)) == sorted(
        tuple(sorted(order[a : a + 24])) for a in range(0, 96, 24)
    )
    # every sample is as likely in every window
    places = np.zeros((96, 4))
    for epoch in range(400):
        sampler.set_epoch(epoch)
        for place, row in enumerate(sampler._order().rows):
            places[row, place // 24] += 1
    assert places.min() > 60 and places.max() < 140


def test_the_row_groups_of_a_store(store_path, other_path):
    """Groups cover the rows of all stores in order, and reading ahead takes any of them."""
    dataset = OCRStoreDataset([store_path, other_path])
    groups = dataset.row_groups
    assert [row for a, b in groups for row in range(a, b)] == list(range(44))
    assert (37, 44) in groups
    dataset.read_ahead(np.arange(30, 44))
    sampler = WindowShuffleSampler(dataset, window=1)
    rows = [
        row for batch in DataLoader(dataset, 5, sampler=sampler) for row in batch["rows"].tolist()
    ]
    assert sorted(rows) == list(range(44))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 2), (2, 0), (0, 1), (1, 2)])
def test_torchdatas_stateful_loader(store_path, before, after):
    """The rest of an epoch comes exactly once, also with another number of workers."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    dataset = OCRStoreDataset(store_path)

    def make_loader(workers, sampler):
        return stateful.StatefulDataLoader(
            dataset, batch_size=4, sampler=sampler, num_workers=workers
        )

    loader = make_loader(before, ResumableSampler(dataset, seed=3))
    iterator = iter(loader)
    used = [row for _ in range(4) for row in next(iterator)["rows"].tolist()]
    state = loader.state_dict()
    sampler = ResumableSampler(dataset, seed=99)
    resumed = make_loader(after, sampler)
    if before == after:
        resumed.load_state_dict(state)
    else:
        sampler.load_state_dict(sampler_state(state))
    rest = [row for batch in resumed for row in batch["rows"].tolist()]
    assert sorted(used + rest) == list(range(37))
    assert rest == [row for batch in iterator for row in batch["rows"].tolist()]


def test_states_without_our_sampler_are_named():
    """Asking a loader's state for a sampler it did not have says so."""
    with pytest.raises(ValueError, match="no ResumableSampler"):
        sampler_state({"_sampler_iter_state": None, "_index_sampler_state": None})
    with pytest.raises(ValueError, match="snapshot_every_n_steps=1"):
        sampler_state({"_snapshot": {}, "_steps_since_snapshot": 3})


def test_generators_of_torch_are_left_alone():
    """Drawing an order uses no global random numbers."""
    before = torch.get_rng_state()
    list(make("window"))
    assert torch.equal(before, torch.get_rng_state())
