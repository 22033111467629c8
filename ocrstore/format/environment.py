"""liblmdb, for writing only: commits of whole values, in a map that grows, errors translated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb

from ocrstore.errors import CorruptStoreError, WriteError
from ocrstore.format.accounting import take_census
from ocrstore.format.layout import VALUE_OFFSET
from ocrstore.format.mapping import Mapping as FileMapping
from ocrstore.format.pages import PageReader, Value

_MAP_STEP = 2**30
_SLACK_PAGES = 4096  # tree pages and the free list of one commit, with much to spare
# py-lmdb 3 carries two engines; stores are LMDB 0.9 files
_ENGINE: dict[str, Any] = {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}


class Environment:
    """A published file that one process changes; the caller holds the lock. Commits are synced."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        check_structure(self.path)
        self._map_size = _map_size(path.stat().st_size)
        try:
            self._env = lmdb.open(
                self.path,
                subdir=False,
                lock=False,  # the caller's lock and append-only extents replace LMDB's reader table
                map_size=self._map_size,
                readahead=False,
                mode=0o644,
                max_spare_txns=0,
                **_ENGINE,
            )
        except (lmdb.Error, OSError) as exc:
            raise write_error(self.path, exc) from exc
        self.page_size: int = self._env.stat()["psize"]

    def commit(
        self, puts: Mapping[bytes, Any], *, deletes: Iterable[bytes] = ()
    ) -> dict[bytes, Value]:
        """Write and delete values in one atomic step; return where the written ones lie."""
        pages = sum(-(-(len(value) + VALUE_OFFSET) // self.page_size) for value in puts.values())
        try:
            self._grow((self._env.info()["last_pgno"] + 1 + pages + _SLACK_PAGES) * self.page_size)
            with self._env.begin(write=True) as transaction:
                for key in deletes:
                    transaction.delete(key)
                for key, value in puts.items():
                    if not transaction.put(key, value, overwrite=False):
                        raise CorruptStoreError(f"{self.path}: {key!r} is there already.")
        except (lmdb.Error, OSError) as exc:
            raise write_error(self.path, exc) from exc
        return self._locate(puts)

    def _locate(self, puts: Mapping[bytes, Any]) -> dict[bytes, Value]:
        """Find the written values, and make sure they are where and what they should be."""
        reader = PageReader(FileMapping(self.path).buffer, name=self.path)
        places: dict[bytes, Value] = {}
        for key, value in puts.items():
            place = reader.find(key)
            if (
                place is None
                or place.nbytes != len(value)
                or bytes(reader.view(place)[:64]) != bytes(memoryview(value)[:64])
            ):
                raise CorruptStoreError(
                    f"{self.path}: {key!r} is not where LMDB should have put it. This LMDB engine "
                    f"({lmdb.version()}) writes another file format than ocrstore knows."
                )
            places[key] = place
        return places

    def close(self) -> None:
        """Close the environment; committed values stay."""
        with suppress(lmdb.Error):
            self._env.close()

    def _grow(self, needed: int) -> None:
        if needed > self._map_size:
            self._map_size = _map_size(needed)
            self._env.set_mapsize(self._map_size)


def check_structure(path: str) -> None:
    """Walk all tree pages before liblmdb, which trusts them, is let near the file."""
    mapping = FileMapping(path)
    census = take_census(PageReader(mapping.buffer, name=path))
    if census.problems:
        raise CorruptStoreError(
            f"{path}: {census.problems[0].rstrip('.')}. It is not safe to write to: restore it "
            "from a copy or build it again."
        )


def write_error(path: str, exc: Exception) -> WriteError:
    """Translate an error of LMDB or the system into one that says what to do."""
    text = str(exc)
    remedy = "Nothing that was published is lost."
    if "No space left" in text or "File too large" in text or "quota" in text.lower():
        remedy = "Free some space and run it again. " + remedy
    elif "Input/output error" in text:  # LMDB says this too when only part of a write had room
        remedy = "The disk is full or fails: free some space or replace it, run it again. " + remedy
    return WriteError(f"{path}: cannot be written: {text}. {remedy}")


def _map_size(needed: int) -> int:
    """Return a map size with room to grow: address space, not memory."""
    return -(-(needed * 2 + _MAP_STEP) // _MAP_STEP) * _MAP_STEP
