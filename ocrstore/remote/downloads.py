"""Download rows into a cache folder: what to fetch first, how much at once, what has to go.

Used by the fetcher only, the one process of a node that touches the network and writes rows.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import tempfile
import threading
from collections import defaultdict, deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ocrstore.catalog import CATALOG
from ocrstore.errors import CorruptStoreError, NotAStoreError, OCRStoreError
from ocrstore.format.snapshot import take_snapshot
from ocrstore.remote.cache import PRESENT, Origin, frames_with_rows, read_origin, rows_path
from ocrstore.remote.local_frame import make_frame
from ocrstore.remote.objects import Place, split_url
from ocrstore.remote.rows_file import Blocks, RowsFile
from ocrstore.whole_file import write_whole

_THREADS = 40
_THREADS_AHEAD = 32
"""The others are kept free for rows that somebody waits for."""
_AHEAD_NBYTES = 256 << 20
_TRIES = 3
"""How often a row is fetched that does not match its hash."""
_MEMORY_NBYTES = 1 << 30
"""The most rows that are kept in memory when the disk is full."""
_SETTINGS = "settings.json"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _DroppedError(Exception):
    """The rows file was removed; readers look for the one that takes its place."""


class Shard:
    """An object, and what is on this node of it."""

    def __init__(self, frame: Path, origin: Origin) -> None:
        self.frame = frame
        self.origin = origin
        folder, self._name = split_url(origin.url)
        self._place = Place(folder)
        self.blocks = Blocks(take_snapshot(frame).index)
        self.rows: RowsFile | None = None

    def get_range(self, start: int, stop: int) -> memoryview:
        """Return bytes of the object."""
        return self._place.get_range(self._name, start, stop, etag=self.origin.etag)

    def open_rows(self, real: Path | None) -> RowsFile:
        """Open the rows file, or make one."""
        cells = len(self.blocks.cells)
        self.rows = RowsFile(rows_path(self.frame), self.origin.nbytes, cells, real=real)
        return self.rows


class _Job:
    """Blocks of a shard that are downloaded by one request."""

    def __init__(self, shard: Shard, rows: RowsFile, blocks: range) -> None:
        self.shard, self.rows, self.blocks = shard, rows, blocks
        self.nbytes = shard.blocks.nbytes(blocks.start, blocks.stop)
        self.future: Future[None] = Future()
        self.is_needed = False
        self.is_begun = False


class Downloads:
    """All that one cache folder has of any object, and the downloads into it. Thread-safe."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self.downloaded = 0
        """Bytes downloaded by this process."""
        self.warning: str | None = None
        """What a reader should be told, once."""
        self._lock = threading.RLock()
        self._opening: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._shards: dict[str, Shard] = {}
        self._uses = itertools.count(1)
        self._needed: deque[_Job] = deque()
        self._ahead: deque[_Job] = deque()
        self._has_work = threading.Condition(self._lock)
        self._under_way = 0
        self._running = 0
        self._knows_all = False
        self._memory: Path | None = None
        """Where rows files are made when the disk is full."""
        self._settings: dict[str, int] = {}
        if (cache / _SETTINGS).exists():
            self._settings = json.loads((cache / _SETTINGS).read_text("utf-8"))
        for left in cache.glob("*.partial"):
            left.unlink()
        for frame in frames_with_rows(cache):
            if rows_path(frame).is_symlink():  # what the last process kept in memory
                rows_path(frame).unlink()
        shutil.rmtree(self._memory_folder(), ignore_errors=True)
        for _ in range(_THREADS):
            threading.Thread(target=self._work, daemon=True).start()

    # --- requests ---------------------------------------------------------------------------

    def open(self, url: str, settings: dict[str, int]) -> Path:
        """Return the local copy of a store, or of the catalog of a data set of many stores.

        What opening it needs is fetched if it is not there.
        """
        if settings:
            with self._lock:
                self._settings |= settings
                write_whole(self._cache / _SETTINGS, json.dumps(self._settings).encode())
        if not url.endswith(".ocrs"):
            dataset = self._open_catalog(url.rstrip("/").removesuffix(f"/{CATALOG}"))
            if dataset is not None:
                return dataset
        folder, name = split_url(url)
        place = Place(folder)
        found = place.find(name)
        if found is None:
            raise NotAStoreError(f"{url}: no such object, nor a {CATALOG} below it. Check the URL.")
        if not found.nbytes:
            raise NotAStoreError(f"{url}: the object is empty.")
        origin = Origin(url, found.etag, found.nbytes)
        frame = origin.frame(self._cache)

        def get_range(start: int, stop: int) -> memoryview:
            return self._count(place.get_range(name, start, stop, etag=origin.etag))

        with self._opening[url]:
            if not frame.exists():
                origin.write(frame)
                make_frame(get_range, found.nbytes, frame, url=url)
        self.attach(frame.name)
        return frame

    def _open_catalog(self, url: str) -> Path | None:
        """Return a folder with a copy of the catalog of a data set; None if there is none."""
        place = Place(url)
        if place.find(CATALOG) is None:
            return None
        data, found = place.get(CATALOG)
        origin = Origin(f"{url}/{CATALOG}", found.etag, found.nbytes)
        folder = origin.dataset(self._cache)
        folder.mkdir(exist_ok=True)
        origin.write(folder)
        write_whole(folder / CATALOG, self._count(data))
        return folder

    def attach(self, frame: str) -> None:
        """See to it that there is a rows file whose marks can be trusted."""
        with self._lock:
            shard = self._shard(frame)
            if shard.rows is not None and not shard.rows.is_there():
                self._drop(shard)  # somebody has emptied the folder
            if shard.rows is None:
                self._open_rows(shard)

    def need(
        self, frame: str, inode: int, wanted: dict[int, list[int]], *, wait: bool
    ) -> dict[str, bool]:
        """Have rows fetched, and wait for them or not.

        Args:
            frame: The object.
            inode: Of the rows file that the reader has mapped.
            wanted: The rows of each column, by number.
            wait: Whether to return when all of them are there.

        Returns:
            Whether another rows file has taken the place of the one that the reader has.
        """
        with self._lock:
            shard = self._shard(frame)
            rows = shard.rows or self._open_rows(shard)
            if rows.inode != inode:
                return {"replaced": True}
            rows.last_use = next(self._uses)
            samples = len(shard.blocks.index)
            cells = np.concatenate(
                [number * samples + np.array(some, np.int64) for number, some in wanted.items()]
            )
            blocks = shard.blocks.of(cells[rows.marks[cells] != PRESENT])
            if not wait:
                blocks = self._affordable(shard, blocks)
            waiting = self._schedule(shard, rows, blocks, needed=wait)
        if wait:
            try:
                for future in waiting:
                    future.result()
            except _DroppedError:
                return {"replaced": True}
            for cell in cells[rows.marks[cells] != PRESENT].tolist():
                message = rows.wrong.pop(cell, None)  # the next request tries it again
                if message is not None:
                    raise CorruptStoreError(message)
        return {}

    @property
    def is_busy(self) -> bool:
        """Whether anything is being downloaded."""
        return bool(self._under_way)

    # --- the queue --------------------------------------------------------------------------

    def _schedule(
        self, shard: Shard, rows: RowsFile, blocks: list[int], *, needed: bool
    ) -> list[Future[None]]:
        """Queue what is not being downloaded; return what to wait for."""
        waiting: dict[Future[None], None] = {}
        new = []
        for block in blocks:
            job = rows.pending.get(block)
            if job is None:
                new.append(block)
            else:
                waiting[job.future] = None
                if needed and not job.is_needed and not job.is_begun:
                    job.is_needed = True
                    self._needed.append(job)
        for joined in shard.blocks.joined(new):
            job = _Job(shard, rows, joined)
            job.is_needed = needed
            (self._needed if needed else self._ahead).append(job)
            for block in joined:
                rows.pending.setdefault(block, job)
            waiting[job.future] = None
        self._has_work.notify_all()
        return list(waiting)

    def _affordable(self, shard: Shard, blocks: list[int]) -> list[int]:
        """Return the first of some blocks, at most a quarter of the limit: rows that are fetched
        long before they are used would push out others that are used earlier.
        """
        limit = self._limit
        if limit is None:
            return blocks
        sizes = np.cumsum([shard.blocks.nbytes(block, block + 1) for block in blocks])
        return blocks[: int(np.searchsorted(sizes, limit // 4, "right"))]

    def _next(self) -> _Job | None:
        """Return the job to begin now; None if there is none, or enough is under way."""
        bound = self._settings.get("ahead_bytes", _AHEAD_NBYTES)
        for queue in (self._needed, self._ahead):
            while queue and queue[0].is_begun:
                queue.popleft()
            if not queue:
                continue
            if queue is self._ahead and self._running >= _THREADS_AHEAD:
                return None
            if self._under_way and self._under_way + queue[0].nbytes > bound:
                return None  # what is needed goes first, also if something smaller would fit
            return queue.popleft()
        return None

    def _work(self) -> None:
        """Download; run by each thread."""
        while True:
            job = self._begin_next()
            failure: BaseException | None = None
            try:
                self._download(job)
            except BaseException as exc:  # handed on to those who wait
                failure = exc
            with self._has_work:
                self._under_way -= job.nbytes
                self._running -= 1
                for block in job.blocks:
                    if job.rows.pending.get(block) is job:
                        del job.rows.pending[block]
                self._has_work.notify_all()
            if failure is None:
                job.future.set_result(None)
            else:
                job.future.set_exception(failure)

    def _begin_next(self) -> _Job:
        with self._has_work:
            while (job := self._next()) is None:
                self._has_work.wait()
            job.is_begun = True
            self._under_way += job.nbytes
            self._running += 1
            return job

    def _download(self, job: _Job) -> None:
        """Fetch the rows of a job that are not there, check, write and mark them."""
        shard, rows, blocks = job.shard, job.rows, job.shard.blocks
        if rows.is_dropped and not job.is_needed:
            raise _DroppedError
        first, last = blocks.first[job.blocks.start], blocks.first[job.blocks.stop]
        positions = np.arange(first, last)
        positions = positions[rows.marks[blocks.cells[positions]] != PRESENT]
        positions = rows.check(blocks, positions)
        if not len(positions):
            return
        start, stop = int(blocks.offset[positions[0]]), int(blocks.end[positions].max())
        wrong = self._keep(shard, rows, positions, self._get(shard, start, stop))
        for position in wrong.tolist():
            start, stop = int(blocks.offset[position]), int(blocks.end[position])
            for _ in range(_TRIES - 1):
                again = self._get(shard, start, stop)
                if not len(self._keep(shard, rows, np.array([position]), again)):
                    break
            else:  # an error for those who need this row, not for those of its neighbours
                rows.wrong[int(blocks.cells[position])] = (
                    f"{shard.origin.url}: {blocks.name(position)}: its {stop - start:,} bytes do "
                    f"not match their hash; fetched {_TRIES} times. The object is damaged: check "
                    "the store that was uploaded with `ocrstore verify` and upload it again."
                )

    def _get(self, shard: Shard, start: int, stop: int) -> memoryview:
        return self._count(shard.get_range(start, stop) if stop > start else memoryview(b""))

    def _count(self, data: memoryview) -> memoryview:
        with self._lock:
            self.downloaded += len(data)
        return data

    def _keep(self, shard: Shard, rows: RowsFile, positions: Any, data: memoryview) -> Any:
        self._make_room(shard, rows, len(data))
        try:
            return rows.keep(shard.blocks, positions, data)
        except OSError as exc:
            if exc.errno not in _FULL:
                raise OCRStoreError(f"{rows.path}: cannot be written: {exc.strerror}.") from exc
            with self._lock:
                self._go_on_in_memory(exc)
                if shard.rows is rows:
                    self._drop(shard)
            raise _DroppedError from exc

    # --- the limit --------------------------------------------------------------------------

    @property
    def _limit(self) -> int | None:
        """The most bytes of rows on this node; None if only the disk limits them."""
        limit = self._settings.get("cache_limit")
        if self._memory is None:
            return limit
        room = shutil.disk_usage(self._memory).total // 4
        return min(_MEMORY_NBYTES, room, limit or room)

    def _make_room(self, shard: Shard, rows: RowsFile, nbytes: int) -> None:
        """Count bytes that are about to be written; drop rows files until they are in the limit.

        Half of the limit is for the window, the shards that were asked for last. The other half
        keeps what came first: in an epoch everything is used once, and to drop what was used
        least recently is to drop what is needed next. A shard that is larger than the limit is
        dropped itself and begun anew.
        """
        with self._lock:
            if rows.is_dropped:
                return
            rows.nbytes += nbytes
            limit = self._limit
            while limit is not None and self._used() > limit:
                others = [other for other in self._counted() if other is not shard]
                if not others:
                    self._drop(shard)
                    return
                others.sort(key=lambda other: -other.rows.last_use)  # type: ignore[union-attr]
                sizes = np.cumsum([other.rows.nbytes for other in others])  # type: ignore[union-attr]
                outside = int(np.searchsorted(sizes, limit // 2, "right"))
                self._drop(others[min(outside, len(others) - 1)])

    def _counted(self) -> list[Shard]:
        """Return the shards whose rows the limit counts: all, or those in memory."""
        if not self._knows_all:  # those of earlier runs are counted as well
            self._knows_all = True
            for frame in frames_with_rows(self._cache):
                self.attach(frame.name)
        in_memory = self._memory is not None
        return [
            shard
            for shard in self._shards.values()
            if shard.rows is not None and (not in_memory or shard.rows.path.is_symlink())
        ]

    def _used(self) -> int:
        return sum(shard.rows.nbytes for shard in self._counted() if shard.rows is not None)

    def _drop(self, shard: Shard) -> None:
        if shard.rows is not None:
            shard.rows.drop()
            shard.rows = None

    def _go_on_in_memory(self, exc: OSError) -> None:
        """After a write to a full disk: keep rows in memory, a bounded amount of them."""
        with self._lock:
            if self._memory is None:
                self._memory = self._memory_folder()
                self._memory.mkdir(mode=0o700, exist_ok=True)
                self.warning = (
                    f"{self._cache}: the disk is full ({exc.strerror}). Rows are kept in memory, "
                    f"at most {self._limit or 0:,} bytes of them, and downloaded again when they "
                    "are needed again. Free some space, or set cache_limit, and start again."
                )

    def _memory_folder(self) -> Path:
        """Return the folder for rows of this cache that are kept in memory."""
        shared = Path("/dev/shm")  # the folder in it is private, and checked to be
        parent = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
        digest = xxhash.xxh3_64_hexdigest(str(self._cache).encode())
        folder = parent / f"ocrstore-{os.getuid()}-{digest}"
        if folder.exists() and folder.stat().st_uid != os.getuid():
            raise OCRStoreError(f"{folder}: belongs to another user. Remove it.")
        return folder

    def _open_rows(self, shard: Shard) -> RowsFile:
        try:
            if self._memory is None or rows_path(shard.frame).exists():
                return shard.open_rows(None)
        except OSError as exc:
            if exc.errno not in _FULL:
                raise
            self._go_on_in_memory(exc)
        name = f"{shard.frame.stem}.{next(self._uses)}.rows"
        return shard.open_rows(self._memory_folder() / name)

    def _shard(self, frame: str) -> Shard:
        if frame not in self._shards:
            path = self._cache / Path(frame).name
            origin = read_origin(path)
            if origin is None:
                raise NotAStoreError(f"{path}: its origin is not known any more. Open its URL.")
            self._shards[frame] = Shard(path, origin)
        return self._shards[frame]

    def close(self) -> None:
        """Remove what is in memory."""
        if self._memory is not None:
            with self._lock:
                for shard in self._counted():
                    self._drop(shard)
            shutil.rmtree(self._memory, ignore_errors=True)
