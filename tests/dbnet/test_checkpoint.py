"""Checkpoint files: nothing is lost when writing them fails, and malformed ones are explained."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ocrstore.dbnet.checkpoint import write_checkpoint
from ocrstore.errors import WriteError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)  # a process that imports torch, and forks
def test_killed_or_failing_at_every_system_call(run_driver, quick_path, faults_library):
    """The previous or the new checkpoint is there, whole; nothing is in the temporary folder."""
    lines = run_driver("checkpoints.py", quick_path, LD_PRELOAD=faults_library)
    counts = {line["mode"]: line for line in lines}
    assert counts["before"]["calls"] >= 4  # write, sync, rename, sync of the folder
    assert counts["halfway"]["calls"] >= 2
    assert counts["fail"]["calls"] == counts["before"]["calls"]
    for line in lines:
        previous, new = line["found"]
        # the last round was not struck; a kill after the rename leaves the new one as well
        assert previous >= 1 and new >= 2 and previous + new == line["calls"] + 1


def test_what_a_killed_process_left_is_replaced(tmp_path):
    """A partial file of an earlier run is neither read nor kept."""
    (tmp_path / ".last.ckpt.partial").write_bytes(b"half of a")
    write_checkpoint({"epoch": 3}, tmp_path / "last.ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]
    assert torch.load(tmp_path / "last.ckpt", weights_only=True) == {"epoch": 3}


def test_a_folder_that_is_a_file(tmp_path):
    """The error names the checkpoint and says that there was none before."""
    (tmp_path / "out").write_text("")
    with pytest.raises(WriteError, match=r"last\.ckpt: the checkpoint cannot .*there is none yet"):
        write_checkpoint({}, tmp_path / "out" / "last.ckpt")


LIMITED = """
import json, os, resource, sys, warnings
warnings.simplefilter("ignore")
import lightning as L
from ocrstore.dbnet.network import ModelConfig
from ocrstore.dbnet.train import TrainParams, fit
from ocrstore.errors import WriteError

class NoRoom(L.Callback):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 1:
            size = os.path.getsize(sys.argv[2] + "/last.ckpt")
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))

try:
    fit(
        sys.argv[1],
        out=sys.argv[2],
        model=ModelConfig(backbone="resnet10", width=16, inner=32),
        params=TrainParams(epochs=3, batch_size=3, workers=0, precision="32", accelerator="cpu"),
        quiet=True,
        callbacks=[NoRoom()],
    )
except WriteError as exc:
    print(json.dumps(str(exc)))
"""


@pytest.mark.timeout(300)  # an interpreter that imports Lightning
def test_a_full_disk_while_training_keeps_the_last_checkpoint(drawn_store, tmp_path):
    """Files may not grow to a checkpoint's size in the second epoch: last.ckpt is the first's."""
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(drawn_store), str(out)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )
    message = json.loads(done.stdout.splitlines()[-1])
    assert "File too large" in message and "the last good one is kept" in message
    assert torch.load(out / "last.ckpt", weights_only=True)["epoch"] == 0
    assert not list(out.glob(".*"))


def test_training_into_a_folder_that_cannot_be_written(drawn_store, tmp_path):
    """Said before anything is trained; a file where the folder should be stands for read-only."""
    from ocrstore.dbnet.train import fit

    (tmp_path / "out").write_text("")
    with pytest.raises(WriteError, match=r"cannot be written to.*Choose another --out"):
        fit(drawn_store, out=tmp_path / "out" / "runs")
