"""Opens a store again and again while another process changes it again and again.

Usage: race.py FOLDER CHANGE, where CHANGE is `append`, `compact` or `create`. Ends when the store
was opened often enough and enough of its states were seen, however long that takes. Prints one JSON
line with both counts.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

import ocrstore

OPENED, STATES = 100, 5
SPEC = {"value": ocrstore.Column("int64", (600,))}


def row(number: int) -> dict[str, np.ndarray]:
    """Return the arrays of sample `number`: full of that number."""
    return {"value": np.full(600, number)}


def create(path: Path, samples: int = 3) -> None:
    """Write the store again."""
    with ocrstore.create(path, SPEC, overwrite=True) as writer:
        for number in range(samples):
            writer.append(str(number), row(number), attributes={"number": number})


def append(path: Path, turn: int) -> None:
    """Add a sample, take one away, and sometimes give up."""
    with ocrstore.edit(path) as writer:
        number = int(writer.keys[-1]) + 1
        writer.append(str(number), row(number), attributes={"number": number})
        if len(writer) > 40:
            writer.delete(writer.keys[0])
        if turn % 5 == 0:
            writer.abort()


def change(path: Path, kind: str) -> None:
    """Change the store until this process is killed."""
    for turn in itertools.count(1):
        if kind == "create":
            create(path, 1 + turn % 7)
        elif kind == "compact" and turn % 3 == 0:
            ocrstore.compact(path)
        else:
            append(path, turn)


def check(path: Path) -> tuple[int, int]:
    """Open the store and read it; every row must be what its key says. Return its state."""
    store = ocrstore.open(path)
    for key, value, said in zip(store.keys, store["value"], store.index["number"].to_pylist()):
        if not (value == int(key)).all() or said != int(key):
            raise AssertionError(f"generation {store.generation}: sample {key} is {value[0]}")
    if store.generations[-1] != store.generation:
        raise AssertionError(f"opened {store.generation} of {store.generations}")
    return store.generation, len(store)


def main(path: Path, kind: str) -> None:
    """Open until the store was seen in some states, and often enough for the rare moments."""
    create(path)
    child = os.fork()
    if child == 0:
        change(path, kind)
    opened, seen = 0, [check(path)]
    try:
        while opened < OPENED or len(set(seen)) < STATES:
            seen.append(check(path))
            if kind != "create" and seen[-1][0] < seen[-2][0]:
                raise AssertionError(f"generation {seen[-1][0]} after {seen[-2][0]}")
            opened += 1
            if os.waitpid(child, os.WNOHANG)[0]:
                raise AssertionError("the writer failed")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not ocrstore.verify(path).ok:
        raise AssertionError("not sound at the end")
    print(json.dumps({"opened": opened, "states": len(set(seen))}))


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "store.ocrs", sys.argv[2])
