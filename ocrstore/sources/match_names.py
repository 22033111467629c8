"""Match annotations to pictures by name: exact names first, then looser ones while unambiguous.

The rounds, each over all entries before the next begins (a matched picture stays matched):

1. the path unchanged, then in Unicode form NFC, then without case;
2. one path is the end of the other (one of them has folders in front that the other has not);
3. the last part alone;
4. to 6. the same without the picture's ending, for annotations named after the picture's stem.

A name that fits several pictures in a round, and two names that fit one picture, are ambiguous:
reported and not used. The same name twice: the first counts.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ocrstore.annotation import Problem
from ocrstore.keys import shown
from ocrstore.sources.annotation_file import Flaw
from ocrstore.sources.dialect import Dialect, Entry
from ocrstore.sources.pictures import FoundFile, is_picture_name

_DRIVE = re.compile(r"^(?:[A-Za-z]:|file://)")
_PATH, _TAIL, _LAST = "path", "tail", "last"


def plain(name: str) -> str:
    """Return a name in Unicode form NFC."""
    return unicodedata.normalize("NFC", name)


def folded(name: str) -> str:
    """Return a name in Unicode form NFC, without case."""
    return unicodedata.normalize("NFC", plain(name).casefold())


def tidy(name: str) -> str:
    """Return an annotation's picture name as a relative POSIX path: no drive, no `.`, no `..`."""
    parts: list[str] = []
    for part in _DRIVE.sub("", name).replace("\\", "/").split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def name_disagrees(entry: Entry, name: object) -> Iterator[Flaw]:
    """Yield a note if a file names another picture than the one that it is named after."""
    if not isinstance(name, str):
        return
    picture, *own = (folded(tidy(n)).rpartition("/")[2] for n in (name, *entry.names))
    if picture not in own and picture.rpartition(".")[0] not in own:
        message = f"{entry.where}: names the picture {shown(name)}"
        yield Flaw("name-disagrees", message, region=False)


def _stem(path: str) -> str:
    return os.path.splitext(path)[0] if is_picture_name(path) else path  # noqa: PTH122 - a name


def _spell(path: str, fold: bool, bare: bool) -> str:
    path = _stem(path) if bare else path
    return folded(path) if fold else plain(path)


class _Index:
    """Pictures by whole path and by every suffix of it, in one spelling."""

    def __init__(self, spelled: Sequence[tuple[str, int]]) -> None:
        self._paths: dict[str, list[int]] = {}
        self._tails: dict[str, list[int]] = {}
        for path, row in spelled:
            self._paths.setdefault(path, []).append(row)
            parts = path.split("/")
            for i in range(len(parts)):
                self._tails.setdefault("/".join(parts[i:]), []).append(row)

    def find(self, name: str, reach: str) -> list[int]:
        if reach == _PATH:
            return self._paths.get(name, [])
        if reach == _LAST:
            return self._tails.get(name.rpartition("/")[2], [])
        found = self._tails.get(name, [])
        while not found and "/" in name:
            name = name.partition("/")[2]
            found = self._paths.get(name, [])
        return found


@dataclass(slots=True)
class Matches:
    """Which entry each picture (by row) has, and what could not be matched."""

    entries: dict[int, Entry] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def match(entries: Sequence[Entry], pictures: Sequence[FoundFile], dialect: Dialect) -> Matches:
    """Match entries to pictures."""
    matcher = _Matcher(pictures)
    left = matcher.rounds([(entry, entry.names) for entry in entries])
    # costly names are computed only where the cheap ones found nothing
    left = matcher.rounds([_renamed(entry, dialect) for entry, _ in left])
    for entry, _ in left:
        message = f"{entry.where}: no picture is named {shown(entry.names[0])}"
        matcher.result.problems.append(Problem("missing-picture", message))
    return matcher.result


_Pending = list[tuple[Entry, tuple[str, ...]]]


def _renamed(entry: Entry, dialect: Dialect) -> tuple[Entry, tuple[str, ...]]:
    names = tuple(dialect.other_names(entry))
    return (replace(entry, names=names) if names else entry), names


class _Matcher:
    def __init__(self, pictures: Sequence[FoundFile]) -> None:
        self.result = Matches()
        self._pictures = pictures
        self._exact = {picture.key: row for row, picture in enumerate(pictures)}
        self._exact |= {picture.relative: row for row, picture in enumerate(pictures)}
        paths = [(path, row) for row, picture in enumerate(pictures) for path in _readings(picture)]
        self._paths = paths
        self._indexes: dict[tuple[bool, bool], _Index] = {}

    def _index(self, fold: bool, bare: bool) -> _Index:
        """Return the index of one spelling, made on first use: exact names are mostly enough."""
        if (fold, bare) not in self._indexes:
            spelled = [(_spell(path, fold, bare), row) for path, row in self._paths]
            self._indexes[fold, bare] = _Index(spelled)
        return self._indexes[fold, bare]

    def rounds(self, pending: _Pending) -> _Pending:
        """Match in looser and looser rounds; return what matched nothing."""
        longest = max((len(names) for _, names in pending), default=0)
        for nth in range(longest):
            pending = self._exact_round(pending, nth)
            for bare in (False, True):
                # the loosest reading finds all that the others find: ask it who is worth the rounds
                hopeful: _Pending = []
                hopeless: _Pending = []
                for item in pending:
                    found = self._find(item, nth, bare, _LAST, fold=True)
                    (hopeful if found else hopeless).append(item)
                for reach in (_PATH, _TAIL, _LAST):
                    for fold in (False, True):
                        hopeful = self._round(hopeful, nth, bare, reach, fold=fold)
                pending = hopeless
        return pending

    def _find(
        self, item: tuple[Entry, tuple[str, ...]], nth: int, bare: bool, reach: str, *, fold: bool
    ) -> list[int]:
        names = item[1]
        if nth >= len(names):
            return []
        name = _spell(tidy(names[nth]), fold, bare)
        return sorted(set(self._index(fold, bare).find(name, reach)))

    def _exact_round(self, pending: _Pending, nth: int) -> _Pending:
        left: _Pending = []
        for entry, names in pending:
            row = self._exact.get(names[nth]) if nth < len(names) else None
            if row is None:
                left.append((entry, names))
            elif row in self.result.entries:
                what = f"{self._key(row)} is already annotated"
                self._report("duplicate-annotation", entry, what, row)
            else:
                self.result.entries[row] = entry
        return left

    def _round(
        self, pending: _Pending, nth: int, bare: bool, reach: str, *, fold: bool
    ) -> _Pending:
        left: _Pending = []
        claims: dict[int, list[tuple[Entry, str]]] = {}
        for entry, names in pending:
            found = self._find((entry, names), nth, bare, reach, fold=fold)
            if not found:
                left.append((entry, names))
            elif len(found) > 1:
                self._ambiguous(entry, names[nth], found)
            else:
                claims.setdefault(found[0], []).append((entry, names[nth]))
        for row, claimants in claims.items():
            self._settle(row, claimants, bare)
        return left

    def _settle(self, row: int, claimants: list[tuple[Entry, str]], bare: bool) -> None:
        if row in self.result.entries:
            for entry, name in claimants:
                taken = f"{self._key(row)} has an annotation with a closer name"
                same = plain(tidy(name)) == plain(self._pictures[row].relative)
                if same or (bare and not is_picture_name(name)):
                    self._report("duplicate-annotation", entry, taken, row)
                else:
                    what = f"no picture is named {shown(name)}; {taken}"
                    self._report("missing-picture", entry, what, row)
        elif len({tidy(name) for _, name in claimants}) == 1:
            self.result.entries[row] = claimants[0][0]
            for entry, _ in claimants[1:]:
                what = f"{self._key(row)} is already annotated"
                self._report("duplicate-annotation", entry, what, row)
        else:
            for entry, name in claimants:
                others = f"{shown(name)} and {len(claimants) - 1} other names"
                what = f"{others} matches {self._key(row)}"
                self._report("ambiguous-name", entry, what, row)

    def _ambiguous(self, entry: Entry, name: str, rows: list[int]) -> None:
        keys = ", ".join(self._key(row) for row in rows[:3]) + (", ..." if len(rows) > 3 else "")
        what = f"{shown(name)} matches {len(rows)} pictures: {keys}"
        self._report("ambiguous-name", entry, what, None)

    def _report(self, kind: str, entry: Entry, what: str, row: int | None) -> None:
        key = None if row is None else self._pictures[row].key
        message = f"{entry.where}: {what}; this annotation is not used"
        self.result.problems.append(Problem(kind, message, key=key))

    def _key(self, row: int) -> str:
        return shown(self._pictures[row].key)


def _readings(picture: FoundFile) -> list[str]:
    """Return the names of a picture: its path and, if that is not UTF-8, its Latin-1 reading."""
    path = picture.relative
    try:
        path.encode()
    except UnicodeEncodeError:
        raw = path.encode("utf-8", "surrogatepass" if os.name == "nt" else "surrogateescape")
        return [path, raw.decode("latin-1")]
    return [path]
