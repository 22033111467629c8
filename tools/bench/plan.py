"""Which cells there are, in which order: the matrix, interleaved over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tools.bench.peers import Peer


@dataclass(frozen=True)
class Cell:
    """One measurement; its fields are its name in the results."""

    kind: str
    peer: str
    workers: int | None = None
    shuffle: bool | None = None
    consumer: str | None = None
    round: int = 0

    @property
    def name(self) -> tuple[Any, ...]:
        return tuple(asdict(self).values())

    def __str__(self) -> str:
        parts = [self.kind, self.peer]
        if self.workers is not None:
            parts += [f"{self.workers} workers", "shuffled" if self.shuffle else "sequential"]
        if self.consumer:
            parts.append(self.consumer)
        return ", ".join(parts)


@dataclass(frozen=True)
class Settings:
    """What a run measures; results of other settings do not mix with it."""

    samples: int
    size: int
    batch_size: int
    workers: tuple[int, ...]
    orders: tuple[bool, ...]
    """False is sequential, True is shuffled"""
    consumers: tuple[str, ...]
    rounds: int
    least_s: float
    """how long whole epochs are measured at least"""
    epoch_s: float
    """an epoch that takes longer is not measured whole"""
    slow_s: float
    """how long a part of an epoch is measured"""
    start_workers: tuple[int, ...]
    cold_workers: int
    """0: no cold epochs"""


BOTH = ("touch", "copy")
FULL = Settings(404, 640, 16, (0, 1, 2, 4), (False, True), BOTH, 3, 0.7, 3.0, 1.2, (0, 2), 2)
# what people look at first comes first: builds and checks of all peers take three of five minutes
QUICK = Settings(96, 640, 16, (2,), (True,), ("copy", "touch"), 1, 0.3, 1.2, 0.5, (), 0)


def groundwork(peer: Peer, settings: Settings) -> list[Cell]:
    """Return what is done once for each peer, before anything is measured."""
    cells = [Cell("build", peer.name)]
    if peer.limit or False in settings.orders:
        cells.append(Cell("check", peer.name, 0, False))
    if True in settings.orders and not peer.limit:
        cells.append(Cell("check", peer.name, max(settings.workers[:3]), True))
    return cells


def measurements(peers: Sequence[Peer], settings: Settings, round: int) -> list[Cell]:
    """Return the cells of one round: neighbours in time are those that will be compared."""
    first = settings.workers[0]
    cells = [
        Cell("rate", peer.name, 0 if peer.limit else workers, shuffle, consumer, round)
        for workers in settings.workers
        for shuffle in settings.orders
        for consumer in settings.consumers
        for peer in peers
        # limits have no workers, so they are measured once
        if consumer in peer.measured and not (peer.limit and workers != first)
    ]
    compared = [peer for peer in peers if not peer.limit and "touch" in peer.measured]
    for workers in settings.start_workers:
        cells += [Cell("start", peer.name, workers, True, None, round) for peer in compared]
    if not settings.cold_workers:
        return cells
    workers = settings.cold_workers
    return cells + [Cell("cold", peer.name, workers, False, None, round) for peer in compared]
