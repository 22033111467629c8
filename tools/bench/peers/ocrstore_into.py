"""The same store, its batches copied by `batch.copy_into`: what `pin_memory=True` does."""

from __future__ import annotations

from tools.bench.consumers import NAMES
from tools.bench.peers.ocrstore import build, loader, version

TITLE = "ocrstore, copy_into"
REQUIREMENTS = ()
NOTE = "Copied by `batch.copy_into(buffers)`, row by row from the file, as with `pin_memory=True`."
MEASURED = ("copy",)

__all__ = ["MEASURED", "NOTE", "REQUIREMENTS", "TITLE", "build", "consume", "loader", "version"]


def consume(batch, buffers) -> None:
    """Copy every byte, as the suite's own consumer does, without making the batch first."""
    if not buffers:
        made = batch.empty_buffers()
        buffers.update({name: made[name] for name in NAMES})
    batch.copy_into(buffers)
