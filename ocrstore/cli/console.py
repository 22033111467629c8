"""What all commands share: output, progress bars, argument types, missing packages."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ocrstore import keys
from ocrstore.errors import MissingPackageError
from ocrstore.interrupts import quick_exit
from ocrstore.machine import memory_shortage
from ocrstore.packages import explain_imports

if TYPE_CHECKING:
    from ocrstore.views import ViewBound

STORE = click.Path(exists=True, dir_okay=False, path_type=Path)
"""Argument type: a store that exists."""


class _Dataset(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; for a URL that of its local copy."""
        if "://" not in str(value):
            return super().convert(value, param, ctx)
        with explain_missing("... URL", "remote"):
            from ocrstore.store import local_path
        return Path(local_path(str(value)))


DATASET = _Dataset(exists=True, path_type=Path)
"""Argument type: a store, the folder or the catalog of a data set of many stores, or a URL."""


class _OneStore(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; refuse a data set of many stores, and a URL."""
        from ocrstore.catalog import find_catalog

        if "://" in os.fsdecode(value):
            self.fail(
                f"{os.fsdecode(value)} is a URL, and stores are changed on a disk: fetch it with "
                "`ocrstore pull`, and send it back with `ocrstore push`.",
                param,
                ctx,
            )
        if find_catalog(value) is not None:
            self.fail(
                f"{os.fsdecode(value)} is a data set of many stores, and its shards are changed by "
                "`ocrstore build` only: run that with other options.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


ONE_STORE = _OneStore(exists=True, dir_okay=False, path_type=Path)
"""Argument type: a store that a command changes, or takes apart from others."""


class NewFile(click.Path):
    """Argument type: a file to be written; fails before the work if its folder does not exist."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.absolute().parent.is_dir():
            self.fail(f"{path.parent}: no such folder; create it first.", param, ctx)
        return path


TARGET = NewFile(dir_okay=False)
"""Argument type: a file that a command writes."""

_QUIET = "ocrstore.quiet"

COUNT = click.IntRange(1)
"""Option type: an int of at least 1."""


def _permit(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> None:
    if names:
        from ocrstore.pipeline import permit_modules

        permit_modules(names)


allow_module_option = click.option(
    "--allow-module",
    multiple=True,
    metavar="NAME",
    callback=_permit,
    expose_value=False,
    help="Import this module, for transforms of the pipeline that are not albumentations' own. "
    "Repeatable.",
)
"""Option of every command that makes pipelines: without it no foreign code is run."""


class _ToStderr(logging.Handler):
    """Prints log records on stderr, above a progress bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(keys.shown_lines(f"{record.name}: {record.getMessage()}"), err=True)


def _log(ctx: click.Context, _: click.Parameter, count: int) -> None:
    """Show the log of ocrstore while a command runs."""
    if not count:
        return
    logger, handler = logging.getLogger("ocrstore"), _ToStderr()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if count == 1 else logging.DEBUG)
    ctx.call_on_close(lambda: logger.removeHandler(handler))
    ctx.call_on_close(lambda: logger.setLevel(before))


def _hush(ctx: click.Context, _: click.Parameter, quiet: bool) -> None:
    ctx.meta[_QUIET] = quiet


def add_output_options(command: click.Command) -> click.Command:
    """Give a command `-v` and `-q`; every command has them."""
    if not any(param.name == "verbose" for param in command.params):  # a command is made once
        for names, callback, words, more in (
            (("-v", "--verbose"), _log, "Say what is done; -vv says more.", {"count": True}),
            (("-q", "--quiet"), _hush, "Print only problems, and --json.", {"is_flag": True}),
        ):
            option = click.Option(names, callback=callback, help=words, expose_value=False, **more)
            command.params.append(option)
    return command


def is_quiet() -> bool:
    """Return whether the command was given `-q`."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(_QUIET))


def console(*, problems: bool = False) -> Console:
    """Return the console for results, or for problems, which `-q` does not silence.

    Foreign strings are printed by `shown`.
    """
    silent = is_quiet() and not problems
    return Console(highlight=False, emoji=False, soft_wrap=not sys.stdout.isatty(), quiet=silent)


def fail(message: str) -> None:
    """Print an error message."""
    Console(stderr=True, highlight=False, emoji=False, soft_wrap=True).print(
        f"[bold red]Error:[/] {escape(keys.shown_lines(message))}"
    )


def print_json(record: Any) -> None:
    """Print a record as JSON."""
    text = json.dumps(record, indent=2, ensure_ascii=False)
    # json.dumps leaves C1 controls, bidirectional marks and lone surrogates as they are
    click.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def shown(text: object) -> str:
    """Escape markup and what a terminal would obey; every foreign string is printed so."""
    return escape(keys.shown(text))


def counted(number: int, what: str) -> str:
    """Format a count with its noun: 1 sample, 2 samples."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def human_bytes(nbytes: float) -> str:
    """Format a size: 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2f} TB"


def print_bound(view: str, bound: ViewBound) -> None:
    """Print what a view allows, with a warning if that is little."""
    console().print(f"[dim]view {escape(view)}: {escape(bound.in_words())}[/]")
    if bound.warning():
        console(problems=True).print(f"[yellow]![/] view {escape(view)}: {escape(bound.warning())}")


@contextmanager
def progress_bar(
    what: str, *, in_bytes: bool = False, quiet: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr; yields a function of (done, total)."""
    counts = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
    shown_on = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *counts,
        TimeRemainingColumn(),
        console=shown_on,
        transient=True,
        # a log would get an empty line
        disable=quiet or is_quiet() or not shown_on.is_terminal,
    )
    with nullcontext() if bar.disable else bar:  # rich before 14.3 would print a line
        task = bar.add_task(what, total=None)

        def advance(done: int, total: int) -> None:
            # whole pages are read, a little more than the total
            bar.update(task, completed=min(done, total), total=total)

        yield advance


@contextmanager
def explain_missing(command: str, extra: str = "all") -> Iterator[None]:
    """Turn an ImportError into the pip command that helps; wrap only imports in it.

    Raises:
        MissingPackageError: A package is missing, or does not work.
        MemoryError: It is there, but there is no memory to load it.
    """
    try:
        with quick_exit(), explain_imports():
            yield
    except ImportError as exc:
        if memory_shortage(exc) is not None:
            raise MemoryError from exc
        if (exc.name or "").partition(".")[0] == "ocrstore":
            raise  # a module of ocrstore itself: a bug
        if isinstance(exc, ModuleNotFoundError) and exc.name:
            why = f'needs {exc.name}, which is missing: pip install "ocrstore[{extra}]"'
        else:
            why = f"cannot run here: {exc}"
        raise MissingPackageError(f"`ocrstore {command}` {why}", name=exc.name) from exc
