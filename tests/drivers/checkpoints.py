"""Kills, or lets fail, every system call of writing a checkpoint, and checks what is left.

Usage: checkpoints.py FOLDER, with faults.c in LD_PRELOAD. Prints a JSON line per mode: at how many
calls, and how often the previous and the new checkpoint was found.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
import tempfile
from pathlib import Path

import torch

from ocrstore.dbnet.checkpoint import write_checkpoint
from ocrstore.errors import WriteError

KILL_BEFORE, KILL_HALFWAY, FAIL = 1, 2, 3
LIBRARY = ctypes.CDLL(None)
LIBRARY.faults_calls.restype = ctypes.c_long


def content(number: int) -> dict[str, object]:
    """Return a checkpoint of 100 kB that is identified by its number."""
    return {"number": number, "state_dict": {"weight": torch.full((25_000,), float(number))}}


def killed(path: Path, mode: int, position: int) -> bool:
    """Write in a child that is killed at a call; return whether it made so many."""
    child = os.fork()
    if child == 0:
        LIBRARY.faults_arm(mode, ctypes.c_long(position), 0)
        write_checkpoint(content(1), path)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def failed(path: Path, mode: int, position: int) -> bool:
    """Write while a call fails; return whether there were so many. Nothing may be left behind."""
    error = (errno.ENOSPC, errno.EIO)[position % 2]
    LIBRARY.faults_arm(mode, ctypes.c_long(position), error)
    try:
        write_checkpoint(content(1), path)
    except WriteError as exc:
        assert os.strerror(error) in str(exc) and str(path) in str(exc), exc
        return True
    finally:
        LIBRARY.faults_arm(0, ctypes.c_long(0), 0)
        assert [p.name for p in path.parent.iterdir()] == [path.name]
    return False


def main(folder: Path) -> None:
    """Go through the modes; the temporary folder stays empty in all of them."""
    torch.set_num_threads(1)
    tempfile.tempdir = str(folder / "temporary")
    Path(tempfile.tempdir).mkdir()
    path = folder / "out" / "last.ckpt"
    for name, mode, strike in (
        ("before", KILL_BEFORE, killed),
        ("halfway", KILL_HALFWAY, killed),
        ("fail", FAIL, failed),
    ):
        found, position, struck = [0, 0], 0, True
        while struck:
            position += 1
            write_checkpoint(content(0), path)
            struck = strike(path, mode, position)
            left = torch.load(path, weights_only=True)
            assert torch.equal(
                left["state_dict"]["weight"], content(left["number"])["state_dict"]["weight"]
            )
            found[left["number"]] += 1
            assert not list(Path(tempfile.tempdir).iterdir())
        print(json.dumps({"mode": name, "calls": position - 1, "found": found}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
