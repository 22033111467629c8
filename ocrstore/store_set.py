"""Open the shards of a data set of many stores, one by one or as one store."""

from __future__ import annotations

from ocrstore.catalog import Catalog, Shard
from ocrstore.errors import CorruptStoreError, NotAStoreError
from ocrstore.store import Store


def open_shard(catalog: Catalog, shard: Shard, *, max_row_nbytes: int | None = None) -> Store:
    """Open a shard; no row is read.

    Raises:
        CorruptStoreError: It is missing, or not the store that the catalog describes.
    """
    path = catalog.shard_path(shard)
    try:
        store = Store(path, max_row_nbytes=max_row_nbytes)
    except (NotAStoreError, CorruptStoreError) as exc:
        raise _differs(catalog, shard, str(exc)) from exc
    found = {
        "bytes": (store.snapshot.mapping.nbytes, shard.nbytes),
        "samples": (len(store), shard.samples),
        "fingerprint": (store.fingerprint, shard.fingerprint),
        "columns": (store.columns, catalog.columns),
    }
    for what, (is_, expected) in found.items():
        if is_ != expected:
            raise _differs(catalog, shard, f"expected {what} {expected}, found {is_}.")
    return store


def _differs(catalog: Catalog, shard: Shard, why: str) -> CorruptStoreError:
    return CorruptStoreError(
        f"shard {shard.name} is not as {catalog.path} describes it: {why} `ocrstore verify"
        f" {catalog.folder}` lists all such shards; `ocrstore build` makes them anew."
    )
