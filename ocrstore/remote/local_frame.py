"""Fetch what opening a store needs: meta pages, tree, manifests and indexes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ocrstore.errors import CorruptStoreError
from ocrstore.format.layout import VALUE_OFFSET
from ocrstore.format.lmdb_reader import Node, PageReader, Value
from ocrstore.format.mapped_file import MappedFile
from ocrstore.format.snapshot import list_generations, read_index, read_manifest, take_snapshot

_HEAD_NBYTES = 128 << 10
"""Both meta pages of any page size, and the header of the first extent."""
_TAIL_NBYTES = 1 << 20
"""A writer puts index, manifest and tree behind the rows."""
_PAGE_NBYTES = 64 << 10
"""Pages that are elsewhere are fetched with their neighbours."""

GetRange = Callable[[int, int], memoryview]
"""Returns the object's bytes from start to stop."""


def make_frame(get_range: GetRange, nbytes: int, path: Path, *, url: str) -> None:
    """Write a file of the object's size with all but the rows; it appears whole or not at all.

    Raises:
        NotAStoreError: The object is something else.
        CorruptStoreError: It is damaged.
    """
    made = path.with_suffix(".partial")
    for attempt in range(2):
        with made.open("wb") as file:
            file.truncate(nbytes)
        try:
            _fill(made, get_range, nbytes, url)
            take_snapshot(made)
        except CorruptStoreError:
            if attempt:  # not the network's fault
                raise
        else:
            break
    made.replace(path)


def _fill(path: Path, get_range: GetRange, nbytes: int, url: str) -> None:
    fetched = np.zeros(-(-nbytes // _PAGE_NBYTES), bool)

    def fetch(start: int, stop: int) -> None:
        """Fetch a range unless it is there."""
        first, last = start // _PAGE_NBYTES, -(-min(stop, nbytes) // _PAGE_NBYTES)
        missing = np.flatnonzero(~fetched[first:last])
        if len(missing):
            first, last = first + int(missing[0]), first + int(missing[-1]) + 1
            data = get_range(first * _PAGE_NBYTES, min(last * _PAGE_NBYTES, nbytes))
            with path.open("r+b") as file:
                file.seek(first * _PAGE_NBYTES)
                file.write(data)
            fetched[first:last] = True

    fetch(0, _HEAD_NBYTES)
    fetch(max(0, nbytes - _TAIL_NBYTES), nbytes)
    pages = _FetchedPages(MappedFile(path).buffer, url, fetch)
    for generation in list_generations(pages):
        read_index(pages, read_manifest(pages, generation))


class _FetchedPages(PageReader):
    """Reads pages that are fetched when they are first needed."""

    def __init__(self, buffer: memoryview, url: str, fetch: Callable[[int, int], None]) -> None:
        super().__init__(buffer, name=url)
        self._fetch = fetch

    def read_page(self, number: int, *, integer_keys: bool = False) -> tuple[bool, list[Node]]:
        self._fetch(number * self.page_size, (number + 1) * self.page_size)
        return super().read_page(number, integer_keys=integer_keys)

    def check_value(self, node: Node) -> Value | None:
        if node.value is not None:
            start = node.value.offset
            self._fetch(start - VALUE_OFFSET, start + node.value.nbytes)
        return super().check_value(node)
