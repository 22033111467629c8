"""Decide in which frame the polygons of pictures with an EXIF rotation are.

Annotation tools disagree about EXIF: some draw on the raw picture, as it is stored in the file,
some on the upright one. Polygons that fit one of the two only tell by themselves. For the others
the evidence of the whole source decides, or the user.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ocrstore.annotation import AnnotationReader, FoundSample, ReadableFile
from ocrstore.building.derive import AUTO_FRAME, FrameRule, file_state
from ocrstore.decode import open_picture
from ocrstore.errors import DecodeError, SchemaError, SourceError
from ocrstore.geometry import frame_of, upright_size
from ocrstore.keys import shown
from ocrstore.metadata import build_record
from ocrstore.sources import Source
from ocrstore.store import Store

CHOICES = ("auto", "raw", "upright")
_HEAD_NBYTES = 1 << 17
"""Enough for the header of nearly every JPEG; the others are read whole."""
_KEYS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Rotated:
    """A picture with an EXIF rotation and polygons."""

    sample: FoundSample
    orientation: int
    stored_size: tuple[int, int]
    """(width, height) before the rotation."""
    row: int | None
    """Its row in the existing store, if its file has not changed since."""


def recorded_rule(store: Store) -> FrameRule:
    """Return by which rule a store was built; without a record each picture was guessed alone."""
    found = build_record(store).get("polygons_frame")
    return AUTO_FRAME if found is None else FrameRule(found["asked"], found["ambiguous"])


def rotated_pictures(source: Source, old: Store | None) -> Iterator[Rotated]:
    """Yield the pictures of a source with an EXIF rotation and polygons.

    Of files that have not changed since `old` was built no byte is read.
    """
    if not source.has_annotations:
        return
    known = {} if old is None else _known(old)
    for position, (key, path) in enumerate(zip(source.keys, source.paths, strict=True)):
        found = known.get(key)
        row = None
        try:
            state = file_state(path)
            if found is not None and found[1:3] == (state.nbytes, state.mtime_ns):
                row, orientation, size = found[0], found[3], found[4]
            else:
                orientation, size = _read_orientation(path)
        except (OSError, DecodeError):
            continue  # the build reports it
        if orientation != 1:
            sample = source.at(position)
            if sample.polygons:
                yield Rotated(sample, orientation, size, row)


def decide_rule(parts: Iterable[tuple[Source, Store | None]], asked: str) -> tuple[FrameRule, str]:
    """Decide by the evidence of a whole source how its polygons are turned.

    Args:
        parts: The source, or its parts, each with the existing store of its pictures.
        asked: `auto`, `raw` or `upright`.

    Returns:
        The rule, and a sentence that says why; empty if there was nothing to decide.

    Raises:
        SourceError: The evidence is mixed, and there are pictures that fit both frames.
    """
    if asked not in CHOICES:
        raise SchemaError(f"polygons_frame has to be {', '.join(CHOICES)}, not {asked!r}")
    if asked != "auto":
        return FrameRule(asked, asked), ""
    counts = {"stored": 0, "upright": 0}
    ambiguous: list[str] = []
    for picture in chain.from_iterable(rotated_pictures(*part) for part in parts):
        if picture.sample.frame is None:
            points = [polygon.points for polygon in picture.sample.polygons]
            fits = frame_of(points, picture.stored_size, picture.orientation, strict=True)
            if fits == "either":
                ambiguous.append(picture.sample.key)
            else:
                counts[fits] += 1
    raw, upright = counts["stored"], counts["upright"]
    if not ambiguous:
        return AUTO_FRAME, ""
    examples = ", ".join(map(shown, ambiguous[:_KEYS_SHOWN]))
    examples += ", ..." if len(ambiguous) > _KEYS_SHOWN else ""
    evidence = (
        f"of the pictures with an EXIF rotation {raw} have polygons that fit the raw picture only, "
        f"{upright} that fit the upright one only"
    )
    if raw and upright:
        raise SourceError(
            f"{evidence}, and {len(ambiguous)} fit both ({examples}). Which frame are those in? "
            "Give --polygons-frame raw or upright (in Python polygons_frame=); pictures that fit "
            "only one frame keep that"
        )
    rule = FrameRule("auto", "upright" if upright else "raw")
    return rule, f"{evidence}; the {len(ambiguous)} that fit both are taken as {rule.ambiguous}"


def reframed(source: Source, old: Store, rule: FrameRule) -> dict[str, str]:
    """Return the unchanged pictures whose polygons are in another frame by a rule than stored."""
    problems = AnnotationReader(old, strict=False).problems()
    changed = {}
    for picture in rotated_pictures(source, old):
        if picture.row is not None:
            lines = problems[picture.row]
            before = "upright" if any(x.startswith("polygons-upright") for x in lines) else "raw"
            now, _ = rule.choose(picture.sample, picture.stored_size, picture.orientation)
            if now != before:
                changed[picture.sample.key] = f"polygons are taken as {now} now, not {before}"
    return changed


_Known = tuple[int, int, int, int, tuple[int, int]]
"""Row, bytes and time of the file, orientation, stored size."""


def _known(old: Store) -> dict[str, _Known]:
    table = old.snapshot.index.table
    if not {"source_nbytes", "source_mtime_ns"} <= set(table.column_names):
        return {}
    reader = AnnotationReader(old, strict=False)
    columns = (
        range(len(old)),
        table["source_nbytes"].to_pylist(),
        table["source_mtime_ns"].to_pylist(),
        reader.numbers("orientation", 1).tolist(),
        reader.numbers("width", 0).tolist(),
        reader.numbers("height", 0).tolist(),
    )
    found = {}
    for key, row, nbytes, mtime, orientation, *size in zip(old.keys, *columns, strict=True):
        if 1 <= orientation <= 8:
            # turning back swaps the sides of the same orientations
            stored = upright_size((size[0], size[1]), orientation)
            found[key] = (row, nbytes, mtime, orientation, stored)
    return found


def _read_orientation(path: ReadableFile) -> tuple[int, tuple[int, int]]:
    """Return a picture's EXIF orientation and its stored size."""
    if isinstance(path, Path):
        with path.open("rb") as file:
            head = file.read(_HEAD_NBYTES)
        # a longer header, and what may say its orientation at the end, is read below
        with suppress(DecodeError):
            if head.startswith(b"\xff\xd8"):
                picture = open_picture(head, max_pixels=2**62)
                return picture.orientation, picture.size
    picture = open_picture(path.read_bytes(), max_pixels=2**62)
    return picture.orientation, picture.size
