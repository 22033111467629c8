"""Deciding what a build has to do, before it does it: action, views, and why."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ocrstore.building.derive import annotation_hash, file_state, read_picture
from ocrstore.decode import available_backends
from ocrstore.decode.jpeg import opencv_family
from ocrstore.errors import SchemaError, SourceError
from ocrstore.format.columns import Column
from ocrstore.format.unfinished import Unfinished, find_unfinished
from ocrstore.sample import Problem, SourceSample
from ocrstore.sources import Source
from ocrstore.store import Store
from ocrstore.views import IMPORTED, View, check_views, column_shapes, stored_views

IN_PLACE = 256
"""Up to this many new and changed pictures, and up to half the store, are written into it in
place; more of them, and the whole store is written anew, which leaves no dead space."""


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What will be done to which file."""

    target: Path
    source: Source
    views: tuple[View, ...]
    action: str
    """create, update (in place), rewrite (a new file, with what can be reused) or nothing."""
    reasons: tuple[str, ...]
    changes: Changes
    old: Store | None
    """The store as it is; None where it is made from nothing."""
    copied: frozenset[str] = frozenset()
    """Columns that a rewrite takes over from unchanged samples as they are."""
    families: Mapping[str, str] | None = None
    maps_folder: Path | None = None
    force: bool = False
    unfinished: Unfinished | None = None
    """What an interrupted run has left."""

    @property
    def columns(self) -> dict[str, Column]:
        """The columns that the store will have."""
        return {name: Column(*spec) for name, spec in column_shapes(self.views).items()}

    @property
    def rederived(self) -> tuple[View, ...]:
        """The views that a rewrite has to make of unchanged samples."""
        return tuple(v for v in self.views if not set(v.columns.values()) <= self.copied)

    @property
    def reuses(self) -> bool:
        """Whether unchanged samples need not be decoded again."""
        needs_pixels = bool(self.rederived)
        has_pixels = self.old is not None and "image" in self.old.columns
        keeps_image = "image" in self.copied or "image" not in self.columns
        return bool(self.copied) and keeps_image and (has_pixels or not needs_pixels)

    @property
    def token(self) -> str:
        """Name the work, so that an interrupted build is resumed by the same one only."""
        return name_work(
            "build",
            self.views,
            images=Path(self.source.images),
            families=dict(self.families or {}),
            maps_folder=self.maps_folder,
        )

    @property
    def mistaken(self) -> str:
        """Why this is hardly the store's folder; empty if it shares a sample with the store."""
        if (
            self.old is None
            or not len(self.old)
            or not set(self.old.keys).isdisjoint(self.source.keys)
        ):
            return ""
        return not_its_folder(len(self.old), self.source.images)

    @property
    def obstacle(self) -> str:
        """Why the unfinished work that was found is discarded; empty if it is gone on with."""
        if self.unfinished is None:
            return ""
        if self.force:
            return "everything is made anew, as asked"
        if self.action == "nothing":
            return "the store is as the source is, without it"
        return why_not(self.unfinished, self.token, in_place=self.action == "update")


def not_its_folder(samples: int, images: Path) -> str:
    """Say that none of a store's samples is in a folder."""
    none = "the one sample" if samples == 1 else f"none of the {samples} samples"
    is_not = "is not" if samples == 1 else "is"
    return f"{none} of the store {is_not} in {images}; is it the right folder?"


def plan_build(
    source: Source,
    target: Path,
    asked: View,
    *,
    force: bool,
    maps_folder: Path | None,
) -> BuildPlan:
    """Compare the source, the recipe and the decoders with what is there."""
    families = decoder_families()
    facts: dict[str, Any] = {
        "target": target,
        "source": source,
        "families": families,
        "maps_folder": maps_folder,
        "force": force,
        "unfinished": find_unfinished(target),
    }
    if not target.exists():
        changes = compare(source, {}, maps_folder=None)
        reasons = [f"{target} is not there yet", *changes.reasons()]
        return BuildPlan(
            views=(asked,),
            action="create",
            reasons=tuple(reasons),
            changes=changes,
            old=None,
            **facts,
        )
    old = Store(target)  # whatever else the file is, it is not overwritten, by force or not
    before = stored_views(old.metadata, where=str(target))
    if force:
        changes = compare(source, {}, maps_folder=None)
        return BuildPlan(
            views=(asked,),
            action="create",
            reasons=("everything is made anew, as asked", *changes.reasons()),
            changes=changes,
            old=None,
            **facts,
        )
    if not before:
        raise SchemaError(
            f"{target} was not built from pictures, so it cannot be brought up to date; "
            "choose another name, or --force to replace it"
        )
    views = check_views((asked, *(v for v in before if not v.default and v.name != asked.name)))
    known = known_from(old.index)
    changes = compare(source, known, maps_folder=maps_folder)
    recipe_reasons = _recipe_reasons(before, views)
    decoder_reasons = _decoder_reasons(old.metadata, families)
    if len(old) and not known:
        decoder_reasons.append("it is not recorded which files the samples were made from")
    reasons = [*recipe_reasons, *decoder_reasons, *changes.reasons()]
    copied = frozenset() if decoder_reasons else _copied(old, before, views)
    columns = {name: Column(*spec) for name, spec in column_shapes(views).items()}
    work = len(changes.new) + len(changes.changed)
    if (
        decoder_reasons
        or columns != dict(old.columns)
        or not copied.issuperset(columns)
        or work > max(IN_PLACE, len(old) // 2)
    ):
        action = "rewrite"
    elif changes.any or recipe_reasons:
        action = "update"
    else:
        action = "nothing"
    return BuildPlan(
        views=views,
        action=action,
        reasons=tuple(reasons) or ("nothing has changed",),
        changes=changes,
        old=old,
        copied=copied,
        **facts,
    )


def _recipe_reasons(before: tuple[View, ...], views: tuple[View, ...]) -> list[str]:
    reasons = []
    default, asked = before[0], views[0]
    lines = default.recipe.diff(asked.recipe)
    if default.name != asked.name:
        reasons.append(f"the default view {default.name} becomes {asked.name}")
    reasons += [f"the recipe of view {asked.name} changed: {line}" for line in lines]
    kept = {view.name for view in views}
    reasons += [
        f"view {v.name} is dropped: the default view has that name now"
        for v in before[1:]
        if v.name in kept and v.name == asked.name
    ]
    return reasons


def _decoder_reasons(metadata: Mapping[str, Any], families: Mapping[str, str]) -> list[str]:
    build = metadata.get("build")
    recorded = build.get("decoders") if isinstance(build, Mapping) else None
    if not isinstance(recorded, Mapping):
        return ["it is not recorded which decoders made the pictures"]
    return [
        f"{kind} pictures are decoded by {families[kind]} now, not by {family}"
        for kind, family in recorded.items()
        if families.get(kind, family) != family
    ]


def _copied(old: Store, before: tuple[View, ...], views: tuple[View, ...]) -> frozenset[str]:
    """Name the columns whose rows are still right for an unchanged picture."""
    wanted = {name: Column(*spec) for name, spec in column_shapes(views).items()}
    same_place = {name for name, column in wanted.items() if old.columns.get(name) == column}
    good = {"image"}
    recipes = {name: v.recipe for v in before for name in v.columns.values()}
    for view in views:
        for name in view.columns.values():
            earlier = recipes.get(name)
            if earlier is not None and _same_pixels(earlier, view.recipe):
                good.add(name)
    return frozenset(same_place & good)


def _same_pixels(one: Any, other: Any) -> bool:
    """Whether two recipes draw the same; which columns they ask for makes no difference."""
    ignored = ("columns", "mean", "std")
    a, b = one.to_json(), other.to_json()
    if str(a.get("map_algorithm")).startswith(IMPORTED) and a["columns"] != b["columns"]:
        return False
    return all(a[name] == b[name] for name in a if name not in ignored)


@dataclass(frozen=True, slots=True)
class Known:
    """What was recorded of a picture when its sample was made."""

    row: int
    nbytes: int
    mtime_ns: int
    hash: int
    annotation_hash: int


@dataclass(slots=True)
class Changes:
    """The keys of a source and of an earlier state, sorted into what has to be done."""

    new: list[str] = field(default_factory=list)
    changed: dict[str, str] = field(default_factory=dict)
    """Key to reason."""
    removed: list[str] = field(default_factory=list)
    unchanged: dict[str, int] = field(default_factory=dict)
    """Key to row in the earlier state."""
    problems: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    """What the source says about unchanged pictures."""

    @property
    def any(self) -> bool:
        """Whether anything has to be done."""
        return bool(self.new or self.changed or self.removed)

    def without(self, keys: Collection[str]) -> Changes:
        """Return the same, but for what is unchanged among `keys`."""
        return replace(
            self,
            unchanged={key: row for key, row in self.unchanged.items() if key not in keys},
            problems={key: found for key, found in self.problems.items() if key not in keys},
        )

    def reasons(self) -> list[str]:
        """Say what changed in words, one sentence for each kind."""
        lines = []
        if self.new:
            lines.append(_counted(len(self.new), "new picture", self.new))
        by_reason: dict[str, list[str]] = {}
        for key, reason in self.changed.items():
            by_reason.setdefault(reason, []).append(key)
        for reason, keys in by_reason.items():
            lines.append(f"{_counted(len(keys), 'changed picture', keys)}: {reason}")
        if self.removed:
            lines.append(_counted(len(self.removed), "removed picture", self.removed))
        return lines


def known_from(table: pa.Table) -> dict[str, Known]:
    """Read what an index, or a part of one, recorded of its pictures; empty if it did not."""
    names = ("source_nbytes", "source_mtime_ns", "source_hash", "annotation_hash")
    if any(name not in table.column_names for name in ("key", *names)):
        return {}
    columns = [table[name].to_pylist() for name in names]
    keys = table["key"].to_pylist()
    return {key: Known(row, *facts) for row, (key, *facts) in enumerate(zip(keys, *columns))}


def compare(source: Source, known: Mapping[str, Known], *, maps_folder: Path | None) -> Changes:
    """Hold a source against what is known of it.

    A picture of the same size and time is the same; where only the time differs its bytes decide.
    """
    changes = Changes()
    gone = dict(known)
    if not known:
        changes.new = list(source.keys)  # without reading a single annotation
        return changes
    for sample in source:
        before = gone.pop(sample.key, None)
        if before is None:
            changes.new.append(sample.key)
            continue
        reason = _difference(sample, before, maps_folder)
        if reason is None:
            changes.unchanged[sample.key] = before.row
            if sample.problems:
                changes.problems[sample.key] = sample.problems
        else:
            changes.changed[sample.key] = reason
    changes.removed = sorted(gone)
    return changes


def decoder_families() -> dict[str, str]:
    """Name, for each picture format, the family of decoders that would decode it here and now."""
    jpeg = "libjpeg-turbo"
    if available_backends()[0] == "opencv":
        jpeg = opencv_family()
    others = dict.fromkeys(("png", "webp", "bmp", "tiff", "gif"), "opencv")
    return {"jpeg": jpeg, **others}


def _difference(sample: SourceSample, before: Known, maps_folder: Path | None) -> str | None:
    try:
        state = file_state(sample.path)
        if state.nbytes != before.nbytes:
            return "another size"
        if (
            state.mtime_ns != before.mtime_ns
            and read_picture(sample.path, sample.key).hash != before.hash
        ):
            return "other bytes"
    except (OSError, SourceError):
        return "its file cannot be read any more"
    if annotation_hash(sample, maps_folder) != before.annotation_hash:
        return "another annotation" + (" or map file" if maps_folder is not None else "")
    return None


def _counted(count: int, what: str, keys: list[str]) -> str:
    shown = ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
    return f"{count} {what}{'' if count == 1 else 's'} ({shown})"


def name_work(
    work: str,
    views: tuple[View, ...],
    *,
    images: Path | None,
    families: dict[str, str],
    maps_folder: Path | None,
) -> str:
    """Name a work by all that its result depends on, except the pictures' content.

    That is recorded with each sample, and compared sample by sample.
    """
    described = {
        "work": work,
        "images": None if images is None else os.path.abspath(images),  # noqa: PTH100 - links stay links
        "views": [[view.name, view.recipe.fingerprint] for view in views],
        "decoders": families,
        "maps": None if maps_folder is None else str(maps_folder.absolute()),
    }
    return json.dumps(described, sort_keys=True)


def why_not(found: Unfinished, token: str, *, in_place: bool) -> str:
    """Say why unfinished work is not gone on with by the work `token`; empty if it is."""
    if found.obstacle:
        return found.obstacle
    if found.token != token:
        return _other_work(_described(found.token), _described(token))
    if found.in_place and not in_place:
        return "by now so much has changed that a new file is written"
    if in_place and not found.in_place:
        return "it was of a new file, and by now the store is changed in place"
    return ""


def _described(token: str) -> dict[str, Any]:
    try:
        record = json.loads(token)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _other_work(then: dict[str, Any], now: dict[str, Any]) -> str:
    if then.get("work") != now["work"]:
        return f"it was of other work ({then.get('work', 'of another program')})"
    if then.get("images") != now["images"]:
        return f"it was of the pictures in {then.get('images') or 'the store'}"
    if then.get("views") != now["views"]:
        return "it was made by another recipe, or for other views"
    if then.get("maps") != now["maps"]:
        return f"it had its maps from {then.get('maps') or 'no folder'}"
    return "its pictures were decoded by other decoders"
