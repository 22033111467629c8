"""`ocrstore verify`."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ocrstore.cli.console import (
    DATASET,
    allow_module_option,
    console,
    counted,
    explain_missing,
    human_bytes,
    print_json,
    progress_bar,
    shown,
)
from ocrstore.cli.options import DialectName
from ocrstore.cli.transfer import SourcePlace

if TYPE_CHECKING:
    from ocrstore.building.check_source import SourceCheck
    from ocrstore.verification import Verification

_SHOWN = 20


@click.command("verify")
@click.argument("store", type=DATASET)
@click.option(
    "--source",
    type=click.Path(path_type=Path),
    help="The pictures, as for build: derive every sample again and compare.",
)
@click.option(
    "--stored-only", is_flag=True, help="With --source: pictures that are not stored are fine."
)
@click.option("--sample", type=click.IntRange(1), help="With --source: compare only N samples.")
@click.option("--annotations", type=SourcePlace(exists=True, path_type=Path), help="As in build.")
@click.option("--format", "format_", type=DialectName(), help="As in build.")
@click.option("--include", multiple=True, metavar="PATTERN", help="As in build.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="As in build.")
@allow_module_option
@click.option("--maps", type=click.Path(path_type=Path), help="As in build.")
@click.option("--targets", metavar="MODULE:FUNCTION", help="As in build.")
@click.option(
    "--workers",
    type=click.IntRange(0),
    help="With --source: number of worker processes; all cores by default.",
)
@click.option("--quick", is_flag=True, help="Compare rows with their hashes; decode nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify_command(
    store: Path,
    source: Path | None,
    stored_only: bool,
    sample: int | None,
    annotations: Path | None,
    format_: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    maps: Path | None,
    targets: str | None,
    workers: int | None,
    quick: bool,
    as_json: bool,
) -> int:
    """Read the whole file and check every byte against its checksums.

    Compressed rows and stored pictures are decoded as well, unless --quick is given. Prints the
    sample and column of every damaged row. Dead space is reported as a note.

    Of a data set of many stores every shard is checked, and compared with the catalog: its size,
    content, columns and keys.

    With --source every sample is derived again from its picture and compared bit by bit with the
    store.

    \b
    Examples:
      ocrstore verify val.ocrs
      ocrstore verify val.ocrs --quick
      ocrstore verify train/
      ocrstore verify val.ocrs --source images/
      ocrstore verify val.ocrs --source images/ --sample 50
      ocrstore verify val.ocrs --json | jq .findings

    Exit code 1 if anything is wrong.
    """
    options = {
        "stored_only": stored_only or None,
        "include": include or None,
        "exclude": exclude or None,
        "sample": sample,
        "annotations": annotations,
        "format": format_,
        "maps": maps,
        "targets": targets,
        "workers": workers,
    }
    if source is None and any(value is not None for value in options.values()):
        raise click.UsageError(
            "--sample, --stored-only, --annotations, --format, --include, --exclude, --maps, "
            "--targets and --workers require --source."
        )
    if source is not None and quick:
        raise click.UsageError("--quick checks the file alone: leave out --source.")
    with explain_missing("verify"):
        from ocrstore.verification import verify
    started = time.perf_counter()
    result: Verification | SourceCheck
    if source is None:
        with progress_bar("verifying", in_bytes=True, quiet=as_json) as advance:
            result = verify(store, quick=quick, progress=advance)
    else:
        given = {name: value for name, value in options.items() if value is not None}
        result = _compare(store, source, given, quiet=as_json)
    seconds = time.perf_counter() - started
    if as_json:
        print_json({"ok": result.ok, **dataclasses.asdict(result)})
    else:
        _print_findings(result)
        _print_verdict(store, result, seconds)
    return 0 if result.ok else 1


def _compare(store: Path, source: Path, options: dict[str, Any], *, quiet: bool) -> SourceCheck:
    with explain_missing("verify --source", "build"):  # plain `verify` needs no decoders
        from ocrstore.building.check_source import check_source

    with progress_bar("comparing", quiet=quiet) as advance:
        return check_source(store, source, progress=advance, **options)


def _print_findings(result: Verification | SourceCheck) -> None:
    out = console(problems=True)
    for finding in result.findings[:_SHOWN]:
        where = f"sample {finding.sample!r}: " if finding.sample is not None else ""
        where += f"column {finding.column!r}: " if finding.column is not None else ""
        out.print(f"[red]✗[/] {shown(where + finding.message)}")
    if len(result.findings) > _SHOWN:
        out.print(f"[red]✗[/] … and {len(result.findings) - _SHOWN} more (--json lists all)")
    for note in result.notes[:_SHOWN]:
        console().print(f"[dim]· {shown(note)}[/]")


def _print_verdict(store: Path, result: Verification | SourceCheck, seconds: float) -> None:
    from ocrstore.verification import Verification

    if isinstance(result, Verification):
        # without an index nobody knows how many samples the rows are of
        of = f" of {counted(result.samples, 'sample')}" if result.samples or not result.rows else ""
        summary = (
            f"{counted(result.rows, 'row')}{of}, "
            f"{human_bytes(result.checked_nbytes)} checked in {seconds:.1f} s"
        )
        good, bad = "is sound", "is damaged"
        remedy = "Restore it from a copy, or rebuild it with the same options and --force."
        if store.is_dir() or store.name == "dataset.json":
            remedy = (
                "Remove the bad shards; `ocrstore build` with the same options makes them anew."
            )
    else:
        summary = (
            f"{result.samples} of {counted(result.of, 'sample')} derived again, "
            f"{human_bytes(result.compared_nbytes)} compared in {seconds:.1f} s"
        )
        good, bad = "matches its source", "differs from its source"
        # if no sample is in the source, it is the wrong folder, and a build would be a mistake
        remedy = (
            (
                "`ocrstore build` with the same options updates it; if it says that nothing has "
                "changed, the store is damaged: add --force to build it from scratch."
            )
            if result.samples
            else ""
        )
    if result.ok:
        console().print(f"[green]✓[/] {shown(store)} {good}: {summary}")
        return
    findings = counted(len(result.findings), "finding")
    out = console(problems=True)
    out.print(f"[red]✗[/] {shown(store)} {bad} ({findings}; {summary}). {remedy}".rstrip())
