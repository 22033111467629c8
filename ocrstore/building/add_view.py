"""Add a view to an existing store, from the pictures in it; other columns stay untouched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ocrstore.annotation import Problem
from ocrstore.building.build import Size, StrPath, make_recipe
from ocrstore.building.build_report import stored_problems
from ocrstore.building.derive import Derived, Job, Task, largest_picture, stored_sample
from ocrstore.building.frames import recorded_rule
from ocrstore.building.plan import name_work, why_not
from ocrstore.building.run import deriver, discarded
from ocrstore.building.view_size import AUTO, choose_size, measure_views, stored_scenes
from ocrstore.decode import DECODER_FAMILIES, DEFAULT_MAX_PIXELS
from ocrstore.errors import SchemaError, SourceError, StoreBusyError, WriteError
from ocrstore.format.column_writer import ColumnWriter
from ocrstore.format.lmdb_update import drop_unfinished
from ocrstore.format.resume import find_unfinished
from ocrstore.keys import shown
from ocrstore.pipeline import permit_modules
from ocrstore.recipe import Recipe
from ocrstore.schema import IMAGE, VIEW_COLUMNS
from ocrstore.sources import Source, open_source
from ocrstore.store import Store
from ocrstore.targets import TargetFunction
from ocrstore.views import (
    View,
    ViewBound,
    bounds_metadata,
    built_views,
    check_views,
    recorded_bounds,
    stored_columns,
    views_metadata,
)


@dataclass(slots=True)
class AddedView:
    """The result of adding a view."""

    store: str
    view: str
    samples: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    """Stored bytes of each new column; empty if the view existed already."""
    resumed: int = 0
    """Samples that come from an interrupted run."""
    discarded: str = ""
    """What of an interrupted build was discarded, and why."""
    problems: list[Problem] = field(default_factory=list)
    chosen: str = ""
    """Which size was chosen for `size="auto"`, and why."""
    bound: ViewBound | None = None
    """The accuracy that the view allows; None if there are no polygons."""
    seconds: float = 0.0


def add_view(
    path: StrPath,
    *,
    recipe: Recipe | StrPath | None = None,
    size: Size | None = None,
    columns: Sequence[str] | None = None,
    preset: str | None = None,
    codecs: dict[str, str] | None = None,
    pipeline: object = None,
    targets: str | TargetFunction | None = None,
    view: str | None = None,
    allow_modules: Sequence[str] = (),
    images: StrPath | None = None,
    annotations: StrPath | None = None,
    format: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    columns_map: Mapping[str, str] | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AddedView:
    """Add a view to a store, derived from the pictures in it; no other column is touched.

    If the call is interrupted, killed or out of disk space, the store is unchanged, and the same
    call resumes.

    Args:
        path: The store.
        recipe: As in `build`; so are `size`, `columns`, `codecs`, `pipeline`, `targets`,
            `allow_modules` and `workers`.
        preset: As in `build`; by default columns have the codecs of the default view's.
        view: Name of the view, the prefix of its columns; its size by default.
        images: The folder of pictures, for a store without its `image` column. The files have
            to be those the store was built from. `annotations` and `format` as in `build`.
        progress: Called with (done, total) after each sample.

    Raises:
        SchemaError: The store has another view of that name, or no views at all.
        SourceError: The pictures are missing, changed, or cannot be used with this recipe.
    """
    started = time.perf_counter()
    target = Path(path)
    permit_modules(allow_modules)
    if columns is None and recipe is None and targets is None:
        columns = VIEW_COLUMNS
    made = _without_image(make_recipe(recipe, size, columns, codecs, pipeline, targets, preset))
    with Store(target) as store:
        before = built_views(store)
        if not before:
            raise SchemaError(f"{target} was not built from pictures; views cannot be added")
        if recipe is None and preset is None:
            stored = {column.name: column.codec for column in before[0].recipe.columns}
            made = made.with_codecs(stored | (codecs or {}))
        chosen = ""
        if size == AUTO:
            side, chosen = choose_size(made, stored_scenes(store))
            made = made.resized(side)
        added = View(view or made.view_name, made, default=False)
        result = AddedView(str(target), added.name, len(store), chosen=chosen)
        same = [v for v in before if v.name == added.name]
        if same and same[0].recipe.fingerprint == made.fingerprint:
            with suppress(StoreBusyError, WriteError):
                drop_unfinished(target, if_useless=True)
            result.seconds = time.perf_counter() - started
            return result
        if same:
            changed = "; ".join(same[0].recipe.diff(made))
            raise SchemaError(
                f"{target} already has a view {added.name} with another recipe ({changed}); "
                "name the new one with --view"
            )
        views = check_views((*before, added))
        specs = stored_columns((added,))
        source = None
        if images is not None:
            source = open_source(
                images,
                annotations=annotations,
                format=format,
                include=include,
                exclude=exclude,
                columns_map=columns_map,
            )
        elif IMAGE not in store.columns:
            raise SourceError(
                f"{target} has no pictures (no column `image`); give their folder with --source"
            )
        token = name_work(
            "add-view",
            (added,),
            images=None if images is None else Path(images),
            families={} if images is None else dict(DECODER_FAMILIES),
            maps_folder=None,
        )
        found = find_unfinished(target)
        if found is not None:
            result.discarded = discarded(found.samples, why_not(found, token, in_place=True))
        bounds = recorded_bounds(store.metadata) | measure_views((added,), stored_scenes(store))
        result.bound = bounds.get(added.name)
        metadata = {**store.metadata, **views_metadata(views), **bounds_metadata(bounds)}
        with ColumnWriter(
            target, specs, metadata=metadata, resume=token, action="add-view"
        ) as writer:
            if writer.generation != store.generation:
                raise StoreBusyError(f"{target} was changed by another process. Run it again.")
            _Work(store, added, source, result, workers, progress).write(writer)
    with Store(target) as store:
        result.columns = {name: int(store[name].nbytes.sum()) for name in specs}
    result.seconds = time.perf_counter() - started
    return result


@dataclass(frozen=True, slots=True)
class _Work:
    store: Store
    view: View
    source: Source | None
    result: AddedView
    workers: int | None
    progress: Callable[[int, int], None] | None

    def write(self, writer: ColumnWriter) -> None:
        """Write the view's rows in order, starting behind those of an interrupted run."""
        job = Job((self.view,), encode=writer.columns)
        if self.source is None:
            job = replace(job, stored_views=(self.view,), store=Path(self.store.path))
        else:
            # every picture of the store passed --max-pixels when it was built
            limit = max(DEFAULT_MAX_PIXELS, largest_picture(self.store))
            job = replace(job, max_pixels=limit, frames=recorded_rule(self.store))
        if "source_hash" not in self.store.index.column_names:
            raise SchemaError(
                f"{self.store.path} does not record which files its samples were made from "
                "(attribute source_hash); build it again"
            )
        hashes = self.store.index["source_hash"].to_pylist()
        total, start = len(self.store), writer.resumed
        self.result.resumed = start
        for key, lines in writer.resumed_remarks.items():
            self.result.problems.extend(stored_problems(key, {"problems": lines}))
        with deriver(job, total - start, self.workers) as workers:
            for row, (task, outcome) in enumerate(workers.derive_all(self._tasks(start)), start):
                key = task.sample.key
                if isinstance(outcome, Problem):
                    raise SourceError(
                        f"{key}: {outcome.message} ({outcome.kind}). A view needs every sample; "
                        "choose another recipe, or build the store without this picture"
                    )
                if outcome.attributes["source_hash"] != hashes[row]:
                    raise SourceError(
                        f"{key}: the file changed since the store was built; update the store "
                        "with `ocrstore build` first"
                    )
                self._require_same_polygons(row, outcome)
                self.result.problems.extend(outcome.problems)
                remarks = [f"{problem.kind}: {problem.message}" for problem in outcome.problems]
                writer.add(outcome.columns, remarks=remarks)
                if self.progress is not None:
                    self.progress(row + 1, total)

    def _require_same_polygons(self, row: int, outcome: Derived) -> None:
        """Refuse annotations of another state than the stored one: maps are drawn from them."""
        if self.source is None:
            return
        stored = self.store.attributes(row, as_stored=True)
        here = [polygon.tolist() for polygon in outcome.attributes["polygons"]]
        flags = list(outcome.attributes["ignored"])
        if here != stored.get("polygons") or flags != stored.get("ignored"):
            raise SourceError(
                f"{shown(outcome.key)}: {len(here)} polygons in the source, "
                f"{len(stored.get('polygons') or ())} in the store, or others. Give the "
                "annotations that the store was built with (--annotations), or update the store "
                "with `ocrstore build` first"
            )

    def _tasks(self, start: int) -> Iterator[Task]:
        for row, key in enumerate(self.store.keys[start:], start):
            if self.source is None:
                yield Task(stored_sample(self.store, row), row)
            else:
                yield Task(self.source[key])


def _without_image(recipe: Recipe) -> Recipe:
    kept = tuple(column for column in recipe.columns if column.name != IMAGE)
    if not kept:
        raise SchemaError("a further view needs a column besides `image`, such as tensor")
    return replace(recipe, columns=kept)
