"""Decide what a build has to do: compare source, recipe and decoders with the existing store."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ocrstore.annotation import AnnotationReader, FoundSample, Problem
from ocrstore.building.derive import (
    AUTO_FRAME,
    FrameRule,
    annotation_hash,
    file_state,
    read_picture,
)
from ocrstore.building.frames import reframed
from ocrstore.building.mistaken_source import lost_annotations, not_its_folder
from ocrstore.decode import DECODER_FAMILIES, format_by_name
from ocrstore.errors import CorruptStoreError, SchemaError, SourceError
from ocrstore.format.columns import Column
from ocrstore.format.layout import MAX_ROW_NBYTES
from ocrstore.format.resume import Unfinished, find_unfinished
from ocrstore.metadata import build_record, readable_build
from ocrstore.sources import Source
from ocrstore.store import Store
from ocrstore.views import IMPORTED, View, built_views, check_views, stored_columns


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """What a shard of a data set takes from the whole of it."""

    source: Mapping[str, Any]
    """The record of the source for the manifest."""
    schema: pa.Schema
    """The attributes of the samples."""


IN_PLACE = 256
"""Up to this many new and changed pictures, or half the store, are updated in place; for more, the
whole store is rewritten, which leaves no dead space."""


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What a build will do to which file."""

    target: Path
    source: Source
    views: tuple[View, ...]
    action: str
    """create, update (in place), rewrite (a new file, reusing valid columns) or nothing."""
    reasons: tuple[str, ...]
    changes: Changes
    old: Store | None
    """The existing store; None if the build starts from scratch."""
    copied: frozenset[str] = frozenset()
    """Columns that a rewrite copies for unchanged samples."""
    families: Mapping[str, str] | None = None
    maps_folder: Path | None = None
    frames: FrameRule = AUTO_FRAME
    force: bool = False
    unfinished: Unfinished | None = None
    """The work of an interrupted build."""
    loses: str = ""
    """Which polygons of the store would be lost; empty if few, or if that is allowed."""
    shard: ShardFacts | None = None
    """For a shard of a data set, which may be empty, is not resumed, and is not judged alone."""

    @property
    def columns(self) -> dict[str, Column]:
        """The columns of the store to be."""
        return stored_columns(self.views)

    @property
    def rederived(self) -> tuple[View, ...]:
        """The views that a rewrite derives again for unchanged samples."""
        return tuple(v for v in self.views if not set(v.columns.values()) <= self.copied)

    @property
    def reuses(self) -> bool:
        """Whether unchanged samples need not be read from their files."""
        needs_pixels = bool(self.rederived)
        has_pixels = self.old is not None and "image" in self.old.columns
        keeps_image = "image" in self.copied or "image" not in self.columns
        return bool(self.copied) and keeps_image and (has_pixels or not needs_pixels)

    @property
    def token(self) -> str:
        """Identifies the work: an interrupted build is resumed by the same one only."""
        return name_work(
            "build",
            self.views,
            images=self.source.images,
            families=dict(self.families or {}),
            maps_folder=self.maps_folder,
            frames=self.frames,
        )

    @property
    def mistaken(self) -> str:
        """Why this is probably the wrong folder; empty if it has a sample of the store."""
        if (
            self.shard is not None
            or self.old is None
            or not len(self.old)
            or not set(self.old.keys).isdisjoint(self.source.keys)
        ):
            return ""
        return not_its_folder(len(self.old), self.source.images or "these samples")

    def shards_to_json(self) -> dict[str, Any]:
        """Return nothing: this is one store."""
        return {}

    @property
    def obstacle(self) -> str:
        """Why the interrupted build cannot be resumed; empty if it can."""
        if self.unfinished is None:
            return ""
        if self.force:
            return "--force rebuilds from scratch"
        if self.action == "nothing":
            return "the store is up to date without it"
        return why_not(self.unfinished, self.token, in_place=self.action == "update")


def plan_build(
    source: Source,
    target: Path,
    asked: View,
    *,
    force: bool,
    maps_folder: Path | None,
    drop_annotations: bool = False,
    frames: FrameRule = AUTO_FRAME,
    told: Mapping[str, str] | None = None,
) -> BuildPlan:
    """Plan a build of one view, which becomes the default view; other views are kept.

    With `told`, some columns and their codecs, all others keep the codec that they have in the
    store; without it the recipe decides.

    Raises:
        SchemaError: The target is a store that was not built from pictures.
    """
    families = dict(DECODER_FAMILIES)
    facts: dict[str, Any] = {
        "target": target,
        "source": source,
        "families": families,
        "maps_folder": maps_folder,
        "frames": frames,
        "force": force,
        "unfinished": find_unfinished(target),
    }
    if not target.exists():
        changes = compare(source, {}, maps_folder=None)
        reasons = [f"{target} does not exist yet", *changes.reasons()]
        return BuildPlan(
            views=(asked,),
            action="create",
            reasons=tuple(reasons),
            changes=changes,
            old=None,
            **facts,
        )
    # raises for a file that is not a store: --force does not replace that. Its rows passed the
    # --max-pixels of another build
    old = Store(target, max_row_nbytes=MAX_ROW_NBYTES)
    before = built_views(old)
    if not drop_annotations:
        # --force also replaces a store whose index is damaged
        with suppress(*[CorruptStoreError] if force else []):
            facts["loses"] = lost_annotations([old], source, readable_build(old)[0])
    if force:
        changes = compare(source, {}, maps_folder=None)
        return BuildPlan(
            views=(asked,),
            action="create",
            reasons=("--force rebuilds from scratch", *changes.reasons()),
            changes=changes,
            old=None,
            **facts,
        )
    if not before:
        raise SchemaError(
            f"{target} was not built from pictures and cannot be updated; "
            "choose another name, or replace it with --force"
        )
    if told is not None:
        codecs = {name: column.codec for name, column in old.columns.items()} | dict(told)
        asked = replace(asked, recipe=asked.recipe.with_codecs(codecs))
    views = check_views((asked, *(v for v in before if not v.default and v.name != asked.name)))
    known = known_from(old.index)
    changes = _changes(source, old, known, maps_folder, frames)
    recipe_reasons = _recipe_reasons(before, views)
    decoder_reasons = other_decoders(old, families)
    if len(old) and not known:
        decoder_reasons.append("the store does not record the files of its samples")
    reasons = [*recipe_reasons, *decoder_reasons, *changes.reasons()]
    copied = frozenset() if decoder_reasons else _copied(old, before, views)
    columns = stored_columns(views)
    work = len(changes.new) + len(changes.changed)
    if (
        decoder_reasons
        or columns != dict(old.columns)
        or not own_attributes(source) <= set(old.index.column_names)
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


def plan_shard(
    source: Source,
    target: Path,
    views: tuple[View, ...],
    *,
    shard: ShardFacts,
    base: Path | None,
    maps_folder: Path | None,
    frames: FrameRule,
) -> BuildPlan:
    """Plan a shard of a data set: a new file, with the rows of `base` that are still valid."""
    families = dict(DECODER_FAMILIES)
    old = None if base is None else Store(base, max_row_nbytes=MAX_ROW_NBYTES)
    known = {} if old is None else known_from(old.index)
    copied: frozenset[str] = frozenset()
    if old is None or not known or other_decoders(old, families):
        old, changes = None, compare(source, {}, maps_folder=None)
    else:
        changes = _changes(source, old, known, maps_folder, frames)
        copied = _copied(old, built_views(old), views)
    return BuildPlan(
        target,
        source,
        views,
        "create" if old is None else "rewrite",
        tuple(changes.reasons()),
        changes,
        old,
        copied,
        families,
        maps_folder,
        frames,
        shard=shard,
    )


def _changes(
    source: Source,
    old: Store,
    known: Mapping[str, Known],
    maps_folder: Path | None,
    frames: FrameRule,
) -> Changes:
    """Compare a source with a store; a picture whose polygons are turned otherwise changed, too."""
    changes = compare(source, known, maps_folder=maps_folder)
    turned = reframed(source, old, frames)
    changes = changes.without(turned)
    changes.changed.update(turned)
    return changes


def own_attributes(source: Source) -> set[str]:
    """Return the names of the further values that samples have."""
    return {name for values in source.attributes.values() for name in values}


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


def other_decoders(old: Store, families: Mapping[str, str]) -> list[str]:
    """Return why this machine may decode the pictures of a store to other pixels."""
    recorded = build_record(old).get("decoders")
    if recorded is None:
        return ["the store does not record its decoders"]
    present = _formats(old)
    return [
        f"{kind} pictures are decoded by {families[kind]} now, not by {family}"
        for kind, family in recorded.items()
        if kind in present and families.get(kind, family) != family
    ]


def _formats(store: Store) -> set[str | None]:
    """Return the formats of a store's pictures; all of them if some names do not tell."""
    problems = AnnotationReader(store).problems()
    found = {format_by_name(key) for key in store.keys}
    if None in found or any(line.startswith("mislabelled") for lines in problems for line in lines):
        return set(DECODER_FAMILIES)
    return found


def _copied(old: Store, before: tuple[View, ...], views: tuple[View, ...]) -> frozenset[str]:
    """Return the columns whose rows are still valid for an unchanged picture."""
    wanted = stored_columns(views)
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
    """Return whether two recipes make the same arrays, whichever columns they ask for."""
    ignored = ("columns", "mean", "std", "made_with")
    a, b = one.to_json(), other.to_json()
    if str(a.get("map_algorithm")).startswith(IMPORTED) and a["columns"] != b["columns"]:
        return False
    if None not in (one.made_with, other.made_with) and one.made_with != other.made_with:
        return False
    return all(a.get(name) == b.get(name) for name in {*a, *b} if name not in ignored)


# --- comparing a source with an earlier state of it


@dataclass(frozen=True, slots=True)
class Known:
    """What a store records about the file and annotation of a sample."""

    row: int
    nbytes: int
    mtime_ns: int
    hash: int
    annotation_hash: int


@dataclass(slots=True)
class Changes:
    """Differences between a source and an earlier state of it."""

    new: list[str] = field(default_factory=list)
    changed: dict[str, str] = field(default_factory=dict)
    """Key to reason."""
    removed: list[str] = field(default_factory=list)
    unchanged: dict[str, int] = field(default_factory=dict)
    """Key to row of the earlier state."""
    problems: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    """Problems that the source reports for unchanged pictures."""

    @property
    def any(self) -> bool:
        """Whether anything changed."""
        return bool(self.new or self.changed or self.removed)

    def without(self, keys: Collection[str]) -> Changes:
        """Return a copy in which none of `keys` is unchanged."""
        return replace(
            self,
            unchanged={key: row for key, row in self.unchanged.items() if key not in keys},
            problems={key: found for key, found in self.problems.items() if key not in keys},
        )

    def reasons(self) -> list[str]:
        """Return what changed, one line for each kind of change."""
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
    """Read the records of an index, or a part of one; empty if it has none."""
    names = ("source_nbytes", "source_mtime_ns", "source_hash", "annotation_hash")
    if any(name not in table.column_names for name in ("key", *names)):
        return {}
    if any(not pa.types.is_integer(table[name].type) or table[name].null_count for name in names):
        return {}  # not as a build records them
    columns = [table[name].to_pylist() for name in names]
    keys = table["key"].to_pylist()
    return {key: Known(row, *facts) for row, (key, *facts) in enumerate(zip(keys, *columns))}


def compare(source: Source, known: Mapping[str, Known], *, maps_folder: Path | None) -> Changes:
    """Compare a source with an earlier state of it.

    A file of the same size and modification time is unchanged; if only the time differs, its hash
    decides.
    """
    changes = Changes()
    gone = dict(known)
    if not known:
        changes.new = list(source.keys)  # no annotation has to be read for that
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


def _difference(sample: FoundSample, before: Known, maps_folder: Path | None) -> str | None:
    try:
        state = file_state(sample.path)
        if state.nbytes != before.nbytes:
            return "file size changed"
        if (
            state.mtime_ns != before.mtime_ns
            and read_picture(sample.path, sample.key).hash != before.hash
        ):
            return "content changed"
    except (OSError, SourceError):
        return "file is not readable any more"
    if annotation_hash(sample, maps_folder) != before.annotation_hash:
        return "annotation" + (" or map file" if maps_folder is not None else "") + " changed"
    return None


def _counted(count: int, what: str, keys: list[str]) -> str:
    first = ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
    return f"{count} {what}{'' if count == 1 else 's'} ({first})"


# --- whether an interrupted build can be resumed


def name_work(
    work: str,
    views: tuple[View, ...],
    *,
    images: Path | None,
    families: dict[str, str],
    maps_folder: Path | None,
    frames: FrameRule = AUTO_FRAME,
) -> str:
    """Return a token of everything that the result depends on, except the pictures' content.

    The content is recorded with each sample and compared sample by sample.
    """
    described = {
        "work": work,
        "images": None if images is None else os.path.abspath(images),  # noqa: PTH100 - links stay links
        "views": [[view.name, view.recipe.fingerprint] for view in views],
        "decoders": families,
        "maps": None if maps_folder is None else str(maps_folder.absolute()),
        "frames": [frames.asked, frames.ambiguous],
    }
    return json.dumps(described, sort_keys=True)


def why_not(found: Unfinished, token: str, *, in_place: bool) -> str:
    """Return why an interrupted build cannot be resumed by the work `token`; empty if it can."""
    if found.obstacle:
        return found.obstacle
    if found.token != token:
        return _other_work(_described(found.token), _described(token))
    if found.in_place and not in_place:
        return "it was an update in place, and too much has changed for that since"
    if in_place and not found.in_place:
        return "it wrote a new file, and the store can be updated in place now"
    return ""


def describe_interruption(target: Path, work: str) -> str:
    """Return as a sentence what an interrupted `work` ("build", "convert") leaves to resume."""
    found = find_unfinished(target)
    if found is None or _described(found.token).get("work") != work:
        return "Nothing is kept yet: no row group (64 samples, or 128 MB) was complete."
    if found.obstacle:
        return f"It cannot be resumed: {found.obstacle}."
    samples = "1 sample is" if found.samples == 1 else f"{found.samples} samples are"
    return f"{samples} kept; run the same command to resume."


def _described(token: str) -> dict[str, Any]:
    try:
        record = json.loads(token)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _other_work(then: dict[str, Any], now: dict[str, Any]) -> str:
    if then.get("work") != now["work"]:
        return f"it was another operation ({then.get('work', 'of another program')})"
    if now["work"] == "convert":
        return "it read other stores or samples, or wrote other codecs"
    if then.get("images") != now["images"]:
        return f"it used the pictures in {then.get('images') or 'the store'}"
    if then.get("views") != now["views"]:
        return "it used another recipe or other views"
    if then.get("maps") != now["maps"]:
        return f"it imported maps from {then.get('maps') or 'no folder'}"
    if then.get("frames") != now["frames"]:
        return "it took the polygons of pictures with an EXIF rotation as in another frame"
    return "it used other decoders"
