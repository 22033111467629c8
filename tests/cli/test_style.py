"""One style for all commands: verbosity, errors, suggestions, help, completion."""

from __future__ import annotations

import ast
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ocrstore
from ocrstore import cli
from tests.drawn import bare_store, write_source

PACKAGE = Path(ocrstore.__file__).parent


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_is_verbose_and_quiet(run, command):
    """-v and -q are explained by each command."""
    _, out, _ = run(command, "--help")
    assert "-v, --verbose" in out and "-q, --quiet" in out


def test_verbose_shows_the_log_of_ocrstore(run, tmp_path):
    """-v says what is done, -vv each sample, both on stderr; without it the log is silent."""
    write_source(tmp_path)
    (tmp_path / "images" / "broken.jpg").unlink()
    build = ("build", tmp_path / "images", "--size", 64, "--workers", 0, "--force", "--out")
    assert run(*build, tmp_path / "a.ocrs")[2] == ""
    _, out, err = run(*build, tmp_path / "a.ocrs", "-v")
    assert "ocrstore.format.publish: published generation 1: 6 samples\n" in err
    assert "derived" not in err and "published" not in out
    assert "ocrstore.building.run: derived a.jpg\n" in run(*build, tmp_path / "a.ocrs", "-vv")[2]
    assert logging.getLogger("ocrstore").handlers == []  # as before: for programs that log


def test_quiet_prints_problems_only(run, tmp_path):
    """Nothing where all is well; what is wrong; and JSON where it is asked for."""
    write_source(tmp_path)
    build = ("build", tmp_path / "images", "--size", 64, "--out", tmp_path / "a.ocrs", "-q")
    code, out, err = run(*build)
    assert code == 1 and err == "" and "bad-picture" in out and "broken.jpg" in out
    assert "no-annotation" not in out and "samples" not in out
    (tmp_path / "images" / "broken.jpg").unlink()
    code, out, err = run(*build)
    assert code == 0 and err == "" and "building" not in out and "✓" not in out
    for command in ("verify", "inspect", "compact"):
        assert run(command, tmp_path / "a.ocrs", "-q") == (0, "", "")
        assert '"' in run(command, tmp_path / "a.ocrs", "-q", "--json")[1]
    data = bytearray((tmp_path / "a.ocrs").read_bytes())
    with ocrstore.open(tmp_path / "a.ocrs") as store:
        data[int(store["tensor"].offsets[0])] ^= 1
    (tmp_path / "a.ocrs").write_bytes(data)
    code, out, _ = run("verify", tmp_path / "a.ocrs", "-q")
    assert code == 1 and "is damaged" in out


def test_an_error_is_said_once_and_in_one_way(run, tmp_path):
    """`Error:`, from click and from ocrstore alike."""
    (tmp_path / "text.ocrs").write_text("no store")
    for call in (
        ("inspect", tmp_path / "text.ocrs"),
        ("inspect", tmp_path / "none.ocrs"),
        ("inspect",),
        ("build", tmp_path / "text.ocrs", "--out", tmp_path / "b.ocrs"),
    ):
        code, out, err = run(*call)
        assert (
            code in (1, 2) and out == "" and err.lower().count("error:") == 1 and "Error: " in err
        )


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (("buidl",), "Did you mean `build`?"),
        (("exprt-model",), "Did you mean `export-model`"),
        (("build", ".", "--out", "a.ocrs", "--colums", "tensor"), "--columns"),
        (("inspect", "--jsn"), "--json"),
    ],
)
def test_a_mistyped_name_is_suggested(run, call, hint):
    """Commands and options that look alike."""
    code, _, err = run(*call)
    said = "Did you mean" in err or "Possible options" in err  # click before 8.2
    assert code == 2 and said and hint in err
    assert "Did you mean" not in run("zzzzzzzz")[2]


def test_help_uses_the_width_and_is_not_cut(run, monkeypatch):
    """Lines as long as the terminal is wide, and whole sentences."""
    _, out, _ = run("train", "--help")
    assert max(map(len, out.splitlines())) > 100
    for columns in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = run("--help")[1].splitlines()
        listed = lines[lines.index("Commands:") + 1 :]
        assert max(map(len, listed)) <= columns and "..." not in "".join(listed)
        said = " ".join(" ".join(listed).split())
        assert "in one: res_*.txt (ICDAR), boxes.json, res_*.jpg." in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_click(run, shell):
    """Which asks the program for the words."""
    code, out, _ = run("completion", shell)
    assert code == 0 and "_OCRSTORE_COMPLETE=" in out and "ocrstore" in out
    assert run("completion", "tcsh")[0] == 2


def test_the_program_completes(tmp_path):
    """Commands and options, as the script asks for them."""

    def complete(words):
        count = len(words.split(" ")) - 1
        asked = {"_OCRSTORE_COMPLETE": "bash_complete", "COMP_WORDS": words}
        done = subprocess.run(
            [sys.executable, "-m", "ocrstore"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **asked, "COMP_CWORD": str(count)},
            cwd=tmp_path,
        )
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert complete("ocrstore com") == ["compact", "completion"]
    assert "--column" in complete("ocrstore warm --c")
    assert complete("ocrstore completion f") == ["fish"]


def test_library_code_prints_nothing():
    """Only commands print, and the program that `doctor` runs."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        calls = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)]
        if any(getattr(call.func, "id", "") == "print" for call in calls):
            found.add(path.relative_to(PACKAGE).as_posix())
    assert found == {"cli/__init__.py", "torch/doctor.py"}


def test_recipe_and_columns_go_together(run, tmp_path):
    """The recipe's geometry and codecs, other columns; a size is part of the recipe."""
    write_source(tmp_path)
    (tmp_path / "r.yaml").write_text("size: 64\ncolumns: {tensor: {codec: zstd}, prob_map: {}}\n")
    build = ("build", tmp_path / "images", "--recipe", tmp_path / "r.yaml", "--out")
    assert run(*build, tmp_path / "a.ocrs", "--columns", "tensor,inverse_matrix")[0] == 1
    columns = ocrstore.open(tmp_path / "a.ocrs").columns
    assert {name: column.codec for name, column in columns.items()} == {
        "tensor": "zstd",
        "inverse_matrix": "raw",
    }
    assert run(*build, tmp_path / "b.ocrs", "--codec", "prob_map=lz4")[0] == 1
    assert ocrstore.open(tmp_path / "b.ocrs").columns["prob_map"].codec == "lz4"
    code, _, err = run(*build, tmp_path / "c.ocrs", "--size", 32)
    assert code == 2 and "size and pipeline are part of a recipe" in err


def test_force_says_that_it_forgets_the_recipe(run, tmp_path):
    """What the existing store was built with, and the default in its place."""
    write_source(tmp_path)
    build = ("build", tmp_path / "images", "--out", tmp_path / "a.ocrs")
    run(*build, "--size", 64)
    _, out, _ = run(*build, "--force", "--dry-run")
    assert "--force uses the default recipe" in out and "size: [64, 64] -> [640, 640]" in out
    for options in (("--size", 64), ("--columns", "tensor"), ()):
        assert (
            "default recipe"
            not in run(*build, "--dry-run", *options, *["--force"][: len(options)])[1]
        )
    (tmp_path / "a.ocrs").write_bytes(b"damaged")
    assert "default recipe" not in run(*build, "--force", "--dry-run")[1]


def test_a_damaged_index_does_not_count_samples(run, tmp_path):
    """Rows can be counted without an index, samples cannot."""
    path = bare_store(tmp_path / "a.ocrs")
    text = path.read_bytes()
    place = text.rindex(b"ARROW1")
    path.write_bytes(text[:place] + b"BROKEN" + text[place + 6 :])
    code, out, _ = run("verify", path)
    assert code == 1 and " rows, " in out and "0 samples" not in out


def test_inspect_says_that_there_was_more(run, tmp_path):
    """Three builds are listed; how many came before them is said."""
    path = bare_store(tmp_path / "a.ocrs")
    for number in range(4):
        with ocrstore.edit(path) as writer:
            writer.metadata["number"] = number
    _, out, _ = run("inspect", path)
    assert "2 earlier entries (--json lists all)" in out and out.count(" by ocrstore ") == 3
