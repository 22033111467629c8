"""List the files below a folder: pictures, other files, and what is odd about them.

Links are followed, every real folder is entered once, hidden files are skipped.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ocrstore.annotation import Problem, ReadableFile
from ocrstore.errors import SourceError
from ocrstore.keys import key_of, shown

PICTURE_SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .png .webp .bmp .dib .tif .tiff .gif "  # noqa: SIM905 - readable
    ".avif .heic .heif".split()
)
"""Lower-case suffixes that make a file a picture; its content decides the format."""

_JUNK = frozenset({"thumbs.db", "desktop.ini", "__macosx"})  # what systems leave; treated as hidden


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A regular file below a folder."""

    relative: str
    """POSIX path from the folder, with undecodable bytes as `os.fsdecode` gives them."""
    path: ReadableFile
    listed_as: str = ""
    """Of an annotation in a list file: its path as given there, for messages."""

    @property
    def key(self) -> str:
        """The sample key this file would have."""
        return key_of(self.relative)


@dataclass(frozen=True, slots=True)
class Listing:
    """The files below a folder, in the order of their keys."""

    pictures: tuple[FoundFile, ...]
    others: tuple[FoundFile, ...]
    problems: tuple[Problem, ...]
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys by path, of pictures whose key is not their path."""


def is_hidden(relative: str) -> bool:
    """Return whether a file or a folder before it is hidden, or left by a system."""
    return any(part.startswith(".") or part.lower() in _JUNK for part in relative.split("/"))


def is_picture_name(name: str) -> bool:
    """Return whether a file name has the suffix of a picture."""
    return os.path.splitext(name)[1].lower() in PICTURE_SUFFIXES  # noqa: PTH122 - names, not paths


def list_folder(root: Path) -> Listing:
    """List every file below `root`; raise SourceError if `root` cannot be listed."""
    if not root.is_dir():
        found = "a file" if root.exists() else "nothing"
        raise SourceError(
            f"{shown(root)}: expected a folder, found {found}; give the folder of the pictures"
        )
    walk = _Walk()
    walk.enter(os.fspath(root), "")
    # links to folders come last, so that a real folder keeps its real name
    while walk.links:
        walk.links.sort(reverse=True)
        relative, path = walk.links.pop()
        walk.enter(path, relative)
    walk.files.sort(key=lambda file: file.key)
    if walk.hidden:
        sample = ", ".join(shown(name) for name in sorted(walk.hidden)[:3])
        message = f"{len(walk.hidden)} hidden files with picture endings skipped: {sample}"
        walk.problems.append(Problem("hidden-files", message))
    return Listing(
        pictures=tuple(file for file in walk.files if is_picture_name(file.relative)),
        others=tuple(file for file in walk.files if not is_picture_name(file.relative)),
        problems=tuple(walk.problems),
    )


class _Walk:
    def __init__(self) -> None:
        self.files: list[FoundFile] = []
        self.links: list[tuple[str, str]] = []
        self.hidden: list[str] = []
        self.problems: list[Problem] = []
        self._entered: dict[tuple[int, int], str] = {}

    def enter(self, path: str, relative: str) -> None:
        """List one folder and the real folders below it; links to folders come later."""
        waiting = [(path, relative)]
        while waiting:
            path, relative = waiting.pop()
            try:
                found = os.stat(path)  # noqa: PTH116 - one call, on a name that may not be Unicode
                identity = (found.st_dev, found.st_ino)
                if identity in self._entered:
                    seen = self._entered[identity] or "the images folder itself"
                    message = f"{shown(relative)}: not entered, is {shown(seen)} again"
                    self.problems.append(Problem("folder-seen-twice", message))
                    continue
                self._entered[identity] = relative
                with os.scandir(path) as entries:
                    listed = sorted(entries, key=lambda entry: entry.name)
            except OSError as exc:
                if not relative:
                    raise SourceError(f"{shown(path)}: cannot be listed: {exc.strerror}") from exc
                message = f"{shown(relative)}: cannot be listed: {exc.strerror}"
                self.problems.append(Problem("unreadable-folder", message))
                continue
            for entry in listed:
                inner = f"{relative}/{entry.name}" if relative else entry.name
                self._sort_in(entry, inner, waiting)

    def _sort_in(self, entry: os.DirEntry[str], inner: str, waiting: list[tuple[str, str]]) -> None:
        if entry.name.startswith(".") or entry.name.lower() in _JUNK:
            if is_picture_name(entry.name):
                self.hidden.append(inner)
            return
        try:
            if entry.is_dir(follow_symlinks=False):
                waiting.append((entry.path, inner))
                return
            mode = entry.stat().st_mode
        except OSError as exc:
            what = "a dangling link" if entry.is_symlink() else "cannot be looked at"
            message = f"{shown(inner)}: {what}: {exc.strerror}"
            self.problems.append(Problem("broken-link", message))
            return
        if stat.S_ISDIR(mode):
            self.links.append((inner, entry.path))
        elif stat.S_ISREG(mode):
            self.files.append(FoundFile(inner, Path(entry.path)))
        elif is_picture_name(entry.name):
            message = f"{shown(inner)}: a pipe, socket or device, not a file"
            self.problems.append(Problem("not-a-file", message))


def collisions(
    pictures: Iterable[FoundFile], *, plain: Callable[[str], str], folded: Callable[[str], str]
) -> list[Problem]:
    """Report pictures whose names differ only by Unicode form, case or folder."""
    problems: list[Problem] = []
    by_form: dict[str, list[str]] = {}
    by_case: dict[str, dict[str, str]] = {}
    by_name: dict[str, list[str]] = {}
    for picture in pictures:
        form = plain(picture.relative)
        by_form.setdefault(form, []).append(picture.key)
        by_case.setdefault(folded(picture.relative), {}).setdefault(form, picture.key)
        by_name.setdefault(picture.relative.rpartition("/")[2], []).append(picture.key)

    def report(kind: str, keys: list[str], how: str) -> None:
        if len(keys) > 1:
            names = ", ".join(shown(key) for key in keys[:4]) + (", ..." if len(keys) > 4 else "")
            message = f"{len(keys)} pictures {how}: {names}; each is kept under its own path"
            problems.append(Problem(kind, message, key=keys[0]))

    for keys in by_form.values():
        report("unicode-collision", keys, "differ only by Unicode form")
    for forms in by_case.values():
        report("case-collision", list(forms.values()), "differ only by case")
    for keys in by_name.values():
        report("same-name", keys, "have one name in different folders")
    return problems
