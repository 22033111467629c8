"""What docs/FORMAT.md 13 calls dead space is dead, and nothing else is."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

import ocrstore
from ocrstore.errors import OCRStoreError

GOLDEN = Path(__file__).parents[1] / "golden" / "format-1.0.ocrs"
PAGE = 4096


class Layout:
    """Finds the dead bytes of a file whose trees are one leaf each, as 3 and 13 say."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.dead: set[int] = set()
        self.free: set[int] = set()
        self.trees: set[int] = set()
        metas = sorted((0, PAGE), key=lambda start: struct.unpack_from("<Q", data, start + 144)[0])
        for start in metas:
            self._add(start + 8, start + 10)
            self._add(start + 12, start + 16)
            self._add(start + 34, start + 40)  # the map size, but for its low bits
            self._add(start + 152, start + PAGE)
        older, newest = metas
        for start in (newest, older):
            for at in (80, 128):  # the roots of the free list and of the main tree
                (root,) = struct.unpack_from("<Q", data, start + at)
                if root < 2**63:
                    self._leaf(root, is_newest=start == newest, is_free_list=at == 80)
        for page in self.free - self.trees:
            self._add(page * PAGE, (page + 1) * PAGE)

    def _add(self, start: int, end: int) -> None:
        self.dead.update(range(start, end))

    def _leaf(self, page: int, *, is_newest: bool, is_free_list: bool) -> None:
        start = page * PAGE
        self.trees.add(page)
        flags, lower, upper = struct.unpack_from("<HHH", self.data, start + 10)
        assert flags == 2
        self._add(start + 8, start + 10)
        self._add(start + lower, start + upper)
        for pointer in struct.unpack_from(f"<{(lower - 16) // 2}H", self.data, start + 16):
            low, high, kind, key_nbytes = struct.unpack_from("<HHHH", self.data, start + pointer)
            nbytes, content = low | high << 16, start + pointer + 8 + key_nbytes
            end = content + (8 if kind else nbytes)
            self._add(end, end + end % 2)
            if is_free_list:
                numbers = struct.unpack_from(f"<{nbytes // 8}Q", self.data, content)
                self._add(content + 8 + 8 * numbers[0], content + nbytes)
                if is_newest:
                    self.free.update(numbers[1 : 1 + numbers[0]])
            else:
                (first,) = struct.unpack_from("<Q", self.data, content)
                pages = struct.unpack_from("<I", self.data, first * PAGE + 12)[0]
                self._add(first * PAGE + 8, first * PAGE + 10)
                self._add(first * PAGE + 16 + nbytes, (first + pages) * PAGE)


@pytest.fixture(scope="module")
def layout():
    """Return the dead bytes of the golden store."""
    return Layout(GOLDEN.read_bytes())


def is_sound(path: Path) -> bool:
    """Tell whether neither opening nor verifying finds anything."""
    try:
        return ocrstore.verify(path).ok
    except OCRStoreError:
        return False


def test_dead_bytes_may_have_any_value(layout, tmp_path):
    """All dead bytes at once are changed, and nothing that is read changes."""
    data = bytearray(layout.data)
    for position in layout.dead:
        data[position] ^= 0x5A
    path = tmp_path / "dead.ocrs"
    path.write_bytes(data + b"appended" * 1000)
    assert ocrstore.verify(path).findings == []
    changed, golden = ocrstore.open(path), ocrstore.open(GOLDEN)
    assert changed.index.equals(golden.index)
    for name in golden.columns:
        rows = range(len(golden))
        assert [changed[name].stored(r) for r in rows] == [golden[name].stored(r) for r in rows]


def test_all_other_bytes_count(layout, tmp_path):
    """A changed byte anywhere else is refused or reported."""
    drawn = random.Random(1)
    alive = sorted(set(range(len(layout.data))) - layout.dead)
    assert len(alive) > 100_000
    path = tmp_path / "changed.ocrs"
    for position in drawn.sample(alive, 60):
        data = bytearray(layout.data)
        data[position] ^= 1 << drawn.randrange(8)
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        assert not is_sound(path), hex(position)
