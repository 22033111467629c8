"""Danger: equal input gives unequal stores, or the fingerprint depends on how one was made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ocrstore

COLUMNS = {
    "image": ocrstore.Column("uint8", (None, None, 3)),
    "map": ocrstore.Column("float16", (50, 50)),
    "text": ocrstore.Column("int32", (None,), codec="zstd"),
    "packed": ocrstore.Column("float32", (9,), codec="lz4"),
    "label": ocrstore.Column("int64"),
}
SAMPLES = 30


def _arrays(number):
    rng = np.random.default_rng(number)
    return {
        "image": rng.integers(0, 256, (10 + number % 3, 12, 3), np.uint8),
        "map": rng.random((50, 50)).astype(np.float16),
        "text": np.arange(number, dtype=np.int32),
        "packed": np.full(9, number, np.float32),
        "label": np.int64(number),
    }


def _attributes(number):
    return {
        "width": number,
        "polygons": [[1.5, 2.0, float(number)]] * (number % 3),
        "word": "ü" * number if number % 4 else None,
        "box": {"x": number, "seen": bool(number % 2)},
    }


def _fill(writer, numbers):
    for number in numbers:
        writer.append(f"s{number}", _arrays(number), attributes=_attributes(number))


def _create(path, numbers=range(SAMPLES), **options):
    with ocrstore.create(path, COLUMNS, **options) as writer:
        _fill(writer, numbers)
    return path


def _fingerprint(path):
    with ocrstore.open(path) as store:
        return store.fingerprint


@pytest.fixture
def whole(quick_path):
    """Return the fingerprint of the store made in one go."""
    return _fingerprint(_create(quick_path / "whole.ocrs"))


SCRIPT = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
junk = [os.urandom(1 + n * 7919 % 9000) for n in range(int(sys.argv[3]))]  # another heap
del junk[::2]
from tests import test_determinism as own
import numpy as np, ocrstore
path = Path(sys.argv[2])
own._create(path, group_rows=8, metadata={"b": 1, "a": [2]})
with ocrstore.edit(path) as writer:
    writer.delete("s3")
    own._fill(writer, range(40, 45))
ocrstore.add_column(path, "more", ocrstore.Column("uint8", (5000,)), np.ones((34, 5000), "u1"))
"""


def _bytes_of_run(folder, name, *, junk, seed, epoch):
    """Write and change a store in a process of its own; return its bytes."""
    environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": f"UTC+{seed}"}
    environment.pop("SOURCE_DATE_EPOCH", None)
    if epoch:
        environment["SOURCE_DATE_EPOCH"] = epoch
    root = str(Path(__file__).parent.parent)
    command = [sys.executable, "-c", SCRIPT, root, str(folder / name), str(junk)]
    subprocess.run(command, env=environment, check=True, timeout=300)
    return (folder / name).read_bytes()


def test_same_input_same_bytes(quick_path):
    """With SOURCE_DATE_EPOCH two processes write one file, whatever their memory and hashes."""
    first = _bytes_of_run(quick_path, "a.ocrs", junk=0, seed="1", epoch="1700000000")
    second = _bytes_of_run(quick_path, "b.ocrs", junk=9000, seed="2", epoch="1700000000")
    assert first == second
    with ocrstore.open(quick_path / "a.ocrs") as store:
        assert {entry["at"] for entry in store.history} == {"2023-11-14T22:13:20Z"}


def test_only_the_time_differs_without_it(quick_path, monkeypatch):
    """Without SOURCE_DATE_EPOCH the history's times are all that may differ."""
    contents = []
    for epoch in ("1", "2"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
        contents.append(_create(quick_path / f"{epoch}.ocrs").read_bytes())
    assert contents[0] != contents[1]
    assert _fingerprint(quick_path / "1.ocrs") == _fingerprint(quick_path / "2.ocrs")
    with ocrstore.open(quick_path / "1.ocrs") as one, ocrstore.open(quick_path / "2.ocrs") as two:
        for left, right in zip(one.history, two.history):
            assert {**left, "at": 0} == {**right, "at": 0}
        assert one.index.equals(two.index)


@pytest.mark.parametrize("rubbish", ["", "soon", "-5", "1e3", "²", "9" * 30])
def test_a_time_that_is_none_is_not_used(quick_path, monkeypatch, rubbish):
    """A SOURCE_DATE_EPOCH that is not a number of seconds does not stop a build."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", rubbish)
    with ocrstore.open(_create(quick_path / "a.ocrs", [])) as store:
        assert store.history[0]["at"] > "2020"


@pytest.mark.parametrize("options", [{"group_rows": 1}, {"group_rows": 7}, {"group_nbytes": 20000}])
def test_fingerprint_is_independent_of_row_groups(quick_path, whole, options):
    """How rows are grouped does not matter."""
    path = _create(quick_path / "a.ocrs", **options)
    assert _fingerprint(path) == whole
    ocrstore.compact(path)
    assert _fingerprint(path) == whole


@pytest.mark.parametrize("cut", [0, 1, 17, SAMPLES])
def test_fingerprint_of_append_is_that_of_create(quick_path, whole, cut):
    """Samples that came in two steps are the same samples."""
    schema = ocrstore.open(quick_path / "whole.ocrs").snapshot.index.attributes
    path = _create(quick_path / "a.ocrs", range(cut), attributes=schema)
    with ocrstore.edit(path) as writer:
        _fill(writer, range(cut, SAMPLES))
    assert _fingerprint(path) == whole
    ocrstore.compact(path)
    assert _fingerprint(path) == whole


def test_fingerprint_of_the_long_way_round(quick_path, whole):
    """Deleting, replacing and a column that came later leave no trace in the fingerprint."""
    path = quick_path / "a.ocrs"
    few = {name: column for name, column in COLUMNS.items() if name != "map"}
    with ocrstore.create(path, few, group_rows=4) as writer:
        for number in [99, *range(SAMPLES)]:
            arrays = _arrays(5 if number == 7 else number)
            del arrays["map"]
            writer.append(f"s{number}", arrays, attributes=_attributes(number))
    with ocrstore.edit(path) as writer:
        writer.delete("s99")
        arrays = _arrays(7)
        del arrays["map"]
        writer.replace("s7", arrays, attributes=_attributes(7))
    maps = {f"s{number}": _arrays(number)["map"] for number in range(SAMPLES)}
    assert _fingerprint(path) != whole
    ocrstore.add_column(path, "map", COLUMNS["map"], maps)
    assert _fingerprint(path) == whole
    ocrstore.compact(path)
    assert _fingerprint(path) == whole
    assert ocrstore.verify(path).ok


def test_fingerprint_tells_stores_apart(quick_path, whole):
    """One bit, one attribute, one name, one dtype, one key, the order: each gives another one."""

    def variant(name, *, arrays=None, attributes=None, columns=COLUMNS, numbers=range(SAMPLES)):
        path = quick_path / f"{name}.ocrs"
        with ocrstore.create(path, columns) as writer:
            for number in numbers:
                given = _arrays(number)
                said = _attributes(number)
                if number == 9:
                    given.update(arrays or {})
                    said.update(attributes or {})
                key = f"{name if name == 'key' and number == 9 else 's'}{number}"
                writer.append(key, {n: given[n] for n in columns}, attributes=said)
        return _fingerprint(path)

    bit = _arrays(9)["image"].copy()
    bit[0, 0, 0] ^= 1
    fingerprints = [
        whole,
        variant("bit", arrays={"image": bit}),
        variant("shape", arrays={"image": _arrays(9)["image"].reshape(5, -1, 3)}),
        variant("number", attributes={"width": 10}),
        variant("null", attributes={"word": None}),
        variant("list", attributes={"polygons": [[]]}),
        variant("struct", attributes={"box": {"x": 9, "seen": False}}),
        variant("key"),
        variant("order", numbers=reversed(range(SAMPLES))),
        variant("fewer", numbers=range(SAMPLES - 1)),
        variant("columns", columns={n: c for n, c in COLUMNS.items() if n != "map"}),
        variant("codec", columns={**COLUMNS, "packed": ocrstore.Column("float32", (9,))}),
    ]
    assert len(set(fingerprints)) == len(fingerprints)
    assert variant("same") == whole


def test_fingerprint_is_the_same_for_ever(quick_path):
    """A fingerprint written down by an earlier version is still the one computed today."""
    path = quick_path / "a.ocrs"
    with ocrstore.create(path, {"a": ocrstore.Column("uint8", (3,))}) as writer:
        writer.append("x", {"a": [1, 2, 3]}, attributes={"n": 1, "l": [0.5], "s": None, "t": "é"})
    with ocrstore.open(path) as store:
        assert store.fingerprint == (
            "53295ecd3de0879d71a63434b1fe14b0d080028ca304b9c9c1dba2cf9ea7cd3a"
        )
