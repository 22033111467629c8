"""Owns time: what the clock and the processor say, and sums of both by name.

The clock is what training waits for; the processor's time is the truer figure on a machine that has
other work to do, and counts the threads of OpenCV as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

Clock = Callable[[], tuple[int, int]]
"""Returns nanoseconds: (of the clock, of this process's processor time)."""

Progress = Callable[[int, int], None]
"""Told (steps done, steps in all)."""


def system_clock() -> tuple[int, int]:
    """Read the machine's own clocks."""
    return time.perf_counter_ns(), time.process_time_ns()


@dataclass(frozen=True, slots=True)
class Spent:
    """Milliseconds: of the clock and of processor time."""

    clock_ms: float = 0.0
    cpu_ms: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.clock_ms + other.clock_ms, self.cpu_ms + other.cpu_ms)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.clock_ms - other.clock_ms, self.cpu_ms - other.cpu_ms)

    def per(self, count: int) -> Spent:
        """Share it out."""
        return Spent(self.clock_ms / count, self.cpu_ms / count)

    @property
    def floored(self) -> Spent:
        """The same, but never less than nothing: a difference of two measurements can be."""
        return Spent(max(self.clock_ms, 0.0), max(self.cpu_ms, 0.0))


class Tally:
    """Sums of time by name. One thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._spent: dict[str, Spent] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add what the block takes to a name."""
        before = self.clock()
        yield
        self.add(name, before, self.clock())

    def add(self, name: str, before: tuple[int, int], after: tuple[int, int]) -> None:
        """Add what lies between two readings to a name."""
        spent = Spent((after[0] - before[0]) / 1e6, (after[1] - before[1]) / 1e6)
        self._spent[name] = self._spent.get(name, Spent()) + spent

    def take(self) -> dict[str, Spent]:
        """Return the sums and begin again."""
        taken, self._spent = self._spent, {}
        return taken
