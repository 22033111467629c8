"""A list file: one picture a line, or a picture and its annotation file with a tab in between."""

from __future__ import annotations

import os
from pathlib import Path

from ocrstore.annotation import Problem
from ocrstore.errors import SourceError
from ocrstore.keys import shown
from ocrstore.sources.annotation_file import decode_text
from ocrstore.sources.pictures import FoundFile, Listing

SUFFIXES = (".txt", ".lst", ".list", ".tsv")


def list_paths(path: Path) -> Listing:
    """List the pictures that a file names, relative to its folder; their keys are these names.

    An annotation file belongs to the picture of its line, whatever it is called.

    Raises:
        SourceError: The file cannot be read, or names no file that exists.
    """
    try:
        text, _ = decode_text(path.read_bytes(), where=shown(path))
    except OSError as exc:
        raise SourceError(f"{shown(path)}: cannot be read: {exc.strerror or exc}") from exc
    pictures: dict[str, FoundFile] = {}
    others: list[FoundFile] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), start=1):
        name, _, annotation = line.strip().partition("\t")
        if not name or name.startswith("#"):
            continue
        picture = path.parent / name
        relative = os.path.relpath(picture, path.parent) if Path(name).is_absolute() else name
        key = "/".join(
            part for part in Path(relative).as_posix().split("/") if part not in (".", "..")
        )
        if not picture.is_file():
            message = f"{shown(path.name)} line {number}: no file {shown(name)}"
            problems.append(Problem("listed-file-missing", message))
        elif key in pictures:
            message = f"{shown(path.name)} line {number}: {shown(name)} is listed twice"
            problems.append(Problem("listed-twice", message))
        else:
            pictures[key] = FoundFile(key, picture)
            if annotation:
                file = path.parent / annotation.strip()
                # under the picture's own name, so that the two are matched
                others.append(FoundFile(str(Path(key).with_suffix(file.suffix)), file))
    if not pictures:
        raise SourceError(
            f"{shown(path)}: names no picture that exists; expected a path a line, relative to "
            f"{shown(path.parent)} (or path, tab, annotation file)"
        )
    listed = sorted(pictures.values(), key=lambda file: file.key)
    return Listing(tuple(listed), tuple(others), tuple(problems))
