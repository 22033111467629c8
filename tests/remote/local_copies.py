"""Stores in a bucket, their local copies, and the fetchers that make them."""

from __future__ import annotations

import http.client
from pathlib import Path

import numpy as np
import psutil

import ocrstore

SIDE = 96


def make_large(path: Path, *, samples: int = 160, seed: int = 0) -> Path:
    """Write a store with raw and compressed rows, small and large, in several row groups."""
    random = np.random.default_rng(seed)
    columns = {
        "tensor": ocrstore.Column("uint8", (SIDE, SIDE, 3)),
        "image": ocrstore.Column("uint8", (None, None, 3), codec="zstd"),
        "prob_map": ocrstore.Column("float16", (SIDE, SIDE), codec="lz4block"),
        "number": ocrstore.Column("int64", ()),
    }
    with ocrstore.create(path, columns, group_rows=16) as writer:
        for number in range(samples):
            height = 20 + number % 9
            arrays = {
                "tensor": random.integers(0, 255, (SIDE, SIDE, 3), np.uint8),
                "image": random.integers(0, 255, (height, 40, 3), np.uint8),
                "prob_map": np.full((SIDE, SIDE), number, np.float16),
                "number": np.int64(number),
            }
            writer.append(f"s{number:04}", arrays)
    return path


def upload(server: str, url: str, path: Path) -> str:
    """Put a file into a bucket, without obstore: a process that used it must not fork."""
    host = server.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    # moto looks at the name only, but it wants one where an object is replaced
    signed = "AWS4-HMAC-SHA256 Credential=test/20300101/us-east-1/s3/aws4_request"
    headers = {"Host": host, "Authorization": f"{signed}, SignedHeaders=host, Signature=0"}
    connection.request("PUT", f"/{url.removeprefix('s3://')}", path.read_bytes(), headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 200, answer.status
    return url


def assert_equal(store: ocrstore.Store, source: Path, columns: tuple[str, ...] = ()) -> None:
    """Every row of some columns, or of all, is as in the source."""
    local = ocrstore.open(source)
    for name in columns or tuple(local.columns):
        for row in np.random.default_rng(3).permutation(len(local)).tolist():
            assert bytes(store[name].stored(row)) == bytes(local[name].stored(row)), (name, row)


def stored_nbytes(source: Path, *names: str) -> int:
    """The stored bytes of some columns, with what is between rows that start on a page."""
    with ocrstore.open(source) as store:
        return sum(
            store[name].stride * len(store)
            if store[name].spec.is_raw and store[name].spec.is_fixed
            else int(store[name].nbytes.sum())
            for name in names
        )


def fetchers(cache: Path) -> list[psutil.Process]:
    """The fetchers of a cache folder that are running."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "ocrstore.remote.fetcher" in command and str(cache) in command:
            found.append(process)
    return found
