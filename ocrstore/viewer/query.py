"""Select samples by a filter: plain words, or a SQL condition run by duckdb in a child process.

A filter is SQL if, outside of double quotes, it contains one of the signs ``= < > (``, or if it
begins with the name of a field (``NOT`` may come first). Everything else is words; double quotes
keep several words together.

The child process has the table of samples and nothing else: no files, network, extensions or
settings. It is killed when a query takes too long, its memory is limited, and a new one takes its
place. This module needs no web server.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import unicodedata
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ocrstore.errors import FilterError, OCRStoreError

Rows = npt.NDArray[np.int64]

MAX_LENGTH = 2000
SECONDS = 10.0
"""A query that takes longer is killed."""
MEMORY = 1 << 30
"""Bytes that a query may take beside the table."""
PROCESSES = 2
MAX_WAITING = 6
"""Queries that may wait for a process; further ones are refused at once."""
_START_SECONDS = 60.0

_SIGNS = re.compile(r"[=<>(]")
_QUOTED = re.compile(r'"[^"]*"')
_FIRST_NAME = re.compile(r"\s*(?:not\s+)?([^\W\d]\w*)", re.IGNORECASE)
_WORDS = re.compile(r'"([^"]*)"|(\S+)')
# the newline ends a comment, the parentheses keep the condition one expression
_BEFORE, _AFTER = 'SELECT "row" FROM samples WHERE (\n', "\n)"


class BusyError(OCRStoreError):
    """Too many queries are running and waiting."""


class Filter:
    """Select rows of one table of samples. Threads may share it; `close` ends its processes.

    Args:
        table: A column `row` with 0, 1, 2, ..., a column `key`, and any others; see
            `samples.read_fields`. Words are searched in `key` and in `texts`, a list of texts.
        seconds: Time limit of a SQL query.
        memory: Bytes that a SQL query may take.
    """

    def __init__(self, table: pa.Table, *, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self._table = table
        self._names = {name.lower() for name in table.column_names}
        self._folded: list[str] | None = None
        self._pool = _Pool(table, seconds, memory)

    def is_sql(self, text: str) -> bool:
        """Return whether a filter is a SQL condition; otherwise it is words."""
        first = _FIRST_NAME.match(_QUOTED.sub(" ", text))
        starts_with_field = first is not None and first[1].lower() in self._names
        return starts_with_field or _has_sign(text)

    def rows(self, text: str) -> Rows:
        """Return the rows that a filter selects, ascending.

        Raises:
            FilterError: The condition is wrong, or exceeds its time or memory.
            BusyError: Too many other queries are running and waiting.
        """
        if len(text) > MAX_LENGTH:
            raise FilterError(f"expected at most {MAX_LENGTH} characters, found {len(text)}")
        if not self.is_sql(text):
            return self._search(text)
        try:
            return self._pool.run(text)
        except FilterError as exc:
            if _has_sign(text):
                raise
            hint = "This filter was read as SQL because it begins with the name of a field; to "
            hint += "search for its words, put it in double quotes."
            raise FilterError(f"{exc} {hint}", position=exc.position) from exc

    def close(self) -> None:
        """End the child processes; queries that are running still return."""
        self._pool.close()

    def __enter__(self) -> Filter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _search(self, text: str) -> Rows:
        """Return the rows whose key or texts contain every word."""
        if self._folded is None:
            self._folded = _fold_samples(self._table)
        words = [_fold(phrase or word) for phrase, word in _WORDS.findall(text)]
        found = [
            row for row, sample in enumerate(self._folded) if all(word in sample for word in words)
        ]
        return np.array(found, np.int64)


def _has_sign(text: str) -> bool:
    return _SIGNS.search(_QUOTED.sub(" ", text)) is not None


def _fold(text: str) -> str:
    """Make upper and lower case, composed and decomposed, full and half width letters equal."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", folded)


def _fold_samples(table: pa.Table) -> list[str]:
    keys = table["key"].to_pylist()
    texts: list[Any] = [None] * len(keys)
    if "texts" in table.column_names:
        kind = table.schema.field("texts").type
        if str(kind).startswith(("list<", "large_list<")) and "string" in str(kind.value_type):
            texts = table["texts"].to_pylist()
    # a line break between two texts: no word has one
    return [
        _fold("\n".join([key, *(text for text in own or () if text)]))
        for key, own in zip(keys, texts, strict=True)
    ]


class _Pool:
    """Up to `PROCESSES` child processes, started when needed and kept for the next query."""

    def __init__(self, table: pa.Table, seconds: float, memory: int) -> None:
        self._table = table
        self._seconds = seconds
        self._memory = memory
        self._idle: list[_Child] = []
        self._waiting = 0
        self._closed = False
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(PROCESSES)

    def run(self, condition: str) -> Rows:
        """Return the rows that fulfil a condition, ascending."""
        self._take_slot()
        try:
            child = self._take_child()
            try:
                found = child.select(condition)
            finally:
                self._give_back(child)
        finally:
            self._slots.release()
        # whoever closes the parenthesis of the condition can select any number
        return np.unique(found[(found >= 0) & (found < self._table.num_rows)])

    def close(self) -> None:
        """End the idle processes now and the others after their query."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.end()

    def _take_slot(self) -> None:
        if self._slots.acquire(blocking=False):
            return
        with self._lock:
            full = self._waiting >= MAX_WAITING
            self._waiting += not full
        if not full:
            try:
                # longer than one query: a process has to start as well
                if self._slots.acquire(timeout=self._seconds + 5):
                    return
            finally:
                with self._lock:
                    self._waiting -= 1
        raise BusyError(
            f"{PROCESSES} other queries are running and more are waiting. Try again in a moment."
        )

    def _take_child(self) -> _Child:
        while True:
            with self._lock:
                child = self._idle.pop() if self._idle else None
            if child is None:
                return _Child(self._table, self._seconds, self._memory)
            if child.is_alive():
                return child
            child.end()

    def _give_back(self, child: _Child) -> None:
        with self._lock:
            keep = child.usable and not self._closed
            if keep:
                self._idle.append(child)
        if not keep:
            child.end()


class _Child:
    """A child process that has the table; one query at a time."""

    def __init__(self, table: pa.Table, seconds: float, memory: int) -> None:
        self._seconds = seconds
        # -P and no empty entry: a module of the current folder must not be imported by accident
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(seconds), str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.usable = True
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        try:
            self._ask(sink.getvalue(), _START_SECONDS, "The machine may be overloaded.")
        except BaseException:
            self.end()
            raise

    def is_alive(self) -> bool:
        """Return whether the process still runs; the system may have killed an idle one."""
        return self._process.poll() is None

    def select(self, condition: str) -> Rows:
        """Return the rows that fulfil a condition."""
        message = condition.encode("utf-8", "replace")
        reply = self._ask(message, self._seconds, "Use a simpler condition.")
        return np.frombuffer(reply, np.int64)

    def end(self) -> None:
        """Kill the process and release its pipes."""
        self._process.kill()
        with contextlib.suppress(OSError):  # bytes that it no longer reads
            self._process.communicate()

    def _ask(self, message: Any, seconds: float, advice: str) -> bytes:
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        reply = None
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            with contextlib.suppress(OSError):  # it died: there is no reply
                _send(self._process.stdin, message)
                reply = _receive(self._process.stdout)
        finally:
            timer.cancel()
            self.usable = reply is not None and not late.is_set()
        if reply is None:
            late_message = f"stopped after {seconds:g} seconds. {advice}"
            raise FilterError(late_message if late.is_set() else self._last_output())
        if reply[:1] == b"R":
            return reply[1:]
        error = json.loads(reply[1:])
        self.usable = self.usable and not error["fatal"]
        raise FilterError(error["message"], position=error["position"])

    def _last_output(self) -> str:
        output = self._process.communicate()[1].decode("utf-8", "replace").strip()[-300:]
        return (
            f"the query process ended with code {self._process.returncode}, probably for lack of "
            f"memory. Use a simpler condition. Last output on stderr: {output or 'none'}"
        )


def _send(pipe: IO[bytes], message: Any) -> None:
    pipe.write(struct.pack("<Q", len(message)))
    pipe.write(message)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    """Return the next message, or None at the end of the pipe."""
    head = pipe.read(8)
    if len(head) < 8:
        return None
    (length,) = struct.unpack("<Q", head)
    message = pipe.read(length)
    return message if len(message) == length else None


# ---- what runs in the child process ----


def _serve(seconds: float, memory: int) -> None:
    """Answer the parent's queries until it closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints does not get between the replies
    data = _receive(sys.stdin.buffer)
    if data is None:
        return
    try:
        import duckdb
    except ImportError:
        _fail(replies, 'SQL conditions need duckdb: pip install "ocrstore[sql]"', fatal=True)
        return
    try:
        connection = _connect(pa.ipc.open_stream(data).read_all(), memory)
    except (duckdb.Error, pa.ArrowException) as exc:
        _fail(replies, f"duckdb does not take this store's index: {exc}", fatal=True)
        return
    del data
    _limit_memory(memory)
    _send(replies, b"R")
    while (message := _receive(sys.stdin.buffer)) is not None:
        condition = message.decode()
        _set_alarm(seconds + 5)  # should the parent be killed before it can kill this process
        try:
            rows = _run(connection, condition)
        except (MemoryError, duckdb.OutOfMemoryException):
            _fail(replies, f"needs more than {memory >> 20} MB of memory", fatal=True)
            return
        except duckdb.Error as exc:
            _fail(replies, *_explain(str(exc), condition))
        except FilterError as exc:
            _fail(replies, str(exc))
        else:
            _send(replies, b"R" + rows.tobytes())
        _set_alarm(0)


def _set_alarm(seconds: float) -> None:
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _fail(
    replies: IO[bytes], message: str, position: int | None = None, *, fatal: bool = False
) -> None:
    error = {"message": message, "position": position, "fatal": fatal}
    _send(replies, b"E" + json.dumps(error).encode())


def _connect(table: pa.Table, memory: int) -> Any:
    import duckdb

    connection = duckdb.connect(":memory:")
    taken = [field.name for field in table.schema if "halffloat" not in str(field.type)]
    connection.register("given", table.select(taken))  # duckdb has no float16
    # a copy: duckdb passes conditions on to Arrow otherwise, which compares fewer types
    connection.execute("CREATE TABLE samples AS SELECT * FROM given")
    connection.unregister("given")
    settings = {
        "threads": "1",
        "memory_limit": f"'{memory + 2 * table.nbytes}B'",
        "temp_directory": "''",
        "errors_as_json": "true",
        "enable_progress_bar": "false",
        "python_enable_replacements": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "enable_external_access": "false",
        "lock_configuration": "true",  # last: it locks the others
    }
    for name, value in settings.items():
        connection.execute(f"SET {name} = {value}")
    return connection


def _limit_memory(memory: int) -> None:
    """Let this process grow by `memory` bytes, write no file and dump no core, on Linux."""
    if not sys.platform.startswith("linux"):
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = {
        resource.RLIMIT_AS: pages * resource.getpagesize() + memory,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def _run(connection: Any, condition: str) -> Rows:
    query = _BEFORE + condition + _AFTER
    if len(connection.extract_statements(query)) != 1:
        raise FilterError("expected one condition, found several statements: remove the semicolons")
    connection.execute("BEGIN TRANSACTION READ ONLY")
    try:
        found = np.ma.compressed(np.ma.asarray(connection.execute(query).fetchnumpy()["row"]))
    finally:
        connection.execute("ROLLBACK")
    return found.astype(np.int64) if found.dtype.kind in "iu" else np.empty(0, np.int64)


def _explain(text: str, condition: str) -> tuple[str, int | None]:
    """Return duckdb's error as a sentence, and the character of the condition it is about."""
    try:
        error = json.loads(text[text.index("{") :])
        message = " ".join(str(error["exception_message"]).split())
    except (ValueError, KeyError):
        return " ".join(text.split())[:400], None
    position = None
    if str(error.get("position", "")).isdigit():
        given = condition.encode()
        offset = max(0, int(error["position"]) - len(_BEFORE))  # in bytes
        position = len(given[:offset].decode("utf-8", "ignore"))
        if offset >= len(given) and error.get("error_subtype") == "SYNTAX_ERROR":
            message = "the condition is incomplete"  # duckdb complains of our own parenthesis
    if error.get("error_subtype") == "COLUMN_NOT_FOUND":
        names = [n.removeprefix("samples.") for n in error.get("candidates", "").split(",") if n]
        hint = f"; did you mean {' or '.join(names[:2])}?" if names else ""
        message = f"there is no field {error.get('name')}{hint}"
    return message[:400].rstrip(".!") + ("" if message.endswith("?") else "."), position


if __name__ == "__main__":
    _serve(float(sys.argv[1]), int(sys.argv[2]))
