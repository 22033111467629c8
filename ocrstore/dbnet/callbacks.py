"""Lightning callbacks: the best checkpoint, stopping on SIGTERM, durable files, pictures."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ocrstore.dbnet.checkpoint import write_checkpoint
from ocrstore.dbnet.predict import draw_boxes, grid, write_picture
from ocrstore.evaluation.results import ground_truth_of
from ocrstore.geometry import transform_points
from ocrstore.torch.lightning_bases import (
    Callback,
    L,
    ModelCheckpoint,
    RichProgressBar,
    SIGTERMException,
    TorchCheckpointIO,
    every,
)


class BestCheckpoint(ModelCheckpoint):
    """Keeps the checkpoint of the highest H-mean in `best.ckpt`; of equal ones the lower loss.

    H-mean is 0 for many epochs at first, and would leave the network of the first one there.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder, filename="best", monitor="val_hmean", mode="max", enable_version_counter=False
        )
        self.best_loss = float("inf")

    def check_monitor_top_k(self, trainer: L.Trainer, current: Tensor | None = None) -> bool:
        """Tell whether the present network is to be saved."""
        loss = float(trainer.callback_metrics.get("val_loss", float("inf")))
        equal = current is not None and current == self.best_model_score
        better = super().check_monitor_top_k(trainer, current)
        if better or (equal and loss < self.best_loss):
            self.best_loss = loss
            return True
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return Lightning's state and the loss."""
        return {**super().state_dict(), "best_loss": self.best_loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore both; a checkpoint of another folder says nothing about the best one here."""
        super().load_state_dict(state_dict)
        if self.dirpath == state_dict.get("dirpath"):
            self.best_loss = float(state_dict.get("best_loss", float("inf")))


class ProgressBar(RichProgressBar):
    """Fetches the loss when it is logged, not in every step: the host would wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[str, Any] = {}
        self._loss: dict[str, Any] = {}

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        """Return the figures of the last step that was logged."""
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector
        if not trainer.training:
            # Lightning has set the loss of training to 0 by now
            self._shown = {**super().get_metrics(trainer, pl_module), **self._loss}
        elif not trainer.global_step % every:
            self._shown = dict(super().get_metrics(trainer, pl_module))
            self._loss = {k: v for k, v in self._shown.items() if k == "train_loss"}
        return self._shown


class StopOnSigterm(Callback):
    """Ends a training after the present step when SIGTERM arrives, and writes a checkpoint.

    In validation it ends after it: what was counted so far is in no checkpoint. With several
    processes Lightning's own handler stays, which passes the signal on to all of them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stepped = False
        """Whether a step was made, which is when a wrong state of the optimiser shows."""
        self.received = False
        self._saved = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Replace Lightning's handler; Lightning restores the one of before at the end."""
        if trainer.world_size == 1 and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._note)

    def _note(self, signum: int, frame: Any) -> None:  # noqa: ARG002  # the signature of handlers
        self.received = True

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,  # noqa: ARG002  # Lightning's signature
        outputs: Any,  # noqa: ARG002  # Lightning's signature
        batch: Any,  # noqa: ARG002  # Lightning's signature
        batch_idx: int,  # noqa: ARG002  # Lightning's signature
    ) -> None:
        """Save here: from checkpoints of this hook, Lightning resumes with the next batch."""
        self.stepped = True
        if self.received and not trainer.is_last_batch:
            trainer.save_checkpoint(self.path)
            self._saved = True

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Note that a checkpoint is written next, as at the end of every epoch."""
        self._saved = self.received

    def on_train_batch_start(
        self,
        trainer: L.Trainer,  # noqa: ARG002  # Lightning's signature
        pl_module: L.LightningModule,  # noqa: ARG002  # Lightning's signature
        batch: Any,  # noqa: ARG002  # Lightning's signature
        batch_idx: int,  # noqa: ARG002  # Lightning's signature
    ) -> None:
        """Stop here: after the saved step was logged."""
        if self._saved:
            raise SIGTERMException

    def on_exception(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,  # noqa: ARG002  # Lightning's signature
        exception: BaseException,
    ) -> None:
        """Save where Lightning stops several processes between two steps."""
        if isinstance(exception, SIGTERMException) and not (self._saved or trainer.validating):
            trainer.save_checkpoint(self.path)


class DurableCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints by `write_checkpoint`.

    Lightning's own goes through the temporary folder; where that is another file system, the file
    is copied over the previous checkpoint, and a crash in between leaves neither.
    """

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | os.PathLike[str],
        storage_options: Any = None,  # noqa: ARG002  # Lightning's signature
    ) -> None:
        """Write a checkpoint."""
        write_checkpoint(checkpoint, Path(path))

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Any = None,
        weights_only: bool | None = None,  # noqa: ARG002  # Lightning's signature
    ) -> dict[str, Any]:
        """Load a checkpoint without running any code that the file may contain."""
        content: dict[str, Any] = torch.load(path, map_location, weights_only=True)
        return content


class PredictionPictures(Callback):
    """Writes the first validation pictures with found (red) and true (green) boxes.

    They go to `folder/epoch-0004.jpg` and, where there is one, to the TensorBoard log.
    """

    def __init__(self, folder: str | Path, *, every: int = 5, count: int = 4) -> None:
        self.folder = Path(folder)
        self.every = max(every, 1)
        self.count = count
        self._kept: list[Any] = []
        self._last: int | None = None

    def _is_due(self, trainer: L.Trainer) -> bool:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return False
        # counted from the last one: validation may come every few epochs only
        waited = self._last is None or trainer.current_epoch - self._last >= self.every
        return waited or trainer.current_epoch + 1 == trainer.max_epochs

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,  # noqa: ARG002  # Lightning's signature
        outputs: Any,
        batch: Any,
        batch_idx: int,  # noqa: ARG002  # Lightning's signature
        dataloader_idx: int = 0,  # noqa: ARG002  # Lightning's signature
    ) -> None:
        """Keep the first few pictures with what was found in them."""
        if not self._is_due(trainer) or len(self._kept) >= self.count:
            return
        truth = ground_truth_of(batch)
        found = outputs["scored"].result().found
        wanted = min(len(found), self.count - len(self._kept))
        pictures = batch["images"][:wanted].permute(0, 2, 3, 1).cpu().numpy()
        for position, picture in enumerate(pictures):
            forward = np.linalg.inv(truth.inverse_matrices[position])
            self._kept.append(
                draw_boxes(
                    picture,
                    [transform_points(forward, points) for points in found[position].polygons],
                    truths=[
                        transform_points(forward, points) for points in truth.polygons[position]
                    ],
                    ignored=truth.ignored[position],
                )
            )

    def on_validation_epoch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,  # noqa: ARG002  # Lightning's signature
    ) -> None:
        """Write them."""
        kept, self._kept = self._kept, []
        if not kept:
            return
        self._last = trainer.current_epoch
        sheet = grid(kept)
        write_picture(self.folder / f"epoch-{trainer.current_epoch:04d}.jpg", sheet)
        for logger in trainer.loggers:
            if isinstance(logger, every("loggers.TensorBoardLogger")):
                logger.experiment.add_image(
                    "predictions", sheet, trainer.global_step, dataformats="HWC"
                )
