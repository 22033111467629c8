"""Samples dealt to nodes and ranks: once per epoch, the same shards every time, in exact shares."""

import itertools
import json
import os
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from ocrstore.errors import SchemaError
from ocrstore.torch import OCRDataModule, OCRStoreDataset, ResumableSampler, WindowShuffleSampler
from tests.sharded import shard_store
from tests.waiting import wait_until


class Shards:
    """Rows in shards and row groups, with shares if there are any, as of an OCRStoreDataset."""

    def __init__(self, lengths, *, group=5, sets=(), shares=()):
        ends = list(itertools.accumulate(lengths, initial=0))
        self.shards = list(itertools.pairwise(ends))
        self.row_groups = [
            (first, min(first + group, last))
            for begin, last in self.shards
            for first in range(begin, last, group)
        ]
        edges = list(itertools.accumulate(sets, initial=0))
        self.sets = [(ends[first], ends[last]) for first, last in itertools.pairwise(edges)]
        self.shares = {f"set {number}": share for number, share in enumerate(shares)}
        self.asked = []

    def __len__(self):
        return self.shards[-1][1]

    def read_ahead(self, rows):
        """Remember what was asked for."""
        self.asked.append(rows.tolist())

    def shards_of(self, rows):
        """Return the numbers of the shards that rows are in."""
        return {n for n, (a, b) in enumerate(self.shards) for row in rows if a <= row < b}


def samplers(kind, dataset, world, **options):
    """Return the samplers of all ranks of a world of (ranks, nodes)."""
    make = ResumableSampler if kind == "resumable" else WindowShuffleSampler
    if kind != "resumable":
        options["window"] = 2
    replicas, nodes = world
    return [
        make(dataset, num_replicas=replicas, nodes=nodes, rank=rank, **options)
        for rank in range(replicas)
    ]


def resume(ranks, state):
    """Load a state of the first rank of another world into all ranks, as text."""
    for rank in ranks:
        rank.load_state_dict(json.loads(json.dumps(state)))


WORLDS = st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))
LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any)
KINDS = st.sampled_from(["resumable", "window"])


@given(
    lengths=LENGTHS,
    worlds=st.lists(st.tuples(WORLDS, st.integers(0, 20)), min_size=1, max_size=4),
    kind=KINDS,
    uneven=st.sampled_from(["exact", "pad", "drop"]),
    epoch=st.integers(0, 3),
)
def test_once_per_epoch_whoever_draws(lengths, worlds, kind, uneven, epoch):
    """An epoch is begun, resumed and ended by worlds of any ranks and nodes; then a whole one."""
    dataset = Shards(lengths)
    drawn, state = [], None
    for number, (world, each) in enumerate(worlds):
        ranks = samplers(kind, dataset, world, seed=7, uneven=uneven)
        for rank in ranks:
            rank.set_epoch(epoch)
        if state is not None:
            resume(ranks, state)
        if number + 1 == len(worlds):
            break
        each = min(each, ranks[0].remaining)
        drawn += itertools.chain(*(itertools.islice(rank, each) for rank in ranks))
        state = ranks[0].state_dict()
    assert [rank.epoch for rank in ranks] == [ranks[0].epoch] * len(ranks)
    if ranks[0].epoch == epoch:
        shares = [list(rank) for rank in ranks]
        drawn += itertools.chain(*shares)
        assert uneven == "exact" or len(set(map(len, shares))) == 1
    counts = Counter(drawn)
    padding = len(drawn) - len(counts)
    if uneven == "exact":
        assert not padding
    if uneven == "drop":
        assert not padding and len(dataset) - len(counts) < len(ranks)
    else:
        assert set(counts) == set(range(len(dataset))) and padding < max(w[0] for w, _ in worlds)
    whole = [list(rank) for rank in ranks]
    assert list(map(len, whole)) == list(map(len, ranks))
    together = list(itertools.chain(*whole))
    assert -len(ranks) < len(together) - len(dataset) < len(ranks)
    if uneven == "exact":
        assert sorted(together) == list(range(len(dataset)))


@given(lengths=LENGTHS, world=WORLDS, kind=KINDS, seed=st.integers(0, 99))
def test_a_node_has_the_same_shards_in_every_epoch(lengths, world, kind, seed):
    """Other orders of the same rows; at most one shard more than nodes is split between them."""
    dataset = Shards(lengths)
    ranks = samplers(kind, dataset, world, seed=seed)
    nodes = {}
    for _ in range(3):
        epoch = {}
        for number, rank in enumerate(ranks):
            epoch.setdefault(number * world[1] // world[0], []).extend(rank)
        for node, rows in epoch.items():
            nodes.setdefault(node, []).append(rows)
    for rows in nodes.values():
        assert sorted(rows[0]) == sorted(rows[1]) == sorted(rows[2])
    held = sum(len(dataset.shards_of(rows[0])) for rows in nodes.values())
    assert held <= sum(map(bool, lengths)) + world[1] - 1


def test_orders_differ_between_epochs_and_seeds():
    """Within a node the order is new each epoch; another seed deals other shards."""
    dataset = Shards([20] * 8)
    parts = {}
    for seed in range(4):
        first, second = samplers("window", dataset, (2, 2), seed=seed)
        epochs = [list(first) for _ in range(2)]
        assert epochs[0] != epochs[1]
        assert len(dataset.shards_of(epochs[0])) == 4
        assert not dataset.shards_of(epochs[0]) & dataset.shards_of(list(second))
        parts[seed] = tuple(sorted(dataset.shards_of(epochs[0])))
    assert len(set(parts.values())) > 1


def test_windows_use_up_a_few_shards_at_a_time():
    """Of 12 shards with a window of 2, two are read to their end before the next ones."""
    dataset = Shards([20] * 12)
    order = list(WindowShuffleSampler(dataset, window=2))
    for start in range(0, 240, 40):
        assert len(dataset.shards_of(order[start : start + 40])) == 2


@given(
    sizes=st.lists(st.integers(1, 60), min_size=2, max_size=4),
    weights=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    worlds=st.lists(WORLDS, min_size=2, max_size=2),
    samples=st.none() | st.integers(0, 150),
    kind=KINDS,
    epoch=st.integers(0, 3),
    each=st.integers(0, 10),
)
def test_shares_are_exact(sizes, weights, worlds, samples, kind, epoch, each):
    """Each epoch has its share of each set, also if another world ends it."""
    weights = weights[: len(sizes)]
    shares = [weight / sum(weights) for weight in weights]
    dataset = Shards(sizes, sets=[1] * len(sizes), shares=shares)
    drawn, state = [], None
    for world in worlds:
        ranks = samplers(kind, dataset, world, seed=3, samples=samples)
        for rank in ranks:
            rank.set_epoch(epoch)
        if state is not None:
            resume(ranks, state)
            each = None
        drawn += itertools.chain(*(itertools.islice(rank, each) for rank in ranks))
        state = {**ranks[0].state_dict(), "epoch": epoch}
        if ranks[0].epoch != epoch and each is not None:
            break
    counts = Counter(drawn)
    total = len(drawn)
    assert total == ranks[0].count
    if samples is None:
        assert max(counts.values(), default=1) == 1
        fits = [Fraction(size * sum(weights), weight) for size, weight in zip(sizes, weights)]
        assert total == int(min(fits))
    else:
        assert total == samples
    for (first, last), weight in zip(dataset.sets, weights, strict=True):
        found = sum(counts[row] for row in range(first, last))
        assert abs(found - Fraction(total * weight, sum(weights))) < 1


def test_all_samples_of_a_larger_set_are_drawn_in_turn():
    """30 of 100 in each epoch: after ten epochs each was drawn three times, on two nodes, too.

    On 4 ranks, which cannot divide 30, the first node has 16 of them and the second one 14.
    """
    dataset = Shards([25] * 4 + [35, 35], sets=[4, 2], shares=[0.3, 0.7])
    for world in ((1, 1), (2, 2), (4, 2)):
        ranks = samplers("window", dataset, world)
        assert ranks[0].count == 100
        counts = Counter()
        for _ in range(10):
            epoch = list(itertools.chain(*ranks))
            assert sum(row < 100 for row in epoch) == 30
            counts.update(epoch)
        assert set(counts.values()) == {3, 10} | ({2, 4} if world == (4, 2) else set())


def test_sets_are_mixed_in_every_part_of_an_epoch():
    """Any tenth of an epoch has its share of each set, up to one sample."""
    dataset = Shards([300, 700], sets=[1, 1], shares=[0.3, 0.7])
    for kind in ("resumable", "window"):
        (sampler,) = samplers(kind, dataset, (1, 1))
        order = np.array(list(sampler))
        assert all(29 <= (part < 300).sum() <= 31 for part in np.split(order, 10))


def test_shares_by_largest_remainder():
    """Shares are taken as they are meant, and what is left over goes to the largest remainder."""
    for sizes, shares, samples, expected in [
        ([1000, 70], [0.3, 0.7], None, [30, 70]),
        ([1000, 7], [0.9, 0.1], None, [63, 7]),
        ([10, 10, 10], [0.5, 0.3, 0.2], 9, [4, 3, 2]),
        ([5, 5, 5], [1 / 3] * 3, 10, [4, 3, 3]),
        ([4, 400], [0.5, 0.5], 100, [50, 50]),
    ]:
        dataset = Shards(sizes, sets=[1] * len(sizes), shares=shares)
        drawn = list(ResumableSampler(dataset, samples=samples))
        assert [sum(a <= row < b for row in drawn) for a, b in dataset.sets] == expected
    assert sorted(ResumableSampler(dataset, shuffle=False)) == list(range(404))
    with pytest.raises(SchemaError, match="set 0: no samples"):
        ResumableSampler(Shards([0, 5], sets=[1, 1], shares=[0.5, 0.5]))


def test_an_epoch_of_some_samples():
    """`samples` of one set: passes over all of them, in parts or more than one at a time."""
    sampler = ResumableSampler(Shards([10]), samples=4)
    assert sorted(row for _ in range(5) for row in sampler) == sorted([*range(10)] * 2)
    sampler = ResumableSampler(Shards([10]), samples=25)
    assert {Counter(sampler)[row] for row in range(10)} == {2, 3}


def test_reading_ahead_of_mixed_windows():
    """Each window of each set is asked for once, before its first sample is drawn."""
    dataset = Shards([40, 80], group=4, sets=[1, 1], shares=[1 / 3, 2 / 3])
    sampler = WindowShuffleSampler(dataset, window=5)
    order = list(sampler)
    wait_until(lambda: sum(map(len, dataset.asked)) == 120)
    assert sorted(itertools.chain(*dataset.asked)) == sorted(order)
    assert len(dataset.asked) == 6


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_loaders_of_one_world_resumed_by_another(store_path, other_path, workers):
    """Real loaders with workers, which draw ahead: 2 ranks on 2 nodes, then 3 ranks on one."""
    dataset = OCRStoreDataset([store_path, other_path], columns=["inverse_matrix"])
    used, state = [], None
    for world, batches in (((2, 2), 3), ((3, 1), None)):
        ranks = samplers("window", dataset, world, seed=1)
        if state is not None:
            resume(ranks, state)
        for rank in ranks:
            loader = DataLoader(dataset, 4, sampler=rank, num_workers=workers)
            for batch in itertools.islice(loader, batches):
                used += batch["rows"].tolist()
        if batches is not None:
            state = ranks[0].state_dict(consumed=4 * batches)
    assert sorted(used) == list(range(44))


def test_a_dict_of_stores(store_path, other_path):
    """Rows of all, in sets with shares; wrong shares are refused."""
    shares = {str(store_path): 0.75, str(other_path): 0.25}
    dataset = OCRStoreDataset(shares)
    assert len(dataset) == 44 and dataset.sets == [(0, 37), (37, 44)] == dataset.shards
    assert dataset.shares == shares
    data = OCRDataModule(train=shares, num_workers=0, batch_size=4)
    assert data.count("train") == 28
    rows = [row for batch in data.train_dataloader() for row in batch["rows"].tolist()]
    assert sum(row < 37 for row in rows) == 21 and set(range(37, 44)) < set(rows)
    assert OCRDataModule(train=shares, samples=100).count("train") == 100
    held_out = OCRDataModule(train=shares, val=0.2)
    assert held_out.count("val") == len(held_out.rows("val"))
    assert OCRStoreDataset([store_path, other_path]).sets == [(0, 44)]
    for wrong in ({str(store_path): 0.3}, {str(store_path): 1.5}, {str(store_path): "all"}):
        with pytest.raises(SchemaError, match="expected"):
            OCRStoreDataset(wrong)


def test_folders_of_many_stores(store_path, other_path, tmp_path):
    """A set is all shards of its folder, beside a store; nodes have shards of their own."""
    folder = shard_store(store_path, tmp_path / "many", bits=3)
    dataset = OCRStoreDataset({f"{folder}/": 0.75, str(other_path): 0.25})
    assert dataset.sets == [(0, 37), (37, 44)] and len(dataset.shards) == 9
    drawn = [list(rank) for rank in samplers("window", dataset, (2, 2), seed=1)]
    assert sum(row < 37 for rows in drawn for row in rows) == 21 and len(drawn[0]) == 14
    whole = OCRStoreDataset(folder)
    parts = [set(rank) for rank in samplers("window", whole, (2, 2), seed=1)]
    shards = [
        {n for n, (a, b) in enumerate(whole.shards) if part & {*range(a, b)}} for part in parts
    ]
    assert parts[0] | parts[1] == set(range(37)) and len(shards[0] & shards[1]) <= 1


def test_the_window_of_a_data_set_of_many_stores(store_path):
    """More than eight stores are shuffled in windows, unless the caller chooses."""
    kinds = [
        type(OCRDataModule(train=[store_path] * count, window=window)._make_sampler("train"))
        for count, window in ((8, None), (9, None), (9, 0), (1, 4))
    ]
    whole, windows = ResumableSampler, WindowShuffleSampler
    assert kinds == [whole, windows, whole, windows]


def test_the_number_of_nodes_is_that_of_the_job(monkeypatch, tmp_path):
    """torchrun and Slurm say how many nodes there are; an argument counts more."""
    dataset = Shards([10])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    try:
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 8)
        assert ResumableSampler(dataset).world == (8, 1)
        monkeypatch.setenv("SLURM_STEP_NUM_NODES", "4")
        assert ResumableSampler(dataset).world == (8, 4)
        monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
        assert ResumableSampler(dataset).world == (8, 2)
        assert ResumableSampler(dataset, nodes=3).world == (8, 3)
        assert ResumableSampler(dataset, num_replicas=4, rank=1).world == (4, 1)
    finally:
        torch.distributed.destroy_process_group()
    with pytest.raises(ValueError, match="at least one"):
        ResumableSampler(dataset, nodes=0)


def _rank(rank, folder, stores, queue):
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GROUP_WORLD_SIZE"] = "2"  # as torchrun does on two nodes with a process each
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    data = OCRDataModule(train=stores, batch_size=4, num_workers=1, seed=3)
    loader = data.train_dataloader()
    queue.put(
        (rank, [[row for batch in loader for row in batch["rows"].tolist()] for _ in range(3)])
    )
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_two_nodes_read_their_own_stores(store_path, other_path, tmp_path):
    """Two processes with gloo: every sample, at most one twice, and the same ones in each epoch."""
    context = torch.multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    stores = [store_path, other_path]
    processes = [
        context.Process(target=_rank, args=(rank, tmp_path, stores, queue)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    parts = dict(queue.get() for _ in processes)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    for epochs in parts.values():
        assert len({tuple(rows) for rows in epochs}) == 3
        assert len({frozenset(rows) for rows in epochs}) == 1
    assert set(parts[0][0]) | set(parts[1][0]) == set(range(44))
    assert len(parts[0][0]) == len(parts[1][0]) == 22
