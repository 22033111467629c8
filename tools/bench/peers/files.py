"""JPEG files by OpenCV, albumentations, maps from npz files: the way it is done today."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from tools.bench.peers.base import collate, torch_loader
from tools.bench.prepared import Prepared, read

TITLE = "files + albumentations + npz"
REQUIREMENTS = ()
NOTE = "cv2.imread, LongestMaxSize and PadIfNeeded with keypoints, compressed npz for the maps."
DISTRIBUTION = "albumentations"


def build(prepared: Prepared, folder: Path) -> None:
    """Write the maps as npz files and the polygons of the source in one JSON file."""
    from ocrstore.sources import open_source

    for sample in prepared:
        np.savez_compressed(
            folder / f"{sample.key}.npz", prob_map=sample.prob_map, thresh_map=sample.thresh_map
        )
    source = open_source(prepared.pictures, annotations=prepared.pictures.parent / "gt")
    polygons = {s.key: [p.points.tolist() for p in s.polygons] for s in source}
    (folder / "polygons.json").write_text(json.dumps(polygons), "utf-8")


def extra_files(prepared: Prepared) -> list[Path]:
    return [prepared.pictures / key for key in prepared.keys]


class Files(torch.utils.data.Dataset):
    def __init__(self, folder: Path, prepared: Path) -> None:
        import albumentations as A

        described = read(prepared)
        self.folder, self.pictures, self.keys = folder, described.pictures, described.keys
        size = described.images.shape[1]
        polygons = json.loads((folder / "polygons.json").read_text("utf-8"))
        self.polygons = [[np.array(p, np.float32) for p in polygons[key]] for key in self.keys]
        self.transform = A.Compose(
            [
                A.LongestMaxSize(size),
                A.PadIfNeeded(size, size, position="top_left", border_mode=0, fill=0),
            ],
            keypoint_params=A.KeypointParams(format="xy", remove_invisible=False),
        )

    def __len__(self) -> int:
        return len(self.keys)

    def decode(self, row: int) -> np.ndarray:
        import cv2

        return cv2.imread(str(self.pictures / self.keys[row]), cv2.IMREAD_COLOR_RGB)

    def __getitem__(self, row: int) -> dict:
        polygons = self.polygons[row]
        points = np.concatenate(polygons) if polygons else np.zeros((0, 2), np.float32)
        made = self.transform(image=self.decode(row), keypoints=points)
        moved = np.asarray(made["keypoints"], np.float32).reshape(-1, 2)
        ends = np.cumsum([len(polygon) for polygon in polygons], dtype=np.int64)
        with np.load(self.folder / f"{self.keys[row]}.npz") as maps:
            prob_map, thresh_map = maps["prob_map"], maps["thresh_map"]
        return {
            "images": torch.from_numpy(made["image"]).permute(2, 0, 1),
            "prob_maps": torch.from_numpy(prob_map)[None],
            "thresh_maps": torch.from_numpy(thresh_map)[None],
            "polygons": np.split(moved, ends[:-1]) if polygons else [],
            "image_filename": self.keys[row],
        }


def loader(folder: Path, *, prepared: Path, **options):
    return torch_loader(Files(folder, prepared), collate_fn=collate, **options)
