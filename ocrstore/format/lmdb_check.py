"""Check that every page of an LMDB file is a meta page, in a tree, part of a value, or free.

liblmdb relies on that when it writes (FORMAT.md 3.5).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from ocrstore.errors import CorruptStoreError
from ocrstore.format.lmdb_reader import Meta, PageReader, Tree, Value


@dataclass(slots=True)
class PageReport:
    """Values of the newest commit, the number of free pages, and what is wrong."""

    values: dict[bytes, Value] = field(default_factory=dict)
    free_pages: int = 0
    problems: list[str] = field(default_factory=list)


def check_pages(reader: PageReader) -> PageReport:
    """Walk all pages of the newest commit.

    Damage is listed in `problems`, not raised, so that one finding does not hide the next. The
    older meta page's trees are not walked: no reader follows them, and their pages may have been
    reused.
    """
    report = PageReport()
    newest = reader.meta
    older = reader.metas[1 - newest.slot]
    for meta in reader.metas:
        if meta.transaction % 2 != meta.slot:
            report.problems.append(
                f"meta page {meta.slot} carries transaction {meta.transaction}, of the other page"
            )
    if newest.transaction - older.transaction != 1 and newest.transaction != 0:
        report.problems.append(
            f"the meta pages are of transactions {older.transaction} and {newest.transaction}, "
            "which do not follow each other"
        )
    if newest.map_size % reader.page_size or older.map_size % reader.page_size:
        report.problems.append("a meta page has an impossible map size")
    owners = _walk_state(reader, newest, report)
    _check_cover(newest, owners, report)
    return report


class _Owners:
    """The owner of every page, as sorted runs: there are few values, of many pages each."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._runs: dict[int, tuple[int, str]] = {}  # start -> end, owner
        self.pages = 0

    def claim(self, page: int, pages: int, owner: str) -> tuple[int, str] | None:
        """Assign a run of pages to `owner`; if one is taken, return it and its owner instead."""
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
    """Join falling page numbers to runs of (first page, number of pages)."""
    count = 0
    for position, page in enumerate(falling):
        count += 1
        if position + 1 == len(falling) or falling[position + 1] != page - 1:
            yield page, count
            count = 0


def _walk_state(reader: PageReader, meta: Meta, report: PageReport) -> _Owners:
    """Walk both trees of a commit; return the owner of every page."""
    owners = _Owners()
    for name, tree, integer_keys in (("main", meta.main, False), ("free list", meta.free, True)):
        walk = _Walk(reader, name, tree, integer_keys, owners, report)
        try:
            walk.run()
        except CorruptStoreError as exc:
            report.problems.append(str(exc))
            continue
        if name == "main":
            report.values = walk.values
        walk.check_counts()
        for page, pages in _runs(walk.free):
            report.free_pages += pages
            taken = owners.claim(page, pages, "the free list")
            if taken is not None:
                report.problems.append(f"page {taken[0]} is both free and in use ({taken[1]})")
    return owners


def _check_cover(meta: Meta, owners: _Owners, report: PageReport) -> None:
    if report.problems:
        return  # the walk was cut short, so the counts would be wrong, too
    if owners.start < 2 or owners.end > meta.last_page + 1:
        # liblmdb would overwrite a meta page that is listed as free
        report.problems.append("the free list names a meta page, or a page behind the last one")
    if meta.last_page + 1 - 2 != owners.pages:
        report.problems.append(
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
        report: PageReport,
    ) -> None:
        self.reader, self.name, self.tree = reader, name, tree
        self.integer_keys, self.owners, self.report = integer_keys, owners, report
        self.values: dict[bytes, Value] = {}
        self.free: list[int] = []
        self.branch_pages = self.leaf_pages = self.overflow_pages = self.entries = 0

    def run(self) -> None:
        if not self.tree.is_empty:
            self._visit(self.tree.root, 1, None, None)

    def check_counts(self) -> None:
        tree = self.tree
        found = (self.branch_pages, self.leaf_pages, self.overflow_pages, self.entries)
        recorded = (tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.entries)
        if found != recorded:
            self.report.problems.append(
                f"the {self.name} tree records {recorded} branch, leaf and overflow pages and "
                f"entries; there are {found}"
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
