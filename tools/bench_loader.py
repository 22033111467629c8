"""What a DataLoader delivers from a store, against the limit and against what people do by hand.

    python tools/bench_loader.py                   all tables
    python tools/bench_loader.py --only stored     only stored columns (also: augmented, startup)

Everything is measured in turns inside one run, and what counts are the ratios: a machine that is
busy is busy for all. Two consumers: *touch* reads one element of each page, *copy* copies every
byte into a reused buffer, as staging for a GPU does. The limit is the faster of memmove and
Tensor.copy_ from resident memory.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ocrstore
from ocrstore.torch import OCRStoreDataset
from tools.bench.consumers import NAMES, copy, touch

SIZE = 640
BATCH = 16


def make_store(path: Path, samples: int) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (SIZE + samples, SIZE, 3), np.uint8)
    halves = rng.random((SIZE + samples, SIZE)).astype(np.float16)
    columns = {
        "tensor": ocrstore.Column("uint8", (SIZE, SIZE, 3)),
        "prob_map": ocrstore.Column("float16", (SIZE, SIZE)),
        "thresh_map": ocrstore.Column("float16", (SIZE, SIZE)),
    }
    with ocrstore.create(path, columns=columns, overwrite=True) as writer:
        for row in range(samples):
            part = slice(row, row + SIZE)
            arrays = {"tensor": noise[part], "prob_map": halves[part], "thresh_map": halves[part]}
            writer.append(f"{row:05d}.jpg", arrays)


class Ready(Dataset):
    """A dict cache of ready tensors, filled before the workers start: the best that is done by
    hand.
    """

    def __init__(self, path: Path) -> None:
        store = ocrstore.open(path)
        self.cache = {}
        for row in range(len(store)):
            self.cache[row] = {
                "images": torch.from_numpy(store["tensor"][row].copy())
                .permute(2, 0, 1)
                .contiguous(),
                "prob_maps": torch.from_numpy(store["prob_map"][row].copy())[None],
                "thresh_maps": torch.from_numpy(store["thresh_map"][row].copy())[None],
            }

    def __len__(self) -> int:
        return len(self.cache)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return self.cache[row]


class Mapped(Dataset):
    """numpy.memmap of three plain files, the usual way."""

    def __init__(self, folder: Path, samples: int) -> None:
        self.folder, self.samples = folder, samples
        self.arrays = None

    def __len__(self) -> int:
        return self.samples

    def _open(self):
        shapes = {"images": ("u1", (SIZE, SIZE, 3)), "prob_maps": ("f2", (SIZE, SIZE))}
        shapes["thresh_maps"] = shapes["prob_maps"]
        return {
            name: np.memmap(self.folder / f"{name}.bin", dtype, "c", shape=(self.samples, *shape))
            for name, (dtype, shape) in shapes.items()
        }

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        if self.arrays is None:
            self.arrays = self._open()
        return {
            "images": torch.from_numpy(self.arrays["images"][row]),
            "prob_maps": torch.from_numpy(self.arrays["prob_maps"][row])[None],
            "thresh_maps": torch.from_numpy(self.arrays["thresh_maps"][row])[None],
        }


def copy_into(batch, buffers) -> None:
    batch.copy_into(buffers)


def make_buffers(*, planar: bool = False) -> dict[str, torch.Tensor]:
    images = torch.zeros(BATCH, SIZE, SIZE, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    if planar:
        images = images.contiguous()  # as default collation leaves them, so that all only memcpy
    halves = {n: torch.zeros(BATCH, 1, SIZE, SIZE, dtype=torch.float16) for n in NAMES[1:]}
    return {"images": images, **halves}


class Rate(NamedTuple):
    """Samples for each second of the clock, and of this process's processor time."""

    clock: float
    processor: float


class Watch:
    """Measures both times at once: on a busy machine the processor's is the truer one."""

    def __init__(self) -> None:
        self.started = time.perf_counter(), time.process_time()

    def rate(self, count: int) -> Rate:
        clock, processor = self.started
        return Rate(
            count / (time.perf_counter() - clock), count / (time.process_time() - processor)
        )


def limits() -> dict[str, Rate]:
    """Return the rate of reading resident memory: one element per page, and every byte."""
    buffers = make_buffers()
    resident = [
        {n: b.clone(memory_format=torch.preserve_format) for n, b in buffers.items()}
        for _ in range(6)
    ]
    found = {}
    for name, consume in (("touch", touch), ("copy", copy), ("memmove", memmove)):
        for batch in resident:
            consume(batch, buffers)
        watch = Watch()
        for _ in range(4):
            for batch in resident:
                consume(batch, buffers)
        found[name] = watch.rate(24 * BATCH)
    found["copy"] = max(found["copy"], found.pop("memmove"))
    return found


def memmove(batch, buffers) -> None:
    for name in NAMES:
        source = batch[name]
        ctypes.memmove(buffers[name].data_ptr(), source.data_ptr(), source.nbytes)


class Contender:
    """A DataLoader that stays open between rounds."""

    def __init__(self, dataset, workers: int, shuffle: bool) -> None:
        options = {"persistent_workers": True} if workers else {}
        self.loader = DataLoader(
            dataset, batch_size=BATCH, num_workers=workers, shuffle=shuffle, **options
        )
        self.buffers = make_buffers(planar=isinstance(dataset, Ready))

    def run(self, consume) -> Rate:
        watch = Watch()
        for batch in self.loader:
            consume(batch, self.buffers)
        del batch
        return watch.rate(len(self.loader.dataset))


def median(values) -> float:
    return statistics.median(values)


def stored(path: Path, rounds: int, workers: list[int]) -> None:
    samples = len(ocrstore.open(path))
    ready = Ready(path)
    ours = OCRStoreDataset(path)
    ours.warm()
    results: dict[tuple, list[Rate]] = {}
    for count in workers:
        for shuffle in (False, True):
            a, b = Contender(ours, count, shuffle), Contender(ready, count, shuffle)
            order = "shuffled" if shuffle else "sequential"
            kinds = [("touch", touch), ("copy", copy)]
            for _, consume in kinds:
                a.run(consume)
            b.run(touch)
            for _ in range(rounds):
                for name, value in limits().items():
                    results.setdefault(("limit", count, order, name), []).append(value)
                for name, consume in kinds:
                    results.setdefault(("ocrstore", count, order, name), []).append(a.run(consume))
                    results.setdefault(("dict cache", count, order, name), []).append(
                        b.run(consume)
                    )
                results.setdefault(("ocrstore", count, order, "copy_into"), []).append(
                    a.run(copy_into)
                )
            del a, b
    print(
        f"\nstored columns: {samples} samples, batch {BATCH}, median of {rounds}; samples/s by the"
        " clock, of the limit by clock and by this process's processor time, times by hand"
    )
    print("workers      order  consumer | ocrstore  by hand    limit | of limit (cpu) | x by hand")
    for count in workers:
        for order in ("sequential", "shuffled"):
            for name in ("touch", "copy", "copy_into"):
                mine = results["ocrstore", count, order, name]
                base = "copy" if name == "copy_into" else name
                limit = results["limit", count, order, base]
                hand = results["dict cache", count, order, base]
                by_clock = median([m.clock / n.clock for m, n in zip(mine, limit)])
                by_cpu = median([m.processor / n.processor for m, n in zip(mine, limit)])
                times = median([m.clock / n.clock for m, n in zip(mine, hand)])
                rates = [median([rate.clock for rate in r]) for r in (mine, hand, limit)]
                print(
                    f"{count:>7} {order:>10} {name:>9} | {rates[0]:>8.0f} {rates[1]:>8.0f}"
                    f" {rates[2]:>8.0f} | {by_clock:>7.2f} ({by_cpu:.2f}) | {times:>8.1f}x"
                )


def make_pictures(folder: Path, count: int) -> Path:
    """Return a folder of JPEG files: real ones where OCRSTORE_PICTURES names them, else drawn."""
    import cv2

    real = os.environ.get("OCRSTORE_PICTURES")
    if real and (Path(real) / "icdar2015" / "images").is_dir():
        return Path(real) / "icdar2015"
    images = folder / "pictures" / "images"
    images.mkdir(parents=True, exist_ok=True)
    (folder / "pictures" / "gt").mkdir(exist_ok=True)
    rng = np.random.default_rng(1)
    for number in range(count):
        noise = rng.integers(0, 255, (90, 160, 3), np.uint8)
        picture = cv2.resize(noise, (1280, 720), interpolation=cv2.INTER_CUBIC)
        lines = []
        for _ in range(10):
            x, y = int(rng.integers(10, 1000)), int(rng.integers(10, 640))
            cv2.putText(picture, "total", (x, y + 40), 0, 1.6, (20, 20, 20), 4)
            lines.append(f"{x},{y},{x + 160},{y},{x + 160},{y + 50},{x},{y + 50},total")
        cv2.imwrite(str(images / f"img_{number}.jpg"), picture, [cv2.IMWRITE_JPEG_QUALITY, 92])
        (folder / "pictures" / "gt" / f"gt_img_{number}.txt").write_text("\n".join(lines))
    return folder / "pictures"


class Files(Dataset):
    """JPEG files through the same transform, maps drawn after it: what training usually does."""

    def __init__(self, samples, transform, *, by_opencv: bool) -> None:
        from ocrstore.torch.augment import Augmentation

        self.samples, self.augment = samples, Augmentation(transform)
        self.by_opencv = by_opencv

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        import cv2

        from ocrstore.decode import decode
        from ocrstore.halves import to_float16
        from ocrstore.maps import draw_maps
        from ocrstore.torch.view import Annotation

        sample = self.samples[row]
        if self.by_opencv:
            pixels = cv2.cvtColor(cv2.imread(str(sample.path)), cv2.COLOR_BGR2RGB)
        else:
            pixels = decode(sample.path.read_bytes()).pixels
        ignored = [polygon.ignored for polygon in sample.polygons]
        texts = [polygon.text for polygon in sample.polygons]
        given = Annotation([polygon.points for polygon in sample.polygons], ignored, texts)
        made = self.augment(pixels, given, row=row)
        height, width = made.image.shape[:2]
        maps = draw_maps(made.annotation.polygons, made.annotation.ignored, height, width)
        return {
            "images": torch.from_numpy(made.image).permute(2, 0, 1),
            "prob_maps": torch.from_numpy(to_float16(maps.prob_map))[None],
            "thresh_maps": torch.from_numpy(to_float16(maps.thresh_map))[None],
            "prob_masks": torch.from_numpy(maps.prob_mask)[None],
            "thresh_masks": torch.from_numpy(maps.thresh_mask)[None],
        }


def make_transform(crop_first: bool):
    import albumentations as A

    flip, rotate = A.HorizontalFlip(p=0.5), A.Affine(rotate=(-10, 10), p=1)
    crop, colour = A.RandomCrop(SIZE, SIZE, pad_if_needed=True), A.ColorJitter(p=0.5)
    steps = [crop, flip, rotate, colour] if crop_first else [flip, rotate, crop, colour]
    return A.Compose(steps)


def make_training_store(path: Path, samples) -> None:
    from ocrstore.decode import decode

    columns = {"image": ocrstore.Column("uint8", (None, None, 3))}
    with ocrstore.create(path, columns=columns, overwrite=True) as writer:
        for sample in samples:
            attributes = {
                "polygons": [polygon.points.reshape(-1) for polygon in sample.polygons],
                "ignored": [polygon.ignored for polygon in sample.polygons],
                "texts": [polygon.text for polygon in sample.polygons],
            }
            pixels = decode(sample.path.read_bytes()).pixels
            writer.append(sample.key, {"image": pixels}, attributes=attributes)


def cpu_seconds(loader) -> float:
    """Return the processor time of this process and a loader's workers: true also on a busy machine."""
    times = os.times()
    total = times.user + times.system
    for worker in getattr(getattr(loader, "_iterator", None), "_workers", ()):
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def run_augmented(batches) -> tuple[float, float]:
    """Return samples/s and milliseconds of processor time for each sample."""
    iterator = iter(batches)
    seen, spent, started = 0, cpu_seconds(batches), time.perf_counter()
    for batch in iterator:
        seen += len(batch["images"])
        touch(batch, None)
    seconds = time.perf_counter() - started
    return seen / seconds, 1000 * (cpu_seconds(batches) - spent) / seen


class InThreads:
    """Two threads of this process instead of two workers."""

    def __init__(self, path: Path, crop_first: bool, count: int) -> None:
        self.count = count
        self.datasets = [
            OCRStoreDataset(path, transform=make_transform(crop_first)) for _ in range(2)
        ]

    def __iter__(self):
        from concurrent.futures import ThreadPoolExecutor

        from ocrstore.torch.collate import stack_computed

        rows = torch.randperm(self.count).tolist()
        parts = [rows[start : start + BATCH] for start in range(0, self.count, BATCH)]

        def make(number):
            return stack_computed(self.datasets[number % 2].__getitems__(parts[number]))

        with ThreadPoolExecutor(1) as even, ThreadPoolExecutor(1) as odd:
            futures = [(even, odd)[n % 2].submit(make, n) for n in range(len(parts))]
            while futures:
                yield futures.pop(0).result()


def augmented(folder: Path, rounds: int, count: int) -> None:
    from ocrstore.sources import open_source

    pictures = make_pictures(folder, count)
    source = open_source(pictures / "images", annotations=pictures / "gt")
    samples = [sample for sample, _ in zip(source, range(count))]
    path = folder / "training.ocrs"
    make_training_store(path, samples)
    for crop_first in (False, True):
        augmented_once(path, samples, rounds, crop_first)


def augmented_once(path: Path, samples, rounds: int, crop_first: bool) -> None:
    from ocrstore.torch import exchange

    count = len(samples)
    opencv = Files(samples, make_transform(crop_first), by_opencv=True)
    turbo = Files(samples, make_transform(crop_first), by_opencv=False)
    ours = OCRStoreDataset(path, transform=make_transform(crop_first))
    ours.warm()

    def loader(dataset, workers):
        options = {"persistent_workers": True} if workers else {}
        return DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, **options)

    contenders = {
        "JPEG by OpenCV, 2 workers": loader(opencv, 2),
        "JPEG by ocrstore, 2 workers": loader(turbo, 2),
        "ocrstore, 2 workers": loader(ours, 2),
    }
    for batches in contenders.values():
        run_augmented(batches)
    exchange.supported = False
    contenders["the same through torch's sharing"] = loader(ours, 2)
    run_augmented(contenders["the same through torch's sharing"])
    exchange.supported = True
    contenders["ocrstore, 2 threads"] = InThreads(path, crop_first, count)
    contenders["ocrstore, no workers"] = loader(ours, 0)
    results: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for name, batches in contenders.items():
            results.setdefault(name, []).append(run_augmented(batches))
    base = results["JPEG by OpenCV, 2 workers"]
    order = "crop, flip, rotate, colour" if crop_first else "flip, rotate, crop, colour"
    print(f"\naugmented training: {count} pictures; {order}; maps redrawn")
    for name, values in results.items():
        ratio = median([mine[0] / theirs[0] for mine, theirs in zip(values, base)])
        spent = median([cpu for _, cpu in values])
        less = median([theirs[1] for theirs in base]) / spent
        print(
            f"{name:>34} | {median([rate for rate, _ in values]):>6.1f} samples/s {ratio:>5.2f}x"
            f" | {spent:>5.1f} ms of processor {less:>5.2f}x"
        )
    for name, dataset in (("ocrstore", ours), ("JPEG by OpenCV", opencv)):
        profile(name, dataset)


def profile(name: str, dataset) -> None:
    """Say where the time of one augmented sample goes."""
    import cProfile
    import pstats

    count = min(40, len(dataset))
    profiler = cProfile.Profile(time.process_time)
    profiler.enable()
    for row in range(count):
        dataset[row]
    profiler.disable()
    stats = pstats.Stats(profiler)
    parts = {"decoding": 0.0, "transform": 0.0, "maps": 0.0, "float16": 0.0}
    for (file, _, function), (_, _, _, cumulative, _) in stats.stats.items():
        if "imread" in function or "cvtColor" in function:
            parts["decoding"] += cumulative
        elif function == "__call__" and file.endswith("composition.py"):
            parts["transform"] = max(parts["transform"], cumulative)
        elif function in ("draw_maps", "to_float16"):
            parts["maps" if function == "draw_maps" else "float16"] += cumulative
    total = stats.total_tt
    parts["the rest"] = total - sum(parts.values())
    shares = ", ".join(f"{part} {1000 * spent / count:.1f}" for part, spent in parts.items())
    print(f"{name:>34} | one sample: {1000 * total / count:.1f} ms of processor: {shares}")


FIRST_BATCH = """
import sys, time
started = time.perf_counter()
import torch
from torch.utils.data import DataLoader
imported = time.perf_counter()
sys.path[:0] = {paths!r}
if {ours}:
    from ocrstore.torch import OCRStoreDataset
    dataset = OCRStoreDataset({path!r})
else:
    import numpy
    from pathlib import Path
    from bench_loader_mapped import Mapped
    dataset = Mapped(Path({folder!r}), {samples})
batch = next(iter(DataLoader(dataset, 16, num_workers={workers}, shuffle=True)))
for name in ("images", "prob_maps", "thresh_maps"):
    batch[name].sum(dtype=torch.float32)
print(time.perf_counter() - imported, imported - started)
"""


def startup(path: Path, folder: Path, rounds: int) -> None:
    import inspect

    store = ocrstore.open(path)
    for name, column in (
        ("images", "tensor"),
        ("prob_maps", "prob_map"),
        ("thresh_maps", "thresh_map"),
    ):
        target = folder / f"{name}.bin"
        if not target.exists():
            with target.open("wb") as file:
                for row in range(len(store)):
                    file.write(store[column][row].tobytes())
    module = "import numpy as np\nimport torch\nfrom pathlib import Path\n"
    module += "from torch.utils.data import Dataset\n" + f"SIZE = {SIZE}\n"
    (folder / "bench_loader_mapped.py").write_text(module + inspect.getsource(Mapped))
    print("\nfresh process, after `import torch`, to the first batch of 16 (shuffled), seconds")
    for workers in (0, 2):
        results: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(rounds):
            for ours in (True, False):
                code = FIRST_BATCH.format(
                    paths=[str(Path(__file__).resolve().parents[1]), str(folder)],
                    ours=ours,
                    path=str(path),
                    folder=str(folder),
                    samples=len(store),
                    workers=workers,
                )
                done = subprocess.run(
                    [sys.executable, "-c", code], capture_output=True, text=True, check=True
                )
                results[ours].append(float(done.stdout.split()[0]))
        mine, theirs = median(results[True]), median(results[False])
        print(
            f"{workers} workers | ocrstore {mine:.3f} | numpy.memmap {theirs:.3f} | {mine / theirs:.2f}"
        )


def main() -> None:
    torch.set_num_threads(1)  # the limit is one core's memcpy; the workers need the others
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=404)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2, 4])
    parser.add_argument("--only", choices=["stored", "augmented", "startup"])
    parser.add_argument("--folder", type=Path, help="where to put the files (a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        path = folder / "bench.ocrs"
        if not path.exists():
            make_store(path, options.samples)
        if options.only in (None, "stored"):
            stored(path, options.rounds, options.workers)
        if options.only in (None, "augmented"):
            augmented(folder, options.rounds, min(options.samples, 160))
        if options.only in (None, "startup"):
            startup(path, folder, options.rounds)


if __name__ == "__main__":
    main()
