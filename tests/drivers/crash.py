"""Kills forked children at every point of an operation, and checks what they leave behind.

Usage: crash.py FOLDER SOURCE, where SOURCE says when: at `calls` of Python functions, `before` or
`halfway` in system calls (needs faults.c in LD_PRELOAD), or at `drawn` ones of all calls that
Python makes, in any thread. Prints a JSON line per operation: how many points there were, and in
which states the store was found.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

from ocrstore.format import lmdb_update, lmdb_writer, writer
from tests.drivers import operations

MODES = {"before": 1, "halfway": 2}


def kill_at_call(position: int) -> None:
    """Make the process kill itself at the n-th border before or after a chosen call."""
    left = position

    def border() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def guard(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def guarded(*args: object, **options: object) -> object:
            border()
            result = original(*args, **options)
            border()
            return result

        setattr(owner, name, guarded)

    guard(lmdb_update.Environment, "commit")
    guard(lmdb_writer.LmdbWriter, "commit")
    guard(lmdb_writer.LmdbWriter, "finish")
    guard(writer, "check_target")
    guard(Path, "replace")
    for name in ("fsync", "fdatasync", "unlink"):
        guard(os, name)


def kill_at_any_call(position: int) -> Iterator[int]:
    """Make the process kill itself at the n-th call or return of any function, in any thread."""
    calls = itertools.count(1)

    def count(*_: object) -> None:
        if next(calls) == position:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(count)
    sys.setprofile(count)
    return calls


def count_calls(path: Path, operation: str) -> int:
    """Run the operation in a child that is not killed; return how many calls it makes."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        calls = kill_at_any_call(0)
        operations.OPERATIONS[operation](path)
        os.write(writing, str(next(calls)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        counted = int(file.read())
    os.waitpid(child, 0)
    return counted


def run_child(path: Path, operation: str, source: str, position: int) -> bool:
    """Run the operation in a child that is to be killed; return whether it was."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if source == "calls":
                kill_at_call(position)
            elif source == "drawn":
                kill_at_any_call(position)
            else:
                ctypes.CDLL(None).faults_arm(MODES[source], ctypes.c_long(position), 0)
            operations.OPERATIONS[operation](path)
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise AssertionError(f"the child failed at point {position}")
    return os.WIFSIGNALED(status)


def check_left(path: Path, operation: str, before: str | None, after: str | None) -> dict[str, int]:
    """Check what a killed child left, run the operation again, and check that; return counts."""
    found = operations.state(path)
    if found not in (before, after):
        raise AssertionError(f"{operation}, {path}: neither before nor after")
    hidden = operations.beside(path)
    resumed = operations.OPERATIONS[operation](path)
    if operations.state(path) != after or operations.beside(path):
        raise AssertionError(f"{operation}, {path}: a new run left {operations.beside(path)}")
    return {
        "before": int(found == before),
        "after": int(found == after),
        "hidden": int(bool(hidden)),
        "resumed": int(bool(resumed)),
    }


def every_point(folder: Path, operation: str, source: str) -> Counter[str]:
    """Kill one operation at one point after the other, until it gets through."""
    template, before, after = start(folder, operation)
    counts: Counter[str] = Counter()
    killed = True
    while killed:
        counts["points"] += 1
        work = folder / f"{counts['points']}"
        shutil.copytree(template, work)
        killed = run_child(work / "store.ocrs", operation, source, counts["points"])
        counts.update(check_left(work / "store.ocrs", operation, before, after))
        shutil.rmtree(work)
    return counts


def any_time(folder: Path, operation: str, *, rounds: int) -> Counter[str]:
    """Kill one operation at its first call, at one drawn from each part of it, and at its end."""
    template, before, after = start(folder, operation)
    shutil.copytree(template, folder / "counted")
    calls = count_calls(folder / "counted" / "store.ocrs", operation)
    random = Random(operation)
    drawn = [2 + int(calls * (part + random.random()) / rounds) for part in range(rounds)]
    counts: Counter[str] = Counter()
    # two runs differ by a few calls of a thread at most: the last position is never reached
    for number, position in enumerate((1, *drawn, 2 * calls)):
        work = folder / f"{number}"
        shutil.copytree(template, work)
        killed = run_child(work / "store.ocrs", operation, "drawn", position)
        counts["points"] += 1
        counts["killed at the first call"] += killed and position == 1
        counts["killed on the way"] += killed and position > 1
        counts["got through"] += not killed
        counts.update(check_left(work / "store.ocrs", operation, before, after))
        shutil.rmtree(work)
    return counts


def start(folder: Path, operation: str) -> tuple[Path, str | None, str | None]:
    """Make the folder to start from; return it, and the states before and after."""
    template, whole = folder / "template", folder / "whole"
    template.mkdir(parents=True)
    operations.prepare(template / "store.ocrs", operation)
    before = operations.state(template / "store.ocrs")
    shutil.copytree(template, whole)
    operations.OPERATIONS[operation](whole / "store.ocrs")
    return template, before, operations.state(whole / "store.ocrs")


def main(folder: Path, source: str) -> None:
    """Go through all operations."""
    for operation in operations.OPERATIONS:
        work = folder / operation
        if source == "drawn":
            counts = any_time(work, operation, rounds=8)
        else:
            counts = every_point(work, operation, source)
        print(json.dumps({"operation": operation, **counts}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
