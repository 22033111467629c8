"""A source: pictures with their annotations, cheap to open, read sample by sample."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ocrstore.annotation import Problem, SourceSample
from ocrstore.errors import SourceError, UnknownSampleError
from ocrstore.keys import shown
from ocrstore.sources.annotation_file import Flaw, UnusableAnnotationError
from ocrstore.sources.detect import Found, find
from ocrstore.sources.dialect import Dialect, Entry, get_dialect
from ocrstore.sources.match_names import Matches, folded, match, plain
from ocrstore.sources.pictures import FoundFile, Listing, collisions, list_folder
from ocrstore.sources.validate import judge


class Source:
    """Pictures with their annotations, in the order of their keys; made by `open_source`.

    The list of pictures, and annotations without a picture, are known from opening. A file about
    one picture is read whenever its sample is. Picklable; keeps no file open; thread-safe.
    """

    def __init__(
        self,
        images: Path,
        pictures: tuple[FoundFile, ...],
        dialect: Dialect,
        entries: dict[int, Entry],
        *,
        problems: tuple[Problem, ...],
        description: str,
        annotation_files: tuple[Path, ...],
    ) -> None:
        self.images = images
        self.problems = problems
        """What concerns the source as a whole; each sample carries its own."""
        self.description = description
        """One sentence: which pictures, which annotations, how they were found."""
        self.annotation_files = annotation_files
        self._pictures = pictures
        self._dialect = dialect
        self._entries = entries
        self._rows: dict[str, int] | None = None

    @property
    def dialect(self) -> str:
        """The dialect's name, as `--format` takes it."""
        return self._dialect.name

    @property
    def keys(self) -> tuple[str, ...]:
        """Every sample's key, sorted."""
        return tuple(picture.key for picture in self._pictures)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every picture's file, in the order of `keys`."""
        return tuple(picture.path for picture in self._pictures)

    @property
    def has_annotations(self) -> bool:
        """Whether any picture has an annotation."""
        return bool(self._entries)

    def __len__(self) -> int:
        return len(self._pictures)

    def __iter__(self) -> Iterator[SourceSample]:
        return (self.at(row) for row in range(len(self)))

    def __getitem__(self, key: str) -> SourceSample:
        if self._rows is None:
            self._rows = {picture.key: row for row, picture in enumerate(self._pictures)}
        if key not in self._rows:
            raise UnknownSampleError(f"{shown(self.images)}: no picture has the key {key!r}")
        return self.at(self._rows[key])

    def at(self, row: int) -> SourceSample:
        """Read the annotation of the picture at a position in key order."""
        picture = self._pictures[row]
        entry = self._entries.get(row)
        if entry is None:
            problems: tuple[Problem, ...] = ()
            if self.annotation_files:
                message = f"{shown(picture.key)}: no annotation for this picture"
                problems = (Problem("no-annotation", message, key=picture.key),)
            return SourceSample(picture.key, picture.path, annotated=False, problems=problems)
        key, where = picture.key, entry.where
        try:
            polygons, found = judge(self._dialect.regions(entry), key=key, where=where)
        except UnusableAnnotationError as exc:
            unusable = Problem(exc.kind, f"{exc.message}; the annotation is left out", key=key)
        except Exception as exc:  # a dialect may be anyone's code; one picture must not end a build
            what = f"{where}: {type(exc).__name__} in the dialect {self.dialect}: {exc}"
            unusable = Problem("dialect-failed", shown(what), key=key)
        else:
            frame = self._dialect.frame(entry)
            return SourceSample(
                key, picture.path, tuple(polygons), problems=tuple(found), frame=frame
            )
        return SourceSample(key, picture.path, annotated=False, problems=(unusable,))


def open_source(
    images: str | os.PathLike[str],
    *,
    annotations: str | os.PathLike[str] | None = None,
    format: str | None = None,
) -> Source:
    """Open a folder of pictures with its annotations.

    `annotations` is a file or a folder; without it they are searched beside the pictures and
    beside the images folder. `format` names the dialect; without it the files are inspected. Raises
    SourceError when there is no picture, no such file, or the dialect is not clear.
    """
    root = Path(images)
    listing = list_folder(root)
    if not listing.pictures:
        reasons = Counter(problem.kind for problem in listing.problems)
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(reasons.items()))
        raise SourceError(
            f"{shown(root)}: no picture in it ({len(listing.others)} other files"
            f"{', ' + listed if listed else ''}); give the folder that holds the pictures"
        )
    place = None if annotations is None else Path(annotations)
    found = find(root, listing, annotations=place, format=format)
    entries, problems = _read(found)
    matches = match(entries, listing.pictures, found.dialect)
    if entries and not matches.entries:
        found = _unrelated(found, root, entries, matches)
        matches = Matches(problems=matches.problems if found.named else [])
        problems.append(Problem("unrelated-annotations", found.how))
    paths = tuple(file.path for file in found.files)
    return Source(
        root,
        listing.pictures,
        found.dialect,
        matches.entries,
        problems=(
            *listing.problems,
            *_passed_over(listing, found),
            *collisions(listing.pictures, plain=plain, folded=folded),
            *problems,
            *matches.problems,
        ),
        description=_describe(root, listing, found, matches),
        annotation_files=paths,
    )


def _read(found: Found) -> tuple[list[Entry], list[Problem]]:
    entries: list[Entry] = []
    problems: list[Problem] = []
    for file in found.files:
        for item in found.dialect.entries(file):
            if isinstance(item, Flaw):
                problems.append(Problem(item.kind, item.message))
            elif not item.names or not item.names[0].strip():
                message = f"{item.where}: the picture's name is empty; the annotation is not used"
                problems.append(Problem("bad-name", message))
            else:
                entries.append(item)
    return entries, problems


def _unrelated(found: Found, root: Path, entries: list[Entry], matches: Matches) -> Found:
    """Refuse annotations that name none of the pictures; skip them if they were searched for."""
    first = matches.problems[0].message if matches.problems else entries[0].where
    if found.named:
        raise SourceError(
            f"none of the {len(entries)} {found.dialect.name} annotations names a picture in "
            f"{shown(root)}; the first: {first}. Name the folder their names start from"
        )
    how = f"{found.dialect.name} annotations {found.how} name none of the pictures; skipped"
    return Found(get_dialect("folder"), how=how)


def _passed_over(listing: Listing, found: Found) -> Iterator[Problem]:
    """Report files that are neither pictures nor annotations."""
    used = {os.fspath(file.path) for file in found.files}
    left = [file for file in listing.others if os.fspath(file.path) not in used]
    if left:  # the same file may have been named by another path; costly, so only for these
        real = {os.path.realpath(path) for path in used}
        left = [file for file in left if os.path.realpath(file.path) not in real]
    for file in left:
        message = f"{shown(file.key)}: not a picture, by its ending; skipped"
        yield Problem("not-a-picture", message)
    if found.listing is None or found.listing is listing:
        return
    among = {os.path.realpath(file.path) for file in left} if left else set()
    for file in found.listing.others:
        if os.fspath(file.path) not in used and os.path.realpath(file.path) not in among:
            message = f"{shown(file.path)}: not read as {found.dialect.name}; skipped"
            yield Problem("not-an-annotation", message)
    known = set(listing.problems)
    yield from (p for p in found.listing.problems if p.kind != "hidden-files" and p not in known)


def _describe(root: Path, listing: Listing, found: Found, matches: Matches) -> str:
    text = f"{len(listing.pictures)} pictures in {shown(root)}, {found.dialect.name}: {found.how}"
    if found.files:
        text += f" ({len(found.files)} files), {len(matches.entries)} pictures annotated"
    return text
