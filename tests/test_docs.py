"""The documentation is true: its Python runs; links, paths, commands and options exist."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pickle
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import ocrstore
from ocrstore import cli

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
GUIDES = [DOCS / f"{name}.md" for name in ("build", "sources", "training", "inspect")]
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def python_blocks(name):
    """Python blocks of a page, and the packages that each imports."""
    for block in re.findall(r"```python\n(.*?)```", (DOCS / name).read_text("utf-8"), re.S):
        packages = set(re.findall(r"^(?:import|from) (\w+)", block, re.M))
        yield block, packages | ({"torch"} if "ocrstore.torch" in block else set())


def without_code(text):
    """Text without code blocks, in which # and ]( mean something else."""
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def commands_in(text):
    """All `ocrstore ...` command lines of a page: in code blocks and in the text."""
    blocks = re.findall(r"^```.*?^```", text, flags=re.M | re.S)
    blocks += re.findall(r"^(?: {4}.*\n)+", without_code(text), flags=re.M)
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        # not what a command prints: it begins a line, follows a prompt, a launcher or &&
        yield from re.findall(r"(?:^ *(?:\$ )?|\$ .*|&& |srun )(ocrstore [a-z].*)", line)
    yield from (
        code.replace("\n", " ")
        for code in re.findall(r"`(ocrstore\s[a-z][^`]*)`", without_code(text))
    )


def options_of(command):
    """All options of a command."""
    found = {"--help"}
    for parameter in command.params:
        found.update(parameter.opts, parameter.secondary_opts)
    return found


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with what the pages speak of: stores, an LMDB of pickled samples, tar shards."""
    lmdb = pytest.importorskip("lmdb")
    cv2 = pytest.importorskip("cv2")
    from tools.scenes import write_scenes

    folder = tmp_path_factory.mktemp("docs")
    write_scenes(folder, 17, height=240, width=320, words=2)
    for name in ("val.ocrs", "train.ocrs"):
        ocrstore.build(folder / "images", folder / name, annotations=folder / "gt", workers=0)
    sample = {
        "image": np.zeros((8, 9, 3), np.uint8),
        "prob_map": np.zeros((640, 640), np.float16),
        "texts": ["a word"],
        "polygons": [[1, 1, 7, 1, 7, 6, 1, 6]],
    }
    (folder / "cache").mkdir()
    np.savez(folder / "cache" / "img_1.npz", **sample)
    ocrstore.export(folder / "val.ocrs", to="npz", out=folder / "maps")
    ocrstore.export(folder / "val.ocrs", to="hf", out=folder / "dataset")
    with lmdb.open(str(folder / "old.lmdb"), map_size=2**22) as env, env.begin(write=True) as txn:
        txn.put(b"img_1.jpg", pickle.dumps(sample))
    picture = folder / "picture.jpg"
    picture.write_bytes(cv2.imencode(".jpg", sample["image"])[1].tobytes())
    annotation = folder / "annotation.txt"
    annotation.write_text(json.dumps({name: sample[name] for name in ("polygons", "texts")}))
    for number in range(32):
        with tarfile.open(folder / f"shards-{number:03}.tar", "w") as shard:
            shard.add(picture, f"img_{number}.jpg")
            shard.add(annotation, f"img_{number}.json")
    return folder


# the machine that runs the tests may have no GPU, and fewer cores than the example has workers
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set:UserWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_quickstart_runs(workplace, monkeypatch):
    """All Python blocks, in order, in one namespace, as a reader would paste them."""
    for package in set().union(*(packages for _, packages in python_blocks("quickstart.md"))):
        pytest.importorskip(package)
    monkeypatch.chdir(workplace)
    namespace: dict[str, object] = {}
    for block, _ in python_blocks("quickstart.md"):
        exec(compile(block, "quickstart.md", "exec"), namespace)
    assert tuple(namespace["images"].shape[1:]) == (3, 640, 640)
    assert namespace["train"][0]["image"].shape == (3, 640, 640)


@pytest.mark.parametrize("number", range(6))
def test_migration_runs(workplace, number):
    """Each Python block runs by itself; what it writes has the samples of the old files."""
    blocks = list(python_blocks("migration.md"))
    assert len(blocks) == 6
    block, packages = blocks[number]
    for package in packages:
        pytest.importorskip(package, reason=f"the example needs {package}")
    # in a process of its own: webdataset leaves files open, which is an error in this one
    done = subprocess.run([sys.executable, "-c", block], cwd=workplace, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
    for written in ("from_lmdb.ocrs", "from_npz.ocrs"):
        if written in block:
            with ocrstore.open(workplace / written) as made:
                assert len(made) == 1 and made.attributes(0)["texts"] == ["a word"]


@pytest.mark.parametrize("heading", ["npz caches", "WebDataset", "Hugging Face datasets", "other"])
def test_migration_commands_run(workplace, heading):
    """The commands of a section run as they stand there, and take every sample."""
    text = (DOCS / "migration.md").read_text("utf-8")
    (section,) = (s for s in text.split("\n## ")[1:] if heading in s.partition("\n")[0])
    lines = re.findall(r"^\$ (ocrstore .*)$", section, re.M)
    assert lines
    for line in lines:
        words = shlex.split(line)[1:]
        done = subprocess.run(
            [sys.executable, "-m", "ocrstore", *words],
            cwd=workplace,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        if words[0] == "build":
            with ocrstore.open(workplace / words[-1]) as made:
                assert len(made) == (32 if "shards" in line else 17)


@pages
def test_relative_links_lead_somewhere(page):
    """Each relative link names a file, and its anchor a heading of it."""
    text = without_code(page.read_text("utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.is_file(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", without_code(file.read_text("utf-8")), re.M)
            slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings]
            assert anchor in slugs, target


@pages
def test_paths_exist(page):
    """Each path of the repository, and each module, that a page names in code is there."""
    text = page.read_text("utf-8")
    for path in re.findall(r"`((?:ocrstore|tests|tools|docs)/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path
    # modules may be named from ocrstore/ on, tests of the specification by their names alone
    roots = (ROOT, ROOT / "ocrstore", ROOT / "tests" / "format")
    for path in re.findall(r"`([\w/]+\.py)`", text):
        assert any((root / path).is_file() for root in roots), path


def test_modules_of_the_format_exist():
    """The table in design.md names each module of ocrstore/format, and no other."""
    text = (DOCS / "design.md").read_text("utf-8")
    section = text.partition("## The modules of the format")[2].partition("\n\n`")[0]
    named = re.findall(r"`(\w+)`", section)
    there = {path.stem for path in (ROOT / "ocrstore" / "format").glob("*.py")} - {"__init__"}
    assert sorted(named) == sorted(there)


@pages
def test_commands_and_options_exist(page):
    """Every `ocrstore ...` line names a command, and options that it has."""
    for line in commands_in(page.read_text("utf-8")):
        words = shlex.split(re.split(r"\s[|;]|&&", line)[0], comments=True)[1:]
        command = cli.cli.get_command(None, words[0])
        assert command is not None, line
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= options_of(command), (line, used - options_of(command))


def test_command_lines_are_found():
    """The test above reads code blocks, indented lines, wrapped lines and text."""
    text = (
        "```console\n$ ocrstore build a \\\n  --out b\nocrstore: printed\n"
        "$ srun ocrstore train c\n```\n"
        "\n    ocrstore view d\n\nSee `ocrstore\nverify e`, not `ocrstore.verify`.\n"
    )
    found = [line.split() for line in commands_in(text)]
    assert [words[1] for words in found] == ["build", "train", "view", "verify"]
    assert found[0][2:] == ["a", "--out", "b"]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_options_in_guides_exist(page):
    """Every option that a guide names by itself is one of some command."""
    known = set().union(*(options_of(cli.cli.get_command(None, name)) for name in cli.COMMANDS))
    used = set(re.findall(r"`(--[a-z][a-z0-9-]*)", without_code(page.read_text("utf-8"))))
    assert used and used <= known, used - known


def test_reference_is_complete():
    """Every public name of the package and of ocrstore.torch is in the Python reference."""
    text = (DOCS / "api.md").read_text("utf-8")
    listed = set(re.findall(r"auto(?:function|class|exception):: (\S+)", text))
    public = {f"ocrstore.{name}" for name in ocrstore.__all__ if not name.startswith("_")}
    public -= {name for name in public if name.endswith("Error")}  # automodule of the errors
    assert public <= listed, public - listed
    exported = ast_all(ROOT / "ocrstore" / "torch" / "__init__.py")
    assert {f"ocrstore.torch.{name}" for name in exported} <= listed


def test_reference_targets_exist():
    """Every name in the Python reference can be imported."""
    pytest.importorskip("ocrstore.torch.lightning_bases")
    text = (DOCS / "api.md").read_text("utf-8")
    for target in re.findall(r"auto(?:function|class|exception):: (\S+)", text):
        module, _, name = target.rpartition(".")
        if module == "ocrstore.dali":  # DALI is installed in an environment of its own only
            assert name in ast_all(ROOT / "ocrstore" / "dali.py"), target
        else:
            assert hasattr(importlib.import_module(module), name), target


def ast_all(path):
    """`__all__` of a module, without importing it: torch may not be installed."""
    (names,) = re.findall(r"^__all__ = \[(.*?)\]", path.read_text("utf-8"), re.M | re.S)
    return re.findall(r'"(\w+)"', names)


def test_every_page_is_in_the_contents():
    """index.md lists each page once."""
    text = (DOCS / "index.md").read_text("utf-8")
    blocks = re.findall(r"```\{toctree\}\n(.*?)```", text, re.S)
    listed = [line for block in blocks for line in block.splitlines() if re.match(r"\w", line)]
    assert sorted([*listed, "index"]) == sorted(page.stem for page in DOCS.glob("*.md"))


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path):
    """What `make docs` does; nothing on the pages is loaded from other hosts."""
    for package in ("sphinx", "myst_parser", "furo", "sphinx_click"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'ocrstore[docs]'")
    pytest.importorskip("ocrstore.torch.lightning_bases")  # the reference imports what it documents
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run([*command, DOCS, tmp_path / "site"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in (tmp_path / "site").glob("*.html"):
        html = page.read_text("utf-8")
        loaded = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(?:https?:)?//[^"]*"', html)
        assert loaded == [], page.name
