"""Filters: words or SQL, what they select, their errors, and the limits of the child processes."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import psutil
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocrstore
from ocrstore.errors import FilterError
from ocrstore.viewer import query
from ocrstore.viewer.query import BusyError, Filter
from ocrstore.viewer.samples import Selection, Selector, read_fields
from tests.building.test_frames import RAW, UPRIGHT, Words

pytest.importorskip("duckdb", reason="SQL conditions need ocrstore[sql]")

SLOW = "(SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range*b.range%7=3) > 0"


@pytest.fixture(scope="module")
def fields(opened):
    """The fields of the shared store."""
    return read_fields(opened, {})


@pytest.fixture(scope="module")
def shared(fields):
    """A filter over the shared store."""
    with Selector(fields).filter as made:
        yield made


def make_table(texts, **columns):
    """A table of samples with these texts."""
    keys = [f"k{row}.jpg" for row in range(len(texts))]
    rows = np.arange(len(texts))
    return pa.table({"row": rows, "key": keys, "texts": texts, **columns})


@pytest.fixture
def children():
    """A function that lists the child processes that a test has started."""
    before = set(psutil.Process().children())
    return lambda: [child for child in psutil.Process().children() if child not in before]


# ---- words or SQL ----


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("total", False),
        ("grand total 12.50", False),
        ('"width > 3"', False),
        ('"a (b)" total', False),
        ("made in china", False),
        ("width > 3", True),
        ('"960/tensor_nbytes" > 3', True),
        ("total = 3", True),
        ("len(polygons)", True),
        ("annotated", True),
        ("not Annotated", True),
        ("weight IS NULL", True),
        ("widths", False),
        ('"width"', False),
        ('"width" IS NULL', False),
    ],
)
def test_words_or_sql(shared, text, sql):
    """A sign of SQL outside of quotes, or a field at the start, makes a filter SQL."""
    assert shared.is_sql(text) is sql


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("img_1", [10, 11]),
        ("IMG_03", [3]),
        ("total", [1, 2, 3, 5, 6, 7, 9, 10, 11]),
        ("###", [3, 7, 11]),
        ("total 12.50 img_0", [2, 3, 6, 7]),
        ("nothing", []),
        ('""', list(range(12))),
    ],
)
def test_words(shared, text, rows):
    """Every word is somewhere in the key or one of the texts."""
    assert shared.rows(text).tolist() == rows


def test_words_of_any_language():
    """Case, accents written in two ways and full width do not matter; nulls are no texts."""
    texts = [["CAFÉ"], ["cafe\u0301"], ["Straße 12"], ["ΟΔΟΣ"], ["合計　１２"], None, [None, "грн"]]
    with Filter(make_table(pa.array(texts, pa.list_(pa.string())))) as made:
        found = {
            text: made.rows(text).tolist()
            for text in ("café", "CAFE\u0301", "STRASSE", "οδος", "合計 12", "ГРН", '"12"')
        }
    assert found == {
        "café": [0, 1],
        "CAFE\u0301": [0, 1],
        "STRASSE": [2],
        "οδος": [3],
        "合計 12": [4],
        "ГРН": [6],
        '"12"': [2, 4],
    }


def test_phrases_stay_within_one_text():
    """Quotes keep words together; two texts are no phrase. Texts of another type are ignored."""
    with Filter(make_table([["grand total"], ["grand", "total"]])) as made:
        assert made.rows('"Grand Total"').tolist() == [0]
        assert made.rows("total grand").tolist() == [0, 1]
    with Filter(make_table([1, 2])) as made:
        assert made.rows("k1").tolist() == [1]


# ---- SQL ----


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("width > 130", [0, 2, 4, 6, 8, 10]),
        ("polygons_count >= 3", [3, 7, 11]),
        ("ignored_true = 1", [3, 7, 11]),
        ("key LIKE 'img_1%'", [10, 11]),
        ("len(polygons) = 3 -- a comment", [3, 7, 11]),
        ("list_contains(texts, '12.50') AND width > 130", [2, 6, 10]),
        ("weight IS NULL", [5]),
        ("NOT annotated", [0, 3, 6, 9]),
        ("row BETWEEN 2 AND 3", [2, 3]),
        ("image_nbytes > 0 and row < 2", [0, 1]),
        ("source_hash > 9223372036854775805", [0, 1]),
        ("1 = 0) UNION ALL (SELECT 99", []),
        ("1 = 0) UNION ALL (SELECT 1 FROM range(3)", [1]),
        ("row IN (SELECT max(row) FROM samples)", [11]),
    ],
)
def test_sql(shared, text, rows):
    """Conditions over attributes, lists and derived numbers; only rows of the store come back."""
    assert shared.rows(text).tolist() == rows


def test_every_type_of_attribute(tmp_path):
    """Unsigned 64 bit, float16, structs, binary, names that differ in case, an attribute `row`."""
    types = {
        "source_hash": pa.uint64(),
        "half": pa.float16(),
        "halves": pa.list_(pa.float16()),
        "place": pa.struct([("x", pa.int32())]),
        "data": pa.binary(),
        "Half": pa.int8(),
        "row": pa.string(),
        "polygons_count": pa.string(),
        "polygons": pa.list_(pa.list_(pa.float64())),
    }
    columns = {"a": ocrstore.Column("int8", (1,))}
    with ocrstore.create(tmp_path / "a.ocrs", columns, attributes=types) as writer:
        for number in range(3):
            writer.append(
                f"k{number}",
                {"a": np.zeros(1, np.int8)},
                attributes={
                    "source_hash": 2**64 - 1 - number,
                    "half": np.float16(number / 2),
                    "halves": [np.float16(1)],
                    "place": {"x": number},
                    "data": b"\xff",
                    "Half": 1,
                    "row": "text",
                    "polygons_count": "many",
                    "polygons": [[1.0]] * number,
                },
            )
    found = read_fields(ocrstore.open(tmp_path / "a.ocrs"), {})
    selector = Selector(found)
    with selector.filter as made:
        assert made.rows("source_hash > 5").tolist() == [0, 1, 2]
        assert made.rows("source_hash > 18446744073709551613").tolist() == [0, 1]
        assert made.rows("half = 0.5 AND place.x = 1 AND len(data::VARCHAR) > 0").tolist() == [1]
        assert made.rows("polygons_count = 'many' AND len(polygons) = 2").tolist() == [2]
        assert selector.rows(Selection(sort="half", descending=True)).tolist() == [2, 1, 0]
        assert selector.rows(Selection(sort="source_hash")).tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("text", "words", "position"),
    [
        ("widht > 3", "no field widht; did you mean width", 0),
        ("width > 3 AND é > widht", "no field é", 14),
        ("key != 'é' AND widht > 3", "no field widht", 15),
        ("width > 3 and", "incomplete", 13),
        ("width >", "incomplete", 7),
        ("width > 3 height", "syntax error", 10),
        ("row 12", "put it in double quotes", 4),
        ("width > 'abc'", "Could not convert", 8),
        ("nothing(width)", "nothing does not exist", 0),
        ("key ~ '(' AND row = 1", "missing", None),
        ("(" * 1000 + "row" + ")" * 900, "incomplete", 1903),
        ("width > '" + "a" * 2000, "at most 2000 characters", None),
        ("width = 1; width = 2", "syntax error", 9),
        ("true); DROP TABLE samples; SELECT (1", "one condition", None),
    ],
)
def test_what_is_wrong(shared, text, words, position):
    """The message says what in plain words, the position where."""
    with pytest.raises(FilterError, match=words) as caught:
        shared.rows(text)
    assert caught.value.position == position
    assert "{" not in str(caught.value)


HOSTILE = [
    "key IN (SELECT content FROM read_text('/etc/hostname'))",
    "key IN (SELECT * FROM read_csv('/etc/passwd'))",
    "(SELECT count(*) FROM '/etc/passwd') > 0",
    "(SELECT count(*) FROM glob('/*')) > 0",
    "(SELECT count(*) FROM 'https://example.org/a.csv') > 0",
    "(SELECT count(*) FROM read_parquet('s3://a/b')) > 0",
    "(SELECT count(*) FROM table) > 0",
    "(SELECT count(*) FROM data) > 0",
    "true); COPY samples TO '/tmp/stolen.csv'; SELECT (1",
    "true); ATTACH '/tmp/other.db'; SELECT (1",
    "true); INSTALL httpfs; SELECT (1",
    "true); SET enable_external_access = true; SELECT (1",
    "true); PRAGMA database_list; SELECT (1",
    "row IN (WITH x AS (DELETE FROM samples RETURNING 1) SELECT 1)",
    "json_execute_serialized_sql('x')",
    "getenv('HOME') = ''",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_query_reaches_nothing_but_the_samples(shared, text):
    """No files, network, extensions, settings, variables of this program, and no changes."""
    with pytest.raises(FilterError):
        shared.rows(text)
    assert shared.rows("true = true").tolist() == list(range(12))


@settings(max_examples=200, deadline=None)
@given(
    st.text(max_size=60)
    | st.text(alphabet="width key.not and() <>=~'\"3;-[]{}", max_size=40).map("width > ".__add__)
)
def test_any_text_is_a_filter_or_an_error(shared, text):
    """Rows or a FilterError, whatever is typed; and the next query works."""
    try:
        assert set(shared.rows(text).tolist()) <= set(range(12))
    except FilterError as exc:
        assert exc.position is None or 0 <= exc.position <= len(text)
    assert shared.rows("row = 3").tolist() == [3]


# ---- limits ----


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is set on Linux only")
def test_memory_is_limited():
    """A query that asks for gigabytes fails, and its process never had them."""
    code = """
import resource, pyarrow as pa
from ocrstore.errors import FilterError
from ocrstore.viewer.query import Filter
table = pa.table({"row": [0, 1], "key": ["a", "b"]})
with Filter(table) as made:
    for text in ("len(range(3000000000)) > 0", "len(repeat('a', 2000000000)) > 0",
                 "(SELECT len(list(range)) FROM range(2000000000)) > 3",
                 "(SELECT count(DISTINCT range::VARCHAR) FROM range(2000000000)) > 3"):
        try:
            made.rows(text)
        except FilterError as exc:
            assert "memory" in str(exc) or "stopped" in str(exc), exc
        else:
            raise AssertionError(text)
        assert made.rows("row = 1").tolist() == [1]
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2 * (query.MEMORY >> 20)


def test_time_is_limited(children):
    """A slow query is killed with its process; the next one gets a new process."""
    with Filter(make_table([["a"]]), seconds=0.5) as made:
        made.rows("row = 0")
        (first,) = children()
        with pytest.raises(FilterError, match=r"stopped after 0\.5 seconds"):
            made.rows(SLOW)
        assert not first.is_running()
        assert made.rows("row = 0").tolist() == [0]


def test_processes_that_die(children):
    """An idle one is replaced; one that dies over a query is an error that says so."""
    with Filter(make_table([["a"]])) as made:
        made.rows("row = 0")
        (idle,) = children()
        idle.kill()
        idle.wait()
        assert made.rows("row = 0").tolist() == [0]
        (busy,) = children()
        killer = threading.Timer(0.5, busy.kill)
        killer.start()
        with pytest.raises(FilterError, match=f"code -{int(signal.SIGKILL)}"):
            made.rows(SLOW)
        killer.join()
        assert made.rows("row = 0").tolist() == [0]
    assert children() == []


def test_two_at_a_time(children):
    """Of many slow queries two run, some wait, the rest is refused at once; words never wait."""
    found = []

    def ask(made):
        try:
            made.rows(SLOW)
        except (FilterError, BusyError) as exc:
            found.append(type(exc))

    with Filter(make_table([["a"]]), seconds=1) as made:
        threads = [threading.Thread(target=ask, args=(made,)) for _ in range(20)]
        for thread in threads:
            thread.start()
        assert made.rows("k0").tolist() == [0]
        most = 0
        while any(thread.is_alive() for thread in threads):
            most = max(most, len(children()))
            threads[0].join(0.01)
        assert 1 <= most <= query.PROCESSES
        assert found.count(BusyError) >= 20 - query.PROCESSES - query.MAX_WAITING
        assert found.count(FilterError) >= query.PROCESSES
        assert made.rows("row = 0").tolist() == [0]
    assert children() == []


def test_without_duckdb(tmp_path, monkeypatch):
    """The message says what to install; words work all the same."""
    (tmp_path / "duckdb.py").write_text("raise ImportError('not here')")
    monkeypatch.syspath_prepend(tmp_path)
    with Filter(make_table([["a"]])) as made:
        with pytest.raises(FilterError, match=r"ocrstore\[sql\]"):
            made.rows("row = 0")
        assert made.rows("k0").tolist() == [0]


def test_no_module_of_the_current_folder(tmp_path, monkeypatch):
    """A file that lies beside the store is not imported into the child process."""
    (tmp_path / "duckdb.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    with Filter(make_table([["a"]])) as made:
        assert made.rows("row = 0").tolist() == [0]


# ---- order ----


def test_order(fields):
    """Sorted either way, stable, with nulls last."""
    selector = Selector(fields)

    def rows(**options):
        return selector.rows(Selection(**options)).tolist()

    with selector.filter:
        assert rows() == list(range(12))
        assert rows(sort="width") == [1, 3, 5, 7, 9, 11, 0, 2, 4, 6, 8, 10]
        assert rows(sort="width", descending=True) == [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]
        assert rows(sort="weight", descending=True)[-1] == 5 == rows(sort="weight")[-1]
        assert rows(sort="key", descending=True, filter="width > 130") == [10, 8, 6, 4, 2, 0]
        assert rows(sort="row", descending=True)[0] == 11
        assert rows(sort="annotated")[:4] == [0, 3, 6, 9]
        for wrong in ("texts", "polygons", "nothing"):
            with pytest.raises(FilterError, match="cannot sort"):
                rows(sort=wrong)


def test_turned_pictures(tmp_path):
    """A filter finds the pictures with an EXIF rotation, and the frame of their polygons."""
    words = Words(tmp_path)
    words.add("raw.jpg", RAW)
    words.add("up.jpg", UPRIGHT)
    words.build()
    found = read_fields(ocrstore.open(words.store), {})
    assert found["source_orientation"].values.to_pylist() == [6, 6]
    with Selector(found).filter as made:
        assert list(made.rows("turned = true")) == [0, 1]
        assert list(made.rows("polygons_frame = 'upright'")) == [1]
