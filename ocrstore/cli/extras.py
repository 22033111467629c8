"""Says which extra to install when a command needs packages that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


class MissingPackageError(click.ClickException):
    """A command's packages are not installed; as an exit code, wrong use."""

    exit_code = 2


@contextmanager
def explain_missing(command: str, extra: str = "all") -> Iterator[None]:
    """Turn an import error into advice; for the imports of a command only."""
    try:
        yield
    except ImportError as exc:
        if (exc.name or "").partition(".")[0] == "ocrstore":
            raise  # no extra brings a module of ours
        missing = isinstance(exc, ModuleNotFoundError) and exc.name
        needs = f"needs {exc.name}, which is missing" if missing else f"cannot run here ({exc})"
        raise MissingPackageError(
            f"`ocrstore {command}` {needs}: pip install 'ocrstore[{extra}]'"
        ) from exc
