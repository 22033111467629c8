"""Sphinx configuration: `make docs` builds the site into site/."""

import ocrstore

project = "ocrstore"
author = "the ocrstore developers"
release = version = ocrstore.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["figures", "images"]  # figures/ holds fragments that benchmarks.md includes
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"ocrstore {release}"
