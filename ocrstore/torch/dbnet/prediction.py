"""Pictures through a detector, into files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ocrstore.decode import decode
from ocrstore.errors import DecodeError, StoreExistsError
from ocrstore.sources import open_source
from ocrstore.torch.dbnet.detector import Detector, Pixels
from ocrstore.torch.dbnet.drawing import draw_boxes, write_picture
from ocrstore.torch.dbnet.postprocess import Detections
from ocrstore.torch.dbnet.results import result_names, to_json, write_icdar, write_json


@dataclass(frozen=True, slots=True)
class Predicted:
    """What was done with pictures."""

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
    if given.is_file():
        samples = [(given.name, given)]
    else:
        samples = [(s.key, s.path) for s in open_source(given, format="folder")]
    names = {key: folder / name for key, name in result_names(key for key, _ in samples).items()}
    if draw:
        _spare(samples, {_with(path, ".jpg") for path in names.values()})
    found: dict[str, Detections] = {}
    failed: dict[str, str] = {}
    done = 0
    for keys, pictures in _batches(samples, batch_size, failed):
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
    """Return a path with an ending added; dots in the name are not endings here."""
    return path.with_name(path.name + suffix)


def _spare(samples: list[tuple[str, Path]], targets: set[Path]) -> None:
    """Refuse to draw over the pictures themselves."""
    resolved = {path.resolve() for path in targets}
    for key, path in samples:
        if path.resolve() in resolved:
            raise StoreExistsError(
                f"{path}: drawing would write over the picture {key!r}. Choose another --out"
            )


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
