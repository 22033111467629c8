"""A small data set with known polygons, built into a store, for the tests that look at stores."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

import ocrstore

HOSTILE = '<script>alert("1")</script> &amp; \' "><img src=x onerror=alert(2)>'

# name -> ((height, width), [(polygon, text)]); "###" is ignored. In the view of 64 pixels pictures
# of 128 are scaled by a half, so that boxes of 16 pixels are just large enough to count.
PICTURES: dict[str, tuple[tuple[int, int], list[tuple[list[tuple[int, int]], str]]]] = {
    "a.jpg": (
        (96, 128),
        [
            ([(10, 10), (60, 10), (60, 26), (10, 26)], "just"),  # 50 x 16: counts
            ([(10, 40), (60, 40), (60, 55), (10, 55)], "small"),  # 50 x 15: 7.5 in the view
            ([(70, 10), (120, 10), (120, 40), (70, 40)], "###"),
        ],
    ),
    "b.jpg": ((128, 64), [([(10, 10), (50, 10), (50, 20), (10, 20)], "tiny")]),
    "c.jpg": ((96, 128), []),
    "d.jpg": (
        (96, 128),
        [
            ([(200, 10), (240, 10), (240, 40), (200, 40)], "away"),
            ([(100, 50), (150, 50), (150, 80), (100, 80)], HOSTILE),
        ],
    ),
    "e.jpg": ((128, 128), [([(10, 10), (90, 10), (90, 40), (10, 40)], "###")]),
}
"""7 polygons, 2 of them ignored; of the 5 that count, `small` and `tiny` are under 8 px."""


def draw(height: int, width: int, seed: int) -> np.ndarray:
    """A picture of its own for each seed."""
    rng = np.random.default_rng(seed)
    small = rng.integers(90, 255, (height // 8, width // 8, 3), np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)


def write_source(root: Path) -> Path:
    """Write pictures and annotations below a folder; `f.jpg` is a copy of `a.jpg`."""
    images, gt = root / "images", root / "gt"
    images.mkdir(parents=True)
    gt.mkdir()
    for seed, (name, ((height, width), polygons)) in enumerate(PICTURES.items()):
        cv2.imwrite(str(images / name), draw(height, width, seed))
        lines = [",".join(f"{x},{y}" for x, y in points) + f",{text}" for points, text in polygons]
        (gt / f"gt_{Path(name).stem}.txt").write_text("\n".join(lines))
    (images / "f.jpg").write_bytes((images / "a.jpg").read_bytes())
    (images / "broken.jpg").write_bytes(b"not a picture")
    return root


def build_drawn(root: Path, *, name: str = "val.ocrs", **options: object) -> Path:
    """Write the data set and build it; returns the store."""
    if not (root / "images").exists():
        write_source(root)
    options = {"size": 64, "workers": 0, **options}
    ocrstore.build(root / "images", root / name, annotations=root / "gt", **options)
    return root / name


def bare_store(path: Path, *, samples: int = 4) -> Path:
    """Write a store that no build made: no polygons, no recipe, no picture."""
    with ocrstore.create(path, {"numbers": ocrstore.Column("int16", (None,))}) as writer:
        for row in range(samples):
            writer.append(f"s{row}", {"numbers": np.arange(row, dtype=np.int16)})
    return path
