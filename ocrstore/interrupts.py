"""End on Ctrl-C without a traceback while modules are imported."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = "interrupted; published stores are unchanged."


@contextmanager
def quick_exit() -> Iterator[None]:
    """End the process at once on SIGINT, with one line and exit code 130; wrap only imports in it.

    A KeyboardInterrupt within an import is no use: extension modules turn it into an ImportError,
    or print it and go on. Nothing has been started yet that would have to be cleaned up.
    """
    mine = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    # another handler, or none (a job in the background), is somebody's wish
    if not mine or before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _exit(_signal: int, _frame: FrameType | None) -> None:
    os.write(2, f"Error: {INTERRUPTED}\n".encode())
    os._exit(130)
