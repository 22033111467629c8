"""The direction of DESIGN: bytes know nothing of pictures, reading nothing of building or torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ocrstore

PACKAGE = Path(ocrstore.__file__).parent
BUILDING = ("ocrstore.building", "ocrstore.sources", "ocrstore.recipe", "ocrstore.maps")
READING = ("store", "format/snapshot", "format/index", "format/codecs", "format/manifest")
HEAVY = {"torch", "lightning", "torchmetrics", "torchdata"}
PICTURES = {"cv2", "PIL", "simplejpeg", "turbojpeg", "pyclipper", "albumentations"}


def imports(path, *, top_level=False):
    """Names of all modules that a file imports; with `top_level` only those at once."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = tree.body if top_level else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def modules(folder=""):
    """All source files below a folder of the package."""
    return sorted((PACKAGE / folder).rglob("*.py"))


def roots(path, **options):
    """First parts of the names of the modules that a file imports."""
    return {name.split(".")[0] for name in imports(path, **options)}


@pytest.mark.parametrize("path", modules("format"), ids=lambda p: p.stem)
def test_the_format_knows_bytes_only(path):
    """Below format/: no pictures, no torch, and of ocrstore only errors and version."""
    assert not roots(path) & (HEAVY | PICTURES)
    own = {name for name in imports(path) if name.startswith("ocrstore")}
    allowed = ("ocrstore.format", "ocrstore.errors", "ocrstore.version")
    assert all(name.startswith(allowed) for name in own), own


@pytest.mark.parametrize("name", ["store", "verification", "export"])
def test_reading_never_imports_building(name):
    """The reading side works where nothing needed for building is installed.

    `verify(store, source=...)` imports what compares with a source when it is called.
    """
    names = set(imports(PACKAGE / f"{name}.py", top_level=True))
    assert not any(found.startswith(BUILDING) for found in names)


@pytest.mark.parametrize("name", READING)
def test_reading_does_not_import_lmdb(name):
    """Opening a store does not need liblmdb: its pages are read by ocrstore itself."""
    assert "lmdb" not in roots(PACKAGE / f"{name}.py", top_level=True)


def test_torch_is_imported_only_below_torch_and_dbnet():
    """No module outside of ocrstore/torch and ocrstore/dbnet imports torch or what needs it."""
    outside = [p for p in modules() if p.relative_to(PACKAGE).parts[0] not in ("torch", "dbnet")]
    # a command may import what it needs inside its function
    offenders = [path.name for path in outside if roots(path, top_level=True) & HEAVY]
    assert offenders == []


@pytest.mark.parametrize("path", modules("evaluation"), ids=lambda p: p.stem)
def test_evaluation_never_needs_torch(path):
    """Post-processing, metrics and the upper bound run where torch is not installed."""
    assert not roots(path) & HEAVY
    assert not any(name.startswith(("ocrstore.torch", "ocrstore.dbnet")) for name in imports(path))


def test_evaluation_runs_without_torch():
    """Every module of it is imported by a Python in which importing torch fails."""
    names = [f"ocrstore.evaluation.{path.stem}" for path in modules("evaluation")]
    code = (
        "import importlib, sys\n"
        f"for name in {sorted(HEAVY)!r}: sys.modules[name] = None\n"
        f"for name in {names!r}: importlib.import_module(name.removesuffix('.__init__'))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_ocrstore_is_light():
    """`import ocrstore` brings in neither torch nor a decoder, Arrow, LMDB or the command line."""
    unwanted = HEAVY | PICTURES | {"click", "rich", "pyarrow", "lmdb", "numpy"}
    code = f"import sys, ocrstore; print(sorted(set(sys.modules) & {unwanted!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
