"""Training: precision, the best checkpoint, stopping on signals, logs that are continued."""

import csv
import os
import signal
import threading

import pytest
import torch

from ocrstore.dbnet.callbacks import BestCheckpoint
from ocrstore.dbnet.network import ModelConfig
from ocrstore.dbnet.train import TrainParams, fit, precision_of, silent_log_threads
from ocrstore.torch.lightning_bases import L

# what Lightning warns of in a small training is meant here: few workers, a used folder
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
]

SMALL = ModelConfig(backbone="resnet10", width=16, inner=32)


def train(store, out, *, epochs=2, **options):
    """Train a small network on the CPU, two steps an epoch."""
    params = TrainParams(
        epochs=epochs,
        batch_size=3,
        workers=0,
        precision="32",
        accelerator="cpu",
        lr=1e-4,
        log_every=1,
    )
    return fit(store, out=out, model=SMALL, params=params, quiet=True, **options)


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, "32-true"),
        ({"avx512_f": True, "avx512_bf16": True}, "bf16-mixed"),
        ({"amx_bf16": True}, "bf16-mixed"),
        ({}, "32-true"),
    ],
    ids=["avx512", "avx512_bf16", "amx", "unknown"],
)
def test_auto_precision_asks_for_bfloat16_instructions(monkeypatch, capabilities, expected):
    """AVX-512 alone is not enough on a CPU."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert precision_of("auto", "cpu") == expected
    assert precision_of("mixed", "cpu") == "bf16-mixed"


class Scripted(L.LightningModule):
    """A module whose validations have the H-mean and the loss of a script."""

    def __init__(self, figures):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.figures = figures

    def training_step(self, batch, batch_idx):
        """Return some loss."""
        return self.weight.sum()

    def validation_step(self, batch, batch_idx):
        """Log what the script says."""
        hmean, loss = self.figures[self.trainer.current_epoch]
        self.log_dict({"val_hmean": hmean, "val_loss": loss}, batch_size=1)

    def configure_optimizers(self):
        """Return some optimiser."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("figures", "best"),
    [
        ([(0.0, 3.0), (0.0, 2.0), (0.0, 2.5)], 1),
        ([(0.5, 3.0), (0.4, 2.0), (0.5, 3.5)], 0),
        ([(0.5, 3.0), (0.6, 4.0), (0.6, 3.5)], 2),
    ],
    ids=["zeros", "first", "last"],
)
def test_equal_hmean_goes_to_the_lower_loss(tmp_path, figures, best):
    """best.ckpt is the epoch of the highest H-mean, and among those of the lowest loss."""
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=len(figures),
        callbacks=[BestCheckpoint(tmp_path)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    loader = torch.utils.data.DataLoader([0, 1])
    trainer.fit(Scripted(figures), loader, loader)
    saved = torch.load(tmp_path / "best.ckpt", weights_only=True)
    assert saved["epoch"] == best
    (state,) = (s for s in saved["callbacks"].values() if "best_loss" in s)
    assert state["best_loss"] == figures[best][1]
    again = BestCheckpoint(tmp_path)
    again.load_state_dict(state)
    assert again.best_loss == figures[best][1]


class Signal(L.Callback):
    """Sends this process a signal in the middle of a training step, or of the validation."""

    def __init__(self, epoch, *, validating=False):
        self.epoch, self.validating = epoch, validating

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        """Send it in the first step of the epoch."""
        if not self.validating and trainer.current_epoch == self.epoch and batch_idx == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        """Send it in the first batch of the epoch's validation."""
        if self.validating and trainer.current_epoch == self.epoch and batch_idx == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def rows_of(out):
    """Return the rows of the only CSV log."""
    (log,) = out.glob("csv/*/metrics.csv")
    return list(csv.DictReader(log.read_text().splitlines()))


def test_sigterm_stops_after_the_step_and_is_resumed_in_one_log(drawn_store, tmp_path):
    """Epoch 2 of 3 is stopped after its first of two steps; resumed, every step is there once."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        train(drawn_store, tmp_path, epochs=3, callbacks=[Signal(1)])
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 3
    done = train(drawn_store, tmp_path, epochs=3, resume=tmp_path / "last.ckpt")
    assert done.epochs == 3
    rows = rows_of(tmp_path)
    assert [int(row["step"]) for row in rows if row["train_loss"]] == list(range(6))
    assert [int(row["step"]) for row in rows if row["val_hmean"]] == [1, 3, 5]
    assert [path.name for path in (tmp_path / "tensorboard").iterdir()] == ["version_0"]


def test_sigterm_in_validation_stops_after_it(drawn_store, tmp_path):
    """The epoch is whole: its figures are logged and last.ckpt is at its end."""
    with pytest.raises(SystemExit) as caught:
        train(drawn_store, tmp_path, epochs=3, callbacks=[Signal(0, validating=True)])
    assert caught.value.code == 143
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 2
    assert train(drawn_store, tmp_path, epochs=2, resume=tmp_path / "last.ckpt").epochs == 2
    rows = rows_of(tmp_path)
    assert [int(row["step"]) for row in rows if row["val_hmean"]] == [1, 3]
    assert [int(row["step"]) for row in rows if row["train_loss"]] == list(range(4))


def test_steps_after_the_checkpoint_are_logged_once(drawn_store, tmp_path):
    """A training that died in epoch 2 had logged a step of it; resumed, that step is replaced."""

    class Die(L.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.global_step == 3:
                for logger in trainer.loggers:
                    logger.save()
                raise RuntimeError("died")

    with pytest.raises(RuntimeError, match="died"):
        train(drawn_store, tmp_path, callbacks=[Die()])
    train(drawn_store, tmp_path, resume=tmp_path / "last.ckpt")
    steps = [int(row["step"]) for row in rows_of(tmp_path) if row["train_loss"]]
    assert steps == list(range(4))


def test_a_new_training_in_an_old_folder_has_a_log_of_its_own(drawn_store, tmp_path):
    """With `force`, the curve of before is neither continued nor lost."""
    for _ in range(2):
        train(drawn_store, tmp_path, epochs=1, force=True)
    logs = sorted(path.parent.name for path in tmp_path.glob("csv/*/metrics.csv"))
    assert logs == ["version_0", "version_1"]


def test_a_full_disk_under_a_log_thread_prints_no_traceback():
    """TensorBoard's thread and the training would both tell of it; other errors are shown."""
    shown = []
    before, threading.excepthook = threading.excepthook, shown.append
    try:
        for error in (OSError("full"), KeyError("a bug")):
            with silent_log_threads():
                thread = threading.Thread(target=_raise, args=(error,))
                thread.start()
                thread.join()
        assert threading.excepthook == shown.append
    finally:
        threading.excepthook = before
    assert [failure.exc_type for failure in shown] == [KeyError]


def _raise(error):
    raise error
