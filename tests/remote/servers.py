"""A real S3 server, and a proxy in front of it that fails as servers and networks do."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

SETTINGS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}
_CHUNK = 1 << 18


def find_moto() -> str | None:
    """Return the program `moto_server` of this environment, or one on the path."""
    beside = Path(sys.executable).with_name("moto_server")
    return str(beside) if beside.exists() else shutil.which("moto_server")


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """Run moto's server on a free port, in a process of its own; yield its URL."""
    program = find_moto()
    assert program is not None
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    environment.pop("PYTHONPATH", None)
    process = subprocess.Popen(
        [program, "-H", "127.0.0.1", "-p", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            found = re.search(r"Running on (http://127\.0\.0\.1:\d+)", line)
            if found:
                break
        else:
            raise AssertionError(f"moto_server did not start, exit code {process.wait()}")
        # its log of requests would fill the pipe
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield found[1]
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(ValueError, OSError):
            process.stderr.close()


def make_bucket(endpoint: str, name: str) -> None:
    """Create a bucket."""
    host = endpoint.removeprefix("http://")
    connection = http.client.HTTPConnection(host)
    connection.request("PUT", f"/{name}", headers={"Host": host})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status
    connection.close()


@dataclass
class Request:
    """A request that passed the proxy."""

    method: str
    path: str
    range: str
    nbytes: int
    """Of the body of the answer, as far as it was passed on."""


@dataclass
class Fault:
    """Something that goes wrong for the next `times` requests that fit."""

    kind: str
    """A status such as "503"; "refuse": no answer; "cut": half of one; "wrong": one byte of what
    is sent or received is another; "hang": no answer for a long time."""
    times: int = 1
    method: str = "GET"
    path: str = ""
    """A part of the path of the request, or of its Range."""


@dataclass
class Proxy:
    """What a running proxy does and has seen; tests change it while it runs."""

    url: str
    latency: float = 0.0
    """Seconds before each answer."""
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, kind: str, *, times: int = 1, method: str = "GET", path: str = "") -> None:
        """Let the next requests of a kind fail."""
        with self.lock:
            self.faults.append(Fault(kind, times, method, path))

    def downloaded(self, path: str = "") -> int:
        """Return how many bytes of bodies were passed on for GET requests."""
        with self.lock:
            seen = [r for r in self.requests if r.method == "GET" and path in r.path]
        return sum(request.nbytes for request in seen)

    def take(self, method: str, path: str) -> str:
        """Return the kind of the fault for a request, "" for none."""
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method == method and fault.path in path:
                    fault.times -= 1
                    return fault.kind
        return ""


@contextlib.contextmanager
def faulty_proxy(endpoint: str) -> Iterator[Proxy]:
    """Run a proxy in front of a server, in threads of this process."""
    upstream = endpoint.removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            if len(body) < length:  # whoever sent it was killed
                self.close_connection = True
                return
            path = unquote(self.path)
            fault = proxy.take(self.command, f"{path} {self.headers.get('Range', '')}")
            if proxy.latency:
                time.sleep(proxy.latency)
            if fault == "hang":
                stopped.wait(600)
            if fault in ("refuse", "hang"):
                self.close_connection = True
                return
            if fault.isdigit():
                self.send_response(int(fault))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if fault == "wrong" and body:
                body = bytes([body[0] ^ 1]) + body[1:]
            # closed as well when whoever asked was killed
            with contextlib.closing(
                http.client.HTTPConnection(upstream, timeout=120)
            ) as connection:
                connection.request(self.command, self.path, body, dict(self.headers))
                with connection.getresponse() as answer:
                    self.pass_on(answer, path, fault)

        def pass_on(self, answer: http.client.HTTPResponse, path: str, fault: str) -> None:
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding"):
                    self.send_header(name, value)
            length = int(answer.headers.get("Content-Length") or 0)
            if "Content-Length" not in answer.headers:  # it came in chunks
                self.close_connection = True
                self.send_header("Connection", "close")
            # counted before it is sent: a test may look as soon as the last byte is there
            seen = Request(self.command, path, self.headers.get("Range", ""), 0)
            with proxy.lock:
                proxy.requests.append(seen)
            self.end_headers()
            passed, most = 0, length // 2 if fault == "cut" else None
            while self.command != "HEAD":
                chunk = answer.read(_CHUNK if most is None else min(_CHUNK, most - passed))
                if fault == "wrong" and passed == 0 and chunk and self.command == "GET":
                    chunk = bytes([chunk[0] ^ 1]) + chunk[1:]
                if not chunk:
                    break
                passed += len(chunk)
                seen.nbytes = passed
                self.wfile.write(chunk)
            if fault == "cut":
                self.close_connection = True

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do

        def log_message(self, *args: object) -> None:
            pass

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError, http.client.HTTPException):
                super().handle()

    stopped = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy = Proxy(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()
