"""Choose the pictures of a data set whose text is largest, for a training that must be short.

    python tools/pick.py images gt picked --count 32 --words 3

Pictures with fewer readable regions than `--words` are left out; of the others those are taken whose
*smallest* readable region is largest. They are linked (or copied), with their annotations, into
`picked/images` and `picked/gt`.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

import cv2
import numpy as np

from ocrstore.sources import open_source


def smallest_height(polygons) -> float:
    """Return the shorter side of the smallest of some regions."""
    boxes = [cv2.minAreaRect(np.asarray(p.points, np.float32)) for p in polygons]
    return min(min(size) for _, size, _ in boxes)


def pick(
    images: Path, annotations: Path, *, count: int, words: int
) -> list[tuple[float, int, str]]:
    """Return (smallest height, readable regions, key) of the pictures to take."""
    found = []
    for sample in open_source(images, annotations=annotations):
        readable = [p for p in sample.polygons if not p.ignored]
        if len(readable) >= words:
            found.append((smallest_height(readable), len(readable), sample.key))
    return sorted(found, key=lambda row: (-row[0], row[2]))[:count]


def bring(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("annotations", type=Path, help="a folder of ICDAR's gt_NAME.txt files")
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--words", type=int, default=1)
    args = parser.parse_args()
    picked = pick(args.images, args.annotations, count=args.count, words=args.words)
    for _, _, key in picked:
        bring(args.images / key, args.out / "images" / key)
        name = f"gt_{Path(key).stem}.txt"
        bring(args.annotations / name, args.out / "gt" / name)
    regions = sum(n for _, n, _ in picked)
    print(f"{len(picked)} pictures, {regions} readable regions of {picked[-1][0]:.0f} px and more")


if __name__ == "__main__":
    main()
