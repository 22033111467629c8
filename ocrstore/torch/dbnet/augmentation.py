"""The usual augmentation for text detection, as an albumentations pipeline."""

from __future__ import annotations

from typing import Any

from ocrstore.pipeline import import_albumentations


def default_augmentation(height: int, width: int) -> Any:
    """Return flips, small rotations, scales, a random crop to the view's size, and colour.

    It runs on whole pictures; the maps are drawn from where their polygons went.
    """
    A = import_albumentations()  # noqa: N806  # its own documentation calls it so
    longest = max(height, width)
    return A.Compose(
        [
            A.LongestMaxSize(longest),
            A.HorizontalFlip(p=0.5),
            A.Affine(rotate=(-10, 10), scale=(0.7, 2.0), p=1.0),
            A.PadIfNeeded(height, width, border_mode=0, fill=0),
            A.RandomCrop(height, width),
            A.ColorJitter(brightness=0.25, contrast=0.25, saturation=0.25, hue=0.03, p=0.8),
        ]
    )
