"""Finding annotations and their dialect by looking: one answer, or an error that says why."""

import json
import os

import pytest

from ocrstore.errors import SourceError
from ocrstore.sources import all_dialects, open_source

SQUARE = [[0, 0], [9, 0], [9, 9], [0, 9]]
LINE = "0,0,9,0,9,9,0,9,w\n"
WORDS = {"images": {"a.jpg": {"words": {"1": {"points": SQUARE, "transcription": "w"}}}}}
SHAPES = {"imagePath": "a.jpg", "shapes": [{"label": "w", "points": SQUARE}]}
PADDLE = "x/a.jpg\t" + json.dumps([{"transcription": "w", "points": SQUARE}])
MMOCR = {
    "data_list": [
        {
            "img_path": "a.jpg",
            "instances": [{"polygon": [v for point in SQUARE for v in point], "text": "w"}],
        }
    ]
}
REGION = {"image_id": 1, "bbox": [0, 0, 9, 9], "utf8_string": "w"}
COCO = {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [REGION]}
COCOTEXT = {"imgs": {"1": {"file_name": "a.jpg"}}, "anns": {"1": REGION}}

FILES = {
    "icdar": ("gt_a.txt", LINE),
    "icdar-mlt": ("gt_a.txt", "0,0,9,0,9,9,0,9,Latin,w\n"),
    "icdar-poly": ("gt_a.txt", LINE),
    "rctw": ("a.txt", '0,0,9,0,9,9,0,9,0,"w"\n'),
    "words": ("w.json", WORDS),
    "coco": ("c.json", COCO),
    "cocotext": ("c.json", COCOTEXT),
    "paddleocr": ("Label.txt", PADDLE),
    "mmocr": ("m.json", MMOCR),
    "labelme": ("a.json", SHAPES),
    "webdataset": ("a.json", {"polygons": [SQUARE], "texts": ["w"]}),
}
LOOKED = sorted(set(FILES) - {"icdar-poly"})


def one(source):
    """Check that the one picture has the one polygon every dialect here describes."""
    (sample,) = source
    assert [(p.points.tolist(), p.text) for p in sample.polygons] == [(SQUARE, "w")]
    assert sample.problems == () and source.problems == ()


@pytest.mark.parametrize("dialect", LOOKED)
@pytest.mark.parametrize("place", ["file", "folder", "beside", "sibling"])
def test_recognised_by_looking(make, dialect, place):
    """The same polygon is read from every dialect, wherever its file is; the place is reported."""
    name, content = FILES[dialect]
    images = make({"a.jpg": None})
    if place == "beside":
        make({name: content})
        source = open_source(images)
        assert "found beside the pictures" in source.description
    elif place == "sibling":
        gt = make({name: content}, into="gt")
        source = open_source(images)
        assert f"found in {gt}" in source.description
    else:
        folder = make({name: content}, into="elsewhere")
        path = folder / name if place == "file" else folder
        source = open_source(images, annotations=path)
        assert f"named: {path}" in source.description
    assert source.dialect == dialect and "1 pictures annotated" in source.description
    one(source)


@pytest.mark.parametrize("dialect", sorted(FILES))
def test_named(make, dialect):
    """A named dialect is not looked for; it reads what it is given."""
    name, content = FILES[dialect]
    images, folder = make({"a.jpg": None}), make({name: content}, into="gt")
    for annotations in (None, folder, folder / name):
        source = open_source(images, annotations=annotations, format=dialect)
        assert source.dialect == dialect
        one(source)


@pytest.mark.parametrize("where", ["annotations", "labels", "images_gt"])
def test_sibling_folders(make, where):
    """Each documented folder name beside the images folder is looked into."""
    images = make({"a.jpg": None})
    make({"a.txt": LINE}, into=where)
    one(open_source(images))


@pytest.mark.parametrize("name", ["gt.json", "annotations.json", "images.json"])
def test_sibling_files(make, tmp_path, name):
    """Each documented file name beside the images folder is looked at."""
    images = make({"a.jpg": None})
    (tmp_path / name).write_text(json.dumps(WORDS))
    one(open_source(images))


def test_whole_tree_given_as_images(make):
    """The folder above pictures and annotations may be given; both are found in it."""
    root = make({"images/a.jpg": None, "gt/gt_a.txt": LINE})
    one(open_source(root))


def test_nothing_found_is_a_plain_folder(make):
    """Without annotations every picture is kept, not annotated; searched places are reported."""
    source = open_source(make({"a.jpg": None, "README.txt": "nothing here\n"}))
    assert source.dialect == "folder" and "no annotations found beside" in source.description
    (sample,) = source
    assert not sample.annotated and sample.problems == ()
    assert [p.kind for p in source.problems] == ["not-a-picture"]


def test_yolo_files_are_not_mistaken(make):
    """Files of five numbers a line are no ICDAR files."""
    assert open_source(make({"a.jpg": None, "a.txt": "0 0.5 0.5 0.1 0.2\n"})).dialect == "folder"


def test_two_places(make):
    """Annotations in two places are refused, and both are named."""
    images = make({"a.jpg": None, "a.json": SHAPES})
    make({"gt_a.txt": LINE}, into="gt")
    with pytest.raises(SourceError) as error:
        open_source(images)
    for part in (
        "2 answers",
        "labelme",
        "a.json",
        "icdar",
        "gt_a.txt",
        "--annotations",
        "--format",
    ):
        assert part in str(error.value)
    assert open_source(images, format="icdar").dialect == "icdar"
    assert open_source(images, format="labelme").dialect == "labelme"
    assert open_source(images, annotations=images).dialect == "labelme"


def test_two_dialects_in_one_folder(make):
    """A folder that two dialects know is refused; naming one settles it."""
    images = make({"a.jpg": None})
    folder = make({"a.json": SHAPES, "a.txt": LINE}, into="ann")
    with pytest.raises(SourceError, match="2 answers"):
        open_source(images, annotations=folder)
    source = open_source(images, annotations=folder, format="icdar")
    assert [p.text for p in source["a.jpg"].polygons] == ["w"]
    assert [p.kind for p in source.problems] == ["not-an-annotation"]


def test_two_files_for_all_pictures(make):
    """Two files that each speak of all pictures are refused, both named."""
    images = make({"a.jpg": None})
    folder = make({"train.json": COCO, "val.json": COCO}, into="ann")
    with pytest.raises(SourceError, match=r"train\.json.*val\.json"):
        open_source(images, annotations=folder)
    one(open_source(images, annotations=folder / "val.json"))


def test_not_recognised(make):
    """What no dialect knows is refused with all that was looked for, and the choices."""
    images = make({"a.jpg": None})
    folder = make({"a.txt": "hello\n"}, into="ann")
    with pytest.raises(SourceError) as error:
        open_source(images, annotations=folder)
    for dialect in all_dialects():
        assert dialect.name in str(error.value)
        assert dialect.name == "folder" or dialect.looks_for in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (
            {"format": "nonsense"},
            "unknown dialect 'nonsense'; --format takes art, coco",
        ),
        ({"annotations": "gone.json"}, r"gone\.json: no such file or folder"),
        ({"format": "coco"}, r"no annotations found that --format coco reads"),
        ({"format": "folder", "annotations": "x"}, "reads no annotations"),
    ],
)
def test_refused(make, arguments, part):
    """What cannot be meant is refused in words that help."""
    with pytest.raises(SourceError, match=part):
        open_source(make({"a.jpg": None}), **arguments)


def test_empty_annotations_folder(make):
    """A folder without any file to look at is refused with the endings that were looked for."""
    with pytest.raises(SourceError, match=r"no file that ends in \.csv, \.gt, \.json"):
        open_source(make({"a.jpg": None}), annotations=make({}, into="ann"))


def test_other_files_among_annotations(make):
    """Files the dialect does not read, and links to nothing, are reported wherever they lie."""
    images = make({"a.jpg": None})
    gt = make({"gt_a.txt": LINE, "README.md": "x", "b.json": "{}"}, into="gt")
    (gt / "gt_b.txt").symlink_to(gt / "gone.txt")
    for annotations in (None, gt):
        source = open_source(images, annotations=annotations)
        assert sorted(p.kind for p in source.problems) == [
            "broken-link",
            "not-an-annotation",
            "not-an-annotation",
        ]


def test_annotations_inside_the_images_folder(make):
    """What lies in an annotations folder among the pictures is reported once."""
    images = make({"a.jpg": None, "gt/gt_a.txt": LINE, "gt/README.md": "x", "notes.md": "x"})
    for annotations in (None, images / "gt", images / "gt" / ".." / "gt", images):
        source = open_source(images, annotations=annotations)
        assert [p.kind for p in source.problems] == ["not-a-picture", "not-a-picture"]
        assert len(source["a.jpg"].polygons) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipe_as_annotations(make, tmp_path):
    """A pipe is not waited for."""
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(SourceError, match="no such file or folder"):
        open_source(make({"a.jpg": None}), annotations=tmp_path / "pipe.json")


def test_format_folder_looks_for_nothing(make):
    """Named, the plain folder passes over annotations; they are no pictures, and told."""
    source = open_source(make({"a.jpg": None, "a.json": SHAPES}), format="folder")
    assert source.dialect == "folder" and not source["a.jpg"].annotated
    assert [p.kind for p in source.problems] == ["not-a-picture"]


def test_unrelated_annotations_nearby(make):
    """Annotations that were only found and fit no picture are passed over, and told."""
    images = make({"b.jpg": None})
    make({"gt_a.txt": LINE}, into="gt")
    source = open_source(images)
    assert source.dialect == "folder" and not source["b.jpg"].annotated
    assert [p.kind for p in source.problems] == ["unrelated-annotations"]


def test_only_a_handful_is_looked_at(make, monkeypatch):
    """Opening a folder of many annotation files reads a few of them."""
    from ocrstore.sources import AnnotationFile

    names = [f"{n:04}" for n in range(400)]
    images = make({f"{name}.jpg": None for name in names})
    make({f"{name}.txt": LINE for name in names}, into="gt")
    read = set()
    real = AnnotationFile.head.fget
    monkeypatch.setattr(
        AnnotationFile, "head", property(lambda file: (read.add(file.path), real(file))[1])
    )
    assert len(open_source(images)) == 400 and len(read) <= 16 + 67


def test_some_empty_files_among_many(make):
    """Files that say nothing do not keep the others from being recognised."""
    images = make({f"{n}.jpg": None for n in range(5)})
    make({f"{n}.txt": LINE if n == 4 else "" for n in range(5)}, into="gt")
    assert open_source(images).dialect == "icdar"
