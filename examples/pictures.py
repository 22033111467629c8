"""Draw receipts with known words, so that the examples need no download."""

import sys
from pathlib import Path

import cv2
import numpy as np


def draw(folder: Path, count: int, *, seed: int) -> None:
    """Write pictures to `folder/images` and ICDAR 2015 annotations to `folder/gt`."""
    rng = np.random.default_rng(seed)
    for name in ("images", "gt"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        height, width = int(rng.integers(300, 420)), int(rng.integers(220, 300))
        paper = int(rng.integers(190, 250))
        picture = np.full((height, width, 3), paper, np.uint8)
        picture -= rng.integers(0, 20, picture.shape, np.uint8)
        lines = []
        for top in range(24, height - 40, 44):
            left = int(rng.integers(8, 60))
            word = "".join(rng.choice(list("ABCDEFGHKLMNPRSTUVXYZ0123456789"), 6))
            cv2.putText(picture, word, (left, top + 24), cv2.FONT_HERSHEY_DUPLEX, 1.0, (20,) * 3, 2)
            right = left + cv2.getTextSize(word, cv2.FONT_HERSHEY_DUPLEX, 1.0, 2)[0][0]
            lines.append(f"{left},{top},{right},{top},{right},{top + 28},{left},{top + 28},{word}")
        cv2.imwrite(str(folder / "images" / f"receipt_{number:03d}.jpg"), picture)
        (folder / "gt" / f"gt_receipt_{number:03d}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) / "train", 32, seed=0)
    draw(Path(sys.argv[1]) / "val", 8, seed=1)
