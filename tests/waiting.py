"""Waiting for what other threads, processes or the kernel do, without depending on their speed."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], *, seconds: float = 300.0) -> None:
    """Return as soon as the condition holds; the limit matters to tests that fail only."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


def once_in(attempts: int, attempt: Callable[[], bool]) -> bool:
    """Return whether one of several attempts succeeds.

    For what is in the page cache: the kernel may drop a page at any moment, but not each time.
    """
    return any(attempt() for _ in range(attempts))
