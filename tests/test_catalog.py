# ruff: noqa: E501  # one case in each line of the tables
"""The catalog of a data set of many stores: docs/FORMAT.md 16."""

import copy
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocrstore import Column
from ocrstore.catalog import (
    CATALOG,
    Catalog,
    Shard,
    find_catalog,
    parse_catalog,
    read_catalog,
    write_catalog,
)
from ocrstore.errors import (
    CorruptStoreError,
    NotAStoreError,
    OCRStoreError,
    UnsupportedFormatError,
    WriteError,
)

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "dataset.json"
COLUMNS = {"image": Column("uint8", (None, None, 3), "file"), "score": Column("float64", ())}


def shard(bucket, name=None, **fields):
    """A shard of a bucket, as a catalog describes it."""
    facts = {
        "inputs": "a" * 64,
        "nbytes": 5000,
        "samples": 10,
        "generation": 1,
        "fingerprint": "b" * 64,
        "row_groups": ((2, 4), (1, 2)),
        "column_nbytes": {"image": 4000, "score": 80},
    }
    return Shard(name or f"{bucket or 'all'}-aaaa.ocrs", bucket, **{**facts, **fields})


def catalog(folder, *shards):
    """A catalog of two columns."""
    return Catalog(str(folder), COLUMNS, {"views": {}}, shards, {"shard_nbytes": 5000})


def changed(path, value, *, of=None):
    """The golden catalog as bytes, with another value at a path of names and positions."""
    record = json.loads(GOLDEN.read_text()) if of is None else of
    place = record
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(record).encode()


def test_golden():
    """The catalog of version 1.0 is read by every later version, and written with the same bytes."""
    found = read_catalog(GOLDEN.parent)
    assert found.columns == COLUMNS and found.metadata == {"views": {}}
    assert found.build == {"shard_nbytes": 5000} and len(found) == 20
    assert found.shards == (shard("0"), shard("10", samples=0, row_groups=()), shard("11"))
    assert found.shard_path(found.shards[0]) == str(GOLDEN.parent / "0-aaaa.ocrs")
    assert found.to_json() == GOLDEN.read_bytes()
    assert catalog(GOLDEN.parent, *reversed(found.shards)).to_json() == GOLDEN.read_bytes()


def test_where_a_catalog_is(tmp_path):
    """The folder or the file; neither another JSON file nor a folder without one."""
    write_catalog(catalog(tmp_path, shard("")))
    assert find_catalog(tmp_path) == find_catalog(tmp_path / CATALOG) == str(tmp_path / CATALOG)
    (tmp_path / "other.json").write_bytes((tmp_path / CATALOG).read_bytes())
    assert find_catalog(tmp_path / "other.json") is None and find_catalog(tmp_path / "no") is None
    (tmp_path / "empty").mkdir()
    assert find_catalog(tmp_path / "empty") is None
    assert [path.name for path in sorted(tmp_path.glob("*.json"))] == [CATALOG, "other.json"]


def test_a_missing_catalog(tmp_path):
    """What to do is in the message."""
    rule = "C1"
    with pytest.raises(NotAStoreError, match=r"--shard-size SIZE"):
        read_catalog(tmp_path)
    assert f"**{rule}**" in SPECIFICATION


SPECIFICATION = (ROOT / "docs" / "FORMAT.md").read_text("utf-8")
FIRST = ("shards", 0)
REJECTED = [
    ("C2", ("format", "name"), "something", NotAStoreError),
    ("C2", ("format",), [], NotAStoreError),
    ("C2", ("format",), ..., NotAStoreError),
    ("C3", ("format", "major"), 2, UnsupportedFormatError),
    ("C3", ("format", "major"), "x" * 1000, UnsupportedFormatError),
    ("C3", ("format", "major"), ..., UnsupportedFormatError),
    ("C4", ("columns",), ..., CorruptStoreError),
    ("C4", ("metadata",), [], CorruptStoreError),
    ("C4", ("shards",), {}, CorruptStoreError),
    ("C4", ("build",), None, CorruptStoreError),
    ("C5", ("columns", 0, "dtype"), "complex64", CorruptStoreError),
    ("C5", ("columns", 0, "shape"), [-1], CorruptStoreError),
    ("C5", ("columns", 1, "name"), "image", CorruptStoreError),
    ("C5", ("columns", 0), 7, CorruptStoreError),
    ("C7", (*FIRST, "inputs"), ..., CorruptStoreError),
    ("C7", (*FIRST, "more"), 1, CorruptStoreError),
    ("C7", FIRST, "0-aaaa.ocrs", CorruptStoreError),
    *(
        ("C8", (*FIRST, "name"), name, CorruptStoreError)
        for name in (
            "../a.ocrs",
            "/tmp/a.ocrs",
            "a/b.ocrs",
            "a\\b.ocrs",
            ".a.ocrs",
            "..ocrs",
            "a.ocrs\n",
            "a.ocrs/",
            "C:a.ocrs",
            "a\0.ocrs",
            "ä.ocrs",
            "~a.ocrs",
            "a.lmdb",
            "",
            "a" * 300 + ".ocrs",
            None,
            ["a.ocrs"],
        )
    ),
    ("C9", (*FIRST, "bucket"), "2", CorruptStoreError),
    ("C9", (*FIRST, "bucket"), "0" * 65, CorruptStoreError),
    ("C9", (*FIRST, "bucket"), 0, CorruptStoreError),
    ("C9", (*FIRST, "bucket"), "0\n", CorruptStoreError),
    ("C10", (*FIRST, "inputs"), "a" * 63, CorruptStoreError),
    ("C10", (*FIRST, "fingerprint"), "A" * 64, CorruptStoreError),
    ("C10", (*FIRST, "fingerprint"), 5, CorruptStoreError),
    ("C11", (*FIRST, "nbytes"), -1, CorruptStoreError),
    ("C11", (*FIRST, "nbytes"), 2**53, CorruptStoreError),
    ("C11", (*FIRST, "nbytes"), 5000.0, CorruptStoreError),
    ("C11", (*FIRST, "nbytes"), True, CorruptStoreError),
    ("C11", (*FIRST, "generation"), "1", CorruptStoreError),
    ("C11", (*FIRST, "samples"), None, CorruptStoreError),
    ("C11", (*FIRST, "row_groups"), [[1, 10, 0]], CorruptStoreError),
    ("C11", (*FIRST, "row_groups"), {"1": 10}, CorruptStoreError),
    ("C11", (*FIRST, "column_nbytes"), [4000, "80"], CorruptStoreError),
    ("C12", (*FIRST, "samples"), 11, CorruptStoreError),
    ("C12", (*FIRST, "row_groups"), [[10, 1], [2**52, 0]], CorruptStoreError),
    ("C12", (*FIRST, "row_groups"), [[1, 10], [0, 2**52]], CorruptStoreError),
    ("C12", (*FIRST, "column_nbytes"), [4000], CorruptStoreError),
    ("C12", (*FIRST, "column_nbytes"), [4000, 80, 1], CorruptStoreError),
    ("C12", (*FIRST, "nbytes"), 4079, CorruptStoreError),
    ("C13", (*FIRST, "name"), "11-aaaa.ocrs", CorruptStoreError),
    ("C14", (*FIRST, "bucket"), "1", CorruptStoreError),
    ("C14", (*FIRST, "bucket"), "", CorruptStoreError),
    ("C14", (*FIRST, "bucket"), "11", CorruptStoreError),
    ("C14", (*FIRST, "bucket"), "110", CorruptStoreError),
]


@pytest.mark.parametrize(("rule", "path", "value", "error"), REJECTED)
def test_rejected(rule, path, value, error):
    """Each thing that is wrong is one typed error, which names the file."""
    assert f"| **{rule}** |" in SPECIFICATION
    with pytest.raises(error, match=r"^x/dataset\.json") as caught:
        parse_catalog(changed(path, value), path="x/dataset.json")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"a":1,"a":2}',
        b'{"a":NaN}',
        b"[" * 5000,
        b'{"format":' + b'{"a":' * 100,
    ],
)
def test_not_json(payload):
    """What is not JSON as the specification wants it."""
    assert "| **C4** |" in SPECIFICATION
    with pytest.raises(CorruptStoreError):
        parse_catalog(payload, path="dataset.json")


def test_unknown_fields_are_ignored():
    """A newer minor version may add fields beside the shards."""
    record = json.loads(GOLDEN.read_text())
    record["format"]["minor"] = 7
    assert len(parse_catalog(changed(("new",), {"a": 1}, of=record), path="dataset.json")) == 20


def test_every_rule_has_a_case():
    """The numbered rules of 16.2 and this file name each other; C15 is about open shards."""
    rules = re.findall(r"^\| \*\*(C\d+)\*\* \|", SPECIFICATION, re.MULTILINE)
    assert rules == [f"C{number}" for number in range(1, 16)]
    text = Path(__file__).read_text("utf-8")
    assert [rule for rule in rules[:-1] if f'"{rule}"' not in text] == []


def test_too_many(tmp_path, monkeypatch):
    """More shards, or more bytes, than a catalog may have."""
    rule = "C6"
    assert f"| **{rule}** |" in SPECIFICATION
    monkeypatch.setattr("ocrstore.catalog.MAX_SHARDS", 2)
    with pytest.raises(CorruptStoreError, match="3 shards are too many"):
        read_catalog(GOLDEN)
    monkeypatch.setattr("ocrstore.catalog.MAX_MANIFEST_NBYTES", 500)
    with pytest.raises(WriteError, match="larger --shard-size"):
        write_catalog(catalog(tmp_path, shard("0")))
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_is_not_written(tmp_path):
    """Overlapping buckets are refused when the catalog is written; an old one stays."""
    write_catalog(catalog(tmp_path, shard("0")))
    before = (tmp_path / CATALOG).read_bytes()
    with pytest.raises(CorruptStoreError, match=r"buckets '0' and '01' of two shards overlap"):
        write_catalog(catalog(tmp_path, shard("0"), shard("01")))
    assert (tmp_path / CATALOG).read_bytes() == before and len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_a_hundred_thousand_shards(tmp_path):
    """They fit into a catalog, are checked, and read back equal."""
    shards = [shard(f"{i:017b}", f"{i:017b}-{'a' * 16}.ocrs") for i in range(100_000)]
    made = catalog(tmp_path, *shards)
    write_catalog(made)
    found = read_catalog(tmp_path)
    assert len(found.shards) == 100_000 and len(found) == 1_000_000
    assert found.to_json() == made.to_json() and found.shards[99_999] == shards[99_999]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def _paths(value, path=()):
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for name, inner in items:
        yield from _paths(inner, (*path, name))


RECORD = json.loads(GOLDEN.read_text())


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([p for p in _paths(RECORD) if p]), JSON), min_size=1, max_size=3
    )
)
def test_any_json(mutations):
    """Whatever stands where: it is read, and then stays what it was, or is a typed error."""
    record = copy.deepcopy(RECORD)
    for path, value in mutations:
        place = record
        try:
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier mutation took it away
    try:
        found = parse_catalog(json.dumps(record).encode(), path="x/dataset.json")
    except OCRStoreError:
        return
    assert parse_catalog(found.to_json(), path="x/dataset.json").shards == tuple(
        sorted(found.shards, key=lambda one: (one.bucket, one.name))
    )
