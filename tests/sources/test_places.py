"""Sources other than folders: archives, lists, tables, Python. Each gives what a folder gives."""

import dataclasses
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ocrstore
from ocrstore.errors import SchemaError, SourceError
from ocrstore.sources import open_source
from ocrstore.sources.archives import expand

NAMES = ["a.jpg", "sub/b.png", "sub/ümlaut.jpg"]
LINE = "10,10,60,10,60,30,10,30,Total\n12,40,50,40,50,55,12,55,###\n"
QUAD = [10.0, 10.0, 60.0, 10.0, 60.0, 30.0, 10.0, 30.0]


def picture(number):
    """Draw a picture of its own colour; return it as a file of that kind."""
    pixels = np.full((80, 100, 3), 40 * number + 30, np.uint8)
    cv2.putText(pixels, str(number), (20, 50), cv2.FONT_HERSHEY_SIMPLEX, 1, (255, 255, 255), 2)
    suffix = NAMES[number][-4:]
    return cv2.imencode(suffix, pixels)[1].tobytes()


@pytest.fixture
def folder(tmp_path):
    """A folder of three pictures with ICDAR annotations beside them."""
    for number, name in enumerate(NAMES):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
        path.with_suffix(".txt").write_text(LINE)
    return tmp_path / "images"


def content(store):
    """Keys, pixels, polygons, texts and flags."""
    with ocrstore.open(store) as opened:
        names = ("polygons", "texts", "ignored")
        return [
            (key, opened["tensor"][row].tobytes(), *(opened.attributes(row)[n] for n in names))
            for row, key in enumerate(opened.keys)
        ]


def make(place, folder):
    """Write the folder's files in another way; return the source."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    named = [(path.relative_to(folder).as_posix(), path) for path in files]
    if place == "tar":
        with tarfile.open(folder.parent / "all.tar", "w") as tar:
            for name, path in named:
                tar.add(path, name)
        return folder.parent / "all.tar"
    if place == "two tars":
        for number in range(2):
            with tarfile.open(folder.parent / f"part-{number:03d}.tar", "w") as tar:
                for name, path in named[number * 2 : (number * 2 + 2) if number == 0 else None]:
                    tar.add(path, name)
        return str(folder.parent / "part-{000..001}.tar")
    if place in ("zip", "stored zip"):
        method = zipfile.ZIP_DEFLATED if place == "zip" else zipfile.ZIP_STORED
        with zipfile.ZipFile(folder.parent / "all.zip", "w", method) as file:
            for name, path in named:
                file.write(path, name)
        return folder.parent / "all.zip"
    if place == "list":
        lines = [
            f"images/{name}\timages/{name.rpartition('.')[0]}.txt"
            for name, _ in named
            if not name.endswith(".txt")
        ]
        (folder.parent / "all.lst").write_text("# three\n" + "\n".join(lines) + "\n")
        return folder.parent / "all.lst"
    rows = [
        {
            "key": name,
            "image": {"bytes": (folder / name).read_bytes(), "path": name},
            "objects": {
                "segmentation": [[QUAD], [[12.0, 40, 50, 40, 50, 55, 12, 55]]],
                "text": ["Total", "###"],
                "ignore": [False, True],
            },
        }
        for name in NAMES
    ]
    (folder.parent / "hf" / "data").mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, folder.parent / "hf" / "data" / "t-00000.parquet", row_group_size=2)
    return folder.parent / "hf"


PLACES = ["tar", "two tars", "zip", "stored zip", "list", "parquet"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_store_as_from_a_folder(folder, tmp_path, place, workers):
    """Pixels, polygons, texts and flags; again it does nothing, and it verifies."""
    ocrstore.build(folder, tmp_path / "folder.ocrs", size=64, workers=0)
    source, out = make(place, folder), tmp_path / "other.ocrs"
    report = ocrstore.build(source, out, size=64, workers=workers)
    assert report.ok
    expected = content(tmp_path / "folder.ocrs")
    found = content(out)
    if place == "list":
        found = [(key.removeprefix("images/"), *rest) for key, *rest in found]
    assert found == expected
    assert ocrstore.build(source, out, size=64, workers=0).action == "nothing"
    assert ocrstore.verify(out, source=source, workers=0).ok
    assert ocrstore.verify(out).ok


def test_changes_are_found(folder, tmp_path):
    """Of a tar that was written again, only the member that differs is derived again."""
    source = make("tar", folder)
    ocrstore.build(source, tmp_path / "a.ocrs", size=64, workers=0)
    (folder / "a.jpg").write_bytes(picture(2))
    make("tar", folder)
    report = ocrstore.build(source, tmp_path / "a.ocrs", size=64, workers=0)
    assert (report.derived, report.reused) == (1, 2)


def test_include_exclude_and_share(folder, tmp_path):
    """By patterns on keys, and by a hash of the keys: disjoint, together all."""
    assert open_source(folder, include=["sub/*"]).keys == tuple(NAMES[1:])
    assert open_source(folder, exclude=["*.png"]).keys == (NAMES[0], NAMES[2])
    with pytest.raises(SourceError, match=r"none of its 3 pictures.* such as a\.jpg"):
        open_source(folder, include=["images/*"])
    parts = []
    for number, share in enumerate([(0.0, 0.5), (0.5, 1.0)]):
        out = tmp_path / f"{number}.ocrs"
        ocrstore.build(folder, out, size=64, workers=0, share=share)
        parts += ocrstore.open(out).keys
        assert ocrstore.verify(out, source=folder, stored_only=True, workers=0).ok
        assert not ocrstore.verify(out, source=folder, workers=0).ok
    assert sorted(parts) == sorted(NAMES)


# ---- lists ----


def listed(folder, annotation):
    """Write a list whose lines name annotations after a pattern; return it."""
    lines = [f"images/{name}\t{annotation.format(name.rpartition('.')[0])}" for name in NAMES]
    (folder.parent / "all.lst").write_text("\n".join(lines))
    return folder.parent / "all.lst"


def test_annotations_of_a_list_that_are_missing(folder, tmp_path):
    """Each is a loss that names line and path as given; so is a single one of several."""
    out = tmp_path / "a.ocrs"
    report = ocrstore.build(listed(folder, "no/{}.txt"), out, size=64, workers=0)
    lost = [p for p in report.problems if p.kind == "listed-file-missing"]
    assert not report.ok and report.samples == 3
    assert lost[1].message == "all.lst line 2: no file no/sub/b.txt"
    assert [p.key for p in lost] == [f"images/{name}" for name in NAMES]
    assert "not-a-picture" not in {p.kind for p in report.problems}
    (folder / "a.txt").unlink()
    source = open_source(listed(folder, "images/{}.txt"))
    assert [(p.kind, p.message) for p in source.problems] == [
        ("listed-file-missing", "all.lst line 1: no file images/a.txt")
    ]
    assert source.dialect == "icdar"
    # they are of no interest where their pictures are left out
    assert open_source(listed(folder, "images/{}.txt"), exclude=["images/a*"]).problems == ()
    assert source.only({"images/sub/b.png"}).problems == ()


def test_annotations_of_a_list_that_are_not_read(folder):
    """By their ending, by their content, or as another dialect: the path of the list is named."""

    def lost(**options):
        source = open_source(folder.parent / "all.lst", **options)
        assert {p.kind for p in source.problems} <= {"unreadable-annotation"}
        return [p.message for p in source.problems]

    for path in folder.rglob("*.txt"):
        path.with_suffix(".odd").write_text(LINE)
        path.with_suffix(".csv").write_text("nothing\n")
        path.unlink()
    listed(folder, "images/{}.odd")
    assert len(lost()) == 3 and lost(format="folder") == []
    assert lost()[0].startswith("images/a.odd: no dialect reads files that end in .odd")
    assert "--format MODULE:CLASS" in lost()[0]
    listed(folder, "images/{}.csv")
    assert lost()[0] == "images/a.csv: no dialect recognises it; name its dialect with --format"
    source = open_source(folder.parent / "all.lst", format="icdar")
    assert source["images/a.jpg"].problems[0].message.startswith("images/a.csv line 1")
    for path in folder.rglob("*.csv"):
        path.write_text(LINE)
    (folder / "a.xml").write_text("<a/>")
    file = listed(folder, "images/{}.csv")
    file.write_text(file.read_text().replace("a.csv", "a.xml"))
    assert lost() == [
        "images/a.xml: not read as icdar; the annotations of a list are of one dialect"
    ]


@pytest.mark.parametrize("content", [b"\xff\xd8\xff\xe0" + b"x" * 5000, b"ok.jpg\nx\0y\n"])
def test_a_file_that_is_no_list(tmp_path, content):
    """The line is named, and what is expected; a missing list is said to be missing."""
    (tmp_path / "x.lst").write_bytes(content)
    with pytest.raises(SourceError, match=r"x\.lst line [12]: not a path .*expected a text file"):
        open_source(tmp_path / "x.lst")
    with pytest.raises(SourceError, match=r"nosuch\.lst: no such list"):
        open_source(tmp_path / "nosuch.lst")
    with pytest.raises(SourceError, match=r"nosuch\.parquet: no such parquet file"):
        open_source(tmp_path / "nosuch.parquet")


# ---- hostile archives ----


def test_members_that_are_left_out(tmp_path):
    """Links, names that lead out, hidden files; each but the hidden one is reported."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("good.png", "../out.png", "/abs.png", ".hidden.png", "x/../../y.png"):
            info = tarfile.TarInfo(name)
            info.size = len(picture(1))
            tar.addfile(info, io.BytesIO(picture(1)))
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    source = open_source(tmp_path / "a.tar")
    assert source.keys == ("good.png",)
    assert [problem.kind for problem in source.problems] == ["bad-member"] * 4


def test_sizes_that_lie(tmp_path):
    """A tar that is cut off, a zip whose member is another size: an error, nothing allocated."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo("a.png")
        info.size = len(picture(1))
        tar.addfile(info, io.BytesIO(picture(1)))
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(data[: 512 + len(picture(1)) // 2])
    with pytest.raises(SourceError):
        open_source(tmp_path / "a.tar")
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("b.png", picture(1))
    data = bytearray((tmp_path / "b.zip").read_bytes())
    central = data.rindex(b"PK\1\2")
    data[central + 24 : central + 28] = struct.pack("<I", 2**31 - 1)  # the uncompressed size
    (tmp_path / "b.zip").write_bytes(data)
    (sample,) = open_source(tmp_path / "b.zip")
    with pytest.raises(OSError, match="bytes expected"):
        sample.path.read_bytes()


def test_archives_that_cannot_be_used(tmp_path):
    """Compressed as a whole, missing, no archive at all, the same name twice: said in one line."""
    (tmp_path / "a.tar.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(SourceError, match=r"make a plain \.tar"):
        open_source(tmp_path / "a.tar.gz")
    with pytest.raises(SourceError, match="no such archive"):
        open_source(tmp_path / "none-*.tar")
    (tmp_path / "b.zip").write_bytes(b"nothing")
    with pytest.raises(SourceError, match="cannot be read as an archive"):
        open_source(tmp_path / "b.zip")
    for name in ("c-0.zip", "c-1.zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            file.writestr("a.png", picture(1))
    with pytest.raises(SourceError, match="names in archives"):
        open_source(tmp_path / "c-{0..1}.zip")


def test_a_range_of_archives(tmp_path):
    """Numbers keep their zeros; a range that goes down is an error."""
    for number in (8, 9, 10):
        (tmp_path / f"s-{number:03d}.tar").touch()
    assert [path.name for path in expand(tmp_path / "s-{008..010}.tar")] == [
        "s-008.tar",
        "s-009.tar",
        "s-010.tar",
    ]
    with pytest.raises(SourceError, match="range"):
        expand(tmp_path / "s-{010..008}.tar")


def test_an_archive_that_changes_during_the_build(folder):
    """A member is not read from an archive that is another one by now."""
    source = make("tar", folder)
    (sample, *_) = pickle.loads(pickle.dumps(open_source(source)))
    os.utime(source, ns=(1, 1))
    with pytest.raises(OSError, match="was changed"):
        sample.path.read_bytes()


# ---- WebDataset ----


def test_webdataset_keys_and_forms(tmp_path):
    """The sample's own key; polygons, COCO-like boxes and lists of words."""
    forms = {
        "000000": {"key": "sub/a.b.png", "polygons": [QUAD], "texts": ["x"], "ignored": [True]},
        "000001": {"annotations": [{"bbox": [10, 10, 50, 20], "utf8_string": "x"}]},
        "000002": {"words": [{"points": QUAD, "text": "x", "ignore": 1}]},
    }
    with tarfile.open(tmp_path / "s-000000.tar", "w") as tar:
        for key, record in forms.items():
            for name, data in (("png", picture(1)), ("json", json.dumps(record).encode())):
                info = tarfile.TarInfo(f"{key}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    source = open_source(tmp_path / "s-000000.tar")
    assert source.dialect == "webdataset"
    assert source.keys == ("000001.png", "000002.png", "sub/a.b.png")
    for sample in source:
        assert [p.points.ravel().tolist() for p in sample.polygons] == [QUAD]
        assert sample.polygons[0].text == "x" and not sample.problems
    assert [s.polygons[0].ignored for s in source] == [False, True, True]


# ---- parquet ----


def test_columns_with_other_names(tmp_path):
    """`columns_map` names them; without it the error lists the columns."""
    row = {"scan": picture(1), "regions": [{"where": [10.0, 10, 50, 20], "what": "x"}]}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="scan, regions"):
        open_source(tmp_path / "a.parquet")
    names = {"image": "scan", "objects": "regions", "bbox": "where", "text": "what"}
    (sample,) = open_source(tmp_path / "a.parquet", columns_map=names)
    assert sample.polygons[0].points.ravel().tolist() == QUAD
    assert sample.polygons[0].text == "x" and sample.key == "a-0000000"
    with pytest.raises(SourceError, match="'colour' is none of"):
        open_source(tmp_path / "a.parquet", columns_map={"colour": "x"})


def test_an_index_among_pictures_is_no_source(folder):
    """A folder with pictures is read as such, whatever tables lie beside them."""
    pq.write_table(pa.table({"image": [b"x"]}), folder / "index.parquet")
    assert open_source(folder).keys == tuple(NAMES)


# ---- Python ----


def given(kind):
    """Yield samples whose pictures are paths, bytes or arrays."""
    for number, name in enumerate(NAMES):
        data = picture(number)
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
        yield ocrstore.SourceSample(
            name,
            pixels if kind == "array" else data,
            polygons=[np.array(QUAD).reshape(4, 2), [12.0, 40, 50, 40, 50, 55, 12, 55]],
            texts=["Total", "###"],
            ignored=[False, True],
            attributes={"camera": f"c{number}", "iso": 100 * number},
        )


@pytest.mark.parametrize("kind", ["bytes", "array"])
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_from_python(folder, tmp_path, kind, workers):
    """A generator gives the folder's store, with attributes of its own; again, it does nothing."""
    ocrstore.build(folder, tmp_path / "folder.ocrs", size=64, workers=0)
    out = tmp_path / "python.ocrs"
    assert ocrstore.build(given(kind), out, size=64, workers=workers).ok
    found, expected = content(out), content(tmp_path / "folder.ocrs")
    assert [row[:1] + row[2:] for row in found] == [row[:1] + row[2:] for row in expected]
    for one, other in zip(found, expected):
        assert kind == "array" or one[1] == other[1]  # OpenCV may decode a JPEG otherwise
    opened = ocrstore.open(out)
    assert opened.index["camera"].to_pylist() == ["c0", "c1", "c2"]
    assert opened.index["iso"].to_pylist() == [0, 100, 200]
    assert ocrstore.build(given(kind), out, size=64, workers=0).action == "nothing"
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_paths_from_python(folder, tmp_path):
    """Files are read where they are; None as polygons is not annotated."""
    samples = [ocrstore.SourceSample("x", folder / "a.jpg"), ocrstore.SourceSample("y", "none.jpg")]
    report = ocrstore.build(samples, tmp_path / "a.ocrs", size=64, workers=0)
    assert not report.ok and ocrstore.open(tmp_path / "a.ocrs").keys == ("x",)
    assert ocrstore.open(tmp_path / "a.ocrs").attributes(0)["annotated"] is False


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no sample"),
        ([{"key": "a"}], "expected an ocrstore.SourceSample"),
        ([ocrstore.SourceSample("a", b"x"), ocrstore.SourceSample("a", b"x")], "twice"),
        ([ocrstore.SourceSample("a", np.zeros((4, 4), np.uint8))], "shape"),
        ([ocrstore.SourceSample("a", b"x", polygons=[QUAD], texts=[])], "1 polygons, but 0 texts"),
        ([ocrstore.SourceSample("a", picture(1), attributes={"width": 3})], "of ocrstore's own"),
        ([ocrstore.SourceSample("a", b"x", texts=["A"])], "a: no polygons, but 1 texts"),
        (
            [
                ocrstore.SourceSample(k, b"x", attributes={"n": v})
                for k, v in zip("abc", (1, 2, "x"))
            ],
            "'n' of sample c is 'x', of a 1",
        ),
    ],
)
def test_wrong_samples(samples, message, tmp_path):
    """Each is named, and nothing is left behind."""
    with pytest.raises(SourceError, match=message):
        ocrstore.build(samples, tmp_path / "a.ocrs", workers=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"include": ["a*"]},
        {"annotations": "gt", "format": "icdar"},
        {"exclude": ["a*"], "columns_map": {"text": "label"}},
    ],
)
def test_options_that_samples_do_not_take(tmp_path, options):
    """They are named, before a sample is taken; verifying refuses the same."""
    words = ", ".join(options)
    with pytest.raises(SchemaError, match=f"{words}: not with samples from Python"):
        ocrstore.build(iter([1]), tmp_path / "a.ocrs", **options)
    assert list(tmp_path.iterdir()) == []
    ocrstore.build(given("bytes"), tmp_path / "a.ocrs", size=64, workers=0)
    with pytest.raises(SchemaError, match=words):
        ocrstore.verify(tmp_path / "a.ocrs", source=iter([1]), **options)


def test_arrays_as_annotations(tmp_path):
    """Polygons, flags and texts may be arrays, empty ones too: a picture without text."""
    quads = np.array([QUAD, QUAD]).reshape(2, 4, 2)
    flags, words = np.array([True, False]), np.array(["a", "b"])
    samples = [
        ocrstore.SourceSample("a.jpg", picture(0), quads, words, flags),
        ocrstore.SourceSample("b.png", picture(1), quads[:0], texts=[]),
        ocrstore.SourceSample("c.jpg", picture(2), [[[1, 2], [3, 4], [5]]]),
    ]
    report = ocrstore.build(samples, tmp_path / "a.ocrs", size=64, workers=0)
    assert {problem.kind for problem in report.problems} == {"odd-coordinates"}
    with ocrstore.open(tmp_path / "a.ocrs") as store:
        one, other = store.attributes(0), store.attributes(1)
    assert one["polygons"] == [QUAD, QUAD] and one["texts"] == ["a", "b"]
    assert one["ignored"] == [True, False]
    assert other["annotated"] and other["polygons"] == []


def test_what_is_wrong_with_samples_is_named(tmp_path):
    """A path that does not exist, and a flag that is a text; bytes have no name that is wrong."""
    gone = tmp_path / "none.jpg"
    samples = [
        ocrstore.SourceSample("a", picture(0), [QUAD], ignored=["no"]),
        ocrstore.SourceSample("b", gone),
    ]
    report = ocrstore.build(samples, tmp_path / "a.ocrs", size=64, workers=0)
    found = {problem.kind: problem for problem in report.problems}
    assert set(found) == {"bad-flag", "vanished"}
    assert str(gone) in found["vanished"].message and "does not exist" in found["vanished"].message
    assert found["vanished"].key == "b" and "the text 'no'" in found["bad-flag"].message


@pytest.mark.parametrize("kind", ["bytes", "array"])
def test_samples_are_verified(tmp_path, kind):
    """A store is compared with its samples again, iterated once; a change is found."""
    out = tmp_path / "a.ocrs"
    ocrstore.build(given(kind), out, size=64, workers=0)
    assert ocrstore.verify(out, source=given(kind), workers=0).ok
    others = [dataclasses.replace(sample, texts=["Total", "new"]) for sample in given(kind)]
    check = ocrstore.verify(out, source=others, workers=0)
    assert len(check.findings) >= 3 and "texts" in check.findings[0].message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ocrs"]
