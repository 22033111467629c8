"""Time each JPEG backend that is present, in turn, on the same pictures in one run.

    python tools/bench_decode.py [folder of JPEGs] [--limit 40] [--rounds 5]

Without a folder it draws a 1280x720 picture. Backends alternate picture by picture, shuffled, so
that a busy machine and what the neighbour left to the allocator hit all of them alike; the median
over all calls is printed, and the ratio to the first.
"""

from __future__ import annotations

import argparse
import io
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from ocrstore.decode import available_backends, decode, open_picture


def drawn_picture() -> bytes:
    rng = np.random.default_rng(0)
    ys, xs = np.mgrid[:720, :1280]
    pixels = np.stack([xs / 6, ys / 4, (xs + ys) / 9], axis=-1) + rng.integers(
        0, 30, (720, 1280, 3)
    )
    pixels = np.ascontiguousarray(pixels.astype(np.uint8))
    for row in range(40, 720, 60):
        cv2.putText(pixels, "Receipt no. 4711  Total 12.50", (30, row), 0, 1.4, (20, 20, 20), 3)
    return bytes(cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 92])[1])


def candidates() -> dict[str, Callable[[bytes], object]]:
    runs: dict[str, Callable[[bytes], object]] = {
        f"decode, {name}": lambda data, name=name: decode(data, backend=name)
        for name in available_backends()
    }
    runs["open_picture alone"] = open_picture
    runs["cv2.imdecode alone (BGR)"] = lambda data: cv2.imdecode(
        np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR
    )
    try:
        from PIL import Image
    except ImportError:
        return runs
    runs["Pillow to an array"] = lambda data: np.asarray(
        Image.open(io.BytesIO(data)).convert("RGB")
    )
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.folder is None:
        pictures = [drawn_picture()]
    else:
        paths = sorted(
            p for p in options.folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg")
        )
        pictures = [p.read_bytes() for p in paths[:: max(1, len(paths) // options.limit)]]
    if not pictures:
        parser.error(f"no JPEGs in {options.folder}")
    runs = candidates()
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    shuffle = random.Random(0).shuffle
    for turn in range(options.rounds + 1):
        for data in pictures:
            shuffle(names)
            for name in names:
                start = time.perf_counter()
                runs[name](data)
                if turn:  # the first round warms up
                    times[name].append(time.perf_counter() - start)
    megabytes = sum(map(len, pictures)) / 1e6
    print(f"{len(pictures)} pictures, {megabytes:.1f} MB, {options.rounds} rounds")
    first = statistics.median(times[next(iter(times))])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(f"{name:26} {1e3 * median:8.3f} ms  {median / first:6.2f}x")


if __name__ == "__main__":
    main()
