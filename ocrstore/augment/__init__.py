"""Transforms of pictures with their polygons.

`BasicAugmentation` is ocrstore's own. albumentations pipelines run lazily: plan first, then compute
only the pixels of the final crop; the pixels equal those of the pipeline itself bit for bit, and
each keypoint is returned once, in order. Needs OpenCV, not torch.
"""

from ocrstore.augment.basic import BasicAugmentation
from ocrstore.augment.composition import (
    PlannedComposition,
    SteppedComposition,
    can_plan,
    has_known_rules,
    random_parts,
)

__all__ = [
    "BasicAugmentation",
    "PlannedComposition",
    "SteppedComposition",
    "can_plan",
    "has_known_rules",
    "random_parts",
]
