"""Reads a store as a user who may write nothing, where root can become one.

Usage: reader_as_nobody.py STORE
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

import ocrstore


def main(path: str) -> None:
    """Read everything; show that writing is refused with a clear error."""
    # names import what they need when they are first used: now, while Python's files may be read
    ocrstore.edit, ocrstore.compact, ocrstore.create
    ocrstore.verify(path)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    os.environ["TMPDIR"] = str(Path(path).parent)
    writable = os.access(path, os.W_OK) or os.access(Path(path).parent, os.W_OK)
    with ocrstore.open(path) as store:
        total = sum(int(array.sum()) for array in store["tensor"])
        rows = store.index.num_rows
    errors = []
    spec = ocrstore.Column("uint8")
    for write in (
        lambda: ocrstore.edit(path),
        lambda: ocrstore.compact(path),
        lambda: ocrstore.add_column(path, "more", spec, np.zeros(rows, "u1")),
        lambda: ocrstore.create(path, {"more": spec}, overwrite=True),
        lambda: ocrstore.create(Path(path).parent / "new.ocrs", {"more": spec}),
    ):
        try:
            write()
        except ocrstore.WriteError as exc:
            errors.append(str(exc))
    print(
        json.dumps(
            {
                "writable": writable,
                "total": total,
                "rows": rows,
                "ok": ocrstore.verify(path).ok,
                "errors": errors,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
