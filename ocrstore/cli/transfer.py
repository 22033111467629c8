"""`ocrstore push` and `ocrstore pull`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ocrstore.cli.console import (
    console,
    counted,
    explain_missing,
    fail,
    human_bytes,
    print_json,
    progress_bar,
    shown,
)
from ocrstore.interrupts import INTERRUPTED

if TYPE_CHECKING:
    from ocrstore.remote.transfer import Transfer

_json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.command("push")
@click.argument("dataset", type=click.Path(exists=True, path_type=Path))
@click.argument("url")
@_json_option
def push_command(dataset: Path, url: str, as_json: bool) -> None:
    """Copy a store, or a data set of stores, to object storage.

    URL is s3://bucket/..., gs://bucket/..., az://container/... or file:///folder/...; credentials
    and endpoint come from the environment or an AWS profile, as for other programs. A store is
    pushed to a name, or with a / at the end into a folder.

    Shards that are there are not sent again: after an interruption the same command goes on.
    Each object is compared with the file after it was sent. The catalog goes last, and only if
    nobody else has written it since the command began. Nothing is ever removed.

    \b
    Examples:
      ocrstore push val.ocrs s3://bucket/val.ocrs
      ocrstore push train/ s3://bucket/train/
      AWS_ENDPOINT_URL=https://minio.lan:9000 ocrstore push train/ s3://bucket/train/

    Exit codes: 0 all is there, 1 it failed or somebody else wrote the catalog, 2 wrong usage,
    130 interrupted.
    """
    with explain_missing("push", "remote"):
        from ocrstore.remote.transfer import push
    with _ended_at_once(), progress_bar("pushing", in_bytes=True, quiet=as_json) as advance:
        done = push(dataset, url, progress=advance)
    _print(done, url, "sent", as_json)


@click.command("pull")
@click.argument("url")
@click.argument("dataset", type=click.Path(path_type=Path))
@_json_option
def pull_command(url: str, dataset: Path, as_json: bool) -> None:
    """Copy a store, or a data set of stores, from object storage, and verify every byte.

    What is there already and the same is not downloaded again; an interrupted download goes on
    where it was. Files appear under their names when they are whole and verified.

    \b
    Examples:
      ocrstore pull s3://bucket/val.ocrs val.ocrs
      ocrstore pull s3://bucket/train/ train/
      ocrstore pull https://host/val.ocrs .

    Exit codes: 0 all is there, 1 it failed or is damaged, 2 wrong usage, 130 interrupted.
    """
    with explain_missing("pull", "remote"):
        from ocrstore.remote.transfer import pull
    with _ended_at_once(), progress_bar("pulling", in_bytes=True, quiet=as_json) as advance:
        done = pull(url, dataset, progress=advance)
    _print(done, str(dataset), "downloaded", as_json)


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """End the process on Ctrl-C: at its usual end it would wait for requests that hang."""
    try:
        yield
    except KeyboardInterrupt:
        fail(INTERRUPTED)
        os._exit(130)


def _print(done: Transfer, where: str, verb: str, as_json: bool) -> None:
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    files = counted(len(done.sent), "file")
    console().print(
        f"[green]✓[/] {shown(where)}: {files} {verb} ({human_bytes(done.nbytes)}), "
        f"{len(done.kept)} up to date"
    )
