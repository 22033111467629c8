"""Load weights that others trained: ResNets for the backbone, or whole DBNets under other names."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ocrstore.dbnet.network import DBNet
from ocrstore.errors import SchemaError

IMAGENET = {
    "resnet18": "https://download.pytorch.org/models/resnet18-f37072fd.pth",
    "resnet34": "https://download.pytorch.org/models/resnet34-b627a593.pth",
    "resnet50": "https://download.pytorch.org/models/resnet50-0676ba61.pth",
}
"""Where torchvision publishes its ImageNet weights; the name has the start of the SHA-256."""
AUTHORS_MEAN = (104.00698793 / 255, 116.66876762 / 255, 122.67891434 / 255)
AUTHORS_STD = (1.0, 1.0, 1.0)
"""Normalisation, of RGB, with which the DBNet authors' networks were trained."""

_WRAPPERS = ("state_dict", "model")
_PREFIXES = ("module.", "model.", "net.", "backbone.")
_CLASSIFIER = ("fc.weight", "fc.bias")
_COUNTER = "num_batches_tracked"
"""Of batch norms; older state dicts (before torch 0.4.1, torchvision's own) have none."""


@dataclass(frozen=True, slots=True)
class _Naming:
    """How another program names the parts of a DBNet."""

    mark: str
    """Its files have names that begin so."""
    parts: dict[str, str]
    """Beginnings of its names, and of ours."""
    unused: tuple[str, ...] = ()
    """Beginnings of names that its network has and does not use."""
    bgr: bool = False
    """Its pictures have the channels in this order."""
    finest_first: bool = False
    """Its pyramid is concatenated from the finest level on; ours from the coarsest."""


_OWN = _Naming("prob_head.", {"": ""})
_AUTHORS = _Naming(
    "decoder.",
    {
        "backbone.": "backbone.",
        **{f"decoder.in{level + 2}.": f"neck.lateral.{level}." for level in range(4)},
        "decoder.out2.": "neck.smooth.0.",
        **{f"decoder.out{level + 2}.0.": f"neck.smooth.{level}." for level in range(1, 4)},
        "decoder.binarize.": "prob_head.layers.",
        "decoder.thresh.": "thresh_head.layers.",
    },
    unused=("backbone.fc.", "backbone.smooth."),
    bgr=True,
)
_MMOCR = _Naming(
    "neck.lateral_convs.",
    {
        "backbone.": "backbone.",
        **{f"neck.lateral_convs.{level}.conv.": f"neck.lateral.{level}." for level in range(4)},
        **{f"neck.smooth_convs.{level}.conv.": f"neck.smooth.{level}." for level in range(4)},
        # the head was called bbox_head before 1.0
        **{f"{head}.binarize.": "prob_head.layers." for head in ("det_head", "bbox_head")},
        **{f"{head}.threshold.": "thresh_head.layers." for head in ("det_head", "bbox_head")},
    },
    finest_first=True,
)


def load_weights(net: DBNet, weights: str | Path | Mapping[str, Tensor]) -> None:
    """Load weights from a file or a state dict; strictly, and nothing if something does not fit.

    A ResNet of torchvision or timm goes into the backbone; its classifier is left out. A DBNet of
    ocrstore, of its authors or of mmocr goes into the whole network. Counters of batch norms, which
    old files lack, may be missing.

    Raises:
        SchemaError: The file cannot be read, or does not fit the network; names say where.
    """
    where = "the state dict" if isinstance(weights, Mapping) else str(weights)
    state = weights if isinstance(weights, Mapping) else read_state_dict(Path(weights))
    state = _without_prefixes(state)
    target: torch.nn.Module = net
    for naming in (_OWN, _AUTHORS, _MMOCR):
        if any(name.startswith(naming.mark) for name in state):
            state = _renamed(state, naming)
            break
    else:
        target = net.backbone
        state = {name: value for name, value in state.items() if name not in _CLASSIFIER}
    own = target.state_dict()
    state |= {n: v for n, v in own.items() if n.endswith(_COUNTER) and n not in state}
    wrong = _differences(own, state)
    if wrong:
        more = f"; and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        advice = "Give the weights of the same backbone, and its --backbone, --width and --inner"
        if any("offset" in name for name in state):
            advice = "It has deformable convolutions, which this network has not"
        config = net.config
        raise SchemaError(
            f"{where} does not fit {config.backbone} of width {config.width}, inner {config.inner}:"
            f" {'; '.join(wrong[:8])}{more}. {advice}"
        )
    target.load_state_dict(state)


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a file, without running any code that the file may contain."""
    try:
        content = _safetensors(path) if path.suffix == ".safetensors" else _torch_file(path)
    except FileNotFoundError as exc:
        raise SchemaError(f"no weights at {path}") from exc
    except ImportError as exc:
        raise SchemaError(f"{path}: pip install safetensors to read it") from exc
    except Exception as exc:  # torch raises whatever its zip and pickle readers raise
        raise SchemaError(
            f"{path} is not a file of tensors that torch can load safely ({type(exc).__name__})."
            " If you trust it, save its state dict alone:"
            " torch.save(torch.load(FILE, weights_only=False)['state_dict'], NEW)"
        ) from exc
    while isinstance(content, dict):
        inner = next((content[k] for k in _WRAPPERS if isinstance(content.get(k), dict)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise SchemaError(f"{path} holds no state dict: expected names with tensors")
    return content


def _torch_file(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def _safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(path)


def fetch_imagenet(backbone: str) -> dict[str, Tensor]:
    """Return torchvision's ImageNet weights of a backbone, from torch.hub's cache or the network.

    Raises:
        SchemaError: There are none for this backbone, no network, or another file at the address.
    """
    if backbone not in IMAGENET:
        raise SchemaError(
            f"no ImageNet weights are published for {backbone}: expected {', '.join(IMAGENET)}"
        )
    url = IMAGENET[backbone]
    name = url.rpartition("/")[2]
    cached = Path(torch.hub.get_dir(), "checkpoints", name)
    if not cached.exists():
        digest = name.rpartition("-")[2].removesuffix(".pth")
        try:
            cached.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(cached), digest, sys.stderr.isatty())
        except (OSError, RuntimeError) as exc:  # torch raises the latter for another hash
            raise SchemaError(
                f"{url} cannot be fetched: {exc}. Where there is a network, fetch it and put it at "
                f"{cached}, or give the file with --weights"
            ) from exc
    return read_state_dict(cached)


def _without_prefixes(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state dict without what all its names begin with, in any order and nesting."""
    state = dict(state)
    while found := [p for p in _PREFIXES if state and all(n.startswith(p) for n in state)]:
        state = {name.removeprefix(found[0]): value for name, value in state.items()}
    return state


def _renamed(state: Mapping[str, Tensor], naming: _Naming) -> dict[str, Tensor]:
    """Return the weights under our names; names that are unknown stay as they are."""
    renamed: dict[str, Tensor] = {}
    for name, value in state.items():
        if name.startswith(naming.unused):
            continue
        theirs = next((part for part in naming.parts if name.startswith(part)), "")
        renamed[naming.parts.get(theirs, "") + name.removeprefix(theirs)] = value
    if naming.bgr and "backbone.conv1.weight" in renamed:
        renamed["backbone.conv1.weight"] = renamed["backbone.conv1.weight"].flip(1)
    for name in ("prob_head.layers.0.weight", "thresh_head.layers.0.weight"):
        if naming.finest_first and name in renamed:
            levels = renamed[name].chunk(4, dim=1)
            renamed[name] = torch.cat(levels[::-1], dim=1)
    return renamed


def to_authors(net: DBNet) -> dict[str, Tensor]:
    """Return the weights under the names of the DBNet authors' code; its pictures are BGR."""
    parts = {ours: theirs for theirs, ours in _AUTHORS.parts.items()}
    renamed = {}
    for name, value in net.state_dict().items():
        ours = next(part for part in parts if name.startswith(part))
        renamed[parts[ours] + name.removeprefix(ours)] = value
    renamed["backbone.conv1.weight"] = renamed["backbone.conv1.weight"].flip(1)
    return renamed


def _differences(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    missing = [f"{name} is missing" for name in own if name not in given]
    unknown = [f"{name} is unknown" for name in given if name not in own]
    shapes = [
        f"{name} is {tuple(value.shape)}, expected {tuple(own[name].shape)}"
        for name, value in given.items()
        if name in own and value.shape != own[name].shape
    ]
    return missing + unknown + shapes
