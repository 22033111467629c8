"""docs/sources.md says what the code does: its examples run, its tables are whole."""

import re
from pathlib import Path

import pytest

from ocrstore.errors import SourceError
from ocrstore.problems import SOURCE_KINDS
from ocrstore.sources import (
    Dialect,
    all_dialects,
    get_dialect,
    open_source,
    register,
    unregister,
)
from ocrstore.sources.detect import SIBLING_FILES, SIBLING_FOLDERS
from ocrstore.sources.pictures import PICTURE_SUFFIXES

TEXT = (Path(__file__).parents[2] / "docs" / "sources.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def example():
    """Run one of the documentation's class examples; what it registers is forgotten afterwards."""
    names = []

    def run(word):
        (code,) = (code for code in EXAMPLES if f"class {word}" in code)
        before = {dialect.name for dialect in all_dialects()}
        exec(code, {})
        names.extend({dialect.name for dialect in all_dialects()} - before)

    yield run
    for name in names:
        unregister(name)


def test_every_kind_is_listed():
    """The table of problems has each kind, its meaning and whether it loses something."""
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*) \| (yes|no) \|$", TEXT, re.MULTILINE)
    assert rows == [(k, v.meaning, "yes" if v.loses else "no") for k, v in SOURCE_KINDS.items()]


def test_every_dialect_is_listed():
    """The table of dialects has a row for each."""
    rows = re.findall(r"^\| `([a-z][a-z0-9-]*)` \| .* \| .* \| .* \|$", TEXT, re.MULTILINE)
    assert sorted(rows) == sorted(dialect.name for dialect in all_dialects())


def test_endings_and_places_are_listed():
    """The endings of pictures and the places that are looked at stand in the text."""
    for word in (*PICTURE_SUFFIXES, *SIBLING_FOLDERS, *SIBLING_FILES):
        assert word in TEXT


def test_first_example_runs(make, tmp_path, monkeypatch, capsys):
    """The opening example runs on a folder as it describes."""
    words = {"images": {"a.jpg": {"words": {}}}}
    make({"a.jpg": None})
    make({"gt_a.txt": "0,0,9,0,9,9,0,9,w"}, into="gt")
    make({"gt_a.txt": "0,0,9,0,9,9,0,9,Latin,w"}, into="x")
    make({"train.json": words}, into=".")
    monkeypatch.chdir(tmp_path)
    exec(EXAMPLES[0], {})
    assert "a.jpg True 1 ()" in capsys.readouterr().out


def test_per_picture_example(make, example, kinds):
    """The dialect of files per picture reads, is found by looking and is judged like any other."""
    example("Boxes")
    images = make({"a.jpg": None, "b.jpg": None})
    make({"a.boxes": "10 20 110 50 = TOTAL\n1 2 nan 4 = ?", "b.boxes": "1 2 3 4 = ?"})
    source = open_source(images)
    assert source.dialect == "boxes" and kinds(source) == {"not-finite": 1}
    (polygon,) = source["a.jpg"].polygons
    assert polygon.points.tolist() == [[10, 20], [110, 20], [110, 50], [10, 50]]
    assert polygon.text == "TOTAL" and source["b.jpg"].polygons[0].ignored


def test_dialect_that_fails(make, example):
    """An error inside a dialect loses one picture's annotation, and is reported with its type."""
    example("Boxes")
    images = make({"a.jpg": None, "b.jpg": None, "a.boxes": "x = y", "b.boxes": "1 2 3 4 = ?"})
    source = open_source(images)
    assert not source["a.jpg"].annotated and source["b.jpg"].annotated
    (problem,) = source["a.jpg"].problems
    assert problem.kind == "dialect-failed" and "ValueError" in problem.message


def test_whole_file_example(make, example, kinds):
    """The dialect of one file for all pictures reads, and names are matched for it."""
    example("Table")
    images = make({"a.jpg": None})
    table = [["d/a.jpg", 0, 0, 9, 0, 9, 9], ["gone.jpg", 1, 2]]
    source = open_source(images, annotations=make({"t.json": {"table": table}}, into="ann"))
    assert source.dialect == "table" and kinds(source) == {"missing-picture": 1}
    assert source["a.jpg"].polygons[0].points.tolist() == [[0, 0], [9, 0], [9, 9]]


class Nothing(Dialect):
    """A dialect that knows no file."""

    name = "nothing"
    looks_for = "nothing"

    def recognise(self, file):
        """Recognise nothing."""
        return False

    def regions(self, entry):
        """Give nothing."""
        return ()


def test_register_takes_a_name_once():
    """A name that is taken is refused unless it is replaced on purpose."""
    first, second = Nothing(), Nothing()
    try:
        assert register(first) is first
        with pytest.raises(SourceError, match="'nothing' is already registered"):
            register(Nothing)
        assert register(second, replace=True) is second and get_dialect("nothing") is second
    finally:
        unregister("nothing")
    with pytest.raises(SourceError, match="unknown dialect"):
        unregister("nothing")
