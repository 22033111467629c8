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

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ocrstore
from ocrstore.torch import OCRStoreDataset

SIZE = 640
BATCH = 16
NAMES = ("images", "prob_maps", "thresh_maps")


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
                "images": torch.from_numpy(store["tensor"][row].copy()).permute(2, 0, 1),
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
            "images": torch.from_numpy(self.arrays["images"][row]).permute(2, 0, 1),
            "prob_maps": torch.from_numpy(self.arrays["prob_maps"][row])[None],
            "thresh_maps": torch.from_numpy(self.arrays["thresh_maps"][row])[None],
        }


def pages(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.permute(0, 2, 3, 1).reshape(-1)
    return flat[:: 4096 // flat.element_size()]


def touch(batch, _buffers) -> None:
    for name in NAMES:
        tensor = batch[name]
        if not tensor.permute(0, 2, 3, 1).is_contiguous():
            tensor = tensor.permute(0, 3, 1, 2)  # collated another way: any order will do
        pages(tensor).view(torch.uint8 if tensor.dtype == torch.uint8 else torch.int16).sum()


def copy(batch, buffers) -> None:
    for name in NAMES:
        tensor = batch[name]
        buffers[name][: len(tensor)].copy_(tensor)


def copy_into(batch, buffers) -> None:
    batch.copy_into(buffers)


def make_buffers() -> dict[str, torch.Tensor]:
    images = torch.zeros(BATCH, SIZE, SIZE, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    halves = {n: torch.zeros(BATCH, 1, SIZE, SIZE, dtype=torch.float16) for n in NAMES[1:]}
    return {"images": images, **halves}


def limits() -> dict[str, float]:
    """Return samples/s of reading resident memory: one element per page, and every byte."""
    buffers = make_buffers()
    resident = [
        {n: b.clone(memory_format=torch.preserve_format) for n, b in buffers.items()}
        for _ in range(6)
    ]
    found = {}
    for name, consume in (("touch", touch), ("copy", copy), ("memmove", memmove)):
        for batch in resident:
            consume(batch, buffers)
        started = time.perf_counter()
        for _ in range(4):
            for batch in resident:
                consume(batch, buffers)
        found[name] = 24 * BATCH / (time.perf_counter() - started)
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
        self.buffers = make_buffers()

    def run(self, consume) -> float:
        count = 0
        started = time.perf_counter()
        for batch in self.loader:
            consume(batch, self.buffers)
            count += len(batch["images"]) if consume is not copy_into else BATCH
        del batch
        seconds = time.perf_counter() - started
        return min(count, len(self.loader.dataset)) / seconds


def median(values) -> float:
    return statistics.median(values)


def stored(path: Path, rounds: int, workers: list[int]) -> None:
    samples = len(ocrstore.open(path))
    ready = Ready(path)
    ours = OCRStoreDataset(path)
    ours.warm()
    results: dict[tuple, list[float]] = {}
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
    print(f"\nstored columns: {samples} samples, batch {BATCH}, samples/s (median of {rounds})")
    print(
        f"{'workers':>7} {'order':>10} {'consumer':>9} | {'ocrstore':>9} {'by hand':>8} {'limit':>9}"
        f" | {'of limit':>8} {'x by hand':>9}"
    )
    for count in workers:
        for order in ("sequential", "shuffled"):
            for name in ("touch", "copy", "copy_into"):
                mine = results["ocrstore", count, order, name]
                base = "copy" if name == "copy_into" else name
                limit = results["limit", count, order, base]
                hand = results["dict cache", count, order, base]
                of_limit = median([m / n for m, n in zip(mine, limit)])
                times = median([m / n for m, n in zip(mine, hand)])
                print(
                    f"{count:>7} {order:>10} {name:>9} | {median(mine):>9.0f} {median(hand):>8.0f}"
                    f" {median(limit):>9.0f} | {of_limit:>8.2f} {times:>8.1f}x"
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

    def __init__(self, samples, transform) -> None:
        from ocrstore.torch.augment import Augmentation

        self.samples, self.augment = samples, Augmentation(transform)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        from ocrstore.decode import decode
        from ocrstore.halves import to_float16
        from ocrstore.maps import draw_maps
        from ocrstore.torch.view import Annotation

        sample = self.samples[row]
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


def make_transform():
    import albumentations

    return albumentations.Compose(
        [
            albumentations.HorizontalFlip(p=0.5),
            albumentations.Affine(rotate=(-10, 10), p=1),
            albumentations.RandomCrop(SIZE, SIZE, pad_if_needed=True),
            albumentations.ColorJitter(p=0.5),
        ]
    )


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


def augmented(folder: Path, rounds: int, count: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from ocrstore.sources import open_source
    from ocrstore.torch import exchange
    from ocrstore.torch.collate import stack_computed

    pictures = make_pictures(folder, count)
    source = open_source(pictures / "images", annotations=pictures / "gt")
    samples = [sample for sample, _ in zip(source, range(count))]
    path = folder / "training.ocrs"
    make_training_store(path, samples)
    files = Files(samples, make_transform())
    ours = OCRStoreDataset(path, transform=make_transform())
    ours.warm()

    def loader(dataset, workers):
        options = {"persistent_workers": True} if workers else {}
        return DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, **options)

    def run(batches) -> float:
        seen = 0
        started = time.perf_counter()
        for batch in batches:
            seen += len(batch["images"])
            touch(batch, None)
        return seen / (time.perf_counter() - started)

    def in_threads():
        datasets = [OCRStoreDataset(path, transform=make_transform()) for _ in range(2)]
        rows = torch.randperm(count).tolist()
        parts = [rows[start : start + BATCH] for start in range(0, count, BATCH)]

        def make(number):
            return stack_computed(datasets[number % 2].__getitems__(parts[number]))

        with ThreadPoolExecutor(1) as even, ThreadPoolExecutor(1) as odd:
            futures = [(even, odd)[n % 2].submit(make, n) for n in range(len(parts))]
            for future in futures:
                yield future.result()

    contenders = {"JPEG files, 2 workers": loader(files, 2), "ocrstore, 2 workers": loader(ours, 2)}
    for batches in contenders.values():
        run(batches)
    exchange.supported = False
    contenders["ocrstore, 2 workers, torch's sharing"] = loader(ours, 2)
    run(contenders["ocrstore, 2 workers, torch's sharing"])
    exchange.supported = True
    contenders["ocrstore, no workers"] = loader(ours, 0)
    contenders["JPEG files, no workers"] = loader(files, 0)
    results: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, batches in contenders.items():
            results.setdefault(name, []).append(run(batches))
        results.setdefault("ocrstore, 2 threads", []).append(run(in_threads()))
    base = results["JPEG files, 2 workers"]
    print(f"\naugmented training: {count} pictures, flip, rotate, crop, colour, maps redrawn")
    for name, values in results.items():
        ratio = median([mine / theirs for mine, theirs in zip(values, base)])
        print(f"{name:>38} | {median(values):>7.1f} samples/s | {ratio:>5.2f} of JPEG files")
    profile(ours, files)


def profile(ours, files) -> None:
    """Say where the time of one augmented sample goes."""
    import cProfile
    import pstats

    for name, dataset in (("ocrstore", ours), ("JPEG files", files)):
        profiler = cProfile.Profile()
        profiler.enable()
        for row in range(min(40, len(dataset))):
            dataset[row]
        profiler.disable()
        stats = pstats.Stats(profiler)
        parts = {"decode": 0.0, "transform": 0.0, "draw_maps": 0.0, "to_float16": 0.0}
        for (file, _, function), (_, _, _, cumulative, _) in stats.stats.items():
            if function == "decode" and "decode" in file:
                parts["decode"] = max(parts["decode"], cumulative)
            elif function == "__call__" and file.endswith("composition.py"):
                parts["transform"] = max(parts["transform"], cumulative)
            elif function in ("draw_maps", "to_float16"):
                parts[function] = max(parts[function], cumulative)
        total = stats.total_tt
        shares = ", ".join(f"{part} {100 * spent / total:.0f} %" for part, spent in parts.items())
        print(f"{name:>38} | {1000 * total / min(40, len(dataset)):.1f} ms per sample: {shares}")


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
