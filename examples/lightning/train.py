"""Train a small text detector: `python train.py folder=data`."""

import json

import hydra
import pytorch_lightning as pl
from hydra.utils import instantiate


@hydra.main(config_path="conf", config_name="train", version_base=None)
def main(config):
    pl.seed_everything(config.seed, workers=True)
    model, data = instantiate(config.model), instantiate(config.data)
    trainer = pl.Trainer(
        max_epochs=config.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[instantiate(callback) for callback in config.callbacks],
    )
    before = trainer.validate(model, data, verbose=False)[0]
    trainer.fit(model, data)
    after = {name: float(value) for name, value in trainer.callback_metrics.items()}
    print(json.dumps({"untrained_loss": before["val_loss"], **after}))


if __name__ == "__main__":
    main()
