"""Run albumentations pipelines lazily: plan first, then compute only the pixels of the final crop.

The result equals the pipeline's own bit for bit. Needs albumentations and OpenCV, not torch.
"""

from ocrstore.augment.composition import PlannedComposition, can_plan, random_parts

__all__ = ["PlannedComposition", "can_plan", "random_parts"]
