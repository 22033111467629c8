"""ResNet features C2 to C5, under the parameter names that torchvision's ResNet has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ocrstore.errors import SchemaError

_CLASSIFIER = ("fc.weight", "fc.bias")
_COUNTER = "num_batches_tracked"
"""Of batch norms; state dicts of before torch 0.4.1, torchvision's own among them, have none."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and the way past them (ResNet-10, 18, 34)."""

    expansion = 1

    def __init__(self, inplanes: int, planes: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = _downsample(inplanes, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output; the input is not written to."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        past = x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(out + past)
        return result


class Bottleneck(nn.Module):
    """1x1, 3x3 (which carries the stride, as in torchvision), 1x1 to four times the planes."""

    expansion = 4

    def __init__(self, inplanes: int, planes: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _downsample(inplanes, planes * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output; the input is not written to."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        past = x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(out + past)
        return result


def _downsample(inplanes: int, outplanes: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inplanes == outplanes:
        return None
    return nn.Sequential(
        nn.Conv2d(inplanes, outplanes, 1, stride, bias=False), nn.BatchNorm2d(outplanes)
    )


_KINDS: dict[str, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, int, int, int]]] = {
    "resnet10": (BasicBlock, (1, 1, 1, 1)),
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
}
BACKBONES = tuple(_KINDS)


class ResNet(nn.Module):
    """The stages of a ResNet without its classifier.

    `width` is the number of channels of the first stage: 64 is the published network, less makes a
    small one of the same shape (ImageNet weights fit only 64).
    """

    def __init__(self, kind: str, *, width: int = 64) -> None:
        super().__init__()
        if kind not in _KINDS:
            raise SchemaError(f"unknown backbone {kind!r}: expected one of {', '.join(BACKBONES)}")
        block, depths = _KINDS[kind]
        self.kind = kind
        self.width = width
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inplanes = width
        channels: list[int] = []
        layers: list[nn.Sequential] = []
        for stage, depth in enumerate(depths):
            planes = width * 2**stage
            blocks: list[nn.Module] = []
            for position in range(depth):
                stride = 2 if position == 0 and stage > 0 else 1
                blocks.append(block(inplanes, planes, stride=stride))
                inplanes = planes * block.expansion
            layers.append(nn.Sequential(*blocks))
            channels.append(inplanes)
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.channels = tuple(channels)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return C2, C3, C4, C5: the features at 1/4, 1/8, 1/16 and 1/32 of the input."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        c2: Tensor = self.layer1(x)
        c3: Tensor = self.layer2(c2)
        c4: Tensor = self.layer3(c3)
        c5: Tensor = self.layer4(c4)
        return c2, c3, c4, c5

    def load_imagenet(self, weights: str | Path | Mapping[str, Tensor]) -> None:
        """Load an ImageNet state dict, unchanged, from a file or a mapping.

        Its classifier (`fc.weight`, `fc.bias`) has no place here and is left out by name; every
        other entry must fit, and none may be missing but the counters of batch norms, which
        published files do not have.
        """
        where = "the state dict" if isinstance(weights, Mapping) else str(weights)
        state = weights if isinstance(weights, Mapping) else read_state_dict(Path(weights))
        features = {name: value for name, value in state.items() if name not in _CLASSIFIER}
        own = self.state_dict()
        counters = {n: v for n, v in own.items() if n.endswith(_COUNTER) and n not in features}
        features |= counters
        wrong = _differences(own, features)
        if wrong:
            shown = "; ".join(wrong[:8]) + (
                f"; and {len(wrong) - 8} more" if len(wrong) > 8 else ""
            )
            raise SchemaError(
                f"{where} does not fit {self.kind} of width {self.width}: {shown}. "
                "Give the weights of the same backbone (torchvision's names, width 64)"
            )
        self.load_state_dict(features, strict=True)


def _differences(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    missing = [f"{name} is missing" for name in own if name not in given]
    unknown = [f"{name} is unknown" for name in given if name not in own]
    shapes = [
        f"{name} is {tuple(value.shape)}, expected {tuple(own[name].shape)}"
        for name, value in given.items()
        if name in own and value.shape != own[name].shape
    ]
    return missing + unknown + shapes


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a file, without running any code that the file may contain."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as exc:
        raise SchemaError(f"no weights at {path}") from exc
    except Exception as exc:  # torch raises whatever its zip and pickle readers raise
        raise SchemaError(
            f"{path} is not a file of tensors that torch can load safely ({type(exc).__name__})"
        ) from exc
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise SchemaError(f"{path} holds no state dict: expected names with tensors")
    return content
