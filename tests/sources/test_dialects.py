"""Every dialect's published layout: read as it means, recognised as nothing else, safe to open."""

import io
import itertools
import json
import pickle
import random
import re

import numpy as np
import pytest
from PIL import Image
from scipy.io import loadmat, savemat

from ocrstore.errors import SourceError
from ocrstore.problems import SOURCE_KINDS
from ocrstore.sources import AnnotationFile, all_dialects, open_source
from ocrstore.sources.matlab import _variables
from tests.sources.conftest import png
from tests.sources.published import SAMPLES, SIZE, Published, cells, mat


def result(value):
    """A full task of Label Studio with one result."""
    return {"data": {"image": "a.jpg"}, "annotations": [{"result": [{"id": "x", "value": value}]}]}


IDS = [f"{sample.dialect}-{i}" for i, sample in enumerate(SAMPLES)]
# one layout is chosen for all of these files together, so two of them are no two answers
FAMILY = {d.name for d in all_dialects() if type(d).__name__ == "Icdar"}


def answers(file):
    """Return the dialects that a file is read with, when nobody names one."""
    return [d.choose([file]).name for d in all_dialects() if d.recognise(file)]


def open_sample(make, sample, *, content=None, format=None):
    """Open the picture of a sample with its annotation file."""
    images = make({sample.picture: png(*SIZE)})
    folder = make({sample.file: sample.content if content is None else content}, into="ann")
    return open_source(images, annotations=folder / sample.file, format=format)


def test_every_dialect_has_a_sample():
    """No dialect is without its published layout."""
    assert {s.dialect for s in SAMPLES} == {d.name for d in all_dialects()} - {"folder"}


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_published_layouts_are_read(make, sample):
    """Recognised by looking; points, texts and flags are those of the sample; no problem."""
    source = open_sample(make, sample)
    assert source.dialect == sample.dialect
    read = pickle.loads(pickle.dumps(source))[sample.picture]  # workers get a copy
    assert [(p.text, p.ignored) for p in read.polygons] == [r[1:] for r in sample.regions]
    for polygon, (points, _, _) in zip(read.polygons, sample.regions, strict=True):
        np.testing.assert_allclose(polygon.points, points, rtol=1e-5)
    assert read.problems == ()
    assert {p.kind for p in source.problems} <= {"missing-picture"}  # two samples have a second


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_each_layout_has_one_answer(make, sample):
    """The whole table: of all dialects, whatever the file's ending, its own alone recognises it."""
    folder = make({sample.file: sample.content, "other.bin": sample.content})
    for name in (sample.file, "other.bin"):
        assert answers(AnnotationFile(folder / name, name)) == [sample.dialect]


def test_two_layouts_in_one_folder_are_refused(make):
    """Any two dialects side by side: an error that names both, and the choices."""
    first = {sample.dialect: sample for sample in SAMPLES}
    for one, other in itertools.combinations(first.values(), 2):
        if {one.dialect, other.dialect} <= FAMILY:
            continue
        folder = f"{one.dialect} {other.dialect}"
        images = make({"a.jpg": None}, into=f"{folder} images")
        names = {f"1/{one.file}": one.content, f"2/{other.file}": other.content}
        with pytest.raises(SourceError, match="2 answers") as error:
            open_source(images, annotations=make(names, into=folder))
        assert f"{one.dialect}:" in str(error.value) or one.dialect in FAMILY
        assert f"{other.dialect}:" in str(error.value) or other.dialect in FAMILY
        assert "--format" in str(error.value)


@pytest.mark.parametrize("dialect", ["cvat", "doctr"])
def test_exports_are_found_beside_the_pictures(make, dialect):
    """annotations.xml and labels.json beside the folder of pictures, as the tools write them."""
    sample = next(s for s in SAMPLES if s.dialect == dialect)
    images = make({sample.picture: None})
    make({sample.file: sample.content}, into=".")
    assert open_source(images).dialect == dialect


HOSTILE = [
    None,
    True,
    -1,
    1e999,
    float("nan"),
    10**400,
    2**63,
    "",
    "x",
    "\ud800",
    [],
    [[]],
    {},
    [None],
]
TOKENS = ["", "nan", "inf", "-1", "1e999", "9" * 5000, "x", "\x00", "<", "]", '"', "{"]


def leaves(value, path=()):
    """Yield the path of every value in a JSON document."""
    yield path
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, child in children:
        yield from leaves(child, (*path, key))


def replaced(value, path, new):
    """Return a JSON document with another value at a path."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def damaged(sample, rng):
    """Return a hostile variant of a sample's file."""
    content = sample.content
    kind = rng.choice(("cut", "byte", "token", "value"))
    if kind == "value":
        try:
            document = json.loads(content)
        except ValueError:
            kind = "token"
        else:
            path = rng.choice(list(leaves(document)))
            return json.dumps(replaced(document, path, rng.choice(HOSTILE))).encode()
    if kind == "token":
        found = list(re.finditer(rb"[\w.]+", content))
        at = rng.choice(found)
        new = rng.choice(TOKENS).encode()
        return content[: at.start()] + new + content[at.end() :]
    at = rng.randrange(len(content))
    if kind == "cut":
        return content[:at]
    return content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]


def check_hostile(make, sample, contents):
    """Open and read hostile files by every way in: typed errors and known problems only."""
    images = make({sample.picture: png(*SIZE)})
    path = make({sample.file: ""}, into="ann") / sample.file
    for content in contents:
        path.write_bytes(content)
        file = AnnotationFile(path, sample.file)
        assert {dialect.recognise(file) for dialect in all_dialects()} <= {True, False}
        for format in (sample.dialect, None):
            try:
                source = open_source(images, annotations=path, format=format)
            except SourceError as exc:
                str(exc).encode()
                continue
            for read in source:
                assert all(np.isfinite(p.points).all() for p in read.polygons)
                for problem in (*read.problems, *source.problems):
                    assert problem.kind in SOURCE_KINDS.keys() - {"dialect-failed"}, problem
                    problem.message.encode()


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_hostile_files(make, sample):
    """Cut off, changed bytes, wrong types, huge numbers, NaN: typed errors and problems only."""
    rng = random.Random(sample.dialect)
    check_hostile(make, sample, (damaged(sample, rng) for _ in range(25)))


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_many_hostile_files(make, sample):
    """The same, with many variants."""
    rng = random.Random(f"many {sample.dialect}")
    check_hostile(make, sample, (damaged(sample, rng) for _ in range(500)))


BILLION = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
OUTSIDE = '<!ENTITY l9 SYSTEM "file:///etc/passwd">'
PARAMETER = '<!ENTITY % l9 SYSTEM "http://127.0.0.1:9/x.dtd"> %l9;'


@pytest.mark.parametrize("entities", [f'<!ENTITY l0 "lol">{BILLION}', OUTSIDE, PARAMETER])
@pytest.mark.parametrize("dialect", ["voc", "cvat", "ctw1500-xml"])
def test_xml_with_entities_is_refused(make, dialect, entities):
    """Entities that grow without bound, or that name a file or an address, are not expanded."""
    (sample,) = (s for s in SAMPLES if s.dialect == dialect)
    xml = sample.content.decode().partition("?>")[2] or sample.content.decode()
    content = f"<!DOCTYPE a [{entities}]>" + xml.replace("exit", "&l9;").replace("OLATHE", "&l9;")
    if dialect == "cvat":
        with pytest.raises(SourceError, match="declares the entity"):
            open_sample(make, sample, content=content, format=dialect)
    else:
        read = open_sample(make, sample, content=content, format=dialect)[sample.picture]
        assert [p.kind for p in read.problems] == ["bad-xml"] and not read.annotated


def test_deep_xml(make):
    """A hundred thousand nested elements are read without a crash."""
    (sample,) = (s for s in SAMPLES if s.dialect == "voc")
    deep = "<annotation>" + "<a>" * 100_000 + "</a>" * 100_000 + "</annotation>"
    assert open_sample(make, sample, content=deep, format="voc")[sample.picture].polygons == ()


MATS = {
    "no cells": {"imnames": "a.jpg", "wordBB": 1.0, "txt": "w"},
    "numbers for names": {"imnames": np.zeros((1, 1)), "wordBB": np.zeros((1, 1)), "txt": [[1]]},
    "other lengths": {"imnames": ["a", "b"], "wordBB": np.zeros((1, 1)), "txt": "w"},
    "a structure": {"imnames": {"a": 1}, "wordBB": {"a": 1}, "txt": {"a": 1}},
    "a number": {"polygt": 4.0},
    "few columns": {"polygt": np.zeros((2, 3))},
    "numbers": {"polygt": np.zeros((2, 6))},
    "a text": {"polygt": "polygt"},
    "cells of texts": {"polygt": cells("x", "y", "x", "y", "x", "y")},
    "deep cells": {"polygt": cells(cells(cells(cells(cells(cells(cells("x")))))))},
}


@pytest.mark.parametrize("case", MATS)
def test_matlab_files_of_other_shapes(make, case):
    """Variables of the right name and a wrong shape: typed errors and problems only."""
    dialect, name = (
        ("totaltext-mat", "a.mat") if "polygt" in MATS[case] else ("synthtext", "gt.mat")
    )
    check_hostile(make, Published(dialect, name, "a.jpg", b"", ()), [mat(**MATS[case])])


VALUES = {
    "numbers": np.arange(24.0).reshape(2, 3, 4),
    "small": np.array([[7]], np.uint8),
    "integers": np.arange(5, dtype=np.int16).reshape(1, 5),
    "texts": np.array(["ab", "cd", "ef"]),
    "name": np.array(["é中"]),
    "empty": np.zeros((0, 0)),
}


@pytest.mark.parametrize("compressed", [False, True])
def test_matlab_files_are_read_as_scipy_does(tmp_path, compressed):
    """Numbers, texts and nested cells, compressed or not: what scipy reads from its own file."""
    cell = cells(*VALUES.values(), cells(np.ones((2, 2)), "x"))
    savemat(tmp_path / "a.mat", {**VALUES, "cell": cell}, do_compression=compressed)
    found = dict(_variables(tmp_path / "a.mat", {*VALUES, "cell"}))
    expected = loadmat(tmp_path / "a.mat")

    def same(value, reference):
        if reference.dtype == object:
            assert value.shape == reference.shape
            for one, other in zip(value.flat, reference.flat, strict=True):
                same(one, other)
        elif reference.dtype.kind == "U":
            assert [row.rstrip() for row in value] == [row.rstrip() for row in reference]
        else:
            np.testing.assert_array_equal(value, reference)

    for name in (*VALUES, "cell"):
        same(found[name], expected[name])


OF = {"original_width": 1000, "original_height": 500}
BOX = {"x": 10, "y": 20, "width": 20, "height": 20, **OF}


@pytest.mark.parametrize(
    ("task", "kinds", "count"),
    [
        ({"bbox": [BOX, BOX], "transcription": ["one"]}, ["bad-text"], 2),
        ({"bbox": [BOX], "transcription": "one"}, [], 1),
        ({"bbox": [{**BOX, "image_rotation": 90}]}, ["unsupported-shape"], 0),
        ({"bbox": [{**OF, "x": 1, "y": 1, "radiusX": 5, "radiusY": 5}]}, ["unsupported-shape"], 0),
        (result({"format": "rle", "rle": [1]}), ["unsupported-shape"], 0),
        (
            result({"x": 1, "y": 1, "width": 5, "height": 5, "rotation": 9}),
            ["unsupported-shape"],
            0,
        ),
        (result({"x": 1, "y": 1, "width": 5, "height": 5, "rotation": 0}), [], 1),
        (result({"choices": ["receipt"]}), [], 0),
    ],
)
def test_label_studio_regions(make, task, kinds, count):
    """Texts that fit no shapes, shapes that are no polygons, and results that are no shapes."""
    images = make({"a.jpg": png(*SIZE)})
    content = [{"id": 1, "image": "s3://bucket/a.jpg", **task}]
    folder = make({"export.json": content}, into="ann")
    read = open_source(images, annotations=folder)["a.jpg"]
    assert [p.kind for p in read.problems] == kinds and len(read.polygons) == count


@pytest.mark.parametrize(("orientation", "size"), [(1, (40, 20)), (3, (40, 20)), (6, (20, 40))])
def test_shares_are_of_the_upright_picture(make, orientation, size):
    """A picture that is stored lying has its sides the other way round; the sample says upright."""
    stream = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (40, 20)).save(stream, "JPEG", exif=exif)
    images = make({"a.jpg": stream.getvalue(), "a.txt": "3 0 0 0.5 0 0.5 0.25 0 0.25"})
    (polygon,) = open_source(images)["a.jpg"].polygons
    assert polygon.points[2].tolist() == [size[0] / 2, size[1] / 4]


def test_shares_need_a_picture(make):
    """Shares of a picture that cannot be read are no polygons; the problem says so."""
    (sample,) = (s for s in SAMPLES if s.dialect == "yolo-obb")
    images = make({sample.picture: b"no picture"})
    folder = make({sample.file: sample.content}, into="ann")
    read = open_source(images, annotations=folder)[sample.picture]
    assert [p.kind for p in read.problems] == ["unknown-size"] and not read.annotated
