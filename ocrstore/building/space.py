"""How many bytes a store will have, by column and codec, measured on a few of its samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ocrstore.building.derive import Job, JPEGBytes, derive
from ocrstore.building.files import SkippedPictureError
from ocrstore.building.views import View, column_shapes
from ocrstore.decode import DEFAULT_MAX_PIXELS, open_picture
from ocrstore.errors import DecodeError, SourceError
from ocrstore.format.codecs import encode_row
from ocrstore.format.columns import Column
from ocrstore.sources import Source

MEASURED = 12
"""Samples that are derived to measure codecs."""
_LOOKED_AT = 400
_CODECS = ("raw", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected bytes of a store's columns in every codec they could have."""

    samples: int
    measured: int
    """Samples that the figures come from."""
    chosen: Mapping[str, str]
    """The codec of each column, as the recipe has it."""
    nbytes: Mapping[str, Mapping[str, int]]
    """Column, codec: bytes of all samples."""

    @property
    def columns(self) -> dict[str, int]:
        """Bytes of each column in its chosen codec."""
        return {name: self.nbytes[name][codec] for name, codec in self.chosen.items()}

    @property
    def total_nbytes(self) -> int:
        """Bytes of the whole store as the recipe has it."""
        return sum(self.columns.values())


def estimate(
    source: Source,
    views: tuple[View, ...],
    *,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    compressed: bool = False,
) -> Estimate:
    """Estimate the size of a store; with `compressed` in all codecs, else in the chosen ones."""
    columns = {name: Column(*spec) for name, spec in column_shapes(views).items()}
    job = Job(views, max_pixels=max_pixels)
    sizes: dict[str, dict[str, list[int]]] = {name: {} for name in columns}
    raw_images: list[int] = []
    for row in _spread(len(source), MEASURED):
        try:
            derived = derive(source.at(row), job)
        except SkippedPictureError:
            continue
        raw_images.append(3 * derived.attributes["width"] * derived.attributes["height"])
        for name, column in columns.items():
            found = sizes[name]
            value = derived.columns[name]
            if name == "image":
                found.setdefault("jpeg", []).append(derived.attributes["source_nbytes"])
            if isinstance(value, JPEGBytes):
                continue
            codecs = _CODECS if compressed else (column.codec,)
            for codec in codecs:
                if codec != "jpeg":
                    stored = encode_row(Column(column.dtype, column.shape, codec), value)
                    found.setdefault(codec, []).append(stored.nbytes)
    if not raw_images:
        raise SourceError(
            f"{source.images}: of {min(MEASURED, len(source))} pictures looked at, none can be used"
        )
    # pictures differ in size more than anything else: their headers are read of many more
    mean, formats = _headers(source, max_pixels)
    factor = mean / float(np.mean(raw_images))
    if formats != {"jpeg"} and "image" in sizes and columns["image"].codec != "jpeg":
        sizes["image"].pop("jpeg", None)
    scaled: dict[str, dict[str, int]] = {}
    for name, found in sizes.items():
        grows = factor if name == "image" else 1.0
        scaled[name] = {
            codec: round(float(np.mean(values)) * grows * len(source))
            for codec, values in found.items()
        }
    chosen = {name: column.codec for name, column in columns.items()}
    return Estimate(len(source), len(raw_images), chosen, scaled)


def _headers(source: Source, max_pixels: int) -> tuple[float, set[str]]:
    """Return the mean bytes of a decoded picture, and the formats there are."""
    sizes, formats = [], set()
    for row in _spread(len(source), _LOOKED_AT):
        try:
            picture = open_picture(source.at(row).path.read_bytes(), max_pixels=max_pixels)
        except (OSError, DecodeError):
            continue
        width, height = picture.size
        formats.add(picture.format)
        sizes.append(3 * width * height)
    return float(np.mean(sizes)), formats


def _spread(count: int, wanted: int) -> Sequence[int]:
    """Choose rows evenly over all of them."""
    if count <= wanted:
        return range(count)
    return [round(i * (count - 1) / (wanted - 1)) for i in range(wanted)]
