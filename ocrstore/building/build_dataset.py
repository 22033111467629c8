"""Build a data set of many stores: plan the shards, have them made, commit the catalog.

Everything that depends on the whole source is decided once, in the plan. The catalog is written
last, when all shards are there and have been checked.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ocrstore.annotation import AnnotationReader, Problem
from ocrstore.building.build_report import BuildReport, describe_problems
from ocrstore.building.derive import FrameRule
from ocrstore.building.estimate import mean_sample_nbytes
from ocrstore.building.mistaken_source import lost_annotations, not_its_folder
from ocrstore.building.plan import ShardFacts
from ocrstore.building.run import (
    Options,
    attribute_schema,
    describe_source,
    foreign_code,
)
from ocrstore.building.shard import (
    ATTEMPT,
    SHARD,
    Failed,
    Made,
    ShardJob,
    describe_views,
    divide,
    find_shard,
)
from ocrstore.building.shard_workers import run_here
from ocrstore.building.view_size import SAMPLES, Scene, measure_views, spread
from ocrstore.catalog import CATALOG, Catalog, Shard, read_catalog, write_catalog
from ocrstore.decode import DECODER_FAMILIES
from ocrstore.errors import (
    CorruptStoreError,
    SchemaError,
    SourceError,
    StoreExistsError,
    WriteError,
    cannot_write,
)
from ocrstore.format.lock import FileLock
from ocrstore.metadata import build_record, checked_build, diff_json
from ocrstore.problems import loses
from ocrstore.sources import Source
from ocrstore.store import Store
from ocrstore.version import __version__
from ocrstore.views import (
    View,
    bounds_metadata,
    recorded_bounds,
    stored_columns,
    views_metadata,
)

LOCK = ".dataset.lock"
"""Held by builds together, and by `gc` alone; never removed."""
_NAMED = 5

Engine = Callable[[Sequence[ShardJob], Options], Iterator[Made | Failed]]
"""Runs `build_shard` for jobs, somewhere, and yields the results in any order."""


@dataclass(frozen=True, slots=True)
class DatasetRequest:
    """What is to be done with a data set of many stores."""

    folder: Path
    shard_nbytes: int | None
    """About the size of a shard; None: as it was built."""
    part: tuple[int, int] | None = None
    """(3, 16): make the third sixteenth of the shards, and no catalog."""
    commit: bool = False
    """Make no shard: write the catalog if all are there."""

    def mine(self, jobs: Sequence[ShardJob]) -> Sequence[ShardJob]:
        """Return the jobs of the part, or all."""
        number, parts = self.part or (1, 1)
        return jobs[number - 1 :: parts]


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """Which shards a data set will have, and which of them have to be made."""

    target: Path
    source: Source
    views: tuple[View, ...]
    old: Catalog | None
    jobs: tuple[ShardJob, ...]
    """Of every bucket that has pictures, in order."""
    found: Mapping[str, Shard]
    """By bucket: the shards that are there."""
    reasons: tuple[str, ...]
    removed: int
    """Samples of the catalog that the source does not have."""
    mistaken: str
    loses: str
    build: Mapping[str, Any]
    """The record for the catalog, without problems."""
    request: DatasetRequest

    @property
    def unfinished(self) -> None:
        """None: shards are finished, or made again."""
        return

    @property
    def obstacle(self) -> str:
        """Empty: there is nothing to resume."""
        return ""

    def shards_to_json(self) -> dict[str, Any]:
        """Describe which shards there will be, and which have to be made."""
        return {
            "shards": len(self.jobs),
            "sample_nbytes": self.build["sample_nbytes"],
            "shards_to_make": [
                {"bucket": job.bucket, "pictures": len(job.source)} for job in self.waiting
            ],
        }

    @property
    def frames(self) -> FrameRule:
        """How the frame of polygons is chosen."""
        return self.jobs[0].frames

    @property
    def waiting(self) -> list[ShardJob]:
        """The shards to be made, of all or of the part that was asked for."""
        mine = self.request.mine(self.jobs)
        return [job for job in mine if job.force or job.bucket not in self.found]

    @property
    def action(self) -> str:
        """create, update or nothing."""
        if self.old is None:
            return "create"
        same = {shard.name for shard in self.old.shards} == {s.name for s in self.found.values()}
        return "nothing" if same and not self.waiting else "update"


def parts_with_stores(
    source: Source, catalog: Catalog | None
) -> Iterator[tuple[Source, Store | None]]:
    """Yield the parts of a source with the shard that the catalog has for them."""
    shards = {} if catalog is None else {shard.bucket: shard for shard in catalog.shards}
    for bucket, keys in divide(source.keys, shards).items():
        shard = shards.get(bucket)
        if catalog is None or shard is None or not Path(catalog.shard_path(shard)).exists():
            yield source.only(keys), None
        else:
            with Store(catalog.shard_path(shard)) as store:
                yield source.only(keys), store


def plan_dataset(
    source: Source,
    request: DatasetRequest,
    asked: View,
    options: Options,
    *,
    old: Catalog | None,
    force: bool,
    drop_annotations: bool,
    frames: FrameRule,
    maps_folder: Path | None,
) -> DatasetPlan:
    """Decide which shards there will be, and look which are there.

    Everything that depends on the whole source is decided here, once.
    """
    views = (asked,)
    folder = request.folder
    recorded = {} if old is None else checked_build(old.build, f"{old.path}: build")
    shard_nbytes = request.shard_nbytes or recorded.get("shard_nbytes")
    if not shard_nbytes:
        raise SchemaError(f"{folder}: the size of its shards is not known; give --shard-size")
    sample_nbytes = recorded.get("sample_nbytes")
    if (
        old is None
        or not sample_nbytes
        or diff_json(
            describe_views(old.columns, old.metadata),
            describe_views(stored_columns(views), views_metadata(views)),
        )
    ):
        sample_nbytes = mean_sample_nbytes(source, views, max_pixels=options.max_pixels)
    # the same bytes per sample as before, so that a bucket splits only when it gets pictures
    most = max(1, shard_nbytes // max(1, sample_nbytes))
    buckets = [] if old is None else [shard.bucket for shard in old.shards]
    modules, targets = foreign_code(views)
    common = ShardFacts(describe_source(source), attribute_schema(source))
    anew = force and not request.commit
    bases = {} if anew else _bases(folder, old)
    jobs = tuple(
        ShardJob(
            str(folder.absolute()),
            bucket,
            source.alone(keys),
            views,
            common,
            frames,
            maps_folder,
            _base_of(bucket, bases),
            anew,
            options,
            modules,
            targets,
        )
        for bucket, keys in divide(source.keys, buckets, most=most).items()
    )
    found = {
        job.bucket: shard
        for job in request.mine(jobs)
        if job.base is not None and (shard := find_shard(job)) is not None
    }
    removed, mistaken, lost = 0, "", ""
    if old is not None:
        # --force also replaces shards that are damaged
        with suppress(*[CorruptStoreError] if force else []):
            here = set(source.keys)
            removed = sum(key not in here for store in _stores(old) for key in store.keys)
            if removed and removed == len(old) and not force:
                mistaken = not_its_folder(removed, source.images or "these samples")
            if not drop_annotations:
                lost = lost_annotations(_stores(old), source, recorded, what="data set")
    return DatasetPlan(
        folder,
        source,
        views,
        old,
        jobs,
        found,
        _reasons(old, request, jobs, found, removed),
        removed,
        mistaken,
        lost,
        {
            "shard_nbytes": shard_nbytes,
            "sample_nbytes": sample_nbytes,
            "decoders": dict(DECODER_FAMILIES),
            "dialect": source.dialect,
            "polygons_frame": asdict(frames),
            "ocrstore": __version__,
            "source": common.source,
        },
        request,
    )


def _stores(catalog: Catalog) -> Iterator[Store]:
    """Open the shards of a catalog one after the other; what somebody removed is made again."""
    for shard in catalog.shards:
        if Path(catalog.shard_path(shard)).exists():
            with Store(catalog.shard_path(shard)) as store:
                yield store


def _bases(folder: Path, old: Catalog | None) -> dict[str, str]:
    """Return by bucket the shards that are there: of the catalog, else of an interrupted build."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    found = {name.partition("-")[0]: name for name in names if SHARD.fullmatch(name)}
    if "all" in found:
        found[""] = found.pop("all")
    there = set(names)
    for shard in () if old is None else old.shards:
        if shard.name in there:
            found[shard.bucket] = shard.name
    return found


def _base_of(bucket: str, bases: Mapping[str, str]) -> str | None:
    """Return the shard with the pictures of a bucket: its own, or that which was split."""
    prefixes = (bucket[:length] for length in range(len(bucket), -1, -1))
    return next((bases[prefix] for prefix in prefixes if prefix in bases), None)


def _reasons(
    old: Catalog | None,
    request: DatasetRequest,
    jobs: Sequence[ShardJob],
    found: Mapping[str, Shard],
    removed: int,
) -> tuple[str, ...]:
    lines = [] if old else ["there is no catalog yet"]
    mine = request.mine(jobs)
    part = f", {len(mine)} in part {request.part[0]}/{request.part[1]}" if request.part else ""
    lines.append(f"{len(jobs)} shards{part}, {len(found)} of them up to date")
    waiting = [job for job in mine if job.bucket not in found]
    if waiting:
        names = ", ".join(job.bucket or "all" for job in waiting[:_NAMED])
        names += ", ..." if len(waiting) > _NAMED else ""
        pictures = sum(len(job.source) for job in waiting)
        lines.append(f"{len(waiting)} to be made, with {pictures} pictures (buckets {names})")
    if removed:
        lines.append(f"{removed} removed picture{'' if removed == 1 else 's'}")
    return tuple(lines)


# --- the work


def execute_dataset(
    plan: DatasetPlan, options: Options, *, engine: Engine = run_here
) -> BuildReport:
    """Make the shards that are missing, then write the catalog.

    After an interruption what was made stays, and the next call goes on from there.

    Raises:
        StoreExistsError: The source has none of the samples, or no annotations for many of them.
        SourceError: No picture can be used, or with `on_error="fail"` something was left out.
        WriteError: With `commit` shards are missing; or the disk has no room.
        SchemaError: A shard differs from the others.
    """
    started = time.perf_counter()
    if plan.mistaken or plan.loses:
        remedy = "--drop-annotations to remove them"
        if plan.mistaken:
            both = "--force --drop-annotations" if plan.loses else "--force"
            remedy = f"{both} to replace it"
        raise StoreExistsError(
            f"{plan.target}: {plan.mistaken or plan.loses}. Nothing was changed; use {remedy}"
        )
    request, waiting = plan.request, plan.waiting
    if request.commit and waiting:
        names = ", ".join(job.bucket or "all" for job in waiting[:_NAMED])
        raise WriteError(
            f"{plan.target}: {len(waiting)} of {len(plan.jobs)} shards are missing (buckets {names}"
            f"{', ...' if len(waiting) > _NAMED else ''}); nothing was written. The same command "
            "without --commit makes them; so does each --shard-part that did not finish"
        )
    _check_disk_space(plan)
    plan.target.mkdir(parents=True, exist_ok=True)
    lock = FileLock(plan.target / LOCK, create=True, store=plan.target, shared=True)
    try:
        outcomes = list(engine(waiting, options)) if waiting else []
        made = [one for one in outcomes if isinstance(one, Made)]
        failed = [one for one in outcomes if isinstance(one, Failed)]
        shards = dict(plan.found) | {one.shard.bucket: one.shard for one in made}
        report = BuildReport(
            str(plan.target),
            plan.source.description,
            action=plan.action,
            reasons=list(plan.reasons),
            pictures=len(plan.source),
            removed=plan.removed,
            derived=sum(one.derived for one in made),
            problems=[problem for problem in plan.source.problems if problem.key is None],
        )
        scenes = _read_shards(plan, shards, report)
        report.reused = report.samples - report.derived
        report.problems += [
            Problem(
                "shard-failed",
                f"shard {one.bucket or 'all'} not made, so no catalog was written: {one.reason}",
            )
            for one in failed
        ]
        if options.on_error == "fail" and not report.ok:
            first = next(problem for problem in report.problems if loses(problem))
            raise SourceError(
                f"{first.message} ({first.kind}). The shards are kept, and no catalog was written; "
                "fix it and build again, or use --on-error skip"
            )
        if request.part is None and not failed:
            _commit(plan, shards, report, scenes, options)
    finally:
        lock.release()
    report.seconds = time.perf_counter() - started
    return report


def _check_disk_space(plan: DatasetPlan) -> None:
    needed = sum(len(job.source) for job in plan.waiting) * plan.build["sample_nbytes"]
    place = next(p for p in (plan.target.absolute(), *plan.target.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise WriteError(
            f"{plan.target}: the build needs about {needed:,} bytes, and {place} has {free:,} free."
            " Nothing was written; free some space, or choose another disk or --preset small"
        )


def _read_shards(
    plan: DatasetPlan, shards: Mapping[str, Shard], report: BuildReport
) -> dict[str, Scene]:
    """Add what the shards record to the report; check each against the plan.

    Returns:
        Polygons of some samples, by key, to measure the views on.

    Raises:
        SourceError: A shard lacks a picture without a reason.
    """
    keys = plan.source.keys
    measured = {keys[row] for row in spread(len(keys), SAMPLES)}
    scenes = {}
    for job in plan.jobs:
        shard = shards.get(job.bucket)
        if shard is None:
            continue  # of another part
        with Store(plan.target / shard.name) as store:
            recorded = build_record(store).get("problems", {"counts": {}, "first": []})
            problems = [Problem(**problem) for problem in recorded["first"]]
            polygons = AnnotationReader(store).all_polygons()
            there = {key: row for row, key in enumerate(store.keys)}
            for key in measured & there.keys():
                attributes = store.attributes(there[key], as_stored=True)
                scenes[key] = Scene.from_attributes(key, attributes)
        missing = [key for key in job.source.keys if key not in there]
        explained = {problem.key for problem in problems if loses(problem)}
        if len(there) + len(missing) != len(job.source) or (
            not explained.issuperset(missing) and len(problems) == sum(recorded["counts"].values())
        ):
            raise SourceError(
                f"{plan.target / shard.name}: has {len(there)} samples of {len(job.source)} "
                "pictures, and no reason for what is missing; build with --force to make it again"
            )
        report.samples += shard.samples
        report.nbytes += shard.nbytes
        report.shards += 1
        report.polygons += int(polygons.counts.sum())
        report.ignored_polygons += int(polygons.ignored.sum())
        report.problems += problems
        report.skipped += missing
        for name, nbytes in shard.column_nbytes.items():
            report.columns[name] = report.columns.get(name, 0) + nbytes
    report.skipped.sort()
    return scenes


def _commit(
    plan: DatasetPlan,
    shards: Mapping[str, Shard],
    report: BuildReport,
    scenes: Mapping[str, Scene],
    options: Options,
) -> None:
    """Write the catalog, if it says anything new."""
    if not report.samples:
        lost = next((p for p in report.problems if loses(p)), None)
        raise SourceError(
            f"none of the {len(plan.source)} pictures can be used; no catalog was written. "
            f"The first problem: {lost.message if lost else 'unknown'}"
        )
    ordered = tuple(shards[bucket] for bucket in sorted(shards))
    if plan.old is not None and plan.old.shards == ordered:
        report.bounds = recorded_bounds(plan.old.metadata)
    else:
        chosen = [scenes[key] for key in sorted(scenes)]
        report.bounds = measure_views(plan.views, chosen, tell=options.measuring)
    catalog = Catalog(
        str(plan.target.absolute()),
        stored_columns(plan.views),
        {**views_metadata(plan.views), **bounds_metadata(report.bounds)},
        ordered,
        {**plan.build, "problems": describe_problems(report.problems)},
    )
    payload = catalog.to_json()
    report.fingerprint = hashlib.sha256(payload).hexdigest()
    if plan.old is None or (plan.target / CATALOG).read_bytes() != payload:
        write_catalog(catalog)


def collect_garbage(folder: Path, *, dry_run: bool = False) -> dict[str, int]:
    """Remove the shards that the catalog does not name, and what killed attempts left.

    Only files with names that builds give are looked at.

    Returns:
        The names of the files with their bytes.

    Raises:
        NotAStoreError: There is no catalog.
        StoreBusyError: A build is at work.
    """
    place = Path(read_catalog(folder).folder)
    lock = FileLock(place / LOCK, create=True, store=place)
    try:
        named = {shard.name for shard in read_catalog(folder).shards}  # as it is under the lock
        found = {
            path.name: path.stat().st_size
            for path in sorted(place.iterdir())
            if path.name not in named
            and (
                SHARD.fullmatch(path.name)
                or ATTEMPT.fullmatch(path.name)
                or path.name == f".{CATALOG}.partial"
            )
            and path.is_file()
            and not path.is_symlink()
        }
        for name in () if dry_run else found:
            (place / name).unlink()
    except OSError as exc:
        raise cannot_write(str(place), exc) from exc
    finally:
        lock.release()
    return found
