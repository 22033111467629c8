"""The stable words for everything a source has to decide about, and what each one means."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """What one kind of problem means."""

    meaning: str
    loses: bool
    """True when something a user may have wanted (picture, annotation, polygon) is left out."""


def _lost(meaning: str) -> Kind:
    return Kind(meaning, loses=True)


def _note(meaning: str) -> Kind:
    return Kind(meaning, loses=False)


KINDS: dict[str, Kind] = {
    # pictures
    "not-a-picture": _note("a file among the pictures is neither picture nor annotation"),
    "hidden-files": _note("hidden files with picture suffixes were skipped"),
    "broken-link": _lost("a symbolic link leads nowhere"),
    "not-a-file": _lost("a pipe, socket or device has a picture's name"),
    "unreadable-folder": _lost("a folder cannot be listed"),
    "folder-seen-twice": _note("a link leads to a folder that is scanned already (loops end here)"),
    "case-collision": _note("names differ only by case; all are kept"),
    "unicode-collision": _note("names differ only by Unicode form (NFC, NFD); all are kept"),
    "same-name": _note("pictures in different folders have one name; all are kept"),
    # annotations as a whole
    "no-annotation": _note("no annotation for the picture; it is kept as not annotated"),
    "missing-picture": _lost("an annotation is about a picture that is not there"),
    "ambiguous-name": _lost("a name could mean several pictures, or several names one picture"),
    "duplicate-annotation": _lost("a picture is annotated again; the first annotation counts"),
    "bad-name": _lost("a picture's name is empty or not a text"),
    "unknown-image-id": _lost("annotations refer to an image id that is not listed"),
    "duplicate-image-id": _lost("an image id is listed again; the first one counts"),
    "duplicate-json-key": _lost("a JSON object has a key twice; the first one counts"),
    "not-an-annotation": _note("a file among the annotations is not one that the dialect reads"),
    "unrelated-annotations": _lost("annotations were found that name none of the pictures"),
    "unreadable-annotation": _lost("an annotation file cannot be read"),
    "bad-json": _lost("a text is not valid JSON"),
    "bad-structure": _lost("a value has another type than the dialect says"),
    "missing-key": _lost("a key that is needed is not there"),
    "dialect-failed": _lost("the dialect's own code raised an error on an annotation"),
    "not-utf8": _note("a text is not UTF-8; it was read as Latin-1"),
    "empty-annotation": _note("an annotation file is empty: a picture without text"),
    "name-disagrees": _note("the file's name and its content name different pictures"),
    "extra-numbers": _lost("most lines have more points than the four that were taken"),
    # single polygons
    "bad-line": _lost("a line does not begin with the numbers of a region"),
    "bad-points": _lost("the points are not a list of pairs or of numbers"),
    "not-a-number": _lost("a coordinate is not a number"),
    "odd-coordinates": _lost("a coordinate is missing: x without y"),
    "too-few-points": _lost("a polygon has fewer than three points"),
    "not-finite": _lost("a coordinate is NaN or infinite"),
    "huge-coordinates": _lost("a coordinate lies beyond ±1,048,576"),
    "bad-box": _lost("a box is not four numbers, or has a negative side"),
    "unsupported-shape": _lost("a shape that bounds no area (point, line) or no polygon (circle)"),
    "rle-segmentation": _lost("a run-length mask without a box"),
    "rle-boxed": _note("a run-length mask; its box was taken instead"),
    "bad-text": _note("a text is not valid Unicode or not a text; the polygon is kept"),
    "bad-language": _note("a language is not a text; the polygon is kept without"),
    "bad-flag": _note("an ignore flag is neither true nor false; the polygon is kept, not ignored"),
}
"""Every kind of problem a source reports, in the order of the documentation."""
