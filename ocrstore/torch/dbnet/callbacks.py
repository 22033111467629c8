"""What happens beside the training: pictures with predictions, every few epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812  # its own documentation calls it so
import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger

from ocrstore.torch.dbnet.drawing import draw_boxes, grid, write_picture
from ocrstore.torch.dbnet.truth import move, truth_of


class PredictionPictures(L.Callback):
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
        truth = truth_of(batch)
        images = batch["images"]
        for position in range(min(len(images), self.count - len(self._kept))):
            forward = np.linalg.inv(truth.inverse_matrices[position])
            found = outputs["detections"][position].polygons
            self._kept.append(
                draw_boxes(
                    images[position].permute(1, 2, 0).cpu().numpy(),
                    [move(forward, points) for points in found],
                    truths=[move(forward, points) for points in truth.polygons[position]],
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
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_image(
                    "predictions", sheet, trainer.global_step, dataformats="HWC"
                )
