"""Carry out a build's plan: derive or copy samples, write them, resume, report."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from ocrstore.annotation import AnnotationReader, Problem, ReadableFile
from ocrstore.building.build_report import BuildReport, describe_problems, stored_problems
from ocrstore.building.derive import AUTO_FRAME, Derived, FrameRule, Job, Task
from ocrstore.building.estimate import check_disk_space
from ocrstore.building.plan import BuildPlan, Changes, compare, known_from, own_attributes
from ocrstore.building.view_size import SAMPLES, Scene, Tell, measure_views, spread
from ocrstore.building.workers import Inline, Pool
from ocrstore.decode import DEFAULT_MAX_PIXELS
from ocrstore.errors import SchemaError, SourceError, StoreBusyError, StoreExistsError, WriteError
from ocrstore.format.layout import MAX_KEY_NBYTES
from ocrstore.format.lmdb_update import drop_unfinished
from ocrstore.format.writer import Writer, create, edit
from ocrstore.keys import shown
from ocrstore.machine import usable_cpus
from ocrstore.metadata import build_record
from ocrstore.problems import loses
from ocrstore.sources import Source, all_dialects
from ocrstore.store import Store
from ocrstore.version import __version__
from ocrstore.views import View, bounds_metadata, recorded_bounds, views_metadata

_log = logging.getLogger(__name__)

DOUBTFUL_POLYGONS = 20
DOUBTFUL_PICTURES = 8
"""From so many polygons on, in so many pictures or in all of them, a build stops if more than half
lie outside of their pictures: the annotations are read wrongly."""

FEW = 24
"""Up to this many samples are derived in this process; starting workers would take longer."""


ATTRIBUTES = pa.schema(
    [
        ("width", pa.int32()),  # of the upright picture
        ("height", pa.int32()),
        ("orientation", pa.int8()),  # EXIF orientation of the file
        ("annotated", pa.bool_()),  # False: no annotation for this picture
        ("polygons", pa.list_(pa.list_(pa.float32()))),  # x, y, x, y, ... in the upright frame
        ("ignored", pa.list_(pa.bool_())),
        ("texts", pa.list_(pa.string())),
        ("languages", pa.list_(pa.string())),
        ("source_nbytes", pa.int64()),
        ("source_mtime_ns", pa.int64()),
        ("source_hash", pa.uint64()),  # xxh3_64 of the picture's file
        ("annotation_hash", pa.uint64()),  # xxh3_64 of the annotation as the source gave it
        ("problems", pa.list_(pa.string())),  # "kind: message", from deriving the sample
    ]
)


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """Progress of a build."""

    done: int
    total: int
    lost: int
    """Problems so far that left something out."""
    notes: int
    """Other problems so far."""


Progress = Callable[[BuildProgress], None]


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a build; none of it changes the result."""

    workers: int | None = None
    on_error: str = "skip"
    max_pixels: int = DEFAULT_MAX_PIXELS
    trust_dialect: bool = False
    """The user named the dialect: polygons outside of their pictures are no reason to stop."""
    progress: Progress | None = None
    measuring: Tell | None = None
    """Called while views are measured, after the samples."""


def execute(plan: BuildPlan, options: Options) -> BuildReport:
    """Carry out a plan.

    Raises:
        StoreExistsError: The source has none of the store's samples, or no annotations for many of
            them: probably the wrong folder, or annotations that were not found.
        SourceError: No picture can be used, most polygons lie outside of their pictures, or with
            `on_error="fail"` something was left out.
        WriteError: The disk has no room for it, by an estimate before the work, or is full.
        WorkerDiedError: A worker process was killed. Finished row groups are kept.
    """
    if plan.mistaken:
        remedy = "--force --drop-annotations" if plan.loses else "--force"
        raise StoreExistsError(
            f"{plan.target}: {plan.mistaken} Nothing was changed; use {remedy} to replace the store"
        )
    if plan.loses:
        raise StoreExistsError(
            f"{plan.target}: {plan.loses}. Nothing was changed; use --drop-annotations (in Python "
            "drop_annotations=True) to remove them"
        )
    check_disk_space(plan, max_pixels=options.max_pixels)
    _log.info("%s: %s", plan.target, "; ".join((plan.action, *plan.reasons)))
    run = _Run(plan, options)
    run.start()
    if plan.action == "update":
        run.update()
    elif plan.action == "nothing":
        run.keep()
    else:
        run.write_new_file()
    return run.finish()


class _Run:
    """A running build."""

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
            discarded=discarded(plan.unfinished.samples, plan.obstacle) if plan.unfinished else "",
        )
        self._sources: dict[str, tuple[int, int]] = {}
        keys = self.source.keys
        self._measured = dict.fromkeys(keys[row] for row in spread(len(keys), SAMPLES))
        """The samples on which views are measured, in order."""
        self._scenes: dict[str, Scene] = {}
        self._started = time.perf_counter()
        self._polygons = self._outside = self._annotated = 0  # of samples derived in this run
        self._lost = 0
        self._done = 0
        self._total = 0

    def start(self) -> None:
        """Record the problems of the source as a whole."""
        self._note(self.source.problems)

    def keep(self) -> None:
        """Leave the store unchanged, and report what is known about it."""
        assert self.plan.old is not None
        self._keep(self.plan.changes, self.plan.old.index)
        self.report.bounds = recorded_bounds(self.plan.old.metadata)
        self.report.reused = len(self.plan.changes.unchanged)
        try:
            drop_unfinished(self.plan.target)
        except (StoreBusyError, WriteError):
            self.report.discarded = ""  # kept: a writer is active, or the file is read-only
        else:
            self._record_source()

    def _record_source(self) -> None:
        """Update the record of the source where no sample changed.

        Otherwise `inspect` would report a bad picture that was removed, or annotations that were
        touched, for ever. Views that were never measured are.
        """
        assert self.plan.old is not None
        recorded = build_record(self.plan.old)
        if "source" not in recorded:
            return
        source, problems = describe_source(self.source), describe_problems(self.report.problems)
        age = "annotations_mtime_ns"
        frames = asdict(self.plan.frames)
        measured = bool(self.report.bounds)
        if not measured:  # the build was of a version that did not, or there are no polygons
            self._measure_views(self.plan.old.keys)
        same = (
            recorded["source"].get(age) == source[age]
            and recorded.get("problems") == problems
            and recorded.get("polygons_frame", asdict(AUTO_FRAME)) == frames
            and measured == bool(self.report.bounds)
        )
        if same:
            return
        with (
            suppress(StoreBusyError, WriteError),  # the record stays as it was
            edit(self.plan.target, action="build") as writer,
        ):
            writer.metadata["build"] = {
                **recorded,
                "source": source,
                "problems": problems,
                "polygons_frame": frames,
            }
            writer.metadata.update(bounds_metadata(self.report.bounds))

    def update(self) -> None:
        """Update the store in place, resuming an interrupted update; published atomically."""
        plan, changes = self.plan, self.plan.changes
        assert plan.old is not None
        with edit(plan.target, action="build", resume=plan.token) as writer:
            table = writer.resumed_attributes()
            resumed = known_from(table)
            found = compare(self.source, resumed, maps_folder=plan.maps_folder)
            for key in sorted({*changes.removed, *found.removed}):
                writer.delete(key)
            # the interrupted run may have derived a picture that has changed back since
            kept = changes.without(resumed)
            self._keep(kept, plan.old.index)
            self._keep(found, table)
            self._count_resumed(writer, found)
            self.report.reused = len(kept.unchanged) + len(found.unchanged)
            self.report.removed = len(changes.removed)
            there = kept.unchanged.keys() | found.unchanged.keys()
            items = [(key, None) for key in self.source.keys if key not in there]
            self._done = len(found.unchanged)
            self._total = self._done + len(items)
            self._write(writer, items)
            writer.reorder(self.source.keys)
            self._describe(writer)

    def write_new_file(self) -> None:
        """Write a new file beside the target and rename it, resuming an interrupted build."""
        plan = self.plan
        writer = create(
            plan.target,
            plan.columns,
            attributes=plan.shard.schema if plan.shard else attribute_schema(plan.source),
            overwrite=plan.target.exists(),
            resume=None if plan.shard else plan.token,
            start_over=plan.force,
            action="build",
        )
        with writer:
            table = writer.resumed_attributes()
            found = compare(self.source, known_from(table), maps_folder=plan.maps_folder)
            for key in found.removed:
                writer.delete(key)
            self._keep(found, table)
            self._count_resumed(writer, found)
            self.report.reused = len(found.unchanged)
            self.report.removed = len(plan.changes.removed)
            reusable = plan.changes.unchanged if plan.reuses else {}
            items = [
                (key, reusable.get(key)) for key in self.source.keys if key not in found.unchanged
            ]
            self._done, self._total = len(found.unchanged), len(self.source)
            self._write(writer, items)
            if not len(writer) and plan.shard is None:
                raise SourceError(
                    f"none of the {len(self.source)} pictures can be used; no store was "
                    f"written. The first problem: {self._first_reason()}"
                )
            writer.reorder(self.source.keys)
            self._describe(writer)
            if plan.old is not None:
                plan.old.close()  # Windows cannot replace a file that is mapped

    def finish(self) -> BuildReport:
        """Complete the report with facts of the published store."""
        report = self.report
        with Store(self.plan.target) as store:
            report.samples = len(store)
            polygons = AnnotationReader(store).all_polygons()
            report.polygons = int(polygons.counts.sum())
            report.ignored_polygons = int(polygons.ignored.sum())
            report.columns = {name: int(store[name].nbytes.sum()) for name in store.columns}
            report.nbytes = store.snapshot.mapping.nbytes
            report.fingerprint = store.fingerprint
            there = set(store.keys)
        report.skipped = [key for key in self.source.keys if key not in there]
        report.seconds = time.perf_counter() - self._started
        return report

    def _count_resumed(self, writer: Writer, found: Changes) -> None:
        """Report how many samples of an interrupted run are used, and how many are not."""
        plan = self.plan
        self.report.resumed = len(found.unchanged)
        if plan.unfinished is not None and not plan.obstacle:
            damaged = plan.unfinished.samples - writer.resumed
            if damaged > 0:
                self.report.discarded = discarded(damaged, "they are damaged")

    def _write(self, writer: Writer, items: Sequence[tuple[str, int | None]]) -> None:
        """Write samples in order; those with a row are copied, or derived from the old store."""
        plan = self.plan
        copy_only = not plan.rederived
        job = Job(
            plan.views,
            stored_views=plan.rederived,
            max_pixels=self.options.max_pixels,
            maps_folder=plan.maps_folder,
            frames=plan.frames,
            store=None if plan.old is None else Path(plan.old.path),
            encode=plan.columns,
        )
        waiting = [item for item in items if not (item[1] is not None and copy_only)]
        _log.info("%d samples to derive, %d to copy", len(waiting), len(items) - len(waiting))
        with deriver(job, len(waiting), self.options.workers) as workers:
            outcomes = workers.derive_all(self._tasks(waiting))
            for key, row in items:
                if row is not None and copy_only:
                    self._copy(writer, key, row)
                else:
                    self._take(writer, key, row, next(outcomes)[1])
                self._done += 1
                self._tell()
                if self._annotated >= DOUBTFUL_PICTURES:
                    self._doubt()
        self._doubt()

    def _tasks(self, items: Sequence[tuple[str, int | None]]) -> Iterator[Task]:
        for key, row in items:
            sample = self.source[key]
            self._note(sample.problems)
            yield Task(sample, row)

    def _take(self, writer: Writer, key: str, row: int | None, outcome: Derived | Problem) -> None:
        if isinstance(outcome, Derived) and len(key.encode()) > MAX_KEY_NBYTES:
            message = f"its path has {len(key.encode())} bytes, the limit is {MAX_KEY_NBYTES}"
            outcome = Problem("bad-key", message, key=key)
        if isinstance(outcome, Problem):
            self._note([outcome])
            if key in writer:
                writer.delete(key)  # the stored sample is of an earlier state of the file
            return
        _log.debug("derived %s", key)
        self._note(outcome.problems)
        self._polygons += len(outcome.attributes["polygons"])
        self._annotated += bool(outcome.attributes["polygons"])
        self._outside += sum(problem.kind == "polygon-outside" for problem in outcome.problems)
        arrays: dict[str, Any] = dict(outcome.columns)
        attributes = outcome.attributes
        if row is not None:
            arrays |= self._stored_arrays(row)
        write = writer.replace if key in writer else writer.append
        write(key, arrays, attributes=attributes)
        self._remember(key, attributes)
        self.report.derived += 1

    def _copy(self, writer: Writer, key: str, row: int) -> None:
        assert self.plan.old is not None
        self._note(self.source[key].problems)
        attributes = self.plan.old.attributes(row, as_stored=True)
        self._note(stored_problems(key, attributes))
        writer.append(key, self._stored_arrays(row), attributes=attributes)
        self._remember(key, attributes)
        self.report.reused += 1

    def _remember(self, key: str, attributes: Mapping[str, Any]) -> None:
        """Keep what the manifest needs of a sample."""
        self._sources[key] = (attributes["source_hash"], attributes["annotation_hash"])
        if key in self._measured:
            self._scenes[key] = Scene.from_attributes(key, attributes)

    def _stored_arrays(self, row: int) -> dict[str, Any]:
        """Return the columns of a sample that are still valid, without copying them."""
        old = self.plan.old
        assert old is not None
        return {name: old[name].encoded(row) for name in self.plan.copied}

    def _keep(self, changes: Changes, table: pa.Table) -> None:
        """Record hashes and problems of samples that are not derived again."""
        known = known_from(table)
        for key in changes.unchanged:
            self._sources[key] = (known[key].hash, known[key].annotation_hash)
            if key in self._measured:
                row = table.slice(known[key].row, 1)
                self._scenes[key] = Scene.from_attributes(key, row.to_pylist()[0])
        for problems in changes.problems.values():
            self._note(problems)
        if "problems" not in table.column_names:
            return
        # a resumed table may have several rows for a sample; the last one is valid
        last = dict(zip(table["key"].to_pylist(), table["problems"].to_pylist(), strict=True))
        for key, lines in last.items():
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
                        f"{where}{problem.message} ({problem.kind}). Finished row groups are kept; "
                        "fix it and build again, or use --on-error skip"
                    )

    def _doubt(self) -> None:
        """Stop if most polygons lie outside of their pictures and nobody named the dialect."""
        if self._polygons < DOUBTFUL_POLYGONS or 2 * self._outside <= self._polygons:
            return
        if self.options.trust_dialect:
            return
        dialect = self.source.dialect
        names = ", ".join(known.name for known in all_dialects() if known.name != dialect)
        raise SourceError(
            f"{self._outside} of {self._polygons} polygons lie wholly outside of their pictures, "
            f"so the annotations are probably not {dialect}, belong to other pictures, or have "
            f"coordinates of another size ({self.source.description}). Give other --annotations, "
            f"pictures of the size that was annotated, or another --format ({names}); if all is "
            f"right, confirm it with --format {dialect}"
        )

    def _first_reason(self) -> str:
        lost = [problem for problem in self.report.problems if loses(problem)]
        return f"{lost[0].key}: {lost[0].message}" if lost else "unknown"

    def _tell(self) -> None:
        if self.options.progress is not None:
            notes = len(self.report.problems) - self._lost
            self.options.progress(BuildProgress(self._done, self._total, self._lost, notes))

    def _measure_views(self, stored: Collection[str]) -> None:
        """Measure what the views allow, on samples that are stored; not of each shard alone."""
        if self.plan.shard is not None:
            return
        there = set(stored)
        scenes = [self._scenes[key] for key in self._measured if key in there]
        self.report.bounds = measure_views(self.plan.views, scenes, tell=self.options.measuring)

    def _describe(self, writer: Writer) -> None:
        """Record in the manifest how the store was built."""
        plan = self.plan
        self._measure_views(writer.keys)
        writer.metadata.update(views_metadata(plan.views))
        if plan.shard is None:
            writer.metadata.update(bounds_metadata(self.report.bounds))
        decoders = dict(plan.families or {})
        recipes = [view.recipe.fingerprint for view in plan.views]
        writer.metadata["build"] = {
            "fingerprint": build_fingerprint(recipes, decoders, self._sources, plan.frames),
            "decoders": decoders,
            "dialect": self.source.dialect,
            "polygons_frame": asdict(plan.frames),
            "ocrstore": __version__,
            "source": plan.shard.source if plan.shard else describe_source(self.source),
            "problems": describe_problems(self.report.problems),
        }


def discarded(samples: int, obstacle: str) -> str:
    """Return the message about an interrupted build that is not resumed; empty if it is."""
    if not obstacle:
        return ""
    return f"{samples} sample{'' if samples == 1 else 's'} of an interrupted run: {obstacle}"


def deriver(job: Job, samples: int, workers: int | None) -> Inline | Pool:
    """Return worker processes, or for few samples a replacement that runs in this process.

    Raises:
        SchemaError: A view's pipeline cannot be made, or not in another process.
    """
    modules, targets = foreign_code((*job.views, *job.stored_views))
    job = replace(job, modules=modules, targets=targets)
    wanted = usable_cpus() if workers is None else workers
    if wanted == 0 or samples == 0 or (workers is None and samples <= FEW):
        return Inline(job)
    if "__main__" in (*job.modules, *(name.partition(":")[0] for name in job.targets)):
        raise SchemaError(
            "a transform of the pipeline, or the function of the targets, is defined in the script "
            "itself, which worker processes cannot import: move it to a module, or use workers=0"
        )
    return Pool(job, workers=max(1, min(wanted, samples)))


def foreign_code(views: Sequence[View]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the modules of the views' pipelines, and the functions that draw their targets.

    Raises:
        SchemaError: The user did not permit one, or it cannot be used: one error here instead of
            one for every picture.
    """
    modules: set[str] = set()
    functions: set[str] = set()
    for described in {view.recipe.pipeline for view in views}:
        if described is not None:
            from ocrstore.pipeline import Pipeline, foreign_modules

            Pipeline(described)
            modules |= set(foreign_modules(described))
    for targets in {view.recipe.targets for view in views}:
        if targets is not None:
            targets.require()
            functions.add(targets.function)
    return tuple(sorted(modules)), tuple(sorted(functions))


def build_fingerprint(
    recipes: Sequence[str],
    decoders: Mapping[str, str],
    sources: Mapping[str, tuple[int, int]],
    frames: FrameRule = AUTO_FRAME,
) -> str:
    """Hash everything that a store's content depends on.

    Args:
        recipes: Fingerprints of the recipes, which cover the map algorithm.
        decoders: Picture format to decoder family.
        sources: Key to the hashes of file and annotation.
        frames: How the frame of polygons was chosen; `auto` depends on the sources alone.
    """
    digest = xxhash.xxh3_128()
    if frames.asked != "auto":
        digest.update(frames.asked.encode())
    digest.update(json.dumps([list(recipes), dict(decoders)], sort_keys=True).encode())
    for key in sorted(sources):
        digest.update(json.dumps([key, *sources[key]]).encode())
    return digest.hexdigest()


def describe_source(source: Source) -> dict[str, Any]:
    """Return where the pictures and annotations are, for the manifest."""
    files = source.annotation_files
    return {
        "description": source.description,
        "images": None if source.images is None else _recorded(source.images),
        "pictures": len(source),
        "annotations": _common_place(files),
        "annotation_files": len(files),
        "annotations_mtime_ns": max((_mtime_ns(path) for path in files), default=0),
    }


def _recorded(path: ReadableFile) -> str:
    """Return an absolute path as valid Unicode: bytes that do not decode are escaped."""
    absolute = os.path.abspath(path)  # noqa: PTH100 - links stay links
    return absolute.encode("utf-8", "backslashreplace").decode()


def attribute_schema(source: Source) -> pa.Schema:
    """Return the attributes of every build, and those that the samples have of their own.

    Raises:
        SourceError: A name is taken, or the values of an attribute have no common type.
    """
    schema = ATTRIBUTES
    for name in sorted(own_attributes(source)):
        if name in ATTRIBUTES.names or name == "key":
            raise SourceError(f"attributes: {name!r} is a name of ocrstore's own; choose another")
        values = [values.get(name) for values in source.attributes.values()]
        try:
            schema = schema.append(pa.field(name, pa.array(values).type))
        except (pa.ArrowException, OverflowError, TypeError) as exc:
            raise SourceError(_no_common_type(source, name, exc)) from exc
    return schema


def _no_common_type(source: Source, name: str, exc: Exception) -> str:
    """Say which sample's value of an attribute does not go with that of the first sample."""
    given = [(key, own[name]) for key, own in source.attributes.items() if name in own]
    first = next(((key, value) for key, value in given if value is not None), given[0])
    for key, value in given:
        try:
            pa.array([first[1], value])
        except (pa.ArrowException, OverflowError, TypeError) as own:
            return (
                f"attributes: {name!r} of sample {shown(key)} is {value!a:.60}, of "
                f"{shown(first[0])} {first[1]!a:.60}: {own}; values have to be of one type"
            )
    return f"attributes: the values of {name!r} have no type in common: {exc}"


def _common_place(files: tuple[ReadableFile, ...]) -> str | None:
    """Return the only file, or the folder that contains all files."""
    if not files:
        return None
    paths = [_recorded(path) for path in files]
    if len(paths) == 1:
        return paths[0]
    try:
        return os.path.commonpath(paths)
    except ValueError:  # on different drives
        return str(Path(paths[0]).parent)


def _mtime_ns(path: ReadableFile) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
