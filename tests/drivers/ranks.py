"""Train or validate on several processes with gloo; prints what was seen as lines of JSON.

ranks.py resume STORE FOLDER REPLICAS STOP_AFTER    rows of each rank; stops after some steps
ranks.py uneven STORE FOLDER REPLICAS               an epoch of a set that cannot be divided
ranks.py loss STORE FOLDER REPLICAS                 the loss of a validation

Under torchrun the processes are there: each of REPLICAS nodes has one. STORE may be several, with
commas in between.
"""

import json
import logging
import os
import sys
import warnings
from pathlib import Path

import torch

from ocrstore.dbnet.module import DBNetModule
from ocrstore.torch import OCRDataModule
from ocrstore.torch.lightning_bases import L

warnings.simplefilter("ignore")
logging.getLogger(L.__name__).setLevel(logging.ERROR)
torch.set_num_threads(1)


class Counting(L.LightningModule):
    """A model that writes down which rows it saw, and may stop in the middle of an epoch."""

    def __init__(self, folder, stop_after):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.folder, self.stop_after, self.steps = folder, stop_after, 0

    def training_step(self, batch, index):
        """Write the rows down."""
        with (self.folder / f"rows-{self.global_rank}.jsonl").open("a") as file:
            file.write(json.dumps([self.current_epoch, batch["rows"].tolist()]) + "\n")
        return self.layer(batch["prob_maps"].float().mean((1, 2, 3))[:, None]).mean()

    def on_train_batch_end(self, *_):
        """Save and stop where asked."""
        self.steps += 1
        if self.steps == self.stop_after:
            self.trainer.save_checkpoint(self.folder / "middle.ckpt")
            self.trainer.should_stop = True

    def configure_optimizers(self):
        """Any will do."""
        return torch.optim.SGD(self.parameters(), 0.01)


def main():
    """Do what the arguments say."""
    action, store, folder, replicas, *rest = sys.argv[1:]
    folder = Path(folder)
    if "GROUP_RANK" in os.environ:
        processes = {"num_nodes": int(replicas), "devices": 1, "strategy": "ddp"}
    else:
        strategy = "ddp_fork" if int(replicas) > 1 else "auto"
        processes = {"devices": int(replicas), "strategy": strategy}
    trainer = L.Trainer(
        accelerator="cpu",
        **processes,
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
    )
    stores = store.split(",")
    data = OCRDataModule(train=stores, val=stores, batch_size=3, num_workers=0, seed=5)
    if action == "loss":
        torch.manual_seed(0)
        module = DBNetModule(model={"backbone": "resnet10", "width": 16, "inner": 32})
        (figures,) = trainer.validate(module, data, verbose=False)
        print(json.dumps({"loss": figures["val_loss"], "hmean": figures["val_hmean"]}))
        return
    checkpoint = folder / "middle.ckpt"
    module = Counting(folder, int(rest[0]) if rest else None)
    trainer.fit(
        module,
        datamodule=data,
        ckpt_path=checkpoint if checkpoint.exists() else None,
        weights_only=False,
    )


if __name__ == "__main__":
    main()
