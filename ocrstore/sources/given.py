"""Samples from Python: any iterable of `SourceSample`, generators too."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.annotation import ReadableFile
from ocrstore.errors import SchemaError, SourceError
from ocrstore.keys import shown
from ocrstore.sources.archives import Member
from ocrstore.sources.dialect import Entry
from ocrstore.sources.pictures import FoundFile
from ocrstore.sources.rows import RowDialect
from ocrstore.sources.source import Source, open_source

Picture = str | os.PathLike[str] | bytes | npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SourceSample:
    """A picture with its annotation, for `ocrstore.build`.

    The picture is a path, the bytes of a file, or an (H, W, 3) uint8 RGB array. Polygons are (n, 2)
    or flat sequences of numbers, in the coordinates of the picture; `None` says that nobody has
    annotated it, which is not the same as no text. `attributes` are further values for the index,
    of the same types in every sample.
    """

    key: str
    picture: Picture
    polygons: Sequence[Any] | npt.NDArray[Any] | None = None
    texts: Sequence[str | None] | npt.NDArray[Any] | None = None
    ignored: Sequence[bool] | npt.NDArray[Any] | None = None
    languages: Sequence[str | None] | npt.NDArray[Any] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def regions(self) -> list[tuple[Any, Any, Any, Any]]:
        """Return points, text, flag and language of each polygon.

        Raises:
            SourceError: A list has another length than the polygons, or there are none.
        """
        polygons = [] if self.polygons is None else [_points(points) for points in self.polygons]
        parts: list[Sequence[Any]] = []
        for name, missing in (("texts", None), ("ignored", False), ("languages", None)):
            given = getattr(self, name)
            if given is not None and len(given) != len(polygons):
                found = "no" if self.polygons is None else len(polygons)
                raise SourceError(
                    f"{shown(self.key)}: {found} polygons, but {len(given)} {name}; expected one "
                    "for each polygon"
                )
            values: list[Any] = [missing] * len(polygons) if given is None else list(given)
            parts.append([v.item() if hasattr(v, "item") else v for v in values])
        return list(zip(polygons, *parts, strict=True))


def _points(points: Any) -> Any:
    try:
        return np.asarray(points).tolist()
    except ValueError:  # points of different lengths, which is reported when the sample is read
        return points


def open_or_collect(
    images: str | os.PathLike[str] | Iterable[SourceSample], spool: Path, **options: Any
) -> Source:
    """Open pictures (`open_source`), or take samples from Python (`collect`).

    Raises:
        SchemaError: Options of `open_source` are given with samples from Python.
        SourceError: What either of the two raises.
    """
    if isinstance(images, (str, os.PathLike)):
        return open_source(images, **options)
    given = [name for name, value in options.items() if value]
    if given:
        raise SchemaError(
            f"{', '.join(given)}: not with samples from Python; leave out the samples themselves "
            "and give each SourceSample its polygons"
        )
    return collect(images, spool)


def collect(samples: Iterable[SourceSample], spool: Path) -> Source:
    """Take samples as a source; pictures that are no files are written into one file meanwhile.

    Args:
        samples: Iterated once.
        spool: The file for bytes and arrays; the caller removes it.

    Raises:
        SourceError: A sample is none, a key occurs twice, or an array is no picture.
    """
    found: dict[str, tuple[Path | tuple[int, int, str], Entry | None, Mapping[str, Any]]] = {}
    with spool.open("wb") as file:
        for sample in samples:
            if not isinstance(sample, SourceSample):
                raise SourceError(
                    f"expected an ocrstore.SourceSample, found {type(sample).__name__}"
                )
            if not isinstance(sample.key, str) or not sample.key or sample.key in found:
                what = "twice" if sample.key in found else "no text"
                raise SourceError(f"the key {sample.key!r} is {what}; each sample needs its own")
            place: Path | tuple[int, int, str]
            if isinstance(sample.picture, (str, os.PathLike)):
                place = Path(sample.picture)
            else:
                data, suffix = _encoded(sample)
                place = (file.tell(), len(data), suffix)
                file.write(data)
            regions = sample.regions()
            entry = None
            if sample.polygons is not None:
                entry = Entry((sample.key,), regions, shown(sample.key))
            found[sample.key] = place, entry, dict(sample.attributes)
    mtime_ns = spool.stat().st_mtime_ns
    keys = sorted(found)
    pictures, entries = [], {}
    for row, key in enumerate(keys):
        place, entry, _ = found[key]
        path: ReadableFile
        if isinstance(place, Path):
            path = place
        else:
            offset, nbytes, suffix = place
            path = Member(spool, f"{key}{suffix}", offset, nbytes, mtime_ns)
        pictures.append(FoundFile(key, path))
        if entry is not None:
            entries[row] = entry
    if not pictures:
        raise SourceError("no sample was given")
    return Source(
        None,
        tuple(pictures),
        RowDialect("python"),
        entries,
        problems=(),
        description=f"{len(pictures)} samples from Python, {len(entries)} annotated",
        annotation_files=(),
        attributes={key: found[key][2] for key in keys if found[key][2]},
    )


def _encoded(sample: SourceSample) -> tuple[bytes, str]:
    """Return a picture's bytes, and the suffix that they need; an array becomes a PNG."""
    picture = sample.picture
    if isinstance(picture, (bytes, bytearray, memoryview)):
        return bytes(picture), ""
    pixels = np.asarray(picture)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise SourceError(
            f"{shown(sample.key)}: an array of {pixels.dtype} with shape {pixels.shape}; a picture "
            "is (H, W, 3) uint8 RGB, the bytes of a file, or a path"
        )
    import cv2

    done, data = cv2.imencode(".png", pixels[..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 1])
    assert done
    return data.tobytes(), ".png"
