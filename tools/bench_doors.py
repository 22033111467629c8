"""Builds from a tar and exports: their own memory on 10 GB, and their speed against the ideal.

    python tools/bench_doors.py memory --folder /big    needs three times --gb of free disk
    OCRSTORE_PICTURES=... python tools/bench_doors.py speed
    OCRSTORE_PICTURES=... python tools/bench_doors.py stream --folder /big    needs 5 times --gb

*memory* runs the commands a user runs on pictures of noise, half of them PNG files, which leave as
they are, and half BMP files, which leave as PNG. It reads every 50 ms what all processes of a command have
of their own (PSS of anonymous and shared memory; the page cache is not counted).

*speed* alternates, in one process, between each way through ocrstore and the least work that it could be:
writing the same bytes once, encoding the same PNG files in as many threads, decoding and drawing alone.
All writing ends with an fsync. The table has the median of the rounds' ratios.

*stream* is about many bytes: builds from a tar with view, maps and masks, with pictures of three sizes,
an export of everything in such a store, and an export of stored files. Each takes turns with what the
disk gives, the same bytes written from memory as one file; builds as well with what the decoder gives,
decoding and drawing alone in a process for each core, and with both at once, which share the cores.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench.accounting import descendants, memory

import ocrstore
from ocrstore.machine import usable_cpus

ROOT = Path(__file__).resolve().parents[1]
MB = 1e6


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


# --- memory


def make_tar(path: Path, nbytes: int, megapixels: float) -> None:
    """Write pictures of noise with a box each."""
    height = round((megapixels * 1e6 * 3 / 4) ** 0.5)
    width = height * 4 // 3
    rng = np.random.default_rng(0)
    count = 0
    with tarfile.open(path, "w") as tar:
        while tar.offset < nbytes:
            pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
            suffix = (".png", ".bmp")[count % 2]
            options = [cv2.IMWRITE_PNG_COMPRESSION, 0] if suffix == ".png" else []
            data = cv2.imencode(suffix, pixels, options)[1].tobytes()
            add(tar, f"{count:06d}{suffix}", data)
            add(tar, f"{count:06d}.txt", b"10,10,900,10,900,200,10,200,text\n")
            count += 1
    print(f"{path.name}: {count} pictures of {width}x{height}, {tar.offset / 1e9:.1f} GB")


def watch(*arguments: object) -> None:
    """Run a command of ocrstore; print its time and the most memory of its processes."""
    command = [sys.executable, "-m", "ocrstore", *map(str, arguments)]
    began = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory(descendants(process.pid)).own)
        time.sleep(0.05)
    seconds = time.perf_counter() - began
    what = " ".join(str(a) for a in arguments if a in ("build", "export") or a in FORMATS)
    print(f"| {what} | {peak / MB:.0f} MB | {seconds:.0f} s | {process.returncode} |", flush=True)


FORMATS = ("webdataset", "hf", "coco")


def measure_memory(folder: Path, options: argparse.Namespace) -> None:
    make_tar(folder / "all.tar", int(options.gb * 1e9), options.megapixels)
    store = folder / "all.ocrs"
    print("| command | most own memory | time | exit code |\n|---|---|---|---|")
    watch("build", folder / "all.tar", "--out", store)
    (folder / "all.tar").unlink()
    for to in FORMATS:
        watch("export", store, "--to", to, "--out", folder / to)
        shutil.rmtree(folder / to)


# --- speed


def make_pictures(folder: Path, copies: int) -> None:
    """Lay out the real pictures with their annotations several times, as a folder and as a tar."""
    real = Path(os.environ["OCRSTORE_PICTURES"], "icdar2015")
    (folder / "images").mkdir()
    with tarfile.open(folder / "images.tar", "w") as tar:
        for number in range(copies):
            for path in sorted((real / "images").iterdir()):
                name = f"{number}_{path.name}"
                lines = (real / "gt" / f"gt_{path.stem}.txt").read_bytes()
                for place, data in (
                    (name, path.read_bytes()),
                    (str(Path(name).with_suffix(".txt")), lines),
                ):
                    (folder / "images" / place).write_bytes(data)
                    add(tar, place, data)


def timed(function: Callable[[], object], out: Path) -> float:
    """Return the seconds of a call, and of bringing the files that it left to the disk."""
    began = time.perf_counter()
    function()
    for path in out.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    return time.perf_counter() - began


def measure_speed(folder: Path, options: argparse.Namespace) -> None:
    from bench_build import derive_single

    from ocrstore.sources import open_source

    make_pictures(folder, options.copies)
    files, pixels, out = folder / "files.ocrs", folder / "pixels.ocrs", folder / "out"
    ocrstore.build(folder / "images.tar", files, columns=["image"], codecs={"image": "file"})
    ocrstore.build(folder / "images.tar", pixels, columns=["image"], codecs={"image": "raw"})
    source = open_source(folder / "images")

    def export(store: Path) -> None:
        ocrstore.export(store, to="webdataset", out=out)

    def build(images: Path) -> None:
        ocrstore.build(images, out / "a.ocrs")

    def copy() -> None:
        with ocrstore.open(files) as store:
            column = store["image"]
            with (out / "plain").open("wb") as file:
                for row in range(len(store)):
                    file.write(column.stored(row))

    def encode() -> None:
        with ocrstore.open(pixels) as store, ThreadPoolExecutor(usable_cpus()) as pool:
            column = store["image"]
            level = [cv2.IMWRITE_PNG_COMPRESSION, 1]
            list(pool.map(lambda r: len(cv2.imencode(".png", column[r], level)[1]), range(len(store))))  # fmt: skip

    ways: dict[str, Callable[[], object]] = {
        "export": lambda: export(files),
        "copy": copy,
        "export png": lambda: export(pixels),
        "encode": encode,
        "build tar": lambda: build(folder / "images.tar"),
        "build folder": lambda: build(folder / "images"),
        "derive": lambda: derive_single(source),
    }
    pairs = {
        "export of stored files / writing their bytes": ("export", "copy"),
        "export of pixels as PNG / encoding them": ("export png", "encode"),
        "build from a tar / from a folder": ("build tar", "build folder"),
        f"build from a tar / decoding and drawing in {usable_cpus()} threads": (
            "build tar",
            "derive",
        ),
    }
    rounds = []
    for _ in range(options.rounds):
        seconds = {}
        for name, function in ways.items():
            out.mkdir()
            seconds[name] = timed(function, out)
            shutil.rmtree(out)
        seconds["derive"] /= usable_cpus()
        rounds.append(seconds)
        print({name: round(value, 2) for name, value in seconds.items()}, file=sys.stderr)
    print(f"{len(source)} pictures, median of {options.rounds} rounds\n")
    print("| what | seconds | of the ideal |\n|---|---|---|")
    for title, (ours, ideal) in pairs.items():
        middle = statistics.median(r[ours] for r in rounds)
        share = statistics.median(r[ideal] / r[ours] for r in rounds)
        print(f"| {title} | {middle:.2f} | {share:.2f} |")


# --- stream


def enlarged(image: Path, lines: bytes, size: tuple[int, int]) -> tuple[bytes, bytes]:
    """Return a JPEG file of another size with the grain of a camera, and its annotation."""
    rng = np.random.default_rng(0)
    width, height = size
    old = cv2.imread(str(image))
    pixels = cv2.resize(old, size, interpolation=cv2.INTER_CUBIC).astype(np.int16)
    coarse = rng.integers(-8, 9, (height // 4, width // 4), np.int16)
    grain = np.kron(coarse, np.ones((4, 4), np.int16)) + rng.integers(-2, 3, (height, width))
    pixels = np.clip(pixels + grain[..., None], 0, 255).astype(np.uint8)
    data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()
    moved = []
    for line in lines.decode("utf-8-sig").splitlines():
        *numbers, text = line.split(",", 8)
        scales = (width / old.shape[1], height / old.shape[0])
        places = [round(float(n) * scales[i % 2]) for i, n in enumerate(numbers)]
        moved.append(",".join([*map(str, places), text]))
    return data, "\n".join(moved).encode()


def make_real_tar(
    path: Path, *, count: int = 0, nbytes: int = 0, size: tuple[int, int] | None = None
) -> int:
    """Write real pictures with annotations again and again; return how many."""
    real = Path(os.environ["OCRSTORE_PICTURES"], "icdar2015")
    images = sorted((real / "images").iterdir())
    known: list[tuple[str, bytes, bytes]] = []
    number = 0
    with tarfile.open(path, "w") as tar:
        while number < count or tar.offset < nbytes:
            copy, row = divmod(number, len(images) if size is None else 100)
            if row == len(known):
                image = images[row]
                parts = image.read_bytes(), (real / "gt" / f"gt_{image.stem}.txt").read_bytes()
                known.append(
                    (image.stem, *(parts if size is None else enlarged(image, parts[1], size)))
                )
            stem, data, lines = known[row]
            add(tar, f"{copy}_{stem}.jpg", data)
            add(tar, f"{copy}_{stem}.txt", lines)
            number += 1
    return number


def write_plain(nbytes: int, path: Path) -> None:
    """Write bytes from memory."""
    block = np.random.default_rng(0).bytes(1 << 20)
    with path.open("wb") as file:
        for _ in range(nbytes >> 20):
            file.write(block)


def size_of(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files)


class Deriving:
    """Processes, one for each core, that decode and draw the pictures of a source."""

    def __init__(self, source: Path) -> None:
        code = (
            "import sys; sys.path[:0] = sys.argv[1:3]; from bench_build import derive_single;"
            "from ocrstore.sources import open_source; first, step = map(int, sys.argv[4:]);"
            "own = list(open_source(sys.argv[3]))[first::step];"
            "derive_single(own[:8]); print(flush=True); input(); derive_single(own)"
        )
        paths = str(ROOT), str(ROOT / "tools"), str(source)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, *paths, str(number), str(usable_cpus())], **pipes
            )
            for number in range(usable_cpus())
        ]
        for process in self.processes:
            process.stdout.readline()  # it has imported everything

    def seconds(self, meanwhile: Callable[[], object] = lambda: None) -> float:
        """Let them work, and return when they and this function are done."""
        began = time.perf_counter()
        for process in self.processes:
            process.stdin.write(b"\n")
            process.stdin.close()
        meanwhile()
        for process in self.processes:
            process.wait()
        return time.perf_counter() - began


def against(
    name: str, function: Callable[[Path], object], work: Path, source: Path | None = None
) -> None:
    """Print how fast a way is, against the decoder, the disk, and both at once."""

    def write(nbytes: int) -> float:
        work.mkdir()
        seconds = timed(lambda: write_plain(nbytes, work / "plain"), work)
        shutil.rmtree(work)
        return seconds

    rows = []
    for _ in range(3):
        work.mkdir()
        ours = timed(lambda: function(work), work)
        written = size_of(work)
        shutil.rmtree(work)
        disk = both = write(written)
        decoder = 0.0
        if source is not None:
            decoder = Deriving(source).seconds()
            both = Deriving(source).seconds(lambda nbytes=written: write(nbytes))
        shares = max(decoder, disk) / ours, both / ours
        rows.append((written / 1e9, ours, decoder, disk, both, *shares))
    # a virtual disk takes several times as long for blocks that were never written
    columns = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
    print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in columns) + " |", flush=True)


def measure_stream(folder: Path, options: argparse.Namespace) -> None:
    work = folder / "work"
    nbytes = int(options.gb * 1e9)
    tar, store = folder / "pictures.tar", folder / "pictures.ocrs"
    print(
        "| what | GB written | seconds | decoder | disk | both at once | of the slower | of both |"
    )
    print("|---|---|---|---|---|---|---|---|")
    # pictures of 90 kB become 1.3 MB each
    for size, share in (((4032, 3024), 1), ((2048, 1536), 1), (None, 10)):
        count = make_real_tar(tar, nbytes=nbytes // share, size=size)
        name = f"build from a tar of {nbytes / share / 1e9:.1f} GB, {count} pictures"
        name += "" if size is None else " of {}x{}".format(*size)
        against(name, lambda out: ocrstore.build(tar, out / "a.ocrs"), work, tar)
    tar.unlink()
    for name, count, columns in (
        ("export of pictures, tensors, maps and masks", nbytes // 3_780_000, None),
        ("export of stored files", nbytes // 90_000, ["image"]),
    ):
        make_real_tar(tar, count=count)
        ocrstore.build(tar, store, columns=columns)
        tar.unlink()
        against(name, lambda out: ocrstore.export(store, to="webdataset", out=out / "out"), work)
        store.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["memory", "speed", "stream"])
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary one")
    parser.add_argument("--gb", type=float, default=10)
    parser.add_argument("--megapixels", type=float, default=3, help="of a picture [3]")
    parser.add_argument("--copies", type=int, default=4, help="of the real pictures [4]")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        ways = {"memory": measure_memory, "speed": measure_speed, "stream": measure_stream}
        ways[options.what](Path(name), options)


if __name__ == "__main__":
    main()
