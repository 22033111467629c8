"""Describe one state of a store for the page: facts, pages of the grid, one sample in full."""

from __future__ import annotations

import base64
import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ocrstore.annotation import AnnotationReader, typed_attributes
from ocrstore.errors import FilterError, SchemaError, UnknownColumnError, UnknownRowError
from ocrstore.evaluation.predictions import Scores, read_truths
from ocrstore.store import Store
from ocrstore.viewer.query import Filter, Rows
from ocrstore.viewer.renditions import (
    Outline,
    ShownView,
    Thumbnails,
    encode_map,
    encode_picture,
    find_picture,
    find_views,
    picture_size,
    shown_matrices,
)
from ocrstore.viewer.tags import Tags

MAX_PAGE = 500
BINS = 24
_KEPT = 16
_LISTS = frozenset({"polygons", "ignored", "texts", "languages", "problems"})
"""Attributes that the page shows with the polygons."""
_PAGE_FIELDS = ("width", "height", "polygons_count", "ignored_true", "hmean")


# ---- fields to filter and sort by: attributes and numbers derived from them ----

NUMBER, TEXT, FLAG, TEXTS, OTHER = "number", "text", "flag", "texts", "other"
SORTABLE = (NUMBER, TEXT, FLAG)


@dataclass(frozen=True, slots=True)
class Field:
    """One value for each sample."""

    name: str
    kind: str
    """`number`, `text`, `flag` (true or false), `texts` (a list) or `other` (nested, binary)."""
    values: Any
    """An Arrow array."""


def read_fields(
    store: Store, extra: Mapping[str, npt.NDArray[Any]], tags: Any = None
) -> dict[str, Field]:
    """Return a store's fields by name; `extra` are further numbers, NaN where there is none.

    A list has its length as a further field (`polygons_count`), a list of flags also how many are
    set (`ignored_true`), a column the bytes that it takes (`image_nbytes`). `turned` is whether the
    source had an EXIF rotation, `polygons_frame` the frame its polygons were in (raw or upright).
    """
    table = store.index
    fields = [
        Field("row", NUMBER, pa.array(np.arange(len(store), dtype=np.int64))),
        Field("key", TEXT, _whole(table["key"])),
        *(Field(name, NUMBER, pa.array(v, from_pandas=True)) for name, v in extra.items()),
    ]
    if tags is not None:
        fields.append(Field("tags", TEXTS, tags))
    attributes = [_attribute(table, attribute) for attribute in store.attribute_fields]
    fields += attributes
    for attribute in attributes:
        fields += _derived(attribute)
    if "source_orientation" in table.column_names:
        fields += _turned(store)
    for name in store.columns:
        fields.append(Field(f"{name}_nbytes", NUMBER, pa.array(store[name].nbytes)))
    named: dict[str, Field] = {}
    for field in fields:
        named.setdefault(field.name, field)  # an attribute cannot replace `row`
    return named


def rows_where(store: Store, condition: str) -> list[int]:
    """Return the rows that fulfil a SQL condition, ascending; it runs in a limited process.

    Raises:
        FilterError: The condition is wrong, or exceeds its time or memory.
    """
    fields = read_fields(store, {})
    with Filter(pa.table({name: field.values for name, field in fields.items()})) as samples:
        if not samples.is_sql(condition):
            raise FilterError(f"{condition!r} is not a SQL condition such as polygons_count > 0")
        rows: list[int] = samples.rows(condition).tolist()
        return rows


def _turned(store: Store) -> list[Field]:
    """Return whether the source had an EXIF rotation, and the frame its polygons were in."""
    reader = AnnotationReader(store, strict=False)
    frames: list[str | None] = [None] * len(store)
    for turned in reader.turned():
        frames[turned.row] = turned.frame
    return [
        Field("turned", FLAG, pa.array(reader.numbers("orientation", 1) > 1)),
        Field("polygons_frame", TEXT, pa.array(frames, pa.string())),
    ]


def _attribute(table: pa.Table, attribute: pa.Field) -> Field:
    name, kind, values = attribute.name, attribute.type, _whole(table[attribute.name])
    if pa.types.is_boolean(kind):
        return Field(name, FLAG, values)
    if pa.types.is_float16(kind):  # neither Arrow's sorting nor duckdb takes it
        return Field(name, NUMBER, pc.cast(values, pa.float32()))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return Field(name, NUMBER, values)
    if _is_text(kind):
        return Field(name, TEXT, values)
    return Field(name, TEXTS if _is_list(kind) and _is_text(kind.value_type) else OTHER, values)


def _derived(attribute: Field) -> Iterator[Field]:
    lists = attribute.values
    if not _is_list(lists.type):
        return
    lengths = pc.cast(pc.list_value_length(lists), pa.int64())
    yield Field(f"{attribute.name}_count", NUMBER, pc.fill_null(lengths, 0))
    if pa.types.is_boolean(lists.type.value_type):
        yield Field(f"{attribute.name}_true", NUMBER, _count_true(lists))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _count_true(lists: Any) -> Any:
    parents = pc.list_parent_indices(lists).to_numpy()
    flags = pc.fill_null(pc.list_flatten(lists), False).to_numpy(zero_copy_only=False)
    return pa.array(np.bincount(parents[flags], minlength=len(lists)).astype(np.int64))


def _whole(chunked: pa.ChunkedArray) -> Any:
    return chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()


# ---- which samples, and what is shown of them ----


@dataclass(frozen=True, slots=True)
class Selection:
    """Which samples are shown, and in which order."""

    filter: str = ""
    sort: str = ""
    descending: bool = False


class Selector:
    """Find the rows of a selection; keeps the last results. Threads may share it."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = fields
        self._known: OrderedDict[Selection, Rows] = OrderedDict()
        self._lock = threading.Lock()
        self.filter = Filter(pa.table({name: field.values for name, field in fields.items()}))

    def rows(self, selection: Selection) -> Rows:
        """Return the rows of a selection, in order."""
        with self._lock:
            if selection in self._known:
                self._known.move_to_end(selection)
                return self._known[selection]
        found = self._find(selection)
        with self._lock:
            self._known[selection] = found
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found

    def _find(self, selection: Selection) -> Rows:
        sort, text = selection.sort, selection.filter.strip()
        if sort and (sort not in self._fields or self._fields[sort].kind not in SORTABLE):
            raise FilterError(f"cannot sort by {sort}; choose another field")
        rows = self.filter.rows(text) if text else np.arange(len(self._fields["row"].values))
        if not sort or (sort == "row" and not selection.descending):
            return rows
        values = pc.take(self._fields[sort].values, pa.array(rows))
        direction = "descending" if selection.descending else "ascending"
        # two keys: samples with equal values stay in the order of the store
        table = pa.table({"value": values, "row": rows})
        keys = [("value", direction), ("row", "ascending")]
        order = pc.sort_indices(table, sort_keys=keys)  # nulls come last
        return np.asarray(rows[order.to_numpy()], np.int64)


class Catalog:
    """One state of an open store, and what the page shows of it. Threads may share it."""

    def __init__(
        self, store: Store, scores: Sequence[Scores] = (), tags: Tags | None = None
    ) -> None:
        self.store = store
        self.scores = tuple(scores)
        self.tags = tags
        self.fields = self._read_fields()
        self.selector = Selector(self.fields)
        self.views = find_views(store)
        self.picture = find_picture(store)
        self.thumbnails = Thumbnails(store, self.picture, self.views[0] if self.views else None)
        mapping = store.snapshot.mapping
        self.state = f"{store.fingerprint[:12]}.{store.generation}.{mapping.inode:x}"
        """Different for every state; part of the URLs of pictures."""

    def _read_fields(self) -> dict[str, Field]:
        # hmean is that of the first set of predictions, hmean_2 that of the second
        numbers = {
            name if not place else f"{name}_{place + 1}": values
            for place, scores in enumerate(self.scores)
            for name, values in scores.numbers.items()
        }
        tags = None if self.tags is None else self.tags.array(self.store.keys)
        return read_fields(self.store, numbers, tags)

    def set_tags(self, key: str, tags: Sequence[str]) -> None:
        """Replace the tags of a sample; filters know them from the next query on."""
        if self.tags is None:
            raise SchemaError("tags are kept for the first store only")
        self.store.row(key)  # raises for an unknown one
        self.tags.set(key, tags)
        old, self.fields = self.selector, self._read_fields()
        self.selector = Selector(self.fields)
        old.filter.close()

    def close(self) -> None:
        """End the child processes that run queries."""
        self.selector.filter.close()

    def facts(self) -> dict[str, Any]:
        """Describe the store as a whole."""
        counts = {
            name: int(pc.sum(self.fields[field].values).as_py() or 0)
            for name, field in (("polygons", "polygons_count"), ("ignored", "ignored_true"))
            if self._is_number(field)
        }
        path = str(self.store.path)
        return {
            "state": self.state,
            "path": path,
            "name": path.replace("\\", "/").rpartition("/")[2],
            "samples": len(self.store),
            "nbytes": self.store.snapshot.mapping.nbytes,
            "fingerprint": self.store.fingerprint,
            "generation": self.store.generation,
            **counts,
            "fields": [
                {"name": f.name, "kind": f.kind, "sortable": f.kind in SORTABLE}
                for f in self.fields.values()
            ],
            "picture": self.picture is not None,
            "thumbnails": self.thumbnails.column is not None,
            "views": [
                {"name": view.name, "tensor": "tensor" in view.columns, "maps": view.maps}
                for view in self.views
            ],
            "predictions": [scores.to_json() for scores in self.scores],
        }

    def page(self, selection: Selection, start: int, count: int) -> dict[str, Any]:
        """Return a page of the grid, by columns."""
        rows = self.selector.rows(selection)
        shown = rows[max(0, start) : max(0, start) + min(count, MAX_PAGE)]
        taken = pa.array(shown)
        page: dict[str, Any] = {
            "state": self.state,
            "total": len(rows),
            "sql": self.selector.filter.is_sql(selection.filter),
            "start": max(0, start),
            "rows": shown.tolist(),
            "keys": pc.take(self.fields["key"].values, taken).to_pylist(),
        }
        for name in _PAGE_FIELDS:
            if self._is_number(name):
                page[name] = plain(pc.take(self.fields[name].values, taken).to_pylist())
        if selection.sort in self.fields:
            page["value"] = plain(pc.take(self.fields[selection.sort].values, taken).to_pylist())
        return page

    def keys(self, selection: Selection) -> list[str]:
        """Return the keys of a selection, in order."""
        rows = pa.array(self.selector.rows(selection))
        keys: list[str] = pc.take(self.fields["key"].values, rows).to_pylist()
        return keys

    def histogram(self, selection: Selection) -> dict[str, Any]:
        """Count the selected samples by the value of the field they are sorted by.

        Numbers in `BINS` ranges of equal width, others by value, the most frequent first.
        """
        rows = pa.array(self.selector.rows(selection))
        if selection.sort not in self.fields:
            raise FilterError(f"there is no field {selection.sort} to count by")
        values = pc.take(self.fields[selection.sort].values, rows)
        if not self._is_number(selection.sort):
            counted = pc.value_counts(values).to_pylist()
            counted.sort(key=lambda item: -item["counts"])
            return {
                "values": [plain(item["values"]) for item in counted[:BINS]],
                "counts": [item["counts"] for item in counted[:BINS]],
                "missing": 0,
            }
        numbers = pc.cast(values, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        finite = numbers[np.isfinite(numbers)]
        low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
        # numbers near 2**53 and beyond can be one value, which has no width
        high = high if high > low else low + max(1.0, abs(low) * 1e-9)
        counts, edges = np.histogram(finite, BINS, (low, high))
        return {
            "edges": plain(edges.tolist()),
            "counts": counts.tolist(),
            "missing": len(numbers) - len(finite),
        }

    def position(self, selection: Selection, row: int) -> int | None:
        """Return the position of a row in a selection, or None."""
        found = np.flatnonzero(self.selector.rows(selection) == row)
        return int(found[0]) if len(found) else None

    def _is_number(self, name: str) -> bool:
        return name in self.fields and self.fields[name].kind == NUMBER

    def check_row(self, row: int) -> int:
        """Return the row, or raise UnknownRowError if there is none."""
        if not 0 <= row < len(self.store):
            raise UnknownRowError(
                f"{self.store.path}: no row {row} among its {len(self.store)} samples."
            )
        return row

    def sample(self, row: int, *, min_score: float = 0.0) -> dict[str, Any]:
        """Describe one sample in full; matrices go from the picture to the view and back."""
        store = self.store
        record = store.attributes(row)
        size = picture_size(store, row, self.picture)
        special = typed_attributes(store.snapshot.index.attributes)
        truths = read_truths(store, row)
        return {
            "state": self.state,
            "row": row,
            "key": self.fields["key"].values[row].as_py(),
            "size": size,
            "polygons": [points.ravel().tolist() for points in truths.polygons],
            "ignored": truths.ignored,
            "texts": truths.texts if "texts" in special else None,
            "languages": truths.languages if "languages" in special else None,
            "unusable": truths.unusable,
            "problems": record.get("problems") if "problems" in special else None,
            "attributes": {k: plain(v) for k, v in record.items() if k not in special & _LISTS},
            "picture": self.picture,
            "views": [self._view(row, view) for view in self.views],
            "columns": [
                {
                    "name": name,
                    "dtype": column.dtype,
                    "codec": column.codec,
                    "shape": store[name].shapes[row].tolist(),
                    "nbytes": int(store[name].nbytes[row]),
                    "hash": f"{int(store[name].hashes[row]):016x}",
                }
                for name, column in store.columns.items()
            ],
            "predictions": [self._predictions(scores, row, min_score) for scores in self.scores],
            "tags": None if self.tags is None else self.tags.get(store.keys[row]),
        }

    def outlines(self, row: int) -> list[Outline]:
        """Return the polygons to draw on a thumbnail: ground truth, hits, misses, false alarms."""
        truths = read_truths(self.store, row)
        states = ["ignored" if flag else "truth" for flag in truths.ignored]
        alarms: list[Outline] = []
        found = self._predictions(self.scores[0], row) if self.scores else None
        if found is not None:
            states = found["truths"]
            boxes = self.scores[0].boxes(row)
            for box, shown in zip(boxes, found["boxes"], strict=True):
                if shown["state"] == "false_alarm":
                    alarms.append(Outline(box.points, "false_alarm"))
        drawn = [Outline(p, state) for p, state in zip(truths.polygons, states, strict=True)]
        return sorted(drawn + alarms, key=lambda outline: outline.state != "ignored")

    def render(self, row: int, column: str) -> tuple[bytes, str]:
        """Encode one row of a picture or map column; return bytes and media type."""
        if column not in self.store.columns:
            raise UnknownColumnError(f"{self.store.path}: no column {column!r}.")
        if column == self.picture:
            return encode_picture(self.store[column][row])
        for view in self.views:
            for part, name in view.columns.items():
                if name == column and part == "tensor":
                    return encode_picture(self.store[column][row])
                if name == column and part in view.maps:
                    return encode_map(part, self.store[column][row]), "image/png"
        raise UnknownColumnError(f"{self.store.path}: column {column!r} holds no pictures or maps.")

    def _view(self, row: int, view: ShownView) -> dict[str, Any]:
        matrices = shown_matrices(self.store, row, view)
        forward, inverse = matrices if matrices is not None else (None, None)
        some = next(view.columns[part] for part in ("tensor", *view.maps) if part in view.columns)
        height, width = self.store[some].shapes[row].tolist()[:2]
        layers = {
            part: view.columns[part] for part in ("tensor", *view.maps) if part in view.columns
        }
        return {
            "name": view.name,
            "size": [height, width],
            "forward": None if forward is None else forward.ravel().tolist(),
            "inverse": None if inverse is None else inverse.ravel().tolist(),
            "layers": layers,
        }

    def _predictions(
        self, scores: Scores, row: int, min_score: float = 0.0
    ) -> dict[str, Any] | None:
        if row not in scores.predictions.boxes:
            return None
        pairing = scores.pairing(row, min_score)
        partner = {found: truth for truth, found in pairing.pairs}
        hit = {truth for truth, _ in pairing.pairs}
        counted = set(pairing.counted_detections)
        care = set(pairing.counted_truths)
        truths = len(read_truths(self.store, row).polygons)
        return {
            "truths": [
                "hit" if i in hit else "miss" if i in care else "ignored" for i in range(truths)
            ],
            "boxes": [
                {
                    "points": box.points.ravel().tolist(),
                    "score": plain(box.score),
                    "state": _state(i, partner, counted),
                    "truth": partner.get(i),
                }
                for i, box in enumerate(scores.boxes(row, min_score))
            ],
            **pairing.score.to_json(),
        }


def _state(found: int, partner: dict[int, int], counted: set[int]) -> str:
    if found in partner:
        return "hit"
    return "false_alarm" if found in counted else "left_out"


def plain(value: Any) -> Any:
    """Return a value that JSON and JavaScript can represent: no NaN, bytes or int beyond 2**53."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value[:64]).decode()
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**53:
        return str(value)
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
