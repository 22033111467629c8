"""Owns the colour jitter: bit for bit what albumentations computes, in less time.

One copy of the picture is changed again and again, in memory that is used again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore.fusing import canvas
from ocrstore.fusing.warp import Pixels


def jitter(pixels: Pixels, params: Mapping[str, Any]) -> Pixels:
    """Change brightness, contrast, saturation and hue of (H, W, 3) uint8, in the order given.

    Returns memory of its own.
    """
    own = (_adjust_brightness, _adjust_contrast, _adjust_saturation, _adjust_hue)
    factors = (params["brightness"], params["contrast"], params["saturation"], params["hue"])
    mine: Pixels = canvas.take(pixels.shape)
    mine[...] = pixels
    for which in params["order"]:
        own[which](mine, factors[which])
    return mine


def _adjust_brightness(mine: Pixels, factor: float) -> None:
    from albumentations.augmentations.pixel import functional

    if factor == 0:
        mine.fill(0)
    elif factor != 1:
        canvas.paste(functional.multiply(mine, factor, inplace=True), mine)


def _adjust_contrast(mine: Pixels, factor: float) -> None:
    from albumentations.augmentations.pixel import functional

    if factor in (0, 1):
        canvas.paste(functional.adjust_contrast_torchvision(mine, factor), mine)
        return
    grey = _grey(mine)
    # a sum of bytes is exact in any order, so this is the mean that numpy finds more slowly
    mean = np.float64(cv2.sumElems(grey)[0]) / grey.size
    changed = functional.multiply_add(mine, factor, mean * (1 - factor), inplace=True)
    canvas.paste(changed, mine)


def _adjust_saturation(mine: Pixels, factor: float) -> None:
    if factor == 1:
        return
    grey = cv2.cvtColor(_grey(mine), cv2.COLOR_GRAY2RGB, dst=canvas.take(mine.shape))
    if factor == 0:
        mine[...] = grey
    else:
        canvas.paste(cv2.addWeighted(mine, factor, grey, 1 - factor, gamma=0, dst=mine), mine)


def _adjust_hue(mine: Pixels, factor: float) -> None:
    if factor == 0:
        return
    turned = cv2.cvtColor(mine, cv2.COLOR_RGB2HSV, dst=canvas.take(mine.shape))
    # albumentations looks the hue up in a strided view of one channel; a plane of its own is faster
    table: npt.NDArray[np.uint8] = np.mod(
        np.arange(0, 256, dtype=np.int16) + 180 * factor, 180
    ).astype(np.uint8)
    plane = cv2.extractChannel(turned, 0, dst=canvas.take(mine.shape[:2]))
    cv2.insertChannel(cv2.LUT(plane, table, dst=canvas.take(plane.shape)), turned, 0)
    canvas.paste(cv2.cvtColor(turned, cv2.COLOR_HSV2RGB, dst=mine), mine)


def _grey(mine: Pixels) -> Pixels:
    return cv2.cvtColor(mine, cv2.COLOR_RGB2GRAY, dst=canvas.take(mine.shape[:2]))
