"""The commands for a store that is there: inspect, verify, compact, export."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import ocrstore
from ocrstore import cli


@pytest.fixture
def store(tmp_path):
    """Five small samples, two generations."""
    path = tmp_path / "val.ocrs"
    spec = {
        "image": ocrstore.Column("uint8", (None, 4, 3)),
        "thumb": ocrstore.Column("uint8", (None,), codec="zstd"),
    }
    with ocrstore.create(path, spec) as writer:
        for row in range(5):
            arrays = {"image": np.full((row + 1, 4, 3), row, np.uint8), "thumb": np.zeros(9, "u1")}
            words = [f"wörd, {row}"] * row
            writer.append(f"img [{row}].jpg", arrays, attributes={"width": row, "words": words})
    with ocrstore.edit(path) as writer:
        writer.delete("img [4].jpg")
    return path


def test_help_has_examples_for_every_command(run):
    """Each command explains itself with an example."""
    code, out, _ = run("--help")
    assert code == 0 and "Examples" in out
    for command in cli.COMMANDS:
        code, out, _ = run(command, "--help")
        assert code == 0 and f"ocrstore {command} " in out, command


def test_version(run):
    """--version names program and version."""
    assert run("--version")[1].strip() == f"ocrstore, version {ocrstore.__version__}"


def test_inspect(run, store):
    """The facts in words, and the same for programs."""
    code, out, _ = run("inspect", store)
    assert code == 0
    for fact in ("samples", "1..4x4x3", "zstd", "also readable: 1", "edit"):
        assert fact in out
    code, out, _ = run("inspect", store, "--json")
    facts = json.loads(out)
    assert (facts["samples"], facts["generation"], facts["generations"]) == (4, 2, [1, 2])
    assert facts["columns"][0]["max_shape"] == [4, 4, 3]
    code, out, _ = run("inspect", store, "--json", "--generation", "1")
    assert json.loads(out)["samples"] == 5


def test_inspect_an_empty_store(run, tmp_path):
    """No samples, no division by zero."""
    with ocrstore.create(tmp_path / "a.ocrs", {"a": ocrstore.Column("int8", (None, 2))}):
        pass
    code, out, _ = run("inspect", tmp_path / "a.ocrs")
    assert code == 0 and "?x2" in out


def test_verify(run, store):
    """A sound store exits 0; a flipped bit exits 1 and is named."""
    code, out, _ = run("verify", store)
    assert code == 0 and "is sound" in out
    opened = ocrstore.open(store)
    position = int(opened["image"].offsets[2]) + 1
    data = bytearray(store.read_bytes())
    data[position] ^= 1
    store.write_bytes(data)
    code, out, _ = run("verify", store)
    assert code == 1 and "'img [2].jpg'" in out and "'image'" in out
    code, out, _ = run("verify", store, "--json")
    result = json.loads(out)
    assert code == 1 and result["ok"] is False
    assert result["findings"][0]["sample"] == "img [2].jpg"


def test_compact(run, store):
    """Older generations go, the content stays."""
    fingerprint = ocrstore.open(store).fingerprint
    code, out, _ = run("compact", store)
    assert code == 0 and "->" in out
    assert ocrstore.open(store).generations == [3]
    assert ocrstore.open(store).fingerprint == fingerprint
    code, out, _ = run("compact", store, "--json")
    assert code == 0 and json.loads(out)["nbytes_after"] > 0


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv"])
def test_export_index(run, store, tmp_path, ending):
    """The index as a file that other tools read."""
    target = tmp_path / f"index.{ending}"
    code, out, _ = run("export", store, "--to", ending, "--out", target)
    assert code == 0 and "4 samples" in out
    table = {
        "parquet": pyarrow.parquet.read_table,
        "arrow": lambda p: pa.ipc.open_file(p).read_all(),
        "csv": pyarrow.csv.read_csv,
    }[ending](target)
    assert table["key"].to_pylist() == [f"img [{row}].jpg" for row in range(4)]
    words = table["words"][2].as_py()
    assert (json.loads(words) if ending == "csv" else words) == ["wörd, 2"] * 2
    code, _, err = run("export", store, "--to", ending, "--out", target)
    assert code == 2 and "--overwrite" in err
    assert run("export", store, "--to", ending, "--out", target, "--overwrite")[0] == 0


def test_wrong_use_exits_2(run, store, tmp_path):
    """A file that is not there, an unknown format, an unknown generation: wrong use."""
    assert run("inspect", tmp_path / "nothing.ocrs")[0] == 2
    code, _, err = run("export", store, "--to", "xls", "--out", tmp_path / "index.xls")
    assert code == 2 and "--to" in err
    code, _, err = run("inspect", store, "--generation", "9")
    assert code == 2 and "it has 1, 2" in err
    assert run("no-such-command")[0] == 2


def test_a_file_that_is_no_store_exits_1(run, tmp_path):
    """Something else with the right ending is a problem found, with a remedy."""
    other = tmp_path / "val.ocrs"
    other.write_text("not a store " * 50)
    code, _, err = run("verify", other)
    assert code == 1 and "not an ocrstore file" in err


def test_an_interrupt_exits_130(run, store, monkeypatch):
    """Ctrl-C ends with a message, not with a traceback."""

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("ocrstore.verification.verify", interrupted)
    code, _, err = run("verify", store)
    assert code == 130 and "interrupted" in err


def test_converting(run, store, tmp_path, monkeypatch):
    """Other codecs, a part by keys or SQL, as JSON; wrong use is 2, damage 1, Ctrl-C 130."""
    keys = tmp_path / "keys.txt"
    keys.write_text("img [2].jpg\n\nimg [0].jpg\n")
    new = tmp_path / "new.ocrs"
    code, out, _ = run("convert", store, new, "--codec", "image=lz4block", "--keys", keys)
    assert code == 0 and "2 samples" in out and "copied   thumb: as they were stored" in out
    made = ocrstore.open(new)
    assert made.keys == ("img [0].jpg", "img [2].jpg")
    assert np.array_equal(made["image"][1], ocrstore.open(store)["image"][2])
    code, _, err = run("convert", store, new)
    assert code == 2 and "exists" in err
    code, out, _ = run("convert", store, new, "--force", "--where", "width >= 2", "--json")
    record = json.loads(out)
    assert code == 0 and record["samples"] == 2 and record["copied"] == ["image", "thumb"]
    for options, words in (
        (["--where", "widht = 1"], "did you mean width"),
        (["--codec", "image=gzip"], "is not COLUMN=CODEC"),
        (["--codec", "images=zstd"], "no column 'images'"),
        ([store], "both have sample"),
    ):
        code, _, err = run("convert", store, *options, new, "--force")
        assert code == 2 and words in " ".join(err.split()), err

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("ocrstore.building.convert._write", interrupted)
    code, _, err = run("convert", store, tmp_path / "other.ocrs")
    assert code == 130 and "interrupted. Nothing is kept yet" in err


def test_a_quick_check_decodes_nothing(run, store, tmp_path):
    """Bytes that match their hash but are no picture are found by the whole check only."""
    path = tmp_path / "bad.ocrs"
    column = ocrstore.Column("uint8", (None, None, 3), codec="file")
    with ocrstore.create(path, {"image": column}) as writer:
        writer.append("a", {"image": ocrstore.Encoded(b"no picture", (4, 4, 3))})
    assert run("verify", path, "--quick")[0] == 0
    code, out, _ = run("verify", path)
    assert code == 1 and "sample 'a': column 'image'" in out and "not a picture" in out
    code, _, err = run("verify", store, "--quick", "--source", tmp_path)
    assert code == 2 and "leave out --source" in err


def test_the_package_is_a_command(store):
    """`python -m ocrstore` is the command line, exit codes included."""
    command = [sys.executable, "-m", "ocrstore", "verify"]
    good = subprocess.run([*command, store], capture_output=True, text=True, check=False)
    assert good.returncode == 0, good.stderr
    missing = subprocess.run([*command, "no.ocrs"], capture_output=True, text=True, check=False)
    assert missing.returncode == 2 and "no.ocrs" in missing.stderr
