"""Read a detector's predictions from ICDAR text files or JSON and match them with the polygons."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.annotation import Annotation, read_annotation
from ocrstore.errors import SourceError
from ocrstore.evaluation.icdar2015 import Pairing, PictureScore, harmonic_mean, pair
from ocrstore.store import Store

_PREFIX = re.compile(r"^(?:res|gt)_", re.IGNORECASE)
_SEPARATOR = re.compile(r"\s*,\s*|\s+")
_LARGEST = 2**30
"""No coordinate of a picture is larger."""


@dataclass(frozen=True, slots=True)
class Box:
    """One detection: a polygon in pixels of the picture, and its score."""

    points: npt.NDArray[np.float64]
    """(n, 2)"""
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Predictions:
    """Detections by row of the sample."""

    path: str
    boxes: Mapping[int, tuple[Box, ...]]
    """Only samples that the files mention; an empty file means that nothing was found."""
    unknown: tuple[str, ...]
    """Names in the files that match no sample."""


def read_predictions(path: Path, keys: Iterable[str]) -> Predictions:
    """Read predictions and assign them to samples.

    Args:
        path: A folder of text files, with or without a boxes.json, or a JSON file.
        keys: The keys of the samples, in order. A file belongs to the sample of the same name:
            `res_img_1.txt` or `img_1.txt` to `img_1.jpg`, with the same folders before it or,
            where only one sample has that name, without.

    Raises:
        SourceError: A file cannot be read or parsed, or none of them belongs to a sample.
    """
    if path.is_dir():
        named = _read_folder(path)
    elif path.suffix.lower() == ".json":
        named = _read_json(path)
    else:
        raise SourceError(
            f"{path}: expected a folder of text files (res_img_1.txt) or a .json file, as "
            "`ocrstore predict` writes them."
        )
    names = _Names(keys)
    boxes: dict[int, tuple[Box, ...]] = {}
    unknown: list[str] = []
    for name, found in named.items():
        row = names.find(name)
        if row is None:
            unknown.append(name)
        else:
            boxes.setdefault(row, found)
    if named and not boxes:
        raise SourceError(
            f"{path}: none of its {len(named)} pictures is in the store; they are called "
            f"{next(iter(named))!r}, the store's {names.example!r}. "
            "Do they belong to another data set?"
        )
    return Predictions(str(path), boxes, tuple(unknown))


class _Names:
    """Look up a sample by its key, the key without suffix, or the file name if that is unique."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._exact: dict[str, int] = {}
        self._short: dict[str, int | None] = {}
        for row, key in enumerate(keys):
            self._exact[key] = row
            stem = _without_suffix(key)
            for name in {stem, key.rpartition("/")[2], stem.rpartition("/")[2]} - {key}:
                self._short[name] = None if name in self._short else row
        self.example = next(iter(self._exact), "")

    def find(self, name: str) -> int | None:
        folder, slash, last = name.rpartition("/")
        for candidate in (name, folder + slash + _PREFIX.sub("", last)):
            row = self._exact.get(candidate)
            row = self._short.get(candidate) if row is None else row
            if row is not None:
                return row
        return None


def _without_suffix(key: str) -> str:
    suffix = PurePosixPath(key).suffix
    return key.removesuffix(suffix) if suffix else key


def _read_folder(folder: Path) -> dict[str, tuple[Box, ...]]:
    together = folder / "boxes.json"
    found = _read_json(together) if together.is_file() else {}
    files = sorted(folder.rglob("*.txt"))
    if not files and not together.is_file():
        raise SourceError(
            f"{folder}: contains no predictions; expected text files (res_img_1.txt) or boxes.json."
        )
    for file in files:
        name = file.relative_to(folder).with_suffix("").as_posix()
        found[name] = _read_text(file)
    return found


def _read_text(path: Path) -> tuple[Box, ...]:
    lines = _load(path).removeprefix("\ufeff").splitlines()
    return tuple(
        _parse_line(line, f"{path} line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    )


def _parse_line(line: str, where: str) -> Box:
    numbers: list[float] = []
    text = False
    for field in _SEPARATOR.split(line.strip()):
        try:
            numbers.append(float(field))
        except ValueError:
            text = True
            break
    score = None
    if text and len(numbers) > 8:
        del numbers[8:]  # the text begins with a number
    elif len(numbers) > 4 and len(numbers) % 2 and 0 <= numbers[-1] <= 1:
        score = numbers.pop()
    if len(numbers) == 4:
        left, top, right, bottom = numbers
        numbers = [left, top, right, top, right, bottom, left, bottom]
    if len(numbers) < 6 or len(numbers) % 2:
        raise SourceError(
            f"{where}: expected eight numbers x1,y1,...,x4,y4 (or four, or any even count from "
            f"six) and perhaps a score, found {len(numbers)}: {line.strip()[:60]!r}."
        )
    return Box(_points(numbers, where), score)


def _read_json(path: Path) -> dict[str, tuple[Box, ...]]:
    try:
        record = json.loads(_load(path))
    except (ValueError, RecursionError) as exc:
        raise SourceError(f"{path}: not valid JSON: {exc}.") from exc
    if not isinstance(record, dict):
        raise SourceError(f"{path}: expected a JSON object with picture names as keys.")
    return {
        str(key): tuple(
            _parse_box(box, f"{path}: {key!r}, box {position}")
            for position, box in enumerate(boxes if isinstance(boxes, list) else [boxes])
        )
        for key, boxes in record.items()
    }


def _parse_box(record: Any, where: str) -> Box:
    score = None
    if isinstance(record, dict):
        score = record.get("score")
        record = record.get("points")
    if score is not None and (isinstance(score, bool) or not isinstance(score, (int, float))):
        raise SourceError(f"{where}: its score is {score!r}, not a number.")
    try:
        return Box(_points(record, where), None if score is None else float(score))
    except OverflowError as exc:
        raise SourceError(f"{where}: its score is too large for a float.") from exc


def _points(record: Any, where: str) -> npt.NDArray[np.float64]:
    try:
        flat = np.asarray(record, np.float64).ravel()
    except (TypeError, ValueError, OverflowError):
        flat = np.empty(0)
    if len(flat) < 6 or len(flat) % 2:
        raise SourceError(f"{where}: expected `points` with three or more pairs of numbers.")
    if not all(math.isfinite(value) and abs(value) < _LARGEST for value in flat.tolist()):
        raise SourceError(f"{where}: a coordinate is not finite, or larger than any picture.")
    return flat.reshape(-1, 2)


def _load(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError as exc:
        raise SourceError(f"{path}: cannot be read: {exc.strerror or exc}.") from exc


Progress = Callable[[int, int], None]


class Scores:
    """Scores by the ICDAR 2015 protocol for every sample that has predictions."""

    def __init__(
        self, store: Store, predictions: Predictions, *, progress: Progress | None = None
    ) -> None:
        self.predictions = predictions
        self.name = Path(predictions.path).name
        self._store = store
        self.numbers: dict[str, npt.NDArray[np.float64]] = {
            name: np.full(len(store), np.nan) for name in PictureScore(0, 0, 0).to_json()
        }
        totals = np.zeros(3, np.int64)
        for done, row in enumerate(sorted(predictions.boxes), start=1):
            score = self.pairing(row).score
            for name, value in score.to_json().items():
                self.numbers[name][row] = value
            totals += (score.matched, score.truths, score.detections)
            if progress is not None:
                progress(done, len(predictions.boxes))
        self.total = PictureScore(*totals.tolist())
        """Counts summed over all samples."""

    def boxes(self, row: int, min_score: float = 0.0) -> list[Box]:
        """Return one sample's boxes; those with a lower score are left out."""
        found = self.predictions.boxes.get(row, ())
        return [box for box in found if box.score is None or box.score >= min_score]

    def pairing(self, row: int, min_score: float = 0.0) -> Pairing:
        """Match one sample's predictions with its polygons."""
        truths = read_truths(self._store, row)
        found = [box.points for box in self.boxes(row, min_score)]
        return pair(found, truths.polygons, truths.ignored)

    def worst_first(self) -> list[int]:
        """Return the rows that have predictions, in ascending order of H-mean."""
        return sorted(self.predictions.boxes, key=lambda row: (self.numbers["hmean"][row], row))

    def to_json(self) -> dict[str, Any]:
        """Return the scores of all samples together, for the page."""
        total = self.total
        return {
            "name": self.name,
            "path": self.predictions.path,
            "pictures": len(self.predictions.boxes),
            "unknown": len(self.predictions.unknown),
            "precision": total.precision,
            "recall": total.recall,
            "hmean": harmonic_mean(total.precision, total.recall),
        }


def read_truths(store: Store, row: int) -> Annotation:
    """Read a sample's polygons as far as they can be drawn and matched."""
    return read_annotation(store, row, strict=False, min_points=3, limit=_LARGEST)
