"""The stable words for what a build has to decide about pictures, beside those of the sources."""

from __future__ import annotations

from ocrstore.annotation import Problem
from ocrstore.sources.kinds import KINDS as SOURCE_KINDS
from ocrstore.sources.kinds import Kind

BUILD_KINDS: dict[str, Kind] = {
    # pictures that are left out
    "vanished": Kind("the picture was there when the build began and is gone", loses=True),
    "unreadable": Kind("the picture's file cannot be read", loses=True),
    "changing": Kind("the picture's file changed whenever it was read", loses=True),
    "bad-picture": Kind("empty, truncated, damaged, or not a picture at all", loses=True),
    "too-many-pixels": Kind("more pixels than --max-pixels allows", loses=True),
    "not-a-jpeg": Kind("the image column keeps JPEG bytes, and the picture has none", loses=True),
    "bad-geometry": Kind("the recipe's pipeline failed on the picture", loses=True),
    "bad-key": Kind("the picture's path cannot be the key of a sample", loses=True),
    "crashed": Kind("a decoder crashed on the picture, twice", loses=True),
    # maps
    "maps-missing": Kind("no map file for the picture; its maps were drawn", loses=True),
    "bad-maps": Kind("a map file has the wrong content; its maps were drawn", loses=True),
    "maps-disagree": Kind("a map file contradicts the polygons; its maps were drawn", loses=True),
    "undrawable-polygon": Kind(
        "a polygon is sent out of all bounds, or has too many points to be drawn", loses=True
    ),
    # what is good to know
    "mislabelled": Kind("the content is another format than the file's name says", loses=False),
    "polygons-rotated": Kind("EXIF rotation: the polygons were rotated with it", loses=False),
    "polygons-upright": Kind("EXIF rotation: the polygons were upright already", loses=False),
    "polygon-outside": Kind("a polygon lies wholly outside of its picture; kept", loses=False),
}
"""Every kind of problem a build reports on its own, in the order of the documentation."""

KINDS: dict[str, Kind] = {**SOURCE_KINDS, **BUILD_KINDS}


def loses(problem: Problem) -> bool:
    """Tell whether something that a user may have wanted was left out."""
    kind = KINDS.get(problem.kind)
    return kind is None or kind.loses  # a word that is not known is taken for the worse
