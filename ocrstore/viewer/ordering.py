"""Which samples are shown, and in which order; remembers the last answers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ocrstore.store import Store
from ocrstore.viewer.fields import TEXTS, Fields
from ocrstore.viewer.filtering import select
from ocrstore.viewer.grammar import FilterError
from ocrstore.viewer.sql import select_sql

Rows = npt.NDArray[np.int64]
_KEPT = 16


@dataclass(frozen=True, slots=True)
class Query:
    """A filter and an order."""

    filter: str = ""
    sql: bool = False
    sort: str = ""
    descending: bool = False


class Orderings:
    """Answers queries over one state of a store. Threads may share it."""

    def __init__(self, store: Store, fields: Fields) -> None:
        self._store = store
        self._fields = fields
        self._known: OrderedDict[Query, Rows] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, query: Query) -> Rows:
        """Return the rows that a query shows, in order."""
        with self._lock:
            if query in self._known:
                self._known.move_to_end(query)
                return self._known[query]
        found = self._find(query)
        with self._lock:
            self._known[query] = found
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found

    def _find(self, query: Query) -> Rows:
        text = query.filter.strip()
        if not text:
            rows: Rows = np.arange(len(self._store), dtype=np.int64)
        elif query.sql:
            rows = np.flatnonzero(select_sql(text, self._store, self._fields))
        else:
            rows = np.flatnonzero(select(text, self._fields))
        if not query.sort or (query.sort == "row" and not query.descending):
            return rows
        if query.sort not in self._fields or self._fields[query.sort].kind == TEXTS:
            raise FilterError(f"cannot sort by {query.sort}; choose another field")
        values = pc.take(self._fields.array(query.sort), pa.array(rows))
        direction = "descending" if query.descending else "ascending"
        # two keys: samples that are alike stay in the order of the store
        table = pa.table({"value": values, "row": rows})
        keys = [("value", direction), ("row", "ascending")]
        order = pc.sort_indices(table, sort_keys=keys)  # what is missing comes last
        return np.asarray(rows[order.to_numpy()], np.int64)
