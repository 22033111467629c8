"""Validate regions and parsed JSON: a region becomes a polygon, or a problem that says why not."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ocrstore.annotation import Polygon, Problem
from ocrstore.sources.annotation_file import AnnotationFile, Flaw, UnusableAnnotationError
from ocrstore.sources.dialect import Region

COORDINATE_LIMIT = float(1 << 20)
"""No picture is this large; float32 still holds sixteenths of a pixel here."""
IGNORED_TEXT = "###"
"""A region with this text is ignored in every dialect."""

TEXT_KEYS = ("utf8_string", "text", "transcription")
"""Names under which tools keep the text of a region, the first that is there counts."""
IGNORE_KEYS = ("ignore", "ignored", "difficult", "illegible")

# tuples: a union such as `int | float` would be made again for each of a million coordinates
_NUMBERS = (int, float, np.integer, np.floating)
"""numpy's own scalars may come from a dialect that computes its points."""
_LISTS = (list, tuple)
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_TRUE = ("true", "1", "yes")
_FALSE = ("false", "0", "no", "")


class _RejectedError(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message


def judge(
    regions: Iterable[Region | Flaw],
    *,
    key: str,
    where: str,
    size: Callable[[], tuple[int, int]] = lambda: (1, 1),
) -> tuple[list[Polygon], list[Problem]]:
    """Validate the regions of one sample; each becomes a polygon or a problem.

    `size` returns width and height of the upright picture; called once, if a region is relative.
    """
    size = functools.cache(size)
    polygons: list[Polygon] = []
    problems: list[Problem] = []
    position = 0
    for region in regions:
        if isinstance(region, Flaw):
            at = position if region.region else None
            problems.append(Problem(region.kind, region.message, key=key, polygon=at))
            position += region.region
            continue
        flaws: list[tuple[str, str]] = [(flaw.kind, flaw.message) for flaw in region.flaws]
        try:
            points = _points(region.points, size() if region.relative else None)
        except _RejectedError as exc:
            flaws.append((exc.kind, f"{where}, region {position}: {exc.message}; left out"))
        else:
            odd: list[tuple[str, str]] = []
            text = _text(region.text, odd)
            ignored = _flag(region.ignored, odd) or text == IGNORED_TEXT
            polygons.append(Polygon(points, text, ignored, _language(region.language, odd)))
            flaws += [(kind, f"{where}, region {position}: {what}") for kind, what in odd]
        problems += [Problem(kind, what, key=key, polygon=position) for kind, what in flaws]
        position += 1
    return polygons, problems


def box_points(left: object, top: object, right: object, bottom: object) -> list[list[object]]:
    """Return the corners of a box, clockwise from the top left; numbers are not checked."""
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def box_region_points(box: object, *, sides: bool) -> list[list[object]] | str:
    """Return the corners of x, y, width, height (`sides`) or x1, y1, x2, y2; or what is wrong."""
    if not isinstance(box, list | tuple) or len(box) != 4:
        return f"a box is four numbers, found {brief(box)}"
    if not all(_is_number(value) for value in box):
        return f"a box is four numbers, found {brief(box)}"
    left, top, right, bottom = box
    if sides:
        if right < 0 or bottom < 0:
            return f"a box has no negative width or height, found {brief(box)}"
        try:
            right, bottom = left + right, top + bottom
        except OverflowError:  # an int too large for float; the corners are judged like any others
            right, bottom = math.inf, math.inf
    elif right < left or bottom < top:
        return f"a box goes from top left to bottom right, found {brief(box)}"
    return box_points(left, top, right, bottom)


def rotated_box_points(
    box: Sequence[float], angle: float, *, centred: bool
) -> list[list[float]] | str:
    """Return the corners of x, y, width, height after a clockwise turn; or what is wrong.

    The turn, in radians, is about the box's centre (`centred`) or its top left corner.
    """
    corners = box_region_points(tuple(box), sides=True)
    if isinstance(corners, str):
        return corners
    if not math.isfinite(angle):
        return f"an angle is a number, found {angle}"
    left, top, width, height = box
    x, y = (left + width / 2, top + height / 2) if centred else (left, top)
    cos, sin = math.cos(angle), math.sin(angle)
    return [
        [x + cos * (px - x) - sin * (py - y), y + sin * (px - x) + cos * (py - y)]
        for px, py in (
            (left, top),
            (left + width, top),
            (left + width, top + height),
            (left, top + height),
        )
    ]


def floats(values: Iterable[Any]) -> list[float] | None:
    """Return numbers and texts of numbers as floats; None if one is neither."""
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        return None


def number(text: str) -> float | str:
    """Return a text as a float, or as it is where it is none, so that its region is refused."""
    try:
        return float(text)
    except ValueError:
        return text


def text_in(*places: object) -> object:
    """Return the text of a region from the first object that has one."""
    found = (p[key] for p in places if isinstance(p, dict) for key in TEXT_KEYS if key in p)
    return next((text for text in found if text is not None), None)


def ignored_in(place: object) -> object:
    """Return the flag of an object that says that a region is to be ignored."""
    flags = [place[key] for key in IGNORE_KEYS if key in place] if isinstance(place, dict) else []
    return next((flag for flag in flags if str(flag).lower() in _TRUE), flags[0] if flags else None)


def brief(value: object) -> str:
    """Show a value in a message, shortened, as valid Unicode."""
    shown = ascii(value) if not isinstance(value, int) else _brief_int(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _brief_int(value: int) -> str:
    # str() of an integer of thousands of digits is refused
    return str(value) if value.bit_length() < 200 else f"an integer of {value.bit_length()} bits"


def _is_number(value: object) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def _points(points: Any, size: tuple[int, int] | None) -> np.ndarray[Any, np.dtype[np.float32]]:
    if isinstance(points, np.ndarray):
        points = points.tolist()
    if not isinstance(points, list | tuple):
        raise _RejectedError("bad-points", f"expected a list of points, found {brief(points)}")
    points = [point.tolist() if isinstance(point, np.ndarray) else point for point in points]
    if points and all(isinstance(point, _LISTS) for point in points):
        for i, point in enumerate(points):
            if len(point) == 1:
                raise _RejectedError("odd-coordinates", f"point {i} has one number: {brief(point)}")
            if len(point) != 2:
                raise _RejectedError("bad-points", f"point {i} is no pair: {brief(point)}")
        values = [value for point in points for value in point]
    else:
        values = list(points)
        if any(isinstance(value, _LISTS) for value in values):
            raise _RejectedError("bad-points", f"numbers and lists are mixed: {brief(points)}")
    for value in values:
        if not _is_number(value):
            raise _RejectedError("not-a-number", f"a coordinate is {brief(value)}")
    if len(values) % 2:
        raise _RejectedError("odd-coordinates", f"{len(values)} numbers are no pairs of x and y")
    if len(values) < 6:
        raise _RejectedError(
            "too-few-points", f"{len(values) // 2} points; a polygon has three or more"
        )
    for value in values:
        if not isinstance(value, int) and not math.isfinite(value):
            raise _RejectedError("not-finite", f"a coordinate is {value}")
        if not -COORDINATE_LIMIT <= value <= COORDINATE_LIMIT:
            raise _RejectedError("huge-coordinates", f"a coordinate is {brief(value)}")
    array = np.array(values, dtype=np.float32).reshape(-1, 2)
    if size is not None:
        array *= np.array(size, np.float32)
        if np.abs(array).max() > COORDINATE_LIMIT:
            raise _RejectedError("huge-coordinates", f"a share of the size is {brief(max(values))}")
    return array


def _text(text: object, odd: list[tuple[str, str]]) -> str | None:
    if text is None:
        return None
    if isinstance(text, str):
        if _SURROGATE.search(text):
            odd.append(("bad-text", f"the text {brief(text)} is not valid Unicode; U+FFFD put in"))
            return _SURROGATE.sub("\ufffd", text)
        return text
    if _is_number(text):
        odd.append(("bad-text", f"the text is a number, {brief(text)}; taken as it prints"))
        return brief(text)
    odd.append(("bad-text", f"the text is {brief(text)}; kept without one"))
    return None


def _language(language: object, odd: list[tuple[str, str]]) -> str | None:
    if isinstance(language, list | tuple):
        # some sources give a list; one language stays as it is, several are joined
        parts = [part for part in language if isinstance(part, str)]
        if len(parts) == len(language):
            language = ",".join(parts) or None
    if language is None or (isinstance(language, str) and not _SURROGATE.search(language)):
        return language or None
    odd.append(("bad-language", f"the language is {brief(language)}; kept without one"))
    return None


def _flag(value: object, odd: list[tuple[str, str]]) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    odd.append(("bad-flag", f"the ignore flag is {brief(value)}; taken as false"))
    return False


def member(container: Any, key: str, kind: type | tuple[type, ...], *, where: str) -> Any:
    """Return `container[key]` if it is of this type, else a Flaw in place of a region."""
    if not isinstance(container, dict):
        return Flaw("bad-structure", f"{where}: expected an object, found {brief(container)}")
    if key not in container:
        return Flaw("missing-key", f"{where}: no {key!r}")
    value = container[key]
    if not isinstance(value, kind):
        wanted = " or ".join(_WORDS[k] for k in (kind if isinstance(kind, tuple) else (kind,)))
        return Flaw("bad-structure", f"{where}: {key!r} expected {wanted}, found {brief(value)}")
    return value


_WORDS: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}


def need(container: Any, key: str, kind: type | tuple[type, ...], *, where: str) -> Any:
    """Return `container[key]` if it is of this type, else raise UnusableAnnotationError."""
    value = member(container, key, kind, where=where)
    if isinstance(value, Flaw):
        raise UnusableAnnotationError(value.kind, value.message)
    return value


def whole_document(file: AnnotationFile) -> tuple[dict[str, Any], list[Flaw]]:
    """Return a file's JSON object and its flaws; raise UnusableAnnotationError otherwise."""
    value, flaws = file.json()
    if not isinstance(value, dict):
        message = f"{file.shown}: expected a JSON object, found {brief(value)}"
        raise UnusableAnnotationError("bad-structure", message)
    return value, flaws


def for_file(flaw: Flaw) -> Flaw:
    """Turn a region's flaw into one about the file as a whole."""
    return Flaw(flaw.kind, flaw.message, region=False)
