"""Folders of tiny pictures and annotations, written from a table of names and contents."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections import Counter

import pytest


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int) -> bytes:
    """Return a white picture."""
    rows = (b"\x00" + b"\xff" * 3 * width) * height
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + _chunk(b"IDAT", zlib.compress(rows))
        + _chunk(b"IEND", b"")
    )


PNG = png(1, 1)


@pytest.fixture
def make(tmp_path):
    """Write files: None is a tiny picture, bytes and text as they are, anything else as JSON."""

    def write(files, *, into="images"):
        root = tmp_path / into
        root.mkdir(exist_ok=True)
        for name, content in files.items():
            path = root / os.fsdecode(name)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(exist_ok=True)
            except OSError:
                pytest.skip(f"this file system has no name {name!a}")
            if content is None:
                data = PNG
            elif isinstance(content, bytes):
                data = content
            elif isinstance(content, str):
                data = content.encode()
            else:
                data = json.dumps(content).encode()
            path.write_bytes(data)
        listed = {p.relative_to(root).as_posix() for p in root.rglob("*")}
        if not {os.fsdecode(name) for name in files} <= listed:
            pytest.skip("this file system takes different names for one")
        return root

    return write


@pytest.fixture
def kinds():
    """Count the problems of a source and of its samples by kind."""

    def count(source):
        found = Counter(problem.kind for problem in source.problems)
        for sample in source:
            found.update(problem.kind for problem in sample.problems)
        return dict(found)

    return count
