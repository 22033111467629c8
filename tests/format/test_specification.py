"""A store is parsed from docs/FORMAT.md alone: nothing of ocrstore is imported here.

LMDB is read through py-lmdb, Arrow through pyarrow; all the rest is struct, numpy, json and the
words of the specification. Section numbers in comments are those of docs/FORMAT.md.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import lmdb
import numpy as np
import pyarrow as pa
import pytest
import xxhash

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "format-1.0.ocrs"
BLOCKS = GOLDEN.with_name("lz4block.ocrs")
SPECIFICATION = ROOT / "docs" / "FORMAT.md"
ENGINE = {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}

ODD_STORE = """
import sys, numpy as np, pyarrow as pa, ocrstore
schema = pa.schema([
    ("b", pa.large_string()), ("a", pa.large_list(pa.large_binary())),
    ("deep", pa.list_(pa.struct([("x", pa.list_(pa.float16(), 2)), ("y", pa.bool_())]))),
    ("n", pa.uint64()), ("h", pa.float16()),
])
columns = {"z": ocrstore.Column("float32", (None, 5)), "a/b.c-d": ocrstore.Column("uint64"),
           "big": ocrstore.Column("uint8", (5000,))}
with ocrstore.create(sys.argv[1], columns, attributes=schema) as writer:
    for row in range(int(sys.argv[2])):
        writer.append(f"k{row}", {
            "z": np.full((row % 4, 5), row, np.float32), "a/b.c-d": np.uint64(2**63 + row),
            "big": np.full(5000, row, np.uint8),
        }, attributes={} if row % 5 == 4 else {
            "b": None if row % 3 else "x" * row, "a": [b"", None, bytes([row])],
            "deep": [{"x": [row, None], "y": None}, None, {"x": None, "y": True}],
            "n": 2**64 - 1 - row, "h": None if row % 2 else row / 7,
        })
"""


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Return the golden stores, an odd one, and one without samples."""
    folder = tmp_path_factory.mktemp("specification")
    paths = [GOLDEN, BLOCKS]
    for rows in (0, 150):
        path = folder / f"odd-{rows}.ocrs"
        subprocess.run([sys.executable, "-c", ODD_STORE, path, str(rows)], check=True, cwd=ROOT)
        paths.append(path)
    return paths


class Parsed:
    """One generation of a store, read as the specification says."""

    def __init__(self, path: Path, generation: int | None = None) -> None:
        self.file = path.read_bytes()
        with lmdb.open(str(path), subdir=False, lock=False, readonly=True, **ENGINE) as environment:
            self.page_size = environment.stat()["psize"]
            with environment.begin() as transaction:
                self.values = {bytes(k): bytes(v) for k, v in transaction.cursor()}
        newest = max(self.values)  # 3.1: the newest manifest is the last key
        assert re.fullmatch(rb"manifest/\d{8}", newest)
        self.generation = int(newest[9:]) if generation is None else generation
        self.manifest = json.loads(self.blob(b"manifest", b"OCRSMAN1"))
        self.columns = {column["name"]: column for column in self.manifest["columns"]}
        self.index = pa.ipc.open_file(self.blob(b"index", b"OCRSIDX1")).read_all()

    def blob(self, kind: bytes, magic: bytes) -> bytes:
        """Unwrap a record (4)."""
        value = self.values[kind + b"/%08d" % self.generation]
        found, nbytes, digest, number, zero, header_digest = struct.unpack_from("<8sQQQQQ", value)
        assert (found, number, zero) == (magic, self.generation, 0)
        assert header_digest == xxhash.xxh3_64_intdigest(value[:40])
        payload = value[48 : 48 + nbytes]
        assert len(payload) == nbytes
        assert digest == xxhash.xxh3_64_intdigest(payload)
        assert not any(value[48 + nbytes :])
        assert len(value) == max(48 + nbytes, self.page_size - 16)
        return payload

    def places(self, name: str) -> list[dict]:
        """Return a column's part of the index (6.2)."""
        return self.index[name].to_pylist()

    def array(self, name: str, place: dict) -> np.ndarray:
        """Decode a row (5.4)."""
        column = self.columns[name]
        stored = self.file[place["offset"] : place["offset"] + place["nbytes"]]
        dtype = np.dtype(column["dtype"]).newbyteorder("<")
        shape = place.get("shape", [])
        if column["codec"] != "raw":
            nbytes = int(np.prod(shape)) * dtype.itemsize
            codec = {"zstd": "zstd", "lz4": "lz4", "lz4block": "lz4_raw"}[column["codec"]]
            stored = pa.Codec(codec).decompress(stored, nbytes, asbytes=True) if nbytes else b""
        return np.frombuffer(stored, dtype).reshape(shape)


def every(stores):
    """Yield every generation of every store."""
    for path in stores:
        newest = Parsed(path)
        yield newest
        for generation in range(1, newest.generation):
            yield Parsed(path, generation)


def test_manifest_has_every_field(stores):
    """The manifest is canonical JSON with the fields of 7.2 and no other."""
    for store in every(stores):
        manifest = store.manifest
        assert set(manifest) == {
            "format", "required_features", "generation", "samples", "groups", "columns",
            "fingerprint", "history", "metadata",
        }  # fmt: skip
        codecs = {column["codec"] for column in store.columns.values()}
        features = sorted(codecs & {"lz4block"})
        assert manifest["format"] == {"major": 1, "minor": len(features)}
        assert manifest["required_features"] == features
        assert manifest["generation"] == store.generation
        assert manifest["samples"] == store.index.num_rows
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert text.encode() == store.blob(b"manifest", b"OCRSMAN1")


def test_index_has_the_schema_of_the_specification(stores):
    """Field `key`, then one struct per column, then the attributes (6.2, 6.3)."""
    for store in every(stores):
        schema = store.index.schema
        assert schema.names[: 1 + len(store.columns)] == ["key", *store.columns]
        assert schema.field("key").type == pa.string()
        for name, column in store.columns.items():
            parts = ["offset: int64 not null", "nbytes: int64 not null"]
            if column["shape"]:
                ndim = len(column["shape"])
                parts.append(f"shape: fixed_size_list<item: int32 not null>[{ndim}] not null")
            parts.append("hash: uint64 not null")
            # str() shortens long types, so the fields are compared one by one
            kind = schema.field(name).type
            assert [str(kind.field(i)).removeprefix("pyarrow.Field<").rstrip(">")
                    for i in range(kind.num_fields)] == [p.rstrip(">") for p in parts]  # fmt: skip


def test_every_row_matches_hash_shape_and_alignment(stores):
    """Each row lies where the index says, aligned as 5.3 says, with the recorded hash."""
    for store in every(stores):
        spans = []
        for name, column in store.columns.items():
            for place in store.places(name):
                offset, nbytes = place["offset"], place["nbytes"]
                large = column["codec"] == "raw" and nbytes >= 4096
                assert offset % (4096 if large else 64) == 0
                assert 2 * store.page_size <= offset <= offset + nbytes <= len(store.file)
                stored = store.file[offset : offset + nbytes]
                assert xxhash.xxh3_64_intdigest(stored) == place["hash"]
                sizes = zip(column["shape"], place.get("shape", []))
                assert all(want in (None, found) for want, found in sizes)
                if column["codec"] not in ("jpeg", "file"):
                    store.array(name, place)
                spans.append((offset, offset + nbytes))
        spans = sorted(span for span in spans if span[0] < span[1])
        assert all(left[1] <= right[0] for left, right in pairwise(spans))


def test_extents_agree_with_the_index(stores):
    """Header, directory, hash, zero padding and rows of every extent are as in 5."""
    for store in [Parsed(path) for path in stores]:
        for key, value in store.values.items():
            if not key.startswith(b"extent/"):
                continue
            group, name = int(key[7:15]), key[16:].decode("ascii")
            magic, number, rows, capacity, zero, end, zero_too, length, text, digest = (
                struct.unpack_from("<8sIIIIQQB63sQ", value)
            )
            assert (magic, number, zero, zero_too) == (b"OCRSEXT1", group, 0, 0)
            assert text == name.encode().ljust(63, b"\0")
            assert length == len(name)
            start = 112 + 24 * capacity
            assert digest == xxhash.xxh3_64_intdigest(value[:104] + value[112:start])
            position = start
            for row in range(capacity):
                offset, nbytes, row_digest = struct.unpack_from("<QQQ", value, 112 + 24 * row)
                if row >= rows:
                    assert (offset, nbytes, row_digest) == (0, 0, 0)
                    continue
                large = store.columns[name]["codec"] == "raw" and nbytes >= 4096
                alignment = 4096 if large else 64
                assert offset == -(-(position + 16) // alignment) * alignment - 16  # 5.3
                assert not any(value[position:offset])
                assert row_digest == xxhash.xxh3_64_intdigest(value[offset : offset + nbytes])
                position = offset + nbytes
            assert position == end
            assert len(value) == max(end, store.page_size - 16)
            assert not any(value[end:])
            assert store.file.count(value) == 1
            assert store.file.index(value) % store.page_size == 16  # 3.4


def test_every_place_is_a_row_of_an_extent(stores):
    """The index of every generation points at rows that extents list."""
    for path in stores:
        listed = set()
        newest = Parsed(path)
        for key, value in newest.values.items():
            if key.startswith(b"extent/"):
                base = newest.file.index(value)
                rows = struct.unpack_from("<I", value, 12)[0]
                for row in range(rows):
                    entry = struct.unpack_from("<QQQ", value, 112 + 24 * row)
                    listed.add((key[16:].decode(), base + entry[0], *entry[1:]))
        for generation in range(1, newest.generation + 1):
            store = Parsed(path, generation)
            for name in store.columns:
                for place in store.places(name):
                    assert (name, place["offset"], place["nbytes"], place["hash"]) in listed


def test_fixed_rows_lie_at_one_stride():
    """Consecutive rows of a fixed-shape raw column are one array (5.3)."""
    store = Parsed(GOLDEN, 1)
    offsets = [place["offset"] for place in store.places("tensor")]
    assert np.diff(offsets).tolist() == [4096] * 3
    offsets = [place["offset"] for place in store.places("prob_map")]
    assert np.diff(offsets).tolist() == [128] * 3


def test_values_are_what_the_golden_script_wrote():
    """Arrays decoded by the specification's rules are the right ones."""
    store = Parsed(GOLDEN)
    arrays = {name: [store.array(name, place) for place in store.places(name)]
              for name in store.columns if name != "scan"}  # fmt: skip
    assert [a.item() for a in arrays["score"]] == [0, 13 / 8, 3 / 8, 6 / 8]
    assert [a.tolist() for a in arrays["words"]] == [[], [-13], [], []]
    assert arrays["labels"][2].tolist() == [
        [0, 10**10],
        [2 * 10**10, 3 * 10**10],
        [4 * 10**10, 5 * 10**10],
    ]
    assert [a.sum() for a in arrays["mask"]] == [36, 201, 66, 105]
    assert arrays["image"][1].shape == (40, 47, 3)


def type_name(kind: pa.DataType) -> str:
    """Name an attribute's type (8.2)."""
    names = {"halffloat": "float16", "float": "float32", "double": "float64"}
    if pa.types.is_struct(kind):
        inner = ",".join(f"{f.name}:{type_name(f.type)}" for f in kind)
        return f"struct<{inner}>"
    if pa.types.is_fixed_size_list(kind):
        return f"list<{type_name(kind.value_type)}>[{kind.list_size}]"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{type_name(kind.value_type)}>"
    return names.get(str(kind), str(kind))


def feed(kind: pa.DataType, items: list) -> bytes:
    """Return what 8.2 says is hashed of a list of Python values."""
    nulls = sum(item is None for item in items)
    out = f"{type_name(kind)}:{len(items)}:{nulls}\n".encode()
    if nulls:
        out += bytes(item is not None for item in items)
    if pa.types.is_struct(kind):
        for field in kind:
            values = [None if item is None else item[field.name] for item in items]
            out += field.name.encode() + b"\n" + feed(field.type, values)
    elif pa.types.is_nested(kind):
        out += b"".join(struct.pack("<q", len(item or [])) for item in items)
        out += feed(kind.value_type, [inner for item in items for inner in item or []])
    elif type_name(kind).removeprefix("large_") in ("string", "binary"):
        data = [item.encode() if isinstance(item, str) else item or b"" for item in items]
        out += b"".join(struct.pack("<q", len(item)) for item in data) + b"".join(data)
    else:
        dtype = np.dtype(type_name(kind)).newbyteorder("<")
        out += b"".join(np.array(0 if item is None else item, dtype).tobytes() for item in items)
    return out


def test_fingerprint_follows_from_the_specification(stores):
    """The fingerprint is recomputed from Python values by the words of 8."""
    for store in every(stores):
        table, columns = store.index, store.columns
        described = {
            name: {field: columns[name][field] for field in ("codec", "dtype", "shape")}
            for name in sorted(columns)
        }
        digest = hashlib.sha256(b"ocrstore-fingerprint-1\n")
        digest.update(json.dumps(described, separators=(",", ":")).encode() + b"\n")
        digest.update(feed(pa.string(), table["key"].to_pylist()))
        for name in sorted(columns):
            places = store.places(name)
            for place in places:
                digest.update(
                    struct.pack(f"<{len(place.get('shape', []))}i", *place.get("shape", []))
                )
            digest.update(b"".join(struct.pack("<Q", place["hash"]) for place in places))
        for name in sorted(set(table.schema.names) - {"key"} - set(columns)):
            digest.update(name.encode() + b"\n")
            digest.update(feed(table.schema.field(name).type, table[name].to_pylist()))
        assert digest.hexdigest() == store.manifest["fingerprint"]


def test_hex_examples_are_the_golden_store():
    """Every line of hexadecimal in the specification is found at its place in the golden file."""
    data = GOLDEN.read_bytes()
    lines = re.findall(r"^([0-9a-f]{8}): ((?:[0-9a-f]{2,4} ?)+)", SPECIFICATION.read_text("utf-8"),
                       re.MULTILINE)  # fmt: skip
    assert len(lines) > 30
    for position, text in lines:
        want = bytes.fromhex(text)
        start = int(position, 16)
        assert data[start : start + len(want)] == want, position


def test_rules_and_tests_name_each_other():
    """Every numbered rule of 11 names tests that exist, and every case tests a rule."""
    text = SPECIFICATION.read_text("utf-8")
    rules = re.findall(r"^\| \*\*(R\d+)\*\* \|.*\| `(\w+\.py)` \|$", text, re.MULTILINE)
    numbers = [int(rule[1:]) for rule, _ in rules]
    assert numbers == list(range(1, len(rules) + 1))
    folder = Path(__file__).parent
    for rule, file in rules:
        assert re.search(rf'"{rule}"', (folder / file).read_text("utf-8")), rule
    for file in {file for _, file in rules}:
        used = re.findall(r'"R(\d+)"', (folder / file).read_text("utf-8"))
        assert set(map(int, used)) <= set(numbers)


def test_code_cites_sections_that_exist():
    """Each `FORMAT.md n.m` in the package is a heading of the specification."""
    text = SPECIFICATION.read_text("utf-8")
    headings = set(re.findall(r"^#{2,3} (\d+(?:\.\d+)?)\.? ", text, re.MULTILINE))
    cited = 0
    for module in (ROOT / "ocrstore").rglob("*.py"):
        for section in re.findall(r"FORMAT\.md (\d+(?:\.\d+)?)", module.read_text("utf-8")):
            assert section in headings, f"{module.name} cites {section}"
            cited += 1
    assert cited >= 10


def test_nothing_of_ocrstore_is_imported_here():
    """This reader owes nothing to the package."""
    source = Path(__file__).read_text("utf-8")
    assert not re.search(r"^(?:from|import) ocrstore", source, re.MULTILINE)
