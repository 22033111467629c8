"""A list file: a picture a line; after a tab its annotation file, after another its key as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ocrstore.annotation import Problem
from ocrstore.errors import SourceError
from ocrstore.keys import shown
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
        picture = path.parent / name
        relative = os.path.relpath(picture, path.parent) if Path(name).is_absolute() else name
        place = "/".join(
            part for part in Path(relative).as_posix().split("/") if part not in (".", "..")
        )
        if not picture.is_file():
            message = f"{shown(path.name)} line {number}: no file {shown(name)}"
            problems.append(Problem("listed-file-missing", message))
        elif place in pictures:
            message = f"{shown(path.name)} line {number}: {shown(name)} is listed twice"
            problems.append(Problem("listed-twice", message))
        else:
            pictures[place] = FoundFile(place, picture)
            if key:
                keys[place] = _key(key, f"{shown(path.name)} line {number}")
            if annotation:
                file = path.parent / annotation
                # under the picture's own name, so that the two are matched
                others.append(FoundFile(f"{place}{file.suffix}", file))
    if not pictures:
        raise SourceError(
            f"{shown(path)}: names no picture that exists; expected a path a line, relative to "
            f"{shown(path.parent)} (or path, tab, annotation file)"
        )
    listed = sorted(pictures.values(), key=lambda file: file.key)
    return Listing(tuple(listed), tuple(others), tuple(problems), keys)


def _key(text: str, where: str) -> str:
    try:
        key = json.loads(text)
    except ValueError:
        key = None
    if not isinstance(key, str) or not key:
        raise SourceError(f'{where}: expected a key as a JSON string such as "a.jpg"')
    return key
