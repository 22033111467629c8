"""Checkpoint files: nothing is lost when writing them fails, and malformed ones are explained."""

import copy
import json
import random
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from ocrstore.dbnet.checkpoint import KEY, read_checkpoint, write_checkpoint
from ocrstore.dbnet.network import DBNet, ModelConfig
from ocrstore.dbnet.predict import Detector
from ocrstore.dbnet.train import TrainParams, fit
from ocrstore.errors import CheckpointError, WriteError
from ocrstore.evaluation.postprocess import PostParams
from ocrstore.recipe import Recipe

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
from ocrstore.torch.lightning_bases import L
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
    (tmp_path / "out").write_text("")
    with pytest.raises(WriteError, match=r"cannot be written to.*Choose another folder"):
        fit(drawn_store, out=tmp_path / "out" / "runs")


SMALL = ModelConfig(backbone="resnet10", width=16, inner=16)


@pytest.fixture(scope="module")
def content():
    """Return what a checkpoint has, as `train` writes it but for Lightning's own entries."""
    recipe = Recipe.make(size=64)
    return {
        "epoch": 0,
        "global_step": 2,
        "loops": {},
        "callbacks": {},
        "optimizer_states": [],
        "lr_schedulers": [],
        "state_dict": {f"net.{name}": t for name, t in DBNet(SMALL).state_dict().items()},
        KEY: {
            "model": SMALL.to_json(),
            "post": asdict(PostParams()),
            "provenance": {
                "store_fingerprint": "f" * 64,
                "recipe": recipe.to_json(),
                "view": "64",
            },
        },
    }


def test_a_checkpoint_is_read_as_it_was_written(content, tmp_path):
    """Network, post-processing, provenance and step; the weights are those of the network."""
    write_checkpoint(content, tmp_path / "a.ckpt")
    read = read_checkpoint(tmp_path / "a.ckpt", resumable=True)
    assert (read.model, read.post, read.global_step) == (SMALL, PostParams(), 2)
    assert read.provenance.as_recipe == Recipe.make(size=64)
    for name, tensor in read.network().state_dict().items():
        assert torch.equal(tensor, content["state_dict"][f"net.{name}"])


ABSENT = object()
WRONG = [
    (("state_dict",), ABSENT, "state_dict is missing"),
    (("state_dict",), [1], "state_dict is missing or no dict"),
    (("state_dict", "net.backbone.conv1.weight"), ABSENT, "conv1.weight is missing"),
    (("state_dict", "net.backbone.conv1.weight"), "text", "conv1.weight is missing"),
    (("state_dict", "net.backbone.conv1.weight"), torch.zeros(3), r"is \(3,\), expected \(16, 3"),
    (("state_dict", "net.bn"), torch.zeros(3), r"net\.bn is no part of the network"),
    (("global_step",), "two", "global_step is 'two'"),
    ((KEY,), ABSENT, "no 'ocrstore' record"),
    ((KEY,), 7, "no 'ocrstore' record"),
    ((KEY, "model"), ABSENT, "model is missing"),
    ((KEY, "model", "width"), "16", r"model\.width is unknown or of a wrong type: '16'"),
    ((KEY, "model", "width"), 8, "multiples of 16"),
    ((KEY, "model", "width"), 1 << 40, "model describes no network|expected"),
    ((KEY, "model", "backbone"), "vgg", "unknown backbone 'vgg'"),
    ((KEY, "model", "mean"), [0.1, "x", 0.3], r"model\.mean is unknown"),
    ((KEY, "model", "depth"), 3, r"model\.depth is unknown"),
    ((KEY, "post"), None, "post is missing"),
    (
        (KEY, "post", "threshold"),
        float("nan"),
        r"post\.threshold is .* wrong type: nan",
    ),
    ((KEY, "post", "threshold"), 7.0, "between 0 and 1"),
    ((KEY, "post", "rules"), "paper", "unknown rules 'paper'"),
    ((KEY, "provenance"), ABSENT, "does not say which recipe"),
    ((KEY, "provenance"), "text", "provenance has other entries"),
    ((KEY, "provenance", "view"), 3, r"provenance\.view is not of type str"),
    ((KEY, "provenance", "recipe"), {}, r"provenance\.recipe has no size"),
    ((KEY, "provenance", "recipe", "size"), [0, "x"], r"provenance\.recipe: "),
    ((KEY, "provenance", "recipe", "columns"), 3, r"provenance\.recipe: "),
    ((KEY, "provenance", "recipe", "pipeline"), [[]], r"provenance\.recipe: "),
]


def changed(content, place, value):
    """Return a copy in which one entry has another value, or none."""
    copied = copy.deepcopy(content)
    inner = copied
    for name in place[:-1]:
        inner = inner[name]
    if value is ABSENT:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return copied


@pytest.mark.parametrize(("place", "value", "message"), WRONG)
def test_each_wrong_entry_is_named(content, tmp_path, place, value, message):
    """The error says what is wrong in which file, and what to do."""
    torch.save(changed(content, place, value), tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match=message) as caught:
        Detector.load(tmp_path / "a.ckpt")
    assert str(tmp_path / "a.ckpt") in str(caught.value)
    assert any(word in str(caught.value) for word in ("Use ", "Train with"))


def test_files_that_are_no_checkpoints(content, tmp_path):
    """Text, nothing, half a file, a folder, an object that would run code, a bare tensor."""
    path = tmp_path / "a.ckpt"
    write_checkpoint(content, path)
    whole = path.read_bytes()

    class Dangerous:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "was run",))

    for data in (b"", b"no checkpoint", whole[: len(whole) // 2], whole[:-30], b"PK\x03\x04" * 9):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="not a checkpoint that torch can load safely"):
            read_checkpoint(path)
    for value, message in ((Dangerous(), "load safely"), (torch.zeros(2), "no 'ocrstore' record")):
        torch.save(value, path)
        with pytest.raises(CheckpointError, match=message):
            read_checkpoint(path)
    assert not (tmp_path / "was run").exists()
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        read_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        read_checkpoint(tmp_path / "absent.ckpt")


def test_reading_imports_no_class_that_a_recipe_names(content, tmp_path, monkeypatch):
    """A module in the way of imports that leaves a file when it is imported is not."""
    (tmp_path / "stranger.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    pipeline = {"__class_fullname__": "stranger.Transform", "p": 1.0}
    recipe = {**Recipe.make(size=64).to_json(), "pipeline": pipeline, "geometry": "pipeline"}
    torch.save(changed(content, (KEY, "provenance", "recipe"), recipe), "a.ckpt")
    read = read_checkpoint("a.ckpt")
    assert "stranger" in read.provenance.as_recipe.pipeline
    recipe.pop("size")
    torch.save(changed(content, (KEY, "provenance", "recipe"), recipe), "b.ckpt")
    with pytest.raises(CheckpointError, match="has no size"):
        read_checkpoint("b.ckpt")
    assert not Path("imported").exists() and "stranger" not in sys.modules


@pytest.mark.parametrize("name", ["epoch", "loops", "callbacks", "optimizer_states"])
def test_what_lightning_needs_to_resume(content, drawn_store, tmp_path, name):
    """A checkpoint without it predicts, but is not resumed."""
    path = tmp_path / "a.ckpt"
    torch.save(changed(content, (name,), ABSENT), path)
    assert Detector.load(path).post == PostParams()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        fit(drawn_store, out=tmp_path / "out", model=SMALL, resume=path)


def test_what_lightning_cannot_restore(content, drawn_store, tmp_path):
    """Entries of the right type with nothing in them: one error, not a foreign one."""
    path = tmp_path / "a.ckpt"
    recipe = Recipe.make(size=96).to_json()
    torch.save(changed(content, (KEY, "provenance", "recipe"), recipe), path)
    params = TrainParams(accelerator="cpu", workers=0, precision="32", batch_size=3)
    with pytest.raises(CheckpointError, match=r"a\.ckpt cannot be resumed"):
        fit(drawn_store, out=tmp_path, model=SMALL, params=params, resume=path, quiet=True)


@pytest.mark.filterwarnings("ignore")  # Lightning's, of workers, folders, trees
@pytest.mark.parametrize("wrong", [7, torch.zeros(5)], ids=["number", "shape"])
def test_a_wrong_state_of_the_optimiser(drawn_store, tmp_path, wrong):
    """Torch notices it in the first step only: it is the checkpoint's fault all the same."""
    params = TrainParams(accelerator="cpu", workers=0, precision="32", batch_size=3, epochs=1)
    fit(drawn_store, out=tmp_path / "a", model=SMALL, params=params, quiet=True)
    path = tmp_path / "a" / "last.ckpt"
    saved = torch.load(path, weights_only=True)
    torch.save(changed(saved, ("optimizer_states", 0, "state", 0, "exp_avg"), wrong), path)
    with pytest.raises(CheckpointError, match=r"last\.ckpt cannot be resumed"):
        fit(
            drawn_store,
            out=tmp_path / "b",
            model=SMALL,
            params=replace(params, epochs=2),
            resume=path,
            quiet=True,
        )


def test_mutated_checkpoints_are_read_or_refused(content, tmp_path):
    """300 random changes of entries: a Checkpoint or a CheckpointError, nothing else."""
    values = [None, True, -1, 0, 1 << 70, 1e400, "", "\x1b[2J", [], {}, [None], {"a": 1}]
    places = [
        (KEY,),
        ("state_dict",),
        ("global_step",),
        ("state_dict", "net.neck.lateral.0.weight"),
    ]
    for part in ("model", "post", "provenance"):
        places += [(KEY, part), *((KEY, part, name) for name in content[KEY][part])]
    places += [(KEY, "provenance", "recipe", n) for n in content[KEY]["provenance"]["recipe"]]
    draw = random.Random(0)
    refused = 0
    for _ in range(300):
        mutated = changed(content, draw.choice(places), draw.choice([ABSENT, *values]))
        torch.save(mutated, tmp_path / "a.ckpt")
        try:
            read_checkpoint(tmp_path / "a.ckpt")
        except CheckpointError:
            refused += 1
    assert 200 < refused < 300
