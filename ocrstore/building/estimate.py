"""Estimate the size of a store in every codec, and whether it fits disk and page cache."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ocrstore.building.derive import Job, JPEGBytes, SkippedPictureError, derive
from ocrstore.building.plan import BuildPlan
from ocrstore.building.view_size import spread
from ocrstore.decode import DEFAULT_MAX_PIXELS, open_picture
from ocrstore.errors import DecodeError, SourceError, WriteError
from ocrstore.format.codecs import CODECS, encode_row
from ocrstore.format.columns import Column
from ocrstore.machine import Memory
from ocrstore.schema import COLUMNS, IMAGE, MASK, TENSOR
from ocrstore.sources import Source
from ocrstore.views import View, stored_columns

MEASURED = 12
"""Number of samples that are derived to measure codecs."""
_LOOKED_AT = 400  # headers read for an estimate
_HEADERS = 40  # headers read before every build


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

    @property
    def columns(self) -> dict[str, int]:
        """Column to bytes in its chosen codec."""
        return {name: self.nbytes[name][codec] for name, codec in self.chosen.items()}

    @property
    def total_nbytes(self) -> int:
        """Bytes of the whole store with the chosen codecs."""
        return sum(self.columns.values())


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
    job = Job(views, max_pixels=max_pixels)
    sizes: dict[str, dict[str, list[int]]] = {name: {} for name in columns}
    raw_images: list[int] = []
    for row in spread(len(source), MEASURED):
        try:
            derived = derive(source.at(row), job)
        except SkippedPictureError:
            continue
        raw_images.append(3 * derived.attributes["width"] * derived.attributes["height"])
        for name, column in columns.items():
            found = sizes[name]
            value = derived.columns[name]
            if name == IMAGE:
                found.setdefault("jpeg", []).append(derived.attributes["source_nbytes"])
            if isinstance(value, JPEGBytes):
                continue
            for codec in CODECS:
                if codec != "jpeg":
                    stored = encode_row(Column(column.dtype, column.shape, codec), value)
                    found.setdefault(codec, []).append(stored.nbytes)
    if not raw_images:
        raise SourceError(
            f"{source.images}: of {min(MEASURED, len(source))} sampled pictures none can be used"
        )
    # picture sizes vary most, so many more headers are read than pictures decoded
    mean, formats = _headers(source, source.keys, max_pixels, limit=_LOOKED_AT)
    factor = mean / float(np.mean(raw_images))
    if formats != {"jpeg"} and IMAGE in sizes and columns[IMAGE].codec != "jpeg":
        sizes[IMAGE].pop("jpeg", None)
    scaled: dict[str, dict[str, int]] = {}
    for name, found in sizes.items():
        grows = factor if name == IMAGE else 1.0
        scaled[name] = {
            codec: round(float(np.mean(values)) * grows * len(source))
            for codec, values in found.items()
        }
    chosen = {name: column.codec for name, column in columns.items()}
    return Estimate(len(source), len(raw_images), chosen, scaled)


def check_disk_space(plan: BuildPlan, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> None:
    """Raise WriteError if the disk has no room for what a plan writes.

    Samples are derived for an estimate only where they would not fit uncompressed.
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
    if samples <= 0 or _uncompressed_nbytes(plan, keys, max_pixels) * samples <= free:
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


def _uncompressed_nbytes(plan: BuildPlan, keys: Sequence[str], max_pixels: int) -> float:
    """Return the mean size of a sample without codecs; infinite if a pipeline decides on it."""
    total = 0.0
    for name, column in plan.columns.items():
        if name == "image":
            total += _headers(plan.source, keys, max_pixels, limit=_HEADERS)[0]
        elif None in column.shape:
            return math.inf
        else:
            total += math.prod(side or 0 for side in column.shape) * column.numpy_dtype.itemsize
    return total


def _headers(
    source: Source, keys: Sequence[str], max_pixels: int, *, limit: int
) -> tuple[float, set[str]]:
    """Return the mean size of a decoded picture in bytes, and the file formats found."""
    sizes, formats = [], set()
    for row in spread(len(keys), limit):
        try:
            picture = open_picture(source[keys[row]].path.read_bytes(), max_pixels=max_pixels)
        except (OSError, DecodeError):
            continue
        width, height = picture.size
        formats.add(picture.format)
        sizes.append(3 * width * height)
    return float(np.mean(sizes)) if sizes else 0.0, formats


HEADROOM = 0.8
"""Share of the available memory that a store may take; training needs the rest."""

# cheapest first: columns that are read least often or compress best
_STEPS: tuple[tuple[str, str, str], ...] = (
    (IMAGE, "jpeg", "store the JPEG files; decoded on access"),
    *(
        (column.name, "lz4", "masks are nearly constant")
        for column in COLUMNS.values()
        if column.role == MASK
    ),
    ("prob_map", "lz4", "probability maps are mostly zero"),
    ("thresh_map", "zstd", "threshold maps are mostly one value"),
    (IMAGE, "drop", "leave out the full-size pictures"),
    (TENSOR, "zstd", "last resort: decompressed on every access"),
)


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
    codecs: Mapping[str, str]
    """Column to advised codec, without dropped columns."""
    dropped: tuple[str, ...]
    steps: tuple[str, ...]
    """Changes to the recipe with reasons, in order."""

    @property
    def command(self) -> str:
        """The options of `ocrstore build` for this advice."""
        parts = []
        logical = [name for name in self.codecs if "/" not in name]
        if self.dropped:
            parts.append("--columns " + ",".join(logical))
        parts += [f"--codec {n}={c}" for n, c in self.codecs.items() if c != "raw" and "/" not in n]
        return " ".join(parts)


def advise(expected: Estimate, memory: Memory) -> Advice:
    """Find the cheapest set of codecs with which the store fits."""
    limit = int(memory.available_nbytes * HEADROOM)
    codecs = dict(expected.chosen)
    dropped: list[str] = []
    steps: list[str] = []

    def total() -> int:
        return sum(expected.nbytes[name][codec] for name, codec in codecs.items())

    as_asked = total()
    for logical, codec, why in _STEPS:
        if total() <= limit:
            break
        for name in [n for n in codecs if n.rpartition("/")[2] == logical]:
            before = expected.nbytes[name][codecs[name]]
            if codec == "drop":
                del codecs[name]
                dropped.append(name)
                steps.append(f"drop {name}: {why} ({_megabytes(before)} less)")
                continue
            after = expected.nbytes[name].get(codec)
            if after is None or after >= before:
                continue
            codecs[name] = codec
            steps.append(f"{name} as {codec}: {why} ({_megabytes(before - after)} less)")
    advised = total()
    return Advice(
        memory,
        limit,
        as_asked,
        advised,
        as_asked <= limit,
        advised <= limit,
        codecs,
        tuple(dropped),
        tuple(steps),
    )


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f} MB"
