"""Checkpoint files: what they record beside the weights, how they are read and written."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ocrstore.errors import RecipeMismatchError, SchemaError, WriteError
from ocrstore.evaluation.ground_truth import find_view
from ocrstore.recipe import Recipe
from ocrstore.store import Store

KEY = "ocrstore"
"""Where the record lies in a checkpoint."""


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
        return {
            "store_fingerprint": self.store_fingerprint,
            "recipe": self.recipe,
            "view": self.view,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Provenance:
        """Rebuild a record from what `to_json` returned."""
        return cls(**value)

    @property
    def as_recipe(self) -> Recipe:
        """The recipe as the object that draws views."""
        return Recipe.from_json(self.recipe)

    def differences(self, other: Provenance) -> list[str]:
        """Say field by field how the views differ in what the network sees; this one first.

        How columns are stored (dtype, codec, which of them) is left out: it changes nothing there.
        """
        lines = self.as_recipe.diff(other.as_recipe)
        return [line for line in lines if not line.startswith("columns")]

    def require_same_recipe(self, other: Provenance, *, checkpoint: str, found: str) -> None:
        """Raise an error that shows the difference, unless both are of one recipe."""
        lines = self.differences(other)
        if lines:
            listed = "\n".join(f"  {line}" for line in lines)
            raise RecipeMismatchError(
                f"{checkpoint} was trained with another recipe than {found} has "
                f"(checkpoint -> here):\n{listed}\n"
                "Use a store built with the checkpoint's recipe, or train anew"
            )


def provenance_of(store: Store, *, view: str | None = None) -> Provenance:
    """Describe a view of a store; the default view if none is named."""
    name, record = find_view(store, view)
    return Provenance(store_fingerprint=store.fingerprint, recipe=dict(record["recipe"]), view=name)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint of `DBNetModule`, without running any code that the file may contain."""
    try:
        checkpoint: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as exc:
        raise SchemaError(f"no checkpoint at {path}") from exc
    except Exception as exc:  # torch raises whatever its zip and pickle readers raise
        kind = type(exc).__name__
        raise SchemaError(
            f"{path} is not a checkpoint that torch can load safely ({kind})"
        ) from exc
    if not isinstance(checkpoint, dict) or KEY not in checkpoint:
        raise SchemaError(f"{path} is no checkpoint of `ocrstore train`: it has no {KEY!r} record")
    return checkpoint


def net_state(checkpoint: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the network's own state dict out of a checkpoint."""
    state: dict[str, torch.Tensor] = checkpoint["state_dict"]
    return {k.removeprefix("net."): v for k, v in state.items() if k.startswith("net.")}


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
