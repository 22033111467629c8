"""Owns `PrefetchLoader`: torch's DataLoader, with the next batches made ready by a thread."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from ocrstore.torch.dataset import OCRStoreDataset
from ocrstore.torch.prefetch import Prefetcher
from ocrstore.torch.samplers import ResumableSampler
from ocrstore.torch.staging import Stage, stage_for


class PrefetchLoader(DataLoader[Any]):
    """A DataLoader that is `ahead` batches ahead of the loop.

    A thread takes the batches out of torch's loader, takes their tensors, and with a `device` sends
    them there through page-locked buffers; the loop finds them on the device. It takes whatever
    a DataLoader takes, and Lightning treats it as one. Batches of stored columns need no worker
    processes: with `num_workers=0` the thread does everything, and it begins the next epoch while
    the loop still uses the last batch of this one (where the order of that epoch is known: in
    stored order, and with a `ResumableSampler`).

    With a transform use workers: a transform of the thread would draw its random numbers between
    those of the loop, in an order that is not the same from run to run.
    """

    def __init__(
        self,
        dataset: Any,
        *args: Any,
        ahead: int = 2,
        device: torch.device | str | None = None,
        lists: bool = False,
        **kwargs: Any,
    ) -> None:
        """Take what a DataLoader takes, and how far to be ahead of the loop.

        With `lists` also polygons, texts and names are made ahead of time, for loops that use them
        in every batch; else they are made when they are asked for.
        """
        super().__init__(dataset, *args, **kwargs)
        if ahead < 1:
            raise ValueError(f"ahead={ahead}: expected at least one batch")
        self.ahead = ahead
        self.device = device
        self.lists = lists
        self._waiting: Prefetcher | None = None
        self._active: weakref.ref[Prefetcher] | None = None
        self._spare_stages: list[Stage] = []

    def __iter__(self) -> Any:
        # nothing is begun before the first batch: Lightning makes iterators that it throws away
        return _Pass(self)

    def begin(self) -> Prefetcher:
        """Start a pass, or take over the one that was begun ahead; for the iterators."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            return waiting
        active = None if self._active is None else self._active()
        if active is not None and self.persistent_workers:
            active.close()  # this pass needs its workers
        return self._start()

    def was_last(self, prefetcher: Prefetcher) -> bool:
        """Tell whether a pass has surely handed out its last batch; for the iterators."""
        return prefetcher.ended or (self._knows_next_epoch() and prefetcher.handed == len(self))

    def finish(self, prefetcher: Prefetcher) -> None:
        """Note that a pass has handed out its last batch; for the iterators."""
        prefetcher.wait_for_end()
        self._spare_stages.append(prefetcher.stage)
        if self._waiting is None and self._knows_next_epoch():
            if isinstance(self.sampler, ResumableSampler):
                self.sampler.call_before_change(self.close)
            self._waiting = self._start()

    def close(self) -> None:
        """Drop what was begun ahead of its epoch."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.close()

    def _start(self) -> Prefetcher:
        stage = self._spare_stages.pop() if self._spare_stages else self.make_stage()
        prefetcher = Prefetcher(super().__iter__(), stage=stage, ahead=self.ahead)
        self._active = weakref.ref(prefetcher)
        return prefetcher

    def make_stage(self) -> Stage:
        """Return what is done to batches ahead of time; override it to do something else."""
        return stage_for(self.device, lists=self.lists)

    def _knows_next_epoch(self) -> bool:
        # a whole epoch drawn ahead would leave a sampler one epoch further than it is
        return (
            self.num_workers == 0
            and isinstance(self.dataset, OCRStoreDataset)
            and self.dataset.transform is None
            and type(self.batch_sampler) is BatchSampler
            and isinstance(self.sampler, (ResumableSampler, SequentialSampler))
            and len(self) > self.ahead
        )


class _Pass(Iterator[Any]):
    """One pass over a loader; begins with its first batch."""

    def __init__(self, loader: PrefetchLoader) -> None:
        self._loader = loader
        self._prefetcher: Prefetcher | None = None
        self._finished = False

    def __next__(self) -> Any:
        if self._finished:
            raise StopIteration
        if self._prefetcher is None:
            self._prefetcher = self._loader.begin()
        try:
            batch = next(self._prefetcher)
        except StopIteration:
            self._finish()
            raise
        # not only at the end: Lightning asks for no more than the last batch
        if self._loader.was_last(self._prefetcher):
            self._finish()
        return batch

    def _finish(self) -> None:
        self._finished = True
        if self._prefetcher is not None:
            prefetcher, self._prefetcher = self._prefetcher, None
            self._loader.finish(prefetcher)

    def __len__(self) -> int:
        return len(self._loader)
