"""Train DBNet from stores into a folder of checkpoints, logs and pictures."""

from __future__ import annotations

import csv
import hashlib
import logging
import signal
import threading
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ocrstore.annotation import require_polygons
from ocrstore.augment import BasicAugmentation
from ocrstore.dbnet.callbacks import (
    BestCheckpoint,
    DurableCheckpointIO,
    PredictionPictures,
    ProgressBar,
    StopOnSigterm,
)
from ocrstore.dbnet.checkpoint import (
    Checkpoint,
    Provenance,
    provenance_of,
    read_checkpoint,
)
from ocrstore.dbnet.module import DBNetModule
from ocrstore.dbnet.network import ModelConfig
from ocrstore.dbnet.predict import allow_tf32
from ocrstore.dbnet.weights import fetch_imagenet, load_weights
from ocrstore.errors import (
    CheckpointError,
    OCRStoreError,
    RecipeMismatchError,
    SchemaError,
    StoreExistsError,
    WriteError,
)
from ocrstore.evaluation.postprocess import params_for
from ocrstore.inspection.difference import same_pictures
from ocrstore.keys import shown
from ocrstore.machine import memory_shortage
from ocrstore.schema import VIEW_COLUMNS
from ocrstore.store import open_store
from ocrstore.torch.datamodule import OCRDataModule
from ocrstore.torch.dataset import Paths, expand
from ocrstore.torch.lightning_bases import (
    Callback,
    L,
    MisconfigurationException,
    ModelCheckpoint,
)
from ocrstore.views import find_view
from ocrstore.whole_file import require_writable

LOGGERS = ("csv", "tensorboard", "wandb")
PRECISIONS = ("auto", "mixed", "32", "16-mixed", "bf16-mixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainParams:
    """Settings of a training; the defaults are DBNet's, for a GPU."""

    epochs: int = 50
    batch_size: int = 16
    workers: int = 2
    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 1e-4
    clip: float = 5.0
    """Gradients are clipped to this norm."""
    precision: str = "auto"
    """See `precision_of`."""
    seed: int = 0
    samples: int | None = None
    """Samples of an epoch; None: all, or of several sets as many as their shares allow."""
    patience: int | None = None
    """Stop after this many validations without a higher H-mean; None: never stop early."""
    check_every: int = 1
    """Epochs between validations."""
    pictures_every: int = 5
    cleval_every: int = 10
    """Epochs between validations with CLEval, which takes most of their time; also in the last."""
    log_every: int = 10
    """Steps between logged losses: to fetch one, the host waits for the device."""
    tf32: bool = True
    """Allow TF32 for float32 convolutions and products on GPUs that have it."""
    augment: bool = False
    compiled: bool = False
    devices: int | str | list[int] = "auto"
    nodes: int = 1
    accelerator: str = "auto"
    strategy: str = "auto"
    """Lightning's name of how several devices work together: auto, ddp, ddp_spawn, ..."""

    def __post_init__(self) -> None:
        counts = (self.epochs, self.batch_size, self.check_every, self.nodes, self.log_every)
        if min(counts) < 1 or self.workers < 0 or self.lr <= 0:
            raise SchemaError(
                "epochs, batch_size, check_every, nodes and log_every are 1 or more, workers 0 or"
                f" more, lr is above 0: got {self}"
            )


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a training."""

    folder: Path
    best: Path
    """The checkpoint with the highest H-mean."""
    hmean: float
    epochs: int
    is_first: bool = True
    """Whether this process has rank 0."""


def fit(
    train: Paths,
    *,
    out: str | Path,
    val: str | Path | float | None = None,
    view: str | None = None,
    model: ModelConfig | None = None,
    params: TrainParams | None = None,
    weights: str | Path | None = None,
    pretrained: bool = False,
    resume: str | Path | None = None,
    quiet: bool = False,
    force: bool = False,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | L.loggers.Logger] | None = None,
) -> Trained:
    """Train a network from a store into a folder of checkpoints, logs and pictures.

    Args:
        train: The store to train from, several, or a dict from stores to their shares of an epoch,
            as `OCRStoreDataset` takes them.
        out: The folder; one with checkpoints is refused unless it is resumed or `force` is given.
        val: The store to measure H-mean on, or a share of the training stores, such as 0.1, which
            is then not trained on; the training pictures if None.
        view: The view to use; the default one if None.
        model: The network; its mean and std are replaced by those of the recipe.
        params: How to train.
        weights: A file of weights to begin with, as `weights.load_weights` takes it.
        pretrained: Begin with the ImageNet weights of the backbone, from torch.hub's cache or the
            network.
        resume: A checkpoint (`last.ckpt`) to continue from, of the same network and recipe. Logs
            in `out` are continued as well, from the checkpoint's step on.
        quiet: Show no progress bar and no table of the network.
        force: Overwrite the checkpoints of an earlier training.
        callbacks: Further Lightning callbacks.
        loggers: Where curves go: `csv`, `tensorboard`, `wandb`, or any Lightning logger; csv, and
            tensorboard where it is installed, if None.

    Raises:
        KeyboardInterrupt: After a Ctrl-C; `last.ckpt` is that of the last whole epoch.
        SystemExit: After a SIGTERM, with code 143; `last.ckpt` is of the last step.
        WriteError: `out` cannot be written; checkpoints written before are kept.
    """
    params = params or TrainParams()
    folder = Path(out)
    require_writable(folder)
    if resume is None and not force:
        require_unused(folder)
    stores = expand(train)
    provenance = provenance_of(open_store(stores[0]), view=view)
    if len(stores) > 1:
        fingerprints = "".join(open_store(path).fingerprint for path in stores)
        combined = hashlib.sha256(fingerprints.encode()).hexdigest()
        provenance = replace(provenance, store_fingerprint=combined)
    # None and a share: the training pictures, or a part of them
    measured = stores if val is None or isinstance(val, float) else expand(val)
    for path in stores:
        require_polygons(open_store(path), "learn from")
        if not params.augment:  # augmented pictures get maps of their own
            require_columns(path, view)
    for path in measured:
        require_polygons(open_store(path), "measure H-mean with")
        require_same_views(provenance, path, view)
        require_columns(path, view)
        for trained in stores if measured is not stores else ():
            warn_of_same_pictures(trained, path)
    L.seed_everything(params.seed, workers=True, verbose=False)
    module = _module(provenance, model or ModelConfig(), params)
    resumed = None if resume is None else read_checkpoint(resume, resumable=True)
    if resumed is not None:
        require_same_network(module, resumed)
    if weights is not None and pretrained:
        raise SchemaError("weights from a file or pretrained ones: give one of the two")
    if weights is not None:
        load_weights(module.net, weights)
    elif pretrained:
        load_weights(module.net, fetch_imagenet(module.net.config.backbone))
    data = OCRDataModule(
        train=train,
        val=train if val is None else val,
        batch_size=params.batch_size,
        num_workers=params.workers,
        view=view,
        seed=params.seed,
        samples=params.samples,
        train_transform=_transform(provenance) if params.augment else None,
        drop_last=params.compiled,
    )
    allow_tf32(params.tf32)
    best = BestCheckpoint(folder)
    # on its own: `save_last` of the other one saves only when a better one is saved
    last = ModelCheckpoint(
        folder,
        filename="last",
        every_n_epochs=1,
        save_on_train_epoch_end=True,
        enable_version_counter=False,
    )
    stop = StopOnSigterm(folder / "last.ckpt")
    used = _loggers(folder, None if resumed is None else resumed.global_step, loggers)
    # at least once in an epoch of a small set
    steps = data.count("train") // params.batch_size
    params = replace(params, log_every=max(1, min(params.log_every, steps)))
    trainer = _trainer(folder, params, [best, last, stop, *callbacks], used, quiet=quiet)
    require_enough(data.count("val"), trainer.world_size, ", ".join(measured))
    handler = signal.getsignal(signal.SIGINT)
    try:
        with silent_log_threads():
            trainer.fit(module, data, ckpt_path=None if resume is None else str(resume))
    except SystemExit as exc:
        if stop.received or isinstance(exc, L.utilities.exceptions.SIGTERMException):
            raise SystemExit(128 + signal.SIGTERM) from None
        # what Lightning makes of a Ctrl-C; it also ignores any further one
        if not trainer.interrupted:
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from exc
    except Exception as exc:
        told = isinstance(exc, OCRStoreError | OSError) or memory_shortage(exc) is not None
        if resume is not None and not stop.stepped and not told:
            # Lightning and torch restore their own entries, and raise anything
            raise CheckpointError(
                f"{resume} cannot be resumed ({type(exc).__name__}: {exc}): what it records about"
                " optimiser, schedule or loops does not fit. Resume with the options it was trained"
                " with, or train a new network"
            ) from exc
        if stop.received:  # loader processes may have got the signal as well
            raise SystemExit(128 + signal.SIGTERM) from exc
        if isinstance(exc, OCRStoreError) or not isinstance(exc, OSError):
            raise
        raise WriteError(
            f"{folder}: {exc.strerror or exc}; checkpoints written before are kept. Make room or"
            " choose another --out, then resume"
        ) from exc
    hmean = trainer.callback_metrics.get("val_hmean", torch.tensor(float("nan")))
    score = best.best_model_score
    return Trained(
        folder,
        Path(best.best_model_path or folder / "last.ckpt"),
        float(hmean if score is None else score),
        trainer.current_epoch,
        trainer.is_global_zero,
    )


def _module(provenance: Provenance, model: ModelConfig, params: TrainParams) -> DBNetModule:
    recipe = provenance.as_recipe
    described = {**model.to_json(), "mean": list(recipe.mean), "std": list(recipe.std)}
    return DBNetModule(
        model=described,
        post=asdict(params_for(recipe)),
        optimizer=params.optimizer,
        lr=params.lr,
        weight_decay=params.weight_decay,
        compiled=params.compiled,
        cleval_every=params.cleval_every,
        provenance=provenance.to_json(),
    )


def _transform(provenance: Provenance) -> Any:
    height, width = provenance.as_recipe.size
    if height is None or width is None:
        raise SchemaError("augmentation needs views of one size, and this recipe leaves it open")
    return BasicAugmentation(height, width)


def _trainer(
    folder: Path,
    params: TrainParams,
    callbacks: list[Callback],
    loggers: list[L.loggers.Logger],
    *,
    quiet: bool,
) -> L.Trainer:
    callbacks = [
        *callbacks,
        L.callbacks.LearningRateMonitor("step"),
        PredictionPictures(folder / "pictures", every=params.pictures_every),
    ]
    if params.patience is not None:
        patience = params.patience
        callbacks.append(L.callbacks.EarlyStopping("val_hmean", mode="max", patience=patience))
    if not quiet:
        callbacks.append(ProgressBar())
    try:
        return L.Trainer(
            accelerator=params.accelerator,
            devices=params.devices,
            num_nodes=params.nodes,
            strategy=params.strategy,
            precision=precision_of(params.precision, params.accelerator),
            max_epochs=params.epochs,
            gradient_clip_val=params.clip,
            check_val_every_n_epoch=params.check_every,
            num_sanity_val_steps=0,
            log_every_n_steps=params.log_every,
            benchmark=True,  # views of one size: cuDNN's choice of algorithms holds
            callbacks=callbacks,
            plugins=[DurableCheckpointIO()],
            logger=loggers,
            default_root_dir=folder,
            enable_progress_bar=not quiet,
            enable_model_summary=not quiet,
        )
    except (MisconfigurationException, ValueError, TypeError) as exc:
        raise SchemaError(
            f"device {params.accelerator!r} with devices {params.devices!r} and strategy"
            f" {params.strategy!r} cannot be used here: {exc}"
        ) from exc


def _loggers(
    folder: Path, resumed_at: int | None, wanted: Sequence[str | L.loggers.Logger] | None
) -> list[L.loggers.Logger]:
    """Return the loggers; a resumed training continues the newest log of the folder.

    What the interrupted training had logged beyond the checkpoint's step is dropped: these steps
    are trained again.
    """
    if wanted is None:
        wanted = ("csv", "tensorboard") if has_tensorboard() else ("csv",)
    return [_logger(folder, resumed_at, name) if isinstance(name, str) else name for name in wanted]


def _logger(folder: Path, resumed_at: int | None, name: str) -> L.loggers.Logger:
    if name not in LOGGERS:
        raise SchemaError(f"unknown logger {name!r}: expected one of {', '.join(LOGGERS)}")
    if find_spec(name) is None and name != "csv":
        raise SchemaError(f"logger {name!r} needs a package that is missing: pip install {name}")
    if name == "csv":
        return _continued_table(folder, resumed_at) or L.loggers.CSVLogger(folder, name="csv")
    if name == "wandb":
        # one run for each folder: a resumed training continues its curves
        return L.loggers.WandbLogger(
            save_dir=folder, name=folder.name, resume="allow", id=_run_id(folder)
        )
    events = None if resumed_at is None else _newest(folder / "tensorboard", "")
    # its thread may miss that it is to end if a Ctrl-C comes in between, and then sleeps this long
    options: dict[str, Any] = {"flush_secs": 2}
    if events is not None:
        options |= {"version": events.name, "purge_step": resumed_at}
    return L.loggers.TensorBoardLogger(folder, name="tensorboard", **options)


def _run_id(folder: Path) -> str:
    """Return the id of a folder's run at wandb, which is kept in the folder."""
    path = folder / "wandb-id.txt"
    if not path.exists():
        path.write_text(uuid.uuid4().hex[:12])
    return path.read_text().strip()


def _continued_table(folder: Path, resumed_at: int | None) -> L.loggers.CSVLogger | None:
    """Return a logger with the rows of the newest table before a step; None without a table."""
    table = None if resumed_at is None else _newest(folder / "csv", "metrics.csv")
    if table is None or resumed_at is None:
        return None
    with table.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if int(row["step"]) < resumed_at]
    logger = L.loggers.CSVLogger(folder, name="csv", version=table.parent.name)
    with warnings.catch_warnings():
        # Lightning deletes the table that is there: its rows are written again at once
        warnings.filterwarnings("ignore", message="Experiment logs directory")
        writer = logger.experiment
    # ranks other than the first have a dummy
    if isinstance(writer, L.loggers.csv_logs.ExperimentWriter):
        for row in rows:
            writer.metrics.append({name: float(value) for name, value in row.items() if value})
            writer.metrics[-1]["step"] = int(row["step"])
        logger.save()
    return logger


def _newest(folder: Path, inside: str) -> Path | None:
    """Return `version_N/inside` of the highest N below a folder."""
    found = [path for path in folder.glob("version_*") if (path / inside).exists()]
    numbered = {int(path.name[8:]): path / inside for path in found if path.name[8:].isdigit()}
    return numbered[max(numbered)] if numbered else None


def has_tensorboard() -> bool:
    """Tell whether curves can be logged for TensorBoard; they are always logged as CSV."""
    return find_spec("tensorboard") is not None


def precision_of(name: str, accelerator: str) -> Any:
    """Return the `precision` argument of `lightning.Trainer`.

    `mixed` is float16 on a GPU and bfloat16 on a CPU. `auto` is the same, but float32 on a CPU
    that has no instructions for bfloat16: there it is several times slower.
    """
    if name not in PRECISIONS:
        raise SchemaError(f"unknown precision {name!r}: expected one of {', '.join(PRECISIONS)}")
    if name not in ("mixed", "auto"):
        return "32-true" if name == "32" else name
    if accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available()):
        return "16-mixed"
    return "bf16-mixed" if name == "mixed" or _computes_bfloat16() else "32-true"


def _computes_bfloat16() -> bool:
    """Tell whether the CPU has instructions for bfloat16; without them it is emulated, slowly.

    oneDNN's own answer is true for any AVX-512.
    """
    known = getattr(torch.cpu, "get_capabilities", None)  # absent from older torch: not known
    capabilities = {} if known is None else known()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


@contextmanager
def silent_log_threads() -> Iterator[None]:
    """Keep threads from printing an OSError: TensorBoard raises it again in the main thread."""
    report = threading.excepthook

    def skip_os_errors(failure: threading.ExceptHookArgs) -> None:
        if not issubclass(failure.exc_type, OSError):
            report(failure)

    threading.excepthook = skip_os_errors
    try:
        yield
    finally:
        threading.excepthook = report


def require_unused(folder: Path) -> None:
    """Refuse a folder with checkpoints of an earlier training."""
    for name in ("last.ckpt", "best.ckpt"):
        if (folder / name).exists():
            raise StoreExistsError(
                f"{folder} holds an earlier training ({name}). Go on with it (--resume"
                f" {folder / 'last.ckpt'}), choose another folder, or give it up (--force)"
            )


def require_same_network(module: DBNetModule, checkpoint: Checkpoint) -> None:
    """Refuse to resume a network of another shape, before torch lists every tensor of it."""
    was, now = checkpoint.model.to_json(), module.net.config.to_json()
    lines = [
        f"  {name}: {was.get(name)} -> {now[name]}" for name in now if was.get(name) != now[name]
    ]
    if lines:
        listed = "\n".join(lines)
        raise SchemaError(
            f"{checkpoint.path} is of another network (checkpoint -> here):\n{listed}\n"
            "Resume with the options that it was trained with"
        )


def require_columns(path: str | Path, view: str | None) -> None:
    """Refuse a view that a network cannot be trained from."""
    store = open_store(path)
    found = find_view(store, view, needs=VIEW_COLUMNS)
    if not store.columns[found.columns["tensor"]].is_fixed:
        raise SchemaError(
            f"{path}: the pictures of view {found.name!r} differ in size, so they make no batches."
            " Train from a view of one size (`ocrstore add-view --size 640`, then --view)"
        )


def require_same_views(provenance: Provenance, val: str | Path, view: str | None) -> None:
    """Refuse a validation store of another recipe before anything is trained."""
    other = provenance_of(open_store(val), view=view)
    lines = provenance.differences(other)
    if lines:
        listed = "\n".join(f"  {line}" for line in lines)
        raise RecipeMismatchError(
            f"{val} has views of another recipe than the training store (training -> validation):\n"
            f"{listed}\nBuild it with the same recipe"
        )


def warn_of_same_pictures(train: str | Path, val: str | Path) -> None:
    """Log a warning if pictures of the validation store are trained on: its figures mean less."""
    pairs = same_pictures(open_store(val), open_store(train))
    if pairs and Path(train).resolve() != Path(val).resolve():
        key, trained = pairs[0]
        logging.getLogger(__name__).warning(
            "%d of the pictures in %s are in %s as well (%s = %s, ...): H-mean is measured on"
            " pictures that are trained on. Build one store and give --val 0.1, or remove them",
            *(len(pairs), val, train, shown(key), shown(trained)),
        )


def require_enough(pictures: int, ranks: int, path: str | Path) -> None:
    """Refuse fewer validation pictures than ranks: each waits for the others to count theirs."""
    if pictures < ranks:
        raise SchemaError(
            f"{path}: {pictures} pictures to validate with {ranks} processes; each needs at least"
            " one. Use fewer --devices, or more pictures"
        )
