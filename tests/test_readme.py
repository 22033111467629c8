"""The README is true: its Python runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ocrstore import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the stores that the README names, built from drawn pictures."""
    import ocrstore
    from tools.scenes import write_scenes

    folder = tmp_path_factory.mktemp("readme")
    write_scenes(folder, 17, height=240, width=320, words=2)
    for name in ("val.ocrs", "train.ocrs"):
        ocrstore.build(folder / "images", folder / name, annotations=folder / "gt", workers=0)
    return folder


# the machine that runs the tests may have no GPU, and fewer cores than the example has workers
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set:UserWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_python_examples_run(workplace, monkeypatch):
    """All Python blocks, in order, in one namespace, as a reader would paste them."""
    pytest.importorskip("torch")
    pytest.importorskip("albumentations")
    monkeypatch.chdir(workplace)
    assert len(BLOCKS) >= 3
    namespace: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), namespace)
    assert tuple(namespace["images"].shape[1:]) == (3, 640, 640)
    assert namespace["train"][0]["image"].shape == (3, 640, 640)


def test_commands_and_options_exist():
    """Every `ocrstore ...` line names a command, and options that it has."""
    lines = re.findall(r"^    ocrstore ([^#\n]+)", README, re.M)
    assert len(lines) >= 6
    for line in lines:
        words = shlex.split(line)
        command = cli.cli.get_command(None, words[0])
        assert command is not None, line
        known = {option for parameter in command.params for option in parameter.opts}
        used = {word for word in words if word.startswith("--")}
        assert used <= known, (line, used - known)


SITE = "https://ocrstore.readthedocs.io/en/latest/"
REPOSITORY = "https://github.com/ocrstore/ocrstore/blob/main/"
RAW = "https://raw.githubusercontent.com/ocrstore/ocrstore/main/"


def file_of(link):
    """The file of the repository that an absolute link shows."""
    link, _, _ = link.partition("#")
    if link.startswith(SITE):
        return ROOT / "docs" / link.removeprefix(SITE).replace(".html", ".md")
    for prefix in (REPOSITORY, RAW):
        if link.startswith(prefix):
            return ROOT / link.removeprefix(prefix)
    raise AssertionError(f"{link}: PyPI needs absolute links, to {SITE}, {REPOSITORY} or {RAW}")


def test_links_and_length():
    """Links are absolute, as PyPI needs them, and show files that exist; the README stays short."""
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert len(links) >= 10
    for link in links:
        assert file_of(link).is_file(), link
    assert len(README.splitlines()) < 150
