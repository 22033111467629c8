"""Parquet files with pictures in them, as Hugging Face datasets are: read by pyarrow alone.

A row has an `image` (a struct of bytes and path, or bytes) and its objects: a struct of lists or a
list of structs with bbox (x, y, width, height), segmentation, text, ignore; or lists of these as
columns of their own.
"""

from __future__ import annotations

import glob
import io
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from ocrstore.annotation import Problem
from ocrstore.errors import SourceError
from ocrstore.keys import path_of, shown
from ocrstore.sources.annotation_file import Flaw
from ocrstore.sources.dialect import Entry
from ocrstore.sources.pictures import FoundFile, Listing, is_picture_name
from ocrstore.sources.validate import box_region_points

NAMES: dict[str, tuple[str, ...]] = {
    "image": ("image", "img", "picture", "jpg"),
    "key": ("key", "file_name", "filename", "image_path", "image_id", "id"),
    "objects": ("objects", "annotations", "words", "annotation"),
    "segmentation": ("segmentation", "polygon", "polygons", "points", "quad", "quads"),
    "bbox": ("bbox", "bboxes", "box", "boxes"),
    "text": ("text", "texts", "transcription", "utf8_string", "words", "label"),
    "ignore": ("ignore", "ignored", "iscrowd", "difficult"),
    "language": ("language", "languages"),
}
"""The columns and fields that are looked for, the first that is there counts."""
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}\.parquet", re.IGNORECASE)
"""Hugging Face: the split, which shard, of how many."""
_PLACES = ("segmentation", "bbox")
_FIELDS = (*_PLACES, "text", "ignore", "language")
_EXPECTED = "a struct of lists or a list of structs with segmentation or bbox, and text"


@dataclass(frozen=True, slots=True)
class Cell:
    """The picture in one row of a parquet file; has what the package uses of a `Path`."""

    file: Path
    column: str
    group: int
    row: int
    """In the row group."""
    name: str
    mtime_ns: int

    @property
    def suffix(self) -> str:
        """The last suffix of the picture's name."""
        return PurePosixPath(self.name).suffix

    def __fspath__(self) -> str:
        return f"{self.file}/{self.name}"

    def stat(self) -> os.stat_result:
        """Return the time of the file, and the picture's size."""
        found = self.file.stat()
        parts = list(found)
        parts[6] = len(self.read_bytes())
        times = (found.st_atime, found.st_mtime, found.st_ctime)
        nanoseconds = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
        return os.stat_result((*parts, *times, *nanoseconds))

    def read_bytes(self) -> bytes:
        """Read the picture; raises OSError if the file was changed or the row has none."""
        if self.file.stat().st_mtime_ns != self.mtime_ns:
            raise OSError(f"{self.file} was changed during the build")
        value = _column(self.file, self.column, self.group, self.mtime_ns)[self.row].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise OSError(f"{self.file}: row {self.row} of group {self.group} has no picture")
        return data

    def open(self, mode: str = "rb") -> BinaryIO:
        """Return the picture as a file."""
        assert mode == "rb"
        return io.BytesIO(self.read_bytes())


@lru_cache(maxsize=2)
def _column(file: Path, column: str, group: int, mtime_ns: int) -> Any:
    """Read one column of a row group; the last two stay in memory, for the rows that follow."""
    del mtime_ns
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        return opened.read_row_group(group, [column])[column]


def find_parquet(place: Path) -> list[Path]:
    """Return the parquet files of a file, a pattern or a folder (Hugging Face: in `data/`).

    None of a folder that has pictures as well: there they are something else, such as an index.

    Raises:
        SourceError: A folder has the files of several splits.
    """
    if place.is_file():
        return [place] if place.suffix.lower() == ".parquet" else []
    if glob.has_magic(str(place)) and place.suffix.lower() == ".parquet":
        return sorted(map(Path, glob.glob(str(place))))  # noqa: PTH207  # absolute patterns, too
    if place.is_dir() and any(is_picture_name(path.name) for path in place.iterdir()):
        return []
    found = sorted(place.glob("*.parquet")) or sorted(place.glob("data/*.parquet"))
    splits = {match[1] for path in found if (match := _SHARD.fullmatch(path.name))}
    if len(splits) > 1:
        listed = ", ".join(map(shown, sorted(splits)))
        first = shown(found[0].with_name(f"{min(splits)}-*.parquet"))
        raise SourceError(
            f'{shown(place)}: has the splits {listed}; build one at a time, for example "{first}"'
        )
    return found


@dataclass(frozen=True, slots=True)
class _Objects:
    """Where the objects of a row are."""

    column: str | None
    """The column of objects; None if their fields are columns themselves."""
    fields: Mapping[str, str]
    """Names of this module (`bbox`, `text`, ...) to the names of the fields."""

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        return [self.column] if self.column is not None else list(self.fields.values())


def read_parquet(
    files: list[Path], columns_map: Mapping[str, str] | None = None, *, annotated: bool = True
) -> tuple[Listing, dict[str, Entry], list[str]]:
    """List the pictures of parquet files, the annotation of each by its key, and unknown columns.

    Columns count as unknown in files where no objects were found.

    Args:
        files: The files, which have the same columns.
        columns_map: Names of this module (`image`, `bbox`, `text`, ...) to the names in the files.
        annotated: False to read the pictures alone.

    Raises:
        SourceError: A file cannot be read, has no column of pictures or none of `columns_map`, or
            has a column of objects that are none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    given = dict(columns_map or {})
    unknown = sorted(set(given) - set(NAMES))
    if unknown:
        raise SourceError(f"columns map: {unknown[0]!r} is none of {', '.join(NAMES)}")
    names = {**NAMES, **{name: (column,) for name, column in given.items()}}
    pictures: dict[str, FoundFile] = {}
    entries: dict[str, Entry] = {}
    problems: list[Problem] = []
    unknown_columns: dict[str, None] = {}
    for file in files:
        try:
            mtime_ns = file.stat().st_mtime_ns
            with pq.ParquetFile(file) as opened:
                schema = opened.schema_arrow
                for name in ("image", "key", "objects"):
                    if name in given and given[name] not in schema.names:
                        raise _no_such(file, name, given[name], "column", schema.names)
                image = _pick(schema.names, names["image"])
                if image is None:
                    raise SourceError(
                        f"{shown(file)}: no column of pictures among {', '.join(schema.names)}; "
                        "name it with --columns-map image=NAME"
                    )
                key_column = _pick(schema.names, names["key"])
                objects = _find_objects(file, schema, names, given) if annotated else None
                read = [] if key_column is None else [key_column]
                if objects is not None:
                    read += [name for name in objects.columns if name != key_column]
                else:
                    unknown_columns |= dict.fromkeys(
                        n for n in schema.names if n not in (image, *read)
                    )
                paths = _path_column(schema.field(image))
                for group in range(opened.num_row_groups):
                    columns = [*read, *([f"{image}.path"] if paths else [])]
                    rows = opened.read_row_group(group, columns).to_pylist()
                    for row, record in enumerate(rows):
                        path = (record.get(image) or {}).get("path") if paths else None
                        name = path or f"{file.stem}-{len(pictures):07d}"
                        cell = Cell(file, image, group, row, name, mtime_ns)
                        picture = FoundFile(_relative(record, names["key"], name), cell)
                        key = picture.key
                        if key in pictures:
                            message = (
                                f"{shown(key)}: twice in {shown(file.name)}; the first is used"
                            )
                            problems.append(Problem("listed-twice", message))
                            continue
                        pictures[key] = picture
                        where = f"{shown(file.name)} row {row} of group {group}"
                        regions = None if objects is None else _regions(record, objects, where)
                        if regions is not None:
                            entries[key] = Entry((key,), regions, where)
        except (OSError, pa.ArrowException) as exc:
            raise SourceError(f"{shown(file)}: cannot be read as parquet: {exc}") from exc
    listed = sorted(pictures.values(), key=lambda found: found.key)
    return Listing(tuple(listed), (), tuple(problems)), entries, list(unknown_columns)


def _find_objects(
    file: Path, schema: Any, names: Mapping[str, tuple[str, ...]], given: Mapping[str, str]
) -> _Objects | None:
    """Return where the objects of a file are; None if no column is known."""
    columns = {name: schema.field(name).type for name in schema.names}
    named = [name for name in names["objects"] if name in columns]
    inside = {name: _fields(columns[name]) for name in named}
    chosen = {role: name for role, name in given.items() if role in _FIELDS}
    for column, fields in inside.items():
        picked = {role: name for role in _FIELDS if (name := _pick(fields or (), names[role]))}
        if fields and picked.keys() & set(_PLACES):
            _check_fields(file, column, columns[column], fields, picked, chosen)
            return _Objects(column, picked)
    if "objects" not in given:
        lists = _find_lists(file, columns, names, chosen, inside)
        if lists is not None:
            return lists
    for column, fields in inside.items():
        if fields is None:
            raise _not_objects(file, column, columns[column], "it is neither")
        if fields:
            there = ", ".join(shown(name) for name in fields)
            raise _not_objects(file, column, columns[column], f"it has only {there}")
    if chosen and not named:
        told = ", ".join(f"{role}={shown(name)}" for role, name in chosen.items())
        raise SourceError(
            f"{shown(file)}: --columns-map {told}: no column has the places of these objects; "
            "name it with --columns-map bbox=NAME or segmentation=NAME"
        )
    return _Objects(named[0], {}) if named else None  # nothing is in it but nulls


def _check_fields(
    file: Path,
    column: str,
    kind: Any,
    fields: Mapping[str, Any],
    picked: Mapping[str, str],
    chosen: Mapping[str, str],
) -> None:
    """Raise SourceError if the user names a field that is not there, or one is no list."""
    import pyarrow as pa

    for role, name in chosen.items():
        if name not in fields:
            raise _no_such(file, role, name, f"field of {shown(column)!r}", fields)
    if pa.types.is_struct(kind):
        for name in picked.values():
            if not _is_list(fields[name]):
                raise _not_objects(file, column, kind, f"its field {shown(name)!r} is no list")


def _find_lists(
    file: Path,
    columns: Mapping[str, Any],
    names: Mapping[str, tuple[str, ...]],
    chosen: Mapping[str, str],
    inside: Mapping[str, Mapping[str, Any] | None],
) -> _Objects | None:
    """Return the columns that are lists of places, texts and so on; None without places."""
    import pyarrow as pa

    lists = {name: kind for name, kind in columns.items() if _is_list(kind)}
    boxes = {
        name: kind
        for name, kind in lists.items()
        if pa.types.is_null(kind) or _is_list(kind.value_type)
    }
    picked = {
        role: name
        for role in _FIELDS
        if (name := _pick(boxes if role in _PLACES else lists, names[role]))
    }
    # of objects that are all null, the fields are not known
    for role, name in chosen.items() if {} not in inside.values() else ():
        if name not in columns:
            fields = [
                f"{column}.{field}" for column, found in inside.items() for field in found or ()
            ]
            raise _no_such(file, role, name, "column or field of objects", [*columns, *fields])
        if role not in picked:
            wanted = "a list of lists" if role in _PLACES else "a list"
            raise SourceError(
                f"{shown(file)}: --columns-map {role}={shown(name)}: the column is "
                f"{_type(columns[name])}, expected {wanted}, with an item for each object"
            )
    if not picked.keys() & set(_PLACES):
        return None
    if "segmentation" not in picked and "bbox" not in chosen:
        # in columns of their own, corners (x1, y1, x2, y2) are as usual as sides
        name = shown(picked["bbox"])
        raise SourceError(
            f"{shown(file)}: the column {name!r} has boxes. If they are x, y, width, height, "
            f"confirm it with --columns-map bbox={name}; else convert them. --format folder takes "
            "the pictures alone"
        )
    return _Objects(None, picked)


def _fields(kind: Any) -> dict[str, Any] | None:
    """Return the fields of a column of objects, none if it has nulls only; None if it is none."""
    import pyarrow as pa

    if _is_list(kind) and not pa.types.is_null(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        return {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
    return {} if pa.types.is_null(kind) else None


def _is_list(kind: Any) -> bool:
    """Return whether a type is a list, or null: all values of a list column may be missing."""
    import pyarrow as pa

    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(is_list or pa.types.is_fixed_size_list(kind) or pa.types.is_null(kind))


def _type(kind: Any) -> str:
    text = shown(str(kind))
    return text if len(text) <= 100 else text[:97] + "..."


def _no_such(file: Path, role: str, name: str, kind: str, there: Iterable[str]) -> SourceError:
    listed = ", ".join(shown(other) for other in there)
    return SourceError(
        f"{shown(file)}: --columns-map {role}={shown(name)}: no such {kind}; there are {listed}"
    )


def _not_objects(file: Path, column: str, kind: Any, why: str) -> SourceError:
    return SourceError(
        f"{shown(file)}: the column {shown(column)!r} is {_type(kind)}, expected {_EXPECTED}: "
        f"{why}. Name the columns of the annotations with --columns-map, for example objects=NAME "
        "or bbox=NAME; --format folder takes the pictures alone"
    )


def _pick(there: Iterable[str], names: tuple[str, ...]) -> str | None:
    known = set(there)
    return next((name for name in names if name in known), None)


def _path_column(field: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(field.type) and field.type.get_field_index("path") >= 0)


def _relative(record: Mapping[str, Any], names: tuple[str, ...], otherwise: str) -> str:
    """Return the path that a row's key stands for: of a column for it, or the picture's own."""
    name = _pick(record, names)
    given = record.get(name) if name is not None else None
    if name == "key" and isinstance(given, str) and given:
        return path_of(given)  # a key of another store, which stays as it is
    text = str(given if given is not None and str(given) else otherwise)
    parts = [part for part in text.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    return "/".join(parts)


_Region = tuple[Any, Any, Any, Any]


def _regions(
    record: Mapping[str, Any], objects: _Objects, where: str
) -> list[_Region | Flaw] | Flaw | None:
    """Return the objects of a row, or what is wrong with them; None if it is not annotated."""
    fields = objects.fields
    held = record if objects.column is None else record.get(objects.column)
    rows: list[Mapping[str, Any]]
    if held is None:
        return None
    if isinstance(held, list):
        rows = [{role: (row or {}).get(name) for role, name in fields.items()} for row in held]
    else:  # lists, one item of each for an object
        lists = {role: held[name] for role, name in fields.items()}
        unplaced = all(lists.get(role) is None for role in _PLACES)
        if objects.column is None and unplaced and not any(lists.values()):
            return None
        lengths = {
            fields[role]: len(value or ())
            for role, value in lists.items()
            if value is not None or (unplaced and role in _PLACES)
        }
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{shown(name)} {length}" for name, length in lengths.items())
            return Flaw("bad-structure", f"{where}: lists of different lengths: {told}")
        count = max(lengths.values(), default=0)
        rows = [
            {role: value[at] for role, value in lists.items() if value is not None}
            for at in range(count)
        ]
    return [_region(row, f"{where}, region {at}") for at, row in enumerate(rows)]


def _region(row: Mapping[str, Any], where: str) -> _Region | Flaw:
    """Return points, text, flag and language of an object."""
    points: Any = row.get("segmentation")
    if isinstance(points, list) and points and isinstance(points[0], list) and len(points[0]) > 2:
        points = points[0]  # COCO: a list of outlines
    box = row.get("bbox")
    if not points and box is not None:
        points = box_region_points(box, sides=True)
        if isinstance(points, str):
            return Flaw("bad-box", f"{where}: {points}; left out")
    return points, row.get("text"), row.get("ignore"), row.get("language")
