"""Who may import whom, where memory is mapped, and what a module looks like."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import ocrstore

PACKAGE = Path(ocrstore.__file__).parent

DIRECTIONS = """
# folder or root module: what it imports at module level | what else inside of functions
#
# facts that everything may use
errors        :
version       :
keys          :
machine       : errors
interrupts    :
buffers       :
float16       :
stopwatch     :
shared_slots  : errors
annotation    : errors | store
schema        :
packages      :
whole_file    : errors
metadata      : errors keys | store
problems      : annotation
catalog       : errors format keys whole_file
geometry      : errors
# source -> decode -> recipe
sources       : annotation errors keys problems | decode
decode        : errors format geometry
maps          : buffers errors schema
pipeline      : errors format geometry
pipeline_json : errors pipeline
targets       : errors keys schema
recipe        : errors format geometry maps metadata schema targets views | pipeline pipeline_json
views         : errors format metadata schema | recipe store
# writer and store: bytes only
format        : errors version
stored_rows   : errors format | decode
store         : buffers errors format stored_rows | decode display remote store_set
store_set     : catalog errors format store
verification  : errors format store stored_rows | building catalog remote store_set
exporting     : annotation catalog errors format keys machine schema store version views \
whole_file | decode geometry viewer
# stores in object storage
remote        : catalog errors format keys machine store verification whole_file | store_set
# pictures into a store
building      : annotation catalog decode errors evaluation float16 format geometry keys machine \
maps metadata pipeline problems recipe schema shared_slots sources store stored_rows targets \
verification version views whole_file | viewer
# store -> data set -> batch -> network
augment       : buffers errors pipeline stopwatch
torch         : annotation augment buffers catalog errors format keys machine metadata packages \
pipeline schema stopwatch store store_set targets views whole_file | display maps recipe remote \
shared_slots
evaluation    : annotation errors geometry recipe schema store views whole_file
dbnet         : annotation augment decode errors evaluation geometry inspection keys machine \
pipeline recipe schema sources store torch views whole_file
dali          : augment decode errors format schema store torch
# looking at a store
display       : errors keys schema
inspection    : annotation catalog errors format metadata schema store store_set verification \
views | keys sources
report        : annotation errors evaluation inspection problems schema store version views \
whole_file
viewer        : annotation catalog errors evaluation geometry keys schema store views whole_file
# the commands, and the public names
cli           : errors format interrupts keys machine packages schema version whole_file \
| annotation building catalog dbnet decode evaluation exporting inspection maps metadata pipeline \
pipeline_json problems recipe remote report sources store targets torch verification viewer views
__main__      : interrupts | cli
__init__      : errors version | building display exporting format packages recipe sources store \
verification
"""

PICTURES = ("cv2", "PIL", "simplejpeg", "turbojpeg", "pi_heif", "pyclipper", "albumentations")
PLACES = {
    "torch": ("torch", "dbnet", "dali"),
    "nvidia": ("dali",),
    "lightning": ("torch",),
    "pytorch_lightning": (),  # found by torch/lightning_bases.py
    "torchmetrics": ("dbnet",),
    "torchdata": ("torch",),
    "lmdb": ("format",),
    "starlette": ("viewer",),
    "uvicorn": ("viewer",),
    "duckdb": ("viewer",),
    "ray": ("building",),
    "obstore": ("remote",),
    "boto3": ("remote",),
}
"""Packages that only these folders import, inside of functions, too."""

MEMORY = ("torch/memory/", "shared_slots.py", "format/mapped_file.py")
"""The places that map memory and give the kernel advice about it."""
MEMORY_MODULES = {"mmap", "ctypes", "multiprocessing.shared_memory"}
MEMORY_CALLS = {
    *("mmap", "munmap", "mremap", "madvise", "mincore", "mlock", "msync", "memfd_create"),
    *("shm_open", "posix_fadvise", "posix_fallocate", "memmap", "memory_map"),
}

FILES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES = 600


def name_of(path):
    """A file's path below the package, with slashes."""
    return path.relative_to(PACKAGE).as_posix()


def part_of(path):
    """The folder or root module that a file belongs to: a row of the table."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def read_table() -> dict[str, tuple[set[str], set[str]]]:
    """Return what each part may import at module level, and inside of functions."""
    rows = {}
    for line in DIRECTIONS.splitlines():
        if line and not line.startswith("#"):
            name, _, allowed = line.partition(":")
            at_once, _, later = allowed.partition("|")
            rows[name.strip()] = (set(at_once.split()), set(at_once.split()) | set(later.split()))
    return rows


TABLE = read_table()


def imports(path) -> Iterator[tuple[str, bool]]:
    """Yield the modules that a file imports, and whether it does so at module level."""

    def walk(node, at_once):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, at_once) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{name_of(path)}: relative import"
                if child.module == "ocrstore":
                    yield from ((f"ocrstore.{alias.name}", at_once) for alias in child.names)
                else:
                    yield child.module, at_once
            else:
                is_type = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or is_type
                yield from walk(child, at_once and not inside)

    yield from walk(ast.parse(path.read_text("utf-8")), True)


def roots(path):
    """First parts of the names of all modules that a file imports."""
    return {module.split(".")[0] for module, _ in imports(path)}


def reach(part, *, later=False):
    """All parts that are imported with one, directly or not."""
    found, todo = set(), [part]
    while todo:
        new = TABLE[todo.pop()][later] - found
        found |= new
        todo += new
    return found


def test_every_part_is_in_the_table():
    """Each folder and root module has a row; parts that a row names exist in the table."""
    missing = {part_of(path) for path in FILES} - TABLE.keys()
    assert not missing, f"add a row for {sorted(missing)} to\n{DIRECTIONS}"
    named = set().union(*(later for _, later in TABLE.values()))
    assert named <= TABLE.keys(), f"{sorted(named - TABLE.keys())} have no row in\n{DIRECTIONS}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_follow_the_table(path):
    """A module imports only what the row of its folder allows."""
    part = part_of(path)
    for module, at_once in imports(path):
        names = module.split(".")
        if names[0] != "ocrstore" or len(names) == 1 or names[1] == part:
            continue
        allowed = TABLE[part][0 if at_once else 1]
        where = "at module level" if at_once else "inside a function"
        assert names[1] in allowed, (
            f"{name_of(path)} imports {module} {where}: {part} may not import {names[1]}.\n"
            f"{DIRECTIONS}"
        )


def test_the_table_keeps_the_direction():
    """No cycles; bytes know nothing of pictures, and reading nothing of building."""
    for part in TABLE:
        assert part not in reach(part), f"{part} imports itself through others\n{DIRECTIONS}"
    assert reach("format", later=True) == {"errors", "version"}
    for part in ("store", "verification"):
        allowed = {"buffers", "errors", "version", "format", "store", "stored_rows", "whole_file"}
        assert reach(part) <= allowed, part
    for part in (
        "torch",
        "evaluation",
        "inspection",
        "report",
        "viewer",
        "augment",
        "views",
        "exporting",
    ):
        assert not reach(part) & {"building", "sources"}, part
    assert not reach("evaluation", later=True) & {"torch", "dbnet"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_packages_stay_where_they_belong(path):
    """Torch and what builds on it below torch/ and dbnet/; no decoder and no torch in format/."""
    found = roots(path)
    for package in found & PLACES.keys():
        assert part_of(path) in PLACES[package], f"{name_of(path)} imports {package}: {PLACES}"
    if part_of(path) == "format":
        assert not found & set(PICTURES), f"{name_of(path)} imports a decoder"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_memory_is_mapped_in_few_places(path):
    """Only torch/memory, shared_slots and format/mapped_file map memory or call libc."""
    if name_of(path).startswith(MEMORY):
        return
    used = {module for module, _ in imports(path)} & MEMORY_MODULES
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            used |= {name} & MEMORY_CALLS
    assert not used, f"{name_of(path)} uses {sorted(used)}: they belong into {MEMORY}"


def test_opening_a_store_does_not_import_lmdb():
    """Opening a store does not need liblmdb: its pages are read by ocrstore itself."""
    for name in ("store", *(f"format/{n}" for n in ("snapshot", "index", "codecs", "manifest"))):
        found = {module for module, at_once in imports(PACKAGE / f"{name}.py") if at_once}
        assert "lmdb" not in found, name


def test_file_names_are_unique():
    """A file name occurs once; commands are named as what they run, packages have `__init__`."""
    names = Counter(p.name for p in FILES if part_of(p) != "cli" and p.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_modules_are_readable(path):
    """A module has a docstring that says what it does, and at most 600 lines."""
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{name_of(path)}: no docstring"
    assert text.count("\n") <= MOST_LINES, f"{name_of(path)}: split it by what changes apart"
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            opening = (ast.get_docstring(node) or "").split(" ")[0]
            where = f"{name_of(path)}:{getattr(node, 'lineno', 1)}"
            assert opening not in ("Owns", "Hides"), f"{where}: say what it does"


def test_evaluation_runs_without_torch():
    """Every module of it is imported by a Python in which importing torch fails."""
    names = [f"ocrstore.evaluation.{p.stem}" for p in FILES if part_of(p) == "evaluation"]
    blocked = ["torch", "lightning", "torchmetrics", "torchdata"]
    code = (
        "import importlib, sys\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        f"for name in {names!r}: importlib.import_module(name.removesuffix('.__init__'))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_ocrstore_is_light():
    """`import ocrstore` brings in neither torch nor a decoder, Arrow, LMDB or the command line."""
    unwanted = {"torch", "lightning", *PICTURES, "click", "rich", "pyarrow", "lmdb", "numpy"}
    code = f"import sys, ocrstore; print(sorted(set(sys.modules) & {unwanted!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


_WITH_TORCH = ("torch", "lightning", "ocrstore.torch", "ocrstore.dbnet", "ocrstore.dali")
_SKIP = 'pytest.importorskip("torch"'
TEST_FILES = sorted(Path(__file__).parent.rglob("test_*.py"))


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda p: p.stem)
def test_tests_that_need_torch_are_skipped_without_it(path):
    """`make test EXTRAS=dev` collects every module where torch is not installed."""
    text = path.read_text("utf-8")
    conftest = path.with_name("conftest.py")
    if conftest.exists() and _SKIP in conftest.read_text("utf-8"):
        return
    for node in ast.parse(text).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if any(name == known or name.startswith(f"{known}.") for known in _WITH_TORCH):
                before = "\n".join(text.splitlines()[: node.lineno])
                assert _SKIP in before, f"{path.name}:{node.lineno}: {_SKIP}) comes first"
