"""Estimate size and reading times of a store in every codec; does it fit disk and page cache?"""

from __future__ import annotations

import heapq
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.building.derive import Job, SkippedPictureError, derive
from ocrstore.building.plan import BuildPlan
from ocrstore.building.view_size import spread
from ocrstore.decode import DEFAULT_MAX_PIXELS, open_picture
from ocrstore.errors import DecodeError, SourceError, WriteError
from ocrstore.format.codecs import CODECS, encode_row
from ocrstore.format.columns import Column, Encoded
from ocrstore.keys import hash_of
from ocrstore.machine import Memory
from ocrstore.recipe import PRESETS, preset_codec
from ocrstore.schema import IMAGE, TENSOR
from ocrstore.sources import Source
from ocrstore.stored_rows import decode_stored
from ocrstore.views import View, stored_columns

MEASURED = 12
"""Number of samples that are derived to measure codecs."""
_LOOKED_AT = 400  # headers read for an estimate
_HEADERS = 40  # headers read before every build
_TRIED = 100  # pictures tried to find `MEASURED` that can be used


@dataclass(frozen=True, slots=True)
class PresetCost:
    """What a preset takes: on disk, and of one core for each sample."""

    nbytes: int
    batch_seconds: float
    """To copy or decode a sample's view into a batch; with codec raw a batch needs no copy."""
    picture_seconds: float
    """To decode the picture that `transform=` starts from; 0 if it is a view of the file."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected size of each column of a store in each codec."""

    samples: int
    measured: int
    """Number of samples that were derived for the estimate."""
    chosen: Mapping[str, str]
    """Column to codec, as the recipe has it."""
    nbytes: Mapping[str, Mapping[str, int]]
    """Column to codec to bytes of all samples."""
    seconds: Mapping[str, Mapping[str, float]]
    """Column to codec to the time in which one row was read."""

    @property
    def columns(self) -> dict[str, int]:
        """Column to bytes in its chosen codec."""
        return {name: self.nbytes[name][codec] for name, codec in self.chosen.items()}

    @property
    def total_nbytes(self) -> int:
        """Bytes of the whole store with the chosen codecs."""
        return sum(self.columns.values())

    @property
    def presets(self) -> dict[str, PresetCost]:
        """What each preset would take, for the same columns."""
        return {preset: self._cost(preset) for preset in PRESETS}

    def _cost(self, preset: str) -> PresetCost:
        codecs = {name: preset_codec(preset, _logical(name)) for name in self.chosen}
        seconds = {name: self.seconds[name][codec] for name, codec in codecs.items()}
        return PresetCost(
            sum(self.nbytes[name][codec] for name, codec in codecs.items()),
            sum(each for name, each in seconds.items() if name != IMAGE),
            seconds.get(IMAGE, seconds.get(TENSOR, 0.0)),
        )


def _logical(name: str) -> str:
    """Return a column's name without the prefix of its view."""
    return name.rpartition("/")[2]


def estimate(
    source: Source,
    views: tuple[View, ...],
    *,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> Estimate:
    """Estimate the size of a store in every codec, by deriving a few of its samples.

    Raises:
        SourceError: None of those samples can be used.
    """
    columns = stored_columns(views)
    # whatever the codec is to be, the files are measured as well
    as_files = (replace(v, recipe=v.recipe.with_codecs({IMAGE: "file"})) for v in views)
    job = Job(tuple(as_files), max_pixels=max_pixels)
    measured = {name: _Measured(name, column) for name, column in columns.items()}
    raw_images: list[int] = []
    for row in spread(len(source), MEASURED):
        try:
            derived = derive(source.at(row), job)
        except SkippedPictureError:
            continue
        raw_images.append(3 * derived.attributes["width"] * derived.attributes["height"])
        for name, found in measured.items():
            found.add(derived.columns[name])
    if not raw_images:
        raise SourceError(
            f"{source.images}: of {min(MEASURED, len(source))} sampled pictures none can be used"
        )
    # picture sizes vary most, so many more headers are read than pictures decoded
    factor = _mean_picture(source, source.keys, max_pixels, limit=_LOOKED_AT, file=False)
    factor /= float(np.mean(raw_images))
    scaled: dict[str, dict[str, int]] = {}
    for name, found in measured.items():
        grows = factor if name == IMAGE else 1.0
        scaled[name] = {
            codec: round(float(np.mean(values)) * grows * len(source))
            for codec, values in found.nbytes.items()
        }
    chosen = {
        name: "file" if column.holds_files else column.codec for name, column in columns.items()
    }
    seconds = {name: found.seconds() for name, found in measured.items()}
    return Estimate(len(source), len(raw_images), chosen, scaled, seconds)


def mean_sample_nbytes(
    source: Source, views: tuple[View, ...], *, max_pixels: int = DEFAULT_MAX_PIXELS
) -> int:
    """Return the mean stored bytes of a few samples, chosen by the hash of their keys.

    Every machine that has the source gets the same number; 0 if no sample can be used.
    """
    columns = stored_columns(views)
    job = Job(views, max_pixels=max_pixels)
    sizes: list[int] = []
    for key in heapq.nsmallest(_TRIED, source.keys, key=hash_of):
        try:
            derived = derive(source[key], job)
        except SkippedPictureError:
            continue
        sizes.append(
            sum(
                len(value.data)
                if isinstance(value, Encoded)
                else encode_row(columns[name], value).data.nbytes
                for name, value in derived.columns.items()
            )
        )
        if len(sizes) == MEASURED:
            break
    return round(sum(sizes) / len(sizes)) if sizes else 0


class _Measured:
    """Bytes and reading times of some rows of one column, in every codec it may have."""

    def __init__(self, name: str, column: Column) -> None:
        self._column = column
        self._is_image = name == IMAGE
        self._rows: dict[str, list[tuple[memoryview, tuple[int, ...]]]] = {}
        self.nbytes: dict[str, list[int]] = {}

    def add(self, value: npt.NDArray[Any] | Encoded) -> None:
        """Encode a row in every codec; a picture's file is taken as it is."""
        codecs = [codec for codec in CODECS if codec not in ("jpeg", "file")]
        if isinstance(value, Encoded):
            data, shape = memoryview(value.data), value.shape
            self._keep("file", data, shape)
            spec = replace(self._column, codec="file")
            value = decode_stored(spec, data, shape, where="a sample")
        elif self._is_image:
            codecs.append("file")
        for codec in codecs:
            spec = replace(self._column, codec=codec)
            self._keep(codec, encode_row(spec, value).data, value.shape)

    def _keep(self, codec: str, stored: memoryview, shape: tuple[int, ...]) -> None:
        self.nbytes.setdefault(codec, []).append(stored.nbytes)
        if not (self._is_image and codec == "raw"):  # large, and used in place
            self._rows.setdefault(codec, []).append((stored, shape))

    def seconds(self) -> dict[str, float]:
        """Read all rows, codec by codec, and return the median time of one; 0 for views."""
        found = dict.fromkeys(self.nbytes, 0.0)
        for codec, rows in self._rows.items():
            spec = replace(self._column, codec=codec)
            found[codec] = float(np.median([_time_reading(spec, *row) for row in rows]))
        return found


def _time_reading(spec: Column, stored: memoryview, shape: tuple[int, ...]) -> float:
    """Return the seconds in which a row is copied or decoded into memory that is used again."""
    out = np.zeros(shape, spec.numpy_dtype)
    started = time.perf_counter()
    if spec.is_raw:
        np.copyto(out, np.frombuffer(stored, spec.numpy_dtype).reshape(shape))
    else:
        decode_stored(spec, stored, shape, where="a sample", empty=lambda *_: out)
    return time.perf_counter() - started


def check_disk_space(plan: BuildPlan, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> None:
    """Raise WriteError if the disk has no room for what a plan writes.

    Samples are derived for an estimate only where they would not fit uncompressed. Pictures that
    stay files count as these: encoding whole pictures in order to measure them takes seconds.
    """
    folder = plan.target.absolute().parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return  # a file system that does not tell
    keys: Sequence[str] = plan.source.keys
    if plan.action in ("update", "nothing"):
        keys = [*plan.changes.new, *plan.changes.changed]
    samples, unfinished = len(keys), plan.unfinished
    if unfinished is not None and not plan.obstacle:
        samples -= unfinished.samples
    elif unfinished is not None and not unfinished.in_place:
        free += unfinished.nbytes  # it is discarded
    if samples <= 0 or _most_nbytes(plan, keys, max_pixels) * samples <= free:
        return
    try:
        expected = estimate(plan.source, plan.views, max_pixels=max_pixels)
    except SourceError:
        return  # the build reports what is wrong with the pictures
    needed = expected.total_nbytes * samples // expected.samples
    if needed > free:
        raise WriteError(
            f"{plan.target}: the build needs about {needed:,} bytes, and {folder} has {free:,} "
            "free. Nothing was written; free some space, choose another disk, or make the store "
            "smaller: `ocrstore build --dry-run` shows how"
        )


def _most_nbytes(plan: BuildPlan, keys: Sequence[str], max_pixels: int) -> float:
    """Return the mean size of a sample if nothing shrinks; infinite if a pipeline decides on it."""
    total = 0.0
    for name, column in plan.columns.items():
        if name == "image":
            total += _mean_picture(plan.source, keys, max_pixels, file=column.holds_files)
        elif None in column.shape:
            return math.inf
        else:
            total += math.prod(side or 0 for side in column.shape) * column.numpy_dtype.itemsize
    return total


def _mean_picture(
    source: Source, keys: Sequence[str], max_pixels: int, *, limit: int = _HEADERS, file: bool
) -> float:
    """Return the mean size of a picture in bytes, decoded or, if smaller, of its file."""
    sizes = []
    for row in spread(len(keys), limit):
        try:
            data = source[keys[row]].path.read_bytes()
            width, height = open_picture(data, max_pixels=max_pixels).size
        except (OSError, DecodeError):
            continue
        pixels = 3 * width * height
        sizes.append(min(pixels, len(data)) if file else pixels)
    return float(np.mean(sizes)) if sizes else 0.0


HEADROOM = 0.8
"""Share of the available memory that a store may take; training needs the rest."""

_STEPS = {
    "balanced": "maps and masks compressed, pictures as their files",
    "small": "the pictures of the view compressed, too; decoded for every batch",
}


@dataclass(frozen=True, slots=True)
class Advice:
    """Which codecs make a store fit the page cache."""

    memory: Memory
    limit_nbytes: int
    """Largest size of a store that fits."""
    as_asked_nbytes: int
    advised_nbytes: int
    fits_as_asked: bool
    fits_as_advised: bool
    preset: str
    """The advised preset; empty if none makes the store smaller."""
    codecs: Mapping[str, str]
    """Column to advised codec, without dropped columns."""
    dropped: tuple[str, ...]
    steps: tuple[str, ...]
    """Changes to the recipe with reasons, in order."""

    @property
    def command(self) -> str:
        """The options of `ocrstore build` for this advice."""
        parts = []
        codecs = {name: codec for name, codec in self.codecs.items() if "/" not in name}
        if self.dropped:
            parts.append("--columns " + ",".join(codecs))
        if self.preset:
            parts.append(f"--preset {self.preset}")
            parts += [
                f"--codec {name}={codec}"
                for name, codec in codecs.items()
                if codec != preset_codec(self.preset, name)
            ]
        return " ".join(parts)


def advise(expected: Estimate, memory: Memory) -> Advice:
    """Find the first preset with which the store fits; the last resort is to drop `image`."""
    limit = int(memory.available_nbytes * HEADROOM)
    codecs = dict(expected.chosen)
    dropped: list[str] = []
    steps: list[str] = []
    advised = ""

    def total() -> int:
        return sum(expected.nbytes[name][codec] for name, codec in codecs.items())

    as_asked = total()
    for preset, why in _STEPS.items():
        before = total()
        if before <= limit:
            break
        for name, codec in codecs.items():
            other = preset_codec(preset, _logical(name))
            if expected.nbytes[name][other] < expected.nbytes[name][codec]:
                codecs[name] = other
        if total() < before:
            advised = preset
            steps.append(f"--preset {preset}: {why} ({_megabytes(before - total())} less)")
    if total() > limit and IMAGE in codecs:
        less = _megabytes(expected.nbytes[IMAGE][codecs.pop(IMAGE)])
        dropped.append(IMAGE)
        steps.append(f"drop {IMAGE}: leave out the full-size pictures ({less} less)")
    return Advice(
        memory,
        limit,
        as_asked,
        total(),
        as_asked <= limit,
        total() <= limit,
        advised,
        codecs,
        tuple(dropped),
        tuple(steps),
    )


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f} MB"
