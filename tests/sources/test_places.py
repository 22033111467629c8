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
    data[central + 24 : central + 28] = struct.pack("<I", 2**28)  # the uncompressed size
    (tmp_path / "b.zip").write_bytes(data)
    (sample,) = open_source(tmp_path / "b.zip")
    with pytest.raises(OSError, match="bytes expected"):
        sample.path.read_bytes()


def small_tar(path):
    """Write a tar of four small members, one of them with a long name; return its bytes."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name in ("a.png", "b.png", "c" * 120 + ".png", "d.png"):
            info = tarfile.TarInfo(name)
            info.size = 600
            tar.addfile(info, io.BytesIO(bytes(range(1, 201)) * 3))
    return path.read_bytes()


@pytest.mark.parametrize("nbytes", [100, 512])
def test_a_tar_that_is_cut_off(tmp_path, nbytes):
    """At any place: refused, or nothing is missing. Otherwise a build would delete the rest."""
    path = tmp_path / "a.tar"
    data = small_tar(path)
    end = len(data.rstrip(b"\0"))
    end += -end % 512
    for cut in range(0, len(data), nbytes):
        path.write_bytes(data[:cut])
        if cut < end + 512:
            with pytest.raises(SourceError, match=r"a\.tar: cannot be read as .* make it again"):
                open_source(path)
        else:
            assert len(open_source(path)) == 4
    path.write_bytes(data[:end])
    message = f"at byte {end}, after d.png: expected .* zeros, found the end of the file; .* copy"
    with pytest.raises(SourceError, match=message):
        open_source(path)
    path.write_bytes(data + data)  # joined by cat: the second is not read, and not refused
    assert len(open_source(path)) == 4


def test_a_cut_tar_deletes_nothing(folder, tmp_path):
    """An incremental build from a tar that lost its end is refused; the store stays as it is."""
    source, out = make("tar", folder), tmp_path / "a.ocrs"
    ocrstore.build(source, out, size=64, workers=0)
    with tarfile.open(source) as tar:
        last = tar.getmembers()[-2].offset
    os.truncate(source, last)
    with pytest.raises(SourceError, match="the end of the file"):
        ocrstore.build(source, out, size=64, workers=0)
    assert ocrstore.open(out).keys == tuple(NAMES)


def test_a_damaged_header_of_a_tar(tmp_path):
    """One bit of any header: refused with its place, not read as the end of the archive."""
    path = tmp_path / "a.tar"
    data = small_tar(path)
    with tarfile.open(path) as tar:
        headers = [info.offset for info in tar] + [info.offset_data - 512 for info in tar]
    for header in headers:
        for byte in (0, 124, 148, 156, 345):
            damaged = bytearray(data)
            damaged[header + byte] ^= 2
            path.write_bytes(damaged)
            with pytest.raises(SourceError, match=r"a\.tar: .*copy it or make it again"):
                open_source(path)
    damaged = bytearray(data)
    damaged[headers[1]] ^= 2
    path.write_bytes(damaged)
    with pytest.raises(SourceError, match=f"byte {headers[1]}, after a.png: .* a damaged header"):
        open_source(path)


@pytest.mark.parametrize("kind", [*"0LKxgXS", "pax"])
@pytest.mark.parametrize("size", [1 << 33, 1 << 60, 1 << 70, -512, -(1 << 60)])
@pytest.mark.parametrize("first", [True, False])
def test_sizes_in_the_headers_of_a_tar(tmp_path, kind, size, first):
    """An error that names the archive, whatever header has the size; nothing is allocated."""
    info = tarfile.TarInfo("a.png")
    if kind == "pax":
        info.pax_headers = {"size": str(size)}
        header = info.tobuf(tarfile.PAX_FORMAT)
    else:
        info.type = kind.encode()
        header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
        header[124:136] = (size % 256**12).to_bytes(12, "big")
        header[124] = 0xFF if size < 0 else 0x80
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
    before = b"" if first else small_tar(tmp_path / "a.tar")[: 3 * 512]
    (tmp_path / "a.tar").write_bytes(before + header + bytes(10240))
    with pytest.raises(SourceError, match=r"a\.tar: cannot be read as an archive at byte"):
        open_source(tmp_path / "a.tar")


def test_headers_nested_without_end(tmp_path):
    """A header of names before a header of names before ...: no RecursionError."""
    info = tarfile.TarInfo("a.png")
    info.type = tarfile.GNUTYPE_LONGNAME
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) * 3000)
    with pytest.raises(SourceError, match="make it again"):
        open_source(tmp_path / "a.tar")


@pytest.mark.parametrize("suffix", ["tar", "zip"])
def test_a_member_twice(tmp_path, suffix):
    """The last one is used, and it is reported."""
    path = tmp_path / f"a.{suffix}"
    members = [("ok.png", picture(1)), ("ok.png", b"x"), ("./ok.png", b"yy"), ("other.png", b"z")]
    if suffix == "tar":
        with tarfile.open(path, "w") as tar:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    else:
        with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "w") as file:
            for name, data in members:
                file.writestr(name, data)
    source = open_source(path)
    assert [problem.kind for problem in source.problems] == ["listed-twice"] * 2
    assert source.problems[0].message == f"ok.png: twice in a.{suffix}; the last is used"
    assert source["ok.png"].path.read_bytes() == b"yy"


def test_members_of_a_zip_that_are_left_out(tmp_path):
    """Links, and what unpacks to far too much; the rest is built."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.png", picture(1))
        link = zipfile.ZipInfo("link.png")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        file.writestr(link, "a.png")
        file.writestr("z.png", picture(1))
    data = bytearray(path.read_bytes())
    central = data.rindex(b"PK\1\2")
    data[central + 24 : central + 28] = struct.pack("<I", 2_600_000_000)  # the uncompressed size
    path.write_bytes(data)
    source = open_source(path)
    assert [(problem.kind, problem.message) for problem in source.problems] == [
        ("bad-member", "link.png in a.zip: a link; left out"),
        (
            "bad-member",
            "z.png in a.zip: unpacks to 2600000000 bytes, expected 600000000 at most; store it "
            "uncompressed; left out",
        ),
    ]
    ocrstore.build(path, tmp_path / "a.ocrs", size=64, workers=0)
    assert ocrstore.open(tmp_path / "a.ocrs").keys == ("a.png",)


@pytest.mark.parametrize("data", [b"", b"garbage", b"garbage" * 1000])
def test_files_that_are_no_tar(tmp_path, data):
    """They are told from a tar without pictures, with what to do."""
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(SourceError, match=r"at byte 0: .*copy it or make it again"):
        open_source(tmp_path / "a.tar")


def test_a_tar_without_pictures_or_compressed(tmp_path):
    """Empty; compressed as a whole under the name of a plain one."""
    (tmp_path / "a.tar").write_bytes(bytes(10240))
    with pytest.raises(SourceError, match=r"no picture in it .* give the archive that holds"):
        open_source(tmp_path / "a.tar")
    for mode in ("w:gz", "w:bz2", "w:xz"):
        tarfile.open(tmp_path / "a.tar", mode).close()
        with pytest.raises(SourceError, match=r"make a plain \.tar"):
            open_source(tmp_path / "a.tar")


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


BOXES = [[10.0, 10, 50, 20], [12.0, 40, 38, 15]]
PLACED = [{"points": QUAD, "transcription": "x", "illegibility": False}]


@pytest.mark.parametrize("count", [1, 3, 41])
@pytest.mark.parametrize("place", ["tar", "folder"])
def test_webdataset_of_words(tmp_path, make, count, place):
    """The words of a picture in its own json are no list of pictures, as in the dialect art."""
    ignored = {"points": QUAD, "transcription": "y", "illegibility": True}
    masked = {"points": QUAD, "transcription": "z", "tags": ["masked"]}
    record = {"words": [*PLACED, ignored, masked], "lines": PLACED}
    root = make({f"{at:06d}.{end}": record if end == "json" else None
                 for at in range(count) for end in ("png", "json")})  # fmt: skip
    if place == "tar":
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            for path in sorted(root.iterdir()):
                tar.add(path, path.name)
        root = tmp_path / "a.tar"
    source = open_source(root)
    assert source.dialect == "webdataset" and len(source) == count and source.problems == ()
    for sample in source:
        found = [(p.points.ravel().tolist(), p.text, p.ignored) for p in sample.polygons]
        assert found == [(QUAD, "x", False), (QUAD, "y", True), (QUAD, "z", True)]
        assert not sample.problems


def test_webdataset_in_a_folder_of_its_own(make):
    """The same in a folder beside the pictures or one that is named."""
    images = make({"a.png": None, "b.png": None})
    gt = make({"a.json": {"words": PLACED}, "b.json": {"words": PLACED}}, into="gt")
    for annotations in (None, gt):
        source = open_source(images, annotations=annotations)
        assert source.dialect == "webdataset" and all(sample.polygons for sample in source)


def test_a_file_of_all_pictures_among_them(make):
    """An ArT file whose name is that of no picture is not mistaken for one about a picture."""
    images = make({"a.png": None, "train.json": {"a": PLACED}})
    source = open_source(images)
    assert source.dialect == "art" and source["a.png"].polygons[0].text == "x"


def test_a_choice_names_webdataset(make):
    """COCO in a json of each picture is refused, with the option that reads it."""
    box = {"id": 1, "image_id": 1, "bbox": BOXES[0], "utf8_string": "x"}
    record = {"images": [{"id": 1, "file_name": "other.png"}], "annotations": [box]}
    images = make({"a.png": None, "b.png": None, "a.json": record, "b.json": record})
    with pytest.raises(SourceError, match=r"2 answers.*coco.*--format webdataset"):
        open_source(images)
    source = open_source(images, format="webdataset")
    assert [sample.polygons[0].text for sample in source] == ["x", "x"]


@pytest.mark.parametrize("record", [BOXES, {"boxes": BOXES, "texts": ["a", "b"]}])
def test_json_of_an_unknown_layout(make, record):
    """The note says so and names the layouts; not for other names, nor with --format folder."""
    images = make({"a.png": None, "a.json": record, "readme.json": {}})
    source = open_source(images)
    beside, other = source.problems
    assert source.dialect == "folder" and not source["a.png"].annotated
    assert beside.kind == other.kind == "not-a-picture"
    assert "a.json: beside a picture of its name, but of no layout that is known" in beside.message
    assert "funsd, labelme, rects, webdataset" in beside.message
    assert "by its ending" in other.message
    for problem in open_source(images, format="folder").problems:
        assert "by its ending" in problem.message


def test_webdataset_lists_of_different_lengths(make):
    """Texts that are fewer than the polygons are not dropped silently."""
    record = {"polygons": [QUAD, QUAD], "texts": ["x"]}
    (sample,) = open_source(make({"a.png": None, "a.json": record}))
    assert not sample.annotated
    (problem,) = sample.problems
    assert problem.kind == "bad-structure" and "2 polygons, but 1 texts" in problem.message


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


BOTH = [QUAD, [12.0, 40, 50, 40, 50, 55, 12, 55]]


def table(tmp_path, *records, schema=None, **columns):
    """Write a parquet file with a picture in each row; return its path."""
    rows = [{"image": picture(0), **record} for record in records or [columns]]
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


def found(path, names=None):
    """Return polygons, texts and kinds of problems of the only picture."""
    (sample,) = open_source(path, columns_map=names)
    assert sample.annotated
    polygons = [polygon.points.ravel().tolist() for polygon in sample.polygons]
    return polygons, [p.text for p in sample.polygons], [p.kind for p in sample.problems]


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"bboxes": BOXES, "words": ["a", "b"]}, {"bbox": "bboxes"}),
        ({"bbox": BOXES, "texts": ["a", "b"], "width": 4}, {"bbox": "bbox"}),
        ({"polygons": BOTH, "text": ["a", "b"], "objects": "[]"}, None),
        ({"places": BOXES, "what": ["a", "b"]}, {"bbox": "places", "text": "what"}),
        ({"annotations": {"bbox": BOXES, "words": ["a", "b"]}, "bboxes": []}, None),
        ({"words": [{"box": BOXES[0], "text": "a"}, {"box": BOXES[1], "text": "b"}]}, None),
        ({"annotation": "x", "objects": {"bbox": BOXES, "text": ["a", "b"]}}, None),
    ],
)
def test_where_objects_are(tmp_path, columns, names):
    """Lists as columns of their own, or a column of objects; a column that is none is no hurdle."""
    assert found(table(tmp_path, **columns), names) == (BOTH, ["a", "b"], [])


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"words": ["a", "b"]}, "'words' is list<.*string>, expected a struct of lists or a list"),
        ({"objects": json.dumps([{"bbox": BOXES[0]}])}, "'objects' is string, expected"),
        ({"annotations": [{"label": "a"}]}, "'annotations' is list<.*it has only label"),
        ({"objects": {"bbox": BOXES, "text": "a"}}, "'objects' is struct<.*'text' is no list"),
        ({"words": ["a"], "bbox": BOXES[0]}, "'words' is list<.*string>"),
    ],
)
def test_a_column_that_is_no_objects(tmp_path, columns, kind):
    """It is named with its type and what to do; the pictures alone can be had."""
    path = table(tmp_path, **columns)
    with pytest.raises(SourceError, match=f"a.parquet: the column {kind}.*--columns-map") as caught:
        open_source(path)
    assert "--format folder" in str(caught.value)
    (sample,) = open_source(path, format="folder")
    assert not sample.annotated


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"text": "txt"}, "text=txt: no such field of 'objects'; there are bbox, text"),
        ({"ignore": "ign"}, "ignore=ign: no such field of 'objects'; there are bbox, text"),
        ({"objects": "nope"}, "objects=nope: no such column; there are image, objects, n"),
        ({"bbox": "nope"}, "bbox=nope: no such .*; there are image, objects, n, objects.bbox, obj"),
        ({"bbox": "n"}, "bbox=n: the column is int64, expected a list of lists"),
        ({"image": "nope"}, "image=nope: no such column; there are image"),
        ({"key": "nope"}, "key=nope: no such column; there are image"),
        ({"objects": "n"}, "the column 'n' is int64, expected a struct of lists"),
    ],
)
def test_a_name_that_is_not_there(tmp_path, names, message):
    """A wrong name in `columns_map` is an error that lists what there is."""
    path = table(tmp_path, objects={"bbox": BOXES, "text": ["a", "b"]}, n=3)
    with pytest.raises(SourceError, match=message):
        open_source(path, columns_map=names)


def test_boxes_in_columns_of_their_own_are_confirmed(tmp_path):
    """They may be corners as well: nothing is guessed."""
    path = table(tmp_path, bboxes=BOXES, words=["a", "b"])
    with pytest.raises(SourceError, match=r"'bboxes' has boxes.*--columns-map bbox=bboxes; else"):
        open_source(path)


def test_texts_without_places(tmp_path):
    """A name for texts alone is an error, too: nothing would be read."""
    with pytest.raises(SourceError, match=r"text=what: no column has the places.*bbox=NAME"):
        open_source(table(tmp_path, what=["a"]), columns_map={"text": "what"})


def test_columns_map_is_for_parquet(folder):
    """With another source it is an error."""
    with pytest.raises(SourceError, match=r"text=x names columns of parquet files, but it is neit"):
        open_source(folder, columns_map={"text": "x"})
    source = make("parquet", folder)
    with pytest.raises(SourceError, match="with --annotations no parquet file is read"):
        open_source(source, annotations=folder, columns_map={"text": "text"})


def test_columns_that_are_not_known(tmp_path):
    """Without any annotation the description lists the other columns; with one it does not."""
    path = table(tmp_path, key="a.jpg", regions=[{"bbox": BOXES[0]}], n=3)
    source = open_source(path)
    assert "0 annotated; columns that are not known: regions, n (" in source.description
    assert "--columns-map objects=NAME" in source.description
    names = {"objects": "regions"}
    assert open_source(path, columns_map=names).description.endswith("1 annotated")


def test_no_annotation_and_no_text(tmp_path):
    """A null is not annotated, an empty list is a picture without text."""
    boxes = pa.list_(pa.list_(pa.float64()))
    lists = {"image": pa.binary(), "bboxes": boxes, "words": pa.list_(pa.string())}
    nested = pa.struct({"bbox": boxes, "text": pa.list_(pa.string())})
    rows = [
        ({"bboxes": None, "words": None}, {"objects": None}),
        ({"bboxes": None, "words": []}, {"objects": None}),
        ({"bboxes": [], "words": []}, {"objects": {"bbox": [], "text": []}}),
    ]
    for at, schema in enumerate((lists, {"image": pa.binary(), "objects": nested})):
        path = table(tmp_path, *(row[at] for row in rows), schema=pa.schema(schema))
        names = {} if at else {"bbox": "bboxes"}
        source = open_source(path, columns_map=names)
        assert [sample.annotated for sample in source] == [False, False, True]
    path = table(tmp_path, {"objects": None})  # of Arrow's type null
    assert open_source(path).description.endswith(" 0 annotated")


@pytest.mark.parametrize("box", [[1.0, 2.0, -30.0, 40.0], [1.0, 2.0, 3.0], []])
@pytest.mark.parametrize("form", ["column", "struct", "list", "webdataset", "annotations"])
def test_bad_boxes(tmp_path, make, form, box):
    """A negative side, or not four numbers: `bad-box`, and the other boxes stay."""
    boxes, texts = [BOXES[0], box], ["a", "b"]
    rows = [{"bbox": one, "text": text} for one, text in zip(boxes, texts)]
    if form in ("webdataset", "annotations"):
        name = "words" if form == "webdataset" else form
        path = make({"a.png": None, "a.json": {name: rows}})
    else:
        record = {
            "column": {"bboxes": boxes, "words": texts},
            "struct": {"objects": {"bbox": boxes, "text": texts}},
            "list": {"objects": rows},
        }[form]
        path = table(tmp_path, **record)
    names = {"bbox": "bboxes"} if form == "column" else None
    (sample,) = open_source(path, columns_map=names)
    assert [p.points.ravel().tolist() for p in sample.polygons] == [QUAD]
    (problem,) = sample.problems
    wrong = "has no negative width or height" if len(box) == 4 else "is four numbers"
    assert problem.kind == "bad-box" and problem.message.startswith("a.")
    assert f"region 1: a box {wrong}, found {box}; left out" in problem.message


@pytest.mark.parametrize(
    "columns",
    [
        {"bboxes": BOXES, "words": ["a"]},
        {"objects": {"bbox": BOXES, "text": ["a"]}},
        {"objects": {"bbox": BOXES, "text": ["a", "b"], "ignore": [True]}},
        {"bboxes": None, "words": ["a", "b"]},
    ],
)
def test_lists_of_different_lengths(tmp_path, columns):
    """Nobody knows which text belongs to which box: the annotation is left out."""
    names = {"bbox": "bboxes"} if "bboxes" in columns else None
    (sample,) = open_source(table(tmp_path, **columns), columns_map=names)
    assert not sample.annotated
    (problem,) = sample.problems
    assert problem.kind == "bad-structure" and "lists of different lengths: bbox" in problem.message
    assert "left out" in problem.message


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


def test_one_split_at_a_time(tmp_path):
    """Files of several splits are no source together; a pattern chooses one."""
    (tmp_path / "data").mkdir()
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        rows = [{"image": picture(0), "key": f"{name}.jpg"}]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data" / f"{name}.parquet")
    with pytest.raises(SourceError, match=r'splits test, train; .*/data/test-\*\.parquet"'):
        open_source(tmp_path)
    assert len(open_source(tmp_path / "data" / "train-*.parquet")) == 2
    with pytest.raises(SourceError, match="valid-"):
        open_source(tmp_path / "data" / "valid-*.parquet")


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
    """A path that does not exist, and a flag that is none; bytes have no name that is wrong."""
    gone = tmp_path / "none.jpg"
    samples = [
        ocrstore.SourceSample("a", picture(0), [QUAD], ignored=["maybe"]),
        ocrstore.SourceSample("b", gone),
    ]
    report = ocrstore.build(samples, tmp_path / "a.ocrs", size=64, workers=0)
    found = {problem.kind: problem for problem in report.problems}
    assert set(found) == {"bad-flag", "vanished"}
    assert str(gone) in found["vanished"].message and "does not exist" in found["vanished"].message
    assert found["vanished"].key == "b" and "is 'maybe'" in found["bad-flag"].message


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


def test_arrays_beside_pictures_are_one_note(make):
    """It names `--maps`, whatever their number; other files are noted one by one."""
    path = make({"a.png": None, "a.prob_map.npy": b"", "a.npz": b"", "b.npz": b"", "n.md": b""})
    messages = [p.message for p in open_source(path).problems if p.kind == "not-a-picture"]
    assert len(messages) == 3
    assert sum(m.startswith("2 array files") and "--maps takes" in m for m in messages) == 1
