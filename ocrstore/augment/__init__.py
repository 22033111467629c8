"""Run albumentations pipelines lazily: plan first, then compute only the pixels of the final crop.

The pixels equal those of the pipeline itself bit for bit; each keypoint is returned once, in order.
Needs albumentations and OpenCV, not torch.
"""

from ocrstore.augment.composition import PlannedComposition, can_plan, random_parts

__all__ = ["PlannedComposition", "can_plan", "random_parts"]
