"""Samplers: shuffled, resumable, divided between ranks, and in windows for large stores.

The order of an epoch depends on (seed, epoch) only. The state of a sampler is (epoch, position,
seed), so any number of workers can draw the rest of an interrupted epoch.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler

Uneven = Literal["exact", "pad", "drop"]

_STATE_VERSION = 1
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


class ResumableSampler(DistributedSampler[Any]):
    """Draws every sample once per epoch, in an order that can be interrupted and resumed.

    Replaces SequentialSampler, RandomSampler and DistributedSampler. Under `torch.distributed` each
    rank gets its share; `uneven` is what happens when the samples cannot be divided evenly:
    `exact` (every sample exactly once, some ranks draw one fewer), `pad` (a few are drawn twice) or
    `drop`.

    Each `iter()` draws one epoch, the next `iter()` the following one, unless `set_epoch` chooses
    another. `len()` is the length of a whole epoch of this rank, also when the rest of an epoch is
    drawn. With `rows` only these rows of the data set are drawn.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        rows: npt.NDArray[np.int64] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        uneven: Uneven = "exact",
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        together = dist.is_available() and dist.is_initialized()
        if num_replicas is None:
            num_replicas = dist.get_world_size() if together else 1
        if rank is None:
            rank = dist.get_rank() if together else 0
        if uneven not in ("exact", "pad", "drop"):
            raise ValueError(f"uneven={uneven!r}: expected 'exact', 'pad' or 'drop'")
        super().__init__(
            dataset,  # type: ignore[arg-type]  # anything with a length will do
            num_replicas=num_replicas,
            rank=rank,
            shuffle=shuffle,
            seed=seed,
            drop_last=uneven == "drop",
        )
        self.uneven = uneven
        self._rows = rows
        self.position = 0
        """The number of samples of this epoch that this rank has drawn."""
        self._offsets: dict[int, int] = {}
        """For an epoch that another number of ranks has begun: how many samples they have drawn."""
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

    def _order(self) -> npt.NDArray[np.int64]:
        """Return the order of the whole epoch, for all ranks."""
        order = np.arange(self._count, dtype=np.int64)
        if self.shuffle:
            order = self._random().permutation(self._count).astype(np.int64)
        return order if self._rows is None else self._rows[order]

    @property
    def _count(self) -> int:
        """The number of samples that all ranks draw in an epoch."""
        return len(self.dataset if self._rows is None else self._rows)  # type: ignore[arg-type]  # as above

    def _random(self) -> np.random.Generator:
        return np.random.default_rng((self.seed, self.epoch))

    def _share(self) -> npt.NDArray[np.int64]:
        order = self._order()[self._offsets.get(self.epoch, 0) :]
        rest = len(order) % self.num_replicas
        if rest and self.uneven == "drop":
            order = order[:-rest]
        elif rest and self.uneven == "pad":
            order = np.concatenate([order, np.resize(order, self.num_replicas - rest)])
        return order[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        # a generator: this runs at the first draw, because loaders make iterators they do not use
        epoch = self.epoch
        position = self.start
        if not self._resume:
            self._offsets.pop(epoch, None)
        self._resume = False
        self._ended = None
        me = self._drawn_by = object()
        share = self._share()
        first = position - (len(self) - len(share))
        for row in _announced(self.dataset, share[first:]):
            position += 1
            if self._drawn_by is me:
                self.position = position
            yield row
        if self._drawn_by is me and self.epoch == epoch:
            self.epoch = epoch + 1
            self.position = 0
            self._ended = epoch

    def __len__(self) -> int:
        return self._part(self._count, self.num_replicas, self.rank)

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

    def _drawn_by_all(self, position: int, offset: int, replicas: int, rank: int) -> int:
        """Return how many samples of an epoch all ranks have drawn when one is at a position.

        The position of the rest of an epoch is counted from its end: the last sample is at
        `len(self)`, whoever has drawn the others.
        """
        count = self._count
        whole = self._part(count, replicas, rank)
        before = whole - self._part(count - offset, replicas, rank)
        return min(offset + (position - before) * replicas, count)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next `iter()` draws; keeps the position if it is the same."""
        self._ended = None
        if epoch != self.epoch:
            if self.shuffle:
                self._tell_listener()
            self._drawn_by = None
            self.epoch = epoch
            self.position = 0
            self._offsets.clear()
            self._resume = False

    def state_dict(self, *, consumed: int | None = None) -> dict[str, int]:
        """Return the position in the epoch.

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
            "position": position,
            "seed": self.seed,
            "samples": self._count,
            "replicas": self.num_replicas,
            "offset": self._offsets.get(epoch, 0) if position else 0,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a state: the next `iter()` draws the rest of that epoch.

        What is left of an epoch that another number of ranks has begun is dealt out anew.
        """
        if state.get("version") != _STATE_VERSION:
            raise ValueError(
                f"sampler state has version {state.get('version')!r}: expected {_STATE_VERSION}"
            )
        count = self._count
        if state["samples"] != count:
            raise ValueError(
                f"the sampler state has {state['samples']} samples, this sampler has {count}: the"
                " rest of that epoch cannot be drawn; start the next one with set_epoch()"
            )
        self._tell_listener()
        self._drawn_by = None
        self._ended = None
        self.seed = state["seed"]
        self.epoch = state["epoch"]
        self.position = state["position"]
        offset = state.get("offset", 0)
        if self.position and state["replicas"] != self.num_replicas:
            # the state is that of rank 0, which is never behind another one
            offset = self._drawn_by_all(self.position, offset, state["replicas"], 0)
            self.position = len(self) - self._part(count - offset, self.num_replicas, self.rank)
        self._offsets = {self.epoch: offset} if offset else {}
        self._resume = True


class WindowShuffleSampler(ResumableSampler):
    """Shuffles in windows of row groups, for stores that are larger than memory.

    Row groups are drawn in random order; `window` of them at a time are read in large runs and
    their samples are shuffled. Not quite uniform: every sample is as likely at every position of
    the epoch, but samples of one group stay within one window.
    """

    def __init__(
        self,
        dataset: ReadsAhead,
        *,
        rows: npt.NDArray[np.int64] | None = None,
        window: int = 8,
        seed: int = 0,
        uneven: Uneven = "exact",
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(
            dataset, rows=rows, seed=seed, uneven=uneven, num_replicas=num_replicas, rank=rank
        )
        if window < 1:
            raise ValueError(f"window={window}: expected at least one row group")
        self.window = window
        self._source = dataset

    def _windows(self) -> list[npt.NDArray[np.int64]]:
        random = self._random()
        groups = [np.arange(first, last) for first, last in self._source.row_groups]
        if self._rows is not None:
            groups = [group[np.isin(group, self._rows)] for group in groups]
        order = random.permutation(len(groups))
        windows = []
        for start in range(0, len(order), self.window):
            rows = np.concatenate([groups[i] for i in order[start : start + self.window]])
            windows.append(random.permutation(rows).astype(np.int64))
        return windows

    def _order(self) -> npt.NDArray[np.int64]:
        windows = self._windows()
        return np.concatenate(windows) if windows else np.empty(0, np.int64)

    def __iter__(self) -> Iterator[int]:
        ends = np.cumsum([len(window) for window in self._windows()]).tolist()
        order = self._order()
        asked = -1
        for row in super().__iter__():
            offset = self._offsets.get(self.epoch, 0)
            drawn = self._drawn_by_all(self.position, offset, self.num_replicas, self.rank)
            current = int(np.searchsorted(ends, drawn - 1, "right"))
            # read the next window while this one is used
            for window in range(max(asked + 1, current), min(current + 2, len(ends))):
                first = ends[window - 1] if window else 0
                rows = np.sort(order[first : ends[window]])
                threading.Thread(target=self._source.read_ahead, args=(rows,), daemon=True).start()
                asked = window
            yield row


def _announced(dataset: Any, rows: npt.NDArray[np.int64]) -> Iterator[int]:
    """Yield rows; a data set behind a URL is told in time which of them come next."""
    parts = [rows[start : start + _ANNOUNCED] for start in range(0, len(rows), _ANNOUNCED)]
    for number, part in enumerate(parts):
        if getattr(dataset, "is_remote", False):
            for coming in parts[:2] if number == 0 else parts[number + 1 : number + 2]:
                # it may have to open shards
                threading.Thread(target=dataset.fetch_ahead, args=(coming,), daemon=True).start()
        yield from part.tolist()


def sampler_state(loader_state: dict[str, Any]) -> dict[str, int]:
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
