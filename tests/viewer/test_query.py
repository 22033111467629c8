"""Filters: the grammar, what they let through, what they say when they are wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocrstore.viewer.fields import read_fields
from ocrstore.viewer.filtering import select
from ocrstore.viewer.grammar import Both, Comparison, FilterError, Literal, Name, Not, parse
from ocrstore.viewer.samples import Orderings, Query


@pytest.fixture(scope="module")
def fields(opened):
    """The fields of the shared store."""
    return read_fields(opened, {})


def numbers(text, fields):
    """Which samples a filter lets through, by number."""
    return [row for row, kept in enumerate(select(text, fields)) if kept]


def test_precedence():
    """`not` binds before `and`, `and` before `or`; parentheses before all."""
    tree = parse("a or not b and (c or d)")
    assert isinstance(tree, Both) and tree.either and tree.left == Name("a", 0)
    right = tree.right
    assert isinstance(right, Both) and not right.either and isinstance(right.left, Not)
    assert isinstance(right.right, Both) and right.right.either


def test_literals():
    """Numbers, texts in either quote, flags, and names in backticks."""
    assert parse("a = -1.5e3").right == Literal(-1500.0, 4)
    assert parse("a = 12").right == Literal(12, 4)
    assert parse("a ~ 'it\\'s'").right.value == "it's"
    assert parse('a ~ "\\\\d+"').right.value == "\\\\d+"
    assert parse("a == TRUE") == Comparison(Name("a", 0), "=", Literal(True, 5), 2)
    assert parse("`960/tensor.nbytes` > 3").left.name == "960/tensor.nbytes"
    assert parse("polygons.count<>3").sign == "!="


CASES = {
    "width > 130": [0, 2, 4, 6, 8, 10],
    "polygons.count >= 3": [3, 7, 11],
    "ignored.true = 1": [3, 7, 11],
    'key ~ "IMG_1"': [10, 11],
    'key = "img_03.jpg" or row = 5': [3, 5],
    'key !~ "img_0[0-9]"': [10, 11],
    'texts ~ "total" and texts != "12.50"': [1, 5, 9],
    'texts = "###"': [3, 7, 11],
    "not annotated": [0, 3, 6, 9],
    "annotated = false and width > height": [0, 6],
    "weight < 3 and weight > 1.9": [4],
    "not (weight >= 0)": [5],
    "image.nbytes > 0 and row < 2": [0, 1],
    "polygons.count == ignored.count and row <= 1": [0, 1],
}


@pytest.mark.parametrize("text", CASES)
def test_what_passes(text, fields):
    """Each kind of comparison; what is missing never passes."""
    assert numbers(text, fields) == CASES[text]


WRONG = {
    "widht > 3": ("did you mean width", 0),
    "polygons > 3": ("did you mean polygons.count", 0),
    "width > 3 and": ("ends too early", 13),
    "width >": ("ends too early", 7),
    "(width > 3": ("never closed", 0),
    'key ~ "abc': ("quote is never closed", 6),
    "width > 3 height": ("expected `and`", 10),
    "3 < width": ("begins with a field", 0),
    "width ~ 3": ("looks into texts", 6),
    'width = "3"': ("width is a number, not a text", 8),
    "key = 3": ("texts stand in quotes", 6),
    "width": ("compare it with something", 0),
    "annotated > true": ("only = and !=", 10),
    "width > key": ("cannot be compared", 8),
    "width @ 3": ("not understood", 6),
    'key ~ "("': ("missing", 4),
    "width ) 3": ("expected `and`", 6),
    "width and or": ("found or", 10),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong(text, fields):
    """The message says what, the position where."""
    words, position = WRONG[text]
    with pytest.raises(FilterError) as caught:
        select(text, fields)
    assert words in str(caught.value)
    assert caught.value.position == position


def test_limits():
    """Filters are neither endless nor endlessly nested."""
    with pytest.raises(FilterError, match="at most"):
        parse("a" * 3000)
    with pytest.raises(FilterError, match="nested"):
        parse("(" * 500 + "a" + ")" * 500)
    with pytest.raises(FilterError, match="nested"):
        parse("not " * 400 + "a")


@given(st.text(max_size=60) | st.text(alphabet="wkey.not and() <>=~'\"3", max_size=40))
def test_any_text_is_a_filter_or_an_error(text):
    """Nothing but FilterError comes out, whatever is typed."""
    try:
        parse(text)
    except FilterError as exc:
        assert exc.position is None or 0 <= exc.position <= len(text)


def test_order(opened, fields):
    """Sorted either way, stable, with what is missing last."""
    orderings = Orderings(opened, fields)

    def rows(**options):
        return orderings.rows(Query(**options)).tolist()

    assert rows() == list(range(12))
    assert rows(sort="width") == [1, 3, 5, 7, 9, 11, 0, 2, 4, 6, 8, 10]
    assert rows(sort="width", descending=True) == [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]
    assert rows(sort="weight", descending=True)[-1] == 5 == rows(sort="weight")[-1]
    assert rows(sort="key", descending=True, filter="width > 130") == [10, 8, 6, 4, 2, 0]
    assert rows(sort="row", descending=True)[0] == 11
    for wrong in ("texts", "nothing"):
        with pytest.raises(FilterError, match="cannot sort"):
            rows(sort=wrong)


def test_sql(opened, fields):
    """SQL conditions see the whole index, and nothing else."""
    pytest.importorskip("duckdb", reason="SQL conditions need ocrstore[sql]")
    from ocrstore.viewer.query import select_sql

    def rows(text):
        return select_sql(text, opened, fields).nonzero()[0].tolist()

    assert rows("len(polygons) = 3 -- said in SQL") == [3, 7, 11]
    assert rows("list_contains(texts, '12.50') AND width > 130") == [2, 6, 10]
    assert rows("weight IS NULL") == [5]
    assert rows('"row" BETWEEN 2 AND 3') == [2, 3]
    assert rows("1 = 0) UNION ALL (SELECT 99") == []
    for text, words in {
        "nothing > 3": "nothing",
        "width >": "syntax error",
        "true); DROP TABLE samples; SELECT (1": "one condition",
        "key IN (SELECT content FROM read_text('/etc/hostname'))": "disabled",
        "key IN (SELECT * FROM read_csv('/etc/passwd'))": "disabled",
        "(SELECT count(*) FROM '/etc/passwd') > 0": "passwd",
    }.items():
        with pytest.raises(FilterError, match=words):
            rows(text)
    with pytest.raises(FilterError, match="given up"):
        many = "SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range*b.range%7=3"
        select_sql(f"({many}) > 0", opened, fields, seconds=0.3)
