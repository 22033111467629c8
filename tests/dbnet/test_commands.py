"""train, eval and predict, as a user calls them, on a store of drawn pictures."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from ocrstore.building.build import build
from ocrstore.cli import cli
from ocrstore.errors import RecipeMismatchError, SchemaError
from ocrstore.torch.dbnet.detector import Detector
from ocrstore.torch.dbnet.fitting import TrainParams, fit, precision_of
from ocrstore.torch.dbnet.model import ModelConfig

# what Lightning warns of in a small training is meant here: few workers, a used folder
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:.*Experiment logs directory"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]

SMALL = ["--backbone", "resnet10", "--width", "8", "--inner", "32", "--precision", "32"]
QUICK = ["--batch-size", "3", "--workers", "0", "--accelerator", "cpu", "--quiet"]


def run(*args, code=0):
    """Call the command line; return what it printed."""
    result = CliRunner().invoke(cli, [str(a) for a in args], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert (result.return_value or 0) == code, result.output
    return result.output


@pytest.fixture(scope="module")
def store(drawn_folder, tmp_path_factory):
    """Build a store of six drawn pictures at 96 px."""
    out = tmp_path_factory.mktemp("store") / "drawn.ocrs"
    build(drawn_folder / "images", out, size=96, workers=0)
    return out


@pytest.fixture(scope="module")
def trained(store, tmp_path_factory):
    """Train for three epochs through the command line."""
    out = tmp_path_factory.mktemp("runs") / "a"
    printed = run("train", store, "--val", store, "--out", out, "--epochs", 3, *SMALL, *QUICK)
    assert "3 epochs" in printed
    return out


def test_train_without_tensorboard(store, tmp_path, monkeypatch):
    """It says so and logs to CSV alone."""
    monkeypatch.setattr("ocrstore.torch.dbnet.fitting.has_tensorboard", lambda: False)
    printed = run("train", store, "--out", tmp_path / "b", "--epochs", 1, *SMALL, *QUICK)
    assert "TensorBoard is not installed" in printed
    assert (tmp_path / "b" / "csv").is_dir() and not (tmp_path / "b" / "tensorboard").exists()


def test_train_leaves_checkpoints_logs_and_pictures(trained):
    """best.ckpt, last.ckpt, the CSV log with H-mean and losses, TensorBoard, a picture."""
    assert (trained / "best.ckpt").is_file() and (trained / "last.ckpt").is_file()
    (log,) = trained.glob("csv/*/metrics.csv")
    rows = list(csv.DictReader(log.read_text().splitlines()))
    assert sum(bool(row["val_hmean"]) for row in rows) == 3
    losses = [float(row["train_loss"]) for row in rows if row["train_loss"]]
    assert len(losses) == 6 and np.isfinite(losses).all()
    assert list(trained.glob("tensorboard/*/events*"))
    assert (trained / "pictures" / "epoch-0000.jpg").is_file()


def test_train_resumes(trained, store, tmp_path):
    """From last.ckpt of epoch 3 to epoch 4."""
    printed = run(
        *("train", store, "--out", tmp_path / "b", "--epochs", 4, *SMALL, *QUICK),
        *("--resume", trained / "last.ckpt"),
    )
    assert "4 epochs" in printed
    (log,) = (tmp_path / "b").glob("csv/*/metrics.csv")
    steps = [int(r["step"]) for r in csv.DictReader(log.read_text().splitlines())]
    assert min(steps) >= 6


def test_train_stops_early(store, tmp_path):
    """Without a better H-mean for `--patience` validations it ends; with a progress bar."""
    loud = [option for option in QUICK if option != "--quiet"]
    still = ["--lr", "1e-12", "--patience", 2]
    printed = run("train", store, "--out", tmp_path / "c", "--epochs", 9, *still, *SMALL, *loud)
    assert "3 epochs" in printed and "val_hmean" in printed


def test_train_augments(store, tmp_path):
    """With --augment the pictures go through albumentations, at the view's size."""
    run("train", store, "--out", tmp_path, "--epochs", 1, "--augment", *SMALL, *QUICK)
    assert (tmp_path / "last.ckpt").is_file()


def test_eval_prints_figures_and_writes_the_table(trained, store, tmp_path):
    """P, R, H for programs and people, and a row for every picture."""
    printed = run(
        *("eval", store, "--checkpoint", trained / "best.ckpt"),
        *("--json", "--table", tmp_path / "table.csv"),
    )
    figures = json.loads(printed)
    assert set(figures) == {"precision", "recall", "hmean", "cleval", "pictures"}
    assert figures["pictures"] == 6 and 0 <= figures["hmean"] <= 1
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert sorted(row["picture"] for row in rows) == [f"img_{n}.jpg" for n in range(6)]
    assert all(row["truths"] == "5" for row in rows)
    assert "H-mean" in run("eval", store, "--checkpoint", trained / "best.ckpt")


def test_eval_of_the_oracle(store):
    """The store's own maps: words of this size are all found in the 96 px view."""
    assert json.loads(run("eval", store, "--oracle", "--json"))["hmean"] > 0.9


def test_eval_on_another_recipe_says_what_differs(trained, store, drawn_folder, tmp_path):
    """Refused with the field's name; measured all the same if asked to."""
    other = tmp_path / "other.ocrs"
    build(drawn_folder / "images", other, size=128, workers=0)
    with pytest.raises(RecipeMismatchError, match=r"size: \[96, 96\] -> \[128, 128\]"):
        run("eval", other, "--checkpoint", trained / "best.ckpt")
    run("eval", other, "--checkpoint", trained / "best.ckpt", "--any-recipe")
    with pytest.raises(RecipeMismatchError, match="training -> validation"):
        fit(other, val=store, out=tmp_path / "x")


def test_predict_writes_icdar_files_json_and_pictures(trained, drawn_folder, tmp_path):
    """For every picture below the folder, also in sub-folders; what cannot be read is named."""
    images = tmp_path / "images"
    (images / "sub").mkdir(parents=True)
    for number, place in enumerate(("a.jpg", "sub/b.jpg")):
        data = (drawn_folder / "images" / f"img_{number}.jpg").read_bytes()
        (images / place).write_bytes(data)
    (images / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    out = tmp_path / "boxes"
    printed = run(
        *("predict", images, "--checkpoint", trained / "best.ckpt", "--out", out),
        *("--draw", "--min-score", "0.01", "--quiet"),
        code=1,
    )
    assert "broken.jpg" in printed
    record = json.loads((out / "boxes.json").read_text())
    assert sorted(record) == ["a.jpg", "sub/b.jpg"]
    for key, stem in (("a.jpg", "a"), ("sub/b.jpg", "sub/b")):
        text = (out / Path(stem).parent / f"res_{Path(stem).name}.txt").read_text()
        lines = text.splitlines()
        assert len(lines) == len(record[key])
        assert all(len(line.split(",")) == 8 for line in lines)
        picture = cv2.imread(str(out / f"{stem}.jpg"))
        assert picture.shape == (360, 480, 3)


def test_the_predicted_boxes_are_those_of_the_evaluation(trained, drawn_folder, store):
    """A picture decoded and drawn by the recipe gives what the baked view gives."""
    from ocrstore.decode import decode
    from ocrstore.torch import OCRStoreDataset

    detector = Detector.load(trained / "best.ckpt", min_score=0.01)
    path = drawn_folder / "images" / "img_0.jpg"
    pixels = decode(path.read_bytes()).pixels
    view, _ = detector.recipe.draw(pixels)
    np.testing.assert_array_equal(OCRStoreDataset(store)[0]["image"].permute(1, 2, 0).numpy(), view)


def test_wrong_use_is_explained(store, tmp_path):
    """One of --checkpoint and --oracle; a known precision; a known view."""
    import click

    with pytest.raises(click.UsageError, match="one of them"):
        run("eval", store)
    with pytest.raises(SchemaError, match="unknown precision"):
        precision_of("64", "cpu")
    with pytest.raises(SchemaError, match="no view 'x'; it has 96"):
        fit(store, out=tmp_path, view="x")
    assert precision_of("mixed", "gpu") == "16-mixed"
    assert precision_of("mixed", "cpu") == "bf16-mixed"


DDP = """
import json, sys
import lightning as L
from ocrstore.torch.dbnet.fitting import TrainParams, fit
from ocrstore.torch.dbnet.model import ModelConfig

class Note(L.Callback):
    def on_fit_end(self, trainer, module):
        note = {
            "weights": float(sum(p.double().abs().sum() for p in module.net.parameters())),
            "rows": [name for name, _ in module.hmean.rows],
            "hmean": float(trainer.callback_metrics["val_hmean"]),
            "world": trainer.world_size,
        }
        with open(f"{sys.argv[2]}/rank{trainer.global_rank}.json", "w") as file:
            json.dump(note, file)

if __name__ == "__main__":
    fit(
        sys.argv[1],
        out=sys.argv[2],
        model=ModelConfig(backbone="resnet10", width=8, inner=32),
        params=TrainParams(
            epochs=2, batch_size=2, workers=0, precision="32", accelerator="cpu", devices=2
        ),
        quiet=True,
        callbacks=[Note()],
    )
"""


@pytest.mark.timeout(600)  # three interpreters that import Lightning
def test_two_processes_train_one_network(store, tmp_path):
    """DDP over gloo: equal weights on both ranks, every validation picture counted once."""
    script = tmp_path / "ddp.py"
    script.write_text(DDP)
    out = tmp_path / "out"
    out.mkdir()
    root = Path(__file__).resolve().parents[2]
    environment = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, str(script), str(store), str(out)],
        capture_output=True,
        text=True,
        timeout=540,
        env={**environment, "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    notes = [json.loads((out / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [note["world"] for note in notes] == [2, 2]
    assert notes[0]["weights"] == pytest.approx(notes[1]["weights"], rel=1e-9)
    assert notes[0]["hmean"] == notes[1]["hmean"]
    names = sorted(notes[0]["rows"] + notes[1]["rows"])
    assert names == [f"img_{n}.jpg" for n in range(6)]


def test_training_params_have_defaults_for_a_gpu():
    """Batch 16, mixed precision where it is fast, gradients clipped."""
    params = TrainParams()
    assert (params.batch_size, params.clip) == (16, 5.0)
    assert precision_of(params.precision, "gpu") == "16-mixed"
    assert precision_of(params.precision, "cpu") in ("bf16-mixed", "32-true")
    assert ModelConfig().backbone == "resnet18"
