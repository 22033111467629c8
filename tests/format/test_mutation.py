"""Any damaged byte is found by `verify`, refused at opening, or provably without effect."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocrstore


@pytest.fixture(scope="module")
def small(memory_folder):
    """A small store with three generations, free pages, all kinds of rows; and its content."""
    # made again when this process gets tests of this file a second time
    path = Path(tempfile.mkdtemp(dir=memory_folder)) / "mutation.ocrs"
    spec = {
        "image": ocrstore.Column("uint8", (None, 3)),
        "map": ocrstore.Column("float16", (4,)),
        "text": ocrstore.Column("int32", (None,), codec="zstd"),
    }
    rng = np.random.default_rng(5)

    def sample(row):
        return {
            "image": rng.integers(0, 255, (row * 400, 3), np.uint8),
            "map": rng.random(4).astype(np.float16),
            "text": np.arange(row * 9, dtype=np.int32),
        }

    with ocrstore.create(path, spec, group_rows=2, resume="x") as writer:
        for row in range(5):
            writer.append(
                f"{row}.jpg", sample(row), attributes={"width": row, "words": ["a"] * row}
            )
    with ocrstore.edit(path) as writer:
        writer.replace("1.jpg", sample(2), attributes={"width": 7})
        writer.delete("2.jpg")
    with ocrstore.edit(path) as writer:
        writer.append("9.jpg", sample(3), attributes={"width": 9, "words": []})
    return path, path.read_bytes(), content(path)


def content(path):
    """Everything a reader can see, over all generations."""
    newest = ocrstore.open(path)
    seen = []
    for generation in newest.generations:
        store = ocrstore.open(path, generation=generation)
        rows = [[(n, a.tobytes(), a.shape) for a in store[n]] for n in store.columns]
        seen.append((store.keys, store.fingerprint, rows, store.index.to_pylist()))
    return seen


def check(folder, good, data, original):
    """Tell how a damaged file shows; fail if it lies."""
    path = folder / "damaged.ocrs"
    path.write_bytes(data)
    try:
        result = ocrstore.verify(path)
    except ocrstore.OCRStoreError:
        return "refused"
    if result.findings:
        return "found"
    assert content(path) == original, "verify was content with a store that reads differently"
    with ocrstore.edit(path) as writer:  # and it is safe to write to
        writer.delete("0.jpg")
    assert ocrstore.verify(path).ok
    return "harmless"


@settings(max_examples=120)
@given(data=st.data())
def test_any_single_byte(small, data):
    """Any byte, any other value."""
    path, good, original = small
    position = data.draw(st.integers(0, len(good) - 1))
    damaged = bytearray(good)
    damaged[position] ^= data.draw(st.integers(1, 255))
    check(path.parent, good, bytes(damaged), original)


def test_every_byte_of_meta_and_tree_pages(small):
    """All bits that LMDB itself depends on: each byte of the meta and tree pages, two bits each."""
    path, good, original = small
    shown = {"refused": 0, "found": 0, "harmless": 0}
    page = 4096
    tree_pages = [
        number
        for number in range(len(good) // page)
        if good[number * page + 10] in (0x01, 0x02, 0x08) and good[number * page + 11] == 0
    ]
    assert len(tree_pages) >= 5
    for number in tree_pages:
        for inside in (*range(0, 160, 8), *range(page - 220, page, 32)):
            damaged = bytearray(good)
            damaged[number * page + inside] ^= 0x41
            shown[check(path.parent, good, bytes(damaged), original)] += 1
    assert shown["found"] and shown["refused"], shown


def test_every_row_names_its_sample(small):
    """A flipped bit in a row is reported with the sample and the column."""
    path, good, _ = small
    store = ocrstore.open(path)
    for name in store.columns:
        for row, key in enumerate(store.keys):
            nbytes = int(store[name].nbytes[row])
            if not nbytes:
                continue
            damaged = bytearray(good)
            damaged[int(store[name].offsets[row]) + nbytes // 2] ^= 0x10
            target = path.parent / "row.ocrs"
            target.write_bytes(bytes(damaged))
            findings = ocrstore.verify(target).findings
            assert [(f.sample, f.column) for f in findings] == [(key, name)]


def test_truncation_anywhere(small):
    """Cut at any page and at odd places: refused or found, never a crash."""
    path, good, _ = small
    target = path.parent / "cut.ocrs"
    for nbytes in [*range(0, len(good), 4096), *range(1, len(good), 3333), len(good) - 1]:
        target.write_bytes(good[:nbytes])
        try:
            assert not ocrstore.verify(target).ok
        except ocrstore.OCRStoreError:
            continue


def test_appended_garbage_is_shown_to_be_dead(small):
    """Bytes behind the last page change nothing and are noted; the next append buries them."""
    path, good, original = small
    target = path.parent / "longer.ocrs"
    target.write_bytes(good + b"garbage" * 1000)
    result = ocrstore.verify(target)
    assert result.ok and any("dead space" in note for note in result.notes)
    assert content(target) == original
    with ocrstore.edit(target) as writer:
        writer.delete("0.jpg")
    assert ocrstore.verify(target).ok
