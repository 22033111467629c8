"""Foreign packages that are missing or do not fit: the message says which versions do."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ocrstore.packages import FITTING, explain_imports

ROOT = Path(__file__).parents[1]


def test_the_table_has_the_bounds_of_the_project():
    """Every package of it is a dependency with this very bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    declared = {*project["dependencies"], *(line for extra in extras for line in extra)}
    assert {fitting.partition(";")[0] for fitting in FITTING.values()} <= declared


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("import ocrstore; ocrstore.open", "needs NumPy 7 .*found: pyarrow .*works with pyarrow>="),
        ("import ocrstore.torch", "needs NumPy 7 .*found: pyarrow .*works with pyarrow>="),
        ("import sys; sys.argv[1:] = ['verify', 'setup.cfg']; import ocrstore.cli as c; c.main()",
         "`ocrstore verify` cannot run here: needs NumPy 7 .*works with pyarrow>="),
    ],
)  # fmt: skip
def test_a_package_that_cannot_be_imported(tmp_path, statement, said):
    """Its own words come first, then what is installed, then what fits."""
    if "torch" in statement:
        pytest.importorskip("torch")
    (tmp_path / "pyarrow").mkdir()
    (tmp_path / "pyarrow" / "__init__.py").write_text("raise ImportError('needs NumPy 7')\n")
    (tmp_path / "setup.cfg").touch()
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; {statement}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode and re.search(said, done.stderr.splitlines()[-1]), done.stderr


def test_a_package_that_is_missing():
    """The type stays, for those who catch it; packages that nobody knows are left alone."""
    said = r"'cv2'; ocrstore works with opencv-python"
    with pytest.raises(ModuleNotFoundError, match=said), explain_imports():
        raise ModuleNotFoundError("No module named 'cv2'", name="cv2")
    with pytest.raises(ImportError, match=r"^of another kind$"), explain_imports():
        raise ImportError("of another kind", name="ours")
