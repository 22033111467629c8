"""A trained network with its recipe, ready for pictures of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ocrstore.errors import SchemaError
from ocrstore.torch.dbnet.model import DBNet, ModelConfig
from ocrstore.torch.dbnet.postprocess import Detections, PostParams, detect
from ocrstore.torch.dbnet.provenance import KEY, Provenance

Pixels = npt.NDArray[np.uint8]


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


class Detector:
    """Finds text in pictures. Holds the network on one device; not for several threads at once."""

    def __init__(
        self,
        net: DBNet,
        provenance: Provenance,
        *,
        post: PostParams | None = None,
        device: str = "cpu",
    ) -> None:
        self.device = _usable(device)
        self.net = net.to(self.device).eval()
        self.provenance = provenance
        self.recipe = provenance.as_recipe
        self.post = post or PostParams()

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu", **post: Any) -> Detector:
        """Load a checkpoint; `post` replaces single fields of its `PostParams`."""
        checkpoint = read_checkpoint(path)
        record = checkpoint[KEY]
        if record["provenance"] is None:
            raise SchemaError(f"{path} does not say which recipe it was trained with")
        net = DBNet(ModelConfig.from_json(record["model"]))
        net.load_state_dict(net_state(checkpoint))
        return cls(
            net,
            Provenance.from_json(record["provenance"]),
            post=replace(PostParams(**record["post"]), **post),
            device=device,
        )

    def find(self, pictures: Sequence[Pixels]) -> list[Detections]:
        """Return the boxes in upright RGB pictures (H, W, 3), in their own coordinates."""
        views, inverse = [], []
        for pixels in pictures:
            view, forward = self.recipe.draw(pixels)
            views.append(view)
            inverse.append(np.linalg.inv(forward))
        sizes = [(p.shape[1], p.shape[0]) for p in pictures]
        if len({v.shape for v in views}) > 1:
            # a pipeline may leave the size to the picture: one by one then
            return [found for p in pictures for found in self.find([p])]
        images = torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).to(self.device)
        with torch.inference_mode():
            prob = self.net(images, thresholds=False).prob.cpu().numpy()
        return detect(prob, inverse_matrices=np.stack(inverse), sizes=sizes, params=self.post)


def _usable(device: str) -> torch.device:
    """Return a device after having used it: each way not to have one raises something else."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as exc:
        reason = str(exc).partition("\n")[0]
        raise SchemaError(f"device {device!r} cannot be used here: {reason}") from exc


def net_state(checkpoint: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the network's own state dict out of a checkpoint."""
    state: dict[str, torch.Tensor] = checkpoint["state_dict"]
    return {k.removeprefix("net."): v for k, v in state.items() if k.startswith("net.")}
