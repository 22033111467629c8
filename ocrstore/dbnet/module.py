"""DBNet as a Lightning module: steps, metrics, optimiser, schedule, what checkpoints record."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ocrstore.dbnet.checkpoint import KEY, Provenance
from ocrstore.dbnet.evaluate import Scored, Scoring
from ocrstore.dbnet.loss import Losses, LossParams, dbnet_loss
from ocrstore.dbnet.metrics import CLEval, HMean, SampleMean
from ocrstore.dbnet.network import DBNet, ModelConfig, Output
from ocrstore.errors import SchemaError
from ocrstore.evaluation.postprocess import Detections, PostParams, detect
from ocrstore.evaluation.results import GroundTruth, ground_truth_of
from ocrstore.torch.lightning_bases import LightningModule

Batch = Mapping[str, Any]


class DBNetModule(LightningModule):
    """DBNet with its loss, optimiser and metrics.

    `model`, `loss` and `post` are the JSON forms of `ModelConfig`, `LossParams` and `PostParams`,
    so that a checkpoint contains plain values only. With a `provenance`, checkpoints carry it, and
    refuse to be resumed on views of another recipe.

    Validation scores boxes in threads while the device goes on: the figures are there at the end of
    its epoch. CLEval, which takes most of the time, is counted every `cleval_every` epochs and in
    the last one; always outside of a training.
    """

    def __init__(
        self,
        *,
        model: dict[str, Any] | None = None,
        loss: dict[str, Any] | None = None,
        post: dict[str, Any] | None = None,
        optimizer: str = "adamw",
        lr: float = 1e-3,
        weight_decay: float = 1e-4,
        power: float = 0.9,
        warmup: float = 0.02,
        compiled: bool = False,
        cleval_every: int = 10,
        provenance: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if optimizer not in ("adamw", "sgd"):
            raise SchemaError(f"unknown optimizer {optimizer!r}: expected 'adamw' or 'sgd'")
        self.save_hyperparameters()
        self.optimizer_name = optimizer
        self.lr, self.weight_decay = lr, weight_decay
        self.power, self.warmup = power, warmup
        self.loss_params = LossParams(**(loss or {}))
        self.post_params = PostParams(**(post or {}))
        self.provenance = None if provenance is None else Provenance.from_json(provenance)
        self.net = DBNet(ModelConfig.from_json(model or {}))
        self.compiled = compiled
        if compiled:
            self.net.compile()  # in place: the names in the state dict stay
        self.cleval_every = max(cleval_every, 1)
        self.hmean = HMean()
        self.cleval = CLEval()
        self.mean_losses = SampleMean(Losses._fields)
        self._scoring: Scoring | None = None
        self._full_batch = 0
        """The pictures in the largest batch of validation so far."""
        self._scheduler: torch.optim.lr_scheduler.LambdaLR | None = None
        # DDP would send rank 0's buffers at every forward pass, in validation too, where ranks may
        # have different numbers of batches, which is a deadlock
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]

    def forward(self, images: Tensor) -> Output:
        """Run the network; it returns thresholds in training mode only."""
        output: Output = self.net(images)
        return output

    def losses(self, output: Output, batch: Batch) -> Losses:
        """Return the loss of an output against the maps of its batch."""
        return dbnet_loss(
            output,
            prob_maps=batch["prob_maps"],
            prob_masks=batch["prob_masks"],
            thresh_maps=batch["thresh_maps"],
            thresh_masks=batch["thresh_masks"],
            params=self.loss_params,
        )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:  # noqa: ARG002  # Lightning's signature
        """Return the loss of one batch."""
        losses = self.losses(self.net(batch["images"], thresholds=True), batch)
        for name, value in losses._asdict().items():
            self.log(
                _loss_name("train", name),
                value.detach(),
                prog_bar=name == "total",
                batch_size=len(batch["images"]),
            )
        return losses.total

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:  # noqa: ARG002  # Lightning's signature
        """Count one batch; returns a future of what is found, `scored`."""
        return {"scored": self._evaluate(batch)}

    def test_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:  # noqa: ARG002  # Lightning's signature
        """Count one batch; returns a future of what is found, `scored`."""
        return {"scored": self._evaluate(batch)}

    def predict_step(self, batch: Batch, batch_idx: int = 0) -> list[dict[str, Any]]:  # noqa: ARG002  # Lightning's signature
        """Return `polygons` (in picture coordinates) and `scores` of each picture in a batch.

        Plain dicts, because Lightning walks into what is returned and cannot pass frozen records.
        """
        found = self.find(self.net(batch["images"], thresholds=False), ground_truth_of(batch))
        return [{"polygons": list(d.polygons), "scores": d.scores} for d in found]

    def find(self, output: Output, truth: GroundTruth) -> list[Detections]:
        """Turn an output into boxes in picture coordinates."""
        return detect(
            output.prob.detach().cpu().numpy(),
            inverse_matrices=truth.inverse_matrices,
            sizes=truth.sizes,
            params=self.post_params,
        )

    def on_validation_epoch_end(self) -> None:
        """Log precision, recall and H-mean over all ranks."""
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Log precision, recall and H-mean over all ranks."""
        self._log_metrics("test")

    def on_validation_epoch_start(self) -> None:
        """Reset the metrics; `hmean.rows` of the previous epoch can be read until here."""
        self.hmean.reset()
        self.cleval.reset()
        self.mean_losses.reset()
        self._share_statistics()
        if self._scoring is not None:
            self._scoring.close()  # of an epoch that was interrupted
        characters = self._counts_characters()
        self._scoring = Scoring(self.post_params, self.device, characters=characters)

    on_test_epoch_start = on_validation_epoch_start

    def _counts_characters(self) -> bool:
        if self.trainer.state.fn != "fit":
            return True
        epoch = self.trainer.current_epoch + 1
        return epoch % self.cleval_every == 0 or epoch == self.trainer.max_epochs

    def _share_statistics(self) -> None:
        """Give all ranks the running statistics of rank 0, whose checkpoint is the one saved."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            for buffer in self.net.buffers():
                torch.distributed.broadcast(buffer, 0)

    def _evaluate(self, batch: Batch) -> Future[Scored]:
        if self._scoring is None:
            raise RuntimeError("validation and test steps belong to an epoch: use a Trainer")
        output = self._evaluation_output(batch["images"])
        self.mean_losses.update(self.losses(output, batch), len(batch["images"]))
        return self._scoring.submit(output.prob, ground_truth_of(batch))

    def _evaluation_output(self, images: Tensor) -> Output:
        """Run the network; a compiled one gets batches of one size, as another would recompile it.

        Pictures do not influence each other in evaluation, so the last batch may be filled up.
        """
        count = len(images)
        self._full_batch = max(self._full_batch, count)
        missing = self._full_batch - count if self.compiled else 0
        if not missing:
            output: Output = self.net(images, thresholds=True)
            return output
        padded = functional.pad(images, (0, 0, 0, 0, 0, 0, 0, missing))
        return Output(*(part[:count] for part in self.net(padded, thresholds=True)))

    def _log_metrics(self, stage: str) -> None:
        scoring, self._scoring = self._scoring, None
        scored = [] if scoring is None else scoring.finish()
        for batch in scored:
            self.hmean.update(batch.pictures, batch.keys)
            self.cleval.update(batch.characters)
        # computing adds the counts of all ranks, so every rank logs the same value
        for name, value in self.mean_losses.compute().items():
            self.log(_loss_name(stage, name), value, prog_bar=name == "total")
        for name, value in self.hmean.compute().items():
            self.log(f"{stage}_{name}", value, prog_bar=name == "hmean", rank_zero_only=False)
        if self._counts_characters():
            for name, value in self.cleval.compute().items():
                self.log(f"{stage}_cleval_{name}", value)

    def configure_optimizers(self) -> Any:
        """Return the optimiser and the polynomial schedule over all steps of the training."""
        # norms and biases are not decayed
        decayed = [p for p in self.net.parameters() if p.requires_grad and p.ndim > 1]
        plain = [p for p in self.net.parameters() if p.requires_grad and p.ndim <= 1]
        groups = [
            {"params": decayed, "weight_decay": self.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        optimizer: torch.optim.Optimizer
        if self.optimizer_name == "adamw":
            optimizer = torch.optim.AdamW(groups, lr=self.lr)
        else:
            optimizer = torch.optim.SGD(groups, lr=self.lr, momentum=0.9, nesterov=True)
        total = int(self.trainer.estimated_stepping_batches)
        schedule = PolynomialSchedule(total, warmup=self.warmup, power=self.power)

        def factor(step: int) -> float:
            # a plain function: LambdaLR saves the attributes of a callable object, so a training
            # resumed with more epochs would get the old number of steps back
            return schedule(step)

        self._scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": self._scheduler, "interval": "step"},
        }

    def on_train_start(self) -> None:
        """Use the learning rate and weight decay given here, not those of a resumed checkpoint."""
        scheduler = self._scheduler
        if scheduler is None:
            return  # a subclass has optimisers of its own
        groups = scheduler.optimizer.param_groups
        scheduler.base_lrs = [self.lr] * len(groups)
        for group, weight_decay in zip(groups, (self.weight_decay, 0.0), strict=True):
            group["initial_lr"] = self.lr
            group["lr"] = self.lr * scheduler.lr_lambdas[0](scheduler.last_epoch)
            group["weight_decay"] = weight_decay

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add network, post-processing and provenance to the checkpoint."""
        checkpoint[KEY] = {
            "model": self.net.config.to_json(),
            "post": asdict(self.post_params),
            "provenance": None if self.provenance is None else self.provenance.to_json(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of another recipe."""
        saved = checkpoint.get(KEY, {}).get("provenance")
        if saved is not None and self.provenance is not None:
            Provenance.from_json(saved).require_same_recipe(
                self.provenance, checkpoint="the checkpoint", found="this training's store"
            )


def _loss_name(stage: str, name: str) -> str:
    return f"{stage}_loss" if name == "total" else f"{stage}_loss_{name}"


class PolynomialSchedule:
    """(1 - step / total) ** power, after a linear warm-up over a part of the steps."""

    def __init__(self, total: int, *, warmup: float = 0.0, power: float = 0.9) -> None:
        self.total = max(total, 1)
        self.warmup = int(warmup * self.total)
        self.power = power

    def __call__(self, step: int) -> float:
        """Return the factor of the learning rate at a step."""
        rise = min(1.0, (step + 1) / (self.warmup + 1))
        return float(rise * max(0.0, 1.0 - step / self.total) ** self.power)
