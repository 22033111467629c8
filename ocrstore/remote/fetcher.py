"""The fetcher, the one process that downloads into a cache folder: `python -m` runs it.

It is started by a reader that finds none, is elected by a lock on a file of the folder, answers
requests on a socket there and ends when there were none for a while. It keeps nothing that the
files do not have: it can be killed at any time, and the next one goes on.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocrstore.errors import OCRStoreError
from ocrstore.remote.client import LOG, SOCKET, lock_folder, socket_path

if TYPE_CHECKING:
    from ocrstore.remote.downloads import Downloads

_IDLE_SECONDS = float(os.environ.get("OCRSTORE_FETCHER_IDLE", "60"))
_LOG_NBYTES = 1 << 20


def main(cache: Path) -> None:
    """Serve a cache folder until nobody asks any more; return at once if another process does."""
    lock = _elect(cache)
    if lock is None:
        return
    with suppress(PermissionError):  # started by hand, it leads a group already
        os.setsid()  # Ctrl-C in one reader's terminal is not meant for the fetcher of all
    # imported by the one that is elected: with many readers many are started
    from ocrstore.remote.downloads import Downloads

    if (cache / LOG).stat().st_size > _LOG_NBYTES:
        os.truncate(cache / LOG, 0)
    downloads = Downloads(cache)
    (cache / SOCKET).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with socket_path(cache) as path:
            listener.bind(path)
        listener.listen(512)
        _serve(listener, downloads)
    downloads.close()
    os.close(lock)


def _elect(cache: Path) -> int | None:
    """Lock the folder; a reader that looks whether it is locked holds the lock for a moment."""
    for _ in range(10):
        lock = lock_folder(cache)
        if lock is not None:
            return lock
        time.sleep(0.02)
    return None


def _serve(listener: socket.socket, downloads: Downloads) -> None:
    """Answer each connection in a thread of its own, until there was none for a while."""
    answering: list[threading.Thread] = []
    listener.settimeout(_IDLE_SECONDS)
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            if downloads.is_busy or any(thread.is_alive() for thread in answering):
                continue
            return
        connection.settimeout(None)
        answering = [thread for thread in answering if thread.is_alive()]
        answering.append(threading.Thread(target=_answer, args=(connection, downloads)))
        answering[-1].daemon = True
        answering[-1].start()


def _answer(connection: socket.socket, downloads: Downloads) -> None:
    with connection, connection.makefile("rb") as lines:
        try:
            answer = _do(json.loads(lines.readline()), downloads)
        except OCRStoreError as exc:
            answer = {"error": type(exc).__name__, "message": str(exc)}
        except Exception as exc:  # the reader has to hear of it
            answer = {"error": "OCRStoreError", "message": f"the fetcher failed: {exc!r}"}
        warning, downloads.warning = downloads.warning, None
        if warning is not None:
            answer["warning"] = warning
        with suppress(OSError):  # the reader has ended
            connection.sendall(json.dumps(answer).encode() + b"\n")


def _do(request: dict[str, Any], downloads: Downloads) -> dict[str, Any]:
    match request["do"]:
        case "open":
            return {"path": str(downloads.open(request["url"], request["settings"]))}
        case "attach":
            downloads.attach(request["frame"])
            return {}
        case "need":
            wanted = {int(number): rows for number, rows in request["rows"].items()}
            return dict(
                downloads.need(request["frame"], request["inode"], wanted, wait=request["wait"])
            )
        case "status":
            return {"pid": os.getpid(), "downloaded": downloads.downloaded}
        case other:
            raise OCRStoreError(f"the fetcher was asked to {other!r}: is it of another version?")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
