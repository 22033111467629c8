"""DBNet: uint8 pictures become probability, threshold and binary maps of the same size."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ocrstore.errors import SchemaError
from ocrstore.torch.dbnet.head import Head, step_function
from ocrstore.torch.dbnet.neck import FPN
from ocrstore.torch.dbnet.resnet import BACKBONES, ResNet

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything that decides the shape of the network and what it is fed."""

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
        # fewer than 8 channels are outside what vendors test: torch 2.13's CPU kernel for strided
        # 1x1 convolutions over 4 channels-last channels writes past its buffer
        if self.width < 8 or self.inner < 16 or self.width % 8 or self.inner % 16:
            raise SchemaError(
                f"width {self.width} and inner {self.inner} make no network: expected positive "
                "multiples of 8 and of 16"
            )
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise SchemaError(f"mean {self.mean} and std {self.std}: expected 3 each, std positive")

    @classmethod
    def small(cls, **changes: Any) -> ModelConfig:
        """Return a network that learns on a CPU: a fourth of the channels everywhere."""
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
    """What one forward pass gives; each (B, 1, H, W)."""

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
    """The network. Channels-last throughout: it is how pictures lie in a store."""

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
        """Return uint8 RGB as the network wants it, on the device where the images are.

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
