"""`ocrstore build`, with `--dry-run`: the plan, sizes in every codec, what fits disk and memory."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ocrstore.cli.console import (
    TARGET,
    allow_module_option,
    console,
    counted,
    explain_missing,
    fail,
    human_bytes,
    is_quiet,
    print_bound,
    print_json,
    shown,
)
from ocrstore.cli.options import recipe_options, source_options, stored_view, wrong_source
from ocrstore.cli.transfer import NewPlace, SourcePlace, build_and_push
from ocrstore.errors import OCRStoreError
from ocrstore.format.layout import DEFAULT_MAX_ROW_NBYTES
from ocrstore.machine import look_at_memory

if TYPE_CHECKING:
    from ocrstore.building.build import Size
    from ocrstore.building.build_dataset import DatasetPlan
    from ocrstore.building.build_report import BuildReport
    from ocrstore.building.estimate import Advice, Estimate
    from ocrstore.building.plan import BuildPlan
    from ocrstore.building.run import BuildProgress
    from ocrstore.building.run import Progress as Tell
    from ocrstore.building.view_size import Tell as Measuring
    from ocrstore.sources import Source
    from ocrstore.views import View


def describe(plan: BuildPlan | DatasetPlan, *, max_pixels: int) -> dict[str, Any]:
    """Return what a build would do and the expected sizes, for json.dumps."""
    from ocrstore.building.view_size import measure_views, source_scenes

    expected, advice, free = _measure(plan, max_pixels)
    scenes = source_scenes(plan.source, max_pixels=max_pixels, frames=plan.frames)
    bounds = measure_views(plan.views, scenes)
    return {
        "store": str(plan.target),
        "action": plan.action,
        "reasons": list(plan.reasons),
        "mistaken": plan.mistaken,
        "loses": plan.loses,
        "samples": expected.samples,
        "columns": expected.columns,
        "nbytes": expected.total_nbytes,
        "codecs": {name: dict(sizes) for name, sizes in expected.nbytes.items()},
        "presets": {name: dataclasses.asdict(cost) for name, cost in expected.presets.items()},
        "free_nbytes": free,
        "upper_bounds": {name: dataclasses.asdict(bound) for name, bound in bounds.items()},
        "page_cache": {**dataclasses.asdict(advice), "command": advice.command},
        "unfinished": None
        if plan.unfinished is None
        else {**plan.unfinished.to_json(), "obstacle": plan.obstacle},
        **plan.shards_to_json(),
    }


def print_expected(plan: BuildPlan | DatasetPlan, *, max_pixels: int) -> None:
    """Print the expected sizes, and whether disk and page cache have room for them."""
    from ocrstore.building.view_size import measure_views, source_scenes

    out = console()
    if plan.mistaken:
        out.print(f"  [yellow]![/] {shown(plan.mistaken)} a build without --force would be refused")
    if plan.loses:
        out.print(
            f"  [yellow]![/] {shown(plan.loses)}; a build without --drop-annotations would be "
            "refused"
        )
    expected, advice, free = _measure(plan, max_pixels)
    _print_sizes(expected)
    room = "enough" if free > expected.total_nbytes else "[red]not enough[/]"
    folder = shown(plan.target.absolute().parent)
    out.print(f"disk     {human_bytes(free)} free in {folder}: {room}")
    _print_advice(advice)
    with _bar(quiet=False) as (_, measuring):
        scenes = source_scenes(plan.source, max_pixels=max_pixels, frames=plan.frames)
        bounds = measure_views(plan.views, scenes, tell=measuring)
    for name, bound in bounds.items():
        print_bound(name, bound)
    out.print("nothing was written")


def _measure(plan: BuildPlan | DatasetPlan, max_pixels: int) -> tuple[Estimate, Advice, int]:
    from ocrstore.building.estimate import advise, estimate

    expected = estimate(plan.source, plan.views, max_pixels=max_pixels)
    free = shutil.disk_usage(plan.target.absolute().parent).free
    return expected, advise(expected, look_at_memory()), free


def _print_sizes(expected: Estimate) -> None:
    out = console()
    codecs = list(dict.fromkeys(codec for sizes in expected.nbytes.values() for codec in sizes))
    codecs.remove("lz4")  # within a few bytes of lz4block, and the table is wide
    table = Table("column", "codec", "bytes", *(f"as {c}" for c in codecs), box=None)
    for name, nbytes in expected.columns.items():
        sizes = expected.nbytes[name]
        others = [human_bytes(sizes[codec]) if codec in sizes else "" for codec in codecs]
        table.add_row(shown(name), expected.chosen[name], human_bytes(nbytes), *others)
    out.print(table)
    out.print(
        f"expected [bold]{human_bytes(expected.total_nbytes)}[/] for "
        f"{counted(expected.samples, 'picture')} (measured on {expected.measured})"
    )
    from ocrstore.recipe import DEFAULT_PRESET

    costs = Table("preset", "bytes", "to a batch", "to transform=", "", box=None)
    for preset, cost in expected.presets.items():
        costs.add_row(
            f"--preset {preset}",
            human_bytes(cost.nbytes),
            f"{1e3 * cost.batch_seconds:.2f} ms",
            f"{1e3 * cost.picture_seconds:.2f} ms",
            "(default)" if preset == DEFAULT_PRESET else "",
        )
    out.print(costs)
    out.print(
        "to a batch: copying or decoding a sample on one core; with fast, sequential batches are "
        "views and need no copy. To transform=: decoding its whole picture for augmentation.",
        style="dim",
    )


def _print_advice(advice: Advice) -> None:
    from ocrstore.building.estimate import HEADROOM

    out = console()
    memory = advice.memory
    out.print(
        f"memory   {human_bytes(memory.available_nbytes)} of {human_bytes(memory.total_nbytes)} "
        f"available ({memory.limited_by}); a store may take {HEADROOM:.0%} of it, "
        f"{human_bytes(advice.limit_nbytes)}"
    )
    if advice.fits_as_asked:
        out.print("[green]✓[/] fits the page cache with these codecs")
        return
    out.print("[yellow]![/] does not fit the page cache; to make it smaller:")
    for step in advice.steps:
        out.print(f"  · {shown(step)}")
    verdict = "fits" if advice.fits_as_advised else "still does not fit"
    out.print(f"  with that it {verdict}: {human_bytes(advice.advised_nbytes)}")
    out.print(f"  {shown(advice.command)}")
    if not advice.fits_as_advised:
        out.print("  also choose a smaller --size, or read from a fast disk", style="dim")


_SHOWN = 5


def _parts(
    _: click.Context, __: click.Parameter, value: str | None
) -> dict[str, tuple[float, float]] | None:
    """Parse `train=0.9,val=0.1` into ranges of [0, 1]."""
    if value is None:
        return None
    ranges: dict[str, tuple[float, float]] = {}
    end = 0.0
    try:
        for part in value.split(","):
            name, _sign, share = part.strip().partition("=")
            start, end = end, round(end + float(share), 9)
            if not name or set(name) & set("/\\") or name in ranges or not start < end <= 1:
                raise ValueError
            ranges[name] = (start, end)
    except ValueError:
        raise click.BadParameter(
            f"{value!r}: expected names with shares of at most 1 in all, as in train=0.9,val=0.1."
        ) from None
    return ranges


def _shard_part(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Parse `3/16`."""
    if value is None:
        return None
    number, _sign, parts = value.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise click.BadParameter(f"{value!r}: expected a part of all, from 1/16 to 16/16.")
    return int(number), int(parts)


@click.command("build")
@click.argument("source", type=SourcePlace(path_type=Path))
@click.option(
    "--out",
    required=True,
    type=NewPlace(),
    help="The store to create or update; with --shard-size the folder of the data set; or a URL.",
)
@click.option(
    "--shard-size",
    metavar="SIZE",
    help="Write many stores of about this size, for example 512MB, and a catalog of them "
    "(dataset.json). An existing data set keeps its size.",
)
@click.option(
    "--shard-part",
    callback=_shard_part,
    metavar="I/N",
    help="Make only the I-th of N parts of the shards, and no catalog: for several machines.",
)
@click.option(
    "--commit",
    is_flag=True,
    help="Make no shard; write the catalog if all are there, else say which are missing.",
)
@click.option(
    "--on",
    metavar="ray[:HOST:PORT]",
    help="Make the shards on a Ray cluster: RAY_ADDRESS, one on this machine, or this address.",
)
@source_options
@click.option(
    "--split",
    callback=_parts,
    metavar="PARTS",
    help="Build several stores, by a hash of the keys: train=0.9,val=0.1; --out is their folder.",
)
@recipe_options
@allow_module_option
@click.option(
    "--maps",
    type=click.Path(path_type=Path),
    help="Folder or archive of maps to import: <stem>.npz, or <stem>.prob_map.npy and so on.",
)
@click.option(
    "--workers", type=click.IntRange(0), help="Number of worker processes; all cores by default."
)
@click.option(
    "--on-error",
    type=click.Choice(["skip", "fail"]),
    default="skip",
    show_default=True,
    help="Skip and report pictures and polygons that cannot be used, or stop at the first.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Rebuild from scratch, ignoring the existing store with its recipe, and any interrupted "
    "build.",
)
@click.option(
    "--drop-annotations",
    is_flag=True,
    help="Remove the polygons of pictures that have no annotation any more, however many.",
)
@click.option(
    "--polygons-frame",
    type=click.Choice(["auto", "raw", "upright"]),
    help="Frame of the polygons of pictures with an EXIF rotation: raw, upright, or auto: by the "
    "evidence of the whole source [default: as the store was built, else auto].",
)
@click.option(
    "--max-pixels",
    type=click.IntRange(1),
    default=DEFAULT_MAX_ROW_NBYTES // 3,
    show_default=True,
    help="Largest picture to decode, in pixels.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Write nothing; show what would be done, sizes in every codec, and what fits in memory.",
)
@click.option("--report", type=TARGET, help="Write the report to a JSON file.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def build_command(
    source: Path,
    out: Path | str,
    annotations: Path | None,
    format_: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    columns_map: dict[str, str],
    split: dict[str, tuple[float, float]] | None,
    **options: Any,
) -> int:
    """Build a store from pictures, or update an existing one.

    SOURCE is a folder; a tar or zip archive, or several ("shots-{000..031}.tar"), WebDataset shards
    included; a list file (a path a line); a parquet file, or a folder of them; or the URL of one.

    Annotations are searched beside the pictures and beside the folder, and their dialect is
    detected. Only new, changed and removed pictures are processed, unless the recipe changed.
    Without --size, --columns, --preset, --codec and --recipe an existing store keeps its recipe.
    After an interruption (Ctrl-C, kill, full disk) the same command resumes; an existing store is
    replaced only when the build is complete (on Windows nobody may have it open then).

    \b
    Examples:
      ocrstore build images/ --out val.ocrs
      ocrstore build images/ --annotations gt/ --out val.ocrs --size 960
      ocrstore build images/ --out val.ocrs --size auto
      ocrstore build images/ --out val.ocrs --preset small
      ocrstore build images/ --out val.ocrs --columns tensor,prob_map,inverse_matrix
      ocrstore build images/ --out val.ocrs --recipe recipe.yaml --report report.json
      ocrstore build "shots-{000..031}.tar" --out train.ocrs
      ocrstore build train.lst --out train.ocrs --format mymodule:MyDialect
      ocrstore build data.parquet --out val.ocrs --columns-map text=label
      ocrstore build images/ --out val.ocrs --include "val/*" --drop-annotations
      ocrstore build images/ --out val.ocrs --targets mypackage.psenet:kernels
      ocrstore build images/ --out stores/ --split train=0.9,val=0.1
      ocrstore build images/ --out train/ --shard-size 512MB
      ocrstore build images/ --out train/ --shard-size 512MB --on ray
      ocrstore build s3://bucket/images/ --out s3://bucket/train/
      ocrstore build images/ --out val.ocrs --dry-run

    Exit code 1 if anything was left out; the report lists it.
    """
    with explain_missing("build", "build"):
        from ocrstore.building.build import part_of
        from ocrstore.catalog import find_catalog
        from ocrstore.sources import open_source
    with wrong_source():
        opened = open_source(
            source,
            annotations=annotations,
            format=format_,
            include=include,
            exclude=exclude,
            columns_map=columns_map,
        )
    options["trust_dialect"] = format_ is not None
    if options["shard_part"] is not None and options["commit"]:
        raise click.UsageError("--commit comes after all parts; leave out --shard-part.")
    if isinstance(out, str):
        if split is not None:
            raise click.UsageError("--split needs a folder; push the stores afterwards.")
        return build_and_push(out, lambda *at, **how: _build(opened, *at, **how), options)
    if split is None:
        return _build(opened, out, **options)
    if options["report"] is not None:
        raise click.UsageError("--report is one file; leave it out with --split.")
    if out.exists() and not out.is_dir():
        raise click.UsageError(f"--out {out} is a file; with --split it is a folder for stores.")
    parts = {}
    for name, share in split.items():  # all before the first is built
        with wrong_source():
            parts[name] = part_of(opened, share)
    if not options["dry_run"]:
        out.mkdir(parents=True, exist_ok=True)
    code = 0
    for name, part in parts.items():
        many = options["shard_size"] is not None or find_catalog(out / name) is not None
        code = max(code, _build(part, out / (name if many else f"{name}.ocrs"), **options))
        if code > 1:
            break
    return code


def _build(
    source: Source,
    out: Path,
    *,
    trust_dialect: bool,
    size: Size | None,
    columns: list[str] | None,
    preset: str | None,
    codecs: dict[str, str],
    recipe: Path | None,
    targets: str | None,
    view: str | None,
    maps: Path | None,
    workers: int | None,
    on_error: str,
    force: bool,
    drop_annotations: bool,
    polygons_frame: str | None,
    max_pixels: int,
    dry_run: bool,
    report: Path | None,
    as_json: bool,
    shard_size: str | None,
    shard_part: tuple[int, int] | None,
    commit: bool,
    on: str | None,
) -> int:
    from ocrstore.building.build import carry_out, dataset_request, make_recipe, prepare
    from ocrstore.building.plan import describe_interruption
    from ocrstore.building.view_size import AUTO

    dataset = dataset_request(out, shard_size, part=shard_part, commit=commit)
    if on is not None and dataset is None:
        raise click.UsageError("--on makes shards on a cluster; give --shard-size, too.")
    if dataset is None and out.is_dir():
        raise click.UsageError(
            f"--out {out} is a folder; name a file, or give --shard-size or --split."
        )
    kept = None
    if not (force or recipe or size or columns or preset or codecs):
        kept = stored_view(out, maps=maps is not None, targets=targets)
    given = recipe or size or columns or preset or codecs
    forgotten = _forgotten(out) if force and not given else ()
    with wrong_source(), _bar(quiet=as_json) as (_, measuring):
        plan, options = prepare(
            source,
            out,
            recipe=kept.recipe
            if kept is not None
            else make_recipe(recipe, size, columns, codecs or None, targets=targets, preset=preset),
            told=None if recipe or preset else codecs,
            view=view or (None if kept is None else kept.name),
            maps=maps,
            workers=workers,
            on_error=on_error,
            force=force,
            drop_annotations=drop_annotations,
            polygons_frame=polygons_frame,
            default_columns=kept is None and recipe is None and columns is None,
            max_pixels=max_pixels,
            auto_size=size == AUTO,
            trust_dialect=trust_dialect,
            measuring=measuring,
            dataset=dataset,
        )
    if dry_run:
        if as_json:
            print_json(describe(plan, max_pixels=max_pixels))
        else:
            _print_plan(plan, kept, forgotten)
            print_expected(plan, max_pixels=max_pixels)
        return 0
    if not as_json and not plan.mistaken and not plan.loses:
        _print_plan(plan, kept, forgotten)
    try:
        with _bar(quiet=as_json) as (tell, measuring):
            options = dataclasses.replace(options, progress=tell, measuring=measuring)
            result = carry_out(plan, options, on=on)
    except KeyboardInterrupt:
        kept_work = "Finished shards are kept; run the same command to make the others."
        if dataset is None:
            kept_work = describe_interruption(plan.target, "build")
        if force:
            kept_work = "The same command starts from scratch, because of --force."
        fail(f"interrupted. {kept_work}")
        return 130
    if report is not None:
        result.write(report)
    if as_json:
        print_json(result.to_json())
    else:
        if not plan.obstacle and result.discarded:  # found out after the plan was printed
            console().print(f"[yellow]![/] discarded {shown(result.discarded)}")
        _print_result(result, report)
        if shard_part is not None:
            console().print("no catalog yet: after all parts, --commit in its place writes it")
    return 0 if result.ok else 1


def _forgotten(store: Path) -> Sequence[str]:
    """Return how the recipe of an existing store differs from the default one."""
    from ocrstore.metadata import diff_json
    from ocrstore.recipe import Recipe

    try:
        view = stored_view(store, maps=True, targets=None)
    except OCRStoreError:  # damaged: what --force is for
        return ()
    return () if view is None else diff_json(view.recipe.to_json(), Recipe.make().to_json())


def _print_plan(plan: BuildPlan | DatasetPlan, kept: View | None, forgotten: Sequence[str]) -> None:
    out = console()
    out.print(shown(plan.source.description), style="dim")
    words = {
        "create": "building",
        "update": "updating",
        "rewrite": "rewriting, reusing valid columns,",
        "nothing": "nothing to do for",
    }
    out.print(f"{words[plan.action]} [bold]{shown(plan.target)}[/]")
    if kept is not None:
        out.print(f"  · with the recipe of the existing store (view {shown(kept.name)})")
    if forgotten:
        out.print(
            "  [yellow]![/] --force uses the default recipe, not that of the existing store; give "
            "--size, --columns, --codec or --recipe for another (store -> default):"
        )
        for line in forgotten:
            out.print(f"      {shown(line)}")
    for reason in plan.reasons:
        out.print(f"  · {shown(reason)}")
    found = plan.unfinished
    if found is not None:
        work = f"{counted(found.samples, 'sample')} ({human_bytes(found.nbytes)})"
        work += f" of an interrupted run {'is' if found.samples == 1 else 'are'}"
        if plan.obstacle:
            out.print(f"  [yellow]![/] {work} discarded: {shown(plan.obstacle)}")
        else:
            out.print(f"  · {work} reused")


@contextmanager
def _bar(*, quiet: bool) -> Iterator[tuple[Tell, Measuring]]:
    """Show a progress bar with rate, time left and number of problems on stderr."""
    shown_on = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[problems]}"),
        console=shown_on,
        transient=True,
        disable=quiet or is_quiet() or not shown_on.is_terminal,
    )
    with nullcontext() if bar.disable else bar:  # rich before 14.3 would print a line
        task = bar.add_task("building", total=None, rate="", problems="", visible=False)

        def tell(now: BuildProgress) -> None:
            speed = bar.tasks[0].speed
            bar.update(
                task,
                completed=now.done,
                total=now.total,
                visible=True,
                rate=f"{speed:.0f}/s" if speed else "",
                problems=(f"[red]{now.lost} problems[/] " if now.lost else "")
                + (f"[dim]{now.notes} notes[/]" if now.notes else ""),
            )

        def measuring(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total, rate="", visible=True)

        yield tell, measuring


def _print_result(result: BuildReport, report: Path | None) -> None:
    from ocrstore.problems import KINDS

    out, bad = console(), console(problems=True)
    counts = result.counts()
    for kind, count in counts.items():
        meaning = KINDS[kind].meaning if kind in KINDS else ""
        loses = kind not in KINDS or KINDS[kind].loses
        sign, to = ("[red]✗[/]", bad) if loses else ("[dim]·[/]", out)
        to.print(f"{sign} {count} {shown(kind)}: {shown(meaning)}")
        for problem in [p for p in result.problems if p.kind == kind][:_SHOWN]:
            where = f"{problem.key}: " if problem.key else ""
            if problem.message.startswith(where):
                where = ""
            to.print(f"    {shown(where + problem.message)}", style="dim")
        if count > _SHOWN:
            hint = "the report lists all" if report else "--report lists all"
            to.print(f"    ... and {count - _SHOWN} more ({hint})", style="dim")
    facts = Table.grid(padding=(0, 2))
    made = f"{result.derived} derived, {result.reused} reused"
    made += f" ({result.resumed} resumed)" if result.resumed else ""
    made += f", {result.removed} removed" if result.removed else ""
    of = counted(result.pictures, "picture")
    facts.add_row("samples", f"[bold]{result.samples}[/] of {of}; {made}")
    if result.skipped:
        facts.add_row("skipped", f"[red]{counted(len(result.skipped), 'picture')}[/]")
    facts.add_row("polygons", f"{result.polygons}, {result.ignored_polygons} of them ignored")
    sizes = ", ".join(f"{name} {human_bytes(n)}" for name, n in result.columns.items())
    facts.add_row("columns", shown(sizes))
    files = human_bytes(result.nbytes)
    if result.shards:
        files += f" in {counted(result.shards, 'shard')}"
    if result.fingerprint:
        files += f", fingerprint {result.fingerprint[:16]}…"
    facts.add_row("files" if result.shards else "file", files)
    rate = f", {result.rate:.0f} samples/s" if result.derived else ""
    facts.add_row("time", f"{result.seconds:.1f} s{rate}")
    out.print(facts)
    for name, bound in result.bounds.items():
        print_bound(name, bound)
    if result.ok:
        out.print(f"[green]✓[/] {shown(result.store)}")
    else:
        bad.print(f"[red]✗[/] {shown(result.store)} is complete except for the problems above")
    if result.problems:
        out.print(
            "after a fix in pictures or annotations, the same command updates only the samples "
            "concerned, in seconds",
            style="dim",
        )
