"""`ocrstore.build`: check the arguments, plan the build, run it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from ocrstore.building.build_dataset import (
    DatasetPlan,
    DatasetRequest,
    Engine,
    execute_dataset,
    parts_with_stores,
    plan_dataset,
)
from ocrstore.building.build_report import BuildReport
from ocrstore.building.frames import decide_rule, recorded_rule
from ocrstore.building.plan import BuildPlan, plan_build
from ocrstore.building.run import Options, Progress, execute
from ocrstore.building.shard_workers import run_here
from ocrstore.building.view_size import AUTO, Tell, choose_size, source_scenes
from ocrstore.catalog import find_catalog, read_catalog
from ocrstore.decode import DEFAULT_MAX_PIXELS
from ocrstore.errors import SchemaError, SourceError
from ocrstore.format.layout import MAX_ROW_NBYTES
from ocrstore.keys import fraction_of
from ocrstore.machine import parse_nbytes
from ocrstore.metadata import checked_build
from ocrstore.pipeline import permit_modules
from ocrstore.recipe import DEFAULT_PRESET, Recipe, read_recipe
from ocrstore.schema import MAPS
from ocrstore.sources import Source
from ocrstore.sources.archives import is_archive
from ocrstore.sources.given import SourceSample, open_or_collect
from ocrstore.store import Store
from ocrstore.targets import TargetFunction, give_targets
from ocrstore.views import IMPORTED, View

_log = logging.getLogger(__name__)

StrPath = str | os.PathLike[str]
Size = int | Sequence[int] | Literal["auto"]


def build(
    images: StrPath | Iterable[SourceSample],
    out: StrPath,
    *,
    annotations: StrPath | None = None,
    format: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    columns_map: Mapping[str, str] | None = None,
    share: tuple[float, float] | None = None,
    recipe: Recipe | StrPath | None = None,
    size: Size | None = None,
    columns: Sequence[str] | None = None,
    preset: str | None = None,
    codecs: dict[str, str] | None = None,
    pipeline: object = None,
    targets: str | TargetFunction | None = None,
    view: str | None = None,
    maps: StrPath | None = None,
    allow_modules: Sequence[str] = (),
    workers: int | None = None,
    on_error: str = "skip",
    force: bool = False,
    drop_annotations: bool = False,
    polygons_frame: str | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    shard_size: int | str | None = None,
    on: str | None = None,
    progress: Progress | None = None,
    announce: Callable[[BuildPlan | DatasetPlan], None] | None = None,
) -> BuildReport:
    """Build a store from pictures, or a data set of many stores, or update an existing one.

    Only new and changed pictures are processed. If the build is interrupted, killed or out of
    disk space, the published store is unchanged, and the same call resumes the build.

    Args:
        images: A folder of pictures, an archive, a list file or parquet files (see `open_source`);
            or any iterable of `SourceSample`, which is iterated once; then not with `annotations`,
            `format`, `include`, `exclude` and `columns_map`.
        out: The store; with `shard_size` the folder of the data set.
        annotations: A file or a folder; searched beside the pictures by default.
        format: The annotations' dialect; detected by default.
        include: Patterns; only pictures whose key matches one are taken.
        exclude: Patterns; pictures whose key matches one are left out.
        columns_map: What is called differently in parquet files; see `open_source`.
        share: Only the pictures whose keys have a hash between the two, from 0 to 1; stable when
            pictures are added. (0, 0.9) and (0.9, 1) are two disjoint parts.
        recipe: A Recipe or a recipe file, instead of `size` and `pipeline`.
        size: Longest side, or (height, width), or "auto": the smallest that allows 0.98 of the
            H-mean that full size allows; the plan's reasons say which, and why.
        columns: Names of the columns; all, or those of the recipe, by default.
        preset: How columns are stored, where neither recipe nor `codecs` say so: "fast" (raw:
            batches are views of the file), "balanced" (maps compressed, pictures as their files) or
            "small" (everything compressed). All are exact. A new store is "balanced" by default,
            an existing one keeps its codecs.
        codecs: Column to codec, if not that of the preset or the recipe.
        pipeline: A deterministic albumentations pipeline, instead of `size`.
        targets: The function that draws the targets in place of DBNet's maps, or its name
            `module:function`. It has to be given each time: a name that the store or a recipe file
            records is not imported.
        view: Name of the default view; its size by default.
        maps: A folder or archive of npz or npy files with maps to import.
        allow_modules: Modules besides albumentations whose transforms a serialised pipeline may
            name, in a recipe file or in the store; they are imported. No other code is run.
        workers: Number of worker processes; 0 for none, all cores by default.
        on_error: "skip" leaves out what cannot be used and reports it, "fail" stops there.
        force: Rebuild from scratch, ignoring the existing store and any interrupted build.
        drop_annotations: Remove the polygons of pictures for which the source has no annotation
            now; without it that is an error if they are more than one and more than 10 %, or
            if no picture would keep any.
        polygons_frame: The frame in which polygons of pictures with an EXIF rotation are: "raw" or
            "upright", or "auto", where the evidence of the whole source decides. Polygons that
            fit one of the two only are in that one. By default as the store was built, else
            "auto".
        max_pixels: Larger pictures are refused before they are decoded.
        shard_size: Write many stores of about so many bytes (or "512MB") and a catalog of them. An
            existing data set keeps its size.
        on: "ray" makes the shards by tasks of a Ray cluster: the one that RAY_ADDRESS names, one
            that runs on this machine, or a new one on this machine; "ray:HOST:PORT" names another.
        progress: Called after each sample.
        announce: Called with the plan before the work.

    Raises:
        SourceError: The source cannot be opened, none of its pictures can be used, most polygons
            lie outside of their pictures (unless `format` is given), `polygons_frame` has to be
            given, or with `on_error="fail"` something cannot be used.
        SchemaError: The arguments contradict each other.
        StoreExistsError: The folder has none of the store's samples, or no annotations for many.
        StoreBusyError: Another process is writing.
        WriteError: The disk has no room for the store, or is full.
        WorkerDiedError: A worker was killed, for example by the OOM killer.
    """
    permit_modules(allow_modules)
    made = make_recipe(recipe, size, columns, codecs, pipeline, targets, preset)
    # pictures that are no files are kept in one until the store is complete
    spool = Path(out).with_name(f".{Path(out).name}.samples")
    try:
        source = open_or_collect(
            images,
            spool,
            annotations=annotations,
            format=format,
            include=include,
            exclude=exclude,
            columns_map=columns_map,
        )
        plan, options = prepare(
            source if share is None else part_of(source, share),
            out,
            recipe=made,
            told=codecs or {} if recipe is None and preset is None else None,
            auto_size=size == AUTO,
            view=view,
            maps=maps,
            workers=workers,
            on_error=on_error,
            force=force,
            drop_annotations=drop_annotations,
            polygons_frame=polygons_frame,
            max_pixels=max_pixels,
            default_columns=recipe is None and columns is None,
            trust_dialect=format is not None,
            dataset=dataset_request(out, shard_size),
        )
        if announce is not None:
            announce(plan)
        return carry_out(plan, replace(options, progress=progress), on=on)
    finally:
        spool.unlink(missing_ok=True)


def carry_out(
    plan: BuildPlan | DatasetPlan, options: Options, *, on: str | None = None
) -> BuildReport:
    """Carry out a plan: of one store, or of a data set of many, which may be made on a cluster."""
    engine = _engine(on)
    if isinstance(plan, DatasetPlan):
        return execute_dataset(plan, options, engine=engine)
    if on is not None:
        raise SchemaError(f"on={on!r}: a cluster makes shards; give --shard-size, too")
    return execute(plan, options)


def _engine(on: str | None) -> Engine:
    """Return what runs the tasks of a build: this machine, "ray", or "ray:ADDRESS"."""
    name, _, address = (on or "").partition(":")
    if name not in ("", "ray"):
        raise SchemaError(f"on={on!r}: expected 'ray' or 'ray:HOST:PORT'")
    if not name:
        return run_here
    from ocrstore.building.on_ray import run_on_ray

    return partial(run_on_ray, address=address or None)


def dataset_request(
    out: StrPath,
    shard_size: int | str | None,
    *,
    part: tuple[int, int] | None = None,
    commit: bool = False,
) -> DatasetRequest | None:
    """Return what is asked for if `out` is a data set of many stores, or has to become one.

    Raises:
        SchemaError: The size is none, or `out` is a store.
    """
    path = Path(out)
    if shard_size is None and find_catalog(path) is None:
        if part is not None or commit:
            raise SchemaError(
                f"{path}: no data set yet: give --shard-size, with the same size in every part"
            )
        return None
    if path.is_file() or path.suffix == ".ocrs":
        raise SchemaError(
            f"{path}: a store, not a data set of many: name a folder for them, or leave out the "
            "shard size"
        )
    return DatasetRequest(
        path, None if shard_size is None else parse_nbytes(shard_size), part, commit
    )


def part_of(source: Source, share: tuple[float, float]) -> Source:
    """Return the pictures whose keys have a hash in a range of [0, 1).

    Raises:
        SourceError: There is none.
    """
    low, high = share
    keys = {key for key in source.keys if low <= fraction_of(key) < high}
    if not keys:
        raise SourceError(
            f"{source.description}: no key has a hash from {low:g} to {high:g}; give a larger share"
        )
    return source.only(keys)


def make_recipe(
    recipe: Recipe | StrPath | None,
    size: Size | None,
    columns: Sequence[str] | None,
    codecs: dict[str, str] | None,
    pipeline: object = None,
    targets: str | TargetFunction | None = None,
    preset: str | None = None,
) -> Recipe:
    """Return the recipe, or make one from the other arguments; size "auto" is chosen later."""
    codecs_of = preset or DEFAULT_PRESET
    if recipe is None:
        if size == AUTO and pipeline is None:
            size = None
        if isinstance(size, str):
            raise SchemaError(f"size has to be an int, (height, width) or 'auto', not {size!r}")
        made = Recipe.make(
            size=size,
            columns=columns,
            preset=codecs_of,
            codecs=codecs,
            pipeline=pipeline,
            targets=targets,
        )
    elif size is not None or pipeline is not None:
        raise SchemaError("size and pipeline are part of a recipe; give either a recipe or those")
    elif isinstance(recipe, Mapping):
        raise SchemaError("recipe: expected a Recipe or a file; Recipe.from_json(...) makes one")
    elif isinstance(recipe, Recipe):
        drawn = "DBNet's maps" if recipe.targets is None else recipe.targets.function
        if targets is not None and give_targets(targets) != drawn:
            raise SchemaError(f"the recipe is of {drawn}; make one with Recipe.make(targets=...)")
        if preset is not None:
            raise SchemaError("a Recipe has codecs already; leave out `preset`")
        made = recipe
    else:
        made = read_recipe(Path(recipe), targets=targets, preset=codecs_of)
    if recipe is not None and (columns is not None or codecs is not None):
        made = made.with_columns(columns, codecs, preset=codecs_of)
    if "jpeg" in [column.codec for column in made.columns]:
        raise SchemaError(
            "codec jpeg is only read, because it has no place for other pictures; codec file "
            "stores the files of all formats"
        )
    return made


def prepare(
    source: Source,
    out: StrPath,
    *,
    recipe: Recipe,
    view: str | None,
    maps: StrPath | None,
    workers: int | None,
    on_error: str,
    force: bool,
    drop_annotations: bool,
    max_pixels: int,
    told: Mapping[str, str] | None = None,
    auto_size: bool = False,
    polygons_frame: str | None = None,
    default_columns: bool = False,
    trust_dialect: bool = False,
    measuring: Tell | None = None,
    dataset: DatasetRequest | None = None,
) -> tuple[BuildPlan | DatasetPlan, Options]:
    """Check the arguments, choose what they leave open, plan the build; writes nothing.

    With `default_columns` nobody asked for columns: maps are left out if there is no annotation.
    """
    if on_error not in ("skip", "fail"):
        raise SchemaError(f"on_error has to be 'skip' or 'fail', not {on_error!r}")
    if workers is not None and (not isinstance(workers, int) or workers < 0):
        raise SchemaError(f"workers has to be an int of 0 or more, not {workers!r}")
    if view is not None and not isinstance(view, str):
        raise SchemaError(f"view has to be a name, not {view!r}")
    if recipe.pipeline is not None:
        from ocrstore.pipeline import albumentations_version, check_deterministic

        check_deterministic(recipe.pipeline)
        recipe = replace(recipe, made_with=recipe.made_with or albumentations_version())
    folder = None if maps is None else Path(maps)
    if folder is not None:
        if not folder.is_dir() and not is_archive(folder):
            raise SourceError(f"{folder}: no such folder or archive of map files")
        if recipe.targets is not None:
            raise SchemaError("map files hold DBNet's maps; give either --maps or --targets")
        recipe = replace(recipe, map_algorithm=f"{IMPORTED}, else {recipe.map_algorithm}")
    _log.info("%s", source.description)
    chosen: list[str] = []
    catalog = None
    if dataset is not None and find_catalog(out) is not None:
        catalog = read_catalog(out)
    there = Path(out).exists() if dataset is None else catalog is not None
    fresh = force or not there  # an existing store keeps its columns
    if fresh and default_columns and folder is None and not source.has_annotations:
        recipe = replace(recipe, columns=tuple(c for c in recipe.columns if c.name not in MAPS))
        chosen.append("no annotations, so no maps; --columns makes empty ones")
    if fresh:
        frames, why = decide_rule([(source, None)], polygons_frame or "auto")
    elif catalog is not None:
        rule = checked_build(catalog.build, f"{catalog.path}: build").get("polygons_frame", {})
        asked_frame = polygons_frame or rule.get("asked", "auto")
        frames, why = decide_rule(parts_with_stores(source, catalog), asked_frame)
    else:
        # its rows passed the --max-pixels of another build
        with Store(out, max_row_nbytes=MAX_ROW_NBYTES) as old:
            asked_frame = polygons_frame or recorded_rule(old).asked
            frames, why = decide_rule([(source, old)], asked_frame)
    if auto_size:
        scenes = source_scenes(source, max_pixels=max_pixels, frames=frames)
        side, because = choose_size(recipe, scenes, tell=measuring)
        recipe = recipe.resized(side)
        chosen.append(because)
    chosen += [why] if why else []
    options = Options(workers, on_error, max_pixels, trust_dialect=trust_dialect)
    if catalog is not None and told is not None and not force:
        codecs = {name: column.codec for name, column in catalog.columns.items()}
        recipe = recipe.with_codecs({**codecs, **told})
    if catalog is not None:  # recipes have no order, stores have: new shards are as the old ones
        order = {name: place for place, name in enumerate(catalog.columns)}
        columns = sorted(recipe.columns, key=lambda c: order.get(c.name, len(order)))
        recipe = replace(recipe, columns=tuple(columns))
    asked = View(view or recipe.view_name, recipe, default=True)
    if dataset is not None:
        shards = plan_dataset(
            source,
            dataset,
            asked,
            options,
            old=catalog,
            force=force,
            drop_annotations=drop_annotations,
            frames=frames,
            maps_folder=folder,
        )
        return replace(shards, reasons=(*chosen, *shards.reasons)), options
    plan = plan_build(
        source,
        Path(out),
        asked,
        force=force,
        maps_folder=folder,
        drop_annotations=drop_annotations,
        frames=frames,
        told=told,
    )
    return replace(plan, reasons=(*chosen, *plan.reasons)), options
