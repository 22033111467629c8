"""A small text detector; its validation step checks what it is given, as careful projects do."""

import cv2
import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits


class Detector(pl.LightningModule):
    """Predicts the probability map of shrunk words."""

    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, stride=2, padding=2),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 32, 5, padding=4, dilation=2),
            nn.ReLU(),
            nn.Conv2d(32, 16, 1),
            nn.PixelShuffle(4),
        )
        self.counts = np.zeros(3)

    def loss(self, batch):
        check(batch)
        return binary_cross_entropy_with_logits(self.net(batch["images"]), batch["prob_maps"])

    def training_step(self, batch, _):
        return self.loss(batch)

    def validation_step(self, batch, _):
        logits = self.net(batch["images"])
        self.log("val_loss", self.loss(batch), batch_size=len(logits))
        for row, prob in enumerate(torch.sigmoid(logits[:, 0]).cpu().numpy()):
            assert batch["orientation"][row] == 1, "ground truth and picture are not in one frame"
            found = [project(box, batch["inverse_matrix"][row]) for box in boxes(prob > 0.4)]
            truth = [project(box, batch["inverse_matrix"][row]) for box in batch["polygons"][row]]
            self.counts += match(found, truth), len(found), len(truth)

    def on_validation_epoch_end(self):
        hits, found, truths = self.counts
        self.counts = np.zeros(3)
        self.log("hmean", 2 * hits / max(1.0, found + truths))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.lr)


def check(batch):
    """Refuse a batch that is not as the network expects it."""
    images, maps = batch["images"], batch["prob_maps"]
    assert images.dtype == maps.dtype == torch.float32, "normalised float32 is expected"
    assert images.shape[1] == 3 and maps.shape == (len(images), 1, *images.shape[2:])
    for key in ("image_path", "shape", "image_filename"):
        assert len(batch[key]) == len(images), f"no {key} for each picture"


def boxes(mask):
    """Return the connected parts of a map as boxes, grown to the size before they were shrunk."""
    _, _, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8))
    for x, y, width, height, area in stats[1:]:
        if area > 12:
            grow = 0.6 * height
            left, top, right, bottom = x - grow, y - grow, x + width + grow, y + height + grow
            yield np.float32([(left, top), (right, top), (right, bottom), (left, bottom)])


def project(polygon, matrix):
    """Move points from the picture of the network into the original one."""
    moved = np.c_[polygon, np.ones(len(polygon))] @ np.asarray(matrix).T
    return moved[:, :2] / moved[:, 2:]


def match(found, truths):
    """Count the boxes that overlap a word by more than half."""
    hits = 0
    left = [(p.min(axis=0), p.max(axis=0)) for p in truths]
    for low, high in ((p.min(axis=0), p.max(axis=0)) for p in found):
        for other in left:
            sides = np.minimum(high, other[1]) - np.maximum(low, other[0])
            shared = np.prod(np.maximum(sides, 0))
            whole = np.prod(high - low) + np.prod(other[1] - other[0]) - shared
            if shared > 0.5 * whole:
                hits += 1
                left = [rest for rest in left if rest is not other]
                break
    return hits
