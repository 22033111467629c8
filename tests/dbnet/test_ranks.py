"""Two processes with gloo: resumed by another number, uneven sets, and the mean of the loss."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch

from tests.conftest import ROOT
from tests.sharded import shard_store
from tests.torch_.making import make_store

pytestmark = [
    pytest.mark.slow,  # processes that import Lightning
    pytest.mark.timeout(300),  # ranks that wait for each other would never end
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of 37 samples: two ranks cannot divide them."""
    return make_store(tmp_path_factory.mktemp("ranks") / "val.ocrs", samples=37, sizes=(96,))


def rows_by_epoch(folder):
    """Return the rows that all ranks have trained in each epoch, and steps of each rank."""
    seen, steps = {0: [], 1: []}, []
    for path in sorted(folder.glob("rows-*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        steps.append(len(lines))
        for epoch, rows in lines:
            seen[epoch] += rows
    return seen, steps


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_an_epoch_is_resumed_by_another_number_of_ranks(run_driver, store, tmp_path, first, second):
    """What was left comes once, up to what is drawn twice to be even; then a whole epoch."""
    run_driver("ranks.py", "resume", store, tmp_path, first, 3)
    seen, _ = rows_by_epoch(tmp_path)
    assert len(seen[0]) == 9 * first and not seen[1]
    run_driver("ranks.py", "resume", store, tmp_path, second)
    seen, _ = rows_by_epoch(tmp_path)
    for epoch, rows in seen.items():
        assert set(rows) == set(range(37)), epoch
        assert len(rows) <= 38


def test_ranks_train_the_same_number_of_steps(run_driver, store, tmp_path):
    """37 samples on two ranks: neither waits for the other, every sample is trained."""
    run_driver("ranks.py", "uneven", store, tmp_path, 2)
    seen, steps = rows_by_epoch(tmp_path)
    assert steps == [14, 14]
    assert all(set(rows) == set(range(37)) for rows in seen.values())


def test_the_loss_is_that_of_one_process(run_driver, store, tmp_path):
    """19 and 18 pictures on two ranks weigh as 37 on one, up to how batches are balanced."""
    (one,) = run_driver("ranks.py", "loss", store, tmp_path, 1)
    (two,) = run_driver("ranks.py", "loss", store, tmp_path, 2)
    assert two["loss"] == pytest.approx(one["loss"], rel=0.01)
    assert two["hmean"] == pytest.approx(one["hmean"])


def on_two_nodes(*command):
    """Run a command under two torchruns, as on two machines with a process each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    layout = ["--nnodes=2", "--nproc-per-node=1", f"--master-port={port}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    nodes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", *layout, f"--node-rank={node}"),
                *("--master-addr=127.0.0.1", *map(str, command)),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(2)
    ]
    try:
        printed = [node.communicate(timeout=280)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], printed


def test_two_nodes_of_torchrun_have_stores_of_their_own(run_driver, tmp_path):
    """Each node draws one of two equal stores in both epochs; one process ends what they began."""
    stores = [make_store(tmp_path / f"{n}.ocrs", samples=20, sizes=(96,)) for n in "ab"]
    listed = ",".join(map(str, stores))
    whole, begun = tmp_path / "whole", tmp_path / "begun"
    whole.mkdir()
    begun.mkdir()
    driver = ROOT / "tests" / "drivers" / "ranks.py"
    on_two_nodes(driver, "uneven", listed, whole, 2)
    drawn = []
    for rank in range(2):
        lines = (whole / f"rows-{rank}.jsonl").read_text().splitlines()
        for epoch in range(2):
            batches = [rows for number, rows in map(json.loads, lines) if number == epoch]
            drawn.append({row // 20 for rows in batches for row in rows})
            assert len({row for rows in batches for row in rows}) == 20
    assert drawn in ([{0}, {0}, {1}, {1}], [{1}, {1}, {0}, {0}])
    on_two_nodes(driver, "resume", listed, begun, 2, 3)
    run_driver("ranks.py", "resume", listed, begun, 1)
    seen, _ = rows_by_epoch(begun)
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(40))


def test_training_on_two_nodes(tmp_path):
    """`ocrstore train` of a store and of a folder of many, under torchrun, with shares."""
    stores = [make_store(tmp_path / f"{n}.ocrs", samples=12, sizes=(96,)) for n in "ab"]
    stores[1] = shard_store(stores[1], tmp_path / "many")
    shares = [f"{store}={share}" for store, share in zip(stores, (0.25, 0.75), strict=True)]
    out = tmp_path / "out"
    on_two_nodes(
        *("-m", "ocrstore", "train", *shares, "--out", out, "--nodes", 2, "--devices", 1),
        *("--device", "cpu", "--backbone", "resnet10", "--width", 16, "--inner", 32),
        *("--precision", 32, "--epochs", 1, "--batch-size", 4, "--workers", 0, "--logger", "csv"),
    )
    state = torch.load(out / "last.ckpt", weights_only=False)["OCRDataModule"]["train"]
    assert (state["epoch"], state["samples"]) == (1, 16)
    assert (state["replicas"], state["nodes"]) == (2, 2)
