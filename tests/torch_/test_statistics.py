"""Statistics of loading: in a plain loop, as a Lightning callback, in TensorBoard."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from ocrstore.torch import LoadingStatistics, OCRDataModule, OCRStoreDataset, log_every_n
from ocrstore.torch.lightning_bases import every
from ocrstore.torch.statistics import LoadingFigures, find_dataset


@pytest.mark.parametrize("workers", [0, 2])
def test_a_line_every_n_batches(store_path, workers):
    """All batches pass; after each n a line says what they took."""
    dataset = OCRStoreDataset(store_path)
    lines = []
    loader = DataLoader(dataset, batch_size=2, num_workers=workers)
    rows = [batch["rows"] for batch in log_every_n(loader, 3, emit=lines.append)]
    assert torch.cat(rows).tolist() == list(range(len(dataset)))
    assert len(lines) == len(rows) // 3
    again = [batch["rows"] for batch in log_every_n(loader, 3, emit=lines.append)]
    assert len(lines) == 2 * len(again) // 3  # batches are counted over epochs
    for part in ("batch 3:", "page-cache hits", "resident", "MB in", "waited"):
        assert part in lines[0]


def test_tensorboard(store_path, tmp_path):
    """A SummaryWriter gets the figures as scalars."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    loader = DataLoader(OCRStoreDataset(store_path), batch_size=4)
    with SummaryWriter(str(tmp_path)) as writer:
        for _ in log_every_n(loader, 2, emit=lambda _: None, writer=writer):
            pass
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert "ocrstore/wait_ms" in events.Tags()["scalars"]
    assert [event.step for event in events.Scalars("ocrstore/mb_per_s")][:1] == [2]


# torch's, of what pytorch_lightning calls
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("package", range(len(every("Trainer"))))
def test_the_callback(store_path, tmp_path, package):
    """Both packages' Trainers call it; loggers get the figures."""

    class Module(every("LightningModule")[package]):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch, _):
            return (self.weight * batch["prob_maps"].float().mean()).sum()

        def validation_step(self, *_):
            """Do nothing; without it Lightning warns of the data module's loader."""

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    logger = every("loggers.CSVLogger")[package](tmp_path)
    lines = []
    trainer = every("Trainer")[package](
        max_epochs=2,
        accelerator="cpu",
        logger=logger,
        log_every_n_steps=1,
        callbacks=[LoadingStatistics(2, emit=lines.append)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = OCRDataModule(train=store_path, val=store_path, batch_size=4, num_workers=0)
    trainer.fit(Module(), data)
    steps = trainer.global_step
    assert len(lines) == steps // 2
    logger.save()
    assert "ocrstore/residency" in (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()


def test_figures():
    """Unknown figures are said to be so, and are left out of the scalars."""
    known = LoadingFigures(10, 10, 1000, 250, 500, 1000, 2.0, 0.5)
    assert (known.hits, known.resident) == (0.75, 0.5)
    assert known.scalars()["ocrstore/wait_share"] == 0.25
    unknown = LoadingFigures(10, 10, 1000, None, None, 1000, 2.0, 0.5)
    assert "hits unknown" in unknown.line() and "ocrstore/residency" not in unknown.scalars()


def test_which_data_set_is_meant(store_path):
    """Behind subsets and several loaders; anything else is refused."""
    dataset = OCRStoreDataset(store_path)
    loader = DataLoader(Subset(dataset, [0, 1]))
    assert find_dataset(loader) is dataset and find_dataset({"a": [loader]}) is dataset
    with pytest.raises(TypeError, match="expected a loader of one"):
        find_dataset(DataLoader(np.zeros(3)))
