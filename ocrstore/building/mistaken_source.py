"""Recognise a source that is probably the wrong one: other pictures, or no annotations."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ocrstore.annotation import AnnotationReader
from ocrstore.errors import SourceError
from ocrstore.keys import shown
from ocrstore.sources import Source, all_dialects
from ocrstore.sources.archives import expand, is_archive
from ocrstore.store import Store

_MAY_GO = 0.1
"""This share of the annotated pictures may lose their annotations without being asked for."""
_NOT_FILES = {
    "parquet": "They were read from columns of parquet files; name these, for example "
    "--columns-map objects=NAME",
    "python": "They came with samples from Python; give these their polygons again",
}
"""What to do about lost annotations of a dialect that has no files of its own."""


def not_its_folder(samples: int, images: Path | str) -> str:
    """Return the message for a folder that has none of a store's samples."""
    none = "the one sample" if samples == 1 else f"none of the {samples} samples"
    is_not = "is not" if samples == 1 else "is"
    return f"{none} of the store {is_not} in {images}; is it the right folder?"


def lost_annotations(
    stores: Iterable[Store], source: Source, build: Mapping[str, Any], *, what: str = "store"
) -> str:
    """Return the message if a source has no annotation for pictures whose polygons are stored.

    That is how annotations look that were not found: a folder that moved, a forgotten
    `--annotations`, a dialect that nobody registered. Empty for a single picture and for a small
    share of them, unless no picture has polygons any more. A source of other pictures, which only
    `--force` takes, must have annotations, too.

    Args:
        stores: The store, or the shards of a data set.
        source: The source.
        build: The record of the build.
        what: What the message calls them.
    """
    there = set(source.keys)
    stored: dict[str, int] = {}
    other_pictures = True
    for store in stores:
        found = AnnotationReader(store, strict=False).all_polygons().counts.tolist()
        stored |= {key: n for key, n in zip(store.keys, found, strict=True) if n}
        other_pictures = other_pictures and there.isdisjoint(store.keys)
    if stored and other_pictures and not source.has_annotations:
        return _message(stored, "pictures, none of which is in the source;", source, build, what)
    annotated = {key: n for key, n in stored.items() if key in there}
    lost = {key: n for key, n in annotated.items() if not source.has_annotation(key)}
    if len(lost) < 2 or len(lost) <= _MAY_GO * len(annotated):
        if not annotated or any(source[key].polygons for key in annotated):
            return ""
        lost = annotated  # there are files, but nothing in them
    return _message(lost, "of these pictures,", source, build, what)


def _message(
    lost: Mapping[str, int], where: str, source: Source, build: Mapping[str, Any], what: str
) -> str:
    polygons = sum(lost.values())
    recorded = build.get("source")
    recorded = recorded if isinstance(recorded, Mapping) else {}
    place, dialect = recorded.get("annotations"), build.get("dialect")
    message = (
        f"the {what} has {polygons} polygon{'' if polygons == 1 else 's'} in {len(lost)} {where} "
        f"and the source has none for them ({source.description})."
    )
    if dialect in _NOT_FILES:
        return f"{message} {_NOT_FILES[dialect]}"
    options = " --annotations PATH"
    if isinstance(place, str):
        place = _archive_of(place, recorded.get("images"))
        gone = "" if _exists(place) else ", which does not exist now"
        message += f" They were read from {shown(place)}{gone}."
        options = f" --annotations {shlex.quote(shown(place))}"
    if isinstance(dialect, str) and dialect not in [known.name for known in all_dialects()]:
        message += f" Their dialect {shown(dialect)} is not registered now."
        options += " --format MODULE:CLASS"
    return f"{message} Give the annotations again, for example{options}"


def _archive_of(place: str, images: object) -> str:
    """Return the archive with the annotations that were read from a place, or the place itself.

    Of annotations in several archives only their folder is recorded: then the pictures' archives.
    """
    for path in (Path(place), *Path(place).parents):
        if is_archive(path):
            return str(path)
    if isinstance(images, str) and is_archive(images) and Path(images).parent == Path(place):
        return images
    return place


def _exists(place: str) -> bool:
    try:
        return Path(place).exists() or (is_archive(place) and bool(expand(place)))
    except SourceError:
        return False
