"""The main job end to end, on pictures drawn on the spot.

    python tools/demo.py [--folder demo] [--count 32]

Draws pictures (some turned by an EXIF flag), builds a store, inspects and verifies it, reads it
through a DataLoader with workers, trains a small DBNet for one epoch, measures it and looks for
text with it. Each command is printed as you would type it.
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
            assert images.shape[1:] == (3, 640, 640)
            assert maps.shape[2:] == (640, 640)
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
    run("build", folder / "images", "--annotations", folder / "gt", "--out", store)
    run("inspect", store)
    run("verify", store)
    run("verify", store, "--source", folder / "images", "--sample", 8)
    read_through_a_loader(store)
    run(
        "train",
        store,
        "--epochs",
        1,
        "--batch-size",
        8,
        "--width",
        16,
        "--inner",
        32,
        "--out",
        folder / "run",
        "--quiet",
    )
    print("(one epoch of a small network, to show that it runs: it has learned nothing yet)")
    best = folder / "run" / "best.ckpt"
    others, val = folder / "others", folder / "val.ocrs"  # a few: without a GPU each takes its time
    write_scenes(others, 3, seed=1000)
    run("build", others / "images", "--annotations", others / "gt", "--out", val)
    run("eval", val, "--checkpoint", best)
    run("predict", others / "images", "--checkpoint", best, "--out", folder / "boxes", "--quiet")
    say(f"done; everything is in {folder}/")


if __name__ == "__main__":
    main()
