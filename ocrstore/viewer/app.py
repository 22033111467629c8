"""The web server of the viewer and its routes: the page and its files, JSON, pictures."""

from __future__ import annotations

import contextlib
import hashlib
import mimetypes
import socket
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import asdict
from importlib import resources
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ocrstore.errors import (
    FilterError,
    OCRStoreError,
    StoreChangedError,
    UnknownColumnError,
    UnknownRowError,
    UnknownSampleError,
)
from ocrstore.keys import to_lines
from ocrstore.viewer.auth import Guard, new_token
from ocrstore.viewer.live import Live
from ocrstore.viewer.query import BusyError
from ocrstore.viewer.renditions import SIZES
from ocrstore.viewer.samples import Catalog, Selection

HOST = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")  # only where the user asks for it
_PICTURE_CACHE = "private, max-age=86400"
"""Pictures may be cached: their URLs contain the state of the store."""
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}

Endpoint = Callable[[Request], Response]


class Viewer:
    """A viewer bound to a port.

    `run` serves until Ctrl-C or until any thread calls `stop`, then closes `live`.
    """

    def __init__(self, live: Live, *, host: str = HOST, port: int = 0) -> None:
        self._live = live
        self.host = host
        self._socket = _bind(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.token = new_token()
        config = uvicorn.Config(
            Guard(make_app(live), token=self.token, host=host, port=self.port),
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
        name = socket.gethostname() if self.host in EVERYWHERE else self.host
        name = f"[{name}]" if ":" in name else name
        return f"http://{name}:{self.port}/?token={self.token}"

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


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as exc:
        raise OCRStoreError(
            f"port {port} of {host} cannot be used: {exc.strerror}. Choose another --port, or "
            "leave it out for a free one; --host is an address of this machine."
        ) from exc


def make_app(live: Live) -> Starlette:
    """Return the application; `auth.Guard` checks who may use it."""
    files = _load_files()

    def page(request: Request) -> Response:
        return _file(request, files, "index.html")

    def static(request: Request) -> Response:
        return _file(request, files, request.path_params["name"])

    def facts(_request: Request) -> Response:
        beside = None if live.beside is None else live.beside.facts()["name"]
        return JSONResponse({**live.catalog.facts(), "beside": beside})

    def state(_request: Request) -> Response:
        return JSONResponse({"state": live.catalog.state, "news": asdict(live.look())})

    def reload(_request: Request) -> Response:
        live.reload()
        return facts(_request)

    def rows(request: Request) -> Response:
        start, count = _number(request, "start", 0), _number(request, "count", 100)
        return JSONResponse(live.catalog.page(_selection(request), start, count))

    def catalog_of(request: Request) -> Catalog:
        beside = request.query_params.get("beside") == "1"
        return live.beside if beside and live.beside is not None else live.catalog

    def keys(request: Request) -> Response:
        lines = live.catalog.keys(_selection(request))
        headers = {"content-disposition": 'attachment; filename="keys.txt"'}
        return Response(to_lines(lines), media_type="text/plain", headers=headers)

    def histogram(request: Request) -> Response:
        return JSONResponse(live.catalog.histogram(_selection(request)))

    def tags(request: Request) -> Response:
        given = request.query_params
        key = given.get("key", "")
        live.catalog.set_tags(key, given.getlist("tag"))
        return JSONResponse({"tags": live.catalog.sample(live.catalog.store.row(key))["tags"]})

    def sample(request: Request) -> Response:
        catalog = catalog_of(request)
        key = request.query_params.get("key")
        row = catalog.store.row(key) if key is not None else _number(request, "row", 0)
        lowest = _number(request, "min_score", 0) / 100
        answer = catalog.sample(catalog.check_row(row), min_score=lowest)
        try:
            answer["position"] = catalog.position(_selection(request), row)
        except (FilterError, BusyError):
            answer["position"] = None  # the grid shows what is wrong with the filter
        return JSONResponse(answer)

    def thumbnail(request: Request) -> Response:
        catalog = live.catalog
        row = catalog.check_row(request.path_params["row"])
        side = _number(request, "side", SIZES[1])
        side = next((size for size in SIZES if size >= side), SIZES[-1])
        outlines = catalog.outlines(row) if request.query_params.get("outlines") == "1" else []
        tag = catalog.thumbnails.tag(row, side, outlines)
        if _matches(request, tag):
            return _cached(None, "image/jpeg", tag)
        return _cached(catalog.thumbnails.make(row, side, outlines), "image/jpeg", tag)

    def picture(request: Request) -> Response:
        catalog = catalog_of(request)
        row = catalog.check_row(request.path_params["row"])
        column = request.query_params.get("column", "")
        stored = catalog.store[column]
        tag = f'"{int(stored.hashes[row]):016x}"'
        if _matches(request, tag):
            return _cached(None, "image/png", tag)
        data, kind = catalog.render(row, column)
        return _cached(data, kind, tag)

    routes = [
        Route("/", page),
        Route("/static/{name}", static),
        Route("/api/store", _guarded(facts)),
        Route("/api/state", _guarded(state)),
        Route("/api/reload", _guarded(reload), methods=["POST"]),
        Route("/api/rows", _guarded(rows)),
        Route("/api/sample", _guarded(sample)),
        Route("/api/keys", _guarded(keys)),
        Route("/api/histogram", _guarded(histogram)),
        Route("/api/tags", _guarded(tags), methods=["POST"]),
        Route("/thumbnail/{row:int}", _guarded(thumbnail)),
        Route("/picture/{row:int}", _guarded(picture)),
    ]
    return Starlette(routes=routes)


def _guarded(endpoint: Endpoint) -> Endpoint:
    """Turn errors into JSON responses that the page can show."""

    def answer(request: Request) -> Response:
        try:
            return endpoint(request)
        except FilterError as exc:
            return _error(400, "filter", str(exc), position=exc.position)
        except BusyError as exc:
            return _error(503, "busy", str(exc))
        except (UnknownSampleError, UnknownRowError, UnknownColumnError) as exc:
            return _error(404, "missing", str(exc.args[0]))
        except StoreChangedError as exc:
            return _error(409, "changed", str(exc))
        except OCRStoreError as exc:
            return _error(422, "store", str(exc))  # the request is right, the store is not
        except Exception as exc:  # whatever it is, the page has to show something
            message = f"unexpected {type(exc).__name__}: {exc}. Please report this as a bug."
            return _error(500, "unexpected", message)

    return answer


def _error(status: int, kind: str, message: str, **more: Any) -> Response:
    return JSONResponse({"kind": kind, "error": message, **more}, status_code=status)


def _selection(request: Request) -> Selection:
    given = request.query_params
    return Selection(
        filter=given.get("filter", ""),
        sort=given.get("sort", ""),
        descending=given.get("descending") == "1",
    )


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise UnknownRowError(f"{name}: expected an int, found {text[:20]!r}.")
    return int(text)


def _matches(request: Request, tag: str) -> bool:
    given = request.headers.get("if-none-match", "")
    return tag in [part.strip().removeprefix("W/") for part in given.split(",")]


def _cached(data: bytes | None, kind: str, tag: str) -> Response:
    headers = {"etag": tag, "cache-control": _PICTURE_CACHE}
    if data is None:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=kind, headers=headers)


def _load_files() -> dict[str, bytes]:
    """Read the static files once; no other file can be requested."""
    folder = resources.files("ocrstore.viewer") / "static"
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}


def _file(request: Request, files: dict[str, bytes], name: str) -> Response:
    data = files.get(name)
    if data is None:
        return _error(404, "missing", "The viewer has no such file.")
    tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if _matches(request, tag):
        return Response(status_code=304, headers=headers)
    suffix = name[name.rfind(".") :]
    kind = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(data, media_type=kind, headers=headers)
