"""Exports: round trips, hostile keys and texts, the same bytes, interruptions, refusals."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ocrstore
from ocrstore.errors import (
    CorruptStoreError,
    SchemaError,
    StoreBusyError,
    StoreExistsError,
    UnknownColumnError,
    UnknownSampleError,
    WriteError,
)
from ocrstore.exporting.export import _PORTION, FOLDERS, MARK, _ahead
from ocrstore.exporting.folders import beside, file_names
from ocrstore.exporting.sample_reader import _plain
from ocrstore.keys import key_of
from ocrstore.machine import usable_cpus
from tests.building.conftest import draw, encode, with_exif

ROOT = Path(__file__).parents[2]
PICTURES = [name for name in FOLDERS if name != "npz"]
"""Formats that a store can be built from again."""
LANGUAGES = [name for name in PICTURES if name not in ("icdar", "labelme")]
"""Those that have a place for languages."""
QUAD = [10.5, 10, 60.25, 12, 60, 30.1, 9, 28]
POLYGON = [5, 40, 30, 38.7, 60, 40, 61, 55, 33, 54, 4, 56]


def source_of(out, to):
    """Return what `ocrstore build` is given for an export."""
    if to == "webdataset":
        return str(out / "*.tar")
    return out if to == "hf" else out / "pictures.tsv"


COORDINATES = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(
    -(2**31), 2**31
).map(np.float32)


@given(st.lists(st.lists(st.tuples(COORDINATES, COORDINATES), min_size=1, max_size=4), max_size=3))
def test_points_are_written_as_the_same_numbers(polygons):
    """Whole ones as integers, others with the fewest digits that give the float32 again."""
    given_arrays = [np.array(polygon, np.float32) for polygon in polygons]
    found = _plain(given_arrays)
    assert [len(points) for points in found] == [len(polygon) for polygon in polygons]
    for array, points in zip(given_arrays, found, strict=True):
        assert np.array(points, np.float32).tobytes() == array.tobytes()
        for value, number in zip(array.reshape(-1), sum(points, ()), strict=True):
            whole = value == np.floor(value) and not (value == 0 and np.signbit(value))
            assert type(number) is (int if whole else float)
            assert whole or str(number) == str(float(str(value)))


def content(path, *, languages=True):
    """Everything that has to survive: keys, pixels, polygons, texts, flags, languages."""
    found = []
    with ocrstore.open(path) as store:
        for row, key in enumerate(store.keys):
            own = store.attributes(row)
            parts = (own["annotated"], own["polygons"], own["texts"], own["ignored"])
            found.append((key, store["image"][row].tobytes(), *parts))
            if languages:
                found[-1] += (own["languages"],)
    return found


def listing(folder):
    """Names and hashes of all files below a folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def samples():
    """Pictures of several formats, with EXIF turns, odd names, without text, without annotation."""
    give = ocrstore.SourceSample
    jpeg = encode(draw(seed=1))
    texts, flags = ["Straße, 12", "###"], [False, True]
    both = {"polygons": [QUAD, POLYGON], "texts": texts, "ignored": flags}
    yield give("a.jpg", jpeg, **both, languages=["de", None])
    yield give("a.png", draw(seed=2), [QUAD], ['"in quotes", 100,000'])
    yield give("sub/ümlaut/日本 語.jpg", encode(draw(seed=3)), [QUAD], ["日本語"], [False], ["ja"])
    yield give("turned.jpg", with_exif(encode(draw(seed=4)), 6), [QUAD], ["up"])
    yield give("empty.webp", encode(draw(seed=5), ".webp"), [])
    yield give("nobody.jpg", encode(draw(seed=6)))
    yield give("gt_a.bmp", encode(draw(seed=7), ".bmp"), [QUAD], ["10,20,30,40"])
    yield give("A.jpg", encode(draw(seed=8)), [POLYGON], ["5,6"])
    yield give("a.jpg/b", encode(draw(seed=9)), [QUAD], ["x" * 300])
    yield give("../../etc/\n\tpass\\wd\u202e.jpg", encode(draw(seed=10)), [QUAD], ["text"])


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """The samples with pictures as pixels, and as their own files."""
    folder = tmp_path_factory.mktemp("stores")
    for codec in ("raw", "file"):
        path = folder / f"{codec}.ocrs"
        ocrstore.build(samples(), path, size=64, workers=0, codecs={"image": codec})
    return folder


@pytest.mark.parametrize("name", ["raw", "file"])
@pytest.mark.parametrize("to", PICTURES)
def test_round_trip(stores, tmp_path, to, name):
    """A store that is built from an export has the same samples, whatever they are called."""
    store, again = stores / f"{name}.ocrs", tmp_path / "again.ocrs"
    result = ocrstore.export(store, to=to, out=tmp_path / "out")
    # not all regions have four points, and texts are numbers
    dialect = "icdar-poly" if to == "icdar" else None
    report = ocrstore.build(
        source_of(tmp_path / "out", to), again, size=64, workers=0, format=dialect
    )
    assert report.ok and "mislabelled" not in {problem.kind for problem in report.problems}
    languages = to in LANGUAGES
    assert content(again, languages=languages) == content(store, languages=languages)
    assert result.samples == len(ocrstore.open(store)) and result.resumed == 0


# ---- any keys and texts ----

texts = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
spiteful = st.sampled_from(['"', '""', '"a,"b"', "1,2,3", "nan,inf", "*", "#", "\u2028", "\x85x"])
numbers = st.floats(-1000, 5000, width=32)
regions = st.lists(
    st.tuples(
        st.lists(st.tuples(numbers, numbers), min_size=3, max_size=6),
        st.one_of(texts, texts, spiteful),
        st.booleans(),
        st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), min_size=1)),
    ),
    max_size=4,
)
odd_keys = st.sampled_from(
    [
        *("a.jpg", "A.JPG", "a.png", "a.jpg/b.jpg", "gt_a.jpg", "./a.jpg", "../a.jpg", "/abs.jpg"),
        *("a//b.jpg", " a.jpg", "a.jpg ", "x" * 300 + ".jpg", ".a.jpg", "\u202ea.jpg", "con"),
        *("é.jpg", "e\u0301.jpg", "images/a.jpg", "a\tb\nc.jpg", "\udce9.jpg", "Thumbs.db"),
        *("00000001.png", "nul.png"),
    ]
)
paths = st.one_of(odd_keys, st.text(min_size=1, max_size=20))
stored = st.dictionaries(paths.map(key_of), st.one_of(regions, regions, st.none()), min_size=1)


def write_store(path, wanted):
    """Write a store with tiny pictures and the given annotations."""
    column = ocrstore.Column("uint8", (None, None, 3))
    with ocrstore.create(path, {"image": column}) as writer:
        for key, found in wanted.items():
            given = found or []
            attributes = {
                "annotated": found is not None,
                "polygons": [np.array(points, np.float32).reshape(-1) for points, *_ in given],
                "texts": [text for _, text, _, _ in given],
                "ignored": [flag for _, _, flag, _ in given],
                "languages": [language for *_, language in given],
            }
            writer.append(key, {"image": np.zeros((2, 3, 3), np.uint8)}, attributes=attributes)


def expected(region, to):
    """What a format keeps of a region."""
    points, text, ignored, language = region
    if to == "icdar":
        line = None if text is None else " ".join(text.replace("\0", " ").splitlines()).strip()
        text, language = "###" if ignored else line, None
    if to == "labelme":
        text, language = text or "", None
    return np.array(points, np.float32).tolist(), text, ignored or text == "###", language


@pytest.mark.parametrize("to", PICTURES)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=stored)
def test_any_keys_and_texts(to, wanted):
    """Hostile keys become safe names, and come back with every text, number and flag."""
    wanted = {key: found for key, found in wanted.items() if len(key.encode()) <= 4096}
    if not any(wanted.values()):
        wanted["one.jpg"] = [([(1, 2), (3, 4), (5, 6.5)], "t", False, None)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_store(folder / "a.ocrs", wanted)
        ocrstore.export(folder / "a.ocrs", to=to, out=folder / "down" / "out")
        assert {path.name for path in folder.iterdir()} == {"a.ocrs", "down"}
        quads = all(len(points) == 4 for found in wanted.values() for points, *_ in found or ())
        dialect = "icdar-poly" if to == "icdar" and not quads else to
        place = source_of(folder / "down" / "out", to)
        source = ocrstore.sources.open_source(place, format=None if to == "hf" else dialect)
        found = {
            sample.key: [
                (p.points.tolist(), p.text, p.ignored, p.language) for p in sample.polygons
            ]
            if sample.annotated
            else None
            for sample in source
        }
    kept = {
        key: None if value is None else [expected(region, to) for region in value]
        for key, value in wanted.items()
    }
    assert found == kept


def test_names_are_safe_and_distinct():
    """Paths stay inside, are unique on every file system, and keep the key where they can."""
    keys = ["a.jpg", "A.jpg", "b/c.jpg", "b", "../x.jpg", "é.jpg", "e\u0301.jpg", "d.tif", "d.png"]
    names = file_names(keys, [".jpg"] * 7 + [".png"] * 2, range(9))
    assert names[0] == "a.jpg" and names[2] == "b/c.jpg" and names[5] == "é.jpg"
    assert names[7:] == ["d.png", "00000008.png"]
    assert len({name.casefold() for name in names}) == 9
    assert not any(".." in name or name.startswith("/") for name in names)
    assert beside(["a.jpg", "b/c.png"], ".txt", prefix="gt_") == ["gt_a.txt", "b/gt_c.txt"]
    assert beside(["a.jpg", "a.png"], ".txt", prefix="gt_") == ["a.jpg.txt", "a.png.txt"]
    assert beside(["gt_a.jpg", "a.png"], ".txt", prefix="gt_") == ["gt_a.jpg.txt", "a.png.txt"]


# ---- the same bytes, interruptions ----


@pytest.mark.parametrize(
    "to",
    [
        pytest.param(to, marks=() if to in ("webdataset", "hf", "icdar") else pytest.mark.slow)
        for to in FOLDERS
    ],
)
def test_killed_and_resumed(stores, tmp_path, to):
    """Nothing is seen of a killed export; the next one goes on, and the bytes are the same."""
    store = stores / "raw.ocrs"
    options = {"shard_size": 30_000} if to in ("webdataset", "hf") else {}
    script = (
        "import os, sys, ocrstore\n"
        "def progress(done, total):\n"
        "    if done == 6: os.kill(os.getpid(), 9)\n"
        f"ocrstore.export({str(store)!r}, to={to!r}, out={str(tmp_path / 'cut')!r}, "
        f"progress=progress, **{options!r})\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True)
    assert done.returncode == -9, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {".cut.partial", ".cut.lock"}
    result = ocrstore.export(store, to=to, out=tmp_path / "cut", **options)
    assert 0 < result.resumed < result.samples == 10
    os.utime(store)
    whole = ocrstore.export(store, to=to, out=tmp_path / "whole", **options)
    assert whole.resumed == 0
    assert listing(tmp_path / "cut") == listing(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "whole"]


def test_one_export_at_a_time(stores, tmp_path):
    """A second one to the same folder is refused at once, and disturbs nothing."""
    refused = []

    def begin_another(_done, _total):
        if not refused:
            with pytest.raises(StoreBusyError, match="another process is writing") as error:
                ocrstore.export(stores / "raw.ocrs", to="words", out=tmp_path / "a")
            refused.append(error)

    ocrstore.export(stores / "raw.ocrs", to="coco", out=tmp_path / "a", progress=begin_another)
    assert refused and len(list((tmp_path / "a" / "images").rglob("*.*"))) >= 10
    assert json.loads((tmp_path / "a" / MARK).read_text())["format"] == "coco"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_another_export_does_not_resume(stores, tmp_path):
    """What an interrupted export to the same folder left is used for the same work only."""

    def stop(done, _):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ocrstore.export(stores / "raw.ocrs", to="coco", out=tmp_path / "a", progress=stop)
    assert ocrstore.export(stores / "raw.ocrs", to="words", out=tmp_path / "a").resumed == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_existing_folders_are_safe(stores, tmp_path):
    """An earlier export is replaced if asked, a foreign folder or file never."""
    store, out = stores / "raw.ocrs", tmp_path / "out"
    out.mkdir()
    ocrstore.export(store, to="npz", out=out)
    with pytest.raises(StoreExistsError, match="--overwrite"):
        ocrstore.export(store, to="npz", out=out)
    ocrstore.export(store, to="words", out=out, overwrite=True)
    assert (out / "annotations.json").exists() and not list(out.glob("*.npz"))
    (out / MARK).unlink()
    with pytest.raises(StoreExistsError, match="did not export"):
        ocrstore.export(store, to="words", out=out, overwrite=True)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreExistsError, match="a file"):
        ocrstore.export(store, to="words", out=tmp_path / "file", overwrite=True)
    with pytest.raises(StoreExistsError, match="folder"):
        ocrstore.export(store, to="csv", out=out, overwrite=True)
    for state in ("partial", "old"):
        foreign = tmp_path / f".new.{state}"
        foreign.mkdir()
        (foreign / "mine").touch()
        with pytest.raises(WriteError, match=r"\.new\.\w+: is in the way; remove it[^.]*\.$"):
            ocrstore.export(store, to="words", out=tmp_path / "new")
        assert (foreign / "mine").exists() and (tmp_path / "file").exists()
        shutil.rmtree(foreign)
    (tmp_path / ".new.partial").write_text("mine")
    with pytest.raises(WriteError, match="in the way"):
        ocrstore.export(store, to="words", out=tmp_path / "new")


def test_stores_are_not_overwritten(stores, tmp_path):
    """Neither the one that is read, nor another, nor one that lies in the folder; no links."""
    store = Path(shutil.copy(stores / "raw.ocrs", tmp_path / "a"))
    with pytest.raises(StoreExistsError, match="is a store"):
        ocrstore.export(store, to="csv", out=store, overwrite=True)
    (tmp_path / "dataset.json").write_text("{}")
    with pytest.raises(StoreExistsError, match="catalog"):
        ocrstore.export(store, to="csv", out=tmp_path / "dataset.json", overwrite=True)
    out = tmp_path / "out"
    ocrstore.export(store, to="npz", out=out)
    for name in ("own", "another.ocrs"):
        inside = Path(shutil.copy(store, out / name))
        with pytest.raises(StoreExistsError, match=f"has the store {name} in it"):
            given = inside if name == "own" else store
            ocrstore.export(given, to="npz", out=out, overwrite=True)
        inside.unlink()
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(StoreExistsError, match="is a link"):
        ocrstore.export(store, to="npz", out=tmp_path / "link", overwrite=True)
    assert ocrstore.verify(store).ok


@pytest.mark.parametrize(
    ("to", "column"), [("coco", "image"), ("hf", "image"), ("npz", "prob_map")]
)
def test_damage_does_not_leave(stores, tmp_path, to, column):
    """A row that does not match its hash ends the export, which publishes nothing."""
    store = Path(shutil.copy(stores / "file.ocrs", tmp_path / "a.ocrs"))
    with ocrstore.open(store) as opened:
        place = int(opened[column].offsets[3]) + int(opened[column].nbytes[3]) // 2
    with store.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(CorruptStoreError, match=rf"row 3, column '{column}'.*ocrstore verify"):
        ocrstore.export(store, to=to, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("nbytes", "ahead"), [(10, (2 * usable_cpus() + 1) * _PORTION), (10**9, 0)]
)
def test_memory_bounds_what_is_encoded_ahead(nbytes, ahead):
    """Small samples are encoded ahead of the writer, large ones one by one; all in order."""
    begun = []
    count = 50 if nbytes > 10 else 4 * ahead

    def encode(item):
        begun.append(item)
        return item

    with ThreadPoolExecutor(2) as pool:
        for taken, item in enumerate(_ahead(pool, encode, range(count), [nbytes] * count)):
            assert item == taken and len(begun) <= taken + 1 + ahead
    assert sorted(begun) == list(range(count))


# ---- what goes out ----


def test_stored_files_leave_as_they_are(stores, tmp_path):
    """Bytes of upright files stay; a turned one, and a BMP, leave as PNG of the same pixels."""
    ocrstore.export(stores / "file.ocrs", to="coco", out=tmp_path / "coco")
    given = {sample.key: sample.picture for sample in samples()}
    images = tmp_path / "coco" / "images"
    assert (images / "A.jpg").read_bytes() == given["A.jpg"]
    assert (images / "empty.webp").read_bytes() == given["empty.webp"]
    assert not (images / "turned.jpg").exists() and (images / "gt_a.png").is_file()
    with ocrstore.open(stores / "file.ocrs") as store:
        pixels = cv2.imread(str(images / "turned.png"), cv2.IMREAD_UNCHANGED)[..., ::-1]
        assert np.array_equal(pixels, store["image"][store.row("turned.jpg")])


def test_webdataset_layout(stores, tmp_path):
    """USTAR without times; pictures, json with the own key, arrays; shards of a size."""
    store = stores / "raw.ocrs"
    ocrstore.export(store, to="webdataset", out=tmp_path / "a", shard_size=200_000)
    shards = sorted((tmp_path / "a").glob("*.tar"))
    assert [shard.name for shard in shards][:2] == ["raw-000000.tar", "raw-000001.tar"]
    assert all(shard.stat().st_size < 250_000 for shard in shards)
    members = {}
    for shard in shards:
        assert shard.read_bytes()[257:263] == b"ustar\0"
        with tarfile.open(shard) as tar:
            for info in tar:
                assert (info.mtime, info.uid, info.uname, info.pax_headers) == (0, 0, "", {})
                members[info.name] = tar.extractfile(info).read()
    with ocrstore.open(store) as opened:
        row = opened.row("a.jpg")
        record = json.loads(members[f"{row:08d}.json"])
        assert record["key"] == "a.jpg" and record["texts"] == ["Straße, 12", "###"]
        assert record["ignored"] == [False, True] and record["languages"] == ["de", None]
        maps = np.load(io.BytesIO(members[f"{row:08d}.prob_map.npy"]))
        assert maps.dtype == np.float16 and np.array_equal(maps, opened["prob_map"][row])
        assert f"{row:08d}.tensor.npy" in members and f"{row:08d}.png" in members
    ocrstore.export(store, to="webdataset", out=tmp_path / "b", columns=["image"])
    with tarfile.open(tmp_path / "b" / "raw-000000.tar") as tar:
        assert {name.partition(".")[2] for name in tar.getnames()} == {"json", "png"}
    with pytest.raises(UnknownColumnError, match="'nothing'"):
        ocrstore.export(store, to="webdataset", out=tmp_path / "c", columns=["nothing"])


def test_maps_as_npz(stores, tmp_path):
    """(1, H, W) float32; `build --maps` reads them."""
    store = stores / "raw.ocrs"
    result = ocrstore.export(store, to="npz", out=tmp_path / "maps")
    with ocrstore.open(store) as opened, np.load(tmp_path / "maps" / "turned.jpg.npz") as arrays:
        assert sorted(arrays) == ["prob_map", "thresh_map"]
        for name, array in arrays.items():
            assert array.dtype == np.float32 and array.shape == (1, 64, 64)
            assert np.array_equal(array[0], opened[name][opened.row("turned.jpg")])
    lines = (tmp_path / "maps" / "keys.tsv").read_text("utf-8").splitlines()
    numbered = {json.loads(key): name for name, key in (line.split("\t") for line in lines)}
    assert "../../etc/\n\tpass\\\\wd\u202e.jpg" in numbered
    assert set(numbered.values()) == {p.name for p in (tmp_path / "maps").glob("0000*.npz")}
    assert f"{len(lines)} files are named by numbers" in result.notes[0]
    given = [s for s in samples() if s.key.isalpha() or s.key == "turned.jpg"]
    report = ocrstore.build(
        given, tmp_path / "again.ocrs", size=64, workers=0, maps=tmp_path / "maps"
    )
    assert "bad-maps" not in {problem.kind for problem in report.problems}


def test_a_view_as_pictures(stores, tmp_path):
    """`view` gives its pictures, with the polygons moved by its matrix."""
    with ocrstore.open(stores / "raw.ocrs") as store:
        (view,) = store.metadata["views"]
        ocrstore.export(store, to="words", out=tmp_path / "out", view=view)
        row = store.row("turned.jpg")
        document = json.loads((tmp_path / "out" / "annotations.json").read_text("utf-8"))
        points = document["images"]["images/turned.png"]["words"]["0000"]["points"]
        back = np.c_[points, np.ones(4)] @ store["inverse_matrix"][row].T
        whole = store.attributes(row)["polygons"][0]
        assert np.allclose(back[:, :2].reshape(-1), whole, atol=1e-3)
        pixels = cv2.imread(str(tmp_path / "out" / "images" / "turned.png"))[..., ::-1]
        assert np.array_equal(pixels, store["tensor"][row])


def test_some_samples(stores, tmp_path):
    """By keys and by a condition; both together; unknown keys and options are refused."""
    store = stores / "raw.ocrs"

    def export(number, **options):
        out = tmp_path / f"{number}.parquet"
        ocrstore.export(store, to="parquet", out=out, columns=["key", "texts"], **options)
        return pq.read_table(out)["key"].to_pylist()

    pytest.importorskip("duckdb", reason="conditions need duckdb")
    assert export(1, keys=["turned.jpg", "a.jpg"]) == ["a.jpg", "turned.jpg"]
    assert export(2, where="list_contains(texts, 'up')") == ["turned.jpg"]
    assert export(3, keys=["a.jpg"], where="polygons_count = 2") == ["a.jpg"]
    assert export(4, where="polygons_count > 99") == []
    with pytest.raises(UnknownSampleError, match="'nobody'"):
        export(5, keys=["nobody", "a.jpg"])
    with pytest.raises(ocrstore.OCRStoreError, match="not a SQL condition"):
        export(6, where="words")
    with pytest.raises(SchemaError, match="no use for columns"):
        ocrstore.export(store, to="coco", out=tmp_path / "x", columns=["image"])
    with pytest.raises(SchemaError, match="unknown format"):
        ocrstore.export(store, to="xls", out=tmp_path / "x")
    with pytest.raises(SchemaError, match="at least 1 byte"):
        ocrstore.export(store, to="hf", out=tmp_path / "x", shard_size=0)
    for option in ("keys", "columns"):
        with pytest.raises(SchemaError, match="not one str"):
            ocrstore.export(store, to="webdataset", out=tmp_path / "x", **{option: "a.jpg"})
    assert not (tmp_path / "x").exists()


def test_two_parquet_exports_differ_in_their_configs(stores, tmp_path):
    """`datasets` loads what it has loaded before if folder name and configs are equal."""
    cards = []
    for number, keys in enumerate((None, ["a.jpg"], ["turned.jpg"])):
        out = tmp_path / str(number) / "hf"
        ocrstore.export(stores / "raw.ocrs", to="hf", out=out, keys=keys)
        cards.append((out / "README.md").read_text().split("---")[1])
    assert len(set(cards)) == 3 and all("data/train-*" in card for card in cards)


@pytest.mark.parametrize("to", FOLDERS)
def test_no_samples(stores, tmp_path, to):
    """An export of nothing is a folder all the same."""
    result = ocrstore.export(stores / "raw.ocrs", to=to, out=tmp_path / "out", keys=[])
    assert result.samples == 0 and (tmp_path / "out" / MARK).is_file()
    assert "none of the 10 samples of the store was chosen" in result.notes
    assert not list((tmp_path / "out").rglob("*.png"))


def test_icdar_says_what_it_cannot_hold(stores, tmp_path):
    """The notes count changed texts, and what is left out."""
    wanted = {"a.jpg": [([(0, 0), (1, 0), (1, 1), (0, 1)], " two\nlines ", False, "en")]}
    wanted["b.jpg"] = [([(0, 0), (1, 0), (1, 1), (0, 1)], "hidden", True, None)]
    write_store(tmp_path / "a.ocrs", wanted)
    result = ocrstore.export(tmp_path / "a.ocrs", to="icdar", out=tmp_path / "out")
    assert [note.split(" ")[0] for note in result.notes] == ["1", "1", "1"]
    gt = tmp_path / "out" / "gt"
    assert (gt / "gt_a.txt").read_text() == "0,0,1,0,1,1,0,1,two lines\n"
    assert (gt / "gt_b.txt").read_text() == "0,0,1,0,1,1,0,1,###\n"
