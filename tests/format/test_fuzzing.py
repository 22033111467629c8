"""Parsers fed with arbitrary and with mutated bytes raise ocrstore's errors and no others."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import ocrstore
from ocrstore.errors import OCRStoreError
from ocrstore.format.codecs import decode_row
from ocrstore.format.extents import parse_extent
from ocrstore.format.fingerprint import fingerprint
from ocrstore.format.index import check_places, parse_index
from ocrstore.format.layout import MANIFEST_MAGIC, decode_record, encode_record
from ocrstore.format.lmdb_check import check_pages
from ocrstore.format.lmdb_reader import PageReader
from ocrstore.format.manifest import parse_manifest
from tests.format.rejecting import COLUMNS, write_store
from tools import crafting as craft

fuzz = settings(
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

NUMBERS = [0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 16, 4096, 8192]


@st.composite
def mutations(draw):
    """Draw a function that changes a few numbers of some bytes, and perhaps cuts them."""
    changes = draw(
        st.lists(
            st.tuples(
                st.floats(0, 1, exclude_max=True),
                st.sampled_from([1, 2, 4, 8]),
                st.sampled_from(NUMBERS) | st.integers(0, 2**64 - 1),
            ),
            min_size=1,
            max_size=6,
        )
    )
    kept = draw(st.just(1.0) | st.floats(0, 1))

    def mutate(data: bytes) -> bytes:
        out = bytearray(data)
        for where, size, number in changes:
            start = int(where * len(out)) // size * size
            out[start : start + size] = struct.pack("<Q", number % 2**64)[:size]
        return bytes(out[: int(len(out) * kept)])

    return mutate


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> dict[str, bytes]:
    """Return the parts of a good store."""
    path = tmp_path_factory.mktemp("fuzz") / "good.ocrs"
    write_store(path)
    return {
        "file": path.read_bytes(),
        "manifest": craft.payload_of(path, craft.MANIFEST),
        "index": craft.payload_of(path, craft.INDEX),
        "blob": craft.get(path, craft.MANIFEST),
        "extent": craft.get(path, b"extent/00000000/one"),
    }


def read_pages(data: bytes) -> None:
    """Use all of a PageReader."""
    with suppress(OCRStoreError):
        reader = PageReader(memoryview(data), name="fuzzed")
        for action in (
            lambda: check_pages(reader),
            lambda: reader.last(),
            lambda: [reader.find(key) for key in reader.keys_with(b"")],
            lambda: reader.find(craft.MANIFEST),
        ):
            with suppress(OCRStoreError):
                action()


def read_manifest(data: bytes) -> None:
    """Parse a manifest."""
    with suppress(OCRStoreError):
        parse_manifest(data, generation=1, where="fuzzed")


def read_index(data: bytes) -> None:
    """Parse an index and use all of it."""
    with suppress(OCRStoreError):
        index = parse_index(memoryview(data), COLUMNS, samples=5, where="fuzzed")
        check_places(index, first=8192, end=2**20, where="fuzzed")
        fingerprint(index)
        index.table.to_pylist()


def read_extent(data: bytes) -> None:
    """Parse an extent."""
    with suppress(OCRStoreError):
        parse_extent(memoryview(data), group=0, column="one", where="fuzzed")


def read_blob(data: bytes) -> None:
    """Unwrap a record."""
    with suppress(OCRStoreError):
        decode_record(MANIFEST_MAGIC, 1, memoryview(data), what="fuzzed")


READERS = {
    "file": read_pages,
    "manifest": read_manifest,
    "index": read_index,
    "extent": read_extent,
    "blob": read_blob,
}


@pytest.mark.parametrize("part", READERS)
@fuzz
@given(data=st.binary(max_size=400))
@example(data=b"")
def test_arbitrary_bytes(part, data):
    """Whatever the bytes, only ocrstore's errors leave a parser."""
    READERS[part](data)


@pytest.mark.parametrize("part", READERS)
@fuzz
@given(mutate=mutations())
def test_mutated_bytes(part, parts, mutate):
    """Bytes that are nearly right are where parsers go wrong."""
    READERS[part](mutate(parts[part]))


@fuzz
@given(data=st.binary(max_size=300), rows=st.integers(0, 2**32 - 1))
def test_directories_with_right_hashes(data, rows):
    """An extent's numbers are checked even if its hash is right."""
    count = len(data) // 24
    head = struct.pack("<8sIIIIQQB63s", b"OCRSEXT1", 0, rows, count, 0, len(data), 0, 3, b"one")
    digest = xxhash.xxh3_64_intdigest(head + data[: 24 * count])
    read_extent(head + struct.pack("<Q", digest) + data)


@settings(fuzz, max_examples=80)
@given(
    record=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "format",
                        "major",
                        "minor",
                        "samples",
                        "generation",
                        "groups",
                        "columns",
                        "name",
                        "dtype",
                        "shape",
                        "codec",
                        "history",
                        "metadata",
                        "fingerprint",
                        "required_features",
                    ]
                ),
                inner,
                max_size=9,
            )
        ),
        max_leaves=30,
    )
)
def test_any_json_is_a_manifest_or_an_error(record):
    """Fields of any type are checked before they are used."""
    read_manifest(json.dumps(record).encode())
    good = {
        "format": {"major": 1, "minor": 0}, "required_features": [], "generation": 1,
        "samples": 0, "groups": 0, "columns": [], "fingerprint": "0" * 64, "history": [],
        "metadata": {},
    }  # fmt: skip
    read_manifest(
        json.dumps({**good, "columns": [record, {"name": "a", "shape": record}]}).encode()
    )
    if isinstance(record, dict):
        read_manifest(json.dumps({**good, **record}).encode())


@fuzz
@given(
    data=st.binary(max_size=200),
    count=st.integers(0, 200),
    codec=st.sampled_from(["tags", "fast", "block"]),
)
def test_compressed_rows(data, count, codec):
    """Bytes that are no zstd or lz4 give an error, never other memory."""
    with suppress(OCRStoreError):
        array = decode_row(COLUMNS[codec], memoryview(data), (count,), where="fuzzed")
        assert array.shape == (count,)


@settings(fuzz, max_examples=60)
@given(mutate=mutations())
def test_whole_files(parts, mutate, tmp_path):
    """Opening and verifying a mutated file raise only ocrstore's errors."""
    path: Path = tmp_path / "fuzzed.ocrs"
    path.unlink(missing_ok=True)
    path.write_bytes(mutate(parts["file"]))
    with suppress(OCRStoreError):
        store = ocrstore.open(path)
        for name in store.columns:
            for row in range(len(store)):
                with suppress(OCRStoreError):
                    assert isinstance(store[name][row], np.ndarray)
    with suppress(OCRStoreError):
        ocrstore.verify(path)


def test_blobs_come_back():
    """What is wrapped is unwrapped, whatever its size."""
    for size in (0, 1, 4031, 4032, 4033, 50_000):
        value = encode_record(MANIFEST_MAGIC, 3, b"x" * size, page_size=4096)
        assert bytes(decode_record(MANIFEST_MAGIC, 3, memoryview(value), what="it")) == b"x" * size
