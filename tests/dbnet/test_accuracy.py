"""Training from a store is training from the live pipeline: shown on a small scale, every time."""

import importlib
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

pytest.importorskip("albumentations")

TOOLS = Path(__file__).resolve().parents[2] / "tools"

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]


@pytest.fixture
def accuracy(monkeypatch):
    """Import the tool as it is run: from its own folder."""
    monkeypatch.syspath_prepend(str(TOOLS))
    yield importlib.import_module("accuracy")
    for name in ("accuracy", "epoch_report", "live", "scenes"):
        sys.modules.pop(name, None)


def test_every_step_from_a_store_equals_the_live_pipeline(accuracy, tmp_path):
    """To the last bits with maps rounded to float16; within a bound with float32 maps."""
    accuracy.write_scenes(tmp_path, 6)
    args = Namespace(
        size=96,
        epochs=2,
        batch_size=3,
        backbone="resnet10",
        lr=1e-3,
        accelerator="cpu",
        threads=1,
        jobs=1,
    )
    runs = accuracy.experiment(tmp_path / "images", tmp_path / "gt", args)
    assert runs["store"].losses == pytest.approx(runs["rounded"].losses, rel=1e-6)
    assert len(runs["store"].losses) == len(runs["store"].gaps) == 4
    assert 0 < max(runs["store"].gaps) <= accuracy.BOUND
    assert runs["store"].losses[0] == pytest.approx(runs["live"].losses[0], abs=accuracy.BOUND)
    for run in runs.values():
        assert torch.isfinite(torch.tensor(run.losses)).all()
    text, _ = accuracy.report(runs, args)
    assert "holds: store = live with maps rounded to float16" in text
