"""The interface of an annotation dialect, its records, and the registry.

A dialect says which files it reads, which pictures a file is about, and which regions they have. It
checks nothing else: matching names and validating points, texts and flags is done in one place for
all dialects.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ocrstore.errors import SourceError
from ocrstore.sources.annotation_file import AnnotationFile, Flaw

_PREFIX = re.compile(r"^(?:poly_)?(?:gt|res)_", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Entry:
    """The annotation of one picture, not parsed yet."""

    names: tuple[str, ...]
    """The picture's name in the annotation; further ones are tried when the first has no match."""
    record: object
    """Whatever `Dialect.regions` needs; kept small and picklable."""
    where: str
    """For messages: the file, and the line or index in it."""


@dataclass(frozen=True, slots=True)
class Region:
    """One text region as the source gave it, not validated."""

    points: object
    """[[x, y], ...] or [x, y, x, y, ...]."""
    text: object = None
    ignored: object = False
    """True, False, 0, 1 or nothing."""
    language: object = None
    flaws: tuple[Flaw, ...] = ()
    relative: bool = False
    """True when the points are shares of the upright picture's width and height."""


class Dialect(ABC):
    """A format of annotation files. Subclass it, then `register`.

    Instances are shared, keep no state between calls and are picklable.
    """

    name: str
    """Its name for `--format`."""
    looks_for: str
    """What a file of this dialect looks like, for messages and documentation."""
    suffixes: tuple[str, ...] = (".json",)
    """Lower-case suffixes of the files to look at in a folder."""
    per_picture: bool = False
    """True when there is a file per picture, False when one file is about all pictures."""

    @abstractmethod
    def recognise(self, file: AnnotationFile) -> bool:
        """Return whether a file is of this dialect; never raise."""

    def choose(self, files: Sequence[AnnotationFile]) -> Dialect:
        """Return the dialect to read recognised files with, when the user named none.

        Override it where one file alone is not enough; raise SourceError with the choices when all
        together cannot either.
        """
        del files
        return self

    def entries(self, file: AnnotationFile) -> Iterable[Entry | Flaw]:
        """Yield the pictures that a file is about; called once, when the source is opened.

        By default: one picture, named like the file without its suffix, or without a prefix as in
        `gt_img_1.txt`; the record is the file.
        """
        folder, slash, stem = file.stem.rpartition("/")
        bare = _PREFIX.sub("", stem)
        names = (file.stem,) if bare in (stem, "") else (file.stem, folder + slash + bare)
        yield Entry(names=names, record=file.unread(), where=file.shown)

    @abstractmethod
    def regions(self, entry: Entry) -> Iterable[Region | Flaw]:
        """Yield the regions of one picture, in order; called whenever its sample is read.

        Raise `UnusableAnnotationError` when the entry as a whole cannot be used.
        """

    def frame(self, entry: Entry) -> str | None:
        """Return `raw` or `upright` where an annotation says in which frame its polygons are.

        It matters for pictures with an EXIF rotation; without it `--polygons-frame` decides.
        """
        del entry
        return None

    def key(self, entry: Entry) -> str | None:
        """Return the sample's key if the annotation has one; by default the picture's name."""
        del entry
        return None

    def other_names(self, entry: Entry) -> Sequence[str]:
        """Return further names for an entry that matched no picture; may be slow."""
        del entry
        return ()


def file_of(entry: Entry) -> AnnotationFile:
    """Return the file of an entry that is about one file."""
    if not isinstance(entry.record, AnnotationFile):
        raise TypeError("an entry of another dialect")
    return entry.record.unread()


_DIALECTS: dict[str, Dialect] = {}
_D = TypeVar("_D", bound="Dialect | type[Dialect]")


def register(dialect: _D, *, replace: bool = False) -> _D:
    """Register a dialect for `open_source` and `--format`; usable as a class decorator."""
    instance = dialect() if isinstance(dialect, type) else dialect
    if instance.name in _DIALECTS and not replace:
        raise SourceError(
            f"a dialect named {instance.name!r} is already registered; choose another name "
            "or pass replace=True"
        )
    _DIALECTS[instance.name] = instance
    return dialect


def unregister(name: str) -> None:
    """Remove a dialect from the registry."""
    get_dialect(name)
    del _DIALECTS[name]


def get_dialect(name: str) -> Dialect:
    """Return the dialect of a name; raise SourceError that lists the choices."""
    try:
        return _DIALECTS[name]
    except KeyError:
        choices = ", ".join(sorted(_DIALECTS))
        raise SourceError(f"unknown dialect {name!r}; --format takes {choices}") from None


def all_dialects() -> tuple[Dialect, ...]:
    """Return every registered dialect, by name."""
    return tuple(_DIALECTS[name] for name in sorted(_DIALECTS))


@register
class Folder(Dialect):
    """Pictures only; no sample is annotated."""

    name = "folder"
    looks_for = "a folder of pictures without annotations"
    suffixes = ()

    def recognise(self, file: AnnotationFile) -> bool:
        """Return False: no file is an annotation."""
        del file
        return False

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Yield nothing."""
        del file
        yield from ()

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield nothing."""
        del entry
        yield from ()
