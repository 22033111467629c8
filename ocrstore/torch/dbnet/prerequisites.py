"""What must hold before a training begins; each that does not is an error that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ocrstore.errors import RecipeMismatchError, SchemaError, StoreExistsError
from ocrstore.store import open_store
from ocrstore.torch.dbnet.detector import read_checkpoint
from ocrstore.torch.dbnet.module import DBNetModule
from ocrstore.torch.dbnet.provenance import KEY, Provenance, find_view, provenance_of

_NEEDED = ("tensor", "prob_map", "thresh_map", "prob_mask", "thresh_mask", "inverse_matrix")


def require_unused(folder: Path) -> None:
    """Refuse a folder with checkpoints of an earlier training."""
    for name in ("last.ckpt", "best.ckpt"):
        if (folder / name).exists():
            raise StoreExistsError(
                f"{folder} holds an earlier training ({name}). Go on with it (--resume"
                f" {folder / 'last.ckpt'}), choose another folder, or give it up (--force)"
            )


def require_same_network(module: DBNetModule, checkpoint: str | Path) -> None:
    """Refuse to resume a network of another shape, before torch lists every tensor of it."""
    was: dict[str, Any] = read_checkpoint(checkpoint)[KEY]["model"]
    now = module.net.config.to_json()
    lines = [
        f"  {name}: {was.get(name)} -> {now[name]}" for name in now if was.get(name) != now[name]
    ]
    if lines:
        listed = "\n".join(lines)
        raise SchemaError(
            f"{checkpoint} is of another network (checkpoint -> here):\n{listed}\n"
            "Resume with the options that it was trained with"
        )


def require_columns(path: str | Path, view: str | None) -> None:
    """Refuse a view that a network cannot be trained from."""
    store = open_store(path)
    name, record = find_view(store, view, needs=_NEEDED)
    if not store.columns[record["columns"]["tensor"]].is_fixed:
        raise SchemaError(
            f"{path}: the pictures of view {name!r} differ in size, so they make no batches. Train"
            " from a view of one size (`ocrstore add-view --size 640`, then --view)"
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


def require_enough(pictures: int, ranks: int, path: str | Path) -> None:
    """Refuse fewer validation pictures than ranks: each waits for the others to count theirs."""
    if pictures < ranks:
        raise SchemaError(
            f"{path}: {pictures} pictures to validate with {ranks} processes; each needs at least"
            " one. Use fewer --devices, or more pictures"
        )
