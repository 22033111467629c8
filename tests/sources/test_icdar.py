"""ICDAR text files: layouts, separators, quotes, encodings, names."""

import codecs

import pytest

from ocrstore.errors import SourceError
from ocrstore.sources import open_source

QUAD = [[1, 2], [3, 4], [5, 6], [7, 8]]
BOX = [[1, 2], [3, 2], [3, 4], [1, 4]]


@pytest.fixture
def read(make):
    """Read one picture's annotation from the text of its file."""

    def read_one(content, *, format="icdar", name="gt_a.txt"):
        images = make({"a.jpg": None})
        source = open_source(images, annotations=make({name: content}, into="gt"), format=format)
        assert source.problems == ()
        return source["a.jpg"]

    return read_one


def told(sample):
    """Points, text, ignored and language of each polygon."""
    return [(p.points.tolist(), p.text, p.ignored, p.language) for p in sample.polygons]


@pytest.mark.parametrize(
    ("line", "points", "text", "ignored"),
    [
        ("1,2,3,4,5,6,7,8,word", QUAD, "word", False),
        ("1,2,3,4,5,6,7,8,a, b,c", QUAD, "a, b,c", False),
        ("1,2,3,4,5,6,7,8,100,000", QUAD, "100,000", False),
        ("1,2,3,4,5,6,7,8,9,10,11", QUAD, "9,10,11", False),
        ("1,2,3,4,5,6,7,8,###", QUAD, "###", True),
        ("1,2,3,4,5,6,7,8,", QUAD, "", False),
        ("1,2,3,4,5,6,7,8", QUAD, None, False),
        ("1,2,3,4,5,6,7,8,,", QUAD, ",", False),
        (" 1 , 2, 3 ,4,5.0,6e0,+7,8. , word ", QUAD, "word", False),
        ("1,2,3,4,5,6,7,8,12th", QUAD, "12th", False),
        ("1,2,3,4,5,6,7,8,nan", QUAD, "nan", False),
        ('1,2,3,4,5,6,7,8,"a, b"', QUAD, "a, b", False),
        ('1,2,3,4,5,6,7,8,"say ""hi"""', QUAD, 'say "hi"', False),
        ('1,2,3,4,5,6,7,8,14" disc', QUAD, '14" disc', False),
        ('1,2,3,4,5,6,7,8,(S)"', QUAD, '(S)"', False),
        ('1,2,3,4,5,6,7,8,"a" or "b"', QUAD, '"a" or "b"', False),
        ("1,2,3,4,5,6,7,8,a\ufeffb", QUAD, "a\ufeffb", False),
        ('1,2,3,4,5,6,7,8,"', QUAD, '"', False),
        ("1 2 3 4 5 6 7 8 two words", QUAD, "two words", False),
        ("1\t2\t3\t4\t5\t6\t7\t8\tword", QUAD, "word", False),
        ("1,2,3,4,5,6,7,8,a\u2028b\x85c", QUAD, "a\u2028b\x85c", False),
        ("1,2,3,4,word", BOX, "word", False),
        ("1,2,3,4", BOX, None, False),
        ('1, 2, 3, 4, "word"', BOX, "word", False),
        ('1 2 3 4 "word"', BOX, "word", False),
        ("1 2 3 4 ###", BOX, "###", True),
    ],
)
def test_line(read, line, points, text, ignored):
    """One line of each layout and each odd text."""
    assert told(read(line)) == [(points, text, ignored, None)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_line_ends_and_marks(read, end, mark):
    """Any line end, with or without a byte order mark, blank lines between."""
    content = mark + end.join(["1,2,3,4,5,6,7,8,é", "", "1,2,3,4,5,6,7,8,b", ""]).encode()
    assert [p.text for p in read(content).polygons] == ["é", "b"]


def test_utf16(read):
    """A file with a UTF-16 mark is read as such."""
    sample = read(codecs.BOM_UTF16_LE + "1,2,3,4,5,6,7,8,é".encode("utf-16-le"))
    assert sample.polygons[0].text == "é" and sample.problems == ()


def test_latin1_is_read_and_told(read):
    """Bytes that are no UTF-8 are read as Latin-1, with a note and nothing lost."""
    sample = read("1,2,3,4,5,6,7,8,café".encode("latin-1"))
    assert sample.polygons[0].text == "café"
    assert [(p.kind, p.polygon) for p in sample.problems] == [("not-utf8", None)]


def test_quotes_around_every_text(read):
    """Where every text but ### is quoted, the quotes are the writer's; else they are the text's."""
    line = "1,2,3,4,5,6,7,8,"
    assert [p.text for p in read(f'{line}"a"\n{line}###\n{line}"b"').polygons] == ["a", "###", "b"]
    assert [p.text for p in read(f'{line}"a"\n{line}b').polygons] == ['"a"', "b"]


def test_box_files_have_numeric_texts(read):
    """A file of boxes is one as a whole, so a text may be a number."""
    sample = read("1,2,3,4,word\n1,2,3,4,1984\n1,2,3,4,5,6")
    assert told(sample) == [(BOX, t, False, None) for t in ("word", "1984", "5,6")]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("hello", "bad-line"),
        ("x1,y1,x2,y2,x3,y3,x4,y4,text", "bad-line"),
        ("1,2,3,4,5,6,7,word", "odd-coordinates"),
        ("1,2,3,word", "odd-coordinates"),
        ("1,2,3,4,word", "too-few-points"),
        ("1,2,3,4,5,6,word", "bad-line"),
        ("1,2,3,4,5,6,7,nan,word", "not-finite"),
        ("1,2,3,4,5,6,7,-Infinity,word", "not-finite"),
        ("1,2,3,4,5,6,7,1e300,word", "huge-coordinates"),
        ("1,2,3,4,5,6,7,1e999,word", "not-finite"),
        ("1,2,3,4,5,6,7,99999999,word", "huge-coordinates"),
        ("1,2,3,4,5,6,7,0x10,word", "odd-coordinates"),
    ],
)
def test_bad_line(read, line, kind):
    """A line that is no quadrilateral is reported by kind and position; the others are kept."""
    good = "1,2,3,4,5,6,7,8,good"
    sample = read(f"{good}\n{line}\n{good}")
    assert [p.text for p in sample.polygons] == ["good", "good"]
    assert [(p.kind, p.key, p.polygon) for p in sample.problems] == [(kind, "a.jpg", 1)]


def test_line_number_is_told(read):
    """The message names file and line, as an editor counts them."""
    sample = read("1,2,3,4,5,6,7,8,a\n\n\nhello")
    assert "gt_a.txt line 4" in sample.problems[0].message


def test_reversed_box(read):
    """A box whose corners are the wrong way round is left out and reported."""
    sample = read("1,2,3,4,a\n9,2,3,4,b")
    assert [(p.kind, p.polygon) for p in sample.problems] == [("bad-box", 1)]


def test_empty_file_is_a_picture_without_text(read):
    """An empty file annotates: there is no text in the picture."""
    sample = read("")
    assert sample.annotated and sample.polygons == ()
    assert [p.kind for p in sample.problems] == ["empty-annotation"]


def test_binary_file(read):
    """A file that is no text is not usable as a whole."""
    sample = read(b"\x00\x01\x02\x00 binary \x00")
    assert not sample.annotated and [p.kind for p in sample.problems] == ["unreadable-annotation"]


def test_mlt_named_and_recognised(make):
    """Files with a script name before every text are MLT; the script is the language."""
    images = make({"a.jpg": None})
    make({"gt_a.txt": "1,2,3,4,5,6,7,8,Latin,a,b\n1,2,3,4,5,6,7,8,None,###\n"}, into="gt")
    source = open_source(images)
    assert source.dialect == "icdar-mlt"
    assert told(source["a.jpg"]) == [(QUAD, "a,b", False, "Latin"), (QUAD, "###", True, "None")]
    plain = open_source(images, format="icdar")
    assert plain["a.jpg"].polygons[0].text == "Latin,a,b"


def test_one_text_that_looks_like_a_script(make):
    """One line of many that begins with such a word does not make a file MLT."""
    images = make({"a.jpg": None})
    make({"a.txt": "1,2,3,4,5,6,7,8,Latin,a\n1,2,3,4,5,6,7,8,word\n"}, into="gt")
    assert open_source(images).dialect == "icdar"


def test_mlt_by_name_takes_any_script(read):
    """Named, MLT takes whatever stands before the first comma as the language."""
    assert told(read("1,2,3,4,5,6,7,8,Tifinagh,x", format="icdar-mlt")) == [
        (QUAD, "x", False, "Tifinagh")
    ]


@pytest.mark.parametrize(
    ("line", "count", "text"),
    [
        ("1,2,3,4,5,6,word", 3, "word"),
        ("1,2,3,4,5,6,7,8,9,10,word, more", 5, "word, more"),
        ("1,2,3,4,5,6,7,8,9,10,11", 5, "11"),
        ("1,2,3,4,5,6,7,8,9,10", 5, None),
        ("1,2,3,4,5,6,7,8,9,10,11,abc", 5, "11,abc"),
    ],
)
def test_polygons_by_name(read, line, count, text):
    """Named, lines hold polygons of any number of points: the longest even run of numbers."""
    (polygon,) = read(line, format="icdar-poly").polygons
    assert len(polygon.points) == count and polygon.text == text


FIVE = "0,0,50,0,100,0,100,20,50,30"


def test_hint_at_polygons(read):
    """Named as quadrilaterals, points beyond the fourth that look like points are reported."""
    sample = read(f"{FIVE},word\n{FIVE},0,20,x\n0,0,9,0,9,9,0,9,four")
    assert len(sample.polygons) == 3 and [p.kind for p in sample.problems] == ["extra-numbers"]
    far = read("400,0,450,0,450,20,400,20,100,000\n400,0,450,0,450,20,400,20,7,500,000")
    assert [p.text for p in far.polygons] == ["100,000", "7,500,000"] and far.problems == ()


ARC = [[0, 0], [50, 0], [100, 0], [100, 20], [50, 30]]
FAR_QUAD = [[400, 0], [450, 0], [450, 20], [400, 20]]
OFFSETS = ",".join(str(n) for n in [0, 0, *([10, 0] * 6), *([10, 20] * 7)])


@pytest.mark.parametrize(
    ("lines", "dialect", "expected"),
    [
        (
            [f"{FIVE},PETROSAINS", "0,0,9,0,9,9,0,9,2008", f"{FIVE},###"],
            "icdar-poly",
            [
                (ARC, "PETROSAINS", False, None),
                ([[0, 0], [9, 0], [9, 9], [0, 9]], "2008", False, None),
                (ARC, "###", True, None),
            ],
        ),
        (
            ["400,0,450,0,450,20,400,20,100,000", "400,0,450,0,450,20,400,20,word"],
            "icdar",
            [(FAR_QUAD, "100,000", False, None), (FAR_QUAD, "word", False, None)],
        ),
        (
            ['1,2,3,4,5,6,7,8,0,"a, b"', '1,2,3,4,5,6,7,8,1,"###"', '1,2,3,4,5,6,7,8,1,"c"'],
            "rctw",
            [(QUAD, "a, b", False, None), (QUAD, "###", True, None), (QUAD, "c", True, None)],
        ),
        (
            [",".join(["1,2,3,4,5,6,7"] * 4) + ",####a, b"],
            "ctw1500",
            [
                (
                    [[1, 2], [3, 4], [5, 6], [7, 1], [2, 3], [4, 5], [6, 7]] * 2,
                    "a, b",
                    False,
                    None,
                )
            ],
        ),
        (
            [f"100,200,110,220,{OFFSETS}"],
            "ctw1500-offsets",
            [([[100, 200], *([[110, 200]] * 6), *([[110, 220]] * 7)], None, False, None)],
        ),
    ],
)
def test_layouts_recognised(make, lines, dialect, expected):
    """Layouts that look like ICDAR's are distinguished by all lines together."""
    images = make({"a.jpg": None})
    make({"a.txt": "\n".join(lines)}, into="gt")
    source = open_source(images)
    assert source.dialect == dialect
    assert told(source["a.jpg"]) == expected and source["a.jpg"].problems == ()


@pytest.mark.parametrize(
    ("lines", "choice"),
    [
        ([f"{FIVE},a", *["0,0,9,0,9,9,0,9,b"] * 9], "--format icdar-poly"),
        (["0.1 0.1 0.2 0.1 0.2 0.2 0.1 0.2"], "--format"),
        (["7 0.1 0.1 0.2 0.1 0.2 0.2 0.1 0.2 0.93"], "--format"),
        (["0.1,0.1,0.2,0.2,word"], "--format"),
    ],
)
def test_doubtful_layouts_are_refused(make, lines, choice):
    """Where a reading would be a guess, opening stops with the choices; a named dialect reads."""
    images = make({"a.jpg": None})
    make({"a.txt": "\n".join(lines)}, into="gt")
    with pytest.raises(SourceError, match=choice):
        open_source(images)
    assert len(open_source(images, format="icdar")["a.jpg"].polygons) == len(lines)


@pytest.mark.parametrize(
    "name",
    [
        "gt_a.txt",
        "a.txt",
        "a.csv",
        "a.jpg.txt",
        "GT_A.TXT",
        "res_a.txt",
        "poly_gt_a.txt",
        "x/gt_a.txt",
    ],
)
def test_file_names(read, name):
    """The picture is found for each way such files are named."""
    assert len(read("1,2,3,4,5,6,7,8,w", name=name).polygons) == 1


def test_two_files_for_one_picture(make, kinds):
    """The file that has the picture's own name counts; the other is reported."""
    images = make({"a.jpg": None})
    make({"gt_a.txt": "1,2,3,4,5,6,7,8,x", "a.txt": "1,2,3,4,5,6,7,8,y"}, into="gt")
    source = open_source(images)
    assert source["a.jpg"].polygons[0].text == "y" and kinds(source) == {"duplicate-annotation": 1}


def test_picture_named_like_an_annotation(make):
    """A picture that is itself called gt_... is matched by its whole name first."""
    images = make({"gt_a.jpg": None, "a.jpg": None})
    make({"gt_a.txt": "1,2,3,4,5,6,7,8,x", "gt_gt_a.txt": "1,2,3,4,5,6,7,8,y"}, into="gt")
    source = open_source(images)
    assert source["gt_a.jpg"].polygons[0].text == "x" and not source["a.jpg"].annotated


def test_file_vanishes_after_opening(make):
    """A file that is gone when its sample is read costs that sample its annotation, no more."""
    images = make({"a.jpg": None})
    gt = make({"a.txt": "1,2,3,4,5,6,7,8,x"}, into="gt")
    source = open_source(images)
    (gt / "a.txt").unlink()
    sample = source["a.jpg"]
    assert not sample.annotated and [p.kind for p in sample.problems] == ["unreadable-annotation"]
