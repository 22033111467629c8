"""The documentation of building says what the program does."""

import re
from pathlib import Path

import pytest
import yaml

from ocrstore.problems import BUILD_KINDS
from ocrstore.recipe import DEFAULT_PRESET, Recipe

DOCS = Path(__file__).parents[2] / "docs"


def test_every_kind_of_problem_is_documented():
    """The table has each kind, in order, with its meaning and whether something is lost."""
    text = (DOCS / "build.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \| (yes|no) \|$", text, re.MULTILINE)
    assert [(k, m, lost == "yes") for k, m, lost in rows] == [
        (kind, entry.meaning, entry.loses) for kind, entry in BUILD_KINDS.items()
    ]


def test_the_documented_recipe_is_the_default():
    """The recipe file in the documentation is the default recipe, whole, and the node one, too."""
    text = (DOCS / "build.md").read_text("utf-8")
    block, node = re.findall(r"```yaml\n(.+?)```", text, re.DOTALL)
    described = yaml.safe_load(block)
    assert Recipe.from_json(described) == Recipe.make(preset=DEFAULT_PRESET)
    assert described.keys() - {"targets"} == Recipe().to_json().keys() - {"map_algorithm"}
    pytest.importorskip("albumentations")
    assert Recipe.make(pipeline=yaml.safe_load(node)).size == (640, 640)
