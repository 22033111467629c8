"""The tables of bench_loader.py for augmented training, against JPEG files, and what the rest is."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from loader_contenders import BATCH, SIZE, touch

import ocrstore
from ocrstore.torch import OCRStoreDataset


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
    """JPEG files through the same transform, maps drawn after it: what training usually does.

    The maps are drawn by ocrstore's own `draw_maps`, which is several times faster than what
    people have; with `plain_maps`, polygon by polygon in numpy, as the published DBNet does it.
    """

    def __init__(self, samples, transform, *, by_opencv: bool, plain_maps: bool = False) -> None:
        import albumentations as A

        keypoints = A.KeypointParams(format="xy", remove_invisible=False)
        self.transform = A.Compose(transform.transforms, keypoint_params=keypoints)
        self.samples, self.by_opencv, self.plain_maps = samples, by_opencv, plain_maps

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        sample = self.samples[row]
        pixels = read_by_opencv(sample.path) if self.by_opencv else read_by_ocrstore(sample.path)
        ends = np.cumsum([len(polygon.points) for polygon in sample.polygons], dtype=np.int64)
        points = np.concatenate(
            [polygon.points for polygon in sample.polygons] or [np.zeros((0, 2))]
        )
        made = self.transform(image=pixels, keypoints=points.astype(np.float32))
        moved = np.asarray(made["keypoints"], np.float32).reshape(-1, 2)
        height, width = made["image"].shape[:2]
        seen = [
            (polygon, given.ignored)
            for polygon, given in zip(np.split(moved, ends[:-1]), sample.polygons)
            if (polygon.max(axis=0) >= 0).all() and (polygon.min(axis=0) <= (width, height)).all()
        ]
        draw = draw_plain_maps if self.plain_maps else draw_own_maps
        maps = draw([polygon for polygon, _ in seen], [skip for _, skip in seen], height, width)
        return {
            "images": torch.from_numpy(made["image"]).permute(2, 0, 1),
            "prob_maps": torch.from_numpy(maps.prob_map).half()[None],
            "thresh_maps": torch.from_numpy(maps.thresh_map).half()[None],
            "prob_masks": torch.from_numpy(maps.prob_mask)[None],
            "thresh_masks": torch.from_numpy(maps.thresh_mask)[None],
        }


def read_by_opencv(path: Path) -> np.ndarray:
    import cv2

    return cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)


def read_by_ocrstore(path: Path) -> np.ndarray:
    from ocrstore.decode import decode

    return decode(path.read_bytes()).pixels


def draw_own_maps(polygons, ignored, height: int, width: int):
    from ocrstore.maps import draw_maps

    return draw_maps(polygons, ignored, height, width)


def draw_plain_maps(polygons, ignored, height: int, width: int):
    from bench_maps import by_cosines, straightforward

    return straightforward(polygons, ignored, height, width, by_cosines)


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
    from ocrstore import shared_slots

    count = len(samples)
    opencv = Files(samples, make_transform(crop_first), by_opencv=True)
    turbo = Files(samples, make_transform(crop_first), by_opencv=False)
    plain = Files(samples, make_transform(crop_first), by_opencv=True, plain_maps=True)
    ours = OCRStoreDataset(path, transform=make_transform(crop_first))
    stepwise = OCRStoreDataset(path, transform=make_transform(crop_first), fuse=False)
    ours.warm()

    def loader(dataset, workers):
        options = {"persistent_workers": True} if workers else {}
        return DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, **options)

    contenders = {
        "JPEG by OpenCV, 2 workers": loader(opencv, 2),
        "JPEG by ocrstore, 2 workers": loader(turbo, 2),
        "JPEG by OpenCV, plain numpy maps": loader(plain, 2),
        "ocrstore, 2 workers": loader(ours, 2),
        "ocrstore, step by step": loader(stepwise, 2),
    }
    for batches in contenders.values():
        run_augmented(batches)
    shared_slots.supported = False
    contenders["the same through torch's sharing"] = loader(ours, 2)
    run_augmented(contenders["the same through torch's sharing"])
    shared_slots.supported = True
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
    print(f"{'':>34} | one sample, milliseconds of processor, in this process, by part")
    for name, dataset in (
        ("JPEG by OpenCV", opencv),
        ("ocrstore, step by step", stepwise),
        ("ocrstore", ours),
    ):
        profile(name, dataset)


PARTS = {
    "decoding": {"read_by_opencv"},
    "warp": {"<warpAffine>", "<remap>", "_coordinates", "widen", "narrow"},
    "flip": {"<flip>"},
    "colour": {"jitter", "ColorJitter.apply"},
    "maps": {"draw_maps"},
    "float16 and copies": {"keep", "keep_half", "<method 'half' of 'torch._C.TensorBase' objects>"},
}
"""Functions that hold most of the time, none of them inside another."""


def profile(name: str, dataset) -> None:
    """Say where the time of one augmented sample goes."""
    import cProfile
    import pstats

    import cv2

    count = min(40, len(dataset))
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    torch.manual_seed(0)
    profiler = cProfile.Profile(time.process_time)
    profiler.enable()
    for row in range(count):
        dataset.__getitems__([row]) if hasattr(dataset, "__getitems__") else dataset[row]
    profiler.disable()
    cv2.setNumThreads(threads)
    stats = pstats.Stats(profiler)
    parts = dict.fromkeys(PARTS, 0.0)
    for (file, _, function), (_, _, _, cumulative, _) in stats.stats.items():
        if function == "apply" and file.endswith("pixel/transforms.py"):
            function = "ColorJitter.apply"
        for part, functions in PARTS.items():
            if function in functions:
                parts[part] += cumulative
    total = stats.total_tt
    parts["the rest"] = total - sum(parts.values())
    shares = ", ".join(f"{part} {1000 * spent / count:.1f}" for part, spent in parts.items())
    print(f"{name:>34} | {1000 * total / count:.1f}: {shares}")
