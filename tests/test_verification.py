"""The quick check beside a writer, and on a tree with a damaged page."""

from __future__ import annotations

import threading

import numpy as np

import ocrstore
from ocrstore.verification import check_headers


def test_a_store_that_grows_meanwhile_is_sound(make_store):
    """Commits between and during checks are no damage."""
    path = make_store(samples=40)
    store = ocrstore.open(path)
    done = threading.Event()

    def write():
        for number in range(12):
            with ocrstore.edit(path) as writer:
                arrays = {
                    "image": np.zeros((9, 9, 3), np.uint8),
                    "tensor": np.zeros((64, 64, 3), np.uint8),
                    "text": np.zeros(3, np.int16),
                }
                writer.append(f"more{number}", arrays, attributes={"number": number})
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        while not done.is_set():
            found = check_headers(store)
            assert found.ok, found.findings
    finally:
        thread.join()
    assert check_headers(ocrstore.open(path)).rows == 52 * 3


def test_one_damaged_value_leaves_the_others_found(make_store):
    """A page header that is wrong costs its own extent only."""
    path = make_store(samples=8)
    store = ocrstore.open(path)
    page = int(store["tensor"].offsets.min()) // 4096 * 4096 - 4096
    data = bytearray(path.read_bytes())
    data[page + 2] ^= 1  # the page's own number
    path.write_bytes(data)
    found = check_headers(ocrstore.open(path))
    assert not found.ok and found.extents == 2 and found.rows == 16
    assert all("tensor" in finding for finding in found.findings)
    assert sum("its row is in no sound extent" in finding for finding in found.findings) == 8
