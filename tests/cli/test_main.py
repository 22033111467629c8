"""What `main` does with errors nobody expected, with Ctrl-C while importing, without memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

import ocrstore.exporting.export
import ocrstore.report
from ocrstore import cli
from ocrstore.cli import COMMANDS, export, report
from ocrstore.cli.build import build_command
from ocrstore.decode import DEFAULT_MAX_PIXELS
from ocrstore.errors import SchemaError
from ocrstore.pipeline_json import read_pipeline
from ocrstore.recipe import read_recipe
from tests.drawn import bare_store

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `verify` with a check that raises; returns exit code, standard output and error."""
    monkeypatch.delenv("OCRSTORE_DEBUG", raising=False)

    def run(exc, *arguments):
        def broken(*_args, **_options):
            raise exc

        monkeypatch.setattr("ocrstore.verification.verify", broken)
        monkeypatch.setattr("sys.argv", ["ocrstore", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = capsys.readouterr()
        return caught.value.code, captured.err

    return run


@pytest.mark.parametrize(
    "exc", [KeyError("k\x1b[2J"), ZeroDivisionError("one\ntwo"), RecursionError(), AssertionError()]
)
def test_the_unexpected_is_one_line(run, tmp_path, exc):
    """Type, reason and where to report it; exit code 1; the traceback only if it is asked for."""
    store = bare_store(tmp_path / "a.ocrs")
    code, err = run(exc, "verify", store)
    assert code == 1 and err.count("\n") == 1 and "\x1b" not in err
    assert f"unexpected {type(exc).__name__}" in err and "/issues" in err and "--debug" in err
    code, err = run(exc, "--debug", "verify", store)
    assert code == 1 and "Traceback" in err and "in broken" in err and "\x1b" not in err


class Broken:
    """A data set whose sample cannot be read."""

    def __len__(self):
        return 1

    def __getitem__(self, row):
        raise SchemaError("a.ocrs: sample 'x': no polygon.\nBuild it again.")


def test_an_error_of_a_worker_is_its_message(run, tmp_path):
    """What torch says of its worker, and the traceback there, are not for the user."""
    torch = pytest.importorskip("torch")
    with pytest.raises(SchemaError, match="Traceback") as caught:
        list(torch.utils.data.DataLoader(Broken(), num_workers=1))
    code, err = run(caught.value, "verify", bare_store(tmp_path / "a.ocrs"))
    assert code == 2 and err == "Error: a.ocrs: sample 'x': no polygon.\nBuild it again.\n"


def test_missing_memory_is_a_sentence(run, tmp_path):
    """Wherever it is noticed, and whatever the library made of it; a full disk is not that."""
    store = bare_store(tmp_path / "a.ocrs")
    wrapped = RuntimeError("numpy says a lot")
    wrapped.__cause__ = ImportError("libx.so: failed to map segment from shared object")
    thread = RuntimeError("can't start new thread")
    for exc in (MemoryError(), OSError(12, "Cannot allocate memory"), wrapped, thread):
        code, err = run(exc, "verify", store)
        assert code == 1 and err.startswith("Error: memory is short (") and "a bug" not in err
        assert "numpy" not in err
    code, err = run(OSError(28, "No space left on device"), "verify", store)
    assert code == 1 and "No space left" in err and "memory" not in err and "a bug" not in err


def start(*arguments, limit=None, before=""):
    """Run the command line in a process of its own, after some code."""
    code = f"{before}\nimport runpy, sys\nsys.argv[0] = 'ocrstore'\n"
    code += "runpy.run_module('ocrstore', run_name='__main__', alter_sys=True)"
    if limit is not None:
        code = f"import resource\nresource.setrlimit(resource.RLIMIT_AS, ({limit}, -1))\n{code}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        env=environment,
        timeout=300,
        check=False,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux")
@pytest.mark.parametrize(
    "megabytes",
    [400, 700, *(pytest.param(n, marks=pytest.mark.slow) for n in (450, 500, 550, 600))],
)
def test_a_build_with_little_memory_says_so(tmp_path, megabytes):
    """No advice to install what is installed, no crash in an import, no traceback."""
    (tmp_path / "images").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (600, 800, 3), np.uint8)
    for number in range(2):
        cv2.imwrite(str(tmp_path / "images" / f"{number}.png"), pixels)
    call = ("build", tmp_path / "images", "--out", tmp_path / "a.ocrs", "--workers", 2)
    done = start(*call, limit=megabytes * 1_000_000)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "memory is short" in done.stderr and f"{megabytes}.0 MB (ulimit -v)" in done.stderr
    assert "pip install" not in done.stderr and "Traceback" not in done.stderr


# sends SIGINT to the process itself when a module is imported
INTERRUPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    "module", ["ocrstore.cli", "rich.console", "numpy", "pyarrow.lib", "cv2", "torch"]
)
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no such signals")
def test_ctrl_c_while_importing_is_one_line(tmp_path, module):
    """Before main runs, for the command and inside of it: exit code 130, no traceback."""
    store = bare_store(tmp_path / "a.ocrs")
    command = ("build", tmp_path, "--out", tmp_path / "b.ocrs")
    if module == "torch":
        pytest.importorskip("torch")
        command = ("doctor", store)
    done = start(*command, before=INTERRUPT.format(module=module))
    assert done.returncode == 130, (done.returncode, done.stderr)
    assert done.stderr == "Error: interrupted; published stores are unchanged.\n"


@pytest.mark.parametrize("read", [read_recipe, read_pipeline])
def test_recipe_files_that_are_traps(tmp_path, read):
    """Brackets without end, aliases of aliases, an impossible date: an error with the file."""
    path = tmp_path / "recipe.yaml"
    laughs = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for one, other in zip("abcdefgh", "bcdefghi", strict=True):
        laughs += f"{other}: &{other} [" + ", ".join([f"*{one}"] * 9) + "]\n"
    for text, message in (
        ("[" * 20_000 + "]" * 20_000, "nested too deeply"),
        ("{a: " * 20_000 + "}" * 20_000, "nested too deeply"),
        (laughs, "has an alias"),
        ("a: 2001-99-99", "not a readable"),
    ):
        path.write_text(text)
        with pytest.raises(SchemaError, match=message) as caught:
            read(path)
        assert str(path) in str(caught.value)


HELP = """
import sys
from ocrstore.cli import cli
cli.main(sys.argv[1:], standalone_mode=False)
foreign = {"numpy", "pyarrow", "cv2", "PIL", "lmdb", "torch", "yaml", "starlette"}
heavy = ("building", "decode", "inspection", "maps", "report", "sources", "store", "torch", "views")
found = foreign | {f"ocrstore.{part}" for part in heavy}
print(sorted(found & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=str)
def test_a_help_page_imports_next_to_nothing(command):
    """No arrays, no Arrow, no decoder, nothing that reads, builds or shows stores."""
    arguments = [sys.executable, "-c", HELP, *command, "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert "Usage:" in done.stdout and done.stderr == "[]\n"


def test_defaults_on_help_pages_are_those_of_the_modules():
    """What a help page repeats, to import nothing, is what the command does."""
    (max_pixels,) = (p for p in build_command.params if p.name == "max_pixels")
    assert max_pixels.default == DEFAULT_MAX_PIXELS
    assert export.FORMATS == ocrstore.exporting.export.FORMATS
    assert report.SAMPLES == ocrstore.report.SAMPLES
