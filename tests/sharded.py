"""Data sets of many stores, made of one store."""

from itertools import groupby
from pathlib import Path

import xxhash

import ocrstore
from ocrstore.building.convert import convert
from ocrstore.catalog import Catalog, Shard, write_catalog


def bucket_of(key, bits):
    """Return the leading bits of a key's hash."""
    return f"{xxhash.xxh3_64_intdigest(key.encode()):064b}"[:bits]


def describe_shard(path, bucket):
    """Return a store's entry in a catalog; all samples in one row group."""
    with ocrstore.open(path) as store:
        return Shard(
            name=Path(path).name,
            bucket=bucket,
            inputs="0" * 64,
            nbytes=Path(path).stat().st_size,
            samples=len(store),
            generation=store.generation,
            fingerprint=store.fingerprint,
            row_groups=((1, len(store)),),
            column_nbytes={name: int(store[name].nbytes.sum()) for name in store.columns},
        )


def write_dataset(folder, shards):
    """Write the catalog of shards that lie in a folder."""
    with ocrstore.open(folder / shards[0].name) as store:
        metadata = {name: store.metadata[name] for name in ("views", "default_view")}
        write_catalog(Catalog(str(folder), dict(store.columns), metadata, tuple(shards), {}))


def shard_store(path, folder, *, bits=2):
    """Split a store into a data set of up to 2**bits shards; return its folder."""
    folder.mkdir(parents=True)
    with ocrstore.open(path) as store:
        keys = sorted(store.keys, key=lambda key: bucket_of(key, bits))
    shards = []
    for bucket, members in groupby(keys, key=lambda key: bucket_of(key, bits)):
        out = folder / f"{bucket}.ocrs"
        convert(path, out, keys=list(members))
        shards.append(describe_shard(out, bucket))
    write_dataset(folder, shards)
    return folder
