"""Ask the fetcher of a cache folder, and start one where there is none.

Each request is one connection to a socket in the cache folder, with a line of JSON each way.
Nothing is kept between requests: forked and spawned processes need nothing special, and a fetcher
that was killed is noticed by the connection that it loses.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ocrstore import errors
from ocrstore.errors import OCRStoreError
from ocrstore.machine import parse_nbytes
from ocrstore.remote.cache import cache_folder, is_url, shard_url

if sys.platform != "win32":
    import fcntl

SOCKET, LOCK, LOG = "fetcher.sock", "fetcher.lock", "fetcher.log"
_START_SECONDS = 60.0
"""How long a fetcher may take until it answers, on a machine that is busy."""
_ANSWER_SECONDS = 900.0
_LOST = 100
"""A request during which so many fetchers died is given up."""
_MAX_SOCKET_PATH = 100
"""The system's limit is 104 (macOS) or 108 bytes (Linux)."""

_started: list[int] = []
"""Fetchers that this process has started, and must therefore wait for when they have ended."""


def open_url(
    url: str,
    *,
    cache: str | os.PathLike[str] | None = None,
    cache_limit: str | int | None = None,
    ahead_bytes: str | int | None = None,
) -> str:
    """Return the path of the local copy of a store or a data set, which is opened like any other.

    Args:
        url: The store, or the folder of a data set of many: s3://, gs://, az://, https://, file://.
        cache: The cache folder, on a disk of this node; the variable OCRSTORE_CACHE, or a folder
            in the user's cache, if not given.
        cache_limit: The most bytes of the folder, such as "500GB"; as before if not given, and
            at first as much as the disk holds.
        ahead_bytes: The most bytes that are under way at once; 256 MiB at first.

    Raises:
        NotAStoreError: There is no such object, or it is not a store.
        OCRStoreError: It cannot be read.
    """
    if not is_url(url):
        raise ValueError(f"{url!r} is not a URL: expected s3://bucket/train.ocrs or the like.")
    settings = {
        name: parse_nbytes(value)
        for name, value in (("cache_limit", cache_limit), ("ahead_bytes", ahead_bytes))
        if value is not None
    }
    folder = cache_folder(cache)
    return str(ask(folder, {"do": "open", "url": url, "settings": settings})["path"])


def open_shard_of(path: str) -> str:
    """Return the local copy of a shard that seems to lie beside the copy of a catalog.

    Any other path is returned as it is.
    """
    found = shard_url(path)
    return path if found is None else open_url(found[0], cache=found[1])


def ask(cache: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Return the fetcher's answer; errors that it reports are raised here."""
    if sys.platform == "win32":
        raise OCRStoreError("URLs are read on Linux and macOS; here use `ocrstore pull`.")
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise OCRStoreError(
            f"{cache}: cannot be made: {exc.strerror}. Choose another folder: cache=, or the "
            "variable OCRSTORE_CACHE."
        ) from exc
    message = json.dumps(request).encode() + b"\n"
    for _ in range(_LOST):
        answer = _exchange(cache, message)
        if answer is None:  # the fetcher has ended meanwhile: ask the next one
            continue
        if "warning" in answer:
            warnings.warn(answer["warning"], RuntimeWarning, stacklevel=2)
        if "error" in answer:
            raise getattr(errors, answer["error"], OCRStoreError)(answer["message"])
        return answer
    raise OCRStoreError(
        f"{cache}: {_LOST} fetchers have died during one request. Last output: "
        f"{_last_output(cache)}"
    )


def _exchange(cache: Path, message: bytes) -> dict[str, Any] | None:
    """Send a request and return the answer; None if the connection was lost."""
    with _connect(cache) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.sendall(message)
            with connection.makefile("rb") as lines:
                line = lines.readline()
        except TimeoutError:
            raise OCRStoreError(
                f"{cache}: the fetcher has not answered for {_ANSWER_SECONDS:.0f} s. Is the "
                f"disk or the network stuck? Its log is {LOG}."
            ) from None
        except OSError:
            return None
    return json.loads(line) if line.endswith(b"\n") else None


def _connect(cache: Path) -> socket.socket:
    """Return a connection to the fetcher, which is started if there is none."""
    give_up = time.monotonic() + _START_SECONDS
    pause = 0.005
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with socket_path(cache) as path:
                connection.connect(path)
            return connection
        except OSError as exc:
            connection.close()
            if time.monotonic() > give_up:
                raise OCRStoreError(
                    f"{cache}: the fetcher of this cache folder cannot be started ({exc}). Last "
                    f"output: {_last_output(cache)}"
                ) from exc
        if not _is_elected(cache) and not any(_is_running(pid) for pid in _started[-1:]):
            _started.append(_start(cache))
        time.sleep(pause * random.uniform(0.5, 1.5))  # many readers start at once
        pause = min(pause * 1.5, 0.2)


@contextmanager
def socket_path(cache: Path) -> Iterator[str]:
    """Return the path of the socket, or a shorter one if the system allows none of that length."""
    path = str(cache / SOCKET)
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        yield path
        return
    if sys.platform != "linux":
        raise OCRStoreError(f"{cache}: choose a cache folder with a path below 90 characters.")
    folder = os.open(cache, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)


def lock_folder(cache: Path) -> int | None:
    """Become the fetcher of a cache folder; None if another process is.

    A lock of POSIX belongs to the process: unlike flock's, no child that is forked meanwhile keeps
    it. It ends with the process or when the descriptor is closed.
    """
    descriptor = os.open(cache / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _is_elected(cache: Path) -> bool:
    """Return whether some process is the fetcher, perhaps one that is just being started."""
    descriptor = lock_folder(cache)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def _start(cache: Path) -> int:
    """Start a fetcher, by exec and not by fork; return its process id."""
    package = Path(__file__).parents[2]
    environment = dict(os.environ)
    others = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{package}{os.pathsep}{others}" if others else str(package)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", "-m", "ocrstore.remote.fetcher", str(cache)],
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(cache / LOG), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )


def _is_running(pid: int) -> bool:
    """Return whether a fetcher that this process has started is still running."""
    with suppress(ChildProcessError):  # after a fork it is the parent's child
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    return False


def _last_output(cache: Path) -> str:
    with suppress(OSError):
        return (cache / LOG).read_text("utf-8", "replace")[-2000:].strip() or "none"
    return "none"
