"""COCO JSON (`images` and `annotations` lists) and COCO-Text JSON (`imgs` and `anns` objects)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from ocrstore.sources.annotation_file import AnnotationFile, Flaw
from ocrstore.sources.dialect import Dialect, Entry, Region, register
from ocrstore.sources.validate import (
    box_region_points,
    brief,
    for_file,
    member,
    need,
    text_in,
    whole_document,
)

_OUTLINE_KEYS = ("segmentation", "mask", "polygon", "points")


class _Coco(Dialect):
    """Base of both: pictures by id, and annotations that refer to them."""

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Group the annotations by picture."""
        document, flaws = whole_document(file)
        yield from map(for_file, flaws)
        grouped: dict[str, list[tuple[str, Any]]] = {}
        names: dict[str, str] = {}
        for where, image_id, image in self._images(document, file.shown):
            name = member(image, "file_name", str, where=where)
            if isinstance(name, Flaw):
                yield for_file(name)
            elif image_id is None:
                yield Flaw("missing-key", f"{where}: no 'id'", region=False)
            elif image_id in names:
                message = f"{where}: the id {image_id!a} is {names[image_id]!a} already"
                yield Flaw("duplicate-image-id", message, region=False)
            else:
                names[image_id] = name
                grouped[image_id] = []
        unknown: dict[str, int] = {}
        for where, image_id, annotation in self._annotations(document, file.shown):
            if image_id is None:
                yield Flaw("missing-key", f"{where}: no 'image_id'", region=False)
            elif image_id not in grouped:
                unknown[image_id] = unknown.get(image_id, 0) + 1
            else:
                grouped[image_id].append((where, annotation))
        for image_id, count in unknown.items():
            message = (
                f"{file.shown}: {count} annotations of image id {image_id!a}, which is not listed"
            )
            yield Flaw("unknown-image-id", message, region=False)
        for image_id, name in names.items():
            where = f"{file.shown} image {image_id!a}"
            yield Entry(names=(name,), record=grouped[image_id], where=where)

    @abstractmethod
    def _images(self, document: Any, shown: str) -> Iterator[tuple[str, str | None, Any]]:
        """Yield where each picture is described, its id, and the description."""

    @abstractmethod
    def _annotations(self, document: Any, shown: str) -> Iterator[tuple[str, str | None, Any]]:
        """Yield where each annotation stands, its picture's id, and the annotation."""

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield each part of each segmentation, or the box where there is none."""
        record = entry.record
        if not isinstance(record, list):
            raise TypeError("an entry of another dialect")
        for where, annotation in record:
            yield from _regions(annotation, where)


def _id(container: Any, key: str) -> str | None:
    """Return an id as a str: COCO has numbers, COCO-Text has numbers that refer to texts."""
    value = container.get(key) if isinstance(container, dict) else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int | float | str) else None


def _regions(annotation: Any, where: str) -> Iterator[Region | Flaw]:
    if not isinstance(annotation, dict):
        yield Flaw("bad-structure", f"{where}: expected an object, found {brief(annotation)}")
        return
    outline = next((annotation[key] for key in _OUTLINE_KEYS if annotation.get(key)), None)
    flaws: tuple[Flaw, ...] = ()
    parts: Iterable[Any]
    if isinstance(outline, list):
        # several parts are several polygons with one text; a flat list is one part
        nested = all(isinstance(part, list) for part in outline)
        pairs = nested and all(len(p) == 2 and not isinstance(p[0], list) for p in outline)
        parts = outline if nested and not pairs else [outline]
    elif outline is not None and not isinstance(outline, dict):
        yield Flaw("bad-points", f"{where}: expected a list of points, found {brief(outline)}")
        return
    elif annotation.get("bbox") is not None:
        box = box_region_points(annotation["bbox"], sides=True)
        if isinstance(box, str):
            yield Flaw("bad-box", f"{where}: {box}; left out")
            return
        if isinstance(outline, dict):
            message = f"{where}: a run-length mask is not read; its box was taken"
            flaws = (Flaw("rle-boxed", message),)
        parts = [box]
    elif isinstance(outline, dict):
        yield Flaw("rle-segmentation", f"{where}: a run-length mask and no box; left out")
        return
    else:
        yield Flaw("missing-key", f"{where}: neither segmentation nor bbox; left out")
        return
    # CVAT keeps texts in attributes
    text, ignored = text_in(annotation, annotation.get("attributes")), _ignored(annotation)
    for part in parts:
        yield Region(part, text, ignored=ignored, language=annotation.get("language"), flaws=flaws)


def _ignored(annotation: dict[str, Any]) -> object:
    if annotation.get("legibility") == "illegible" or annotation.get("iscrowd") in (1, True):
        return True
    return annotation.get("ignore")


@register
class Coco(_Coco):
    """Lists of images and annotations."""

    name = "coco"
    looks_for = 'a JSON file {"images": [...], "annotations": [...]}'

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by `images` and `annotations` both being lists."""
        document = file.document()
        return all(isinstance(document.get(key), list) for key in ("images", "annotations"))

    def _images(self, document: Any, shown: str) -> Iterator[tuple[str, str | None, Any]]:
        for i, image in enumerate(need(document, "images", list, where=shown)):
            yield f"{shown} images[{i}]", _id(image, "id"), image

    def _annotations(self, document: Any, shown: str) -> Iterator[tuple[str, str | None, Any]]:
        for i, annotation in enumerate(need(document, "annotations", list, where=shown)):
            yield f"{shown} annotations[{i}]", _id(annotation, "image_id"), annotation


@register
class CocoText(_Coco):
    """Objects of images and annotations by id; also TextOCR."""

    name = "cocotext"
    looks_for = 'a JSON file {"imgs": {...}, "anns": {...}, "imgToAnns": {...}}'

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by `imgs` and `anns` both being objects."""
        document = file.document()
        return all(isinstance(document.get(key), dict) for key in ("imgs", "anns"))

    def _images(self, document: Any, shown: str) -> Iterator[tuple[str, str | None, Any]]:
        for image_id, image in need(document, "imgs", dict, where=shown).items():
            yield f"{shown} imgs[{image_id!a}]", image_id, image

    def _annotations(self, document: Any, shown: str) -> Iterator[tuple[str, str | None, Any]]:
        annotations = need(document, "anns", dict, where=shown)
        listed = document.get("imgToAnns")
        owner: dict[str, str] = {}
        for image_id, ids in listed.items() if isinstance(listed, dict) else ():
            for annotation_id in ids if isinstance(ids, list) else ():
                owner.setdefault(str(annotation_id), image_id)
        for annotation_id, annotation in annotations.items():
            image_id = _id(annotation, "image_id") or owner.get(annotation_id)
            yield f"{shown} anns[{annotation_id!a}]", image_id, annotation
