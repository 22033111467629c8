"""Converting stores: other codecs, merged, in part; bit by bit, resumed, checked."""

import itertools
import json
import shutil

import numpy as np
import pytest

import ocrstore
from ocrstore.building.build import build
from ocrstore.building.convert import convert
from ocrstore.errors import (
    CorruptStoreError,
    RecipeMismatchError,
    SchemaError,
    StoreExistsError,
    UnknownColumnError,
    UnknownSampleError,
)
from ocrstore.inspection.difference import compare_stores
from ocrstore.recipe import PRESETS, Recipe
from ocrstore.verification import verify
from tests.building.conftest import SIZE, Dataset, draw, encode


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """One data set with a JPEG, a PNG and a further view, built with every preset."""
    dataset = Dataset(tmp_path_factory.mktemp("convert") / "data")
    dataset.fill(3)
    dataset.add("x.png", encode(draw(70, 50), ".png"), quads=None)
    paths = {}
    for preset in PRESETS:
        paths[preset] = dataset.root / f"{preset}.ocrs"
        build(dataset.images, paths[preset], size=SIZE, preset=preset, workers=0)
        ocrstore.add_view(paths[preset], size=96, workers=0)
    return dataset, paths


def same_arrays(one, other, keys=None):
    """Compare all arrays and attributes of two stores, sample by sample, bit by bit."""
    one, other = ocrstore.open(one), ocrstore.open(other)
    assert one.columns.keys() == other.columns.keys()
    for key in keys or other.keys:
        a, b = one.row(key), other.row(key)
        for name in one.columns:
            assert one[name][a].dtype == other[name][b].dtype
            assert one[name][a].tobytes() == other[name][b].tobytes(), (key, name)
        assert one.attributes(key) == other.attributes(key)
    return True


@pytest.mark.parametrize(("old", "new"), list(itertools.product(PRESETS, PRESETS)))
def test_every_preset_becomes_every_other(stores, tmp_path, old, new):
    """Arrays and attributes stay, codecs are the preset's, and a build goes on from there."""
    dataset, paths = stores
    out = tmp_path / "new.ocrs"
    result = convert(paths[old], out, preset=new)
    assert result.samples == 4 and verify(out).ok and same_arrays(paths[old], out)
    store = ocrstore.open(out)
    for name, column in store.columns.items():
        assert column.codec == PRESETS[new].get(name.removeprefix("96/"), "raw")
    assert set(result.copied) == {
        name for name, c in store.columns.items() if c == ocrstore.open(paths[old]).columns[name]
    }
    if "fast" not in (old, new):  # else the new one has no files of the pictures, or had none
        assert not compare_stores(store, ocrstore.open(paths[new])).any
    elif new == "fast":
        assert store.fingerprint == ocrstore.open(paths["fast"]).fingerprint
    recorded = store.metadata["views"]["96"]
    assert recorded["fingerprint"] == Recipe.from_json(recorded["recipe"]).fingerprint
    recorded = ocrstore.open(paths[new]).metadata["build"]
    made = store.metadata["build"]  # its fingerprint covers the added view, too
    assert made == {**recorded, "fingerprint": made["fingerprint"]}
    assert verify(out, source=dataset.images, workers=0).ok
    assert build(dataset.images, out, size=SIZE, workers=0).action == "nothing"
    assert ocrstore.add_view(out, size=48, workers=0).samples == 4
    assert ocrstore.open(out).columns["48/prob_map"].codec == store.columns["prob_map"].codec


def test_rows_whose_codec_stays_are_copied(stores, tmp_path):
    """Their stored bytes are the same: nothing is encoded again."""
    _, paths = stores
    convert(paths["balanced"], tmp_path / "new.ocrs", codecs={"tensor": "zstd", "96/tensor": "lz4"})
    old, new = ocrstore.open(paths["balanced"]), ocrstore.open(tmp_path / "new.ocrs")
    for name in old.columns:
        assert (old[name].hashes == new[name].hashes).all() == ("tensor" not in name), name
    assert new.columns["96/tensor"].codec == "lz4"


def test_stores_are_merged(stores, tmp_path):
    """Stores of one recipe become one, whatever their codecs; attributes and decoders stay."""
    dataset, paths = stores
    first, second = tmp_path / "first.ocrs", tmp_path / "second.ocrs"
    keys = ocrstore.open(paths["fast"]).keys
    convert(paths["fast"], first, keys=keys[:1])
    convert(paths["small"], second, keys=set(keys[1:]))
    result = convert([second, first], tmp_path / "all.ocrs", preset="balanced")
    assert result.samples == 4 and same_arrays(paths["fast"], tmp_path / "all.ocrs")
    merged = ocrstore.open(tmp_path / "all.ocrs")
    assert merged.keys == (*keys[1:], keys[0])
    assert "source" not in merged.metadata["build"] and "upper_bounds" not in merged.metadata
    assert merged.metadata["build"]["decoders"]["jpeg"]
    assert verify(tmp_path / "all.ocrs").ok
    report = build(dataset.images, tmp_path / "all.ocrs", size=SIZE, workers=0)
    assert report.derived == 0 and report.samples == 4
    assert ocrstore.open(tmp_path / "all.ocrs").columns["image"].codec == "file"


def test_what_cannot_be_merged(stores, tmp_path):
    """A key twice, another recipe, other decoders: refused with what differs, nothing is left."""
    dataset, paths = stores
    out = tmp_path / "out.ocrs"
    with pytest.raises(SchemaError, match=r"both have sample 'img_000.jpg'"):
        convert([paths["fast"], paths["small"]], out)
    other = tmp_path / "other.ocrs"
    build(dataset.images, other, size=32, workers=0)
    with pytest.raises(RecipeMismatchError, match=r"columns.tensor.shape: \[64, 64, 3\] -> \[32"):
        convert([paths["fast"], other], out)
    shutil.copy(paths["small"], other)
    with ocrstore.edit(other) as writer:
        recorded = json.loads(json.dumps(writer.metadata["build"]))
        recorded["decoders"]["jpeg"] = "another"
        writer.metadata["build"] = recorded
    with pytest.raises(RecipeMismatchError, match="decoded by another, those of another store by"):
        convert([paths["fast"], other], out)
    with pytest.raises(RecipeMismatchError, match="would get other pixels"):
        convert(other, out, preset="fast")
    with pytest.raises(SchemaError, match="at least one store"):
        convert([], out)
    assert not out.exists() and not list(tmp_path.glob(".*"))


def test_a_part(stores, tmp_path):
    """By keys and by a condition; what does not exist is refused."""
    pytest.importorskip("duckdb")
    _, paths = stores
    out = tmp_path / "out.ocrs"
    assert (
        convert(paths["fast"], out, where="polygons_count > 0 AND key <> 'img_001.jpg'").samples
        == 2
    )
    assert ocrstore.open(out).keys == ("img_000.jpg", "img_002.jpg")
    both = {"keys": ["x.png", "img_001.jpg"], "where": "width = 50"}
    assert convert(paths["fast"], out, overwrite=True, preset="small", **both).samples == 1
    assert same_arrays(paths["fast"], out, ["x.png"])
    with pytest.raises(UnknownSampleError, match=r"no sample 'a', nor 1 others of the given keys"):
        convert(paths["fast"], out, overwrite=True, keys=["b", "a", "x.png"])
    with pytest.raises(ocrstore.OCRStoreError, match="not a SQL condition"):
        convert(paths["fast"], out, overwrite=True, where="hello")
    with pytest.raises(ocrstore.OCRStoreError, match="no field widht"):
        convert(paths["fast"], out, overwrite=True, where="widht = 1")
    assert len(ocrstore.open(out)) == 1
    assert convert(paths["fast"], out, overwrite=True, keys=[]).samples == 0


def test_wrong_use(stores, tmp_path):
    """A target that exists, unknown columns and codecs are refused before anything is written."""
    _, paths = stores
    with pytest.raises(StoreExistsError):
        convert(paths["fast"], paths["small"])
    with pytest.raises(UnknownColumnError, match="no column 'tensors'"):
        convert(paths["fast"], tmp_path / "x.ocrs", codecs={"tensors": "zstd"})
    for codecs in ({"tensor": "gzip"}, {"tensor": "file"}, {"image": "jpeg"}):
        with pytest.raises(SchemaError):
            convert(paths["fast"], tmp_path / "x.ocrs", codecs=codecs)
    with pytest.raises(SchemaError, match="unknown preset"):
        convert(paths["fast"], tmp_path / "x.ocrs", preset="tiny")
    assert list(tmp_path.iterdir()) == []


def test_in_place(stores, tmp_path):
    """A store can be converted over itself; who has it open keeps the old file."""
    _, paths = stores
    path = tmp_path / "own.ocrs"
    shutil.copy(paths["fast"], path)
    before = ocrstore.open(path)
    convert(path, path, preset="small", overwrite=True)
    assert before["tensor"][0].shape == (SIZE, SIZE, 3) and same_arrays(paths["fast"], path)
    assert path.stat().st_size < paths["fast"].stat().st_size


def test_stores_that_were_not_built(tmp_path):
    """Columns of any name are converted by name; a preset is for the columns of views."""
    path, out = tmp_path / "a.ocrs", tmp_path / "b.ocrs"
    columns = {"x": ocrstore.Column("float32", (None,)), "tensor": ocrstore.Column("uint8", (4,))}
    with ocrstore.create(path, columns, metadata={"mine": 1}) as writer:
        writer.append("a", {"x": np.array([1, np.nan], "f4"), "tensor": np.zeros(4, "u1")})
        writer.append("b", {"x": np.zeros(0, "f4"), "tensor": np.ones(4, "u1")})
    convert(path, out, preset="small", codecs={"x": "lz4block"})
    made = ocrstore.open(out)
    assert {n: c.codec for n, c in made.columns.items()} == {"x": "lz4block", "tensor": "raw"}
    assert made.metadata == {"mine": 1} and same_arrays(path, out)
    assert made.history[-1]["action"] == "convert"


def test_damage_is_not_converted(stores, tmp_path):
    """A row that does not match its hash stops it, copied or encoded; nothing is published."""
    _, paths = stores
    for column in ("tensor", "inverse_matrix"):
        path = tmp_path / f"{column}.ocrs"
        shutil.copy(paths["fast"], path)
        with path.open("r+b") as file:
            file.seek(int(ocrstore.open(paths["fast"])[column].offsets[2]) + 5)
            file.write(b"\x99")
        with pytest.raises(CorruptStoreError, match=rf"sample 'img_002.jpg', column '{column}'"):
            convert(path, tmp_path / "out.ocrs", preset="small")
        assert not (tmp_path / "out.ocrs").exists()


class StopError(Exception):
    """Stops a conversion midway."""


def test_an_interrupted_conversion_is_resumed(tmp_path):
    """Finished row groups are kept for the same conversion, and dropped for another one."""
    path, out = tmp_path / "a.ocrs", tmp_path / "b.ocrs"
    rng = np.random.default_rng(0)
    with ocrstore.create(path, {"x": ocrstore.Column("uint8", (64,))}) as writer:
        for row in range(200):
            writer.append(f"{row}", {"x": rng.integers(0, 3, 64, np.uint8)})

    def stop(done, _):
        if done > 130:
            raise StopError

    with pytest.raises(StopError):
        convert(path, out, codecs={"x": "lz4block"}, progress=stop)
    assert not out.exists() and ocrstore.open(path).columns["x"].codec == "raw"
    other = convert(path, tmp_path / "c.ocrs", codecs={"x": "lz4block"})
    result = convert(path, out, codecs={"x": "lz4block"})
    assert (result.resumed, result.samples, result.discarded) == (128, 200, "")
    assert result.fingerprint == other.fingerprint and verify(out).ok and same_arrays(path, out)
    with pytest.raises(StopError):
        convert(path, out, codecs={"x": "zstd"}, progress=stop, overwrite=True)
    result = convert(path, out, overwrite=True)
    assert result.resumed == 0 and "128 samples of an interrupted run" in result.discarded
    assert result.fingerprint == ocrstore.open(path).fingerprint
