"""Checkpoint files: what they record beside the weights, how they are read and written."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ocrstore.dbnet.network import DBNet, ModelConfig
from ocrstore.errors import CheckpointError, OCRStoreError, RecipeMismatchError, WriteError
from ocrstore.evaluation.postprocess import PostParams
from ocrstore.recipe import Recipe
from ocrstore.store import Store
from ocrstore.views import find_view

KEY = "ocrstore"
"""The entry of a checkpoint that is ocrstore's own."""

_PREFIX = "net."  # of the network's parameters in the Lightning module's state dict
_RESUMED = {
    "epoch": int,
    "global_step": int,
    "loops": dict,
    "callbacks": dict,
    "optimizer_states": list,
    "lr_schedulers": list,
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The store and the recipe that a network was trained with."""

    store_fingerprint: str
    """Of the store's content."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """The JSON of the view's recipe."""
    view: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Provenance:
        """Rebuild a record from what `to_json` returned."""
        return cls(**value)

    @property
    def as_recipe(self) -> Recipe:
        """The recipe as the object that draws views."""
        return Recipe.from_json(self.recipe)

    def differences(self, other: Provenance) -> list[str]:
        """List the fields in which the network's input differs, this one's values first.

        How columns are stored (dtype, codec, which of them) is left out: it does not change the
        input. So is the version of albumentations.
        """
        lines = self.as_recipe.diff(other.as_recipe)
        return [line for line in lines if not line.startswith(("columns", "made_with"))]

    def require_same_recipe(self, other: Provenance, *, checkpoint: str, found: str) -> None:
        """Raise RecipeMismatchError with the differences, if there are any."""
        lines = self.differences(other)
        if lines:
            listed = "\n".join(f"  {line}" for line in lines)
            raise RecipeMismatchError(
                f"{checkpoint} was trained with another recipe than {found} has "
                f"(checkpoint -> here):\n{listed}\n"
                "Use a store built with the checkpoint's recipe, or train a new network"
            )


def provenance_of(store: Store, *, view: str | None = None) -> Provenance:
    """Describe a view of a store; the default view if none is named."""
    found = find_view(store, view)
    return Provenance(
        store_fingerprint=store.fingerprint, recipe=dict(found.recipe_json), view=found.name
    )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was read and checked."""

    path: Path
    model: ModelConfig
    post: PostParams
    provenance: Provenance | None
    """None for a module that was trained without one."""
    weights: dict[str, Tensor]
    """The network's state dict, which fits `model`."""
    global_step: int
    """Optimiser steps taken."""

    def network(self) -> DBNet:
        """Return the network with its weights, on the CPU."""
        net = DBNet(self.model)
        net.load_state_dict(self.weights)
        return net


def read_checkpoint(path: str | Path, *, resumable: bool = False) -> Checkpoint:
    """Read and check a checkpoint of `ocrstore train` or `DBNetModule`.

    No code in the file is run, and no class that its recipe names is imported.

    Args:
        path: The file.
        resumable: Require also what Lightning needs to continue the training.

    Raises:
        CheckpointError: The file is missing, no checkpoint, or an entry of it is missing or wrong.
    """
    where = Path(path)
    content = _load(where)
    if not isinstance(content, dict) or not isinstance(content.get(KEY), dict):
        raise CheckpointError(
            f"{where} is not a checkpoint of `ocrstore train`: it has no {KEY!r} record. Use a"
            " best.ckpt or last.ckpt that it wrote"
        )
    record = content[KEY]
    model = _record(where, "model", record, ModelConfig, ModelConfig.from_json)
    post = _record(where, "post", record, PostParams, lambda value: PostParams(**value))
    weights = _weights(where, content, model)
    step = content.get("global_step", 0)
    if not _is_count(step):
        raise _wrong(where, f"global_step is {step!r}, expected an int from 0 on")
    if resumable:
        for name, kind in _RESUMED.items():
            if not isinstance(content.get(name), kind):
                raise _wrong(where, f"{name} is missing or not of type {kind.__name__}")
    return Checkpoint(where, model, post, _provenance(where, record), weights, step)


def write_checkpoint(content: Mapping[str, Any], path: str | Path) -> None:
    """Write a checkpoint so that a crash at any moment leaves the previous or the new one whole.

    It is written to a hidden file in the same folder (a rename works within one file system only),
    synced and renamed.

    Raises:
        WriteError: The file system refused; the previous checkpoint is untouched.
    """
    target = Path(path)
    # one name for each target, so that what a killed process left is replaced by the next write
    partial = target.with_name(f".{target.name}.partial")
    # torch's own writer turns the errors of a full disk into RuntimeErrors without a reason
    data = io.BytesIO()
    torch.save(dict(content), data)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                file.write(data.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)
    except OSError as exc:
        kept = "the last good one is kept" if target.exists() else "there is none yet"
        raise WriteError(
            f"{target}: the checkpoint cannot be written: {exc.strerror or exc}; {kept}. Make room"
            " or choose another --out, then resume"
        ) from exc


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; Windows has no such call."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as exc:
        raise CheckpointError(f"no checkpoint at {path}") from exc
    except OSError as exc:
        raise CheckpointError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    except Exception as exc:  # torch raises whatever its zip and pickle readers raise
        kind = type(exc).__name__
        raise CheckpointError(
            f"{path} is not a checkpoint that torch can load safely ({kind}): damaged, cut off, or"
            " another kind of file. Use another checkpoint, best.ckpt beside last.ckpt for example"
        ) from exc


def _wrong(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is a damaged or foreign checkpoint: {what}. Use another one, or train anew"
    )


def _record(
    path: Path,
    name: str,
    record: Mapping[str, Any],
    cls: type[Any],
    make: Callable[[Any], T],
) -> T:
    """Return `record[name]` as an object of a dataclass whose fields have all defaults."""
    value = record.get(name)
    if not isinstance(value, dict):
        raise _wrong(path, f"{name} is missing or no dict")
    defaults = {f.name: f.default for f in fields(cls)}
    for key, given in value.items():
        default = defaults.get(key, MISSING)
        if default is MISSING or not _has_type_of(given, default):
            raise _wrong(path, f"{name}.{key} is unknown or of a wrong type: {_short(given)}")
    try:
        return make(value)
    except OCRStoreError as exc:
        raise _wrong(path, f"{name}: {exc}") from exc


def _has_type_of(value: Any, default: Any) -> bool:
    """Tell whether a value has the type of a field's default."""
    if isinstance(default, bool | str):
        return isinstance(value, type(default))
    if isinstance(default, tuple):
        return isinstance(value, list | tuple) and all(_is_number(v) for v in value)
    if default is None:
        return value is None or _is_number(value)
    return _is_count(value) if isinstance(default, int) else _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _short(value: Any) -> str:
    """Return a value for a message, in one short line."""
    shown = f"{type(value).__name__}" if isinstance(value, Tensor) else repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _weights(path: Path, content: Mapping[str, Any], model: ModelConfig) -> dict[str, Tensor]:
    """Return the network's state dict; every entry has the name and the shape that it needs."""
    state = content.get("state_dict")
    if not isinstance(state, dict):
        raise _wrong(path, "state_dict is missing or no dict")
    given = {
        str(name).removeprefix(_PREFIX): value
        for name, value in state.items()
        if str(name).startswith(_PREFIX)
    }
    try:
        with torch.device("meta"):  # shapes only: the sizes in the file are not trusted yet
            expected = DBNet(model).state_dict()
    except (RuntimeError, TypeError, OverflowError) as exc:  # beyond 64 bits
        raise _wrong(path, f"model describes no network that torch can make: {model}") from exc
    for name, tensor in expected.items():
        found = given.get(name)
        if not isinstance(found, Tensor) or found.shape != tensor.shape:
            has = tuple(found.shape) if isinstance(found, Tensor) else "missing"
            raise _wrong(path, f"{_PREFIX}{name} is {has}, expected {tuple(tensor.shape)}")
        if found.is_floating_point() != tensor.is_floating_point():
            raise _wrong(path, f"{_PREFIX}{name} is {found.dtype}, expected {tensor.dtype}")
    unknown = sorted(set(given) - set(expected))
    if unknown:
        raise _wrong(path, f"{_PREFIX}{unknown[0]} is no part of the network")
    return given


def _provenance(path: Path, record: Mapping[str, Any]) -> Provenance | None:
    value = record.get("provenance")
    if value is None:
        return None
    names = {f.name: (dict if f.name == "recipe" else str) for f in fields(Provenance)}
    if not isinstance(value, dict) or set(value) != set(names):
        raise _wrong(path, f"provenance has other entries than {', '.join(names)}")
    for name, kind in names.items():
        if not isinstance(value[name], kind):
            raise _wrong(path, f"provenance.{name} is not of type {kind.__name__}")
    # without it Recipe would run the pipeline to find it, and import the classes that it names
    if "size" not in value["recipe"]:
        raise _wrong(path, "provenance.recipe has no size")
    made = Provenance.from_json(value)
    try:
        _ = made.as_recipe
    except (OCRStoreError, KeyError, OverflowError, RecursionError) as exc:
        raise _wrong(path, f"provenance.recipe: {exc}") from exc
    return made
