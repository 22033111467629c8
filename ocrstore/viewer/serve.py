"""Run the web server on a port of 127.0.0.1."""

from __future__ import annotations

import contextlib
import socket
import threading
import webbrowser
from collections.abc import Callable

import uvicorn

from ocrstore.errors import OCRStoreError
from ocrstore.viewer.app import make_app
from ocrstore.viewer.auth import Guard, new_token
from ocrstore.viewer.live import Live

HOST = "127.0.0.1"


class Viewer:
    """A viewer bound to a port.

    `run` serves until Ctrl-C or until any thread calls `stop`, then closes `live`.
    """

    def __init__(self, live: Live, *, port: int = 0) -> None:
        self._live = live
        self._socket = _bind(port)
        self.port = int(self._socket.getsockname()[1])
        self.token = new_token()
        config = uvicorn.Config(
            Guard(make_app(live), token=self.token, port=self.port),
            log_level="error",
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            http="h11",
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)

    @property
    def url(self) -> str:
        """The address to open, with the token that grants access."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def run(self, *, ready: Callable[[], None] | None = None) -> None:
        """Serve until stopped; `ready` is called once connections are accepted."""
        if ready is not None:
            ready()  # the socket listens already: a connection waits until the server runs
        try:
            # uvicorn finishes running requests, then raises the signal again that stopped it
            with contextlib.suppress(KeyboardInterrupt):
                self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._live.close()

    def stop(self) -> None:
        """Make `run` return."""
        self._server.should_exit = True


def open_browser(url: str) -> None:
    """Open an address in the user's browser, without waiting for it."""
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def _bind(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((HOST, port))
        listener.listen(128)
    except OSError as exc:
        listener.close()
        raise OCRStoreError(
            f"port {port} of {HOST} cannot be used: {exc.strerror}. Choose another --port, or "
            "leave it out for a free one."
        ) from exc
    return listener
