"""`make gpu-check`: its pieces run on the CPU; without a GPU it says that it checked nothing."""

import json
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ocrstore.torch.lightning_bases")

from tools import gpu_check, gpu_checks
from tools.gpu_checks import Failed, Skipped

TINY = {"backbone": "resnet10", "width": 16, "inner": 32, "batch_size": 4}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of eight drawn pictures at 96 px."""
    return gpu_checks.prepare(tmp_path_factory.mktemp("gpu"), count=8, size=96)


def test_without_a_gpu_it_says_so(tmp_path, capsys, monkeypatch):
    """Exit code 2, every check skipped with a reason, the machine described."""
    monkeypatch.setattr(gpu_check, "find_device", lambda: None)
    out = tmp_path / "gpu-check.json"
    assert gpu_check.main(["--out", str(out)]) == 2
    assert "nothing was checked" in capsys.readouterr().out
    written = json.loads(out.read_text())
    assert written["machine"]["torch"] == torch.__version__
    assert {r["result"] for r in written["checks"].values()} == {"skipped"}
    assert all("no GPU" in r["reason"] for r in written["checks"].values())


def test_with_a_device_checks_are_run_and_counted(tmp_path, capsys, monkeypatch):
    """A failed check is exit code 1; others go on; a reason is written for each."""

    def fail(store, device):
        raise Failed("as it should")

    known = {
        "good": (("cpu",), lambda store, device: {"tensors": 3}),
        "bad": (("cpu",), fail),
        "broken": (("cpu",), lambda store, device: 1 / 0),
        "other": (("cuda",), fail),
    }
    monkeypatch.setattr(gpu_check, "find_device", lambda: "cpu")
    monkeypatch.setattr(gpu_check, "all_checks", lambda _: known)
    monkeypatch.setattr(gpu_checks, "prepare", lambda folder, **_: folder)
    out = tmp_path / "gpu-check.json"
    assert gpu_check.main(["--out", str(out)]) == 1
    results = json.loads(out.read_text())["checks"]
    assert [r["result"] for r in results.values()] == ["passed", "failed", "failed", "skipped"]
    assert "ZeroDivisionError" in results["broken"]["reason"]
    assert "tensors 3" in capsys.readouterr().out
    assert gpu_check.main(["--out", str(out), "--only", "good"]) == 0


def test_pieces_on_the_cpu(store, tmp_path, monkeypatch):
    """What needs no GPU holds on the CPU."""
    small = {name: TINY[name] for name in ("backbone", "width", "inner")}
    monkeypatch.setattr(gpu_checks, "NETWORK", small)
    assert gpu_checks.equality(store, "cpu") == {"tensors": 3 * 2 * 2 * len(gpu_checks.TENSORS)}
    assert gpu_checks.memory(store, "cpu", passes=8)["device_mb"] == 0
    figures = gpu_checks.waiting(store, "cpu", batch_size=4, passes=1)
    assert 0 <= figures["waiting_percent"] <= 100
    assert gpu_checks.synchronisations(store, "cpu")["steps"] == 2
    assert gpu_checks.transfers(store, "cpu", folder=tmp_path)["copies"] == 0
    for check in (gpu_checks.contexts, gpu_checks.two_gpus, gpu_checks.killed_rank):
        options = {} if check is gpu_checks.contexts else {"folder": tmp_path}
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        with pytest.raises(Skipped, match="GPU"):
            check(store, "cuda:0", **options)


def test_wrong_tensors_are_failures(store, monkeypatch):
    """The check of equality sees a tensor that differs."""
    from ocrstore.torch.device import Resolve

    def begin(self, batch):
        batch["images"].add_(1)
        return batch

    monkeypatch.setattr(Resolve, "begin", begin)
    with pytest.raises(Failed, match="images of rows"):
        gpu_checks.equality(store, "cpu")


def test_a_trace_is_read():
    """Copies by kind, streams in common, and how much of the copies is beside kernels."""

    def event(cat, name, ts, dur, stream):
        return {"cat": cat, "name": name, "ts": ts, "dur": dur, "args": {"stream": stream}}

    events = [
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 10, 20),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 20, 10, 7),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 0, 100, 7),
        event("kernel", "conv", 5, 10, 7),
        {"ph": "M", "name": "process_name"},
    ]
    assert gpu_checks.read_trace(events) == {
        "copies": 2,
        "pageable": 1,
        "shared_streams": 1,
        "overlapping": 0.25,
    }


def test_synchronisations_are_counted_by_line():
    """Other warnings do not count."""

    def warning(text, line):
        return types.SimpleNamespace(message=text, filename="/a/loss.py", lineno=line)

    caught = [warning("called a synchronizing CUDA operation", 7)] * 4 + [warning("other", 9)]
    assert gpu_checks.by_line(caught, 2) == {"loss.py:7": 2.0}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Lightning's, torch's and those of forks beside threads
def test_trainings_and_workers_on_the_cpu(store, tmp_path):
    """Precisions, a compiled network and all start methods, with a small network."""
    found = gpu_checks.precisions(store, "cpu", folder=tmp_path, epochs=2, **TINY)
    assert set(found) == {"32", "bf16-mixed"}
    assert gpu_checks.recompiles(store, "cpu", folder=tmp_path, **TINY)["graphs"] >= 1
    assert "spawn" in gpu_checks.start_methods(store, "cpu")


@pytest.fixture(scope="module")
def large_store(tmp_path_factory):
    """A store of 64 drawn pictures at 640 px."""
    return gpu_checks.prepare(tmp_path_factory.mktemp("large"), count=64, size=640)


@pytest.mark.gpu
@pytest.mark.skipif(gpu_check.find_device() is None, reason="needs a GPU")
@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.parametrize("name", list(gpu_check.all_checks(None)))
def test_on_a_gpu(name, large_store, tmp_path):
    """Each check of `make gpu-check`."""
    kinds, check = gpu_check.all_checks(tmp_path)[name]
    result = gpu_check.run_check(kinds, check, large_store, gpu_check.find_device())
    if result["result"] == "skipped":
        pytest.skip(result["reason"])
    assert result["result"] == "passed", result
