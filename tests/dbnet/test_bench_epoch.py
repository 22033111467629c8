"""The epoch benchmark: its three pipelines give the same batches, and its figures add up."""

import importlib
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def bench(monkeypatch):
    """Import the tool as it is run: from its own folder."""
    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.delenv("OCRSTORE_PICTURES", raising=False)
    yield importlib.import_module("bench_epoch")
    for name in ("bench_epoch", "live", "scenes"):
        sys.modules.pop(name, None)


def test_pipelines_agree_and_times_add_up(bench, tmp_path, capsys):
    """Files, dict cache and store fill the buffers with equal values; the times are parts."""
    options = {"size": 96, "batch_size": 2, "workers": 0, "epochs": 2, "count": 4}
    args = Namespace(**options, prepared=str(tmp_path), ms=1.0, network=False)
    bench.prepare(args, tmp_path)
    filled, results = {}, []
    for pipeline in bench.PIPELINES:
        args.pipeline = pipeline
        result = bench.run_fixed(args)
        results.append({"pipeline": pipeline, "ms": 0.0, "total": 1.0, **result})
        for epoch in result["epochs"]:
            assert epoch["batches"] == 2
            assert 0 < epoch["waiting"] + epoch["model"] <= epoch["seconds"]
        staging = bench.Staging(bench.make_loader(args))
        filled[pipeline] = [
            {name: staging.buffers[slot][name].float().clone() for name in bench.TENSORS}
            for slot in staging.epoch()
        ]
    for pipeline in ("dict", "store"):
        for one, other in zip(filled["files"], filled[pipeline], strict=True):
            for name in bench.TENSORS:
                # the store's maps are float16
                torch.testing.assert_close(other[name], one[name], atol=2**-12, rtol=0)
    bench.report(results, args)
    assert "a faster GPU waits" in capsys.readouterr().out
