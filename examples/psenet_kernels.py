"""PSENet's targets: kernels of every word, shrunken to several sizes, baked or drawn in training.

    ocrstore build images/ --out train.ocrs --targets psenet_kernels:kernels
    ocrstore verify train.ocrs --source images/ --targets psenet_kernels:kernels

(with this folder in PYTHONPATH), or after an augmentation:

    OCRStoreDataset("train.ocrs", transform=BasicAugmentation(640, 640), targets=kernels)

Either way a batch has `batch["kernels"]`, (batch, 7, height, width), the whole words first, and
`batch["training_mask"]`, which is 0 where text is ignored.
"""

import cv2
import numpy as np
import pyclipper

KERNELS = 7
SMALLEST = 0.5
"""The ratio of the smallest kernel; the others lie evenly between it and 1."""


def kernels(polygons, ignored, height, width):
    """Draw one mask for each ratio, and the mask of the pixels that count."""
    drawn = np.zeros((KERNELS, height, width), np.uint8)
    counts = np.ones((height, width), np.uint8)
    ratios = 1 - (1 - SMALLEST) * np.arange(KERNELS) / (KERNELS - 1)
    for polygon, skip in zip(polygons, ignored, strict=True):
        contour = np.rint(polygon).astype(np.int32)
        if skip:
            cv2.fillPoly(counts, [contour], 0)
            continue
        area, length = cv2.contourArea(contour), cv2.arcLength(contour, True)
        for mask, ratio in zip(drawn, ratios, strict=True):
            for part in shrink(contour, area * (1 - ratio**2) / max(length, 1.0)):
                cv2.fillPoly(mask, [part], 1)
    return {"kernels": drawn, "training_mask": counts}


kernels.version = "1"  # part of the recipe's fingerprint: change it with what is drawn


def shrink(contour, distance):
    """Return the parts that are left of a contour."""
    if distance < 1:
        return [contour]
    offset = pyclipper.PyclipperOffset()
    offset.AddPath(contour.tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    return [np.array(part, np.int32) for part in offset.Execute(-distance)]
