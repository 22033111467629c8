"""The JSON dialects and PaddleOCR's lines: what is taken from each, and what of it can be wrong."""

# A table reads best with one row per line:
# ruff: noqa: E501

import json

import pytest

from ocrstore.errors import SourceError
from ocrstore.sources import open_source

SQUARE = [[0, 0], [9, 0], [9, 9], [0, 9]]
FLAT = [0, 0, 9, 0, 9, 9, 0, 9]
RLE = {"counts": [1, 2], "size": [3, 4]}


@pytest.fixture
def read(make):
    """Read the sample a.jpg from one annotation file; it must be recognised by looking."""

    def read_one(content, *, name="ann.json", format=None):
        images = make({"a.jpg": None})
        source = open_source(
            images, annotations=make({name: content}, into="ann") / name, format=format
        )
        return source["a.jpg"], source

    return read_one


def coco(*annotations, images=({"id": 1, "file_name": "a.jpg"},)):
    """A COCO document whose annotations are all of image 1 unless they say otherwise."""
    return {"images": list(images), "annotations": [{"image_id": 1, **a} for a in annotations]}


def words(**word):
    """A words document with one word."""
    return {"images": {"a.jpg": {"words": {"0001": word}}}}


def mmocr(*instances):
    """An mmocr document with one picture."""
    return {"metainfo": {}, "data_list": [{"img_path": "d/a.jpg", "instances": list(instances)}]}


def labelme(*shapes, path="a.jpg"):
    """A LabelMe document."""
    return {"version": "5", "shapes": list(shapes), "imagePath": path, "imageData": None}


def cocotext(annotation, **more):
    """A COCO-Text document with one annotation."""
    return {
        "imgs": {"1": {"id": 1, "file_name": "a.jpg", "set": "val"}},
        "anns": {"7": annotation},
        **more,
    }


def paddle(*regions, path="d/a.jpg"):
    """One line of a PaddleOCR label file."""
    return f"{path}\t{json.dumps(list(regions))}\n"


def outcome(sample):
    """Polygons as (points, text, ignored, language), and problems as (kind, position)."""
    polygons = [(p.points.tolist(), p.text, p.ignored, p.language) for p in sample.polygons]
    return polygons, [(p.kind, p.polygon) for p in sample.problems]


GOOD = [
    ("words", words(points=SQUARE, transcription="w", illegibility=False), ("w", False, None)),
    ("words illegible", words(points=SQUARE, transcription="w", illegibility=True), ("w", True, None)),
    ("words language", words(points=SQUARE, language=["ko"]), (None, False, "ko")),
    ("words masked", words(points=SQUARE, tags=["masked"]), (None, True, None)),
    ("words masked 2", words(points=SQUARE, word_tags=["excluded-region"]), (None, True, None)),
    ("words tag", words(points=SQUARE, tags=["stamp"], word_tags=None), (None, False, None)),
    ("coco segmentation", coco({"segmentation": [FLAT], "bbox": [1, 1, 1, 1]}), (None, False, None)),
    ("coco flat", coco({"segmentation": FLAT}), (None, False, None)),
    ("coco pairs", coco({"segmentation": SQUARE}), (None, False, None)),
    ("coco bbox", coco({"bbox": [0, 0, 9, 9]}), (None, False, None)),
    ("coco empty segmentation", coco({"segmentation": [], "bbox": [0, 0, 9, 9]}), (None, False, None)),
    ("coco crowd", coco({"segmentation": [FLAT], "iscrowd": 1}), (None, True, None)),
    ("coco ignore", coco({"segmentation": [FLAT], "ignore": 1}), (None, True, None)),
    ("coco text", coco({"segmentation": [FLAT], "text": "w"}), ("w", False, None)),
    ("coco cvat", coco({"segmentation": [FLAT], "attributes": {"text": "w"}}), ("w", False, None)),
    ("cocotext mask", cocotext({"image_id": 1, "mask": FLAT, "utf8_string": "w", "legibility": "legible", "language": "english"}), ("w", False, "english")),
    ("cocotext v1", cocotext({"image_id": 1, "polygon": FLAT, "legibility": "illegible"}), (None, True, None)),
    ("cocotext bbox", cocotext({"image_id": 1, "bbox": [0.0, 0.0, 9.0, 9.0]}), (None, False, None)),
    ("cocotext by list", cocotext({"mask": FLAT}, imgToAnns={"1": [7]}), (None, False, None)),
    ("textocr", cocotext({"image_id": "1", "points": FLAT, "utf8_string": "w"}), ("w", False, None)),
    ("mmocr", mmocr({"polygon": FLAT, "bbox": [1, 1, 2, 2], "ignore": False, "text": "w"}), ("w", False, None)),
    ("mmocr ignore", mmocr({"polygon": FLAT, "ignore": True}), (None, True, None)),
    ("mmocr bbox", mmocr({"bbox": [0, 0, 9, 9], "ignore": False}), (None, False, None)),
    ("paddle", paddle({"transcription": "w", "points": SQUARE}), ("w", False, None)),
    ("paddle hashes", paddle({"transcription": "###", "points": SQUARE}), ("###", True, None)),
    ("paddle star", paddle({"transcription": "*", "points": SQUARE}), ("*", True, None)),
    ("paddle difficult", paddle({"transcription": "w", "points": SQUARE, "difficult": True}), ("w", True, None)),
    ("labelme", labelme({"label": "w", "points": SQUARE, "shape_type": "polygon"}), ("w", False, None)),
    ("labelme old", labelme({"label": "w", "points": SQUARE}), ("w", False, None)),
    ("labelme rectangle", labelme({"label": "w", "points": [[0, 0], [9, 9]], "shape_type": "rectangle"}), ("w", False, None)),
    ("labelme rectangle 4", labelme({"label": "w", "points": SQUARE, "shape_type": "rectangle"}), ("w", False, None)),
    ("labelme flag", labelme({"label": "w", "points": SQUARE, "flags": {"ignore": True}}), ("w", True, None)),
]  # fmt: skip


@pytest.mark.parametrize(("content", "expected"), [r[1:] for r in GOOD], ids=[r[0] for r in GOOD])
def test_taken(read, content, expected):
    """What each dialect says of a region is taken, recognised by looking, with no problem."""
    name = "Label.txt" if isinstance(content, str) else "a.json"
    sample, source = read(content, name=name)
    assert outcome(sample) == ([(SQUARE, *expected)], [])
    assert source.problems == ()


BAD = [
    ("words no points", words(transcription="w"), [("missing-key", 0)]),
    ("words no object", {"images": {"a.jpg": {"words": {"1": 5}}}}, [("bad-structure", 0)]),
    ("words NaN", words(points=[[0, 0], [1, float("nan")], [1, 1]]), [("not-finite", 0)]),
    ("words inf", words(points=[[0, 0], [1, float("inf")], [1, 1]]), [("not-finite", 0)]),
    ("coco two numbers", coco({"bbox": [1, 2]}), [("bad-box", 0)]),
    ("coco negative", coco({"bbox": [1, 2, -3, 4]}), [("bad-box", 0)]),
    ("coco nothing", coco({"id": 4}), [("missing-key", 0)]),
    ("coco odd part", coco({"segmentation": [[1, 2, 3, 4, 5, 6, 7]]}), [("odd-coordinates", 0)]),
    ("coco RLE", coco({"segmentation": RLE}), [("rle-segmentation", 0)]),
    ("coco string", coco({"segmentation": "abc", "bbox": [0, 0, 1, 1]}), [("bad-points", 0)]),
    ("mmocr nothing", mmocr({"text": "w"}), [("missing-key", 0)]),
    ("mmocr no object", mmocr([1]), [("bad-structure", 0)]),
    ("mmocr box", mmocr({"bbox": [5, 5, 1, 1]}), [("bad-box", 0)]),
    ("paddle no points", paddle({"transcription": "w"}, {"points": None}), [("missing-key", 0), ("bad-points", 1)]),
    ("paddle no object", paddle("points", 5), [("bad-structure", 0), ("bad-structure", 1)]),
    ("labelme point", labelme({"label": "w", "points": [[1, 1]], "shape_type": "point"}), [("unsupported-shape", 0)]),
    ("labelme line", labelme({"label": "w", "points": SQUARE, "shape_type": "linestrip"}), [("unsupported-shape", 0)]),
    ("labelme circle", labelme({"label": "w", "points": [[1, 1], [2, 2]], "shape_type": "circle"}), [("unsupported-shape", 0)]),
    ("labelme no points", labelme({"label": "w"}), [("missing-key", 0)]),
    ("labelme two points", labelme({"label": "w", "points": [[1, 1], [2, 2]]}), [("too-few-points", 0)]),
    ("labelme corners", labelme({"points": [[1, 1], 2], "shape_type": "rectangle"}), [("bad-points", 0)]),
]  # fmt: skip


@pytest.mark.parametrize(("content", "expected"), [r[1:] for r in BAD], ids=[r[0] for r in BAD])
def test_regions_left_out(read, content, expected):
    """A region that cannot be used is reported by kind and position; the picture stays annotated."""
    sample, source = read(content, name="Label.txt" if isinstance(content, str) else "a.json")
    assert outcome(sample) == ([], expected) and sample.annotated
    assert all(p.key == "a.jpg" for p in sample.problems) and source.problems == ()


def test_several_parts_are_several_polygons(read):
    """Each part of a COCO segmentation is a polygon with the annotation's text."""
    shifted = [v + 20 for v in FLAT]
    sample, _ = read(coco({"segmentation": [FLAT, shifted, [1, 2]], "text": "w"}))
    assert [(p.points[0].tolist(), p.text) for p in sample.polygons] == [
        ([0, 0], "w"),
        ([20, 20], "w"),
    ]
    assert [(p.kind, p.polygon) for p in sample.problems] == [("too-few-points", 2)]


def test_mask_with_a_box(read):
    """A run-length mask is reported, and its box taken."""
    sample, _ = read(coco({"segmentation": RLE, "bbox": [0, 0, 9, 9], "iscrowd": 1}))
    assert outcome(sample) == ([(SQUARE, None, True, None)], [("rle-boxed", 0)])


def test_coco_ids(read, kinds):
    """Ids that are missing, unknown or given twice are reported once each."""
    images = (
        {"id": 1, "file_name": "a.jpg"},
        {"id": 1, "file_name": "again.jpg"},
        {"file_name": "noid.jpg"},
        {"id": 3},
    )
    unknown = {"image_id": 9, "bbox": [0, 0, 1, 1]}
    nameless = {"image_id": None, "bbox": [0, 0, 1, 1]}
    document = coco({"bbox": [0, 0, 9, 9]}, unknown, unknown, nameless, images=images)
    sample, source = read(document)
    assert len(sample.polygons) == 1
    assert kinds(source) == {"duplicate-image-id": 1, "missing-key": 3, "unknown-image-id": 1}
    (told,) = (p.message for p in source.problems if p.kind == "unknown-image-id")
    assert "2 annotations" in told


def test_coco_picture_without_regions_is_annotated(read):
    """A picture that is listed but has no annotation has no text; that is an annotation too."""
    sample, _ = read(coco())
    assert sample.annotated and sample.polygons == () and sample.problems == ()


UNUSABLE = [
    ("words no words", {"images": {"a.jpg": {}, "b.jpg": {"words": {}}}}, "missing-key"),
    ("words wrong", {"images": {"a.jpg": {"words": 3}}}, "bad-structure"),
    ("mmocr no instances", {"data_list": [{"img_path": "a.jpg"}]}, "missing-key"),
    ("paddle cut", 'b.jpg\t[{"points": []}]\na.jpg\t[{"points": [[', "bad-json"),
    ("paddle object", 'b.jpg\t[{"points": []}]\na.jpg\t{"points": 1}', "bad-structure"),
    ("paddle digits", 'b.jpg\t[{"points": []}]\na.jpg\t[' + "9" * 5000 + "]", "bad-json"),
    ("paddle deep", 'b.jpg\t[{"points": []}]\na.jpg\t' + "[" * 200_000, "bad-json"),
]


@pytest.mark.parametrize(
    ("content", "kind"), [r[1:] for r in UNUSABLE], ids=[r[0] for r in UNUSABLE]
)
def test_annotation_left_out(read, content, kind):
    """An annotation that cannot be used as a whole leaves its picture not annotated, and is reported."""
    sample, _ = read(content, name="Label.txt" if isinstance(content, str) else "a.json")
    assert not sample.annotated and sample.polygons == ()
    assert [(p.kind, p.key, p.polygon) for p in sample.problems] == [(kind, "a.jpg", None)]


@pytest.mark.parametrize("content", ['{"shapes": [', "[1, 2]", '{"imagePath": "a.jpg"}', ""])
def test_labelme_file_left_out(make, content):
    """One broken LabelMe file of several costs only its own picture."""
    square = {"label": "w", "points": SQUARE}
    images = make(
        {"a.jpg": None, "b.jpg": None, "a.json": content, "b.json": labelme(square, path="b.jpg")}
    )
    source = open_source(images)
    assert source.dialect == "labelme" and len(source["b.jpg"].polygons) == 1
    sample = source["a.jpg"]
    assert not sample.annotated and len(sample.problems) == 1
    assert sample.problems[0].kind in ("bad-json", "bad-structure", "missing-key")


@pytest.mark.parametrize(
    ("content", "format"),
    [
        ('{"images": {', None),
        ('{"images": {', "words"),
        ("[]", "words"),
        ("{}", "coco"),
        ('{"images": []}', "coco"),
        ('{"imgs": {}}', "cocotext"),
        ('{"data_list": {}}', "mmocr"),
        ("nothing", None),
        ("", None),
    ],
)
def test_file_for_all_pictures_is_refused(read, content, format):
    """A file that should speak of all pictures and cannot is an error that names it."""
    with pytest.raises(SourceError, match=r"ann\.json"):
        read(content, format=format)


def test_json_error_has_a_position(read):
    """Broken JSON is reported with line and column."""
    with pytest.raises(SourceError, match="line 2, column 12"):
        read('{"images":\n {"a.jpg": oops}}')


@pytest.mark.parametrize(
    ("entry", "kind"),
    [({"instances": []}, "missing-key"), ({"img_path": 3}, "bad-structure"), (7, "bad-structure")],
)
def test_mmocr_picture_without_name(read, kinds, entry, kind):
    """An element without a usable name is reported; the others are read."""
    document = mmocr({"polygon": FLAT})
    document["data_list"].insert(0, entry)
    sample, source = read(document)
    assert len(sample.polygons) == 1 and kinds(source) == {kind: 1}


def test_paddle_lines(read, kinds):
    """Lines without tab or path are reported by number; CRLF, blank lines and a mark are no trouble."""
    good = paddle({"transcription": "w", "points": SQUARE})
    content = ("\ufeff" + good + "\nno tab here\n\t[]\n").replace("\n", "\r\n")
    sample, source = read(content, name="Label.txt")
    assert len(sample.polygons) == 1 and kinds(source) == {"bad-line": 1, "bad-name": 1}
    assert "line 3" in source.problems[0].message


def test_same_picture_twice(read):
    """The first annotation of a picture counts, the second is reported."""
    one, two = (paddle({"transcription": t, "points": SQUARE}) for t in "12")
    sample, source = read(one + two, name="Label.txt")
    assert [p.text for p in sample.polygons] == ["1"]
    assert [(p.kind, p.key) for p in source.problems] == [("duplicate-annotation", "a.jpg")]


def test_same_json_key_twice(read):
    """JSON that names a picture twice in one object: the first counts, and it is reported."""
    one, two = (json.dumps({"words": {"1": {"points": SQUARE, "transcription": t}}}) for t in "12")
    sample, source = read(f'{{"images": {{"a.jpg": {one}, "a.jpg": {two}}}}}')
    assert [p.text for p in sample.polygons] == ["1"]
    assert [p.kind for p in source.problems] == ["duplicate-json-key"]


def test_json_in_other_encodings(read):
    """UTF-16 with a mark and UTF-8 with a mark are read; Latin-1 is read and reported."""
    text = json.dumps(words(points=SQUARE, transcription="é"), ensure_ascii=False)
    for data, told in (
        (text.encode("utf-8-sig"), []),
        (text.encode("utf-16"), []),
        (text.encode("latin-1"), ["not-utf8"]),
    ):
        sample, source = read(data)
        assert sample.polygons[0].text == "é" and [p.kind for p in source.problems] == told


def test_labelme_names_another_picture(make, kinds):
    """A file named after one picture that names another: the file's name wins; reported."""
    shape = {"label": "w", "points": SQUARE}
    images = make({"a.jpg": None, "b.jpg": None, "a.json": labelme(shape, path="..\\d\\b.jpg")})
    source = open_source(images)
    assert source["a.jpg"].annotated and not source["b.jpg"].annotated
    assert kinds(source) == {"name-disagrees": 1, "no-annotation": 1}


def test_labelme_image_path_with_backslashes(make, kinds):
    """A file not named after any picture is matched by its imagePath."""
    shape = {"label": "w", "points": SQUARE}
    images = make({"a.jpg": None})
    make({"0001.json": labelme(shape, path="..\\images\\a.jpg")}, into="gt")
    source = open_source(images)
    assert len(source["a.jpg"].polygons) == 1 and source.dialect == "labelme"
    assert kinds(source) == {}


@pytest.mark.parametrize("content", [coco({"bbox": [0, 0, 9, 9]}), words(points=SQUARE)])
def test_a_large_file_is_parsed_once(read, monkeypatch, content):
    """However many dialects look at a file and samples come from it, it is parsed one time."""
    from ocrstore.sources import annotation_file

    parsed = []
    real = annotation_file.parse_json
    monkeypatch.setattr(
        annotation_file, "parse_json", lambda text, **kw: (parsed.append(text), real(text, **kw))[1]
    )
    sample, source = read(content)
    assert len(sample.polygons) == 1 and len(list(source)) == 1 and len(parsed) == 1


MORE_BAD = [
    ("cocotext no object", cocotext(5, imgToAnns={"1": [7]}), [("bad-structure", 0)]),
    ("coco box of texts", coco({"bbox": ["a", 0, 1, 1]}), [("bad-box", 0)]),
    ("coco huge box", coco({"bbox": [0.5, 0, 10**400, 1]}), [("not-finite", 0)]),
    ("mmocr bbox NaN", mmocr({"bbox": [0, 0, float("nan"), 1]}), [("not-finite", 0)]),
]


@pytest.mark.parametrize(
    ("content", "expected"), [r[1:] for r in MORE_BAD], ids=[r[0] for r in MORE_BAD]
)
def test_more_regions_left_out(read, content, expected):
    """Odd values in unexpected places are reported like the others."""
    sample, _ = read(content)
    assert outcome(sample) == ([], expected)


def test_labelme_without_usable_name(make, kinds):
    """Files that match by neither name nor content are reported as missing pictures."""
    shape = {"label": "w", "points": SQUARE}
    images = make(
        {"a.jpg": None, "a.json": labelme(shape), "x.json": "[", "y.json": {"shapes": []}}
    )
    source = open_source(images)
    assert len(source["a.jpg"].polygons) == 1 and kinds(source) == {"missing-picture": 2}


def test_annotations_of_a_picture_by_two_ids(read, kinds):
    """A picture listed under two ids has the annotations of the first; the second is reported."""
    images = ({"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "a.jpg"})
    box = {"bbox": [0, 0, 9, 9]}
    sample, source = read(coco(box, {**box, "image_id": 2}, images=images))
    assert len(sample.polygons) == 1 and kinds(source) == {"duplicate-annotation": 1}
