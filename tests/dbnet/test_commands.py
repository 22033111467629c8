"""train, eval and predict, as a user calls them, on a store of drawn pictures."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import click
import cv2
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from lightning.pytorch.loggers import CSVLogger

from ocrstore.building.build import build
from ocrstore.cli import cli
from ocrstore.dbnet.checkpoint import provenance_of
from ocrstore.dbnet.module import DBNetModule
from ocrstore.dbnet.network import ModelConfig
from ocrstore.dbnet.predict import Detector
from ocrstore.dbnet.train import (
    TrainParams,
    fit,
    precision_of,
    require_enough,
    warn_of_same_pictures,
)
from ocrstore.errors import RecipeMismatchError, SchemaError, StoreExistsError, WriteError
from ocrstore.store import open_store
from ocrstore.torch import OCRStoreDataset

# what Lightning warns of in a small training is meant here: few workers, a used folder
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:.*Experiment logs directory"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]

SMALL = ["--backbone", "resnet10", "--width", "16", "--inner", "32", "--precision", "32"]
QUICK = [
    "--log-every",
    "1",
    "--batch-size",
    "3",
    "--workers",
    "0",
    "--device",
    "cpu",
]


def run(*args, code=0):
    """Call the command line; return what it printed."""
    result = CliRunner().invoke(cli, [str(a) for a in args], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert (result.return_value or 0) == code, result.output
    return result.output


@pytest.fixture(scope="module")
def store(drawn_store):
    """The store of six drawn pictures at 96 px."""
    return drawn_store


@pytest.fixture(scope="module")
def trained(store, tmp_path_factory):
    """Train for three epochs through the command line."""
    out = tmp_path_factory.mktemp("runs") / "a"
    printed = run("train", store, "--val", store, "--out", out, "--epochs", 3, *SMALL, *QUICK)
    assert "3 epochs" in printed
    return out


def test_train_without_tensorboard(store, tmp_path, monkeypatch):
    """It says so and logs to CSV alone."""
    monkeypatch.setattr("ocrstore.dbnet.train.has_tensorboard", lambda: False)
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


def test_train_with_a_share_held_out(store, tmp_path):
    """--val 0.4 --logger csv: only that logger, and the end says what to type next."""
    out = tmp_path / "b"
    printed = run(
        *("train", store, "--val", "0.4", "--logger", "csv", "--strategy", "auto"),
        *("--out", out, "--epochs", 1, *SMALL, *QUICK),
    )
    assert (out / "csv").is_dir() and not (out / "tensorboard").exists()
    assert f"ocrstore eval {store} --checkpoint" in printed and "--sweep" in printed
    with pytest.raises(click.BadParameter, match="between 0 and 1"):
        run("train", store, "--val", "1.5", "--out", tmp_path / "c")


def test_train_mixes_stores(store, tmp_path):
    """STORE=SHARE: an epoch has these shares; what makes no mixture is said before."""
    other = tmp_path / "a=b.ocrs"
    shutil.copy(store, other)
    common = ["--epochs", 1, "--logger", "csv", *SMALL, *QUICK]
    for name, given, samples in (
        ("shares", [f"{store}=0.25", f"{other}=0.75"], 8),
        ("all", [store, other], 12),
        ("some", [store, other, "--samples", 7], 7),
    ):
        run("train", *given, "--out", tmp_path / name, *common)
        state = torch.load(tmp_path / name / "last.ckpt", weights_only=False)
        assert state["OCRDataModule"]["train"]["samples"] == samples
    with pytest.raises(click.UsageError, match="every store a share"):
        run("train", f"{store}=0.25", other, "--out", tmp_path / "x")
    with pytest.raises(click.BadParameter, match=r"=half' does not exist"):
        run("train", f"{store}=half", "--out", tmp_path / "x")
    with pytest.raises(SchemaError, match=r"add up to 0\.5: expected 1"):
        run("train", f"{store}=0.25", f"{other}=0.25", "--out", tmp_path / "x", *common)


def test_any_logger_of_lightning(store, tmp_path):
    """In Python; a name that is unknown, or a package that is missing, is an error before."""
    logger = CSVLogger(tmp_path / "own")
    params = TrainParams(epochs=1, workers=0, accelerator="cpu", precision="32")
    model = ModelConfig(backbone="resnet10", width=16, inner=32)
    done = fit(store, out=tmp_path / "a", model=model, params=params, loggers=[logger], quiet=True)
    assert list((tmp_path / "own").rglob("metrics.csv")) and not (done.folder / "csv").exists()
    with pytest.raises(SchemaError, match="unknown logger 'aim'"):
        fit(store, out=tmp_path / "b", model=model, params=params, loggers=["aim"])


def test_the_same_pictures_in_both_stores_are_a_warning(store, tmp_path, caplog):
    """By the hash of the files, whatever their names."""
    copy = tmp_path / "val.ocrs"
    shutil.copy(store, copy)
    warn_of_same_pictures(store, copy)
    assert "6 of the pictures" in caplog.text and "--val 0.1" in caplog.text
    caplog.clear()
    warn_of_same_pictures(store, store)  # on purpose
    assert not caplog.records


def test_eval_sweeps_thresholds(trained, store):
    """The best pair is among the points, and typing it gives its H-mean."""
    command = ("eval", store, "--checkpoint", trained / "best.ckpt", "--device", "cpu")
    found = json.loads(run(*command, "--sweep", "--json"))
    assert len(found["sweep"]) == 84 and found["best"] in found["sweep"]
    now = {"threshold": 0.5, "min_score": 0.6}
    (same,) = [point for point in found["sweep"] if now.items() <= point.items()]
    assert same["hmean"] == pytest.approx(found["hmean"])
    assert "best: --threshold" in run(*command, "--sweep")
    with pytest.raises(click.UsageError, match="--sweep needs --checkpoint"):
        run("eval", store, "--oracle", "--sweep")


def test_train_resumes(trained, store, tmp_path):
    """From last.ckpt of epoch 3 to epoch 4, at the rates of a training of 4 epochs."""
    printed = run(
        *("train", store, "--out", tmp_path / "b", "--epochs", 4, *SMALL, *QUICK),
        *("--resume", trained / "last.ckpt", "--lr", "0.002"),
    )
    assert "4 epochs" in printed
    (log,) = (tmp_path / "b").glob("csv/*/metrics.csv")
    rows = list(csv.DictReader(log.read_text().splitlines()))
    assert min(int(row["step"]) for row in rows) >= 6
    rates = [float(row["lr-AdamW/pg1"]) for row in rows if row["lr-AdamW/pg1"]]
    np.testing.assert_allclose(rates, [0.002 * (2 / 8) ** 0.9, 0.002 * (1 / 8) ** 0.9], rtol=1e-6)


def test_an_earlier_training_is_not_written_over(trained, store):
    """Its folder is refused, with the ways to go on; with --force it would not be."""
    before = (trained / "best.ckpt").read_bytes()
    with pytest.raises(StoreExistsError, match=r"--resume .*last\.ckpt.*--force"):
        run("train", store, "--out", trained, *SMALL, *QUICK)
    assert (trained / "best.ckpt").read_bytes() == before


def test_ctrl_c_is_an_interrupt_that_names_the_checkpoint(store, tmp_path, monkeypatch, capsys):
    """Exit code 130; the advice is to resume from the last whole epoch."""

    def interrupt(module):
        if module.trainer.current_epoch == 1:
            raise KeyboardInterrupt

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(DBNetModule, "on_train_epoch_start", interrupt)
    run("train", store, "--out", tmp_path / "d", "--epochs", 3, *SMALL, *QUICK, code=130)
    assert (tmp_path / "d" / "last.ckpt").is_file()
    assert signal.getsignal(signal.SIGINT) is handler


def test_sigterm_is_one_line_that_names_the_checkpoint(store, tmp_path, monkeypatch):
    """Exit code 143; last.ckpt is of the step during which the signal came."""

    def terminate(module, batch, batch_idx):
        if module.trainer.global_step == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(DBNetModule, "on_train_batch_start", terminate)
    out = tmp_path / "e"
    printed = run("train", store, "--out", out, "--epochs", 3, "-q", *SMALL, *QUICK, code=143)
    lines = [line for line in printed.splitlines() if line]
    assert len(lines) == 1 and f"--resume {out / 'last.ckpt'}" in lines[0], printed
    assert torch.load(out / "last.ckpt", weights_only=True)["global_step"] == 2


def test_what_cannot_be_trained_is_said_before(store, trained, drawn_folder, tmp_path):
    """A view without maps, a foreign file or another network to resume, devices there are not."""
    bare = tmp_path / "bare.ocrs"
    build(drawn_folder / "images", bare, size=96, columns=["tensor"], workers=0)
    with pytest.raises(SchemaError, match=r"view '96' lacks prob_map, .*`ocrstore build`"):
        fit(bare, out=tmp_path / "x")
    (tmp_path / "text.ckpt").write_text("no checkpoint")
    with pytest.raises(SchemaError, match="not a checkpoint that torch can load") as caught:
        fit(store, out=tmp_path / "x", resume=tmp_path / "text.ckpt")
    assert "weights_only" not in str(caught.value)
    with pytest.raises(SchemaError, match=r"width: 16 -> 32"):
        model = ModelConfig(backbone="resnet10", width=32, inner=32)
        fit(store, out=tmp_path / "x", model=model, resume=trained / "last.ckpt")
    with pytest.raises(SchemaError, match="device 'abacus'"):
        fit(store, out=tmp_path / "x", params=TrainParams(accelerator="abacus"))
    for device in ("abacus", "cuda:7", "cpu:x"):
        with pytest.raises(SchemaError, match=r"device '\S+' with devices .* cannot be used here"):
            run("train", store, "--out", tmp_path / "x", *SMALL, *QUICK, "--device", device)
    with pytest.raises(click.UsageError, match="--device cuda:1 is one device"):
        run("train", store, "--out", tmp_path / "x", "--device", "cuda:1", "--devices", 2)
    assert not (tmp_path / "x").exists()  # what is refused leaves no folder
    with pytest.raises(SchemaError, match="1 pictures to validate with 2 processes"):
        require_enough(1, 2, store)
    with pytest.raises(SchemaError, match="device 'abacus' cannot be used"):
        Detector.load(trained / "best.ckpt", device="abacus")
    for changes in ({"epochs": 0}, {"batch_size": 0}, {"lr": 0.0}, {"workers": -1}):
        with pytest.raises(SchemaError, match="1 or more"):
            TrainParams(**changes)


def test_the_default_view_is_used_wherever_none_is_named(drawn_folder, tmp_path):
    """Also when another view comes first in the order of names."""
    from ocrstore.building.add_view import add_view

    out = tmp_path / "two.ocrs"
    build(drawn_folder / "images", out, size=96, workers=0)
    add_view(out, size=64, workers=0)
    store = open_store(out)
    assert next(iter(store.metadata["views"])) == "64"
    provenance = provenance_of(store)
    assert provenance.view == "96" and provenance.as_recipe.size == (96, 96)
    assert OCRStoreDataset(out)[0]["image"].shape == (3, 96, 96)


def test_train_stops_early(store, tmp_path):
    """Without a better H-mean for `--patience` validations it ends; with a progress bar."""
    still = ["--lr", "1e-12", "--patience", 2]
    printed = run("train", store, "--out", tmp_path / "c", "--epochs", 9, *still, *SMALL, *QUICK)
    assert "3 epochs" in printed and "val_hmean" in printed


def test_train_augments(store, tmp_path):
    """With --augment the pictures are flipped, warped and coloured, at the view's size."""
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


def test_a_table_that_cannot_be_written_shows_before_the_measuring(store, tmp_path, monkeypatch):
    """Nothing is measured in vain; a table of before stays until there is a new one."""
    monkeypatch.setattr("ocrstore.evaluation.upper_bound.upper_bound", lambda *_, **__: 1 / 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="file"):
        run("eval", store, "--oracle", "--table", tmp_path / "file" / "t.csv")
    (tmp_path / "t.csv").write_text("before")
    with pytest.raises(ZeroDivisionError):
        run("eval", store, "--oracle", "--table", tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == "before"
    with pytest.raises(ZeroDivisionError):
        run("eval", store, "--oracle", "--table", tmp_path / "new.csv")
    assert not (tmp_path / "new.csv").exists()  # an empty one would look like a result


def test_eval_of_the_oracle(store):
    """The store's own maps: words of this size are all found in the 96 px view."""
    figures = json.loads(run("eval", store, "--oracle", "--json"))
    assert figures["hmean"] > 0.9 and figures["cleval"]["recall"] > 0.9


def test_the_authors_rules_can_be_asked_for(trained, store, drawn_folder, tmp_path):
    """`--rules db` finds less of the store's own maps, and rounds to whole pixels in predict."""
    own, theirs = (
        json.loads(run("eval", store, "--oracle", "--json", "--rules", rules))
        for rules in ("ocrstore", "db")
    )
    assert theirs["recall"] < own["recall"] and own == json.loads(
        run("eval", store, "--oracle", "--json")
    )
    picture = drawn_folder / "images" / "img_0.jpg"
    given = ("predict", picture, "--checkpoint", trained / "best.ckpt", "--quiet")
    run(*given, "--out", tmp_path, "--rules", "db", "--min-score", "0.01")
    (boxes,) = json.loads((tmp_path / "boxes.json").read_text()).values()
    points = np.array([box["points"] for box in boxes])
    assert len(boxes) and (points == np.rint(points)).all()


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
    (failed,) = [line for line in printed.splitlines() if "✗" in line]
    assert failed.count("broken.jpg") == 1
    record = json.loads((out / "boxes.json").read_text())
    assert sorted(record) == ["a.jpg", "sub/b.jpg"]
    for key, stem in (("a.jpg", "a"), ("sub/b.jpg", "sub/b")):
        text = (out / Path(stem).parent / f"res_{Path(stem).name}.txt").read_text()
        lines = text.splitlines()
        assert len(lines) == len(record[key])
        assert all(len(line.split(",")) == 8 for line in lines)
        picture = cv2.imread(str(out / Path(stem).parent / f"res_{Path(stem).name}.jpg"))
        assert picture.shape == (360, 480, 3)


def test_the_threshold_of_pixels_can_be_chosen(trained, store, drawn_folder, tmp_path):
    """--threshold beside --min-score, for predict and eval."""
    picture = drawn_folder / "images" / "img_0.jpg"
    given = ("predict", picture, "--checkpoint", trained / "best.ckpt", "--out", tmp_path)
    found = []
    for threshold in (0.01, 0.999):
        run(*given, "--min-score", 0, "--threshold", threshold)
        (boxes,) = json.loads((tmp_path / "boxes.json").read_text()).values()
        found.append(len(boxes))
    assert found[0] > 0 and found[1] == 0
    for command in (given, ("eval", store, "--oracle")):
        with pytest.raises(click.BadParameter, match="0<x<1"):
            run(*command, "--threshold", 1)


def test_predict_one_picture(trained, drawn_folder, tmp_path):
    """A file instead of a folder."""
    path = drawn_folder / "images" / "img_0.jpg"
    run("predict", path, "--checkpoint", trained / "best.ckpt", "--out", tmp_path, "--quiet")
    assert list(json.loads((tmp_path / "boxes.json").read_text())) == ["img_0.jpg"]
    assert (tmp_path / "res_img_0.txt").is_file()


def test_predict_never_overwrites(trained, drawn_folder, tmp_path):
    """Pictures of one name keep results of their own, and no drawing replaces a picture."""
    images = tmp_path / "images"
    images.mkdir()
    data = (drawn_folder / "images" / "img_0.jpg").read_bytes()
    for name in ("same.jpg", "same.jpeg", "other.v2.jpg"):
        (images / name).write_bytes(data)
    given = ("predict", images, "--checkpoint", trained / "best.ckpt", "--quiet", "--draw")
    run(*given, "--out", images)
    assert {path.name for path in images.glob("res_*.txt")} == {
        *("res_same.jpg.txt", "res_same.jpeg.txt", "res_other.v2.txt")
    }
    assert all((images / n).read_bytes() == data for n in ("same.jpg", "same.jpeg"))
    with pytest.raises(StoreExistsError, match="write over the picture 'res_other"):
        (images / "res_other.v2.jpg").unlink()
        (images / "other.v2.jpg").rename(images / "other.jpg")
        for path in images.glob("res_*"):
            path.unlink()
        (images / "res_other.jpg").write_bytes(data)
        run(*given, "--out", images)


def test_the_predicted_boxes_are_those_of_the_evaluation(trained, drawn_folder, store):
    """A picture decoded and drawn by the recipe gives what the baked view gives."""
    from ocrstore.decode import decode

    detector = Detector.load(trained / "best.ckpt", min_score=0.01)
    path = drawn_folder / "images" / "img_0.jpg"
    pixels = decode(path.read_bytes()).pixels
    view, _ = detector.recipe.draw(pixels)
    np.testing.assert_array_equal(OCRStoreDataset(store)[0]["image"].permute(1, 2, 0).numpy(), view)


def test_wrong_use_is_explained(store, tmp_path):
    """One of --checkpoint and --oracle; a known precision; a known view."""
    import click

    with pytest.raises(click.UsageError, match="either --checkpoint or --oracle"):
        run("eval", store)
    with pytest.raises(SchemaError, match="unknown precision"):
        precision_of("64", "cpu")
    with pytest.raises(SchemaError, match="no view 'x'; it has 96"):
        fit(store, out=tmp_path, view="x")
    assert precision_of("mixed", "gpu") == "16-mixed"
    assert precision_of("mixed", "cpu") == "bf16-mixed"


DDP = """
import json, sys
from ocrstore.torch.lightning_bases import L
from ocrstore.dbnet.train import TrainParams, fit
from ocrstore.dbnet.network import ModelConfig

class Note(L.Callback):
    def on_fit_end(self, trainer, module):
        note = {
            "weights": float(sum(p.double().abs().sum() for p in module.net.parameters())),
            "statistics": float(sum(b.double().abs().sum() for b in module.net.buffers())),
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
        model=ModelConfig(backbone="resnet10", width=16, inner=32),
        params=TrainParams(
            epochs=2, batch_size=2, workers=0, precision="32", accelerator="cpu", devices=2
        ),
        quiet=True,
        callbacks=[Note()],
    )
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)  # three interpreters that import Lightning
def test_two_processes_train_one_network(drawn_folder, tmp_path):
    """DDP over gloo: equal weights and statistics, every validation picture counted once.

    Five pictures in batches of two: one rank has a batch more to validate than the other.
    """
    (tmp_path / "images").mkdir()
    for number in range(5):
        shutil.copy(drawn_folder / "images" / f"img_{number}.jpg", tmp_path / "images")
    store = tmp_path / "five.ocrs"
    build(tmp_path / "images", store, annotations=drawn_folder / "gt", size=96, workers=0)
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
        timeout=1100,
        env={**environment, "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    notes = [json.loads((out / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [note["world"] for note in notes] == [2, 2]
    assert notes[0]["weights"] == pytest.approx(notes[1]["weights"], rel=1e-9)
    assert notes[0]["statistics"] == notes[1]["statistics"]
    assert notes[0]["hmean"] == notes[1]["hmean"]
    assert len(notes[0]["rows"]) == 3
    names = sorted(notes[0]["rows"] + notes[1]["rows"])
    assert names == [f"img_{n}.jpg" for n in range(5)]


def test_training_params_have_defaults_for_a_gpu():
    """Batch 16, mixed precision where it is fast, gradients clipped."""
    params = TrainParams()
    assert (params.batch_size, params.clip) == (16, 5.0)
    assert precision_of(params.precision, "gpu") == "16-mixed"
    assert precision_of(params.precision, "cpu") in ("bf16-mixed", "32-true")
    assert ModelConfig().backbone == "resnet18"
