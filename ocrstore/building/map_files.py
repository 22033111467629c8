"""Import maps from npz and npy files, after checking them against recipe and polygons.

A picture has `<stem>.npz`, or `<stem>.prob_map.npy` and so on (WebDataset), in a folder or in
archives.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.annotation import FoundSample, Problem, ReadableFile
from ocrstore.keys import path_of
from ocrstore.schema import COLUMNS, MAPS, MASK
from ocrstore.sources.archives import Member, expand, list_archives

Arrays = dict[str, npt.NDArray[Any]]

AGREEMENT = 0.5
"""Least intersection over union of an imported probability map with the drawn one. Maps with the
same geometry and another shrink ratio (0.3 to 0.6) are above it, flipped or shifted ones below."""
_THRESHOLD_DIFFERENCE = 0.15


def find_maps(place: Path, sample: FoundSample) -> list[ReadableFile]:
    """Find the map files of a picture: one npz, or an npy for each map; empty if there are none.

    By the path below the images folder or by its stem, or by the name that the picture has in an
    archive.
    """
    relative = Path(path_of(sample.key))
    stems = [relative.with_suffix("").as_posix(), path_of(sample.key), relative.stem]
    if isinstance(sample.path, Member):
        stems.insert(0, sample.path.name.removesuffix(sample.path.suffix))
    members = None if place.is_dir() else _members(place)
    for stem in stems:
        for names in ([f"{stem}.npz"], [f"{stem}.{name}.npy" for name in MAPS]):
            found: list[ReadableFile]
            if members is None:
                found = [
                    place / name
                    for name in names
                    if os.path.isfile(place / name)  # noqa: PTH113  # Path's raises for long names
                ]
            else:
                found = [members[name] for name in names if name in members]
            if found:
                return found
    return []


def _members(place: Path) -> dict[str, Member]:
    archives = expand(place)
    return _listed(place, tuple(path.stat().st_mtime_ns for path in archives))


@lru_cache(maxsize=2)
def _listed(place: Path, times: tuple[int, ...]) -> dict[str, Member]:
    del times  # of the archives: they are listed again when one has changed
    others = list_archives(place).others
    return {file.relative: file.path for file in others if isinstance(file.path, Member)}


def import_maps(place: Path, sample: FoundSample, drawn: Arrays) -> tuple[Arrays, list[Problem]]:
    """Return a picture's maps from its files if these pass all checks, else the drawn ones.

    The messages are stored with the sample and are part of the content fingerprint.
    """
    key, files = sample.key, find_maps(place, sample)
    if not files:
        return drawn, [
            Problem("maps-missing", "no map file for this picture; its maps were drawn", key=key)
        ]
    path = Path(files[0])
    try:
        arrays = _read(files[0]) if path.suffix == ".npz" else _read_each(files)
        taken = {name: _checked(name, arrays[name], drawn) for name in arrays}
    except _WrongMapsError as exc:
        message = f"its map file {path.name}: {exc}; its maps were drawn"
        return drawn, [Problem("bad-maps", message, key=key)]
    complaint = _disagreement(taken, drawn)
    if complaint:
        message = f"its map file {path.name} disagrees with the polygons: {complaint}; maps drawn"
        return drawn, [Problem("maps-disagree", message, key=key)]
    return drawn | taken, []


class _WrongMapsError(Exception):
    pass


def _read_each(files: list[ReadableFile]) -> Arrays:
    """Read an npy file for each map."""
    found = {}
    try:
        for file in files:
            name = Path(file).name.removesuffix(".npy").rpartition(".")[2]
            found[name] = np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as exc:
        raise _WrongMapsError(f"cannot be read ({exc})") from exc
    return found


def _read(path: ReadableFile) -> Arrays:
    try:
        # read whole, so that a file that is being changed cannot mix two states
        loaded = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise _WrongMapsError("a single array, not an npz archive")
        with loaded as archive:
            found = {name: archive[name] for name in MAPS if name in archive.files}
            listed = ", ".join(archive.files) or "nothing"
    except (
        OSError,
        ValueError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        KeyError,
        MemoryError,
    ) as exc:
        raise _WrongMapsError(f"cannot be read ({exc})") from exc
    if "prob_map" not in found and "thresh_map" not in found:
        raise _WrongMapsError(f"has neither prob_map nor thresh_map; it has {listed}")
    return found


def _checked(name: str, array: npt.NDArray[Any], drawn: Arrays) -> npt.NDArray[Any]:
    wanted = drawn[name]
    squeezed = array[0] if array.ndim == 3 and array.shape[0] == 1 else array
    if squeezed.shape != wanted.shape:
        raise _WrongMapsError(f"{name} has shape {array.shape}, the view's is {wanted.shape}")
    if squeezed.dtype.kind not in "biuf":
        raise _WrongMapsError(f"{name} holds {array.dtype}, not numbers")
    values = squeezed.astype(np.float32)
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 1):  # NaN fails both
        raise _WrongMapsError(f"{name} ranges from {low:g} to {high:g}, expected 0 to 1")
    if COLUMNS[name].role == MASK and not np.isin(values, (0, 1)).all():
        raise _WrongMapsError(f"{name} holds other values than 0 and 1")
    return values.astype(wanted.dtype)


def _disagreement(taken: Arrays, drawn: Arrays) -> str:
    if "prob_map" in taken:
        counts = drawn["prob_mask"] != 0
        given, own = (taken["prob_map"] > 0.5) & counts, (drawn["prob_map"] > 0.5) & counts
        union = int(np.count_nonzero(given | own))
        overlap = np.count_nonzero(given & own) / union if union else 1.0
        if overlap < AGREEMENT:
            return f"prob_map overlaps by {overlap:.2f}, expected {AGREEMENT:g} or more"
    if "thresh_map" in taken:
        inside = drawn["thresh_mask"] != 0
        # outside the borders other tools write 0 where these maps have thresh_min
        if inside.any():
            difference = np.abs(taken["thresh_map"][inside] - drawn["thresh_map"][inside]).mean()
            if difference > _THRESHOLD_DIFFERENCE:
                return (
                    f"thresh_map differs by {difference:.2f} on average inside the borders, "
                    f"expected {_THRESHOLD_DIFFERENCE:g} or less"
                )
    return ""
