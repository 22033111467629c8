"""`ocrstore.build`: pictures and annotations become a store, or bring one up to date."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ocrstore.building.attributes import ATTRIBUTES, stored_problems
from ocrstore.building.changes import Changes, compare, known_from
from ocrstore.building.cpus import usable_cpus
from ocrstore.building.derive import Derived, Job, JPEGBytes, Task
from ocrstore.building.kinds import loses
from ocrstore.building.planning import BuildPlan, plan_build
from ocrstore.building.pool import Inline, Pool
from ocrstore.building.report import BuildReport
from ocrstore.building.views import IMPORTED, View, views_metadata
from ocrstore.decode import DEFAULT_MAX_PIXELS
from ocrstore.errors import SchemaError, SourceError
from ocrstore.format.columns import Encoded
from ocrstore.format.layout import MAX_KEY_NBYTES
from ocrstore.format.writer import Writer, append, create
from ocrstore.recipe import Recipe, read_recipe
from ocrstore.sample import Problem
from ocrstore.sources import Source, open_source
from ocrstore.store import Store
from ocrstore.version import __version__

FEW = 24
"""Up to this many samples are derived in this process: starting workers would take longer."""


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build is."""

    done: int
    total: int
    lost: int
    """Problems so far by which something was left out."""
    notes: int
    """Other things worth knowing so far."""


Progress = Callable[[BuildProgress], None]
StrPath = str | os.PathLike[str]


def build(
    images: StrPath,
    out: StrPath,
    *,
    annotations: StrPath | None = None,
    format: str | None = None,
    recipe: Recipe | StrPath | None = None,
    size: int | Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    codecs: dict[str, str] | None = None,
    pipeline: object = None,
    view: str | None = None,
    maps: StrPath | None = None,
    workers: int | None = None,
    on_error: str = "skip",
    force: bool = False,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    progress: Progress | None = None,
    announce: Callable[[BuildPlan], None] | None = None,
) -> BuildReport:
    """Build a store from a folder of pictures, or bring an existing one up to date.

    `recipe` is a Recipe or a recipe file; or say `size`, `columns`, `codecs`, or an albumentations
    `pipeline`. Only what changed is done. Interrupted, killed or out of disk space: nothing that
    was published changes, and the same call goes on where it stopped. `workers=0` does everything
    in this process; without it all cores are used. `announce` is called with the plan before the
    work, `progress` with how far it is. Pictures that cannot be used are skipped and reported, or
    with `on_error="fail"` end the build with a SourceError.
    """
    plan, options = prepare(
        images,
        out,
        annotations=annotations,
        format=format,
        recipe=make_recipe(recipe, size, columns, codecs, pipeline),
        view=view,
        maps=maps,
        workers=workers,
        on_error=on_error,
        force=force,
        max_pixels=max_pixels,
    )
    if announce is not None:
        announce(plan)
    return execute(plan, replace(options, progress=progress))


@dataclass(frozen=True, slots=True)
class Options:
    """How to do it; nothing here changes what comes out."""

    workers: int | None = None
    on_error: str = "skip"
    max_pixels: int = DEFAULT_MAX_PIXELS
    progress: Progress | None = None


def make_recipe(
    recipe: Recipe | StrPath | None,
    size: int | Sequence[int] | None,
    columns: Sequence[str] | None,
    codecs: dict[str, str] | None,
    pipeline: object,
) -> Recipe:
    """Make the one recipe of what was given in several ways."""
    if recipe is None:
        return Recipe.make(size=size, columns=columns, codecs=codecs, pipeline=pipeline)
    if size is not None or columns is not None or codecs is not None or pipeline is not None:
        raise SchemaError(
            "a recipe says everything; leave out size, columns, codecs and pipeline, or put them "
            "into the recipe"
        )
    return recipe if isinstance(recipe, Recipe) else read_recipe(Path(recipe))


def prepare(
    images: StrPath,
    out: StrPath,
    *,
    annotations: StrPath | None,
    format: str | None,
    recipe: Recipe,
    view: str | None,
    maps: StrPath | None,
    workers: int | None,
    on_error: str,
    force: bool,
    max_pixels: int,
) -> tuple[BuildPlan, Options]:
    """Look at everything and decide what to do; nothing is written."""
    if on_error not in ("skip", "fail"):
        raise SchemaError(f"on_error is 'skip' or 'fail', not {on_error!r}")
    if workers is not None and workers < 0:
        raise SchemaError(f"workers is 0 or more, not {workers}")
    if recipe.pipeline is not None:
        from ocrstore.determinism import check_deterministic

        check_deterministic(recipe.pipeline)
    folder = None if maps is None else Path(maps)
    if folder is not None:
        if not folder.is_dir():
            raise SourceError(f"{folder}: no such folder of map files")
        recipe = replace(recipe, map_algorithm=f"{IMPORTED}, else {recipe.map_algorithm}")
    source = open_source(images, annotations=annotations, format=format)
    asked = View(view or recipe.view_name, recipe, default=True)
    plan = plan_build(source, Path(out), asked, force=force, maps_folder=folder)
    return plan, Options(workers, on_error, max_pixels)


def execute(plan: BuildPlan, options: Options) -> BuildReport:
    """Do what a plan says."""
    run = _Run(plan, options)
    run.start()
    if plan.action == "update":
        run.update()
    elif plan.action != "nothing":
        run.write_anew()
    return run.finish()


class _Run:
    """One build on its way."""

    def __init__(self, plan: BuildPlan, options: Options) -> None:
        self.plan = plan
        self.options = options
        self.source: Source = plan.source
        self.report = BuildReport(
            str(plan.target),
            plan.source.description,
            action=plan.action,
            reasons=list(plan.reasons),
            pictures=len(plan.source),
        )
        self._started = time.perf_counter()
        self._lost = 0
        self._done = 0
        self._total = 0

    def start(self) -> None:
        """Take note of what concerns the source as a whole."""
        self._note(self.source.problems)

    def update(self) -> None:
        """Change samples of a store in place; all changes appear together."""
        plan, changes = self.plan, self.plan.changes
        assert plan.old is not None
        self._note_unchanged(changes, plan.old)
        self.report.reused = len(changes.unchanged)
        self.report.removed = len(changes.removed)
        work = {*changes.new, *changes.changed}
        self._total = len(work)
        with append(plan.target, action="build") as writer:
            for key in changes.removed:
                writer.delete(key)
            items = [(key, None) for key in self.source.keys if key in work]
            self._write(writer, items, known=set(changes.changed))
            writer.reorder(self.source.keys)
            self._describe(writer)

    def write_anew(self) -> None:
        """Write a whole store beside the target, resuming what an interrupted build left."""
        plan = self.plan
        writer = create(
            plan.target,
            plan.columns,
            attributes=ATTRIBUTES,
            overwrite=plan.target.exists(),
            resume=plan.token,
            action="build",
        )
        with writer:
            table = writer.resumed_attributes()
            found = compare(self.source, known_from(table), maps_folder=plan.maps_folder)
            for key in found.removed:
                writer.delete(key)
            self._note_unchanged(found, table)
            self.report.resumed = self.report.reused = len(found.unchanged)
            self.report.removed = len(plan.changes.removed)
            reusable = plan.changes.unchanged if plan.reuses else {}
            items = [
                (key, reusable.get(key)) for key in self.source.keys if key not in found.unchanged
            ]
            self._done, self._total = len(found.unchanged), len(self.source)
            self._write(writer, items, known=set(found.changed))
            if not len(writer):
                raise SourceError(
                    f"none of the {len(self.source)} pictures could be used, so no store was "
                    f"written; the first reason: {self._first_reason()}"
                )
            writer.reorder(self.source.keys)
            self._describe(writer)

    def finish(self) -> BuildReport:
        """Complete the report from the store as it is now."""
        report = self.report
        with Store(self.plan.target) as store:
            report.samples = len(store)
            lengths = [len(flags) for flags in store.index["ignored"].to_pylist()]
            report.polygons = sum(lengths)
            report.ignored_polygons = sum(sum(f) for f in store.index["ignored"].to_pylist())
            report.columns = {name: int(store[name].nbytes.sum()) for name in store.columns}
            report.nbytes = store.snapshot.mapping.nbytes
            report.fingerprint = store.fingerprint
            there = set(store.keys)
        report.skipped = [key for key in self.source.keys if key not in there]
        report.seconds = time.perf_counter() - self._started
        return report

    def _write(
        self, writer: Writer, items: Sequence[tuple[str, int | None]], *, known: set[str]
    ) -> None:
        """Derive or copy samples in order, and write them; `known` ones are in the file already."""
        plan = self.plan
        copy_only = not plan.rederived
        job = Job(
            plan.views,
            stored_views=plan.rederived,
            max_pixels=self.options.max_pixels,
            maps_folder=plan.maps_folder,
            store=plan.target if plan.old is not None else None,
        )
        waiting = [item for item in items if not (item[1] is not None and copy_only)]
        with _deriver(job, len(waiting), self.options.workers) as deriver:
            outcomes = deriver.derive_all(self._tasks(waiting))
            for key, row in items:
                if row is not None and copy_only:
                    self._copy(writer, key, row)
                else:
                    _, outcome = next(outcomes)
                    self._take(writer, key, row, outcome, known)
                self._done += 1
                self._tell()

    def _tasks(self, items: Sequence[tuple[str, int | None]]) -> Iterator[Task]:
        for key, row in items:
            sample = self.source[key]
            self._note(sample.problems)
            yield Task(sample, row)

    def _take(
        self,
        writer: Writer,
        key: str,
        row: int | None,
        outcome: Derived | Problem,
        known: set[str],
    ) -> None:
        if isinstance(outcome, Derived) and len(key.encode()) > MAX_KEY_NBYTES:
            message = f"its path has {len(key.encode())} bytes, a key has {MAX_KEY_NBYTES} at most"
            outcome = Problem("bad-key", message, key=key)
        if isinstance(outcome, Problem):
            self._note([outcome])
            if key in known:
                writer.delete(key)  # what the store has of it is not what the source has
            return
        self._note(outcome.problems)
        arrays: dict[str, Any] = {
            name: Encoded(value.data, value.shape) if isinstance(value, JPEGBytes) else value
            for name, value in outcome.columns.items()
        }
        attributes = outcome.attributes
        if row is not None:
            arrays |= self._stored_arrays(row)
        write = writer.replace if key in known else writer.append
        write(key, arrays, attributes=attributes)
        self.report.derived += 1

    def _copy(self, writer: Writer, key: str, row: int) -> None:
        assert self.plan.old is not None
        self._note(self.source[key].problems)
        attributes = self.plan.old.attributes(row)
        self._note(stored_problems(key, attributes))
        writer.append(key, self._stored_arrays(row), attributes=attributes)
        self.report.reused += 1

    def _stored_arrays(self, row: int) -> dict[str, Any]:
        """Take what is still good of a sample from the old store, without copying."""
        old = self.plan.old
        assert old is not None
        arrays: dict[str, Any] = {}
        for name in self.plan.copied:
            column = old[name]
            if column.spec.codec == "jpeg":
                shape = tuple(column.shapes[row].tolist())
                arrays[name] = Encoded(bytes(column.stored(row)), shape)
            else:
                arrays[name] = column[row]
        return arrays

    def _note_unchanged(self, changes: Changes, recorded: Any) -> None:
        """Report what is known about samples that are not made again."""
        table = recorded.index if isinstance(recorded, Store) else recorded
        for problems in changes.problems.values():
            self._note(problems)
        if "problems" not in table.column_names:
            return
        found = zip(table["key"].to_pylist(), table["problems"].to_pylist(), strict=True)
        for key, lines in found:
            if lines and key in changes.unchanged:
                self._note(stored_problems(key, {"problems": lines}))

    def _note(self, problems: Sequence[Problem]) -> None:
        for problem in problems:
            self.report.problems.append(problem)
            if loses(problem):
                self._lost += 1
                if self.options.on_error == "fail":
                    where = f"{problem.key}: " if problem.key else ""
                    raise SourceError(
                        f"{where}{problem.message} ({problem.kind}). What is done is kept; put it "
                        "right and build again, or let it be reported with --on-error skip"
                    )

    def _first_reason(self) -> str:
        lost = [problem for problem in self.report.problems if loses(problem)]
        return f"{lost[0].key}: {lost[0].message}" if lost else "unknown"

    def _tell(self) -> None:
        if self.options.progress is not None:
            notes = len(self.report.problems) - self._lost
            self.options.progress(BuildProgress(self._done, self._total, self._lost, notes))

    def _describe(self, writer: Writer) -> None:
        """Say in the manifest how the store was made."""
        plan = self.plan
        writer.metadata.update(views_metadata(plan.views))
        writer.metadata["build"] = {
            "decoders": dict(plan.families or {}),
            "dialect": self.source.dialect,
            "ocrstore": __version__,
        }


def _deriver(job: Job, samples: int, workers: int | None) -> Inline | Pool:
    wanted = usable_cpus() if workers is None else workers
    if wanted == 0 or (workers is None and samples <= FEW):
        return Inline(job)
    return Pool(job, workers=max(1, min(wanted, samples)))
