"""Write a new LMDB data file front to back: values first, tree and meta pages at the end.

liblmdb would copy every value twice and need as much memory again. Here the bytes go to the file
once, by plain writes, and equal input gives equal files on every platform. The result is an
ordinary LMDB 0.9 file, which liblmdb reads and changes later.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from ocrstore.errors import OCRStoreError, cannot_write
from ocrstore.format.layout import VALUE_OFFSET, align_up
from ocrstore.format.lmdb_reader import (
    DATA_VERSION,
    F_BIGDATA,
    FREE_TREE_FLAGS,
    MAGIC,
    META,
    META_TAIL,
    NO_PAGE,
    NODE,
    OVERFLOW_COUNT,
    P_BRANCH,
    P_LEAF,
    P_META,
    P_OVERFLOW,
    PAGE_HEADER,
    PAGE_NUMBER,
    TREE,
    Value,
)
from ocrstore.format.mapped_file import leave_page_cache

PAGE_SIZE = 4096
_NODE_MAX = ((PAGE_SIZE - PAGE_HEADER.size) // 2 & ~1) - 2  # a larger leaf node gets own pages
_MAP_STEP = 2**30
# bytes of one write call: Linux takes up to ten times the CPU time for huge ones
_CHUNK_NBYTES = 2**18
_FREE_CHUNK = 2**16  # page numbers in one record of the free list
CACHED_NBYTES = 2**30
"""This much of a new file stays in the page cache; what follows leaves it once it is on the disk.

So a small store is in memory for whoever reads it next, and a large one evicts nothing of others.
Each row group takes the memory of the one before, too, which is several times as fast as memory
that a hypervisor has to provide first.
"""


class LmdbWriter:
    """A new file, written once, by one process that holds its lock.

    A background thread writes and syncs, at most one commit behind: the buffers of a commit must
    stay unchanged until the next commit returns. An error of that thread is raised by the next
    call.
    """

    page_size = PAGE_SIZE

    def __init__(self, path: Path, *, resume: Mapping[bytes, Value] | None = None) -> None:
        self.path = str(path)
        self._values: dict[bytes, Value] = dict(resume or {})
        self._free: list[int] = []
        self._next_page = max((v.page + v.pages for v in self._values.values()), default=2)
        self._writing: Future[None] | None = None
        self._kept_end = CACHED_NBYTES
        try:
            self._file = path.open("r+b", buffering=0)
        except OSError as exc:
            raise cannot_write(self.path, exc) from exc
        try:
            # what follows the resumed values was not complete
            self._file.truncate(self._next_page * PAGE_SIZE if resume else 0)
            self._write_all([_meta_page(number, _EMPTY_TREE, _EMPTY_TREE, 1) for number in (0, 1)])
            self._file.seek(self._next_page * PAGE_SIZE)
        except OSError as exc:
            self._file.close()
            raise cannot_write(self.path, exc) from exc
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ocrstore-write")

    def commit(
        self, puts: Mapping[bytes, Any], *, deletes: Iterable[bytes] = ()
    ) -> dict[bytes, Value]:
        """Append values and free others; return where the new ones lie."""
        self.wait()
        for key in deletes:
            gone = self._values.pop(key, None)
            if gone is not None:
                self._free.extend(range(gone.page, gone.page + gone.pages))
        places: dict[bytes, Value] = {}
        parts: list[Any] = []
        for key, value in puts.items():
            pages = -(-(len(value) + VALUE_OFFSET) // PAGE_SIZE)
            page = self._next_page
            places[key] = Value(page, pages, page * PAGE_SIZE + VALUE_OFFSET, len(value))
            padding = bytes(pages * PAGE_SIZE - VALUE_OFFSET - len(value))
            parts += [_overflow_header(page, pages), value, padding]
            self._next_page += pages
        self._values.update(places)
        self._writing = self._thread.submit(self._write, parts)
        return places

    def wait(self) -> None:
        """Wait until everything committed is on the disk."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def finish(self) -> None:
        """Write tree and meta pages; only now the file is an LMDB database."""
        self.wait()
        tail = _Tail(self._next_page)
        free = tail.add_tree(list(tail.add_free_list(self._free)))
        nodes = [(key, _big_node(key, value)) for key, value in sorted(self._values.items())]
        main = tail.add_tree(nodes, overflow_pages=sum(v.pages for v in self._values.values()))
        transaction = max(1, -(-len(self._free) // _FREE_CHUNK))
        metas = [
            _meta_page(transaction - 1, _EMPTY_TREE, _EMPTY_TREE, 1),
            _meta_page(transaction, main, free, tail.next_page - 1),
        ]
        if transaction % 2 == 0:
            metas.reverse()
        try:
            self._write_all(tail.pages)
            self._file.seek(0)
            self._write_all(metas)
            os.fsync(self._file.fileno())
        except OSError as exc:
            raise cannot_write(self.path, exc) from exc

    def close(self) -> None:
        """Close the file, finished or not."""
        with suppress(OCRStoreError):
            self.wait()
        self._thread.shutdown()
        self._file.close()

    def _write(self, parts: list[Any]) -> None:
        try:
            self._write_all(parts)
            # writes to disk while the next row group is made, instead of all at the end
            getattr(os, "fdatasync", os.fsync)(self._file.fileno())
        except OSError as exc:
            raise cannot_write(self.path, exc) from exc
        end = self._file.tell()
        if end > self._kept_end:
            leave_page_cache(self._file.fileno(), self._kept_end, end)
            self._kept_end = end

    def _write_all(self, parts: Iterable[Any]) -> None:
        for part in parts:
            view = memoryview(part).cast("B")
            start = 0
            while start < len(view):
                start += self._file.write(view[start : start + _CHUNK_NBYTES])


_EMPTY_TREE = (0, 0, 0, 0, 0, NO_PAGE)
"""depth, branch pages, leaf pages, overflow pages, entries, root"""


class _Tail:
    """The pages that follow the last value, numbered as they are added."""

    def __init__(self, next_page: int) -> None:
        self.next_page = next_page
        self.pages: list[bytes] = []

    def _add(self, page: bytes, count: int = 1) -> int:
        number = self.next_page
        self.pages.append(page)
        self.next_page += count
        return number

    def add_free_list(self, free: list[int]) -> Iterable[tuple[bytes, bytes]]:
        """Yield the nodes of the free list: transaction -> count and falling page numbers."""
        numbers = sorted(free, reverse=True)
        for transaction, start in enumerate(range(0, len(numbers), _FREE_CHUNK), 1):
            chunk = numbers[start : start + _FREE_CHUNK]
            data = struct.pack(f"<{len(chunk) + 1}Q", len(chunk), *chunk)
            key = PAGE_NUMBER.pack(transaction)
            if NODE.size + len(key) + len(data) <= _NODE_MAX:
                yield key, _node(len(data), 0, key, data)
                continue
            count = -(-(len(data) + VALUE_OFFSET) // PAGE_SIZE)
            header = _overflow_header(self.next_page, count)
            padding = bytes(count * PAGE_SIZE - VALUE_OFFSET - len(data))
            page = self._add(header + data + padding, count)
            yield key, _big_node(key, Value(page, count, 0, len(data)))

    def add_tree(
        self, nodes: list[tuple[bytes, bytes]], *, overflow_pages: int | None = None
    ) -> tuple[int, ...]:
        """Add leaf and branch pages over sorted nodes; return the tree's record."""
        if not nodes:
            return _EMPTY_TREE
        if overflow_pages is None:
            overflow_pages = sum(len(page) // PAGE_SIZE for page in self.pages)
        entries = len(nodes)
        leaves = [
            (page[0][0], self._add(_tree_page(self.next_page, P_LEAF, [n for _, n in page])))
            for page in _packed(nodes)
        ]
        level, depth, branch_pages = leaves, 1, 0
        while len(level) > 1:
            branches = [
                (key, _node(child & 0xFFFFFFFF, child >> 32, key, b"")) for key, child in level
            ]
            level = []
            for page in _packed(branches):
                # the first key of a branch page is implied, and stored empty
                child = NODE.unpack_from(page[0][1])
                first = NODE.pack(child[0], child[1], child[2], 0)
                data = _tree_page(self.next_page, P_BRANCH, [first, *(n for _, n in page[1:])])
                level.append((page[0][0], self._add(data)))
                branch_pages += 1
            depth += 1
        return depth, branch_pages, len(leaves), overflow_pages, entries, level[0][1]


def _packed(nodes: list[tuple[bytes, bytes]]) -> list[list[tuple[bytes, bytes]]]:
    """Distribute nodes over pages, as many as fit; never a single one on the last of several."""
    pages: list[list[tuple[bytes, bytes]]] = [[]]
    room = PAGE_SIZE - PAGE_HEADER.size
    for node in nodes:
        size = 2 + len(node[1])
        if size > room and pages[-1]:
            pages.append([])
            room = PAGE_SIZE - PAGE_HEADER.size
        pages[-1].append(node)
        room -= size
    if len(pages) > 1 and len(pages[-1]) == 1:
        pages[-1].insert(0, pages[-2].pop())
    return pages


def _node(size: int, flags: int, key: bytes, data: bytes) -> bytes:
    node = NODE.pack(size & 0xFFFF, size >> 16, flags, len(key)) + key + data
    return node + bytes(len(node) % 2)


def _big_node(key: bytes, value: Value) -> bytes:
    return _node(value.nbytes, F_BIGDATA, key, PAGE_NUMBER.pack(value.page))


def _tree_page(number: int, kind: int, nodes: list[bytes]) -> bytes:
    """Make a page: pointers from its start upwards, nodes from its end downwards."""
    pointers: list[int] = []
    upper = PAGE_SIZE
    for node in nodes:
        upper -= len(node)
        pointers.append(upper)
    lower = PAGE_HEADER.size + 2 * len(nodes)
    head = PAGE_HEADER.pack(number, 0, kind, lower, upper)
    head += struct.pack(f"<{len(nodes)}H", *pointers)
    return head + bytes(upper - lower) + b"".join(reversed(nodes))


def _overflow_header(number: int, pages: int) -> bytes:
    header = bytearray(PAGE_HEADER.pack(number, 0, P_OVERFLOW, 0, 0))
    OVERFLOW_COUNT.pack_into(header, 12, pages)
    return bytes(header)


def _meta_page(
    transaction: int, main: tuple[int, ...], free: tuple[int, ...], last_page: int
) -> bytes:
    map_size = align_up((last_page + 1) * PAGE_SIZE, _MAP_STEP)
    page = (
        PAGE_HEADER.pack(transaction % 2, 0, P_META, 0, 0)
        + META.pack(MAGIC, DATA_VERSION, 0, map_size)
        + TREE.pack(PAGE_SIZE, FREE_TREE_FLAGS, *free)
        + TREE.pack(0, 0, *main)
        + META_TAIL.pack(last_page, transaction)
    )
    return page + bytes(PAGE_SIZE - len(page))
