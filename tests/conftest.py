"""Fixtures for all tests."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def memory_folder():
    """A folder in memory where the system has one, for tests that sync thousands of files."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent, prefix="ocrstore-test-") as name:
        yield Path(name)
