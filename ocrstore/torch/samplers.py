"""Samplers: shuffled, resumable, divided between nodes and ranks, in windows for large stores.

The order of an epoch depends on (seed, epoch, world) only. The state of a sampler is (epoch,
position, seed), and the worlds that have drawn from the epoch before, so any number of workers,
ranks and nodes can draw the rest of an interrupted epoch.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence, Sized
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler

from ocrstore.errors import SchemaError

Uneven = Literal["exact", "pad", "drop"]
IntArray = npt.NDArray[np.int64]

_STATE_VERSION = 2
_ANNOUNCED = 128
"""So many rows at a time are announced to a data set that fetches them."""


class ReadsAhead(Protocol):
    """What a window sampler needs of a data set."""

    def __len__(self) -> int: ...

    @property
    def row_groups(self) -> Sequence[tuple[int, int]]:
        """Return [first, last) of each row group."""

    def read_ahead(self, rows: npt.NDArray[np.int64]) -> None:
        """Read rows into the page cache in the background."""


class World(NamedTuple):
    """The number of ranks and the number of nodes; the ranks of a node are consecutive."""

    replicas: int
    nodes: int

    def node(self, rank: int) -> int:
        """Return the node of a rank."""
        return rank * self.nodes // self.replicas

    def ranks(self, node: int) -> range:
        """Return the ranks of a node."""
        first, last = (-(-number * self.replicas // self.nodes) for number in (node, node + 1))
        return range(first, last)

    def share(self, node: int, count: int, turn: int) -> slice:
        """Return the samples of a node, of `count` that are divided equally between ranks.

        The first of those that are left over goes to rank `turn`, the next to the following rank.
        """
        each, rest = divmod(count, self.replicas)
        sizes = each + ((np.arange(self.replicas) - turn) % self.replicas < rest)
        ranks = self.ranks(node)
        return slice(int(sizes[: ranks.start].sum()), int(sizes[: ranks.stop].sum()))


class Order(NamedTuple):
    """What a node draws in an epoch: rows, and for each the number of the window it is in."""

    rows: IntArray
    window: IntArray


class ResumableSampler(DistributedSampler[Any]):
    """Draws every sample once per epoch, in an order that can be interrupted and resumed.

    Replaces SequentialSampler, RandomSampler and DistributedSampler. Under `torch.distributed` each
    rank gets its share; `uneven` is what happens when the samples cannot be divided evenly:
    `exact` (every sample exactly once, some ranks draw one fewer), `pad` (a few are drawn twice) or
    `drop`.

    A node draws the same shards in every epoch, so that its caches serve all of them: the shards
    (stores) of the data set in an order that follows from the seed are cut into equal parts, one
    for each node. A shard at a cut belongs to two nodes. Inside a node the order is another one in
    each epoch.

    Of a data set with shares, such as `OCRStoreDataset({"synth/": 0.3, "icdar/": 0.7})`, an epoch
    has exactly these shares, in any part of it. It ends where the first of the sets is used up,
    so that no sample is drawn twice; or it has `samples` samples. The next epoch goes on with those
    of the other sets that were not drawn. In stored order (`shuffle=False`) shares mean nothing:
    every sample is drawn once.

    Each `iter()` draws one epoch, the next `iter()` the following one, unless `set_epoch` chooses
    another. `len()` is the length of a whole epoch of this rank, also when the rest of an epoch is
    drawn.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        rows: IntArray | None = None,
        shuffle: bool = True,
        seed: int = 0,
        uneven: Uneven = "exact",
        samples: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        nodes: int | None = None,
    ) -> None:
        """Choose what is drawn, and by whom.

        Args:
            dataset: The data set; one of several stores says where they begin (`shards`).
            rows: The rows to draw; all if not given.
            shuffle: Draw in random order; else in stored order.
            seed: Seeds the order.
            uneven: What happens when the samples cannot be divided evenly.
            samples: The samples of an epoch; more than there are draws some again.
            num_replicas: The number of ranks; that of `torch.distributed` if not given.
            rank: This rank; that of `torch.distributed` if not given.
            nodes: The number of machines that the ranks are on, in equal parts and one machine
                after the other; if not given, as torchrun or Slurm say.
        """
        together = dist.is_available() and dist.is_initialized()
        if nodes is None:
            nodes = _nodes_of_job() if together and num_replicas is None else 1
        if num_replicas is None:
            num_replicas = dist.get_world_size() if together else 1
        if rank is None:
            rank = dist.get_rank() if together else 0
        if uneven not in ("exact", "pad", "drop"):
            raise ValueError(f"uneven={uneven!r}: expected 'exact', 'pad' or 'drop'")
        if nodes < 1:
            raise ValueError(f"nodes={nodes}: expected at least one")
        super().__init__(
            dataset,  # type: ignore[arg-type]  # anything with a length will do
            num_replicas=num_replicas,
            rank=rank,
            shuffle=shuffle,
            seed=seed,
            drop_last=uneven == "drop",
        )
        self.uneven = uneven
        self.world = World(num_replicas, min(nodes, num_replicas))
        self._node = self.world.node(rank)
        whole = [(0, len(dataset))]
        self._shards = np.array([first for first, _ in getattr(dataset, "shards", whole)], np.int64)
        shares = getattr(dataset, "shares", {}) if shuffle else {}
        sets = dataset.sets if shares else whole  # type: ignore[attr-defined]  # it has shares
        self._sets = np.array([first for first, _ in sets], np.int64)
        # the order in which they are given means nothing if it is shuffled
        self._rows = rows if rows is None or not shuffle else np.sort(rows)
        self._sizes = [last - first for first, last in sets]
        if rows is not None:
            self._sizes = [int(((rows >= a) & (rows < b)).sum()) for a, b in sets]
        self._draws = _samples_of_sets(self._sizes, shares, samples)
        """How many samples of each set are drawn in an epoch."""
        self.position = 0
        """The number of samples of this epoch that this rank has drawn."""
        self._earlier: dict[int, list[tuple[World, int]]] = {}
        """For an epoch: the other worlds that have begun it, and what each of their ranks drew."""
        self._resume = False
        self._drawn_by: object = None
        """The iterator that advances the position; an older one may still be in use."""
        self._ended: int | None = None
        """The epoch that was drawn to its end, until the next one is started or chosen."""
        self._listener: weakref.WeakMethod[Callable[[], None]] | None = None

    def call_before_change(self, listener: Callable[[], None]) -> None:
        """Call a bound method before the order of the next epoch is changed.

        For loaders that draw an epoch before it starts.
        """
        self._listener = weakref.WeakMethod(listener)

    def _tell_listener(self) -> None:
        listener = None if self._listener is None else self._listener()
        if listener is not None:
            listener()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_listener": None}

    @property
    def count(self) -> int:
        """The number of samples that all ranks draw in an epoch."""
        return sum(self._draws)

    def _sequence(self) -> IntArray:
        """Return all rows set by set, the shards of each in an order that follows from the seed."""
        rows = self._rows
        if rows is None:
            rows = np.arange(len(self.dataset), dtype=np.int64)  # type: ignore[arg-type]  # as above
        if not self.shuffle:
            return rows
        shards = np.split(rows, np.searchsorted(rows, self._shards[1:]))
        order = np.random.default_rng(self.seed).permutation(len(shards))
        set_of = np.searchsorted(self._sets, self._shards, "right")
        order = order[np.argsort(set_of[order], kind="stable")]
        return np.concatenate([shards[number] for number in order])

    def _order(self) -> Order:
        """Return what the node of this rank draws in this epoch."""
        sequence = self._sequence()
        earlier = self._earlier.get(self.epoch, [])
        left: IntArray | None = None
        for number, (world, drawn) in enumerate(earlier):
            found = []
            for node in range(world.nodes):
                places, _ = self._arranged(sequence, world, node, left, number)
                found.append(places[drawn * len(world.ranks(node)) :])
            left = np.sort(np.concatenate(found))
        places, window = self._arranged(sequence, self.world, self._node, left, len(earlier))
        return Order(sequence[places], window)

    def _arranged(
        self, sequence: IntArray, world: World, node: int, left: IntArray | None, resumed: int
    ) -> tuple[IntArray, IntArray]:
        """Return what a node draws, as places in the sequence, and the windows they are in.

        Args:
            sequence: All rows, as `_sequence` has them.
            world: The ranks and nodes that draw.
            node: One of the nodes.
            left: The places that others have left of this epoch, in order; None: all.
            resumed: How many worlds have drawn from this epoch before.
        """
        random = np.random.default_rng((self.seed, self.epoch, resumed, node))
        parts, windows = [], []
        begun = 0
        for places in self._pieces(sequence, world, node, left):
            order, window = self._arrange(sequence[places], random)
            parts.append(places[order])
            windows.append(window + begun)
            begun += int(window.max(initial=-1)) + 1
        if len(parts) == 1:
            return parts[0], windows[0]
        # each set is spread evenly over the epoch
        when = [(np.arange(len(part)) + random.random(len(part))) / len(part) for part in parts]
        merged = np.argsort(np.concatenate(when))
        return np.concatenate(parts)[merged], np.concatenate(windows)[merged]

    def _arrange(self, rows: IntArray, random: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Return an order of rows, and the window that each of them is in then."""
        order = random.permutation(len(rows)) if self.shuffle else np.arange(len(rows))
        return order, np.zeros(len(rows), np.int64)

    def _pieces(
        self, sequence: IntArray, world: World, node: int, left: IntArray | None
    ) -> Iterator[IntArray]:
        """Yield what a node draws of each set, as places in the sequence."""
        first = turn = 0
        for number, (size, draws) in enumerate(zip(self._sizes, self._draws, strict=True)):
            places = np.arange(first, first + size)
            if left is not None:
                places = left[slice(*np.searchsorted(left, (first, first + size)))]
                draws = len(places)
            piece = places[world.share(node, len(places), turn)]
            if draws != len(places):
                # epochs draw one part after the other of the same order, and then from its start
                wanted = world.share(node, draws, turn)
                piece = piece if len(piece) else places
                order, _ = self._arrange(
                    sequence[piece], np.random.default_rng((self.seed, number, node))
                )
                each = wanted.stop - wanted.start
                drawn = np.arange(self.epoch * each, (self.epoch + 1) * each) % len(piece)
                piece = np.sort(piece[order[drawn]])
            yield piece
            first += size
            turn += draws

    def _share(self, order: Order) -> IntArray:
        """Return what this rank draws of the order of its node."""
        ranks = self.world.ranks(self._node)
        rows = order.rows
        if self.uneven != "exact":
            if not len(rows):  # fewer samples than ranks: any will do to pad
                rows = self._sequence()[:1]
            left = self._left(self.epoch)
            rows = np.resize(rows, self._part(left, self.num_replicas, self.rank) * len(ranks))
        return rows[self.rank - ranks.start :: len(ranks)]

    def _drawn(self, order: Order, first: int) -> Iterator[int]:
        """Yield the rows of this rank from the `first` on."""
        yield from _announced(self.dataset, self._share(order)[first:])

    def __iter__(self) -> Iterator[int]:
        # a generator: this runs at the first draw, because loaders make iterators they do not use
        epoch = self.epoch
        position = self.start
        if not self._resume:
            self._earlier.pop(epoch, None)
        self._resume = False
        self._ended = None
        me = self._drawn_by = object()
        for row in self._drawn(self._order(), position - self._before(epoch)):
            position += 1
            if self._drawn_by is me:
                self.position = position
            yield row
        if self._drawn_by is me and self.epoch == epoch:
            self.epoch = epoch + 1
            self.position = 0
            self._ended = epoch

    def __len__(self) -> int:
        return self._part(self.count, self.num_replicas, self.rank)

    def _part(self, count: int, replicas: int, rank: int) -> int:
        """Return how many of `count` samples a rank draws."""
        if self.uneven == "exact":
            return len(range(rank, count, replicas))
        return count // replicas if self.uneven == "drop" else -(-count // replicas)

    @property
    def start(self) -> int:
        """The position at which the next `iter()` begins; 0 unless an epoch is resumed."""
        return self.position if self._resume else 0

    @property
    def remaining(self) -> int:
        """The number of samples that this rank has still to draw in this epoch."""
        return len(self) - self.position

    def _left(self, epoch: int) -> int:
        """Return how many samples of an epoch other worlds have left."""
        drawn = sum(world.replicas * each for world, each in self._earlier.get(epoch, []))
        return max(self.count - drawn, 0)

    def _before(self, epoch: int) -> int:
        """Return the position at which this world goes on with an epoch; 0 if it begins it.

        The position is counted from the end of an epoch: the last sample is at `len(self)`, whoever
        has drawn the others.
        """
        return len(self) - self._part(self._left(epoch), self.num_replicas, self.rank)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next `iter()` draws; keeps the position if it is the same."""
        self._ended = None
        if epoch != self.epoch:
            if self.shuffle:
                self._tell_listener()
            self._drawn_by = None
            self.epoch = epoch
            self.position = 0
            self._earlier.clear()
            self._resume = False

    def state_dict(self, *, consumed: int | None = None) -> dict[str, Any]:
        """Return the position in the epoch; of several ranks, keep that of the first.

        Args:
            consumed: The number of samples of this epoch that were used. A DataLoader with workers
                draws ahead of what it has delivered, so give it unless the loader keeps track
                itself, as StatefulDataLoader does. It counts in the epoch that was drawn last,
                until the next one is started or chosen by `set_epoch`.
        """
        position = self.position if consumed is None else consumed
        epoch = self.epoch
        if consumed is not None and self._ended is not None:
            epoch = self._ended  # drawn to its end, but perhaps not used to its end
        elif consumed is not None and consumed > self.position and epoch > 0:
            epoch -= 1  # the loader has drawn to the end of that epoch and into this one
        if consumed is not None and consumed >= len(self):
            epoch, position = epoch + 1, 0
        return {
            "version": _STATE_VERSION,
            "epoch": epoch,
            "position": max(position - self._before(epoch), 0),
            "seed": self.seed,
            "samples": self.count,
            "replicas": self.num_replicas,
            "nodes": self.world.nodes,
            "earlier": [[*world, drawn] for world, drawn in self._earlier.get(epoch, [])],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state: the next `iter()` draws the rest of that epoch.

        What is left of an epoch that another number of ranks or nodes has begun is dealt out anew.
        """
        if state.get("version") != _STATE_VERSION:
            raise ValueError(
                f"sampler state has version {state.get('version')!r}: expected {_STATE_VERSION}"
            )
        if state["samples"] != self.count:
            raise ValueError(
                f"the sampler state has {state['samples']} samples, this sampler has {self.count}:"
                " the rest of that epoch cannot be drawn; start the next one with set_epoch()"
            )
        self._tell_listener()
        self._drawn_by = None
        self._ended = None
        self.seed = state["seed"]
        self.epoch = state["epoch"]
        earlier = [(World(replicas, nodes), each) for replicas, nodes, each in state["earlier"]]
        world, drawn = World(state["replicas"], state["nodes"]), state["position"]
        if drawn and world != self.world:
            earlier.append((world, drawn))
            drawn = 0
        self._earlier = {self.epoch: earlier}
        self.position = min(self._before(self.epoch) + drawn, len(self))
        self._resume = True


class WindowShuffleSampler(ResumableSampler):
    """Shuffles in windows of row groups, for stores that are larger than memory.

    Row groups are drawn in random order; `window` of them at a time are read in large runs and
    their samples are shuffled. Not quite uniform: every sample is as likely at every position of
    the epoch, but samples of one group stay within one window. Of more shards than `window`, that
    many at a time are drawn to their end.
    """

    def __init__(
        self,
        dataset: ReadsAhead,
        *,
        rows: IntArray | None = None,
        window: int = 8,
        seed: int = 0,
        uneven: Uneven = "exact",
        samples: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        nodes: int | None = None,
    ) -> None:
        """Choose the number of row groups in a window; the rest as in `ResumableSampler`."""
        super().__init__(
            dataset,
            rows=rows,
            seed=seed,
            uneven=uneven,
            samples=samples,
            num_replicas=num_replicas,
            rank=rank,
            nodes=nodes,
        )
        if window < 1:
            raise ValueError(f"window={window}: expected at least one row group")
        self.window = window
        self._source = dataset

    def _arrange(self, rows: IntArray, random: np.random.Generator) -> tuple[IntArray, IntArray]:
        firsts = np.array([first for first, _ in self._source.row_groups], np.int64)
        groups, group = np.unique(np.searchsorted(firsts, rows, "right") - 1, return_inverse=True)
        shards, shard = np.unique(
            np.searchsorted(self._shards, firsts[groups], "right"), return_inverse=True
        )
        # shards in random order, `window` at a time, and the groups of these in random order
        block = random.permutation(len(shards))[shard] // self.window
        place = np.empty(len(groups), np.int64)
        place[np.lexsort((random.permutation(len(groups)), block))] = np.arange(len(groups))
        window = place[group] // self.window
        order = np.lexsort((random.permutation(len(rows)), window))
        return order, window[order]

    def _drawn(self, order: Order, first: int) -> Iterator[int]:
        windows = np.split(
            np.argsort(order.window, kind="stable"), np.cumsum(np.bincount(order.window))
        )
        # in the order in which they begin; each set of the data set has its own
        windows = sorted(
            (places for places in windows if len(places)), key=lambda places: places[0]
        )
        ranks = len(self.world.ranks(self._node))
        asked = 0
        for number, row in enumerate(super()._drawn(order, first), first):
            place = number * ranks
            # read the next window while this one is used
            while asked < len(windows) and windows[max(asked - len(self._sets), 0)][0] <= place:
                if windows[asked][-1] >= place:
                    rows = np.sort(order.rows[windows[asked]])
                    read = self._source.read_ahead
                    threading.Thread(target=read, args=(rows,), daemon=True).start()
                asked += 1
            yield row


def _announced(dataset: Any, rows: IntArray) -> Iterator[int]:
    """Yield rows; a data set behind a URL is told in time which of them come next."""
    parts = [rows[start : start + _ANNOUNCED] for start in range(0, len(rows), _ANNOUNCED)]
    for number, part in enumerate(parts):
        if getattr(dataset, "is_remote", False):
            for coming in parts[:2] if number == 0 else parts[number + 1 : number + 2]:
                # it may have to open shards
                threading.Thread(target=dataset.fetch_ahead, args=(coming,), daemon=True).start()
        yield from part.tolist()


def _nodes_of_job() -> int:
    """Return the number of nodes that the job was started on; 1 if nobody says so.

    The variables have the same value on all nodes, even if these have different numbers of ranks
    (LOCAL_WORLD_SIZE has not), so that all ranks share the samples out alike.
    """
    for name in ("GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES"):  # torchrun, srun
        if name in os.environ:
            return int(os.environ[name])
    return 1


def _samples_of_sets(sizes: list[int], shares: dict[str, float], samples: int | None) -> list[int]:
    """Return how many samples of each set an epoch has; exact shares, by largest remainder."""
    if not shares and samples is None:
        return sizes
    # as they are meant: 0.1 is a tenth, and 1 / 3 a third
    parts = [Fraction(share).limit_denominator(10**6) for share in shares.values() or [1.0]]
    whole = sum(parts)
    for name, size in zip(shares or ["the data set"], sizes, strict=True):
        if not size:
            raise SchemaError(f"{name}: no samples to draw from; leave it out")
    if samples is None:
        samples = min(int(size * whole / part) for size, part in zip(sizes, parts, strict=True))
    quotas = [samples * part / whole for part in parts]
    found = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(found)), key=lambda number: found[number] - quotas[number])
    for number in by_remainder[: samples - sum(found)]:
        found[number] += 1
    return found


def sampler_state(loader_state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the sampler in the state of a StatefulDataLoader.

    StatefulDataLoader refuses a state from another number of workers; load this one into the
    sampler of the new loader instead.
    """
    main = loader_state
    if "_snapshot" in loader_state:
        if loader_state.get("_steps_since_snapshot"):
            raise ValueError(
                "the loader's state was not taken at its last batch: use snapshot_every_n_steps=1"
            )
        main = loader_state["_snapshot"]["_main_snapshot"]
    for name in ("_sampler_iter_state", "_index_sampler_state"):
        state = main.get(name) or {}
        state = state.get("sampler_state", state)
        if "position" in state:
            return dict(state)
    raise ValueError("the state holds no ResumableSampler: was the loader given sampler=?")
