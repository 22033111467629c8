"""Keep a store open, and detect that its file was replaced, appended to, removed or damaged."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ocrstore.catalog import find_catalog
from ocrstore.errors import OCRStoreError
from ocrstore.evaluation.predictions import Progress, Scores, read_predictions
from ocrstore.store import Store
from ocrstore.viewer.samples import Catalog
from ocrstore.viewer.tags import Tags

Signature = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class News:
    """How the file has changed since it was opened."""

    kind: str
    """`same`, `replaced`, `grown`, `gone` or `broken`."""
    message: str = ""


_SAME = News("same")


class Live:
    """The open state of a store's file, and whether the file has changed since.

    The open state is served, from the old mapping if need be, until `reload` is called.
    Threads may share it. Call `close` at the end.
    """

    def __init__(
        self,
        path: Path,
        *,
        predictions: Sequence[Path] = (),
        beside: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        found = find_catalog(path)
        self._path = path.absolute() if found is None else Path(found).parent
        self._predictions = tuple(predictions)
        self._lock = threading.Lock()
        self._news: tuple[Signature | None, News] = (None, _SAME)
        self._opened: Signature | None = None
        self.catalog = self._open(progress)
        self.beside = None if beside is None else Catalog(Store(beside))
        """The store whose samples of the same key are shown beside."""

    def reload(self) -> Catalog:
        """Open the file again; on an error the state that is open stays."""
        with self._lock:
            old, self.catalog = self.catalog, self._open(None)
            old.close()
            return self.catalog

    def close(self) -> None:
        """End the child processes that run queries."""
        self.catalog.close()
        if self.beside is not None:
            self.beside.close()

    def look(self) -> News:
        """Compare the file with the open state; it is opened only if its size or times changed."""
        with self._lock:
            now = self._signature()
            if now is None:
                return News("gone", f"{self._path.name} has been removed.")
            if now == self._opened:
                return _SAME
            if now != self._news[0]:
                self._news = (now, self._compare())
            return self._news[1]

    def _open(self, progress: Progress | None) -> Catalog:
        signature = self._signature()
        store = Store(self._path)
        scores = [
            Scores(store, read_predictions(path, store.keys), progress=progress)
            for path in self._predictions
        ]
        catalog = Catalog(store, scores, Tags(self._path))
        self._opened, self._news = signature, (None, _SAME)
        return catalog

    def _signature(self) -> Signature | None:
        try:
            # of a data set of many stores the catalog, which is written anew with every change
            status = os.stat(find_catalog(self._path) or self._path)  # noqa: PTH116  # one call
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def _compare(self) -> News:
        name = self._path.name
        try:
            with Store(self._path) as new:
                shown = self.catalog.store
                if new.fingerprint == shown.fingerprint:
                    return _SAME
                mapping, old = new.snapshot.mapping, shown.snapshot.mapping
                if (mapping.device, mapping.inode) == (old.device, old.inode):
                    return News("grown", f"{name} has changed: it now has {len(new)} samples.")
                return News("replaced", f"{name} was replaced by a store with {len(new)} samples.")
        except OCRStoreError as exc:
            return News("broken", f"{name} was changed and cannot be opened: {exc}")
