"""Every kind of problem that sources and builds report: its meaning, and whether data is lost."""

from __future__ import annotations

from dataclasses import dataclass

from ocrstore.annotation import Problem


@dataclass(frozen=True, slots=True)
class Kind:
    """What one kind of problem means."""

    meaning: str
    loses: bool
    """True if something a user may have wanted (picture, annotation, polygon) is left out."""


def _lost(meaning: str) -> Kind:
    return Kind(meaning, loses=True)


def _note(meaning: str) -> Kind:
    return Kind(meaning, loses=False)


SOURCE_KINDS: dict[str, Kind] = {
    # pictures
    "not-a-picture": _note("a file among the pictures is neither picture nor annotation"),
    "hidden-files": _note("hidden files with picture suffixes were skipped"),
    "broken-link": _lost("a symbolic link has no target"),
    "not-a-file": _lost("a pipe, socket or device has a picture's name"),
    "unreadable-folder": _lost("a folder cannot be listed"),
    "folder-seen-twice": _note("a link leads to a folder that was scanned already, or to a loop"),
    "case-collision": _note("names differ only by case; all are kept"),
    "unicode-collision": _note("names differ only by Unicode form (NFC, NFD); all are kept"),
    "same-name": _note("pictures in different folders have the same name; all are kept"),
    "bad-member": _lost(
        "a member of an archive is a link, encrypted, too large, or leads out of it"
    ),
    "listed-file-missing": _lost("a list names a file that does not exist"),
    "listed-twice": _lost(
        "a name is twice in a list or table (the first is used) or in an archive (the last)"
    ),
    # annotations as a whole
    "no-annotation": _note("no annotation for this picture; it is kept as not annotated"),
    "missing-picture": _note("an annotation names a picture that is not in the folder"),
    "ambiguous-name": _lost("a name matches several pictures, or several names one picture"),
    "duplicate-annotation": _lost("a picture is annotated twice; the first annotation is used"),
    "bad-name": _lost("a picture's name is empty or not a string"),
    "unknown-image-id": _lost("annotations refer to an image id that is not listed"),
    "duplicate-image-id": _lost("an image id is listed twice; the first one is used"),
    "duplicate-json-key": _lost("a JSON object has a key twice; the first one is used"),
    "not-an-annotation": _note("a file among the annotations is not one that the dialect reads"),
    "unrelated-annotations": _lost("annotations were found that name none of the pictures"),
    "unreadable-annotation": _lost("an annotation file cannot be read"),
    "bad-json": _lost("not valid JSON"),
    "bad-xml": _lost("not valid XML, or XML that declares entities"),
    "bad-structure": _lost("a value has another type than the dialect defines"),
    "missing-key": _lost("a required key is missing"),
    "unknown-size": _lost("points are shares of a picture whose size cannot be read"),
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
    "unsupported-shape": _lost("a shape without area (point, line), or not a polygon (circle)"),
    "rle-segmentation": _lost("a run-length mask without a box"),
    "rle-boxed": _note("a run-length mask; its box is used instead"),
    "bad-text": _note("a text is not valid Unicode or not a string; the polygon is kept"),
    "bad-language": _note("a language is not a string; the polygon is kept without it"),
    "bad-flag": _note("an ignore flag is neither true nor false; the polygon is not ignored"),
}
"""What a source reports, in the order of docs/sources.md."""

BUILD_KINDS: dict[str, Kind] = {
    # pictures that are left out
    "vanished": _lost("the picture's file does not exist, or was deleted during the build"),
    "unreadable": _lost("the picture's file cannot be read"),
    "changing": _lost("the picture's file changed each time it was read"),
    "bad-picture": _lost("empty, truncated, damaged, or not a picture at all"),
    "too-many-pixels": _lost("more pixels than --max-pixels allows"),
    "not-a-jpeg": _lost("the store has codec jpeg for `image`, and the picture is not a JPEG"),
    "bad-geometry": _lost("the recipe's pipeline failed on the picture"),
    "bad-key": _lost("the picture's path is too long for a key"),
    "crashed": _lost("the decoder crashed on the picture, twice"),
    "shard-failed": _lost("a shard could not be made, for example because a disk was full"),
    # maps
    "maps-missing": _lost("no map file for this picture; its maps were drawn"),
    "bad-maps": _lost("a map file has invalid content; the maps were drawn"),
    "maps-disagree": _lost("a map file does not match the polygons; the maps were drawn"),
    "undrawable-polygon": _lost("a polygon is far out of bounds, or has too many points to draw"),
    # notes
    "mislabelled": _note("the content has another format than the file's suffix says"),
    "polygons-rotated": _note("EXIF rotation: the polygons were rotated, too"),
    "polygons-upright": _note("EXIF rotation: the polygons were upright already"),
    "polygon-outside": _note("a polygon lies entirely outside of its picture; kept"),
}
"""What a build reports besides, in the order of docs/build.md."""

KINDS: dict[str, Kind] = {**SOURCE_KINDS, **BUILD_KINDS}


def loses(problem: Problem) -> bool:
    """Return whether a problem means that something was left out; unknown kinds count as such."""
    kind = KINDS.get(problem.kind)
    return kind is None or kind.loses
