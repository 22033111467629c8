"""A source: pictures with their annotations, cheap to open, read sample by sample."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from ocrstore.annotation import FoundSample, Problem, ReadableFile
from ocrstore.errors import DecodeError, SourceError, UnknownSampleError
from ocrstore.keys import key_of, path_of, shown
from ocrstore.sources import list_file
from ocrstore.sources.annotation_file import Flaw, UnusableAnnotationError
from ocrstore.sources.archives import is_archive, list_archives
from ocrstore.sources.detect import Found, find, stem_of
from ocrstore.sources.dialect import Dialect, Entry, all_dialects, get_dialect
from ocrstore.sources.match_names import Matches, folded, match, plain
from ocrstore.sources.parquet import find_parquet, read_parquet
from ocrstore.sources.pictures import FoundFile, Listing, collisions, list_folder
from ocrstore.sources.rows import RowDialect
from ocrstore.sources.validate import judge


class Source:
    """Pictures with their annotations, in the order of their keys; made by `open_source`.

    The list of pictures, and annotations without a picture, are known from opening. A file about
    one picture is read whenever its sample is. Picklable; keeps no file open; thread-safe.
    """

    def __init__(
        self,
        images: Path | None,
        pictures: tuple[FoundFile, ...],
        dialect: Dialect,
        entries: dict[int, Entry],
        *,
        problems: tuple[Problem, ...],
        description: str,
        annotation_files: tuple[ReadableFile, ...],
        attributes: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.images = images
        """The folder, archive, list or table; None if the samples came from Python."""
        self.problems = problems
        """What concerns the source as a whole; each sample carries its own."""
        self.description = description
        """One sentence: which pictures, which annotations, how they were found."""
        self.annotation_files = annotation_files
        self._pictures = pictures
        self._dialect = dialect
        self._entries = entries
        self._attributes = attributes or {}

    @property
    def dialect(self) -> str:
        """The dialect's name, as `--format` takes it."""
        return self._dialect.name

    @property
    def keys(self) -> tuple[str, ...]:
        """Every sample's key, sorted."""
        return tuple(picture.key for picture in self._pictures)

    @property
    def paths(self) -> tuple[ReadableFile, ...]:
        """Every picture's file, in the order of `keys`."""
        return tuple(picture.path for picture in self._pictures)

    @property
    def has_annotations(self) -> bool:
        """Whether any picture has an annotation."""
        return bool(self._entries)

    @property
    def attributes(self) -> Mapping[str, Mapping[str, Any]]:
        """The further values for the index that samples have, by key."""
        return self._attributes

    def only(self, keys: Collection[str]) -> Source:
        """Return the source of some of its pictures."""
        places = self._places
        rows = sorted(places[key] for key in keys if key in places)
        return Source(
            self.images,
            tuple(self._pictures[row] for row in rows),
            self._dialect,
            {new: self._entries[row] for new, row in enumerate(rows) if row in self._entries},
            problems=tuple(p for p in self.problems if p.key is None or p.key in keys),
            description=f"{len(rows)} of {self.description}",
            annotation_files=self.annotation_files,
            attributes=self._attributes,
        )

    def alone(self, keys: Collection[str]) -> Source:
        """Return the source of some of its pictures, with nothing in it of all the others.

        It is small when pickled, however large this one is: no problems of the source as a whole,
        and of the annotation files only the first.
        """
        part = self.only(keys)
        part.problems = tuple(problem for problem in part.problems if problem.key is not None)
        part.annotation_files = self.annotation_files[:1]
        part._attributes = {
            key: self._attributes[key] for key in part.keys if key in self._attributes
        }
        return part

    def __len__(self) -> int:
        return len(self._pictures)

    def __iter__(self) -> Iterator[FoundSample]:
        return (self.at(row) for row in range(len(self)))

    def __getitem__(self, key: str) -> FoundSample:
        return self.at(self._row(key))

    def has_annotation(self, key: str) -> bool:
        """Return whether there is an annotation of a picture, without reading it."""
        return self._row(key) in self._entries

    @cached_property
    def _places(self) -> dict[str, int]:
        return {picture.key: row for row, picture in enumerate(self._pictures)}

    def _row(self, key: str) -> int:
        if key not in self._places:
            raise UnknownSampleError(f"{self.description}: no picture has the key {key!r}")
        return self._places[key]

    def at(self, row: int) -> FoundSample:
        """Read the annotation of the picture at a position in key order."""
        sample = self._read(row)
        own = self._attributes.get(sample.key)
        return replace(sample, attributes=own) if own else sample

    def _read(self, row: int) -> FoundSample:
        picture = self._pictures[row]
        entry = self._entries.get(row)
        if entry is None:
            problems: tuple[Problem, ...] = ()
            if self.annotation_files:
                message = f"{shown(picture.key)}: no annotation for this picture"
                problems = (Problem("no-annotation", message, key=picture.key),)
            return FoundSample(picture.key, picture.path, annotated=False, problems=problems)
        key, where = picture.key, entry.where
        try:
            polygons, found = judge(
                self._dialect.regions(entry),
                key=key,
                where=where,
                size=lambda: _upright_size(picture.path, where),
            )
        except UnusableAnnotationError as exc:
            unusable = Problem(exc.kind, f"{exc.message}; the annotation is left out", key=key)
        except Exception as exc:  # a dialect may be anyone's code; one picture must not end a build
            what = f"{where}: {type(exc).__name__} in the dialect {self.dialect}: {exc}"
            unusable = Problem("dialect-failed", shown(what), key=key)
        else:
            frame = self._dialect.frame(entry)
            return FoundSample(
                key, picture.path, tuple(polygons), problems=tuple(found), frame=frame
            )
        return FoundSample(key, picture.path, annotated=False, problems=(unusable,))


def open_source(
    images: str | os.PathLike[str],
    *,
    annotations: str | os.PathLike[str] | None = None,
    format: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    columns_map: Mapping[str, str] | None = None,
) -> Source:
    """Open pictures with their annotations.

    Args:
        images: A folder; a tar or zip archive, or several (`"shots-{000..031}.tar"`,
            `"a-*.zip"`); a list file (a path a line); a parquet file, or a folder of them.
        annotations: A file, a folder or an archive; without it they are searched beside the
            pictures and beside the images folder.
        format: The dialect; without it the files are inspected. "folder" takes the pictures alone,
            of parquet files as well.
        include: Patterns such as `"train/*"`; only pictures whose key matches one are taken.
        exclude: Pictures whose key matches one of these are left out.
        columns_map: For parquet: what is called differently there, such as `{"text": "label"}`.
            An error for other sources, and if there is no such column.

    Raises:
        SourceError: There is no picture or no such file, or the dialect is not clear.
    """
    root = Path(images)
    tables = find_parquet(root) if annotations is None else []
    if columns_map and not tables:
        raise _not_for_columns(root, columns_map, annotations is not None)
    if tables:
        listing, by_key, unknown = read_parquet(tables, columns_map, annotated=format != "folder")
        listing = chosen(listing, include, exclude)
        rows = {file.key: row for row, file in enumerate(listing.pictures)}
        entries = {rows[key]: entry for key, entry in by_key.items() if key in rows}
        return Source(
            root,
            listing.pictures,
            RowDialect("parquet"),
            entries,
            problems=listing.problems,
            description=f"{len(rows)} pictures in {shown(root)} ({len(tables)} parquet files), "
            + (f"{len(entries)} annotated" if by_key else _no_objects(unknown, format)),
            annotation_files=(),
        )
    whole = _list(images)
    listing = chosen(whole, include, exclude)
    if whole.pictures and not listing.pictures:
        raise SourceError(
            f"{shown(root)}: --include and --exclude leave none of its {len(whole.pictures)} "
            f"pictures; they are compared with keys such as {shown(whole.pictures[0].key)}"
        )
    if not listing.pictures:
        reasons = Counter(problem.kind for problem in listing.problems)
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(reasons.items()))
        what = "archive" if is_archive(images) else "folder"
        raise SourceError(
            f"{shown(root)}: no picture in it ({len(listing.others)} other files"
            f"{', ' + listed if listed else ''}); give the {what} that holds the pictures"
        )
    place = None if annotations is None else Path(annotations)
    found = find(root, listing, annotations=place, format=format)
    nothing_known = not found.files and not found.named
    known, problems = _read(found)
    matches = match(known, listing.pictures, found.dialect)
    if known and not matches.entries:
        found = _unrelated(found, root, known, matches)
        matches = Matches(problems=matches.problems if found.named else [])
        problems.append(Problem("unrelated-annotations", found.how))
    paths = tuple(file.path for file in found.files)
    pictures, entries = _with_own_keys(listing, matches.entries, found.dialect)
    return Source(
        root,
        pictures,
        found.dialect,
        entries,
        problems=(
            *listing.problems,
            *_passed_over(listing, found, nothing_known=nothing_known),
            *collisions(listing.pictures, plain=plain, folded=folded),
            *problems,
            *matches.problems,
        ),
        description=_describe(root, listing, found, matches),
        annotation_files=paths,
    )


def _not_for_columns(root: Path, columns_map: Mapping[str, str], annotations: bool) -> SourceError:
    told = ", ".join(f"{shown(name)}={shown(column)}" for name, column in columns_map.items())
    why = "it is neither a parquet file nor a folder of them"
    if annotations:
        why = "with --annotations no parquet file is read; leave out one of the two"
    return SourceError(
        f"{shown(root)}: --columns-map {told} names columns of parquet files, but {why}"
    )


def _no_objects(unknown: Sequence[str], format: str | None) -> str:
    """Describe parquet files without annotations: the columns that could have them."""
    if format == "folder":
        return "annotations not looked for"
    if not unknown:
        return "0 annotated"
    more = ", ..." if len(unknown) > 8 else ""
    return (
        f"0 annotated; columns that are not known: {', '.join(map(shown, unknown[:8]))}{more} "
        "(if one of them has the annotations: --columns-map objects=NAME or bbox=NAME)"
    )


def _list(place: str | os.PathLike[str]) -> Listing:
    if is_archive(place):
        return list_archives(place)
    path = Path(place)
    if path.suffix.lower() in list_file.SUFFIXES and not path.is_dir():
        return list_file.list_paths(path)
    if path.suffix.lower() == ".parquet" and not path.exists():
        raise SourceError(f"{shown(path)}: no such parquet file")
    return list_folder(path)


def chosen(listing: Listing, include: Sequence[str], exclude: Sequence[str]) -> Listing:
    """Return a listing with only the pictures that patterns choose; `*` matches slashes as well."""
    if not include and not exclude:
        return listing
    kept = {
        file.relative: key
        for file in listing.pictures
        for key in [listing.keys.get(file.relative, file.key)]
        if (not include or any(fnmatchcase(key, pattern) for pattern in include))
        and not any(fnmatchcase(key, pattern) for pattern in exclude)
    }
    keys = set(kept.values())
    return replace(
        listing,
        pictures=tuple(file for file in listing.pictures if file.relative in kept),
        others=tuple(
            file
            for file in listing.others
            if not file.listed_as or file.relative.removesuffix(file.path.suffix) in kept
        ),
        problems=tuple(p for p in listing.problems if p.key is None or p.key in keys),
    )


def _with_own_keys(
    listing: Listing, entries: dict[int, Entry], dialect: Dialect
) -> tuple[tuple[FoundFile, ...], dict[int, Entry]]:
    """Give pictures the keys that the list or their annotations have, and sort them again."""
    if type(dialect).key is Dialect.key and not listing.keys:
        return listing.pictures, entries
    renamed: dict[str, tuple[FoundFile, Entry | None]] = {}
    for row, file in enumerate(listing.pictures):
        entry, key = entries.get(row), listing.keys.get(file.relative)
        if entry is not None and key is None:
            with suppress(UnusableAnnotationError):  # it is reported when the sample is read
                key = dialect.key(entry)
        own = file if key is None else replace(file, relative=path_of(key))
        if own.key in renamed:
            raise SourceError(f"two pictures have the key {shown(own.key)}; each needs its own")
        renamed[own.key] = own, entry
    ordered = [renamed[key] for key in sorted(renamed)]
    placed = {row: entry for row, (_, entry) in enumerate(ordered) if entry is not None}
    return tuple(file for file, _ in ordered), placed


def _upright_size(path: ReadableFile, where: str) -> tuple[int, int]:
    from ocrstore.decode.decode import open_picture

    try:
        picture = open_picture(path.read_bytes())
    except (DecodeError, OSError) as exc:
        message = f"{where}: shares of a picture whose size cannot be read ({exc})"
        raise UnusableAnnotationError("unknown-size", message) from exc
    width, height = picture.size
    return (height, width) if picture.orientation >= 5 else (width, height)


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


def _passed_over(listing: Listing, found: Found, *, nothing_known: bool) -> Iterator[Problem]:
    """Report files that are neither pictures nor annotations.

    With `nothing_known` annotations were searched and no file was recognised.
    """
    used = {os.fspath(file.path) for file in found.files}
    left = [file for file in listing.others if os.fspath(file.path) not in used]
    if left:  # the same file may have been named by another path; costly, so only for these
        real = {os.path.realpath(path) for path in used}
        left = [file for file in left if os.path.realpath(file.path) not in real]
    stems = {stem_of(file) for file in listing.pictures} if left else set()
    arrays = [file for file in left if _is_array_of(file, stems)]
    if arrays:
        which = f"{len(arrays)} array files beside pictures, such as {shown(arrays[0].key)}"
        yield Problem("not-a-picture", f"{which}: --maps takes the maps among them")
        left = [file for file in left if not _is_array_of(file, stems)]
    known = (d.name for d in all_dialects() if d.per_picture and ".json" in d.suffixes)
    layouts = f"of no layout that is known ({', '.join(known)}; see docs/sources.md)"
    for file in left:
        if not file.listed_as:
            message = f"{shown(file.key)}: not a picture, by its ending; skipped"
            is_json = file.relative.lower().endswith(".json")
            if nothing_known and is_json and stem_of(file) in stems:
                message = f"{shown(file.key)}: beside a picture of its name, but {layouts}; skipped"
            yield Problem("not-a-picture", message)
        elif not (found.named and found.dialect.name == "folder"):  # else nobody wants them
            place = file.relative.removesuffix(file.path.suffix)
            message = f"{shown(file.listed_as)}: {_why_unread(file, found.dialect)}"
            key = listing.keys.get(place, key_of(place))
            yield Problem("unreadable-annotation", message, key=key)
    if found.listing is None or found.listing is listing:
        return
    among = {os.path.realpath(file.path) for file in left} if left else set()
    for file in found.listing.others:
        if os.fspath(file.path) not in used and os.path.realpath(file.path) not in among:
            message = f"{shown(file.path)}: not read as {found.dialect.name}; skipped"
            yield Problem("not-an-annotation", message)
    told = set(listing.problems)
    yield from (p for p in found.listing.problems if p.kind != "hidden-files" and p not in told)


def _is_array_of(file: FoundFile, stems: Collection[str]) -> bool:
    """Return whether a file is `KEY.npz` or `KEY.name.npy` of one of the pictures."""
    stem, suffix = stem_of(file), file.path.suffix.lower()
    return (suffix == ".npz" and stem in stems) or (
        suffix == ".npy" and stem.rpartition(".")[0] in stems
    )


def _why_unread(file: FoundFile, dialect: Dialect) -> str:
    """Say why the annotation file of a line in a list was not read, and what to do."""
    suffix = file.path.suffix.lower()
    if not any(suffix in known.suffixes for known in all_dialects()):
        return (
            f"no dialect reads files that end in {shown(suffix) or 'nothing'}; rename them, or "
            "give a dialect of your own with --format MODULE:CLASS"
        )
    if dialect.name == "folder":
        return "no dialect recognises it; name its dialect with --format"
    return f"not read as {dialect.name}; the annotations of a list are of one dialect"


def _describe(root: Path, listing: Listing, found: Found, matches: Matches) -> str:
    text = f"{len(listing.pictures)} pictures in {shown(root)}, {found.dialect.name}: {found.how}"
    if found.files:
        text += f" ({len(found.files)} files), {len(matches.entries)} pictures annotated"
    return text
