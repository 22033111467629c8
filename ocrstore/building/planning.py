"""Deciding what a build has to do, before it does it: action, views, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocrstore.building.changes import Changes, compare, known_from
from ocrstore.building.unfinished import name_work, why_not
from ocrstore.building.views import IMPORTED, View, check_views, column_shapes, stored_views
from ocrstore.decode import DECODER_FAMILIES, format_by_name
from ocrstore.errors import SchemaError
from ocrstore.format.columns import Column
from ocrstore.format.unfinished import Unfinished, find_unfinished
from ocrstore.sources import Source
from ocrstore.store import Store

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
    families = dict(DECODER_FAMILIES)
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
    decoder_reasons = _decoder_reasons(old, families)
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


def _decoder_reasons(old: Store, families: Mapping[str, str]) -> list[str]:
    build = old.metadata.get("build")
    recorded = build.get("decoders") if isinstance(build, Mapping) else None
    if not isinstance(recorded, Mapping):
        return ["it is not recorded which decoders made the pictures"]
    present = _formats(old)
    return [
        f"{kind} pictures are decoded by {families[kind]} now, not by {family}"
        for kind, family in recorded.items()
        if kind in present and families.get(kind, family) != family
    ]


def _formats(store: Store) -> set[str | None]:
    """Return the formats of a store's pictures; all of them if some names do not tell."""
    problems = store.index["problems"].to_pylist() if "problems" in store.index.column_names else ()
    if any(line.startswith("mislabelled") for lines in problems for line in lines or ()):
        return set(DECODER_FAMILIES)
    return {format_by_name(key) for key in store.keys}


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
