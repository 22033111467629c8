"""Read LMDB 0.9 data files with every bound checked: find values and their offsets (FORMAT.md 3).

liblmdb trusts its file: a damaged tree page can crash the process, and a file cannot be opened
again in a forked child. This module walks the same B-tree in Python and checks every number before
it is used. It needs no lock, no lock file and no writable directory, and works beside a writer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ocrstore.errors import CorruptStoreError, NotAStoreError, UnsupportedFormatError, corrupt
from ocrstore.format.layout import VALUE_OFFSET

PAGE_HEADER = struct.Struct("<QHHHH")  # page number, pad, flags, lower, upper
OVERFLOW_COUNT = struct.Struct("<I")  # overlays lower and upper
META = struct.Struct("<IIQQ")  # magic, data version, map address, map size
TREE = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch, leaf, overflow, entries, root
META_TAIL = struct.Struct("<QQ")  # last page, transaction
NODE = struct.Struct("<HHHH")  # low, high, flags, key size
PAGE_NUMBER = struct.Struct("<Q")

MAGIC = 0xBEEFC0DE
DATA_VERSION = 1
NO_PAGE = 2**64 - 1
META_NBYTES = PAGE_HEADER.size + META.size + 2 * TREE.size + META_TAIL.size

P_BRANCH, P_LEAF, P_OVERFLOW, P_META = 0x01, 0x02, 0x04, 0x08
F_BIGDATA, F_SUBDATA, F_DUPDATA = 0x01, 0x02, 0x04
FREE_TREE_FLAGS = 0x4008  # integer keys; the environment is one file, not a folder
_MAX_DEPTH = 32  # as in liblmdb: the depth of its cursors
_NEWER_MAGIC_OFFSET = 24  # LMDB 1.0 has a page header of 24 bytes


class Tree(NamedTuple):
    """The root record of one B-tree."""

    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int

    @property
    def is_empty(self) -> bool:
        """Whether the tree has no page at all."""
        return self.root == NO_PAGE


class Meta(NamedTuple):
    """One of the two meta pages: the root of the state after a commit."""

    slot: int
    page_size: int
    map_size: int
    free: Tree
    main: Tree
    last_page: int
    transaction: int


class Value(NamedTuple):
    """Where a value lies: `nbytes` at file offset `offset`, in `pages` pages from page `page`."""

    page: int
    pages: int
    offset: int
    nbytes: int


class Node(NamedTuple):
    """One entry of a tree page: `child` in a branch, `value` or `inline` in a leaf."""

    key: bytes
    child: int
    value: Value | None
    inline: bytes


class PageReader:
    """Reads the newest commit of an LMDB file that lies in `buffer`.

    Values are slices of the buffer, not copies. Every method may raise CorruptStoreError.
    """

    def __init__(self, buffer: memoryview, *, name: str) -> None:
        self.name = name
        self._buffer = buffer
        self._nbytes = len(buffer)
        self._latest: tuple[tuple[int, bool], tuple[bool, list[Node]]] = (-1, False), (False, [])
        self.metas = self._read_metas()
        self.meta = max(self.metas, key=lambda meta: meta.transaction)
        self.page_size = self.meta.page_size

    def find(self, key: bytes) -> Value | None:
        """Return where the value of `key` lies, or None."""
        tree = self.meta.main
        if tree.is_empty:
            return None
        number = tree.root
        for _ in range(_MAX_DEPTH):
            leaf, nodes = self.read_page(number)
            if leaf:
                for node in nodes:
                    if node.key == key:
                        value = self.check_value(node)
                        if value is None:
                            raise self.corrupt(f"the value of {key!r} lies inside a tree page")
                        return value
                return None
            number = nodes[0].child
            for node in nodes[1:]:
                if node.key > key:
                    break
                number = node.child
        raise self.corrupt(f"its tree is deeper than {_MAX_DEPTH} pages")

    def last(self) -> tuple[bytes, Value | None] | None:
        """Return the greatest key and its value; None if the tree is empty."""
        tree = self.meta.main
        if tree.is_empty:
            return None
        number = tree.root
        for _ in range(_MAX_DEPTH):
            leaf, nodes = self.read_page(number)
            if leaf:
                return nodes[-1].key, self.check_value(nodes[-1])
            number = nodes[-1].child
        raise self.corrupt(f"its tree is deeper than {_MAX_DEPTH} pages")

    def keys_with(self, prefix: bytes) -> Iterator[bytes]:
        """Yield the keys that start with `prefix`, in order; their values are not checked."""
        tree = self.meta.main
        if not tree.is_empty:
            yield from self._keys(tree.root, prefix, 0, set())

    def _keys(self, number: int, prefix: bytes, depth: int, visited: set[int]) -> Iterator[bytes]:
        if depth >= _MAX_DEPTH:
            raise self.corrupt(f"its tree is deeper than {_MAX_DEPTH} pages")
        if number in visited:  # else a hostile tree of n pages could have 2**n paths to follow
            raise self.corrupt(f"two ways lead to page {number} of its tree")
        visited.add(number)
        leaf, nodes = self.read_page(number)
        if leaf:
            yield from (node.key for node in nodes if node.key.startswith(prefix))
            return
        for position, node in enumerate(nodes):
            # a child holds keys from its own key up to the next one's; the first key is not used
            after = nodes[position + 1].key if position + 1 < len(nodes) else None
            if after is not None and after <= prefix:
                continue
            if position and node.key[: len(prefix)] > prefix:
                break
            yield from self._keys(node.child, prefix, depth + 1, visited)

    def view(self, value: Value) -> memoryview:
        """Return the bytes of a value, without copying them."""
        return self._buffer[value.offset : value.offset + value.nbytes]

    def page_bytes(self, number: int, count: int = 1) -> memoryview:
        """Return whole pages, after checking that they lie inside the file."""
        start, end = number * self.page_size, (number + count) * self.page_size
        if number < 2 or number + count - 1 > self.meta.last_page or end > self._nbytes:
            raise self.corrupt(
                f"refers to page {number} (+{count - 1}), but pages 2 to {self.meta.last_page} "
                f"are in use and the file has {self._nbytes} bytes"
            )
        return self._buffer[start:end]

    def read_page(self, number: int, *, integer_keys: bool = False) -> tuple[bool, list[Node]]:
        """Parse a tree page into (whether it is a leaf, its nodes in order)."""
        # opening a store looks up three keys, mostly in the same leaf: keep the last page parsed
        latest = self._latest
        if latest[0] != (number, integer_keys):
            latest = self._latest = (number, integer_keys), self._parse_page(number, integer_keys)
        return latest[1]

    def _parse_page(self, number: int, integer_keys: bool) -> tuple[bool, list[Node]]:
        page = self.page_bytes(number)
        own_number, _, flags, lower, upper = PAGE_HEADER.unpack_from(page)
        size = self.page_size
        count, odd = divmod(lower - PAGE_HEADER.size, 2)
        if own_number != number or flags not in (P_BRANCH, P_LEAF):
            raise self.corrupt(
                f"page {number} is not a tree page (found number {own_number}, flags {flags})"
            )
        if odd or count < 1 or not PAGE_HEADER.size <= lower <= upper <= size:
            raise self.corrupt(f"page {number} has impossible bounds ({lower}, {upper})")
        pointers = struct.unpack_from(f"<{count}H", page, PAGE_HEADER.size)
        nodes, spans = [], []
        for pointer in pointers:
            if not upper <= pointer <= size - NODE.size:
                raise self.corrupt(f"page {number} has a node at {pointer}, outside its bounds")
            low, high, node_flags, key_size = NODE.unpack_from(page, pointer)
            start = pointer + NODE.size
            if start + key_size > size:
                raise self.corrupt(f"page {number} has a key that leaves the page")
            key = bytes(page[start : start + key_size])
            end = start + key_size
            if flags == P_BRANCH:
                nodes.append(Node(key, low | high << 16 | node_flags << 32, None, b""))
            else:
                if integer_keys and node_flags not in (0, F_BIGDATA):
                    raise self.corrupt(f"page {number} has a node of an unknown kind")
                node = self._leaf_node(number, page, key, end, low | high << 16, node_flags)
                end += len(node.inline) if node.value is None else PAGE_NUMBER.size
                nodes.append(node)
            spans.append((pointer, end + end % 2))
        # liblmdb relies on packed nodes: with gaps or overlaps it would move the wrong bytes
        spans.sort()
        if [upper, *(end for _, end in spans)] != [*(start for start, _ in spans), size]:
            raise self.corrupt(f"page {number} has nodes that overlap, or gaps between them")
        for left, right in zip(nodes[flags == P_BRANCH :], nodes[1 + (flags == P_BRANCH) :]):
            if _sort_key(left.key, integer_keys) >= _sort_key(right.key, integer_keys):
                raise self.corrupt(f"page {number} has keys out of order")
        return flags == P_LEAF, nodes

    def _leaf_node(
        self, number: int, page: memoryview, key: bytes, start: int, nbytes: int, flags: int
    ) -> Node:
        if flags == 0 or flags & (F_SUBDATA | F_DUPDATA):
            # stores have no nested databases; other LMDB files do, and are reported as not a store
            # rather than as damaged
            if start + nbytes > self.page_size:
                raise self.corrupt(f"page {number} has a value that leaves the page")
            return Node(key, NO_PAGE, None, bytes(page[start : start + nbytes]))
        if flags != F_BIGDATA or start + PAGE_NUMBER.size > self.page_size:
            raise self.corrupt(f"page {number} has a node of an unknown kind ({flags})")
        (first,) = PAGE_NUMBER.unpack_from(page, start)
        pages = -(-(nbytes + VALUE_OFFSET) // self.page_size)
        self.page_bytes(first, pages)  # checks the bounds; the pages are not read
        place = Value(first, pages, first * self.page_size + VALUE_OFFSET, nbytes)
        return Node(key, NO_PAGE, place, b"")

    def check_value(self, node: Node) -> Value | None:
        """Check the page header in front of a node's value; None if the value is inline."""
        value = node.value
        if value is None:
            return None
        header = self.page_bytes(value.page, value.pages)
        number, _, flags, _, _ = PAGE_HEADER.unpack_from(header)
        (pages,) = OVERFLOW_COUNT.unpack_from(header, 12)
        if number != value.page or flags != P_OVERFLOW or pages != value.pages:
            raise self.corrupt(
                f"the value of {node.key!r} should be {value.pages} pages from page {value.page}; "
                f"the page header says {pages} from page {number}, flags {flags}"
            )
        return value

    def _read_metas(self) -> tuple[Meta, Meta]:
        if self._nbytes < META_NBYTES:
            raise NotAStoreError(
                f"{self.name}: {self._nbytes} bytes are too few for an ocrstore file. Check the "
                "path, or copy the file again."
            )
        first = self._read_meta(0, 0)
        if self._nbytes < 2 * first.page_size:
            raise self.corrupt(f"it is cut off after {self._nbytes} bytes, inside its meta pages")
        second = self._read_meta(1, first.page_size)
        if first.page_size != second.page_size:
            raise self.corrupt("its two meta pages disagree about the page size")
        return first, second

    def _read_meta(self, slot: int, start: int) -> Meta:
        number, _, flags, _, _ = PAGE_HEADER.unpack_from(self._buffer, start)
        position = start + PAGE_HEADER.size
        magic, version, address, map_size = META.unpack_from(self._buffer, position)
        if magic != MAGIC:
            (newer,) = struct.unpack_from("<I", self._buffer, start + _NEWER_MAGIC_OFFSET)
            if slot == 0 and newer == MAGIC:
                raise UnsupportedFormatError(
                    f"{self.name}: a file of LMDB 1.0; ocrstore files are of LMDB 0.9. It was not "
                    "written by ocrstore; `ocrstore build` makes a store."
                )
            if slot == 0:
                raise NotAStoreError(
                    f"{self.name}: not an ocrstore file (no LMDB magic number at byte 16). "
                    "Check the path; `ocrstore build` makes a store."
                )
            raise self.corrupt("its second meta page has no magic number")
        if version != DATA_VERSION:
            raise UnsupportedFormatError(
                f"{self.name}: LMDB data version {version}; ocrstore files have version "
                f"{DATA_VERSION} (LMDB 0.9). It was not written by ocrstore; `ocrstore build` "
                "makes a store."
            )
        if number != slot or flags != P_META or address != 0:
            raise self.corrupt(f"meta page {slot} has a damaged header")
        position += META.size
        page_size = TREE.unpack_from(self._buffer, position)[0]
        if page_size not in (4096, 8192, 16384, 32768):
            raise self.corrupt(f"impossible page size {page_size}")
        free = Tree(*TREE.unpack_from(self._buffer, position)[1:])
        main_pad, *rest = TREE.unpack_from(self._buffer, position + TREE.size)
        main = Tree(*rest)
        position += 2 * TREE.size
        last_page, transaction = META_TAIL.unpack_from(self._buffer, position)
        if free.flags != FREE_TREE_FLAGS or main.flags != 0:
            raise NotAStoreError(
                f"{self.name}: an LMDB file, but of another kind than ocrstore writes (flags "
                f"{free.flags:#x} and {main.flags:#x} in meta page {slot}). Check the path; if it "
                "was a store, restore it from a copy."
            )
        if main_pad:
            raise self.corrupt(f"meta page {slot} has a reserved field that is not zero")
        if max(free.depth, main.depth) > _MAX_DEPTH:
            raise self.corrupt(f"meta page {slot} records a tree deeper than {_MAX_DEPTH} pages")
        return Meta(slot, page_size, map_size, free, main, last_page, transaction)

    def is_unfinished(self) -> bool:
        """Return whether page 2 holds a value although the tree is empty (FORMAT.md 9)."""
        start = 2 * self.page_size
        if not self.meta.main.is_empty or self._nbytes < start + PAGE_HEADER.size:
            return False
        number, _, flags, _, _ = PAGE_HEADER.unpack_from(self._buffer, start)
        return bool(number == 2 and flags == P_OVERFLOW)

    def corrupt(self, why: str) -> CorruptStoreError:
        """Return the error for damage found in this file."""
        return corrupt(self.name, why)


def _sort_key(key: bytes, integer: bool) -> tuple[int, bytes]:
    return (int.from_bytes(key, "little"), b"") if integer else (0, key)
