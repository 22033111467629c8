"""Recognise a source that is probably the wrong one: other pictures, or no annotations."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ocrstore.annotation import AnnotationReader
from ocrstore.keys import shown
from ocrstore.sources import Source, all_dialects
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
    share of them, unless no picture has polygons any more.

    Args:
        stores: The store, or the shards of a data set.
        source: The source.
        build: The record of the build.
        what: What the message calls them.
    """
    there = set(source.keys)
    annotated: dict[str, int] = {}
    for store in stores:
        found = AnnotationReader(store, strict=False).all_polygons().counts.tolist()
        counts = zip(store.keys, found, strict=True)
        annotated |= {key: count for key, count in counts if count and key in there}
    lost = {key: n for key, n in annotated.items() if not source.has_annotation(key)}
    if len(lost) < 2 or len(lost) <= _MAY_GO * len(annotated):
        if not annotated or any(source[key].polygons for key in annotated):
            return ""
        lost = annotated  # there are files, but nothing in them
    polygons = sum(lost.values())
    recorded = build.get("source")
    place = recorded.get("annotations") if isinstance(recorded, Mapping) else None
    dialect = build.get("dialect")
    message = (
        f"the {what} has {polygons} polygon{'' if polygons == 1 else 's'} in {len(lost)} of "
        f"these pictures, and the source has none for them ({source.description})."
    )
    if dialect in _NOT_FILES:
        return f"{message} {_NOT_FILES[dialect]}"
    options = ""
    if isinstance(place, str):
        gone = "" if Path(place).exists() else ", which does not exist now"
        message += f" They were read from {shown(place)}{gone}."
        options = f" --annotations {shlex.quote(shown(place))}"
    if isinstance(dialect, str) and dialect not in [known.name for known in all_dialects()]:
        message += f" Their dialect {shown(dialect)} is not registered now."
    again = options or " --annotations PATH"
    return f"{message} Give the annotations again, for example{again}"
