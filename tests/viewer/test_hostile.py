"""Stores whose metadata and attributes are of any type and value: every answer is JSON in words."""

import math

import numpy as np
import pyarrow as pa
import pytest

import ocrstore
from tests.viewer.conftest import QUADS

SIDE = 16
HUGE = 1e308
LISTS = pa.list_(pa.list_(pa.float64()))

COLUMNS = {
    "image": ocrstore.Column("uint8", (None, None, 3)),
    "tensor": ocrstore.Column("uint8", (SIDE, SIDE, 3)),
    "inverse_matrix": ocrstore.Column("float64", (3, 3)),
    "prob_map": ocrstore.Column("float32", (SIDE, SIDE)),
    "thresh_map": ocrstore.Column("float32", (None, None)),
}
VIEW = {name: name for name in COLUMNS if name != "image"}

METADATA = {
    "views a list": {"views": [1, 2]},
    "views null": {"views": None, "default_view": {"a": 1}},
    "a view a text": {"views": {"a": "b", "": {"columns": []}}},
    "columns of other types": {"views": {"a": {"columns": {"tensor": 3, "prob_map": ["x"]}}}},
    "columns mixed up": {
        "views": {
            "a": {"columns": {"tensor": "image", "prob_map": "thresh_map", "x": "tensor"}},
            "b": {"columns": {"tensor": "prob_map", "inverse_matrix": "image"}},
            "c\u202e\x1b[31m<b>": {"columns": {"tensor": "none", "prob_map": "prob_map"}},
        },
        "default_view": ["a"],
    },
    "numbers": {"views": {"1": {"columns": VIEW, "recipe": [[]] * 99}}, "default_view": 1e300},
}

ATTRIBUTES = {
    "nothing": ({}, [{}]),
    "polygons a number": ({"polygons": pa.int64()}, [{"polygons": 5}]),
    "polygons a text": ({"polygons": pa.string()}, [{"polygons": "abc"}]),
    "polygons of texts": ({"polygons": pa.list_(pa.list_(pa.string()))}, [{"polygons": [["a"]]}]),
    "polygons flat": ({"polygons": pa.list_(pa.float64())}, [{"polygons": QUADS[0]}]),
    "polygons of structs": (
        {"polygons": pa.list_(pa.struct([("x", pa.float64())]))},
        [{"polygons": [{"x": 1.0}]}],
    ),
    "polygons of points": (
        {"polygons": pa.list_(pa.list_(pa.list_(pa.float64())))},
        [{"polygons": [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]}],
    ),
    "polygons with holes": (
        {"polygons": LISTS, "ignored": pa.list_(pa.bool_()), "texts": pa.list_(pa.string())},
        [
            {"polygons": [None, [], [1.0], [1.0, 2.0], [1.0, 2.0, 3.0, 4.0], QUADS[0]]},
            {"polygons": [[None] * 8, [math.nan] * 8, [math.inf] * 8, [HUGE, -HUGE] * 4]},
            {"polygons": list(QUADS), "ignored": [None], "texts": [None, None]},
            {"polygons": None, "ignored": [True] * 9, "texts": ["a"] * 9},
        ],
    ),
    "all of other types": (
        {name: pa.list_(pa.int8()) for name in ("width", "height", "texts", "ignored")},
        [{"width": [1], "height": [2], "texts": [3], "ignored": [4]}],
    ),
    "texts a struct": (
        {name: pa.struct([("a", pa.binary())]) for name in ("texts", "languages", "problems")},
        [{"texts": {"a": b"\xff"}, "languages": {"a": None}, "problems": None}],
    ),
    "sizes": (
        {"width": pa.int64(), "height": pa.int64()},
        [
            {"width": 0, "height": -5},
            {"width": 2**63 - 1, "height": 2**63 - 1},
            {"width": None, "height": 3},
        ],
    ),
    "sizes not finite": (
        {"width": pa.float64(), "height": pa.float64(), "hmean": pa.string()},
        [{"width": math.nan, "height": math.inf, "hmean": "\x1b"}],
    ),
    "flags": (
        {"width": pa.bool_(), "height": pa.bool_(), "polygons_count": pa.string()},
        [{"width": True, "height": True, "polygons_count": "x"}],
    ),
}

MATRICES = (
    np.eye(3),
    np.zeros((3, 3)),
    np.full((3, 3), np.nan),
    np.diag([1e300, 1e-300, 1.0]),
    np.diag([1e-308, 1e-308, 1e-308]),
    np.array([[1, 0, 0], [0, 1, 0], [-0.1, 0, 1.0]]),
    np.array([[1, 2, 3], [2, 4, 6], [0, 0, 1.0]]),
    np.full((3, 3), np.inf),
)
SIZES = ((20, 30), (0, 0), (0, 7), (1, 3000))


def write(path, *, metadata, types, records):
    """Write a store with every matrix and size of picture; records take turns."""
    with ocrstore.create(path, COLUMNS, metadata=metadata, attributes=types) as writer:
        for number, matrix in enumerate(MATRICES):
            size = SIZES[number % len(SIZES)]
            arrays = {
                "image": np.zeros((*size, 3), np.uint8),
                "tensor": np.full((SIDE, SIDE, 3), 9, np.uint8),
                "inverse_matrix": matrix,
                "prob_map": np.full((SIDE, SIDE), np.nan, np.float32),
                "thresh_map": np.full(size, np.inf, np.float32),
            }
            record = records[number % len(records)]
            writer.append(f"k{number}\u202e\x1b.jpg", arrays, attributes=record)
    return path


def ask_everything(client):
    """Ask for whatever the page asks for; only refusals in words are answers too."""
    facts = client.json("/api/store")
    fields = [field["name"] for field in facts["fields"] if field["sortable"]]
    for sort in ("", *fields):
        assert client.json("/api/rows", sort=sort)["total"] == len(MATRICES)
    for text in ("k1", "row < 3", "polygons IS NULL"):
        assert client.request("/api/rows", filter=text)[0] in (200, 400)
    for row in range(len(MATRICES)):
        sample = client.json("/api/sample", row=row)
        assert len(sample["ignored"]) == len(sample["polygons"])
        assert all(len(flat) % 2 == 0 for flat in sample["polygons"])
        for name in ("texts", "languages", "problems"):
            assert sample[name] is None or isinstance(sample[name], list)
        for path, query in [
            ("thumbnail", {"outlines": 1}),
            ("thumbnail", {"side": 640}),
            *(("picture", {"column": column}) for column in COLUMNS),
        ]:
            status, _, body = client.request(f"/{path}/{row}", **query)
            assert status in (200, 404), (path, query, row, body)


@pytest.mark.parametrize("name", METADATA)
def test_metadata(start_viewer, tmp_path, name):
    """Views that are no views are left out."""
    path = write(tmp_path / "a.ocrs", metadata=METADATA[name], types={}, records=[{}])
    ask_everything(start_viewer(path))


@pytest.mark.parametrize("predictions", [False, True])
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes(start_viewer, tmp_path, name, predictions):
    """Attributes of another type than the name promises are shown as they are."""
    types, records = ATTRIBUTES[name]
    metadata = {"views": {"v": {"columns": VIEW}}}
    path = write(tmp_path / "a.ocrs", metadata=metadata, types=types, records=records)
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    for number in range(len(MATRICES)):
        text = "10,10,90,10,90,34,10,34\n" if number % 2 else ""
        (boxes / f"k{number}\u202e\x1b.txt").write_text(text)
    ask_everything(start_viewer(path, predictions=[boxes] if predictions else []))
