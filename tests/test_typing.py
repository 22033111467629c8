"""A user's program under mypy --strict and basedpyright: its values have types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import ocrstore
from ocrstore.schema import COLUMNS

pytest.importorskip("torch")

from ocrstore.torch.annotations import ANNOTATIONS, LISTS, BatchTensor, SampleTensor

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests" / "typed" / "program.py"
MYPY = ("mypy", "--strict", "--config-file=", "--follow-imports=silent")
PYRIGHT = ("basedpyright", "--level", "error", "--pythonpath", sys.executable)


def check(command, path, tmp_path):
    """Run a type checker on a file; returns its exit code and what it says."""
    cache = ("--cache-dir", str(tmp_path)) if command is MYPY else ()
    done = subprocess.run(
        [sys.executable, "-m", *command, *cache, str(path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", [MYPY, PYRIGHT], ids=["mypy", "basedpyright"])
def test_a_users_program_is_typed(tmp_path, command):
    """What it does is accepted; what is wrong in it is found, because nothing there is Any."""
    code, said = check(command, PROGRAM, tmp_path)
    assert code == 0, said
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import ocrstore\n"
        "from ocrstore.torch import OCRStoreDataset\n"
        "ocrstore.open('a')['image'][0].no_such_method()\n"
        "OCRStoreDataset('a')[0]['polygons'].shape\n"
        "OCRStoreDataset('a')[0:2]['images'].no_such_method()\n"
        "ocrstore.open('a').index.num_rows.no_such_method()\n"
    )
    code, said = check(command, wrong, tmp_path)
    assert code == 1 and all(f"wrong.py:{line}" in said for line in (3, 4, 5, 6)), said


def test_the_types_know_every_name():
    """The names that type checkers know are those of the table of columns and the annotations."""
    tensors = {name for name in ANNOTATIONS if name not in LISTS}
    plurals = {column.batch_name for column in COLUMNS.values()}
    singulars = {column.sample_name for column in COLUMNS.values()}
    assert set(get_args(BatchTensor)) == plurals | tensors
    numbers = {"orientation", "source_orientation", "rows"}  # int in a sample
    assert set(get_args(SampleTensor)) == singulars | (tensors - numbers)


def test_the_package_says_that_it_is_typed():
    """`py.typed` lies in the package."""
    assert (Path(ocrstore.__file__).parent / "py.typed").exists()
