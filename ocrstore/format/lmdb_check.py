"""The page census: every page is meta, tree, value or free, or an error (FORMAT.md 3.5)."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from ocrstore.errors import CorruptStoreError
from ocrstore.format.lmdb_reader import Meta, PageReader, Tree, Value


@dataclass(slots=True)
class Census:
    """What the walk over all pages found."""

    values: dict[bytes, Value] = field(default_factory=dict)
    tree_pages: int = 0
    value_pages: int = 0
    free_pages: int = 0
    problems: list[str] = field(default_factory=list)


def check_pages(reader: PageReader) -> Census:
    """Walk every page of the newest commit.

    Damage is listed in `problems`, not raised, so that one finding does not hide the next. The
    trees of the commit before are dead: no reader follows them, LMDB does not either, and the next
    commit writes its own over that meta page. LMDB leaves a mixture there when it cannot write it.
    """
    census = Census()
    newest = reader.meta
    older = reader.metas[1 - newest.slot]
    for meta in reader.metas:
        if meta.transaction % 2 != meta.slot:
            census.problems.append(
                f"meta page {meta.slot} carries transaction {meta.transaction}, of the other page"
            )
    if newest.transaction - older.transaction != 1 and newest.transaction != 0:
        census.problems.append(
            f"the meta pages are of transactions {older.transaction} and {newest.transaction}, "
            "which do not follow each other"
        )
    if newest.map_size % reader.page_size or older.map_size % reader.page_size:
        census.problems.append("a meta page has an impossible map size")
    owners = _walk_state(reader, newest, census)
    _check_cover(newest, owners, census)
    return census


class _Owners:
    """Which pages are whose, kept as runs: values are few, however many pages they fill."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._runs: dict[int, tuple[int, str]] = {}  # start -> end, owner
        self.pages = 0

    def claim(self, page: int, pages: int, owner: str) -> tuple[int, str] | None:
        """Give a run of pages to `owner`, or return a page that is taken, and by whom."""
        at = bisect_right(self._starts, page)
        if at:
            end, other = self._runs[self._starts[at - 1]]
            if end > page:
                return page, other
        if at < len(self._starts) and self._starts[at] < page + pages:
            return self._starts[at], self._runs[self._starts[at]][1]
        self._starts.insert(at, page)
        self._runs[page] = (page + pages, owner)
        self.pages += pages
        return None

    @property
    def start(self) -> int:
        """The first page that is owned."""
        return self._starts[0] if self._starts else 2

    @property
    def end(self) -> int:
        """The first page behind all that are owned."""
        return self._runs[self._starts[-1]][0] if self._starts else 2


def _runs(falling: list[int]) -> Iterator[tuple[int, int]]:
    """Join page numbers in falling order to (first page, pages)."""
    count = 0
    for position, page in enumerate(falling):
        count += 1
        if position + 1 == len(falling) or falling[position + 1] != page - 1:
            yield page, count
            count = 0


def _walk_state(reader: PageReader, meta: Meta, census: Census) -> _Owners:
    """Walk both trees of a commit; return who owns which page."""
    owners = _Owners()
    for name, tree, integer_keys in (("main", meta.main, False), ("free list", meta.free, True)):
        walk = _Walk(reader, name, tree, integer_keys, owners, census)
        try:
            walk.run()
        except CorruptStoreError as exc:
            census.problems.append(str(exc))
            continue
        if name == "main":
            census.values = walk.values
        census.tree_pages += walk.branch_pages + walk.leaf_pages
        census.value_pages += walk.overflow_pages
        walk.check_counts()
        for page, pages in _runs(walk.free):
            census.free_pages += pages
            taken = owners.claim(page, pages, "the free list")
            if taken is not None:
                census.problems.append(f"page {taken[0]} is free and in use ({taken[1]}) at once")
    return owners


def _check_cover(meta: Meta, owners: _Owners, census: Census) -> None:
    if census.problems:
        return  # after structural damage the rest of the count says nothing new
    if owners.start < 2 or owners.end > meta.last_page + 1:
        # liblmdb would write over a meta page that is listed as free
        census.problems.append("the free list names a meta page, or a page behind the last one")
    if meta.last_page + 1 - 2 != owners.pages:
        census.problems.append(
            f"{meta.last_page - 1} pages are in use by LMDB's count, {owners.pages} are reachable"
        )


class _Walk:
    """One depth-first walk over one tree."""

    def __init__(
        self,
        reader: PageReader,
        name: str,
        tree: Tree,
        integer_keys: bool,
        owners: _Owners,
        census: Census,
    ) -> None:
        self.reader, self.name, self.tree = reader, name, tree
        self.integer_keys, self.owners, self.census = integer_keys, owners, census
        self.values: dict[bytes, Value] = {}
        self.free: list[int] = []
        self.branch_pages = self.leaf_pages = self.overflow_pages = self.entries = 0

    def run(self) -> None:
        if not self.tree.is_empty:
            self._visit(self.tree.root, 1, None, None)

    def check_counts(self) -> None:
        tree = self.tree
        found = (self.branch_pages, self.leaf_pages, self.overflow_pages, self.entries)
        said = (tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.entries)
        if found != said:
            self.census.problems.append(
                f"the {self.name} tree records {said} branch, leaf and overflow pages and entries; "
                f"there are {found}"
            )

    def _claim(self, page: int, pages: int, owner: str) -> None:
        taken = self.owners.claim(page, pages, owner)
        if taken is not None:
            raise self.reader.corrupt(f"page {taken[0]} belongs to {taken[1]} and to {owner}")

    def _visit(self, number: int, depth: int, low: bytes | None, high: bytes | None) -> None:
        if depth > self.tree.depth:
            raise self.reader.corrupt(f"the {self.name} tree is deeper than it records")
        self._claim(number, 1, f"the {self.name} tree")
        leaf, nodes = self.reader.read_page(number, integer_keys=self.integer_keys)
        if not leaf:
            self.branch_pages += 1
            for position, node in enumerate(nodes):
                above = nodes[position + 1].key if position + 1 < len(nodes) else high
                self._visit(node.child, depth + 1, node.key if position else low, above)
            return
        if depth != self.tree.depth:
            raise self.reader.corrupt(f"the {self.name} tree is not as deep as it records")
        self.leaf_pages += 1
        for node in nodes:
            self.entries += 1
            if (low is not None and self._less(node.key, low)) or (
                high is not None and not self._less(node.key, high)
            ):
                raise self.reader.corrupt(f"page {number} holds a key of another page")
            if node.value is not None:
                self.reader.check_value(node)
                self._claim(node.value.page, node.value.pages, f"the value of {node.key!r}")
                self.overflow_pages += node.value.pages
                self.values[node.key] = node.value
            if self.integer_keys:
                data = self.reader.view(node.value) if node.value else memoryview(node.inline)
                self._free_list(node.key, data)
            elif node.value is None:
                raise self.reader.corrupt(f"the value of {node.key!r} lies inside a tree page")

    def _less(self, left: bytes, right: bytes) -> bool:
        if self.integer_keys:
            return int.from_bytes(left, "little") < int.from_bytes(right, "little")
        return left < right

    def _free_list(self, key: bytes, data: memoryview) -> None:
        """Read one record of the free list: a count, then page numbers in falling order."""
        count = struct.unpack_from("<Q", data)[0] if len(data) >= 8 else -1
        transaction = int.from_bytes(key, "little")
        if (
            len(key) != 8
            or not 0 <= count <= len(data) // 8 - 1
            or not (0 < transaction <= self.reader.meta.transaction)
        ):
            raise self.reader.corrupt("its list of free pages is damaged")
        pages = struct.unpack_from(f"<{count}Q", data, 8)
        if any(left <= right for left, right in pairwise(pages)):
            raise self.reader.corrupt("its list of free pages is not in order")
        self.free.extend(pages)
