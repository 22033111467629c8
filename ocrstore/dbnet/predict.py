"""Find text in pictures with a trained network, and write and draw what was found."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from ocrstore.annotation import ReadableFile
from ocrstore.dbnet.checkpoint import Provenance, read_checkpoint
from ocrstore.dbnet.network import DBNet
from ocrstore.decode import decode
from ocrstore.errors import (
    CheckpointError,
    DecodeError,
    SchemaError,
    StoreExistsError,
    WriteError,
)
from ocrstore.evaluation.postprocess import Detections, PostParams, detect
from ocrstore.pipeline import permit_modules
from ocrstore.sources import open_source
from ocrstore.sources.pictures import is_picture_name
from ocrstore.torch.batch import ASYNCHRONOUS
from ocrstore.torch.prefetch import Prefetcher
from ocrstore.whole_file import write_whole

_log = logging.getLogger(__name__)

Pixels = npt.NDArray[np.uint8]

FOUND = (230, 40, 40)
TRUE = (30, 160, 60)
IGNORED = (140, 140, 140)


class Detector:
    """A trained network that finds text in pictures; one device, not thread-safe."""

    def __init__(
        self,
        net: DBNet,
        provenance: Provenance,
        *,
        post: PostParams | None = None,
        device: str = "cpu",
        precision: str = "auto",
    ) -> None:
        self.device = _usable(device)
        self._autocast = _autocast_dtype(precision, self.device)
        self.net = net.to(self.device).eval()
        self.provenance = provenance
        self.recipe = provenance.as_recipe
        self.post = post or PostParams()
        kind = self._autocast or "float32"
        _log.info("network on %s in %s; %s", self.device, kind, self.post)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str = "auto",
        precision: str = "auto",
        allow_modules: Sequence[str] = (),
        **post: Any,
    ) -> Detector:
        """Load a checkpoint.

        Args:
            path: A `best.ckpt` or `last.ckpt` of `ocrstore train`.
            device: Where the network runs: cpu, cuda, cuda:1, xpu, mps; auto is a GPU if there is
                one.
            precision: 32, 16-mixed or bf16-mixed; auto is 16-mixed on CUDA and XPU, else 32.
            allow_modules: Modules besides albumentations whose transforms the checkpoint's recipe
                may name; they are imported. No other code is run.
            **post: Fields of its `PostParams` to change.

        Raises:
            CheckpointError: The file cannot be used; the message says what is wrong with it.
        """
        permit_modules(allow_modules)
        checkpoint = read_checkpoint(path)
        if checkpoint.provenance is None:
            raise CheckpointError(
                f"{path} does not say which recipe it was trained with. Train with `ocrstore"
                " train`, or give DBNetModule a provenance"
            )
        return cls(
            checkpoint.network(),
            checkpoint.provenance,
            post=replace(checkpoint.post, **post),
            device=device,
            precision=precision,
        )

    def find(self, pictures: Sequence[Pixels]) -> list[Detections]:
        """Return the boxes in upright RGB pictures (H, W, 3), in their own coordinates."""
        views, inverse = [], []
        for pixels in pictures:
            view, forward = self.recipe.draw(pixels)
            views.append(view)
            inverse.append(np.linalg.inv(forward))
        sizes = [(p.shape[1], p.shape[0]) for p in pictures]
        if len({v.shape for v in views}) > 1:
            # views of a pipeline can differ in size: one by one then
            return [found for p in pictures for found in self.find([p])]
        images = torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2)
        if self.device.type in ASYNCHRONOUS:
            images = images.pin_memory()  # from pageable memory the transfer would synchronise
        prob = self.probabilities(images).cpu().numpy()
        return detect(prob, inverse_matrices=np.stack(inverse), sizes=sizes, params=self.post)

    def probabilities(self, images: torch.Tensor) -> torch.Tensor:
        """Return the float32 probability maps of uint8 views (B, 3, H, W), on the device."""
        dtype = self._autocast or torch.float32
        with (
            torch.inference_mode(),
            torch.autocast(self.device.type, dtype, enabled=self._autocast is not None),
            _cudnn_benchmark(None not in self.recipe.size),
        ):
            moved = images.to(self.device, non_blocking=images.is_pinned())
            maps: torch.Tensor = self.net(moved, thresholds=False).prob
        return maps


@contextmanager
def _cudnn_benchmark(fixed: bool) -> Iterator[None]:
    """Let cuDNN measure its algorithms: what it chooses holds for views of one size."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = fixed or before
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype of convolutions; None is float32."""
    if precision == "auto":
        precision = "16-mixed" if device.type in ASYNCHRONOUS else "32"
    known = {"32": None, "16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}
    if precision not in known:
        raise SchemaError(f"unknown precision {precision!r}: expected auto, {', '.join(known)}")
    return known[precision]


def allow_tf32(allowed: bool) -> None:
    """Allow TF32 for float32 on CUDA GPUs, or forbid it; for the whole process."""
    if not torch.cuda.is_available():
        return
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def _usable(device: str) -> torch.device:
    """Return a device that torch can allocate on; `auto` is the GPU if there is one, else the CPU.

    A small allocation is the test: torch has a different error for each kind of missing device.
    """
    if device == "auto":
        kinds = ("cuda", "xpu", "mps")
        device = next((k for k in kinds if getattr(torch, k).is_available()), "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as exc:
        reason = str(exc).partition("\n")[0]
        raise SchemaError(f"device {device!r} cannot be used here: {reason}") from exc


@dataclass(frozen=True, slots=True)
class Predicted:
    """The result of `predict_pictures`."""

    found: dict[str, Detections]
    failed: dict[str, str]
    """Pictures that could not be decoded, with the reason."""


def predict_pictures(
    images: str | Path,
    detector: Detector,
    *,
    out: str | Path,
    draw: bool = False,
    batch_size: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> Predicted:
    """Find text in one picture, or in every picture below a folder.

    Writes `res_<picture>.txt` (ICDAR) for each, `boxes.json` for all, and with `draw` the pictures
    with their boxes as `res_<picture>.jpg`. A picture that cannot be decoded is reported and left
    out. Never writes over one of the pictures.
    """
    folder, given = Path(out), Path(images)
    samples: list[tuple[str, ReadableFile]]
    if given.is_file() and is_picture_name(given.name):
        samples = [(given.name, given)]
    else:
        samples = [(s.key, s.path) for s in open_source(given, format="folder")]
    names = {key: folder / name for key, name in result_names(key for key, _ in samples).items()}
    if draw:
        _require_distinct(samples, {_with(path, ".jpg") for path in names.values()})
    found: dict[str, Detections] = {}
    failed: dict[str, str] = {}
    done = 0
    # pictures are decoded in a thread while the network runs
    with Prefetcher(_batches(samples, batch_size, failed), ahead=1) as batches:
        for keys, pictures in batches:
            for key, pixels, boxes in zip(keys, pictures, detector.find(pictures), strict=True):
                found[key] = boxes
                write_icdar(_with(names[key], ".txt"), boxes)
                if draw:
                    write_picture(_with(names[key], ".jpg"), draw_boxes(pixels, boxes.polygons))
            done += len(keys)
            if progress is not None:
                progress(done + len(failed), len(samples))
    write_json(folder / "boxes.json", to_json(found))
    return Predicted(found, failed)


def _with(path: Path, suffix: str) -> Path:
    """Return a path with a suffix appended; dots in the name are kept."""
    return path.with_name(path.name + suffix)


def _require_distinct(samples: list[tuple[str, ReadableFile]], targets: set[Path]) -> None:
    """Refuse targets that are among the pictures."""
    resolved = {path.resolve() for path in targets}
    for key, path in samples:
        if Path(path).resolve() in resolved:
            raise StoreExistsError(
                f"{path}: drawing would write over the picture {key!r}. Choose another --out"
            )


def _batches(
    samples: list[tuple[str, ReadableFile]], size: int, failed: dict[str, str]
) -> Iterator[tuple[list[str], list[Pixels]]]:
    keys: list[str] = []
    pictures: list[Pixels] = []
    for key, path in samples:
        try:
            pictures.append(decode(path.read_bytes(), name=key).pixels)
        except (DecodeError, OSError) as exc:
            failed[key] = str(exc)
            continue
        keys.append(key)
        if len(keys) == size:
            yield keys, pictures
            keys, pictures = [], []
    if keys:
        yield keys, pictures


def result_names(keys: Iterable[str]) -> dict[str, PurePosixPath]:
    """Return for each picture the name of its results, without a suffix: `folder/res_<picture>`.

    The picture's own ending is left out, as ICDAR does it, unless another one has the same name
    without it.
    """
    names = {key: PurePosixPath(key) for key in keys}
    times = Counter(name.with_suffix("") for name in names.values())
    return {
        key: name.with_name(f"res_{name.stem if times[name.with_suffix('')] == 1 else name.name}")
        for key, name in names.items()
    }


def write_icdar(path: Path, found: Detections) -> None:
    """Write an ICDAR text file: a line of ints x1,y1,x2,y2,... for each box."""
    lines = [
        ",".join(str(int(v)) for v in np.rint(points).ravel()) + "\n" for points in found.polygons
    ]
    write_whole(path, "".join(lines).encode())


def to_json(found: Mapping[str, Detections]) -> dict[str, Any]:
    """Return the polygons of each picture with their scores, as JSON values."""
    return {
        key: [
            {"points": np.round(p.astype(float), 2).tolist(), "score": round(float(s), 4)}
            for p, s in zip(d.polygons, d.scores, strict=True)
        ]
        for key, d in found.items()
    }


def write_json(path: Path, record: Any) -> None:
    """Write an indented JSON file."""
    write_whole(path, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())


def draw_boxes(
    picture: Pixels,
    found: Sequence[npt.ArrayLike],
    *,
    truths: Sequence[npt.ArrayLike] = (),
    ignored: Sequence[bool] | npt.NDArray[np.bool_] = (),
) -> Pixels:
    """Return a copy of an RGB picture with found boxes in red, true ones in green or grey."""
    canvas = np.array(picture, dtype=np.uint8, order="C")
    thickness = max(1, round(max(canvas.shape[:2]) / 500))
    for position, points in enumerate(truths):
        skip = position < len(ignored) and bool(ignored[position])
        _outline(canvas, points, IGNORED if skip else TRUE, 2 * thickness)
    for points in found:
        _outline(canvas, points, FOUND, thickness)
    return canvas


def _outline(
    canvas: Pixels, points: npt.ArrayLike, colour: tuple[int, int, int], thickness: int
) -> None:
    corners = np.rint(np.asarray(points, dtype=np.float64)).astype(np.int32).reshape(-1, 1, 2)
    cv2.polylines(canvas, [corners], True, colour, thickness, cv2.LINE_AA)


def grid(pictures: Sequence[Pixels], *, columns: int = 2) -> Pixels:
    """Return pictures side by side on a white sheet; each cell has the size of the largest."""
    height = max(p.shape[0] for p in pictures)
    width = max(p.shape[1] for p in pictures)
    rows = -(-len(pictures) // columns)
    sheet = np.full((rows * height, columns * width, 3), 255, np.uint8)
    for position, picture in enumerate(pictures):
        y, x = position // columns * height, position % columns * width
        sheet[y : y + picture.shape[0], x : x + picture.shape[1]] = picture
    return sheet


def write_picture(path: Path, picture: Pixels) -> None:
    """Write an RGB picture in the format of the path's suffix."""
    ok, data = cv2.imencode(path.suffix or ".png", np.ascontiguousarray(picture[..., ::-1]))
    if not ok:
        raise WriteError(f"{path}: OpenCV cannot write a picture of this kind")
    write_whole(path, data.data)
