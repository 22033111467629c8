"""Uses one open store from processes of every kind, and prints a JSON line per kind.

Usage: processes.py STORE
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import ocrstore


def use(store: ocrstore.Store) -> dict[str, Any]:
    """Read a store and tell what was found."""
    return {
        "fingerprint": store.fingerprint,
        "sums": [int(store["tensor"][row].sum()) for row in range(len(store))],
        "batch": int(store["tensor"][0:4].sum()),
        "keys": list(store.keys),
    }


def use_nested(kind: str, store: ocrstore.Store) -> dict[str, Any]:
    """Let a child of this child use the store, then use it here too."""
    found = run(kind, use, store)
    return found if found == use(store) else {"error": "the processes disagree"}


def answer(queue: Any, function: Any, *arguments: Any) -> None:
    """Put a function's result into a queue."""
    queue.put(function(*arguments))


def run(kind: str, function: Any, *arguments: Any) -> Any:
    """Call a function in a new process."""
    context = multiprocessing.get_context(kind)
    queue = context.Queue()
    process = context.Process(target=answer, args=(queue, function, *arguments))
    process.start()
    found = queue.get(timeout=300)
    process.join()
    if process.exitcode != 0:
        raise AssertionError(f"{kind}: exit code {process.exitcode}")
    return found


def mapped_nbytes(store: ocrstore.Store) -> dict[str, int]:
    """Return how this process holds the store's bytes in memory, by /proc/self/smaps."""
    store["tensor"][:].sum()
    figures, inside = {"Rss": 0, "Anonymous": 0, "Private_Dirty": 0}, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name = line.split(":")[0]
        if name in figures and inside:
            figures[name] += int(line.split()[1]) * 1024
        elif "-" in name.split(" ")[0]:
            inside = line.endswith(os.path.basename(store.path))  # noqa: PTH119
    return figures


def main(path: str) -> None:
    """Go through all kinds of processes."""
    os.chdir(os.path.dirname(path))  # noqa: PTH120
    store = ocrstore.open(os.path.basename(path))  # noqa: PTH119
    os.chdir("/")  # a relative path goes on meaning the file it meant when it was opened
    expected = use(store)
    for kind in ("fork", "spawn", "forkserver"):
        same = run(kind, use, store) == expected
        print(json.dumps({"kind": kind, "same": same}), flush=True)
    nested = run("fork", use_nested, "fork", store) == expected
    nested = nested and run("spawn", use_nested, "fork", store) == expected
    print(json.dumps({"kind": "nested", "same": nested}))
    if sys.platform.startswith("linux"):
        print(json.dumps({"kind": "memory", **run("fork", mapped_nbytes, store)}))


if __name__ == "__main__":
    main(sys.argv[1])
