"""Without an extra: an error of ocrstore with the command that installs it."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import ocrstore
from ocrstore.errors import needs
from tests.drawn import bare_store

CASES = [
    ("torch", "import ocrstore.torch", "torch"),
    ("torch", "from ocrstore.torch.dataset import OCRStoreDataset", "torch"),
    ("torch", "from ocrstore.dbnet.predict import Detector", "torch"),
    ("cv2", "ocrstore.build", "build"),
    ("cv2", "ocrstore.Recipe", "build"),
    ("PIL", "ocrstore.build", "build"),
    ("pyclipper", "ocrstore.add_view", "build"),
    ("cv2", "ocrstore.verify(path, source='.')", "build"),
    ("cv2", "import ocrstore.evaluation.icdar2015", "build"),
    ("yaml", "ocrstore.recipe.read_recipe('a.yaml')", "build"),
    ("matplotlib", "ocrstore.plot({})", "plot"),
    ("albumentations", "ocrstore.Recipe.make(pipeline=object())", "augment"),
    ("nvidia", "import ocrstore.dali", "dali"),
    ("uvicorn", "import ocrstore.viewer.app", "view"),
]


@pytest.mark.parametrize(("package", "code", "extra"), CASES)
def test_python_says_what_to_install(tmp_path, package, code, extra):
    """The error is ours and an ImportError; its message is the pip command."""
    if package == "nvidia":
        pytest.importorskip("torch")
    path = bare_store(tmp_path / "a.ocrs")
    program = f"""
import sys
import ocrstore
if {"recipe" in code}: import ocrstore.recipe
sys.modules[{package!r}] = None
path = {str(path)!r}
try:
    {code}
except ocrstore.MissingPackageError as exc:
    assert isinstance(exc, ocrstore.OCRStoreError) and isinstance(exc, ImportError)
    print(exc.name, exc)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    expected = f'{package} {package} is not installed: pip install "ocrstore[{extra}]"'
    assert done.stdout.startswith(expected) and done.stderr == ""


def test_a_module_of_ocrstore_is_no_extra():
    """A misspelt module of ours is not something to install."""
    with pytest.raises(ModuleNotFoundError, match="nothing") as caught, needs("build"):
        importlib.import_module("ocrstore.nothing")
    assert not isinstance(caught.value, ocrstore.MissingPackageError)
