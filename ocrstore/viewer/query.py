"""SQL conditions by duckdb, where it is installed; hides its connection and what it must not do."""

from __future__ import annotations

import importlib.util
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ocrstore.store import Store
from ocrstore.viewer.fields import Fields
from ocrstore.viewer.grammar import MAX_LENGTH, FilterError

SECONDS = 20.0
"""A condition that takes longer is given up."""


def is_available() -> bool:
    """Tell whether duckdb is installed."""
    return importlib.util.find_spec("duckdb") is not None


def select_sql(
    condition: str, store: Store, fields: Fields, *, seconds: float = SECONDS
) -> npt.NDArray[np.bool_]:
    """Return which samples fulfil a SQL condition over the index: what stands after WHERE.

    The condition sees the table `samples` and nothing else: no files, no network, no extensions.
    """
    if len(condition) > MAX_LENGTH:
        raise FilterError(f"a condition has at most {MAX_LENGTH} characters")
    try:
        import duckdb
    except ImportError as exc:
        raise FilterError(
            "SQL conditions need duckdb: pip install 'ocrstore[sql]'. Plain filters work without."
        ) from exc
    # the newline ends a comment, the parentheses keep what follows WHERE one expression
    query = f'SELECT "row" FROM samples WHERE (\n{condition}\n)'
    connection = duckdb.connect(":memory:")
    timer = threading.Timer(seconds, connection.interrupt)
    try:
        connection.execute("SET threads = 2")
        connection.register("samples", _table(store, fields))
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        if len(connection.extract_statements(query)) != 1:
            raise FilterError("one condition, without semicolons")
        timer.start()
        found = connection.execute(query).fetchnumpy()["row"]
    except duckdb.InterruptException as exc:
        raise FilterError(f"given up after {seconds:g} seconds; make it simpler") from exc
    except duckdb.Error as exc:
        raise FilterError(_brief(str(exc))) from exc
    finally:
        timer.cancel()
        connection.close()
    rows = np.ma.compressed(np.ma.asarray(found))
    mask = np.zeros(len(store), bool)
    # whoever leaves the parentheses can select anything; what is no row of the store is dropped
    if rows.dtype.kind in "iu":
        mask[rows[(rows >= 0) & (rows < len(mask))]] = True
    return mask


def _table(store: Store, fields: Fields) -> pa.Table:
    table = store.index
    columns: dict[str, Any] = {"row": fields.array("row"), "key": fields.array("key")}
    for name in store.snapshot.index.attributes.names:
        columns[name] = table[name]
    for name in fields:
        if "." not in name and name not in columns:
            columns[name] = fields.array(name)
    return pa.table(columns)


def _brief(message: str) -> str:
    """Keep what duckdb says, without the query it shows, which has our own words around it."""
    lines = [line for line in message.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith("LINE ") and line.strip(" ^~")]
    return " ".join(kept)[:400]
