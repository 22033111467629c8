"""The main job end to end, on pictures drawn on the spot, in about three minutes.

    python tools/demo.py [--folder demo] [--count 32]

Draws pictures (some rotated by an EXIF flag), builds a store, inspects and verifies it, reads it
through a DataLoader with workers, trains a small DBNet, measures it on pictures that it has not
seen and draws what it found. Each command is printed as you would type it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from scenes import write_scenes


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def run(*arguments: object) -> None:
    """Run an ocrstore command, in the environment this script runs in."""
    say("$ ocrstore " + " ".join(map(str, arguments)))
    code = "from ocrstore.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, *map(str, arguments)], check=True)


def read_through_a_loader(store: Path) -> None:
    from torch.utils.data import DataLoader

    from ocrstore.torch import OCRStoreDataset

    say(
        f'>>> loader = DataLoader(OCRStoreDataset("{store}"), batch_size=16, num_workers=2, shuffle=True)'
    )
    dataset = OCRStoreDataset(store)
    loader = DataLoader(
        dataset, batch_size=16, num_workers=2, shuffle=True, persistent_workers=True
    )
    for epoch in (1, 2):
        started = time.perf_counter()
        seen = 0
        for batch in loader:
            seen += len(batch["rows"])
            images, maps = batch["images"], batch["prob_maps"]
            assert images.shape[1:] == (3, 320, 320)
            assert maps.shape[2:] == (320, 320)
        seconds = time.perf_counter() - started
        print(f"epoch {epoch}: {seen} samples in {seconds:.2f} s, images {tuple(images.shape)} {images.dtype}, "
              f"maps {tuple(maps.shape)} {maps.dtype}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("demo"))
    parser.add_argument("--count", type=int, default=32)
    options = parser.parse_args()
    folder: Path = options.folder
    shutil.rmtree(folder, ignore_errors=True)
    say(f"drawing {options.count} pictures with known polygons into {folder}/")
    write_scenes(folder, options.count, orientations=(1, 6, 1, 8, 1, 3, 1, 1))
    store = folder / "train.ocrs"
    run(
        *("build", folder / "images", "--annotations", folder / "gt"),
        *("--size", 320, "--out", store),
    )
    run("inspect", store)
    run("verify", store)
    run("verify", store, "--source", folder / "images", "--sample", 8)
    read_through_a_loader(store)
    unseen, val = folder / "unseen", folder / "val.ocrs"
    write_scenes(unseen, 8, seed=1000)
    run(
        *("build", unseen / "images", "--annotations", unseen / "gt"),
        *("--size", 320, "--out", val),
    )
    # a quarter of the usual channels: enough for drawn text, and quick without a GPU
    run(
        *("train", store, "--val", val, "--out", folder / "run", "--epochs", 24, "--quiet"),
        *("--batch-size", 4, "--width", 16, "--inner", 64, "--lr", 3e-3),
        *("--check-every", 8, "--pictures-every", 8, "--workers", 0),
    )
    best = folder / "run" / "best.ckpt"
    run("eval", val, "--checkpoint", best)
    run("predict", unseen / "images", "--checkpoint", best, "--out", folder / "boxes", "--quiet")
    picture = draw_found(unseen, folder / "boxes", folder / "found.png")
    say(f"Done. Found boxes (red) beside the true ones (green), on unseen pictures: {picture}")
    print("Try it on your own folder:\n")
    print("  ocrstore build images/ --annotations gt/ --out my.ocrs --dry-run")
    print("  ocrstore build images/ --annotations gt/ --out my.ocrs")
    print("  ocrstore view my.ocrs")


def draw_found(unseen: Path, boxes: Path, out: Path) -> Path:
    """Draw four pictures with true and found boxes into one file."""
    import json

    import cv2
    import numpy as np

    from ocrstore.dbnet.predict import draw_boxes
    from ocrstore.decode import decode
    from ocrstore.sources import open_source

    found = json.loads((boxes / "boxes.json").read_text("utf-8"))
    tiles = []
    for sample in list(open_source(unseen / "images", annotations=unseen / "gt"))[:4]:
        pixels = decode(sample.path.read_bytes()).pixels
        regions = [one["points"] for one in found[sample.key]]
        truths = [polygon.points for polygon in sample.polygons]
        ignored = [polygon.ignored for polygon in sample.polygons]
        tiles.append(draw_boxes(pixels, regions, truths=truths, ignored=ignored))
    sheet = np.vstack([np.hstack(tiles[:2]), np.hstack(tiles[2:])])
    cv2.imwrite(str(out), sheet[..., ::-1])
    return out


if __name__ == "__main__":
    main()
