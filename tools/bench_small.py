"""`small` stores against FFCV's JPEG mode and against files with albumentations, same content.

    python tools/bench_small.py SMALL PICTURES [--raw FAST] [--rounds 5] [--workers 2]

SMALL is a store of the pictures in preset `small`, PICTURES their folder (`images`, `gt`), FAST the
store in preset `fast`: its rows are only copied, so no codec can be faster than that. Everybody
delivers shuffled batches of 16: the picture letterboxed to the store's size, both maps as float16,
both masks. FFCV keeps pictures as lossy JPEG files, in three ways: of the final size, of quality 90,
its default, and of 100, the nearest to the same pixels; and whole, of quality 90, to be decoded and
shrunk for each batch, as its users keep pictures. What is in the others' favour: FFCV's maps and
masks are raw, its batches are its own reused buffers and are not copied, its shrunk pictures are not
padded; the files' maps are drawn by ocrstore's fast `draw_maps`. FFCV is measured if it can be
imported; what its decoder takes at least, libjpeg-turbo alone in as many threads, always is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("NUMBA_NUM_THREADS", str(max(4, os.cpu_count() or 1)))
import numpy as np
import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from loader_augmented import Files, cpu_seconds
from loader_contenders import BATCH, MIN_SECONDS, Rate
from loader_presets import Contender

import ocrstore
from ocrstore.schema import IMAGE, MAPS, TENSOR
from ocrstore.sources import open_source

JPEG_QUALITY = 90
"""FFCV's own default."""


class Stored:
    """A store's batches, copied into reused buffers or staged by a PrefetchLoader."""

    def __init__(self, path: Path, workers: int, consumer: str) -> None:
        self.contender, self.consumer = Contender(path, workers, shuffle=True), consumer

    def run(self) -> Rate:
        """Consume whole epochs for at least half a second."""
        return self.contender.run(self.consumer)


class Batches:
    """Any iterable of batches, which are only received."""

    def __init__(self, batches: Any, samples: int) -> None:
        self.batches, self.samples = batches, samples

    def run(self) -> Rate:
        """Consume whole epochs for at least half a second."""
        started, spent, seen = time.perf_counter(), cpu_seconds(self.batches), 0
        while not seen or time.perf_counter() - started < MIN_SECONDS:
            for _ in self.batches:
                pass
            seen += self.samples
        seconds = time.perf_counter() - started
        return Rate(seen / seconds, seen / (cpu_seconds(self.batches) - spent))


class JpegOnly:
    """libjpeg-turbo alone: pictures of the final size decoded into reused memory, no maps."""

    def __init__(self, store: ocrstore.Store, threads: int) -> None:
        from turbojpeg import TJPF_RGB, TurboJPEG

        self.codec, self.pixels = TurboJPEG(), TJPF_RGB
        self.files = [
            self.codec.encode(store[TENSOR][row], JPEG_QUALITY, TJPF_RGB)
            for row in range(len(store))
        ]
        self.pool = ThreadPoolExecutor(threads)
        self.out = np.empty((BATCH, *store.columns[TENSOR].shape), np.uint8)

    def __iter__(self) -> Any:
        order = np.random.permutation(len(self.files))
        for start in range(0, len(order), BATCH):
            rows = enumerate(order[start : start + BATCH])
            yield list(self.pool.map(lambda at: self._decode(*at), rows))

    def _decode(self, position: int, row: int) -> None:
        self.codec.decode(self.files[row], self.pixels, dst=self.out[position])


def whole_picture(height: int, width: int, _scale: Any, _ratio: Any) -> tuple[int, int, int, int]:
    """Return the part of a picture that FFCV resizes."""
    return 0, 0, height, width


def shrinking(size: tuple[int, int]) -> Any:
    """Return FFCV's decoder that resizes whole pictures."""
    from ffcv.fields.rgb_image import ResizedCropRGBImageDecoder

    class Shrinking(ResizedCropRGBImageDecoder):
        scale, ratio = None, 1.0
        get_crop_generator = property(lambda _: whole_picture)

    return Shrinking(size)


def ffcv_jpeg(store: ocrstore.Store, path: Path, workers: int, *, quality: int, whole: bool) -> Any:
    """Write FFCV's file, pictures as JPEG, and return its loader."""
    from ffcv.fields import NDArrayField, RGBImageField
    from ffcv.loader import Loader, OrderOption
    from ffcv.writer import DatasetWriter

    # its compiler knows no float16
    dtypes = {name: np.dtype("int16" if "map" in name else "uint8") for name in MAPS}
    shapes = {name: store.columns[name].shape for name in MAPS}
    fields = {TENSOR: RGBImageField(write_mode="jpg", jpeg_quality=quality)}
    fields |= {name: NDArrayField(dtypes[name], shapes[name]) for name in MAPS}
    rows = [
        (
            store[IMAGE if whole else TENSOR][row],
            *(store[name][row].view(dtypes[name]) for name in MAPS),
        )
        for row in range(len(store))
    ]
    DatasetWriter(str(path), fields, page_size=1 << 25, num_workers=1).from_indexed_dataset(rows)
    options = {"batch_size": BATCH, "num_workers": workers, "os_cache": True, "seed": 0}
    if whole:
        from ffcv.transforms import ToTensor

        height, width = store[IMAGE].shapes[0][:2].tolist()
        factor = store.columns[TENSOR].shape[0] / max(height, width)
        size = round(height * factor), round(width * factor)
        options["pipelines"] = {TENSOR: [shrinking(size), ToTensor()]}
    return Loader(str(path), order=OrderOption.RANDOM, **options)


def loss(store: ocrstore.Store, quality: int) -> str:
    """Return how far pixels are from the exact ones after OpenCV's JPEG, which FFCV uses."""
    import cv2

    most, total = 0, 0.0
    for row in range(len(store)):
        exact = cv2.cvtColor(store[TENSOR][row], cv2.COLOR_RGB2BGR)
        data = cv2.imencode(".jpg", exact, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
        difference = cv2.absdiff(cv2.imdecode(data, cv2.IMREAD_COLOR), exact)
        most, total = max(most, int(difference.max())), total + float(difference.mean())
    return f"off by {total / len(store):.2f} on average, {most} at most"


def files(pictures: Path, size: int, workers: int) -> DataLoader:
    """Return a loader that does everything for each sample, as most training code does."""
    import albumentations as A

    source = open_source(pictures / "images", annotations=pictures / "gt")
    letterbox = [
        A.LongestMaxSize(size),
        A.PadIfNeeded(size, size, position="top_left", border_mode=0, fill=0),
    ]
    dataset = Files(list(source), A.Compose(letterbox), by_opencv=True)
    return DataLoader(
        dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("small", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--raw", type=Path, help="the same samples in preset `fast`")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    store, workers = ocrstore.open(options.small), options.workers
    size = store.columns[TENSOR].shape[0]
    contenders: dict[str, Any] = {
        f"small, {consumer}, {number} workers": Stored(options.small, number, consumer)
        for consumer in ("copy_into", "prefetch")
        for number in (0, workers)
    }
    if options.raw is not None:
        contenders["raw, copy_into, 0 workers"] = Stored(options.raw, 0, "copy_into")
    by_files = files(options.pictures, size, workers)
    others = {"files + albumentations": Batches(by_files, len(by_files.dataset))}
    others["libjpeg-turbo, pictures only"] = Batches(JpegOnly(store, workers), len(store))
    with tempfile.TemporaryDirectory() as folder:
        try:
            for quality, whole in ((JPEG_QUALITY, False), (100, False), (JPEG_QUALITY, True)):
                name = f"FFCV, JPEG {quality}" + (", whole" if whole else "")
                path = Path(folder) / f"{name}.beton"
                loader = ffcv_jpeg(store, path, workers, quality=quality, whole=whole)
                others[name] = Batches(loader, len(store))
                pixels = "" if whole else ", pixels " + loss(store, quality)
                print(f"{name}: {path.stat().st_size / 1e6:,.0f} MB{pixels}")
        except ModuleNotFoundError as exc:
            print(f"FFCV is not measured: {exc}")
        compare(contenders, others, options.rounds, workers)


def compare(contenders: dict[str, Any], others: dict[str, Any], rounds: int, threads: int) -> None:
    """Print rates, and the ratio of each way of reading the store to each of the others."""
    rates: dict[str, list[Rate]] = {name: [] for name in (*contenders, *others)}
    for number in range(rounds + 1):
        for name, contender in (contenders | others).items():
            torch.set_num_threads(threads)  # FFCV changes it
            rate = contender.run()
            if number:  # the first turn starts workers and compiles
                rates[name].append(rate)
    for name, found in rates.items():
        print(f"{name:32} {statistics.median(rate.clock for rate in found):7.0f} samples/s")
    print("\nratios by the clock (least and most), by processor time")
    for other in others:
        for name in contenders:
            pairs = list(zip(rates[name], rates[other], strict=True))
            clock = [a.clock / b.clock for a, b in pairs]
            processor = statistics.median(a.processor / b.processor for a, b in pairs)
            span = f"{statistics.median(clock):.1f} ({min(clock):.1f} to {max(clock):.1f})"
            print(f"{name} / {other}: {span}, {processor:.1f}")


if __name__ == "__main__":
    main()
