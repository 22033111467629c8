"""Sphinx configuration: `make docs` builds the site into site/."""

import click
from sphinx.application import Sphinx

import ocrstore

project = "ocrstore"
author = "the ocrstore developers"
release = version = ocrstore.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["figures", "images"]  # figures/ holds what benchmarks.md includes
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
highlight_language = "none"  # the default of indented blocks: commands and what they print
smartquotes = False  # they turn the -- of options into dashes

autodoc_member_order = "bysource"
autodoc_mock_imports = ["nvidia"]  # 200 MB, for one module
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"ocrstore {release}"
html_show_copyright = False


def keep_examples(app: Sphinx, ctx: click.Context, lines: list[str]) -> None:  # noqa: ARG001  # sphinx-click's signature
    """Show the examples of a command's help as code: as a line block they lose their columns."""
    kept: list[str] = []
    for line in lines:
        if line in ("| Example:", "| Examples:"):
            kept += [f"{line.removeprefix('| ')}:", ""]
        elif line.startswith("|  "):
            kept.append("  " + line.removeprefix("|").strip())
        else:
            kept.append(line)
    lines[:] = kept


def setup(app: Sphinx) -> None:
    """Connect to sphinx-click."""
    app.connect("sphinx-click-process-description", keep_examples)
