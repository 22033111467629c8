"""The command line; one module per command, imported when it is used."""

from __future__ import annotations

import importlib
import sys

import click

from ocrstore.cli.console import MissingPackageError, explain_missing, fail
from ocrstore.errors import (
    OCRStoreError,
    RecipeMismatchError,
    SchemaError,
    StoreExistsError,
    UnknownColumnError,
    UnknownGenerationError,
    UnknownSampleError,
)
from ocrstore.keys import shown_lines
from ocrstore.version import __version__

# command -> module below ocrstore.cli and its function; imported when used, so that a command
# needs only its own dependencies
COMMANDS = {
    "add-view": "add_view:add_view_command",
    "build": "build:build_command",
    "compact": "compact:compact_command",
    "doctor": "doctor:doctor_command",
    "eval": "eval:eval_command",
    "export-index": "export_index:export_index_command",
    "inspect": "inspect:inspect_command",
    "predict": "predict:predict_command",
    "profile": "profile:profile_command",
    "report": "report:report_command",
    "train": "train:train_command",
    "verify": "verify:verify_command",
    "view": "view:view_command",
    "warm": "warm:warm_command",
}

_WRONG_USE = (
    RecipeMismatchError,
    SchemaError,
    StoreExistsError,
    UnknownColumnError,
    UnknownGenerationError,
    UnknownSampleError,
)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, name = place.split(":")
        try:
            with explain_missing(cmd_name, "build"):
                command = getattr(importlib.import_module(f"ocrstore.cli.{module}"), name)
        except MissingPackageError as exc:
            return _unavailable(cmd_name, exc)
        assert isinstance(command, click.Command)
        return command


def _unavailable(name: str, why: MissingPackageError) -> click.Command:
    """Return a command that raises the error, so that `ocrstore --help` lists it."""

    def complain(rest: tuple[str, ...]) -> None:  # noqa: ARG001  # what the command would be given
        raise why

    return click.Command(
        name,
        callback=complain,
        params=[click.Argument(["rest"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
        help=f"Not available: {why.message}",
        short_help=f"(pip install {why.message.rpartition(' ')[2]})",
    )


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ocrstore")
def cli() -> None:
    """Data sets for text detection in one memory-mapped file each.

    \b
    Examples:
      ocrstore build images/ --out val.ocrs
      ocrstore inspect val.ocrs        contents and sizes
      ocrstore verify val.ocrs         check every byte
      ocrstore view val.ocrs           open it in the browser

    Exit codes: 0 success, 1 a problem was found, 2 wrong usage, 130 interrupted,
    143 terminated.
    """


def main() -> None:
    """Run the command line; print errors as one message and exit with a code."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        fail("interrupted; published stores are unchanged.")
        sys.exit(130)
    except click.ClickException as exc:
        exc.message = shown_lines(exc.message)
        exc.show()
        sys.exit(exc.exit_code)
    except OCRStoreError as exc:
        fail(str(exc))
        sys.exit(2 if isinstance(exc, _WRONG_USE) else 1)
    except KeyboardInterrupt:
        fail("interrupted; published stores are unchanged.")
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
