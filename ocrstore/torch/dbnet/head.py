"""The two heads (probability, threshold) and the differentiable step between them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
        """Return logits: whoever needs probabilities applies the sigmoid, in float32."""
        logits: Tensor = self.layers(x)
        return logits


def step_function(prob: Tensor, thresh: Tensor, *, k: float = 50.0) -> Tensor:
    """Return 1 / (1 + exp(-k (P - T))), in float32 whatever comes in.

    With k = 50, float16's steps of 0.0005 below 1 would move the result by 0.6 % each.
    """
    with torch.autocast(prob.device.type, enabled=False):
        return torch.sigmoid(k * (prob.float() - thresh.float()))
