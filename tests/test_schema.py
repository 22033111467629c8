"""The table of built-in columns, and the places that cannot read it from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import ocrstore
from ocrstore import schema
from ocrstore.maps import Maps

PACKAGE = Path(ocrstore.__file__).parent


@pytest.mark.parametrize("name", schema.MAPS)
def test_maps_are_drawn(name):
    """`draw_maps` makes every map and mask of the table."""
    assert name in Maps.__slots__


def test_style_sheets_have_the_colours_of_the_table():
    """The legends of viewer and report show the colours of the overlays."""
    viewer = (PACKAGE / "viewer/static/style.css").read_text()
    report = (PACKAGE / "report/style.css").read_text()
    for name in schema.MAPS:
        column = schema.COLUMNS[name]
        colour = "#{:02x}{:02x}{:02x}".format(*column.colour)
        assert f".swatch.{name} {{ --mark: {colour};" in viewer
        if column.role == schema.MAP:
            assert f"--{name}: {colour};" in report


def test_shapes_follow_the_size_of_the_view():
    """Pictures have channels, maps do not, and whole pictures and matrices ignore the size."""
    shapes = {name: column.shape((7, 9)) for name, column in schema.COLUMNS.items()}
    assert shapes["image"] == (None, None, 3)
    assert shapes["tensor"] == (7, 9, 3)
    assert shapes["inverse_matrix"] == (3, 3)
    assert {shapes[name] for name in schema.MAPS} == {(7, 9)}
