"""For Lightning: loaders that resume in the middle of an epoch, and statistics of loading."""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

from ocrstore.errors import SchemaError
from ocrstore.keys import fraction_of
from ocrstore.torch.dataset import OCRStoreDataset, Paths
from ocrstore.torch.lightning_bases import Callback, LightningDataModule
from ocrstore.torch.prefetch import PrefetchLoader
from ocrstore.torch.samplers import ResumableSampler, Uneven, WindowShuffleSampler
from ocrstore.torch.statistics import LoadingMeter, find_dataset

if TYPE_CHECKING:
    from collections.abc import Callable

    from ocrstore.recipe import Recipe
    from ocrstore.targets import TargetFunction
    from ocrstore.torch.augmented import Transform

_WINDOW = 8
"""Row groups of a window, for a data set of more stores than that."""


class OCRDataModule(LightningDataModule):
    """Loaders for training, validation, test and prediction with good defaults.

    Workers persist between epochs. A thread prepares batches ahead of the loop and sends them to
    the GPU if there is one (`PrefetchLoader`). Training uses a `ResumableSampler` (with `window`: a
    `WindowShuffleSampler` of that many row groups, for stores larger than memory). Its position is
    saved in Lightning's checkpoints, so an interrupted training continues with the samples that it
    had not seen, whatever the number of workers, ranks and nodes. On several nodes each one reads
    its own part of the stores, the same in every epoch.
    """

    def __init__(
        self,
        *,
        train: Paths | None = None,
        val: Paths | float | None = None,
        test: Paths | None = None,
        predict: Paths | None = None,
        batch_size: int = 16,
        num_workers: int = 2,
        train_transform: Transform | None = None,
        targets: TargetFunction | None = None,
        view: str | int | None = None,
        columns: list[str] | None = None,
        expect: Recipe | str | None = None,
        max_row_nbytes: int | None = None,
        normalize: bool = False,
        numpy: bool = False,
        seed: int = 0,
        samples: int | None = None,
        window: int | None = None,
        uneven: Uneven = "pad",
        drop_last: bool = False,
        prefetch: int = 2,
        pin_memory: bool | None = None,
        persistent_workers: bool = True,
        multiprocessing_context: str | None = None,
    ) -> None:
        """Name the stores; they are opened when a stage needs them.

        Validation, test and prediction see every sample exactly once, in stored order.

        Args:
            train: The stores for training, as `OCRStoreDataset` takes them; shuffled. A dict mixes
                them in these shares.
            val: The stores for validation; or a share of the training samples, such as 0.1, which
                are then not trained on. Which ones follows from their keys alone, so they stay the
                same when samples are added.
            test: The stores for testing.
            predict: The stores for prediction.
            batch_size: Samples in a batch.
            num_workers: Worker processes of each loader.
            train_transform: The transform for training.
            targets: Draws the targets after `train_transform`, as in `OCRStoreDataset`.
            view: As in `OCRStoreDataset`.
            columns: As in `OCRStoreDataset`.
            expect: As in `OCRStoreDataset`.
            max_row_nbytes: As in `OCRStoreDataset`.
            normalize: As in `OCRStoreDataset`.
            numpy: As in `OCRStoreDataset`.
            seed: Seeds the order of training.
            samples: The samples of an epoch of training; see `ResumableSampler`.
            window: Shuffle in windows of that many row groups; 0 shuffles all at once. By default
                8 for a data set of more than 8 stores, and 0 for others.
            uneven: What training does when the samples cannot be divided evenly between ranks:
                `pad` or `drop`; see `ResumableSampler`. Not `exact`: ranks with different numbers
                of batches wait for each other's gradients forever.
            drop_last: Leave out the last batch of a training epoch if it is smaller than the
                others, for compiled networks: another size would compile them again.
            prefetch: How many batches to prepare ahead of the loop. 0 leaves that to torch, and so
                does a transform without workers, whose random numbers would be drawn in between
                those of the loop.
            pin_memory: As in DataLoader; by default only where nothing is prefetched.
            persistent_workers: As in DataLoader.
            multiprocessing_context: As in DataLoader.
        """
        super().__init__()
        if uneven not in ("pad", "drop"):
            raise SchemaError(
                f"uneven={uneven!r}: expected 'pad' or 'drop'. With 'exact' ranks would train"
                " different numbers of batches, and wait for each other forever"
            )
        self.val_share = val if isinstance(val, float) else None
        if self.val_share is not None and not 0 < self.val_share < 1:
            raise SchemaError(f"val={val}: expected stores, or a share between 0 and 1")
        self.paths: dict[str, Paths | None] = {
            "train": train,
            "val": train if isinstance(val, float) else val,
            "test": test,
            "predict": predict,
        }
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.train_transform = train_transform
        self.targets = targets
        self.seed = seed
        self.samples = samples
        self.window = window
        self.uneven = uneven
        self.drop_last = drop_last
        self.prefetch = prefetch
        self.pin_memory = pin_memory
        self.persistent_workers = persistent_workers and num_workers > 0
        self.multiprocessing_context = multiprocessing_context if num_workers else None
        self._options: dict[str, Any] = {
            "view": view,
            "columns": columns,
            "expect": expect,
            "max_row_nbytes": max_row_nbytes,
            "normalize": normalize,
            "numpy": numpy,
        }
        self._datasets: dict[str, OCRStoreDataset] = {}
        self._sampler: ResumableSampler | None = None
        self._state: dict[str, int] | None = None
        self._start = (0, 0, 0)
        """The epoch in which training was resumed, and the samples and batches before that."""
        self._loaders: weakref.WeakSet[PrefetchLoader] = weakref.WeakSet()

    def dataset(self, stage: str) -> OCRStoreDataset:
        """Return the data set of `train`, `val`, `test` or `predict`; the same one every time."""
        path = self.paths[stage]
        if path is None:
            raise ValueError(f"OCRDataModule was given no store for {stage!r}: pass {stage}=...")
        if stage not in self._datasets:
            options = dict(self._options)
            if stage == "train":
                options |= {"transform": self.train_transform, "targets": self.targets}
            self._datasets[stage] = OCRStoreDataset(path, **options)
        return self._datasets[stage]

    def rows(self, stage: str) -> npt.NDArray[np.int64] | None:
        """Return the rows of a data set that its stage uses; None if it uses all."""
        if self.val_share is None or stage not in ("train", "val"):
            return None
        views = self.dataset(stage).views
        keys = (key for view in views for key in view.store)
        held_out = np.array([fraction_of(key) < self.val_share for key in keys], bool)
        return np.flatnonzero(held_out if stage == "val" else ~held_out)

    def count(self, stage: str) -> int:
        """Return the number of samples of an epoch of a stage."""
        return self._make_sampler(stage).count

    def _make_sampler(self, stage: str) -> ResumableSampler:
        dataset = self.dataset(stage)
        options: dict[str, Any] = {"rows": self.rows(stage)}
        if self.trainer is not None and self.trainer.num_nodes > 1:
            options["nodes"] = self.trainer.num_nodes
        if stage != "train":
            return ResumableSampler(dataset, shuffle=False, **options)
        options |= {"seed": self.seed, "uneven": self.uneven, "samples": self.samples}
        window = self.window
        if window is None:
            window = _WINDOW if len(dataset.shards) > _WINDOW else 0
        if not window:
            return ResumableSampler(dataset, **options)
        return WindowShuffleSampler(dataset, window=window, **options)

    def _loader(self, stage: str, sampler: ResumableSampler) -> DataLoader[Any]:
        dataset = self.dataset(stage)
        ahead = 0 if dataset.transform is not None and not self.num_workers else self.prefetch
        pinned = torch.cuda.is_available() and not ahead
        options: dict[str, Any] = {
            "batch_size": self.batch_size,
            "sampler": sampler,
            "drop_last": stage == "train" and self._drops(len(sampler)),
            "num_workers": self.num_workers,
            "pin_memory": pinned if self.pin_memory is None else self.pin_memory,
            "persistent_workers": self.persistent_workers,
            "multiprocessing_context": self.multiprocessing_context,
        }
        if not ahead:
            return DataLoader(dataset, **options)
        device = None if self.trainer is None else self.trainer.strategy.root_device
        # evaluation uses the polygons of every picture
        lists = stage != "train"
        loader = PrefetchLoader(dataset, ahead=ahead, device=device, lists=lists, **options)
        self._loaders.add(loader)
        return loader

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the shuffled, augmented, resumable loader."""
        sampler = self._make_sampler("train")
        if self._state is not None:
            replicas = self._state["replicas"]
            sampler.load_state_dict(self._state)
            self._state = None
            self._resume(sampler, changed=replicas != sampler.num_replicas)
        self._sampler = sampler
        return self._loader("train", sampler)

    def _resume(self, sampler: ResumableSampler, *, changed: bool) -> None:
        """Note where training goes on; with another number of ranks also tell Lightning."""
        progress = self._batches_in_epoch()
        if progress is None:
            return
        if changed and sampler.position:
            # Lightning ends the epoch when it has counted as many batches as the loader has
            drops = self._drops(len(sampler))
            done = self._batches(len(sampler), drops) - self._batches(sampler.remaining, drops)
            moved = done - progress.processed
            for name in ("ready", "started", "processed", "completed"):
                setattr(progress, name, getattr(progress, name) + moved)
        self._start = (sampler.epoch, sampler.position, progress.processed)

    def _drops(self, samples: int) -> bool:
        """Return whether a smaller last batch is left out; never the only one of an epoch."""
        return self.drop_last and samples >= self.batch_size

    def _batches(self, samples: int, drops: bool) -> int:
        return samples // self.batch_size if drops else -(-samples // self.batch_size)

    def _batches_in_epoch(self) -> Any:
        """Return Lightning's counts of the batches of this epoch; None outside of a training."""
        if self.trainer is None:
            return None
        return self.trainer.fit_loop.epoch_loop.batch_progress.current

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """Return the validation loader, in stored order; an empty list without `val`."""
        return [] if self.paths["val"] is None else self._loader("val", self._make_sampler("val"))

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the test loader, in stored order."""
        return self._loader("test", self._make_sampler("test"))

    def predict_dataloader(self) -> DataLoader[Any]:
        """Return the prediction loader, in stored order."""
        return self._loader("predict", self._make_sampler("predict"))

    def setup(self, stage: str) -> None:
        """Forget the position of an earlier training; its loaders are made anew."""
        if stage == "fit":
            self._sampler = None
            self._start = (0, 0, 0)

    def teardown(self, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Stop the threads of the loaders and drop their batches."""
        for loader in list(self._loaders):
            loader.close()

    def on_exception(self, exception: BaseException) -> None:  # noqa: ARG002  # Lightning's signature
        """Stop the threads: Lightning calls no `teardown` after an exception."""
        self.teardown("fit")

    def state_dict(self) -> dict[str, Any]:
        """Return the position of training, counted in batches that were used, not drawn ahead."""
        if self._sampler is None or self.trainer is None:
            return {}
        # `processed`: Lightning counts a batch as done after its step when it restarts
        batches = getattr(self._batches_in_epoch(), "processed", 0)
        epoch = max(self.trainer.fit_loop.epoch_progress.current.ready - 1, 0)
        resumed, position, before = self._start
        if epoch != resumed:
            position = before = 0
        whole = len(self._sampler)
        used = min(position + (batches - before) * self.batch_size, whole)
        if self._drops(whole) and whole - used < self.batch_size:
            used = whole
        state = self._sampler.state_dict(consumed=used)
        state["epoch"] = epoch + 1 if used >= whole else epoch
        return {"train": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        state = state_dict.get("train")
        if state is None:
            return
        # Lightning warns of a loader without state; here the sampler has the state
        warnings.filterwarnings("ignore", message="You're resuming from a checkpoint that ended")
        if self._sampler is None:
            self._state = dict(state)
        else:
            self._sampler.load_state_dict(state)


class LoadingStatistics(Callback):
    """Says every n training batches what loading took, in one line and to the loggers.

    Page-cache hits, residency of the stores, bytes and waits; see `LoadingFigures`. Any loader of
    an `OCRStoreDataset` will do. With several ranks the first one reports about itself.
    """

    def __init__(self, log_every_n: int = 50, *, emit: Callable[[str], None] = print) -> None:
        """Choose how often, and what is done with the line.

        Args:
            log_every_n: After how many batches.
            emit: Called with the line.
        """
        super().__init__()
        self.log_every_n = log_every_n
        self.emit = emit
        self._meter: LoadingMeter | None = None

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Begin to count; the first batch of an epoch is waited for, too."""
        if self._meter is None:
            dataset = find_dataset(trainer.train_dataloader)
            self._meter = LoadingMeter(dataset, log_every_n=self.log_every_n)
        self._meter.wait()

    def on_train_batch_start(
        self,
        trainer: Any,  # noqa: ARG002  # Lightning's signature
        pl_module: Any,  # noqa: ARG002
        batch: Any,
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Count a batch."""
        if self._meter is not None:
            self._meter.got(batch)

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002  # Lightning's signature
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Report if enough batches were counted."""
        if self._meter is None:
            return
        found = self._meter.figures()
        if found is not None and trainer.is_global_zero:
            self.emit(found.line())
            for logger in trainer.loggers:
                logger.log_metrics(found.scalars(), step=trainer.global_step)
        self._meter.wait()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Forget the data set; another fit may have another one."""
        self._meter = None
