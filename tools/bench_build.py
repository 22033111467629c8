"""Compare `ocrstore.build` with the ideal and with the way people do it today, in one run.

The ideal is the time of decode, resize and maps in one thread, divided by the workers, plus writing
the store's bytes to a plain file once, with fsync. Today's way is PIL decode, albumentations,
polygon by polygon numpy maps, npz files, one process. All three take turns, round by round, so that
a noisy machine is noisy for all of them; the table has the median of the rounds' ratios.

    OCRSTORE_PICTURES=... python tools/bench_build.py [--rounds 3] [--pictures 404] [--workers 2]

Real pictures come from `icdar2015/images` and `gt` in the folder named by OCRSTORE_PICTURES; without
it, pictures are drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
import albumentations as A
from bench_maps import by_cosines, straightforward

import ocrstore
from ocrstore.decode import decode
from ocrstore.geometry import longest_side, transform_points
from ocrstore.maps import draw_maps
from ocrstore.sources import Source, open_source

SIDE = 640
SAME = ["tensor", "prob_map", "thresh_map", "prob_mask", "thresh_mask", "inverse_matrix"]
"""What today's files hold: a baked picture and its maps, but not the picture at full size."""


def processor_seconds() -> float:
    """Processor time of this process and of the children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def prepare(folder: Path, pictures: int) -> Path:
    """Lay out so many pictures with their annotations: real ones, or drawn."""
    images, gt = folder / "images", folder / "gt"
    images.mkdir()
    gt.mkdir()
    real = Path(os.environ.get("OCRSTORE_PICTURES", "")) / "icdar2015"
    if os.environ.get("OCRSTORE_PICTURES") and real.is_dir():
        for path in sorted((real / "images").iterdir())[:pictures]:
            shutil.copy(path, images)
            shutil.copy(real / "gt" / f"gt_{path.stem}.txt", gt)
        return images
    rng = np.random.default_rng(0)
    for i in range(pictures):
        small = rng.integers(0, 256, (45, 80, 3), np.uint8)
        pixels = cv2.resize(small, (1280, 720), interpolation=cv2.INTER_CUBIC)
        lines = []
        for _ in range(10):
            x, y = rng.integers(0, 1100), rng.integers(0, 680)
            w, h = rng.integers(40, 180), rng.integers(15, 40)
            cv2.putText(pixels, "text", (int(x), int(y + h)), 0, 1, (0, 0, 0), 2)
            lines.append(f"{x},{y},{x + w},{y},{x + w},{y + h},{x},{y + h},text")
        cv2.imwrite(str(images / f"img_{i:04}.jpg"), pixels)
        (gt / f"gt_img_{i:04}.txt").write_text("\n".join(lines))
    return images


def derive_single(source: Source) -> float:
    """The cost of decode, resize and maps, in one thread; files are in the page cache."""
    cv2.setNumThreads(1)
    started = time.perf_counter()
    for sample in source:
        pixels = decode(sample.path.read_bytes()).pixels
        geometry = longest_side(pixels.shape[:2], (SIDE, SIDE))
        geometry.apply(pixels)
        moved = [transform_points(geometry.matrix, p.points) for p in sample.polygons]
        draw_maps(moved, [p.ignored for p in sample.polygons], SIDE, SIDE)
    return time.perf_counter() - started


def write_once(path: Path, nbytes: int) -> float:
    """The cost of writing so many bytes to a plain file, and of knowing that they are there."""
    block = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8).tobytes()
    started = time.perf_counter()
    with path.open("wb") as file:
        for start in range(0, nbytes, len(block)):
            file.write(block[: nbytes - start])
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - started
    path.unlink()
    return seconds


def build_today(source: Source, folder: Path) -> float:
    """PIL, albumentations, straightforward maps, one npz file per picture."""
    cv2.setNumThreads(-1)
    folder.mkdir()
    pipeline = A.Compose(
        [A.LongestMaxSize(SIDE), A.PadIfNeeded(SIDE, SIDE, position="top_left", border_mode=0)],
        keypoint_params=A.KeypointParams(format="xy", remove_invisible=False),
    )
    started = time.perf_counter()
    for sample in source:
        with Image.open(sample.path) as file:
            pixels = np.asarray(file.convert("RGB"))
        points = [tuple(p) for polygon in sample.polygons for p in polygon.points.tolist()]
        done = pipeline(image=pixels, keypoints=points)
        moved = np.array(done["keypoints"], np.float32).reshape(-1, 2)
        ends = np.cumsum([len(polygon.points) for polygon in sample.polygons])
        quads = np.split(moved, ends[:-1]) if len(ends) else []
        ignored = [polygon.ignored for polygon in sample.polygons]
        maps = straightforward(quads, ignored, SIDE, SIDE, by_cosines)
        np.savez_compressed(
            folder / f"{sample.path.stem}.npz",
            image=done["image"],
            prob_map=maps.prob_map.astype(np.float16),
            thresh_map=maps.thresh_map.astype(np.float16),
            prob_mask=maps.prob_mask,
            thresh_mask=maps.thresh_mask,
        )
    os.sync()
    seconds = time.perf_counter() - started
    shutil.rmtree(folder)
    return seconds


def build_ours(
    images: Path, store: Path, workers: int, columns: list[str] | None = None
) -> tuple[float, int]:
    """The whole command: sources, workers' start, deriving, writing, publishing."""
    started = time.perf_counter()
    report = ocrstore.build(images, store, workers=workers, columns=columns)
    seconds = time.perf_counter() - started
    assert report.ok
    store.unlink()
    return seconds, report.nbytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=404)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--today", type=int, default=101, help="pictures for today's way, scaled")
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary one")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        results = run(Path(name), options)
    print(table(results, options))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


def run(folder: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    images = prepare(folder, options.pictures)
    source = open_source(images)
    few_folder = folder / "few"
    few_folder.mkdir()
    few = open_source(prepare(few_folder, min(options.today, options.pictures)))
    results: dict[str, list[float]] = {
        name: [] for name in ("single", "write", "ideal", "ours", "same", "today")
    }
    results |= {f"{name} cpu": [] for name in ("single", "write", "ours", "same", "today")}
    store = folder / "bench.ocrs"
    nbytes = 0
    for number in range(options.rounds):
        marks = [processor_seconds()]
        ours, nbytes = build_ours(images, store, options.workers)
        marks.append(processor_seconds())
        same, _ = build_ours(images, store, options.workers, SAME)
        marks.append(processor_seconds())
        single = derive_single(source)
        marks.append(processor_seconds())
        write = write_once(folder / "plain", nbytes)
        marks.append(processor_seconds())
        today = build_today(few, folder / "npz") * len(source) / len(few)
        marks.append(processor_seconds())
        spent = dict(zip(("ours", "same", "single", "write", "today"), np.diff(marks), strict=True))
        spent["today"] *= len(source) / len(few)
        for name, value in spent.items():
            results[f"{name} cpu"].append(float(value))
        for name, value in (
            ("single", single),
            ("write", write),
            ("ideal", single / options.workers + write),
            ("ours", ours),
            ("same", same),
            ("today", today),
        ):
            results[name].append(value)
        print(f"round {number + 1}: ours {ours:.1f} s, ideal {results['ideal'][-1]:.1f} s, "
              f"same columns as today {same:.1f} s, today {today:.1f} s", file=sys.stderr)  # fmt: skip
    results["nbytes"] = [float(nbytes)]
    return results


def table(results: dict[str, list[float]], options: argparse.Namespace) -> str:
    middle: Callable[[str], float] = lambda name: statistics.median(results[name])  # noqa: E731
    to_ideal = statistics.median(
        ideal / ours for ideal, ours in zip(results["ideal"], results["ours"], strict=True)
    )
    to_today = statistics.median(
        today / same for today, same in zip(results["today"], results["same"], strict=True)
    )
    count = options.pictures
    rows = [
        ("decode + resize + maps, one thread", middle("single")),
        (f"writing {results['nbytes'][0] / 1e9:.2f} GB once, with fsync", middle("write")),
        (f"ideal: the first / {options.workers} + the second", middle("ideal")),
        (f"ocrstore build, {options.workers} workers", middle("ours")),
        ("the same without the full-size pictures, as today's files are", middle("same")),
        ("today: PIL, albumentations, numpy maps, npz", middle("today")),
    ]
    lines = [f"{count} pictures, median of {options.rounds} rounds", ""]
    lines += ["| what | seconds | pictures/s |", "|---|---|---|"]
    lines += [f"| {name} | {value:.2f} | {count / value:.0f} |" for name, value in rows]
    lines += [
        "",
        f"share of the ideal: {to_ideal:.2f} (wanted: 0.7)",
        f"times today's way, same content: {to_today:.1f} (wanted: 3)",
        "",
        *on_free_processors(results, options.workers),
    ]
    return "\n".join(lines)


def on_free_processors(results: dict[str, list[float]], workers: int) -> list[str]:
    """The same ratios from processor time: what a machine that does nothing else would show."""
    middle = {name: statistics.median(values) for name, values in results.items()}
    ideal = middle["single cpu"] / workers + middle["write cpu"]
    return [
        "from processor time, as if the disk took no time and nobody else used the machine:",
        f"  ideal {ideal:.2f} s, ours {middle['ours cpu'] / workers:.2f} s "
        f"({middle['ours cpu']:.2f} s on {workers} processors): {ideal * workers / middle['ours cpu']:.2f}",
        f"  today {middle['today cpu']:.2f} s, ours with the same content "
        f"{middle['same cpu'] / workers:.2f} s: {middle['today cpu'] * workers / middle['same cpu']:.1f}",
    ]


if __name__ == "__main__":
    main()
