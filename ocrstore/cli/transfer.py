"""`ocrstore push` and `ocrstore pull`; URLs as source and target of `ocrstore build`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ocrstore.cli.console import (
    NewFile,
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

SHARD_SIZE = "512MB"
"""Of data sets that are built for a bucket, if no size is given."""


class SourcePlace(click.Path):
    """Argument type: pictures or annotations; those behind a URL are copied to the cache folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        text = str(value)
        if text.lower().endswith((".tar", ".zip")) and set(text) & set("{*?["):
            return Path(text)  # a pattern of archives, which is no file itself
        if "://" not in text:
            return super().convert(value, param, ctx)
        with explain_missing("... URL", "remote"):
            from ocrstore.remote.transfer import fetch_files
        with _ended_at_once(), progress_bar("fetching", in_bytes=True) as advance:
            return fetch_files(str(value), progress=advance)


class NewPlace(NewFile):
    """Argument type: a file or folder to be written, or a URL, which stays a string."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path or the URL."""
        return str(value) if "://" in str(value) else super().convert(value, param, ctx)


def build_and_push(url: str, build: Callable[..., int], options: dict[str, Any]) -> int:
    """Build in the cache folder and push the result.

    Args:
        build: Called with the path and the options; returns an exit code.
        options: Those of `ocrstore build`.
    """
    if options["shard_part"] is not None or options["commit"]:
        raise click.UsageError(
            "--shard-part and --commit need a folder that all machines see; push it afterwards."
        )
    with explain_missing("build --out URL", "remote"):
        from ocrstore.catalog import find_catalog
        from ocrstore.remote.cache import folder_for
        from ocrstore.remote.objects import Place
        from ocrstore.remote.transfer import push
    Place(url)  # wrong settings are told before the work
    path = folder_for(url, "builds")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not url.endswith(".ocrs") and find_catalog(path) is None:
        options = {**options, "shard_size": options["shard_size"] or SHARD_SIZE}
    code = build(path, **options)
    if code > 1 or options["dry_run"]:
        return code
    with _ended_at_once(), progress_bar("pushing", in_bytes=True, quiet=options["as_json"]) as tell:
        done = push(path, url, progress=tell)
    if not options["as_json"]:
        _print(done, url, "sent", as_json=False)
    return code


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
    _print(done, url, "sent", as_json=as_json)


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
    _print(done, str(dataset), "downloaded", as_json=as_json)


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """End the process on Ctrl-C: at its usual end it would wait for requests that hang."""
    try:
        yield
    except KeyboardInterrupt:
        fail(INTERRUPTED)
        os._exit(130)


def _print(done: Transfer, where: str, verb: str, *, as_json: bool) -> None:
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    files = counted(len(done.sent), "file")
    console().print(
        f"[green]✓[/] {shown(where)}: {files} {verb} ({human_bytes(done.nbytes)}), "
        f"{len(done.kept)} up to date"
    )
