"""A notebook: run by nbconvert, with what a reader sees in its cells."""

from __future__ import annotations

import warnings

import pytest

from tests.drawn import build_drawn

pytest.importorskip("torch")

CELLS = [
    "import ocrstore\nfrom ocrstore.torch import OCRStoreDataset",
    "store = ocrstore.open({path!r})\nstore",
    "dataset = OCRStoreDataset({path!r})\ndataset[0]",
    "dataset[0:4]",
    "ocrstore.plot(dataset[0])",
    "figure = ocrstore.plot(dataset[0:2])",
    'store["prob_map"]',
]


@pytest.mark.slow
def test_a_notebook_shows_stores_samples_and_figures(tmp_path):
    """Tables for stores and batches, the picture of a sample, a figure that is shown once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Jupyter's own, about paths and event loops
        import nbformat
        from nbconvert import HTMLExporter
        from nbconvert.preprocessors import ExecutePreprocessor

        path = str(build_drawn(tmp_path))
        cells = [nbformat.v4.new_code_cell(text.format(path=path)) for text in CELLS]
        notebook = nbformat.v4.new_notebook(cells=cells)
        ExecutePreprocessor(timeout=300).preprocess(notebook)
        page, _ = HTMLExporter().from_notebook_node(notebook)
    (tmp_path / "notebook.html").write_text(page, "utf-8")
    shown = [[output.get("data", {}) for output in cell.outputs] for cell in notebook.cells]
    assert [len(outputs) for outputs in shown] == [0, 1, 1, 1, 1, 0, 1]
    _, (store,), (sample,), (batch,), (figure,), _, (column,) = shown
    assert "<table>" in store["text/html"] and "<table>" in batch["text/html"]
    assert sample["text/html"].count("<polygon") == 3 and "<svg" in page
    assert "image/png" in figure
    assert column["text/plain"].startswith("<ocrstore.StoredColumn 'prob_map'")
