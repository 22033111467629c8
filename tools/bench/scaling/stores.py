"""Makes the stores of the scale study: many small samples, many bytes, other picture sizes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import ocrstore
from ocrstore.recipe import PRESETS

GB = 1e9


@dataclass(frozen=True)
class StorePlan:
    """A store to be made."""

    name: str
    samples: int
    side: int
    preset: str = ""
    """Codecs, and content that they compress as they do real pictures; else all is raw noise."""

    @property
    def sample_nbytes(self) -> int:
        return 7 * self.side * self.side  # decoded: a picture of bytes and two float16 maps

    @property
    def nbytes(self) -> int:
        return self.samples * self.sample_nbytes


def plan_stores(*, cap_nbytes: float, quick: bool) -> dict[str, list[StorePlan]]:
    """Return the stores of each series, small ones first."""
    counts = (100, 1_000, 10_000) if quick else (100, 1_000, 10_000, 100_000)
    large = StorePlan("", 1, 640).sample_nbytes
    steps = (cap_nbytes / 16, cap_nbytes / 4, cap_nbytes)
    sides = (320, 640, 1280) if quick else (320, 640, 960, 1280, 1920)
    each = 0.15 * GB if quick else 0.5 * GB
    # small row groups, so that a window of several of them fits a small page cache
    limited = StorePlan("limit", int(cap_nbytes / 4 / StorePlan("", 1, 320).sample_nbytes), 320)
    return {
        "limit": [limited],
        "presets": [replace(limited, name=preset, preset=preset) for preset in PRESETS],
        "samples": [StorePlan(f"n{count}", count, 32) for count in counts],
        "bytes": [StorePlan(f"gb{size / GB:.3g}", int(size / large), 640) for size in steps],
        "size": [
            StorePlan(f"side{side}", max(32, int(each / (7 * side * side))), side) for side in sides
        ],
    }


def room_for(folder: Path, wanted_nbytes: float) -> float:
    """Return what the largest store may have: the wish, or a third of what the disk has free."""
    return min(wanted_nbytes, shutil.disk_usage(folder).free / 3)


def make_store(plan: StorePlan, folder: Path) -> Path:
    """Write a store unless it is there; each sample has a polygon, a text and sizes."""
    path = folder / f"{plan.name}.ocrs"
    if path.exists():
        return path
    side = plan.side
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (side + 64, side, 3), np.uint8)
    halves = rng.random((side + 64, side)).astype(np.float16)
    codecs = PRESETS.get(plan.preset, {})
    columns = {
        "tensor": ocrstore.Column("uint8", (side, side, 3), codecs.get("tensor", "raw")),
        "prob_map": ocrstore.Column("float16", (side, side), codecs.get("prob_map", "raw")),
        "thresh_map": ocrstore.Column("float16", (side, side), codecs.get("thresh_map", "raw")),
    }
    if plan.preset:  # 2.2x and 100x, as measured on ICDAR 2015
        noise[:, : int(0.55 * side)] = 0
        halves[:, side // 100 :] = 0
    box = [1.0, 1.0, 20.0, 1.0, 20.0, 9.0, 1.0, 9.0]
    with ocrstore.create(path, columns=columns) as writer:
        for row in range(plan.samples):
            part = slice(row % 64, row % 64 + side)
            arrays = {"tensor": noise[part], "prob_map": halves[part], "thresh_map": halves[part]}
            attributes = {
                "width": side,
                "height": side,
                "polygons": [box],
                "ignored": [False],
                "texts": ["word"],
            }
            writer.append(f"{row:07d}.jpg", arrays, attributes=attributes)
    return path
