"""Report what a sample's time is spent on, while it is measured.

The data set calls `lap(what)` at the end of each piece of work. Outside of `measuring` that is a
comparison with None, about 50 ns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[object], None]

_listener: Listener | None = None


def lap(what: object) -> None:
    """Report what the time since the last lap was spent on: a transform, or a name."""
    if _listener is not None:
        _listener(what)


@contextmanager
def measuring(listener: Listener) -> Iterator[None]:
    """Send the laps of this process to `listener`, which reads a clock. One thread at a time."""
    global _listener  # handing it to every transform would cost more than it measures
    _listener = listener
    try:
        yield
    finally:
        _listener = None
