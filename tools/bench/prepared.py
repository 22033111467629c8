"""The prepared samples: plain .npy files that every peer builds from and is checked against.

Needs numpy only, so that it can be read in any peer's environment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

ARRAYS = ("images", "prob_maps", "thresh_maps")


class Sample(NamedTuple):
    """One sample; the arrays are read-only views of the prepared files."""

    key: str
    image: np.ndarray
    """(H, W, 3) uint8 RGB"""
    prob_map: np.ndarray
    """(H, W) float16"""
    thresh_map: np.ndarray
    """(H, W) float16"""
    polygons: list[np.ndarray]
    """(n, 2) float32 each, in the frame of `image`"""


@dataclass(frozen=True)
class Prepared:
    """All samples, mapped from their folder."""

    folder: Path
    keys: list[str]
    """the pictures' file names, unique"""
    images: np.ndarray
    prob_maps: np.ndarray
    thresh_maps: np.ndarray
    polygons: list[list[np.ndarray]]
    pictures: Path
    """the folder with the JPEG files by their names"""
    source: str
    """what the pictures are, for the page"""

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, row: int) -> Sample:
        return Sample(
            self.keys[row],
            self.images[row],
            self.prob_maps[row],
            self.thresh_maps[row],
            self.polygons[row],
        )

    def __iter__(self) -> Iterator[Sample]:
        return (self[row] for row in range(len(self)))


def write(
    folder: Path,
    samples: Iterator[Sample],
    *,
    count: int,
    pictures: Path,
    source: str,
) -> None:
    """Write `count` samples of one size; what is there before is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "samples.json").unlink(missing_ok=True)
    keys, polygons = [], []
    arrays: dict[str, np.memmap] = {}
    for row, sample in enumerate(samples):
        made = dict(zip(ARRAYS, (sample.image, sample.prob_map, sample.thresh_map)))
        for name, array in made.items():
            if row == 0:
                arrays[name] = np.lib.format.open_memmap(
                    folder / f"{name}.npy", "w+", array.dtype, (count, *array.shape)
                )
            arrays[name][row] = array
        keys.append(sample.key)
        polygons.append(sample.polygons)
    for array in arrays.values():
        array.flush()
    np.save(folder / "points.npy", np.concatenate([p for s in polygons for p in s]))
    described = {
        "keys": keys,
        "lengths": [[len(polygon) for polygon in s] for s in polygons],
        "pictures": str(pictures.resolve()),
        "source": source,
    }
    (folder / "samples.json").write_text(json.dumps(described), "utf-8")


def read(folder: Path) -> Prepared:
    """Map prepared samples; raises FileNotFoundError if they are not whole."""
    described = json.loads((folder / "samples.json").read_text("utf-8"))
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
    points = np.load(folder / "points.npy")
    polygons, start = [], 0
    for lengths in described["lengths"]:
        polygons.append([])
        for length in lengths:
            polygons[-1].append(points[start : start + length])
            start += length
    return Prepared(
        folder,
        described["keys"],
        **arrays,
        polygons=polygons,
        pictures=Path(described["pictures"]),
        source=described["source"],
    )


def pack_polygons(polygons: Sequence[np.ndarray]) -> bytes:
    """Write polygons as bytes, for formats that have no lists of arrays."""
    lengths = np.array([len(polygons), *(len(p) for p in polygons)], "<i4")
    return lengths.tobytes() + b"".join(np.asarray(p, "<f4").tobytes() for p in polygons)


def unpack_polygons(data: bytes | memoryview | np.ndarray) -> list[np.ndarray]:
    """Read what `pack_polygons` wrote, as views of the given bytes; what follows is ignored."""
    count = int(np.frombuffer(data, "<i4", 1)[0])
    lengths = np.frombuffer(data, "<i4", count, offset=4)
    points = np.frombuffer(data, "<f4", 2 * int(lengths.sum()), offset=4 + 4 * count)
    points = points.reshape(-1, 2)
    polygons, start = [], 0
    for length in lengths.tolist():
        polygons.append(points[start : start + length])
        start += length
    return polygons
