"""`ocrstore doctor`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click
from rich.table import Table

from ocrstore.cli.console import (
    DATASET,
    console,
    counted,
    explain_missing,
    human_bytes,
    print_json,
    shown,
)

_ENOUGH_SHM = 256 * 2**20
_LIMITS = {"machine": "the machine", "cgroup": "the control group's limit"}


@click.command("doctor")
@click.argument("store", type=DATASET)
@click.option(
    "--workers",
    type=click.IntRange(0),
    default=4,
    show_default=True,
    help="Worker processes of the DataLoader; 0 loads in the main process.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Samples in a batch.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor_command(store: Path, workers: int, batch_size: int, as_json: bool) -> int:
    """Measure the memory that training from a store takes on this machine.

    Runs one epoch of a DataLoader in a fresh process and compares the memory of it and its workers
    with that of a process that only imports the same packages. Shows how much of the store is in
    the page cache, and whether memory is large enough for it.

    \b
    Examples:
      ocrstore doctor val.ocrs
      ocrstore doctor train.ocrs --workers 8 --json

    Exit code 1 if an epoch reads more than fits into memory or the control group's limit.
    """
    with explain_missing("doctor", "torch"):
        from ocrstore.torch.doctor import FINDERS, diagnose
    from ocrstore.remote.cache import given_place

    found = diagnose(store, workers=workers, batch_size=batch_size)
    found = dataclasses.replace(found, path=given_place(store))
    if as_json:
        record = dataclasses.asdict(found)
        print_json({**record, "fits": found.fits, "worker_nbytes": found.worker_nbytes})
        return 0 if found.fits else 1
    out = console()
    out.print(
        f"[bold]{shown(found.path)}[/]: {counted(found.samples, 'sample')},"
        f" {human_bytes(found.file_nbytes)}; an epoch of its view reads"
        f" {human_bytes(found.view_nbytes)}"
    )
    if found.cached_nbytes is not None:
        share = found.cached_nbytes / max(found.view_nbytes, 1)
        out.print(
            f"page cache: {human_bytes(found.cached_nbytes)} of that ({share:.0%}) is in memory"
            + ("" if share > 0.95 else "; `ocrstore warm` reads the rest")
        )
    memory = found.memory
    out.print(
        f"memory: {human_bytes(memory.available_nbytes)} available of"
        f" {human_bytes(memory.total_nbytes)} ({_LIMITS[memory.limited_by]})"
    )
    if found.store is not None and found.bare is not None:
        with_workers = counted(workers, "worker")
        table = Table(title=f"after one epoch with {with_workers}, all processes together")
        table.add_column("")
        for name in ("private", "shared", "file pages", "PSS", "RSS"):
            table.add_column(name, justify="right")
        for name, used in (("torch, Arrow alone", found.bare), ("with the store", found.store)):
            sizes = (used.pss_anonymous, used.pss_shared, used.pss_file, used.pss, used.rss)
            table.add_row(name, *(human_bytes(size) for size in sizes))
        out.print(table)
        out.print(
            f"The store adds {human_bytes(found.worker_nbytes or 0)} of private memory per process;"
            f" at most {human_bytes(found.shm_growth or 0)} of shared memory was in use."
        )
        out.print(
            "RSS counts a shared page in every process that maps it, so it grows with each worker;"
            " PSS divides it among them and adds up to the memory really used. File pages are the"
            " page cache: one copy for all processes, which the kernel drops when memory is short.",
            style="dim",
        )
    out.print(f"batches: {found.strategy}; {FINDERS.get(found.finder, 'mapped or copied again')}")
    if found.shm_nbytes is not None and found.shm_nbytes < _ENOUGH_SHM:
        out.print(
            f"/dev/shm has {human_bytes(found.shm_nbytes)}: enough for stored columns and for"
            " transform=, which do not use it; other data sets may need more."
        )
    if not found.fits:
        out.print(
            "[red]✗[/] An epoch does not fit into memory, so every epoch reads from disk. Use"
            " WindowShuffleSampler, fewer columns, or a codec (docs/training.md)."
        )
        return 1
    out.print(
        "[green]✓[/] An epoch fits into memory: after the first one nothing is read from disk."
    )
    return 0
