"""The protocol of an annotation dialect, the records it speaks in, and the registry.

A dialect says which files are its own, which pictures a file speaks of, and which regions it gives
them. It checks nothing else: names are matched, and points, texts and flags judged, in one place
for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ocrstore.errors import SourceError
from ocrstore.sources.annotation_file import AnnotationFile, Flaw


@dataclass(frozen=True, slots=True)
class Entry:
    """What one annotation says about one picture, not yet looked into."""

    names: tuple[str, ...]
    """The picture's name in the annotation; further ones are tried when the first has no match."""
    record: object
    """Whatever `Dialect.regions` needs; kept small and picklable."""
    where: str
    """For messages: the file, and the line or index in it."""


@dataclass(frozen=True, slots=True)
class Region:
    """One text region as the source gave it, unchecked."""

    points: object
    """[[x, y], ...] or [x, y, x, y, ...]."""
    text: object = None
    ignored: object = False
    """True, False, 0, 1 or nothing."""
    language: object = None
    flaws: tuple[Flaw, ...] = ()


class Dialect(ABC):
    """One way to write annotations down. Subclass, then `register`.

    Instances are shared, keep no state between calls and are picklable.
    """

    name: str
    """What `--format` calls it."""
    looks_for: str
    """What a file of this dialect looks like, for messages and documentation."""
    suffixes: tuple[str, ...] = (".json",)
    """Endings, in lower case, of the files to look at in a folder."""
    per_picture: bool = False
    """True when each file speaks of one picture, False when one file speaks of all."""

    @abstractmethod
    def recognise(self, file: AnnotationFile) -> bool:
        """Say whether a file is of this dialect; False, never an error, when it is not."""

    def choose(self, files: Sequence[AnnotationFile]) -> Dialect:
        """Return the dialect to read recognised files with, when the user named none.

        Override it where one file alone cannot tell; raise SourceError with the choices when all
        together cannot either.
        """
        del files
        return self

    def entries(self, file: AnnotationFile) -> Iterable[Entry | Flaw]:
        """Say which pictures a file speaks of; called once, when the source is opened.

        As given here: one picture, named as the file without its ending; the record is the file.
        """
        yield Entry(names=(file.stem,), record=file.unread(), where=file.shown)

    @abstractmethod
    def regions(self, entry: Entry) -> Iterable[Region | Flaw]:
        """Give the regions of one picture, in order; called whenever its sample is asked for.

        Raise `UnusableAnnotationError` when nothing can be made of the entry as a whole.
        """

    def other_names(self, entry: Entry) -> Sequence[str]:
        """Give further names, costly to find, for an entry that matched no picture."""
        del entry
        return ()


_DIALECTS: dict[str, Dialect] = {}
_D = TypeVar("_D", bound="Dialect | type[Dialect]")


def register(dialect: _D, *, replace: bool = False) -> _D:
    """Make a dialect known to `open_source` and `--format`; usable as a class decorator."""
    instance = dialect() if isinstance(dialect, type) else dialect
    if instance.name in _DIALECTS and not replace:
        raise SourceError(
            f"a dialect named {instance.name!r} is registered already; choose another name, "
            "or pass replace=True"
        )
    _DIALECTS[instance.name] = instance
    return dialect


def unregister(name: str) -> None:
    """Forget a dialect; the opposite of `register`."""
    get_dialect(name)
    del _DIALECTS[name]


def get_dialect(name: str) -> Dialect:
    """Return the dialect of a name; raise SourceError that lists the choices."""
    try:
        return _DIALECTS[name]
    except KeyError:
        choices = ", ".join(sorted(_DIALECTS))
        raise SourceError(f"no dialect is named {name!r}; --format knows {choices}") from None


def all_dialects() -> tuple[Dialect, ...]:
    """Return every registered dialect, by name."""
    return tuple(_DIALECTS[name] for name in sorted(_DIALECTS))
