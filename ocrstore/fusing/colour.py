"""Owns the colour jitter: bit for bit what albumentations computes, in less time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore.fusing.warp import Pixels


def jitter(pixels: Pixels, params: Mapping[str, Any]) -> Pixels:
    """Change brightness, contrast, saturation and hue of (H, W, 3) uint8, in the order given."""
    from albumentations.augmentations.pixel import functional

    own = (
        functional.adjust_brightness_torchvision,
        _adjust_contrast,
        functional.adjust_saturation_torchvision,
        _adjust_hue,
    )
    factors = (params["brightness"], params["contrast"], params["saturation"], params["hue"])
    for which in params["order"]:
        pixels = own[which](pixels, factors[which])
    return pixels


def _adjust_contrast(pixels: Pixels, factor: float) -> Pixels:
    from albumentations.augmentations.pixel import functional

    if factor in (0, 1):
        unchanged: Pixels = functional.adjust_contrast_torchvision(pixels, factor)
        return unchanged
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    # a sum of bytes is exact in any order, so this is the mean that numpy finds more slowly
    mean = np.float64(cv2.sumElems(grey)[0]) / grey.size
    changed: Pixels = functional.multiply_add(pixels, factor, mean * (1 - factor), inplace=False)
    return changed


def _adjust_hue(pixels: Pixels, factor: float) -> Pixels:
    if factor == 0:
        return pixels
    turned = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)
    # albumentations looks the hue up in a strided view of one channel; a plane of its own is faster
    table: npt.NDArray[np.uint8] = np.mod(
        np.arange(0, 256, dtype=np.int16) + 180 * factor, 180
    ).astype(np.uint8)
    cv2.insertChannel(cv2.LUT(cv2.extractChannel(turned, 0), table), turned, 0)
    return cv2.cvtColor(turned, cv2.COLOR_HSV2RGB)
