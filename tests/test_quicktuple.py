"""A QuickTuple is what a NamedTuple of the same declaration is."""

from __future__ import annotations

import copy
import pickle
from typing import NamedTuple

import pytest

import ocrstore
from ocrstore.quicktuple import QuickTuple


class Quick(QuickTuple):
    """Under test."""

    first: int
    second: str = "b"
    third: tuple[int, ...] = ()

    @property
    def both(self) -> str:
        """A property beside the fields."""
        return f"{self.first}{self.second}"


class Model(NamedTuple):
    """What it must be like."""

    first: int
    second: str = "b"
    third: tuple[int, ...] = ()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((1,), {}),
        ((1, "x"), {}),
        ((1, "x", (2, 3)), {}),
        ((), {"first": 1}),
        ((1,), {"third": (4,)}),
        ((), {"third": (4,), "second": "y", "first": 0}),
    ],
)
def test_holds_what_a_named_tuple_holds(values, named):
    """Values by place, by name and by default."""
    quick, model = Quick(*values, **named), Model(*values, **named)
    assert quick == model and hash(quick) == hash(model)
    assert (quick.first, quick.second, quick.third) == tuple(model)
    assert repr(quick) == repr(model).replace("Model", "Quick")
    first, second, third = quick
    assert quick.both == f"{first}{second}" and third is quick.third


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((), {}),
        ((1, "x", (), 4), {}),
        ((1,), {"first": 1}),
        ((1,), {"fourth": 1}),
        ((), {"second": "x"}),
    ],
)
def test_refuses_what_a_named_tuple_refuses(values, named):
    """Too few, too many, unknown, given twice."""
    for kind in (Quick, Model):
        with pytest.raises(TypeError, match=kind.__name__):
            kind(*values, **named)


def test_is_pickled_and_copied_as_itself():
    """Other processes get the same kind."""
    quick = Quick(1, third=(2,))
    for other in (pickle.loads(pickle.dumps(quick)), copy.copy(quick), copy.deepcopy(quick)):
        assert type(other) is Quick and other == quick


def test_is_known_as_a_named_tuple():
    """Others know one by its fields; without any it was declared where they are not seen."""
    assert Quick._fields == Model._fields
    with pytest.raises(TypeError, match="no fields"):
        type(QuickTuple)("Empty", (QuickTuple,), {})


def test_cannot_be_changed():
    """Neither its fields nor others."""
    with pytest.raises(AttributeError):
        Quick(1).first = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Quick(1).fourth = 2  # type: ignore[attr-defined]


def test_matches_by_place():
    """As any tuple with names."""
    match Quick(1, "x"):
        case Quick(first, second):
            assert (first, second) == (1, "x")


def test_a_column_is_a_value():
    """Equal, hashed, shown, pickled and kept by its three fields."""
    column = ocrstore.Column("uint8", [2, None], codec="raw")  # type: ignore[arg-type]
    same = ocrstore.Column("u1", (2, None))
    assert column == same and hash(column) == hash(same) and column != "uint8"
    assert repr(column) == "Column(dtype='uint8', shape=(2, None), codec='raw')"
    for other in (pickle.loads(pickle.dumps(column)), copy.copy(column), copy.deepcopy(column)):
        assert type(other) is ocrstore.Column and other == column
    with pytest.raises(AttributeError, match="make another"):
        column.dtype = "int8"
    with pytest.raises(AttributeError, match="make another"):
        del column.shape
    assert column.dtype == "uint8"
