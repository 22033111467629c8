"""A folder of pictures through a detector, into files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ocrstore.decode import decode
from ocrstore.errors import DecodeError
from ocrstore.sources import open_source
from ocrstore.torch.dbnet.detector import Detector, Pixels
from ocrstore.torch.dbnet.drawing import draw_boxes, write_picture
from ocrstore.torch.dbnet.postprocess import Detections
from ocrstore.torch.dbnet.results import result_path, to_json, write_icdar, write_json


@dataclass(frozen=True, slots=True)
class Predicted:
    """What was done with a folder of pictures."""

    found: dict[str, Detections]
    failed: dict[str, str]
    """Pictures that could not be decoded, with the reason."""


def predict_folder(
    images: str | Path,
    detector: Detector,
    *,
    out: str | Path,
    draw: bool = False,
    batch_size: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> Predicted:
    """Find text in every picture below a folder.

    Writes `res_<picture>.txt` (ICDAR) for each, `boxes.json` for all, and with `draw` the pictures
    with their boxes. A picture that cannot be decoded is reported and left out.
    """
    folder = Path(out)
    samples = [(s.key, s.path) for s in open_source(images, format="folder")]
    found: dict[str, Detections] = {}
    failed: dict[str, str] = {}
    done = 0
    for keys, pictures in _batches(samples, batch_size, failed):
        for key, pixels, boxes in zip(keys, pictures, detector.find(pictures), strict=True):
            found[key] = boxes
            write_icdar(folder, key, boxes)
            if draw:
                path = result_path(folder, key, suffix=".jpg")
                write_picture(path, draw_boxes(pixels, boxes.polygons))
        done += len(keys)
        if progress is not None:
            progress(done + len(failed), len(samples))
    write_json(folder / "boxes.json", to_json(found))
    return Predicted(found, failed)


def _batches(
    samples: list[tuple[str, Path]], size: int, failed: dict[str, str]
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
