"""Compare two stores by their manifests and indexes: recipes, samples, content."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ocrstore.metadata import diff_json, readable_build
from ocrstore.store import Store
from ocrstore.views import readable_views

# the time of a file is not content
_NOT_COMPARED = {"source_mtime_ns"}


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """The difference in one column or attribute, over the samples that both stores have."""

    name: str
    kind: str
    """column or attribute."""
    state: str
    """same, changed, added, removed, or respecified (another dtype, shape or codec)."""
    changed: int
    """Samples whose rows differ."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs from the first store to the second."""

    one: str
    other: str
    same_content: bool
    """Whether the content fingerprints are equal."""
    recipes: tuple[str, ...]
    """One line for each field that differs."""
    shared: int
    """Samples that both have; columns and attributes are compared over these."""
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    """Samples in both stores of which a row or an attribute differs."""
    reordered: bool
    columns: tuple[ColumnDifference, ...]
    renamed: tuple[tuple[str, str], ...] = ()
    """Pictures of the first store that are in the second under other keys, by their files' hash."""
    build: tuple[str, ...] = ()
    """Differences in source folders, decoders and versions; `any` does not count them."""

    @property
    def any(self) -> bool:
        """Return whether recipes, samples or content differ."""
        return bool(
            self.recipes
            or self.added
            or self.removed
            or self.changed
            or self.reordered
            or any(column.state != "same" for column in self.columns)
        )

    def to_json(self) -> dict[str, Any]:
        """Return it in JSON types."""
        return {"differs": self.any, **asdict(self)}


def compare_stores(one: Store, other: Store) -> Difference:
    """Compare two stores by row hashes and attributes; no payload is read."""
    rows = {key: row for row, key in enumerate(other.keys)}
    ours = set(one.keys)
    shared = [key for key in one.keys if key in rows]
    mine = np.array([row for row, key in enumerate(one.keys) if key in rows], np.int64)
    theirs = np.array([rows[key] for key in shared], np.int64)
    differs = np.zeros(len(shared), np.bool_)
    columns = [*_compare_columns(one, other, mine, theirs, differs)]
    columns += _compare_attributes(one, other, mine, theirs, differs)
    return Difference(
        one=str(one.path),
        other=str(other.path),
        same_content=one.fingerprint == other.fingerprint,
        recipes=tuple(_compare_recipes(one, other)),
        shared=len(shared),
        added=tuple(key for key in other.keys if key not in ours),
        removed=tuple(key for key in one.keys if key not in rows),
        changed=tuple(shared[i] for i in np.flatnonzero(differs).tolist()),
        reordered=bool((np.diff(theirs) < 0).any()),
        columns=tuple(columns),
        renamed=tuple((old, new) for new, old in same_pictures(other, one) if new not in ours),
        build=tuple(_compare_builds(one, other)),
    )


def same_pictures(one: Store, other: Store) -> list[tuple[str, str]]:
    """Return the pictures that are in both stores, by the hash of their files: pairs of keys."""
    for store in (one, other):
        names = store.index.column_names
        if "source_hash" not in names or not pa.types.is_integer(store.index["source_hash"].type):
            return []
    theirs = dict(zip(other.index["source_hash"].to_pylist(), other.keys))
    theirs.pop(None, None)
    ours = zip(one.index["source_hash"].to_pylist(), one.keys)
    return [(key, theirs[digest]) for digest, key in ours if digest in theirs]


def _compare_recipes(one: Store, other: Store) -> list[str]:
    before = {view.name: view for view in readable_views(one)[0]}
    after = {view.name: view for view in readable_views(other)[0]}
    defaults = [
        next((view for view in views.values() if view.default), None) for views in (before, after)
    ]
    lines: list[str] = []
    a, b = defaults
    if a is not None and b is not None and a.name != b.name:
        lines.append(f"default view: {a.name} -> {b.name}")
        lines += [f"default view: {line}" for line in diff_json(a.recipe_json, b.recipe_json)]
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after or name not in before:
            entry = before.get(name) or after[name]
            if not entry.default:
                lines.append(f"view {name}: {'removed' if name in before else 'added'}")
            continue
        found = diff_json(before[name].recipe_json, after[name].recipe_json)
        lines += [f"view {name}: {line}" for line in found]
    if (a is None) != (b is None):
        lines.append(f"recipe: {'removed' if b is None else 'added'}")
    return lines


def _compare_columns(
    one: Store, other: Store, mine: np.ndarray, theirs: np.ndarray, differs: np.ndarray
) -> list[ColumnDifference]:
    found = []
    for name in [*one.columns, *(n for n in other.columns if n not in one.columns)]:
        if name not in other.columns or name not in one.columns:
            state = "removed" if name in one.columns else "added"
            found.append(ColumnDifference(name, "column", state, 0))
            continue
        before, after = one.columns[name], other.columns[name]
        lines = diff_json(before.to_json(), after.to_json())
        a, b = one[name], other[name]
        changed = (a.hashes[mine] != b.hashes[theirs]) | (a.nbytes[mine] != b.nbytes[theirs])
        if a.shapes.shape[1:] == b.shapes.shape[1:]:
            changed |= (a.shapes[mine] != b.shapes[theirs]).any(axis=1)
        else:
            changed[:] = True
        differs |= changed
        state = "respecified" if lines else "changed" if changed.any() else "same"
        found.append(ColumnDifference(name, "column", state, int(changed.sum()), "; ".join(lines)))
    return found


def _compare_attributes(
    one: Store, other: Store, mine: np.ndarray, theirs: np.ndarray, differs: np.ndarray
) -> list[ColumnDifference]:
    before, after = (store.snapshot.index.attributes for store in (one, other))
    found = []
    for name in [*before.names, *(n for n in after.names if n not in before.names)]:
        if name in _NOT_COMPARED:
            continue
        if name not in after.names or name not in before.names:
            state = "removed" if name in before.names else "added"
            found.append(ColumnDifference(name, "attribute", state, 0))
            continue
        kinds = (before.field(name).type, after.field(name).type)
        tables = one.snapshot.index.table, other.snapshot.index.table
        a, b = tables[0][name].take(pa.array(mine)), tables[1][name].take(pa.array(theirs))
        if kinds[0] == kinds[1] and a.equals(b):
            found.append(ColumnDifference(name, "attribute", "same", 0))
            continue
        pairs = zip(a.to_pylist(), b.to_pylist())
        changed = np.array([x != y for x, y in pairs], np.bool_)
        differs |= changed
        retyped = kinds[0] != kinds[1]
        state = "respecified" if retyped else "changed" if changed.any() else "same"
        detail = f"{kinds[0]} -> {kinds[1]}" if retyped else ""
        found.append(ColumnDifference(name, "attribute", state, int(changed.sum()), detail))
    return found


def _compare_builds(one: Store, other: Store) -> list[str]:
    builds = [readable_build(store)[0] for store in (one, other)]
    sources = ({k: b.get("source", {}).get(k) for k in ("images", "annotations")} for b in builds)
    lines = diff_json(*sources)
    names = ("decoders", "dialect", "ocrstore")
    described = ({k: build.get(k) for k in names} for build in builds)
    return lines + (diff_json(*described) if all(builds) else [])
