"""A list file: a picture a line; after a tab its annotation file, after another its key as JSON."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

from ocrstore.annotation import Problem
from ocrstore.errors import SourceError
from ocrstore.keys import key_of, shown
from ocrstore.sources.annotation_file import LINE_END, decode_text
from ocrstore.sources.pictures import FoundFile, Listing

SUFFIXES = (".txt", ".lst", ".list", ".tsv")


def list_paths(path: Path) -> Listing:
    """List the pictures that a file names, relative to its folder; without a key, by these names.

    An annotation file belongs to the picture of its line, whatever it is called.

    Raises:
        SourceError: The file cannot be read, or names no file that exists, or a key is none.
    """
    try:
        text, _ = decode_text(path.read_bytes(), where=shown(path))
    except FileNotFoundError as exc:
        raise SourceError(f"{shown(path)}: no such list of pictures") from exc
    except OSError as exc:
        raise SourceError(f"{shown(path)}: cannot be read: {exc.strerror or exc}") from exc
    pictures: dict[str, FoundFile] = {}
    others: list[FoundFile] = []
    problems: list[Problem] = []
    keys: dict[str, str] = {}
    for number, line in enumerate(LINE_END.split(text), start=1):
        name, annotation, key = (*map(str.strip, line.split("\t")), "", "")[:3]
        if not name or name.startswith("#"):
            continue
        where = f"{shown(path.name)} line {number}"
        picture = path.parent / name
        relative = os.path.relpath(picture, path.parent) if Path(name).is_absolute() else name
        place = "/".join(
            part for part in Path(relative).as_posix().split("/") if part not in (".", "..")
        )
        if not _is_file(picture, where):
            problems.append(Problem("listed-file-missing", f"{where}: no file {shown(name)}"))
            continue
        if place in pictures:
            problems.append(Problem("listed-twice", f"{where}: {shown(name)} is listed twice"))
            continue
        pictures[place] = FoundFile(place, picture)
        if key:
            keys[place] = _key(key, where)
        if not annotation:
            continue
        file = path.parent / annotation
        if _is_file(file, where):
            # under the picture's own name, so that the two are matched
            others.append(FoundFile(f"{place}{file.suffix}", file, annotation))
        else:
            message = f"{where}: no file {shown(annotation)}"
            own = keys.get(place, key_of(place))
            problems.append(Problem("listed-file-missing", message, key=own))
    if not pictures:
        raise SourceError(
            f"{shown(path)}: names no picture that exists; expected a path a line, relative to "
            f"{shown(path.parent)} (or path, tab, annotation file)"
        )
    listed = sorted(pictures.values(), key=lambda file: file.key)
    return Listing(tuple(listed), tuple(others), tuple(problems), keys)


def _is_file(path: Path, where: str) -> bool:
    """Return whether there is a file; raise SourceError for what cannot be a path."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError) as exc:  # ValueError: a null character
        if isinstance(exc, OSError) and exc.errno != errno.ENAMETOOLONG:
            return False
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise SourceError(
            f"{where}: not a path ({reason}); expected a text file with the path of a picture in "
            "each line"
        ) from exc


def _key(text: str, where: str) -> str:
    try:
        key = json.loads(text)
    except ValueError:
        key = None
    if not isinstance(key, str) or not key:
        raise SourceError(f'{where}: expected a key as a JSON string such as "a.jpg"')
    return key
