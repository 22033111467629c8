"""VGG Image Annotator (VIA 1 and 2): JSON annotations, a JSON project, or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from ocrstore.sources.annotation_file import (
    AnnotationFile,
    Flaw,
    UnusableAnnotationError,
    parse_json,
)
from ocrstore.sources.dialect import Dialect, Entry, Region, register
from ocrstore.sources.validate import (
    box_region_points,
    brief,
    for_file,
    ignored_in,
    member,
    need,
    text_in,
    whole_document,
)

_SHAPE, _TEXT = "region_shape_attributes", "region_attributes"


def _region(shape: Any, attributes: Any, where: str) -> Region | Flaw:
    if not isinstance(shape, dict):
        return Flaw("bad-structure", f"{where}: a shape is an object, found {brief(shape)}")
    kind = shape.get("name")
    points: Any
    if kind == "polygon":
        xs, ys = shape.get("all_points_x"), shape.get("all_points_y")
        if not isinstance(xs, list) or not isinstance(ys, list) or len(xs) != len(ys):
            return Flaw("bad-points", f"{where}: as many x as y expected: {brief(shape)}; left out")
        points = [list(point) for point in zip(xs, ys, strict=True)]
    elif kind == "rect":
        box = [shape.get(key) for key in ("x", "y", "width", "height")]
        points = box_region_points(box, sides=True)
        if isinstance(points, str):
            return Flaw("bad-box", f"{where}: {points}; left out")
    else:
        return Flaw("unsupported-shape", f"{where}: a shape of type {brief(kind)}; left out")
    return Region(points, text_in(attributes), ignored_in(attributes))


@register
class Via(Dialect):
    """One JSON file for all pictures."""

    name = "via"
    looks_for = 'a JSON file {"a.jpg123": {"filename": "a.jpg", "regions": [...]}}, or a project'

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by `filename` and `regions` in each of the first hundred pictures."""
        pictures = list(_pictures(file.document()).values())[:100]
        return bool(pictures) and all(
            isinstance(p, dict) and {"filename", "regions"} <= p.keys() for p in pictures
        )

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Yield one entry per picture."""
        document, flaws = whole_document(file)
        yield from map(for_file, flaws)
        for key, picture in _pictures(document).items():
            where = f"{file.shown}[{key!a}]"
            name = member(picture, "filename", str, where=where)
            yield for_file(name) if isinstance(name, Flaw) else Entry((name,), picture, where)

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield polygons and rectangles; the text is an attribute of the region."""
        regions = need(entry.record, "regions", (list, dict), where=entry.where)
        for i, region in enumerate(regions.values() if isinstance(regions, dict) else regions):
            where = f"{entry.where} region {i}"
            shape = member(region, "shape_attributes", dict, where=where)
            if isinstance(shape, Flaw):
                yield shape
            else:
                yield _region(shape, region.get("region_attributes"), where)


def _pictures(document: dict[str, Any]) -> dict[str, Any]:
    project = document.get("_via_img_metadata")
    return project if isinstance(project, dict) else document


@register
class ViaCsv(Dialect):
    """One CSV file for all pictures, a line per region."""

    name = "via-csv"
    looks_for = f"a CSV file with the columns filename, {_SHAPE} and {_TEXT}"
    suffixes = (".csv",)

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by the names of the columns."""
        header = file.head.lstrip("#").partition("\n")[0].strip().split(",")
        return {"filename", _SHAPE, _TEXT} <= set(header)

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Group the lines by picture."""
        text, flaw = file.text()
        if flaw:
            yield flaw
        grouped: dict[str, list[tuple[str, str, str]]] = {}
        rows = csv.DictReader(io.StringIO(text.lstrip("#"), newline=""))
        try:
            for row in rows:
                where = f"{file.shown} line {rows.line_num}"
                line = (where, row.get(_SHAPE) or "{}", row.get(_TEXT) or "{}")
                grouped.setdefault(row.get("filename") or "", []).append(line)
        except csv.Error as exc:
            message = f"{file.shown} line {rows.line_num}: {exc}; the rest of the file is left out"
            yield Flaw("bad-line", message, region=False)
        for name, lines in grouped.items():
            yield Entry((name,), lines, f"{file.shown} {name!a}")

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield the region of each line; one of a picture without regions has an empty shape."""
        lines: Any = entry.record
        for where, *texts in lines:
            try:
                shape, attributes = (parse_json(text, where=where)[0] for text in texts)
            except UnusableAnnotationError as exc:
                yield Flaw(exc.kind, f"{exc.message}; left out")
            else:
                if shape != {}:
                    yield _region(shape, attributes, where)
