"""Augmentation that is planned first, so that only the pixels seen in the end are computed.

Owns the way from an albumentations composition to a plan and from a plan to pixels, bit for bit
those of the composition itself. Needs albumentations and OpenCV; torch is not needed.
"""

from ocrstore.augment.composition import PlannedComposition, can_plan, random_parts

__all__ = ["PlannedComposition", "can_plan", "random_parts"]
