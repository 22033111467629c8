"""Pictures and annotations inside of tar and zip archives, read in place.

Links, encrypted members, absolute names and names with `..` are reported and left out, and so are
members of a zip that lie beyond its end or unpack to very much. A tar that is cut off or damaged is
refused as a whole. Nothing is unpacked to disk.
"""

from __future__ import annotations

import glob
import io
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Self

from ocrstore.annotation import Problem
from ocrstore.errors import SourceError
from ocrstore.keys import shown
from ocrstore.sources.pictures import FoundFile, Listing, is_hidden, is_picture_name

SUFFIXES = (".tar", ".zip")
_COMPRESSED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tbz2", ".txz")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_ZIP_HEADER = struct.Struct("<4s22xHH")
_MOST = 1_000_000
_MAX_UNPACKED_NBYTES = 600_000_000
"""Of a compressed member of a zip, which may unpack to 1000 times its size; as many bytes as the
largest row of a store has by default."""
# gzip, bzip2, xz, zstd
_COMPRESSED_STARTS = (b"\x1f\x8b", b"BZh91AY&SY", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")
_EXTENSIONS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_MAX_EXTENSION_NBYTES = 1 << 20
_UNREADABLE = (
    *(tarfile.TarError, zipfile.BadZipFile, EOFError),
    # what tarfile and zipfile let through from headers that are odd; RuntimeError is deep nesting
    # of headers, and a zip of a later version
    *(ValueError, IndexError, OverflowError, RuntimeError, struct.error),
)
_REMEDY = "it is cut off, damaged or not a tar or zip file: copy it or make it again"


@dataclass(frozen=True, slots=True)
class Member:
    """A file inside of an archive; has what the package uses of a `Path` that is only read."""

    archive: Path
    name: str
    """Path in the archive."""
    offset: int
    """Of the data (tar) or of the local header (zip)."""
    nbytes: int
    mtime_ns: int
    """Of the archive when it was listed."""
    packed: int | None = None
    """Bytes in the archive; None for a tar."""
    crc: int = 0
    deflated: bool = False

    @property
    def suffix(self) -> str:
        """The last suffix of the name."""
        return PurePosixPath(self.name).suffix

    def __fspath__(self) -> str:
        return f"{self.archive}/{self.name}"

    def __str__(self) -> str:
        return self.__fspath__()

    def stat(self) -> os.stat_result:
        """Return size and time; the time is that of the archive.

        Raises:
            OSError: The archive is gone, or was changed since it was listed.
        """
        found = self.archive.stat()
        times = (int(found.st_atime), int(found.st_mtime), int(found.st_ctime))
        state = (found.st_mode, found.st_ino, found.st_dev, 1, 0, 0, self.nbytes, *times)
        nanoseconds = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
        parts = (*state, found.st_atime, found.st_mtime, found.st_ctime, *nanoseconds)
        return os.stat_result(parts)

    def read_bytes(self) -> bytes:
        """Read the member.

        Raises:
            OSError: It cannot be read, or not as it was when the archive was listed.
        """
        with self.archive.open("rb") as file:
            if os.fstat(file.fileno()).st_mtime_ns != self.mtime_ns:
                raise OSError(f"{self.archive} was changed during the build")
            file.seek(self.offset)
            data = file.read(self.nbytes) if self.packed is None else self._unpack(file)
        if len(data) != self.nbytes:
            raise OSError(f"{self}: {self.nbytes} bytes expected, {len(data)} found")
        return data

    def open(self, mode: str = "rb") -> BinaryIO:
        """Return the content as a file."""
        assert mode == "rb"
        return io.BytesIO(self.read_bytes())

    def _unpack(self, file: BinaryIO) -> bytes:
        header = file.read(_ZIP_HEADER.size)
        if len(header) < _ZIP_HEADER.size or header[:4] != b"PK\3\4":
            raise OSError(f"{self}: no zip member where one is listed")
        _, name, extra = _ZIP_HEADER.unpack(header)
        file.seek(name + extra, os.SEEK_CUR)
        data = file.read(self.packed or 0)
        if self.deflated:
            try:
                data = zlib.decompressobj(-15).decompress(data, self.nbytes + 1)
            except zlib.error as exc:
                raise OSError(f"{self}: damaged: {exc}") from exc
        if zlib.crc32(data) != self.crc:
            raise OSError(f"{self}: its checksum is wrong")
        return data


def is_archive(place: str | os.PathLike[str]) -> bool:
    """Tell whether a source names archives: by its ending, before anything is opened."""
    name = os.fspath(place).lower()
    return name.endswith(SUFFIXES + _COMPRESSED) and not Path(place).is_dir()


def expand(place: str | os.PathLike[str]) -> list[Path]:
    """Return the archives of a path, a pattern (`*`), or a range such as `shots-{000..031}.tar`."""
    text = os.fspath(place)
    if Path(text).exists():
        return [Path(text)]
    found = _RANGE.search(text)
    if found is not None:
        first, last = int(found[1]), int(found[2])
        if not 0 <= last - first < _MOST:
            raise SourceError(f"{shown(text)}: expected a range from a number to a larger one")
        width = len(found[1])
        names = [
            f"{text[: found.start()]}{number:0{width}d}{text[found.end() :]}"
            for number in range(first, last + 1)
        ]
        return [path for name in names for path in expand(name)]
    matches = sorted(glob.glob(text)) if glob.has_magic(text) else []  # noqa: PTH207  # absolute, too
    if not matches:
        raise SourceError(f"{shown(text)}: no such archive; give a tar or zip file, or a pattern")
    return [Path(match) for match in matches]


def list_archives(place: str | os.PathLike[str]) -> Listing:
    """List the files of one archive or several, as if they were one folder.

    Raises:
        SourceError: An archive is compressed as a whole, cut off, damaged or cannot be read, or two
            have a member of the same name.
    """
    files: dict[str, Member] = {}
    problems: list[Problem] = []
    for archive in expand(place):
        read = _zip_members if archive.suffix.lower() == ".zip" else _tar_members
        try:
            for found in read(archive):
                if isinstance(found, Problem):
                    problems.append(found)
                elif not is_hidden(found.name):
                    known = files.get(found.name)
                    if known is not None and known.archive != archive:
                        raise SourceError(
                            f"{shown(found.name)} is in {known.archive} and in {archive}: names in "
                            "archives that are one source have to differ"
                        )
                    if known is not None:
                        message = f"{shown(found.name)}: twice in {shown(archive.name)}"
                        problems.append(Problem("listed-twice", f"{message}; the last is used"))
                    # the last one of equal names in one archive counts, as for tar itself
                    files[found.name] = found
        except OSError as exc:
            why = exc.strerror or exc
            raise SourceError(f"{shown(archive)}: cannot be read: {why}") from exc
        except _UNREADABLE as exc:
            raise SourceError(
                f"{shown(archive)}: cannot be read as an archive: {shown(exc)}; {_REMEDY}"
            ) from exc
    listed = sorted((FoundFile(name, file) for name, file in files.items()), key=lambda f: f.key)
    return Listing(
        pictures=tuple(file for file in listed if is_picture_name(file.relative)),
        others=tuple(file for file in listed if not is_picture_name(file.relative)),
        problems=tuple(problems),
    )


class _TarHeader(tarfile.TarInfo):
    """A header whose size is checked before tarfile allocates it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        # a HeaderError would be taken for the end of the archive
        if header.size < 0:
            raise tarfile.ReadError(f"a member has {header.size} bytes")
        if header.type in _EXTENSIONS and header.size > _MAX_EXTENSION_NBYTES:
            raise tarfile.ReadError(
                f"a header of names has {header.size} bytes, expected {_MAX_EXTENSION_NBYTES} or "
                "less"
            )
        return header


def _tar_members(archive: Path) -> Iterator[Member | Problem]:
    with archive.open("rb") as file:
        start = file.read(10)
    if str(archive).lower().endswith(_COMPRESSED) or start.startswith(_COMPRESSED_STARTS):
        raise SourceError(
            f"{shown(archive)}: a compressed tar cannot be read at any place; unpack it, or make a "
            "plain .tar (pictures are compressed already)"
        )
    state = archive.stat()
    where = "byte 0"
    try:
        with tarfile.open(archive, "r:", tarinfo=_TarHeader) as tar:
            for info in tar:
                if not info.offset_data <= tar.offset <= state.st_size:
                    raise tarfile.ReadError(
                        f"{shown(info.name)} ends at byte {tar.offset}, the file at byte "
                        f"{state.st_size}"
                    )
                where = f"byte {tar.offset}, after {shown(info.name)}"
                if info.isdir():
                    continue
                why = _refused(info.name)
                if not info.isreg() or info.issparse():
                    why = "a link, a device or a sparse file"
                if why:
                    yield _left_out(archive, info.name, why)
                else:
                    name = _tidy(info.name)
                    yield Member(archive, name, info.offset_data, info.size, state.st_mtime_ns)
            _check_end(archive, tar.offset)
    except _UNREADABLE as exc:
        raise SourceError(
            f"{shown(archive)}: cannot be read as an archive at {where}: {shown(exc)}; {_REMEDY}"
        ) from exc


def _check_end(archive: Path, offset: int) -> None:
    """Tell the end of a tar from a bad header, which tarfile takes for the end as well."""
    with archive.open("rb") as file:
        file.seek(offset)
        block = file.read(tarfile.BLOCKSIZE)
    if block != bytes(tarfile.BLOCKSIZE):
        found = "a damaged header" if len(block) == tarfile.BLOCKSIZE else "the end of the file"
        raise tarfile.ReadError(f"expected a header or a block of zeros, found {found}")


def _zip_members(archive: Path) -> Iterator[Member | Problem]:
    state = archive.stat()
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            if info.is_dir():
                continue
            deflated = info.compress_type == zipfile.ZIP_DEFLATED
            why = _refused(info.filename)
            if info.flag_bits & 1:
                why = "encrypted"
            elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                why = "compressed by a method other than deflate"
            elif stat.S_ISLNK(info.external_attr >> 16):
                why = "a link"
            elif not 0 <= info.header_offset <= state.st_size - info.compress_size:
                why = "beyond the end of the archive"
            elif deflated and info.file_size > _MAX_UNPACKED_NBYTES:
                why = (
                    f"unpacks to {info.file_size} bytes, expected {_MAX_UNPACKED_NBYTES} at most; "
                    "store it uncompressed"
                )
            if why:
                yield _left_out(archive, info.filename, why)
                continue
            yield Member(
                archive,
                _tidy(info.filename),
                info.header_offset,
                info.file_size,
                state.st_mtime_ns,
                packed=info.compress_size,
                crc=info.CRC,
                deflated=deflated,
            )


def _tidy(name: str) -> str:
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _refused(name: str) -> str:
    parts = PurePosixPath(name).parts
    if name.startswith(("/", "\\")) or ".." in parts or "\0" in name or not parts:
        return "its name leads out of the archive"
    return ""


def _left_out(archive: Path, name: str, why: str) -> Problem:
    message = f"{shown(name)} in {shown(archive.name)}: {why}; left out"
    return Problem("bad-member", message)
