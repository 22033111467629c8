"""Label Studio's JSON and JSON-MIN exports: coordinates in percent of the picture's size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import radians
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ocrstore.sources.annotation_file import AnnotationFile, Flaw, UnusableAnnotationError
from ocrstore.sources.dialect import Dialect, Entry, Region, register
from ocrstore.sources.pictures import is_picture_name
from ocrstore.sources.validate import brief, floats, for_file, need, rotated_box_points

_UPLOAD = re.compile(r"^[0-9a-f]{8}-(?=.)")
"""What Label Studio puts in front of the name of an uploaded file."""
_GEOMETRY = {"points", "width", "radiusX", "rle"}
"""What a result that is about a place has; others are choices or ratings."""


def _is_task(task: Any) -> bool:
    return isinstance(task, dict) and (_is_full(task) or any(map(_is_shapes, task.values())))


def _is_full(task: dict[str, Any]) -> bool:
    return isinstance(task.get("data"), dict) and isinstance(_annotations(task), list)


def _annotations(task: dict[str, Any]) -> Any:
    return task.get("annotations", task.get("completions"))  # as it was called before 1.0


def _is_shapes(value: Any) -> bool:
    """Whether a field of a task of JSON-MIN is a list of shapes."""
    return isinstance(value, list) and any(
        isinstance(item, dict) and {"original_width", "original_height"} <= item.keys()
        for item in value
    )


@register
class LabelStudio(Dialect):
    """One JSON file: a list of tasks, each of one picture."""

    name = "labelstudio"
    looks_for = 'a JSON list of {"data": {...}, "annotations": [{"result": [...]}]}, or JSON-MIN'

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by one of the first hundred tasks."""
        tasks = file.value()
        return isinstance(tasks, list) and any(map(_is_task, tasks[:100]))

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Yield one entry per task."""
        tasks, flaws = file.json()
        yield from map(for_file, flaws)
        if not isinstance(tasks, list):
            message = f"{file.shown}: expected a JSON list, found {brief(tasks)}"
            raise UnusableAnnotationError("bad-structure", message)
        for i, task in enumerate(tasks):
            where = f"{file.shown}[{i}]"
            if not isinstance(task, dict):
                yield Flaw("bad-structure", f"{where}: not an object", region=False)
                continue
            names = _names(task["data"] if _is_full(task) else task)
            if names:
                yield Entry(names, task, where)
            else:
                yield Flaw("bad-name", f"{where}: no field names a picture", region=False)

    def frame(self, entry: Entry) -> str | None:
        """Return `upright`: the points are shares of the upright picture."""
        del entry
        return "upright"

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield rectangles and polygons with the texts that belong to them."""
        task: Any = entry.record
        shapes, texts = _from_full(task, entry.where) if _is_full(task) else _from_min(task)
        if len(texts) != len(shapes):
            message = f"{entry.where}: {len(texts)} texts for {len(shapes)} shapes; left out"
            yield Flaw("bad-text", message, region=False)
            texts = [None] * len(shapes)
        for i, (shape, text) in enumerate(zip(shapes, texts, strict=True)):
            yield _region(shape, text, f"{entry.where} shape {i}")


def _names(data: dict[str, Any]) -> tuple[str, ...]:
    """Return the name of a task's picture, and without what an upload adds to it."""
    for value in data.values():
        if isinstance(value, str):
            try:
                address = urlsplit(value)
            except ValueError:  # "http://[" is no address
                continue
            # /data/local-files/?d=folder/a.jpg
            path = parse_qs(address.query).get("d", [unquote(address.path)])[0]
            if is_picture_name(path):
                folder, slash, last = path.rpartition("/")
                bare = folder + slash + _UPLOAD.sub("", last)
                return (path,) if bare == path else (path, bare)
    return ()


def _from_full(task: dict[str, Any], where: str) -> tuple[list[Any], list[Any]]:
    """Return shapes and texts, joined by id, of the first annotation that was not cancelled."""
    valid = [a for a in _annotations(task) if isinstance(a, dict) and not a.get("was_cancelled")]
    shapes: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    results = need(valid[0], "result", list, where=where) if valid else []
    for i, result in enumerate(results):
        value = result.get("value") if isinstance(result, dict) else None
        if not isinstance(value, dict):
            shapes[f"result {i}"] = result  # refused as a region
            continue
        key = str(result.get("id", f"result {i}"))
        if "text" in value:
            texts[key] = value["text"]
        if not _GEOMETRY.isdisjoint(value):
            # the shape stands again in the results of its label and of its text
            shapes.setdefault(key, {**result, **value})
    return list(shapes.values()), [texts.get(key) for key in shapes]


def _from_min(task: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the longest list of shapes, which is that of the labels, and the list of texts."""
    lists: list[list[Any]] = [value for value in task.values() if _is_shapes(value)]
    shapes = max(lists, key=len, default=[])
    texts = task.get("transcription", task.get("text"))
    if texts is None:
        return shapes, [None] * len(shapes)
    return shapes, texts if isinstance(texts, list) else [texts]  # a single one is no list


def _region(shape: Any, text: Any, where: str) -> Region | Flaw:
    if not isinstance(shape, dict) or shape.get("image_rotation"):
        what = brief(shape.get("image_rotation") if isinstance(shape, dict) else shape)
        return Flaw("unsupported-shape", f"{where}: not of the unturned picture: {what}; left out")
    if isinstance(text, list):
        text = "\n".join(map(str, text)) or None
    if isinstance(points := shape.get("points"), list):
        return Region([_shares(point) for point in points], text, relative=True)
    box = floats(shape.get(key) for key in ("x", "y", "width", "height"))
    turn = floats([shape.get("rotation") or 0])
    # turned in pixels: percents of width and height are not alike
    sides = floats(shape.get(key) for key in ("original_width", "original_height"))
    if sides is None and turn == [0]:
        sides = [1, 1]
    if box is None or turn is None or sides is None or min(sides) <= 0:
        return Flaw("unsupported-shape", f"{where}: no rectangle or polygon: {brief(shape)}")
    x, y, width, height = (v * sides[i % 2] / 100 for i, v in enumerate(box))
    corners = rotated_box_points((x, y, width, height), radians(turn[0]), centred=False)
    if isinstance(corners, str):
        return Flaw("bad-box", f"{where}: {corners}; left out")
    return Region([[px / sides[0], py / sides[1]] for px, py in corners], text, relative=True)


def _shares(point: Any) -> Any:
    values = floats(point) if isinstance(point, list) else None
    return point if values is None else [value / 100 for value in values]
