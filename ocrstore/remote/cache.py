"""The files of a cache folder, in which a node keeps what it has fetched of stores behind URLs.

An object has three files, named after a hash of its URL, ETag and size:

- `NAME.frame` is as long as the object and has its offsets, but only the meta pages, the tree, the
  manifests and the indexes are in it. It is complete before it gets its name and never changes, so
  it is opened like any store.
- `NAME.json` is the object's URL, ETag and size.
- `NAME.rows` has the rows at the object's offsets, as far as they were fetched, and behind them a
  header and one byte for each column and row: its mark. Rows and marks are one file, so that no
  reader can see the marks of another copy. This file is removed when the cache is full; readers
  that have mapped it keep their rows.

A data set of many stores has a folder `NAME.dataset`, with a copy of its catalog and its URL. Its
shards seem to lie beside the catalog: `shard_url` returns where they really are.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import xxhash

from ocrstore.format.layout import PAGE_ALIGNMENT, align_up
from ocrstore.whole_file import write_whole

ABSENT, UNCHECKED, PRESENT = range(3)
"""The marks of a row. UNCHECKED: it was there before the machine was started again, and after a
power failure the mark may have reached the disk and the row not."""

_FRAME, _ORIGIN, _ROWS, _DATASET = ".frame", ".json", ".rows", ".dataset"
_HEADER = struct.Struct("<8s64s8s")  # magic, boot, whether it was removed
_MAGIC = b"OCRSROW1"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://")


def is_url(place: object) -> bool:
    """Return whether a place is a URL, such as `s3://bucket/train.ocrs`, and not a path."""
    return isinstance(place, str) and _URL.match(place) is not None


def cache_folder(given: str | os.PathLike[str] | None) -> Path:
    """Return the cache folder: the given one, OCRSTORE_CACHE, or that of the user."""
    found = given or os.environ.get("OCRSTORE_CACHE")
    if found is None:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        found = Path(caches) / "ocrstore"
    return Path(os.path.abspath(found))  # noqa: PTH100  # Path.resolve would follow links


def folder_for(url: str, kind: str) -> Path:
    """Return the place in the cache for what is made for a URL, such as a build; not created."""
    plain = url.rstrip("/")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", plain.rpartition("/")[2])[-64:]
    return cache_folder(None) / kind / xxhash.xxh3_64_hexdigest(plain.encode()) / name


class Origin(NamedTuple):
    """Which object a local copy is of."""

    url: str
    etag: str
    nbytes: int

    def frame(self, cache: Path) -> Path:
        """Return where the frame of this object lies in a cache folder."""
        return cache / f"{self._stem}{_FRAME}"

    def dataset(self, cache: Path) -> Path:
        """Return the folder in a cache folder for the data set whose catalog this object is."""
        return cache / f"{self._stem}{_DATASET}"

    @property
    def _stem(self) -> str:
        digest = xxhash.xxh3_128_hexdigest(json.dumps(self).encode())[:16]
        name = self.url.removesuffix("/dataset.json").rpartition("/")[2].removesuffix(".ocrs")
        return f"{digest}-{re.sub('[^A-Za-z0-9._-]', '_', name)[:64]}"

    def write(self, path: Path) -> None:
        """Record the origin of a frame or of the folder of a data set."""
        write_whole(path.with_suffix(_ORIGIN), json.dumps(self._asdict()).encode())


def read_origin(frame: str | os.PathLike[str]) -> Origin | None:
    """Return the origin of a local copy; None if the file is none."""
    path = Path(frame)
    if path.suffix not in (_FRAME, _DATASET):
        return None
    try:
        return Origin(**json.loads(path.with_suffix(_ORIGIN).read_text("utf-8")))
    except FileNotFoundError:
        return None


def given_place(path: str | os.PathLike[str]) -> str:
    """Return the URL that a local copy is of, as its user gave it; of any other path the path."""
    origin = read_origin(path)
    if origin is None:
        return os.fspath(path)
    return origin.url.removesuffix("/dataset.json")


def shard_url(path: str) -> tuple[str, Path] | None:
    """Return URL and cache folder of a shard beside the copy of a catalog; None for other paths."""
    folder = Path(path).parent
    origin = read_origin(folder)
    if origin is None:
        return None
    return f"{origin.url.rpartition('/')[0]}/{Path(path).name}", folder.parent


def rows_path(frame: Path) -> Path:
    """Return where the rows of a frame lie."""
    return frame.with_suffix(_ROWS)


def frames_with_rows(cache: Path) -> list[Path]:
    """Return the frames in a cache folder that have a rows file."""
    found = [path.with_suffix(_FRAME) for path in cache.glob(f"*{_ROWS}")]
    return [frame for frame in found if read_origin(frame) is not None]


def marks_start(nbytes: int) -> int:
    """Return where the marks begin in the rows file of an object of this size."""
    return header_start(nbytes) + PAGE_ALIGNMENT


def header_start(nbytes: int) -> int:
    """Return where the header begins, which says in which run of the machine marks were set."""
    return align_up(nbytes, PAGE_ALIGNMENT)


def rows_header() -> bytes:
    """Return the header of a rows file whose marks were set since the machine was started."""
    return _HEADER.pack(_MAGIC, _boot_id(), b"")


def is_rows_header(found: bytes) -> bool:
    """Return whether this is the header of a rows file, of whichever run of the machine."""
    return len(found) == HEADER_NBYTES and found.startswith(_MAGIC) and not found[REMOVED_OFFSET]


HEADER_NBYTES = _HEADER.size
REMOVED_OFFSET = HEADER_NBYTES - 8
"""Where in the header a byte is set before the file is removed, for those who have mapped it."""


@lru_cache(maxsize=1)
def _boot_id() -> bytes:
    """Return what is another value after the machine was started again."""
    linux = Path("/proc/sys/kernel/random/boot_id")
    if linux.exists():
        return linux.read_bytes().strip()
    command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]  # macOS
    return subprocess.run(command, capture_output=True, check=True).stdout.strip()
