"""The project's own data module: decodes, resizes, draws maps, and caches the results in RAM."""

from pathlib import Path

import cv2
import numpy as np
import pyclipper
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


class ReceiptDataset(Dataset):
    """Pictures with ICDAR annotations; `cache` is none, image or tensor."""

    def __init__(self, folder, size, cache="tensor"):
        self.paths = sorted(Path(folder, "images").glob("*.jpg"))
        self.size, self.cache, self.kept = size, cache, {}
        self.anns = {path.name: self._words(Path(folder), path) for path in self.paths}

    @staticmethod
    def _words(folder, path):
        lines = (folder / "gt" / f"gt_{path.stem}.txt").read_text("utf-8-sig").splitlines()
        parts = [line.split(",", 8) for line in lines]
        return [(np.float32(part[:8]).reshape(4, 2), part[8] == "###") for part in parts]

    def __len__(self):
        return len(self.paths)

    def _picture(self, path):
        if self.cache != "image":
            return cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
        if path not in self.kept:
            self.kept[path] = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
        return self.kept[path]

    def __getitem__(self, row):
        if row in self.kept:
            return self.kept[row]
        path = self.paths[row]
        picture = self._picture(path)
        height, width = picture.shape[:2]
        scale = self.size / max(height, width)
        small = cv2.resize(picture, (round(width * scale), round(height * scale)))
        canvas = np.zeros((self.size, self.size, 3), np.uint8)
        canvas[: small.shape[0], : small.shape[1]] = small
        words = [(polygon * scale, ignored) for polygon, ignored in self.anns[path.name]]
        pixels = ((canvas / 255 - MEAN) / STD).astype(np.float32)
        sample = {
            "image": torch.from_numpy(pixels.transpose(2, 0, 1).copy()),
            "prob_map": torch.from_numpy(draw_map(words, self.size))[None],
            "polygons": [polygon for polygon, _ in words],
            "ignored": [ignored for _, ignored in words],
            "inverse_matrix": np.diag([1 / scale, 1 / scale, 1]),
            "image_filename": path.name,
            "image_path": str(path),
            "shape": (height, width),
            "orientation": 1,
        }
        if self.cache == "tensor":
            self.kept[row] = sample
        return sample


def draw_map(words, size, ratio=0.4):
    """Draw the shrunk polygons, as DBNet learns them."""
    drawn = np.zeros((size, size), np.float32)
    for polygon in (polygon for polygon, ignored in words if not ignored):
        length = cv2.arcLength(polygon, True)
        offset = pyclipper.PyclipperOffset()
        offset.AddPath(polygon.round().tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
        distance = cv2.contourArea(polygon) * (1 - ratio**2) / length
        for path in offset.Execute(-distance):
            cv2.fillPoly(drawn, [np.array(path)], 1.0)
    return drawn


def collate(samples):
    """Stack tensors, list everything else."""
    batch = {key: [sample[key] for sample in samples] for key in samples[0]}
    images, maps = torch.stack(batch.pop("image")), torch.stack(batch.pop("prob_map"))
    return {"images": images, "prob_maps": maps, **batch}


class ReceiptData(pl.LightningDataModule):
    """Training and validation pictures."""

    def __init__(self, train, val, size, batch_size, num_workers, cache):
        super().__init__()
        self.folders = {"train": train, "val": val}
        self.options = {"size": size, "cache": cache}
        self.loading = {"batch_size": batch_size, "num_workers": num_workers, "collate_fn": collate}

    def dataset(self, stage):
        return ReceiptDataset(self.folders[stage], **self.options)

    def train_dataloader(self):
        return DataLoader(self.dataset("train"), shuffle=True, **self.loading)

    def val_dataloader(self):
        return DataLoader(self.dataset("val"), **self.loading)
