"""Both Lightning packages: the Trainer of either takes our modules, callbacks and checkpoints."""

import importlib
import os
import signal
from importlib.util import find_spec

import pytest

from ocrstore.dbnet.callbacks import (
    BestCheckpoint,
    DurableCheckpointIO,
    PredictionPictures,
    ProgressBar,
    StopOnSigterm,
)
from ocrstore.dbnet.module import DBNetModule
from ocrstore.torch import OCRDataModule
from ocrstore.torch.lightning_bases import Callback

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
TINY = {"backbone": "resnet10", "width": 16, "inner": 32}

# Lightning advises more workers, and warns of a folder that is not empty
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
]


@pytest.fixture(params=PACKAGES)
def package(request):
    """Import one of the two packages; `ocrstore[lightning]` installs both."""
    if find_spec(request.param.partition(".")[0]) is None:
        pytest.skip(f"{request.param} is not installed")
    return importlib.import_module(request.param)


class Terminate(Callback):
    """Sends SIGTERM to this process in the first step of the second epoch."""

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        """Send it."""
        if trainer.current_epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def fit(package, store, folder, *callbacks, epochs=2, resume=None):
    """Train a tiny network with the package's Trainer and logger, and with all our callbacks."""
    best = BestCheckpoint(folder)
    pictures = PredictionPictures(folder / "pictures", every=1)
    own = [best, StopOnSigterm(folder / "last.ckpt"), pictures, ProgressBar()]
    trainer = package.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=[*own, *callbacks],
        plugins=[DurableCheckpointIO()],
        logger=package.loggers.TensorBoardLogger(folder),
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        enable_model_summary=False,
    )
    module = DBNetModule(model=TINY, lr=1e-3)
    data = OCRDataModule(train=store, val=store, batch_size=3, num_workers=0)
    trainer.fit(module, data, ckpt_path=resume)
    return trainer, module, data


def test_fit_with_the_trainer_of_either(package, drawn_store, tmp_path):
    """It trains, validates, logs, writes checkpoints and pictures, and keeps the arguments."""
    trainer, module, data = fit(package, drawn_store, tmp_path)
    assert isinstance(module, package.LightningModule)
    assert isinstance(data, package.LightningDataModule)
    assert all(isinstance(callback, package.Callback) for callback in trainer.callbacks)
    assert (trainer.current_epoch, trainer.global_step) == (2, 4)
    assert {"train_loss", "val_loss", "val_hmean"} <= trainer.callback_metrics.keys()
    assert module.hparams["model"] == TINY and module.hparams["lr"] == 1e-3
    assert (tmp_path / "best.ckpt").exists()
    assert len(list((tmp_path / "pictures").iterdir())) == 2
    assert list(tmp_path.rglob("events.out.tfevents*"))


def test_sigterm_with_the_trainer_of_either(package, drawn_store, tmp_path):
    """It stops after the step, with a checkpoint; the training is resumed with the next step."""
    with pytest.raises(SystemExit):
        fit(package, drawn_store, tmp_path, Terminate(), epochs=3)
    assert (tmp_path / "last.ckpt").exists()
    trainer, _, _ = fit(
        package, drawn_store, tmp_path, epochs=3, resume=str(tmp_path / "last.ckpt")
    )
    assert (trainer.current_epoch, trainer.global_step) == (3, 6)


def test_loaders_without_a_data_module(package, bars_loader, tmp_path):
    """What is not overridden counts as such: no validation without a loader, no model to set up."""
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = package.Trainer(
        accelerator="cpu", max_epochs=1, enable_model_summary=False, **options
    )
    with pytest.warns(UserWarning, match="no `val_dataloader`"):
        trainer.fit(DBNetModule(model=TINY), bars_loader(2))
    assert trainer.global_step == 1
