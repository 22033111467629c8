"""Formats of large files with many samples each: WebDataset's tars, Hugging Face's parquet."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from ocrstore.errors import SchemaError, UnknownColumnError
from ocrstore.exporting.parts import Format, Part, Request, pictures_of
from ocrstore.exporting.sample_reader import Annotated, SampleReader, require_intact
from ocrstore.schema import IMAGE
from ocrstore.version import __version__
from ocrstore.views import find_view, stored_views
from ocrstore.whole_file import write_whole

SHARD_NBYTES = 500_000_000
_encode_json = json.JSONEncoder(ensure_ascii=False).encode
_GROUP_NBYTES = 32_000_000
"""Bytes of a row group: what readers that stream take at once."""


class _Sharded(Format):
    reader: SampleReader
    columns: dict[str, str]
    """Names of arrays in a shard, to columns of the store."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._limit = SHARD_NBYTES if request.shard_size is None else request.shard_size
        if self._limit < 1:
            raise SchemaError(f"the size of a shard is at least 1 byte, not {self._limit}")
        stem = Path(request.store.path).name.partition(".")[0]
        self.name = re.sub(r"[^A-Za-z0-9_-]+", "_", stem) or "data"

    def shards(self) -> list[list[int]]:
        """Return the rows of each shard.

        Sizes are those of the index, not of what is written: a PNG counts as its pixels. So the
        shards are known in advance, and each is independent of the others.
        """
        found: list[list[int]] = []
        filled = 0
        sizes = self.reader.nbytes(list(self.rows), list(self.columns.values()))
        for row, nbytes in zip(self.rows, sizes.tolist(), strict=True):
            if not found or filled + nbytes > self._limit:
                found.append([])
                filled = 0
            found[-1].append(row)
            filled += nbytes
        return found

    def nbytes(self, rows: list[int]) -> list[int]:
        """Return the most bytes of a picture and the arrays."""
        sizes = self.reader.nbytes(rows, list(self.columns.values()), decoded=True)
        return [int(nbytes) for nbytes in sizes]


class WebDataset(_Sharded):
    """`name-000000.tar` with `00000012.jpg`, `.json` and an `.npy` for each array."""

    takes = ("columns", "view", "shard_size")

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        store = request.store
        whole = Request(store, request.rows, view=None if IMAGE in store else request.view)
        self.reader = pictures_of(whole)
        known: dict[str, str] = {}
        if stored_views(store) or request.view is not None:
            known = dict(find_view(store, request.view).columns)
        names = (IMAGE, *known) if request.columns is None else request.columns
        self._with_pictures = IMAGE in names
        self.columns = {}
        for name in names:
            if name == IMAGE:
                continue
            if known.get(name, name) not in store:
                listed = ", ".join(dict.fromkeys((IMAGE, *known, *store.columns)))
                raise UnknownColumnError(f"{store.path}: no column {name!r}; it has {listed}.")
            self.columns[name.replace("/", ".")] = known.get(name, name)

    def parts(self) -> list[Part]:
        """Return the tars."""
        return [
            Part(f"{self.name}-{number:06d}.tar", rows) for number, rows in enumerate(self.shards())
        ]

    def encode(self, row: int) -> list[tuple[str, bytes | memoryview]]:
        """Return names and contents of a sample's members, sorted."""
        sample = self.reader.read(row)
        regions = sample.regions
        record = {
            "key": sample.key,
            "width": sample.width,
            "height": sample.height,
            "source_orientation": int(self.reader.orientation[row]) or 1,
            "annotated": sample.annotated,
            "polygons": [region.points for region in regions],
            "texts": [region.text for region in regions],
            "ignored": [region.ignored for region in regions],
            "languages": [region.language for region in regions],
        }
        if self.reader.view is not None:  # there is no column `image`: polygons are moved
            record |= {"view": self.reader.view.name, "raw_size": self.reader.raw_size(row)}
        members: dict[str, bytes | memoryview] = {"json": _encode_json(record).encode()}
        if self._with_pictures:
            # WebDataset knows .jpg, .jpeg, .png and .webp by these names only
            suffix, picture = self.reader.picture(row)
            members["jpg" if suffix.lower() in _JPEG else suffix.lower()[1:]] = picture
        for name, column in self.columns.items():
            require_intact(self.store[column], row)
            buffer = io.BytesIO()
            np.save(buffer, np.ascontiguousarray(self.store[column][row]), allow_pickle=False)
            members[f"{name}.npy"] = buffer.getbuffer()
        return [(f"{row:08d}.{name}", members[name]) for name in sorted(members)]

    def write(self, path: Path, samples: Iterator[list[tuple[str, bytes | memoryview]]]) -> None:
        """Write a tar without times, owners or extensions of the format."""
        # not by TarFile.addfile, which reads from a file and so needs a copy
        with path.open("wb") as file:
            for members in samples:
                for name, data in members:
                    file.write(_header(name, len(data)))
                    file.write(data)
                    file.write(bytes(-len(data) % tarfile.BLOCKSIZE))
            file.write(bytes(2 * tarfile.BLOCKSIZE))
            file.write(bytes(-file.tell() % tarfile.RECORDSIZE))


def _header(name: str, nbytes: int) -> bytes:
    """Return the header of a tar's member."""
    known = name.isascii() and len(name) <= tarfile.LENGTH_NAME and nbytes < 8**11
    if not known:
        info = tarfile.TarInfo(name)
        info.size = nbytes
        return info.tobuf(tarfile.USTAR_FORMAT)
    # most members differ in name and size only, and `tobuf` takes half of the time of a picture
    header = bytearray(_plain_header())
    header[: len(name)] = name.encode("ascii")
    header[124:135] = b"%011o" % nbytes
    header[148:156] = b"        "  # of the checksum, while it is taken
    header[148:155] = b"%06o\0" % sum(header)
    return bytes(header)


@lru_cache(maxsize=1)
def _plain_header() -> bytes:
    return tarfile.TarInfo("").tobuf(tarfile.USTAR_FORMAT)


_JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")


class HuggingFace(_Sharded):
    """`data/train-00000-of-00003.parquet` and a dataset card."""

    takes = ("view", "shard_size")

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.reader = pictures_of(request)
        self.columns = {}
        content = json.dumps([self.store.fingerprint, list(self.rows), request.view])
        self._content = xxhash.xxh3_64_hexdigest(content.encode())

    def parts(self) -> list[Part]:
        """Return the parquet files; a data set without samples has one."""
        shards = self.shards() or [[]]
        return [
            Part(f"data/train-{number:05d}-of-{len(shards):05d}.parquet", rows)
            for number, rows in enumerate(shards)
        ]

    def encode(self, row: int) -> dict[str, Any]:
        """Return a row of the table."""
        sample = self.reader.read(row)
        suffix, picture = self.reader.picture(row)
        return {
            "key": sample.key,
            "image": {"bytes": bytes(picture), "path": f"{row:08d}{suffix}"},
            "width": sample.width,
            "height": sample.height,
            "objects": _objects(sample),
        }

    def write(self, path: Path, samples: Iterator[dict[str, Any]]) -> None:
        """Write a file in row groups of some 32 MB."""
        # pictures do not get smaller, and to try it takes several copies of a row group
        plain: dict[str, Any] = {"compression": "none", "use_dictionary": False}
        with (
            path.open("wb") as file,
            pq.ParquetWriter(file, _SCHEMA, write_statistics=["key"], **plain) as writer,
        ):
            waiting: list[dict[str, Any]] = []
            nbytes = 0
            for sample in samples:
                waiting.append(sample)
                nbytes += len(sample["image"]["bytes"])
                if nbytes >= _GROUP_NBYTES:
                    writer.write_table(pa.Table.from_pylist(waiting, _SCHEMA))
                    waiting, nbytes = [], 0
            if waiting:
                writer.write_table(pa.Table.from_pylist(waiting, _SCHEMA))

    def finish(self, folder: Path) -> None:
        """Write the dataset card."""
        card = _CARD.format(
            name=json.dumps(self.name),
            samples=len(self.rows),
            version=__version__,
            fingerprint=self.store.fingerprint,
            content=self._content,
        )
        write_whole(folder / "README.md", card.encode())


def _objects(sample: Annotated) -> dict[str, list[Any]] | None:
    """Return a struct of lists, as Hugging Face's `Sequence` of a dict is stored."""
    if not sample.annotated:
        return None
    boxes = [region.box for region in sample.regions]
    return {
        "bbox": [[x, y, right - x, bottom - y] for x, y, right, bottom in boxes],
        "segmentation": [region.flat for region in sample.regions],
        "text": [region.text for region in sample.regions],
        "ignore": [region.ignored for region in sample.regions],
        "language": [region.language for region in sample.regions],
    }


def _value(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "_type": "Value"}


def _sequence(feature: dict[str, Any]) -> dict[str, Any]:
    return {"feature": feature, "_type": "Sequence"}


_FLOATS = _sequence(_value("float32"))
_FEATURES = {
    "key": _value("string"),
    "image": {"_type": "Image"},
    "width": _value("int32"),
    "height": _value("int32"),
    "objects": {
        "bbox": _sequence(_FLOATS),
        "segmentation": _sequence(_FLOATS),
        "text": _sequence(_value("string")),
        "ignore": _sequence(_value("bool")),
        "language": _sequence(_value("string")),
    },
}
"""What `datasets` finds in the metadata of the schema: the features of the columns."""
_SCHEMA = pa.schema(
    {
        "key": pa.string(),
        "image": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
        "width": pa.int32(),
        "height": pa.int32(),
        "objects": pa.struct(
            {
                "bbox": pa.list_(pa.list_(pa.float32())),
                "segmentation": pa.list_(pa.list_(pa.float32())),
                "text": pa.list_(pa.string()),
                "ignore": pa.list_(pa.bool_()),
                "language": pa.list_(pa.string()),
            }
        ),
    },
    metadata={"huggingface": json.dumps({"info": {"features": _FEATURES}})},
)
# `datasets` keeps what it loaded under a hash of the configs: without the content, an export that
# replaced another would be loaded as the old one
_CARD = """---
pretty_name: {name}
task_categories:
- object-detection
- image-to-text
configs:
- config_name: default
  description: content {content}
  data_files:
  - split: train
    path: data/train-*
---

{samples} pictures with text regions, exported by ocrstore {version} from a store with the content
fingerprint {fingerprint}.

| column | what |
|---|---|
| `key` | the sample's key in the store |
| `image` | the upright picture |
| `width`, `height` | its size |
| `objects.bbox` | x, y, width, height of each region |
| `objects.segmentation` | its polygon: x, y, x, y, ... |
| `objects.text`, `objects.language` | null where unknown |
| `objects.ignore` | true for regions that neither training nor scores count |

`objects` is null for pictures that nobody has annotated.
"""
FORMATS: dict[str, type[Format]] = {"webdataset": WebDataset, "hf": HuggingFace}
