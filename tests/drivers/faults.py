"""Lets every system call of an operation fail once, and checks that nothing is lost by it.

Usage: faults.py FOLDER, with faults.c in LD_PRELOAD. Prints a JSON line per operation: how many
failures were reported, one for each call.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import sys
from pathlib import Path

import crash
import operations

import ocrstore

FAIL = 3
LIBRARY = ctypes.CDLL(None)
LIBRARY.faults_calls.restype = ctypes.c_long


def fail(path: Path, operation: str, error: int, position: int) -> bool:
    """Run an operation whose n-th call fails; return whether it made so many calls."""
    LIBRARY.faults_arm(FAIL, ctypes.c_long(position), error)
    try:
        operations.OPERATIONS[operation](path)
    except ocrstore.WriteError as exc:
        if os.strerror(error) not in str(exc) or str(path.parent) not in str(exc):
            raise AssertionError(f"not a clear error: {exc}") from exc
        return True
    finally:
        calls = LIBRARY.faults_calls()
        LIBRARY.faults_arm(0, ctypes.c_long(0), 0)
    if calls >= position:
        raise AssertionError(f"{operation}: call {position} failed, and nobody was told")
    return False


def main(folder: Path) -> None:
    """Go through all operations, errors and calls; always in this one process."""
    for operation in operations.OPERATIONS:
        template, before, after = crash.start(folder / operation, operation)
        reported, failed = 0, True
        while failed:
            work = folder / operation / f"{reported}"
            shutil.copytree(template, work)
            error = (errno.ENOSPC, errno.EIO)[reported % 2]
            failed = fail(work / "store.ocrs", operation, error, reported + 1)
            reported += failed
            crash.check_left(work / "store.ocrs", operation, before, after)
            shutil.rmtree(work)
        print(json.dumps({"operation": operation, "reported": reported}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
