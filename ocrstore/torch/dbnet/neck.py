"""The feature pyramid: four levels of the backbone become one map at a quarter of the input."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


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
