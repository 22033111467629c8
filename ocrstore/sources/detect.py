"""Find the annotations of a folder of pictures and recognise their dialect.

`--format` and `--annotations` win. Otherwise a few files are shown to every dialect, and exactly
one dialect must recognise them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ocrstore.errors import SourceError
from ocrstore.keys import shown
from ocrstore.sources.annotation_file import AnnotationFile, UnusableAnnotationError
from ocrstore.sources.archives import is_archive, list_archives
from ocrstore.sources.dialect import Dialect, all_dialects, get_dialect
from ocrstore.sources.pictures import FoundFile, Listing, list_folder

SIBLING_FOLDERS = ("gt", "annotations", "labels")
"""Folders beside the images folder that are looked into when no annotations are named."""
SIBLING_FILES = ("gt.json", "annotations.json", "annotations.xml", "labels.json", "Label.txt")
"""Files beside the images folder that are looked at; also `<images folder>.json` and `.txt`."""
_LOOKED_AT = 16


@dataclass(frozen=True, slots=True)
class Found:
    """The annotations to read, and how they were found."""

    dialect: Dialect
    files: tuple[AnnotationFile, ...] = ()
    how: str = ""
    listing: Listing | None = None
    """The files of the annotations folder, if it is not the folder of pictures."""
    named: bool = False
    """True when the user named them, False when they were found by looking around."""


def find(images: Path, listing: Listing, *, annotations: Path | None, format: str | None) -> Found:
    """Find what to read; raise SourceError unless exactly one dialect recognises it."""
    wanted = None if format is None else get_dialect(format)
    if wanted is not None and wanted.name == "folder":
        if annotations is not None:
            raise SourceError("--format folder reads no annotations; leave out one of the two")
        return Found(wanted, how="annotations not looked for", named=True)
    if annotations is not None:
        found = _find_named(annotations, listing, wanted)
    else:
        found = _find_around(images, listing, wanted)
    if wanted is None:
        return replace(found, dialect=found.dialect.choose(found.files))
    return found


def stem_of(file: FoundFile) -> str:
    """Return a file's path from its folder without the last suffix."""
    return os.path.splitext(file.relative)[0]  # noqa: PTH122 - a name, with POSIX slashes


def _find_named(annotations: Path, listing: Listing, wanted: Dialect | None) -> Found:
    where = shown(annotations)
    listed: Listing | None = None
    if annotations.is_dir() or is_archive(annotations):
        listed = list_folder(annotations) if annotations.is_dir() else list_archives(annotations)
        files, folder = _files(listed.others), True
    elif annotations.is_file():
        files, folder = [AnnotationFile(annotations, annotations.name)], False
    else:
        raise SourceError(f"{where}: no such file or folder; name the annotations there are")
    answers = _look(files, listing, wanted, folder=folder, insist=wanted is not None)
    if len(answers) == 1:
        how = f"annotations named: {where}"
        return Found(answers[0].dialect, answers[0].files, how, listed, named=True)
    if answers:
        raise _several(where, answers)
    raise SourceError(
        f"{where}: {_nothing(files, wanted)}; looked for {_wishes(wanted)}. {_advice(wanted)}"
    )


def _advice(wanted: Dialect | None) -> str:
    if wanted is not None:
        return "Without --format the dialect is detected"
    return f"Name the dialect with --format ({_choices()})"


def _find_around(images: Path, listing: Listing, wanted: Dialect | None) -> Found:
    places: list[tuple[str, list[AnnotationFile], Listing | None]] = [
        ("beside the pictures", _files(listing.others), listing)
    ]
    here = Path(os.path.abspath(images))  # noqa: PTH100 - links stay: the user sees their names
    parent, name = here.parent, here.name
    for folder in (*SIBLING_FOLDERS, f"{name}_gt"):
        path = parent / folder
        if folder != name and path.is_dir():
            listed = list_folder(path)
            places.append((f"in {shown(path)}", _files(listed.others), listed))
    for file in (*SIBLING_FILES, f"{name}.json", f"{name}.txt"):
        path = parent / file
        if path.is_file():
            places.append((f"in {shown(path)}", [AnnotationFile(path, file)], None))
    answers: list[Found] = []
    # a named dialect first has to know the files; only if none is known, any that it could read do
    for insist in (False, True) if wanted is not None else (False,):
        for place, files, around in places:
            answers += [
                Found(answer.dialect, answer.files, f"found {place}", around)
                for answer in _look(
                    files, listing, wanted, folder=around is not None, insist=insist
                )
            ]
            if answers and not images.is_dir():
                break  # an archive or a list with annotations means these, whatever lies beside it
        if answers:
            break
    if len(answers) == 1:
        return answers[0]
    if answers:
        raise _several("no annotations were named, and looking around", answers)
    siblings = ", ".join((*SIBLING_FOLDERS, f"{name}_gt", *SIBLING_FILES))
    looked = f"beside the pictures and, in {shown(parent)}, at {siblings}"
    if wanted is not None:
        raise SourceError(
            f"{shown(images)}: no annotations found that --format {wanted.name} reads "
            f"({wanted.looks_for}); looked {looked}. Name them with --annotations"
        )
    return Found(get_dialect("folder"), how=f"no annotations found {looked}")


def _files(found: Sequence[FoundFile]) -> list[AnnotationFile]:
    suffixes = {suffix for dialect in all_dialects() for suffix in dialect.suffixes}
    return [
        AnnotationFile(f.path, f.relative, f.listed_as)
        for f in found
        if f.path.suffix.lower() in suffixes
    ]


@dataclass(frozen=True, slots=True)
class _Answer:
    dialect: Dialect
    files: tuple[AnnotationFile, ...]


def _of(dialect: Dialect, files: Sequence[AnnotationFile]) -> list[AnnotationFile]:
    return [file for file in files if file.path.suffix.lower() in dialect.suffixes]


def _look(
    files: Sequence[AnnotationFile],
    listing: Listing,
    wanted: Dialect | None,
    *,
    folder: bool,
    insist: bool,
) -> list[_Answer]:
    """Return an answer from each dialect (or the wanted one) that recognises the files.

    With `insist`, the wanted dialect gets the files even if it does not recognise them.
    """
    step = max(1, -(-len(files) // _LOOKED_AT))
    answers: list[_Answer] = []
    for dialect in (wanted,) if wanted is not None else all_dialects():
        mine = _of(dialect, files) if folder else list(files)
        if dialect.per_picture:
            if mine and (insist or any(dialect.recognise(file) for file in mine[::step])):
                answers.append(_Answer(dialect, tuple(mine)))
        elif insist and len(mine) == 1:
            answers.append(_Answer(dialect, tuple(mine)))
        elif len(mine) <= 4 * _LOOKED_AT:
            # one file is about all pictures: a folder of very many files is something else
            answers += [_Answer(dialect, (file,)) for file in mine if dialect.recognise(file)]
    return _without_single(answers, listing)


def _without_single(answers: list[_Answer], listing: Listing) -> list[_Answer]:
    """Leave out files that one dialect takes for all pictures, and another for the one they name.

    `{"words": [...]}` in a.json beside a.jpg has the layout of `art`, too: a list by picture name.
    """
    single = [answer.dialect for answer in answers if answer.dialect.per_picture]
    if not single or len(single) == len(answers):
        return answers
    stems = {stem_of(picture) for picture in listing.pictures}
    return [
        answer
        for answer in answers
        if answer.dialect.per_picture
        or answer.files[0].stem not in stems
        or not any(dialect.recognise(answer.files[0]) for dialect in single)
    ]


def _several(where: str, answers: Sequence[_Answer | Found]) -> SourceError:
    listed = "; ".join(
        f"{answer.dialect.name}: {shown(answer.files[0].path)}"
        + (f" and {len(answer.files) - 1} more" if len(answer.files) > 1 else "")
        for answer in answers[:6]
    )
    files = [answer.files[0] for answer in answers if not answer.dialect.per_picture]
    several = sum(file.path.suffix.lower() == ".json" for file in files) > 1
    each = "; --format webdataset reads a json for each picture" if several else ""
    return SourceError(
        f"{where}: {len(answers)} answers where one was expected ({listed}). "
        f"Name one with --annotations, or the dialect with --format ({_choices()}){each}"
    )


def _nothing(files: Sequence[AnnotationFile], wanted: Dialect | None) -> str:
    """Say why no dialect recognised the files; broken JSON is the most likely reason."""
    if not files:
        suffixes = sorted({s for d in ([wanted] if wanted else all_dialects()) for s in d.suffixes})
        return f"no file that ends in {', '.join(suffixes)}"
    for file in files[:_LOOKED_AT]:
        try:
            if file.looks_like_json():
                file.json()
        except UnusableAnnotationError as exc:
            return f"no annotations recognised ({exc})"
    return f"no annotations recognised in {len(files)} files, such as {files[0].shown}"


def _wishes(wanted: Dialect | None) -> str:
    dialects = [wanted] if wanted else [d for d in all_dialects() if d.name != "folder"]
    return "; ".join(f"{dialect.name} ({dialect.looks_for})" for dialect in dialects)


def _choices() -> str:
    return ", ".join(dialect.name for dialect in all_dialects())
