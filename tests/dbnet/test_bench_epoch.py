"""The epoch benchmark: its pipelines give the same batches, and its figures add up."""

import importlib
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

pytest.importorskip("albumentations")

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def bench(monkeypatch):
    """Import the tool as it is run: from its own folder."""
    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.delenv("OCRSTORE_PICTURES", raising=False)
    yield importlib.import_module("bench_epoch")
    for name in ("bench_epoch", "epoch_report", "live", "scenes"):
        sys.modules.pop(name, None)


def test_pipelines_agree_and_times_add_up(bench, tmp_path):
    """Files, dict cache and store give equal values; the times are parts; the report is made."""
    options = {"size": 96, "batch_size": 2, "workers": 0, "epochs": 2, "count": 4, "steps": 2}
    args = Namespace(**options, prepared=str(tmp_path), ms=1.0, network=False)
    bench.prepare(args, tmp_path)
    filled, results, searched = {}, [], []
    for pipeline in bench.PIPELINES:
        args.pipeline = pipeline
        result = bench.run_fixed(args)
        base = {"pipeline": pipeline, "ms": 1.0, "total": 1.0, "processor": 1.0}
        results.append({**base, **result})
        searched.append({**base, **bench.run_search(args)})
        for epoch in result["epochs"]:
            assert epoch["batches"] == 2
            assert 0 < epoch["waiting"] + epoch["model"] <= epoch["seconds"]
        filled[pipeline] = [
            {name: batch[name].float().clone() for name in bench.TENSORS}
            for batch in bench.make_loader(args)
        ]
    for pipeline in ("dict", "store", "views"):
        for one, other in zip(filled["files"], filled[pipeline], strict=True):
            for name in bench.TENSORS:
                # the store's maps are float16
                torch.testing.assert_close(other[name], one[name], atol=2**-12, rtol=0)
    reporting = importlib.import_module("epoch_report")
    text = reporting.report(results, searched, args) + reporting.report_network(results, args)
    assert text.count("| views |") == 3 and "become the bottleneck?" in text
    reporting.write_fragment(tmp_path / "figures" / "epochs.md", "bench_epoch", text)
    written = (tmp_path / "figures" / "epochs.md").read_text("utf-8")
    assert written.startswith("<!-- Written by bench_epoch") and text in written


def test_a_buffer_in_use_is_not_filled_again(bench):
    """As many buffers as batches are ready, in use and being filled at once."""
    stage = bench.Buffers(2)
    batches = [{name: torch.full((2, 1), n) for name in bench.TENSORS} for n in range(5)]
    filled = [stage.finish(stage.begin(batch)) for batch in batches[:4]]
    assert [int(f["images"][0]) for f in filled] == [0, 1, 2, 3]
    assert int(stage.begin(batches[4])["images"][0]) == 4 == int(filled[0]["images"][0])
