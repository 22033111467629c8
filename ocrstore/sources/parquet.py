"""Parquet files with pictures in them, as Hugging Face datasets are: read by pyarrow alone.

A row has an `image` (a struct of bytes and path, or bytes) and its objects: a struct of lists or a
list of structs with bbox (x, y, width, height), segmentation, text, ignore.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from ocrstore.annotation import Problem
from ocrstore.errors import SourceError
from ocrstore.keys import path_of, shown
from ocrstore.sources.dialect import Entry
from ocrstore.sources.pictures import FoundFile, Listing, is_picture_name

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
    """Return the parquet files of a file or a folder (Hugging Face: in `data/`).

    None of a folder that has pictures as well: there they are something else, such as an index.
    """
    if place.is_file():
        return [place] if place.suffix.lower() == ".parquet" else []
    if place.is_dir() and any(is_picture_name(path.name) for path in place.iterdir()):
        return []
    found = sorted(path for path in place.glob("*.parquet"))
    return found or sorted(path for path in place.glob("data/*.parquet"))


def read_parquet(
    files: list[Path], columns_map: Mapping[str, str] | None = None
) -> tuple[Listing, dict[str, Entry]]:
    """List the pictures of parquet files, and the annotation of each by its key.

    Args:
        files: The files, which have the same columns.
        columns_map: Names of this module (`image`, `bbox`, `text`, ...) to the names in the files.

    Raises:
        SourceError: A file cannot be read, or has no column of pictures.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = {name: (given,) for name, given in (columns_map or {}).items()}
    unknown = sorted(set(wanted) - set(NAMES))
    if unknown:
        raise SourceError(f"columns map: {unknown[0]!r} is none of {', '.join(NAMES)}")
    names = {**NAMES, **wanted}
    pictures: dict[str, FoundFile] = {}
    entries: dict[str, Entry] = {}
    problems: list[Problem] = []
    for file in files:
        try:
            mtime_ns = file.stat().st_mtime_ns
            with pq.ParquetFile(file) as opened:
                schema = opened.schema_arrow
                image = _pick(schema.names, names["image"])
                if image is None:
                    raise SourceError(
                        f"{shown(file)}: no column of pictures among {', '.join(schema.names)}; "
                        "name it with --columns-map image=NAME"
                    )
                others = [name for name in schema.names if name != image]
                paths = _path_column(schema.field(image))
                for group in range(opened.num_row_groups):
                    read = [*others, *([f"{image}.path"] if paths else [])]
                    rows = opened.read_row_group(group, read).to_pylist()
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
                        found = list(_objects(record, names))
                        if found or record.get(_pick(record, names["objects"]) or "") is not None:
                            where = f"{file.name} row {row} of group {group}"
                            entries[key] = Entry((key,), found, where)
        except (OSError, pa.ArrowException) as exc:
            raise SourceError(f"{shown(file)}: cannot be read as parquet: {exc}") from exc
    listed = sorted(pictures.values(), key=lambda found: found.key)
    return Listing(tuple(listed), (), tuple(problems)), entries


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


def _objects(
    record: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield points, text, flag and language of each object of a row."""
    column = _pick(record, names["objects"])
    held = record.get(column) if column is not None else record
    rows: list[Mapping[str, Any]]
    if isinstance(held, list):
        rows = [row for row in held if isinstance(row, dict)]
    elif isinstance(held, dict):  # a struct of lists
        length = max((len(value) for value in held.values() if isinstance(value, list)), default=0)
        rows = [
            {
                name: value[at]
                for name, value in held.items()
                if isinstance(value, list) and at < len(value)
            }
            for at in range(length)
        ]
    else:
        rows = []
    for row in rows:
        values = {
            field: row.get(_pick(row, names[field]) or "")
            for field in ("segmentation", "bbox", "text", "ignore", "language")
        }
        points = values["segmentation"]
        if (
            isinstance(points, list)
            and points
            and isinstance(points[0], list)
            and len(points[0]) > 2
        ):
            points = points[0]  # COCO: a list of outlines
        if not points and isinstance(values["bbox"], list) and len(values["bbox"]) == 4:
            x, y, width, height = values["bbox"]
            points = [x, y, x + width, y, x + width, y + height, x, y + height]
        yield points, values["text"], bool(values["ignore"]), values["language"]
