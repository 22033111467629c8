"""The data module in Lightning: device transfer, going on in mid-epoch, ranks, Hydra."""

import contextlib
import os
import re
import threading
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from ocrstore.errors import SchemaError
from ocrstore.keys import fraction_of
from ocrstore.torch import Batch, OCRDataModule, OCRStoreDataset, ResumableSampler

lightning = pytest.importorskip("ocrstore.torch.lightning_bases").L
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*num_workers"),
    pytest.mark.filterwarnings("ignore:.*number of training batches"),
    pytest.mark.filterwarnings("ignore:.*ambiguous collection"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*tensorboardX"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*checkpoint"),
]


class Counting(lightning.LightningModule):
    """A model that remembers which rows it saw, and may stop in the middle of an epoch."""

    def __init__(self, stop_after=None):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.rows = []
        self.stop_after = stop_after

    def training_step(self, batch, _index):
        """Remember the rows."""
        assert isinstance(batch, Batch)
        self.rows.append((self.current_epoch, batch["rows"].tolist()))
        values = batch["prob_maps"].float().mean((1, 2, 3))[:, None]
        return self.layer(values).mean()

    def on_train_batch_end(self, *_):
        """Save and stop where asked."""
        if self.stop_after is not None and len(self.rows) == self.stop_after:
            self.trainer.save_checkpoint(self.checkpoint)
            raise KeyboardInterrupt

    def validation_step(self, batch, _index):
        """Count samples."""
        self.log("seen", float(len(batch["images"])), reduce_fx="sum", batch_size=1)

    def configure_optimizers(self):
        """Any will do."""
        return torch.optim.SGD(self.parameters(), 0.01)


def make_trainer(tmp_path, **options):
    """Return a quiet trainer."""
    return lightning.Trainer(
        accelerator="cpu",
        default_root_dir=tmp_path,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        **options,
    )


def make_module(store_path, other_path, workers):
    """Return a data module on two stores."""
    return OCRDataModule(
        train=store_path,
        val=other_path,
        test=other_path,
        predict=other_path,
        batch_size=4,
        num_workers=workers,
        columns=["tensor", "prob_map"],
        seed=5,
    )


def test_an_interrupted_training_goes_on(store_path, other_path, tmp_path):
    """After a checkpoint in mid-epoch the rest of it comes exactly once, with other workers."""
    first = Counting(stop_after=14)
    first.checkpoint = tmp_path / "middle.ckpt"
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        make_trainer(tmp_path, max_epochs=3).fit(
            first, datamodule=make_module(store_path, other_path, 2)
        )
    second = Counting()
    trainer = make_trainer(tmp_path, max_epochs=3)
    trainer.fit(
        second,
        datamodule=make_module(store_path, other_path, 0),
        ckpt_path=tmp_path / "middle.ckpt",
    )
    seen = {0: [], 1: [], 2: []}
    for epoch, rows in first.rows + second.rows:
        seen[epoch] += rows
    assert all(sorted(rows) == list(range(37)) for rows in seen.values())
    straight = Counting()
    make_trainer(tmp_path, max_epochs=3).fit(
        straight, datamodule=make_module(store_path, other_path, 0)
    )
    assert [rows for _, rows in straight.rows] == [rows for _, rows in first.rows + second.rows]
    assert trainer.callback_metrics["seen"] == 7


def test_an_odd_last_batch_is_left_out(store_path, other_path, tmp_path):
    """For compiled networks; the epoch counts as whole, and an only batch is kept."""
    module = make_module(store_path, other_path, 0)
    module.drop_last = True
    model = Counting(stop_after=9)
    model.checkpoint = tmp_path / "end.ckpt"
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        make_trainer(tmp_path, max_epochs=2).fit(model, datamodule=module)
    assert [len(rows) for _, rows in model.rows] == [4] * 9
    state = torch.load(model.checkpoint)["OCRDataModule"]["train"]
    assert (state["epoch"], state["position"]) == (1, 0)
    module.batch_size = 64
    assert len(module.train_dataloader()) == 1


@pytest.mark.parametrize("stop_after", [None, 3])
def test_no_thread_lives_on_after_a_training(store_path, other_path, tmp_path, stop_after):
    """Neither the epoch begun ahead nor validation, nor an interrupted one, keeps its batches."""
    before = set(threading.enumerate())
    model = Counting(stop_after=stop_after)
    model.checkpoint = tmp_path / "middle.ckpt"
    module = make_module(store_path, other_path, 0)
    trainer = make_trainer(tmp_path, max_epochs=1, limit_val_batches=1)
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        trainer.fit(model, datamodule=module)
    assert not set(threading.enumerate()) - before
    assert len(model.rows) == (stop_after or 10)


def test_a_module_is_resumed_twice(store_path, other_path, tmp_path):
    """The same data module goes on from a checkpoint in a second training."""
    module = make_module(store_path, other_path, 0)
    first = Counting(stop_after=4)
    first.checkpoint = tmp_path / "middle.ckpt"
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        make_trainer(tmp_path, max_epochs=1).fit(first, datamodule=module)
    second = Counting()
    make_trainer(tmp_path, max_epochs=1).fit(second, datamodule=module, ckpt_path=first.checkpoint)
    assert sorted(r for _, rows in first.rows + second.rows for r in rows) == list(range(37))


def test_defaults_and_errors_of_the_module(store_path, other_path):
    """Loaders persist, keep order outside of training, and missing stores are named."""
    module = make_module(store_path, other_path, 2)
    loader = module.train_dataloader()
    assert loader.persistent_workers and loader.pin_memory == torch.cuda.is_available()
    assert isinstance(loader.sampler, ResumableSampler) and loader.sampler.shuffle
    for other in (module.test_dataloader(), module.predict_dataloader(), module.val_dataloader()):
        assert not other.sampler.shuffle and len(other.dataset) == 7
    windowed = OCRDataModule(train=store_path, window=2, num_workers=0)
    assert sum(len(b["images"]) for b in windowed.train_dataloader()) == 37
    assert windowed.val_dataloader() == []
    with pytest.raises(ValueError, match="no store for 'test'"):
        windowed.test_dataloader()
    with pytest.raises(SchemaError, match="expected 'pad' or 'drop'"):
        OCRDataModule(train=store_path, uneven="exact")
    assert windowed.state_dict() == {}
    windowed.load_state_dict({})


@pytest.mark.parametrize("window", [None, 1])
def test_a_share_of_the_store_is_held_out(store_path, window):
    """Every sample is trained on or validated with, never both; by its key, in every epoch."""
    module = OCRDataModule(
        train=store_path, val=0.4, batch_size=2, num_workers=0, seed=3, window=window
    )
    loader = module.train_dataloader()
    epochs = [[key for batch in loader for key in batch["image_filename"]] for _ in range(2)]
    held_out = [key for batch in module.val_dataloader() for key in batch["image_filename"]]
    everything = OCRStoreDataset(store_path)[:]["image_filename"]
    assert held_out == [key for key in everything if fraction_of(key) < 0.4]
    for trained in epochs:
        assert sorted([*trained, *held_out]) == sorted(everything)
    assert (module.count("train"), module.count("val")) == (len(epochs[0]), len(held_out))
    assert 0 < len(held_out) < len(everything)


def test_a_share_is_a_number_between_0_and_1(store_path):
    """Others are refused."""
    with pytest.raises(SchemaError, match="between 0 and 1"):
        OCRDataModule(train=store_path, val=1.0)


def test_hydra_makes_the_module(store_path, tmp_path):
    """`_target_` works for data set, transform and module, from the documented YAML."""
    hydra = pytest.importorskip("hydra.utils")
    omegaconf = pytest.importorskip("omegaconf")
    pytest.importorskip("albumentations")
    docs = Path(__file__).parents[2] / "docs" / "training.md"
    (text,) = re.findall(r"```yaml\n(.*?)```", docs.read_text("utf-8"), flags=re.DOTALL)
    config = omegaconf.OmegaConf.create(text)
    crop = config.train_transform.transforms[1]
    crop.height = crop.width = 128
    config.update({"train": str(store_path), "val": str(store_path)})
    config.update({"num_workers": 0, "batch_size": 8, "columns": ["tensor", "prob_map"]})
    module = hydra.instantiate(config)
    assert isinstance(module, OCRDataModule)
    batch = next(iter(module.train_dataloader()))
    assert batch["images"].shape == (8, 3, 128, 128)
    assert next(iter(module.val_dataloader()))["images"].shape == (8, 3, 160, 160)
    config = {"_target_": "ocrstore.torch.OCRStoreDataset", "paths": str(store_path), "view": "96"}
    assert hydra.instantiate(config)[0]["image"].shape == (3, 96, 96)
    config["paths"] = [str(store_path), str(store_path)]
    assert len(hydra.instantiate(omegaconf.OmegaConf.create(config))) == 74


def _rank(rank, folder, path, queue):
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    dataset = OCRStoreDataset(path, columns=["tensor", "prob_map"])
    sampler = ResumableSampler(dataset, seed=1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    loader = DataLoader(dataset, 4, sampler=sampler, num_workers=1)
    epochs = []
    for _ in range(2):
        rows, total = [], 0
        with model.join() if hasattr(model, "join") else torch.no_grad():
            for batch in loader:
                total += int(batch["images"].sum(dtype=torch.int64))
                rows += batch["rows"].tolist()
                model(batch["prob_maps"].float().mean((1, 2, 3))[:, None]).mean().backward()
        epochs.append((rows, total))
    queue.put((rank, epochs, str(path) in Path("/proc/self/maps").read_text()))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_two_ranks_see_every_sample_once(store_path, tmp_path):
    """DDP with gloo: both ranks together draw each sample exactly once, from one file's pages."""
    context = torch.multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    processes = [
        context.Process(target=_rank, args=(rank, tmp_path, store_path, queue)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    results = [queue.get() for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    whole = OCRStoreDataset(store_path)[0:37]["images"].sum(dtype=torch.int64)
    for epoch in range(2):
        rows = [row for _, epochs, _ in results for row in epochs[epoch][0]]
        assert sorted(rows) == list(range(37))
        assert sum(epochs[epoch][1] for _, epochs, _ in results) == whole
    assert all(mapped for *_, mapped in results)
