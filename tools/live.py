"""The pipeline that a store replaces, for comparison: files, decoding, albumentations, maps.

Every sample is made anew: read, decode, resize and pad by albumentations with the polygons as
keypoints, draw the maps. Batches have the names that `OCRStoreDataset`'s have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import albumentations as A
import numpy as np
import torch

from ocrstore.decode import decode
from ocrstore.maps import draw_maps
from ocrstore.sources import open_source

MAPS = ("prob_map", "prob_mask", "thresh_map", "thresh_mask")


class LiveDataset(torch.utils.data.Dataset):
    """Pictures in a folder, transformed at every access.

    `map_dtype` is what the maps are rounded to. With `npz`, maps come from a folder of
    `<picture>.npz` files (see `write_npz`) instead of being drawn. With `cached`, each process
    keeps finished samples in a dict.
    """

    def __init__(
        self,
        images: Path,
        *,
        annotations: Path | None = None,
        size: int = 640,
        map_dtype: torch.dtype = torch.float32,
        npz: Path | None = None,
        cached: bool = False,
    ) -> None:
        self.samples = list(open_source(images, annotations=annotations))
        self.map_dtype = map_dtype
        self.npz = npz
        self.cache: dict[int, Any] | None = {} if cached else None
        self.size = size
        self.transform = A.Compose(
            [
                A.LongestMaxSize(size),
                A.PadIfNeeded(size, size, position="top_left", border_mode=0, fill=0),
            ],
            keypoint_params=A.KeypointParams(format="xy", remove_invisible=False),
        )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> dict[str, Any]:
        if self.cache is not None and row in self.cache:
            return self.cache[row]
        sample = self._make(row)
        if self.cache is not None:
            self.cache[row] = sample
        return sample

    def _make(self, row: int) -> dict[str, Any]:
        source = self.samples[row]
        pixels = decode(source.path.read_bytes(), name=source.key).pixels
        height, width = pixels.shape[:2]
        points = np.concatenate([p.points for p in source.polygons] or [np.zeros((0, 2))])
        result = self.transform(image=pixels, keypoints=points.astype(np.float32))
        moved = np.asarray(result["keypoints"], np.float32).reshape(-1, 2)
        ends = np.cumsum([len(p.points) for p in source.polygons], dtype=np.int64)
        polygons = np.split(moved, ends[:-1]) if len(ends) else []
        ignored = [p.ignored for p in source.polygons]
        scale = max(height, width) / self.size
        return {
            "images": torch.from_numpy(result["image"]).permute(2, 0, 1),
            **{f"{name}s": array for name, array in self._maps(source, polygons, ignored).items()},
            "inverse_matrix": torch.diag(torch.tensor([scale, scale, 1.0], dtype=torch.float64)),
            "raw_size": torch.tensor([width, height]),
            "polygons": polygons,
            "ignored": ignored,
            "texts": [p.text for p in source.polygons],
            "image_filename": source.key,
        }

    def _maps(self, source, polygons, ignored) -> dict[str, torch.Tensor]:
        if self.npz is not None:
            with np.load(self.npz / f"{source.path.stem}.npz") as stored:
                drawn = {name: stored[name] for name in MAPS}
        else:
            maps = draw_maps(polygons, ignored, self.size, self.size)
            drawn = {name: getattr(maps, name) for name in MAPS}
        tensors = {name: torch.from_numpy(array)[None] for name, array in drawn.items()}
        return {
            name: value.to(self.map_dtype) if value.is_floating_point() else value
            for name, value in tensors.items()
        }


def write_npz(dataset: LiveDataset, folder: Path) -> None:
    """Write the maps of every sample as people do: one compressed npz file for each picture."""
    folder.mkdir(parents=True, exist_ok=True)
    for row, source in enumerate(dataset.samples):
        sample = dataset[row]
        arrays = {name: sample[f"{name}s"][0].numpy() for name in MAPS}
        np.savez_compressed(folder / f"{source.path.stem}.npz", **arrays)


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Stack tensors, list the rest."""
    first = samples[0]
    return {
        name: torch.stack([s[name] for s in samples])
        if isinstance(first[name], torch.Tensor)
        else [s[name] for s in samples]
        for name in first
    }
