"""The public names: what users may rely on changes only on purpose."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import ocrstore
from ocrstore import errors


def test_all_is_sorted_and_present():
    """Every public name exists, once, in order."""
    assert list(ocrstore.__all__) == sorted(set(ocrstore.__all__))
    for name in ocrstore.__all__:
        assert getattr(ocrstore, name) is not None


def test_all_names_are_listed_before_they_are_used():
    """`dir()` shows what is imported by need, too; what does not exist is an AttributeError."""
    assert set(ocrstore.__all__) <= set(dir(ocrstore))
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        ocrstore.opne  # the access is the test


def test_no_module_takes_the_place_of_a_public_name():
    """Importing a module sets its name in the package, which must not hide a function."""
    package = Path(ocrstore.__file__).parent
    assert not {path.stem for path in package.iterdir()} & set(ocrstore.__all__)
    importlib.import_module("ocrstore.verification")
    assert callable(ocrstore.verify)


def test_every_error_is_public_and_has_one_root():
    """All exceptions derive from OCRStoreError, are exported, and stand in the drawn tree."""
    found = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and not name.startswith("_")
    }
    for name, value in found.items():
        assert issubclass(value, ocrstore.OCRStoreError)
        assert getattr(ocrstore, name) is value
        assert name in (errors.__doc__ or "")


def test_errors_are_also_the_builtin_kind():
    """Callers that know only the builtin exceptions catch ours too."""
    assert issubclass(ocrstore.UnknownSampleError, KeyError)
    assert issubclass(ocrstore.UnknownColumnError, KeyError)
    assert issubclass(ocrstore.UnknownRowError, IndexError)
    assert issubclass(ocrstore.SchemaError, ValueError)
    assert issubclass(ocrstore.StoreExistsError, FileExistsError)
    assert issubclass(ocrstore.WriteError, OSError)
    assert str(ocrstore.UnknownSampleError("no sample 'a'")) == "no sample 'a'"
