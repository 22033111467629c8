"""Write a trained network for other programs: ONNX, torch.export, plain state dicts."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ocrstore.dbnet.checkpoint import Checkpoint, read_checkpoint
from ocrstore.dbnet.network import DBNet
from ocrstore.dbnet.weights import to_authors
from ocrstore.errors import SchemaError, WriteError
from ocrstore.whole_file import write_whole

_STRIDE = 32


class _Probabilities(nn.Module):
    """uint8 RGB pictures (B, 3, H, W) to float32 probabilities (B, 1, H, W)."""

    def __init__(self, net: DBNet) -> None:
        super().__init__()
        self.net = net.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Return the probability maps; mean and std of the recipe are part of the network."""
        prob: Tensor = self.net(images, thresholds=False).prob
        return prob


def export_model(checkpoint: str | Path, out: str | Path, *, to: str) -> Path:
    """Write the network of a checkpoint in another format.

    Args:
        checkpoint: A `best.ckpt` or `last.ckpt` of `ocrstore train`.
        out: The file to write.
        to: `onnx` and `pt2` (`torch.export.load`): the network with its normalisation, uint8 RGB
            (B, 3, H, W) to float32 probabilities (B, 1, H, W), for any B, and H and W that are
            multiples of 32 from 64 on. `torchvision`: the state dict of the backbone by
            torchvision's names, without the classifier. `db`: the state dict of the whole network
            by the names of the DBNet authors' code; it expects BGR pictures, normalised by the
            recipe's mean and std.

    Raises:
        CheckpointError: The checkpoint cannot be used.
        SchemaError: `to` is unknown, or the network does not fit it.
        WriteError: The file cannot be written.
    """
    if to not in FORMATS:
        raise SchemaError(f"unknown format {to!r}: expected one of {', '.join(FORMATS)}")
    content = read_checkpoint(checkpoint)
    with warnings.catch_warnings():  # torch's exporters warn about themselves
        warnings.simplefilter("ignore")
        data = FORMATS[to](content)
    target = Path(out)
    try:
        write_whole(target, data)
    except OSError as exc:
        raise WriteError(f"{target}: {exc.strerror or exc}") from exc
    return target


def _exported(checkpoint: Checkpoint) -> torch.export.ExportedProgram:
    """Trace the network for any number and size of pictures."""
    # two of everything: torch takes a size of 1 for a constant
    example = torch.zeros(2, 3, 2 * _STRIDE, 3 * _STRIDE, dtype=torch.uint8)
    sizes = {
        0: torch.export.Dim("batch", max=4096),
        2: _STRIDE * torch.export.Dim("rows", min=2, max=1024),
        3: _STRIDE * torch.export.Dim("columns", min=2, max=1024),
    }
    return torch.export.export(
        _Probabilities(checkpoint.network()), (example,), dynamic_shapes=(sizes,)
    )


def _described(checkpoint: Checkpoint) -> dict[str, str]:
    """Return what a program needs beside the network: the recipe and the post-processing."""
    recipe = {} if checkpoint.provenance is None else checkpoint.provenance.recipe
    return {"recipe": json.dumps(recipe), "post": json.dumps(asdict(checkpoint.post))}


def _to_onnx(checkpoint: Checkpoint) -> bytes:
    program = torch.onnx.export(
        _exported(checkpoint),
        input_names=["images"],
        output_names=["probabilities"],
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update(
        {f"ocrstore.{name}": value for name, value in _described(checkpoint).items()}
    )
    content: bytes = program.model_proto.SerializeToString()
    return content


def _to_pt2(checkpoint: Checkpoint) -> bytes:
    data = io.BytesIO()
    torch.export.save(_exported(checkpoint), data, extra_files=_described(checkpoint))
    return data.getvalue()


def _to_torchvision(checkpoint: Checkpoint) -> bytes:
    return _saved(checkpoint.network().backbone.state_dict())


def _to_authors(checkpoint: Checkpoint) -> bytes:
    return _saved(to_authors(checkpoint.network()))


def _saved(state: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    torch.save(state, data)
    return data.getvalue()


FORMATS: dict[str, Callable[[Checkpoint], bytes]] = {
    "onnx": _to_onnx,
    "pt2": _to_pt2,
    "torchvision": _to_torchvision,
    "db": _to_authors,
}
