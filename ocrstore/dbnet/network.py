"""DBNet: a ResNet, a feature pyramid, two heads; uint8 pictures in, maps of the same size out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrstore.errors import SchemaError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a skip connection (ResNet-10, 18, 34)."""

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
        """Return the block's output; the input is not modified."""
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
        """Return the block's output; the input is not modified."""
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


class FPN(nn.Module):
    """1x1 to `inner` channels, top-down addition, 3x3 to a quarter each, concatenated at 1/4."""

    def __init__(self, channels: tuple[int, ...], *, inner: int = 256) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(c, inner, 1, bias=False) for c in channels)
        self.smooth = nn.ModuleList(
            nn.Conv2d(inner, inner // 4, 3, padding=1, bias=False) for _ in channels
        )
        self.out_channels = inner // 4 * len(channels)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, features: tuple[Tensor, ...]) -> Tensor:
        """Return the fused features, as large as the finest level."""
        levels = [lateral(x) for lateral, x in zip(self.lateral, features, strict=True)]
        for finer in range(len(levels) - 2, -1, -1):
            levels[finer] = levels[finer] + _resize(levels[finer + 1], levels[finer])
        smoothed = [smooth(x) for smooth, x in zip(self.smooth, levels, strict=True)]
        return torch.cat([_resize(x, levels[0]) for x in reversed(smoothed)], dim=1)


def _resize(x: Tensor, like: Tensor) -> Tensor:
    # by size, not by factor: inputs need not be multiples of 32
    if x.shape[-2:] == like.shape[-2:]:
        return x
    return functional.interpolate(x, size=like.shape[-2:], mode="nearest")


class Head(nn.Module):
    """3x3, then two 2x2 deconvolutions of stride 2: features at 1/4 become logits at full size."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(channels // 4, 1)
        last = nn.ConvTranspose2d(inner, 1, 2, 2)
        self.layers = nn.Sequential(
            nn.Conv2d(channels, inner, 3, padding=1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(inner, inner, 2, 2),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            last,
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, nn.ConvTranspose2d):
                # with stride 2 each output has one weight of each input channel; torch counts the
                # output channels for a transposed convolution, which here would be one
                nn.init.normal_(module.weight, std=(2.0 / module.in_channels) ** 0.5)
        # Both maps begin near 0.5: the step between them is steep there, and flat (so
        # that nothing is learned from it) where untrained heads happen to disagree.
        nn.init.normal_(last.weight, std=0.1)
        if last.bias is not None:
            nn.init.zeros_(last.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits; the caller applies the sigmoid, in float32."""
        logits: Tensor = self.layers(x)
        return logits


def step_function(prob: Tensor, thresh: Tensor, *, k: float = 50.0) -> Tensor:
    """Return 1 / (1 + exp(-k (P - T))), computed in float32.

    With k = 50, float16's steps of 0.0005 below 1 would move the result by 0.6 % each.
    """
    with torch.autocast(prob.device.type, enabled=False):
        return torch.sigmoid(k * (prob.float() - thresh.float()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of the network and the normalisation of its input."""

    backbone: str = "resnet18"
    width: int = 64
    """Channels of the first stage; 64 is the published network."""
    inner: int = 256
    """Channels of the neck."""
    k: float = 50.0
    """Steepness of the step function."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    """Of RGB in [0, 1]; applied on the device, to uint8 pictures."""

    def __post_init__(self) -> None:
        if self.backbone not in BACKBONES:
            raise SchemaError(
                f"unknown backbone {self.backbone!r}: expected one of {', '.join(BACKBONES)}"
            )
        # torch 2.13's CPU kernel for strided 1x1 convolutions over 4 or 8 channels-last channels
        # writes past its buffer when it runs on several threads (heap corruption, no exception)
        if self.width < 16 or self.inner < 16 or self.width % 16 or self.inner % 16:
            raise SchemaError(
                f"width {self.width} and inner {self.inner}: expected positive multiples of 16"
            )
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise SchemaError(f"mean {self.mean} and std {self.std}: expected 3 each, std positive")

    @classmethod
    def small(cls, **changes: Any) -> ModelConfig:
        """Return a config that is quick to train on a CPU: a quarter of the channels."""
        return cls(**{"width": 16, "inner": 64, **changes})

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ModelConfig:
        """Rebuild a config from what `to_json` returned."""
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in value.items()
        }
        return cls(**fields)


class Output(NamedTuple):
    """The output of a forward pass; each (B, 1, H, W)."""

    logits: Tensor
    """Of the probability map."""
    thresh: Tensor | None = None
    """The threshold map in (0, 1), float32; absent in inference."""
    binary: Tensor | None = None
    """The approximate binary map in (0, 1), float32; absent in inference."""

    @property
    def prob(self) -> Tensor:
        """The probability map, float32."""
        return torch.sigmoid(self.logits.float())


class DBNet(nn.Module):
    """The network, in channels-last memory format, which is that of pictures in a store."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: ModelConfig | None = None) -> None:
        super().__init__()
        self.config = config or ModelConfig()
        self.backbone = ResNet(self.config.backbone, width=self.config.width)
        self.neck = FPN(self.backbone.channels, inner=self.config.inner)
        self.prob_head = Head(self.neck.out_channels)
        self.thresh_head = Head(self.neck.out_channels)
        # buffers, so that they move with the model; constants of the config, so not in checkpoints
        self.register_buffer("mean", _per_channel(self.config.mean), persistent=False)
        self.register_buffer("std", _per_channel(self.config.std), persistent=False)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # its stub lacks the keyword alone

    def normalise(self, images: Tensor) -> Tensor:
        """Return uint8 RGB images normalised by mean and std, on their device.

        Floating-point input is taken as already normalised and passed on.
        """
        weight = self.backbone.conv1.weight
        if images.dtype == torch.uint8:
            images = (images.float() - self.mean.float()) / self.std.float()
        return images.to(weight.dtype)

    def forward(self, images: Tensor, *, thresholds: bool | None = None) -> Output:
        """Return the maps; without thresholds the second head is not run.

        `thresholds` follows the mode of the module (training or inference) unless it is given.
        """
        height, width = images.shape[-2:]
        fused = self.neck(self.backbone(self.normalise(images)))
        logits = self.prob_head(fused)[..., :height, :width]
        if not (self.training if thresholds is None else thresholds):
            return Output(logits)
        thresh = torch.sigmoid(self.thresh_head(fused)[..., :height, :width].float())
        binary = step_function(torch.sigmoid(logits.float()), thresh, k=self.config.k)
        return Output(logits, thresh, binary)


def _per_channel(values: tuple[float, float, float]) -> Tensor:
    return 255.0 * torch.tensor(values).reshape(1, 3, 1, 1)
