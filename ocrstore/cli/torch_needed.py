"""Says which extra to install when a command needs torch or Lightning and they are not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def explain_missing(command: str) -> Iterator[None]:
    """Turn an import error into advice; for the imports of a command only."""
    try:
        yield
    except ImportError as exc:
        raise click.ClickException(
            f"`ocrstore {command}` needs more than the base package ({exc}); "
            'install it with: pip install "ocrstore[all]"'
        ) from exc
