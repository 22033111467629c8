"""The command line; one module per command, imported when it is used."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
import traceback

import click

from ocrstore.cli.console import add_output_options, fail, human_bytes
from ocrstore.errors import (
    MissingPackageError,
    OCRStoreError,
    RecipeMismatchError,
    SchemaError,
    StoreExistsError,
    UnknownColumnError,
    UnknownGenerationError,
    UnknownSampleError,
)
from ocrstore.interrupts import INTERRUPTED
from ocrstore.keys import shown_lines
from ocrstore.machine import address_space_limit, memory_shortage
from ocrstore.version import __version__

# command -> module below ocrstore.cli and its function. A module imports nothing but click and rich
# until its command runs: a help page comes at once, and a command needs only its own dependencies
COMMANDS = {
    "add-view": "add_view:add_view_command",
    "build": "build:build_command",
    "compact": "compact:compact_command",
    "completion": "completion:completion_command",
    "convert": "convert:convert_command",
    "doctor": "doctor:doctor_command",
    "eval": "eval:eval_command",
    "export": "export:export_command",
    "export-model": "export_model:export_model_command",
    "gc": "gc:gc_command",
    "inspect": "inspect:inspect_command",
    "predict": "predict:predict_command",
    "profile": "profile:profile_command",
    "pull": "transfer:pull_command",
    "push": "transfer:push_command",
    "report": "report:report_command",
    "train": "train:train_command",
    "verify": "verify:verify_command",
    "view": "view:view_command",
    "warm": "warm:warm_command",
}

_WRONG_USE = (
    MissingPackageError,
    RecipeMismatchError,
    SchemaError,
    StoreExistsError,
    UnknownColumnError,
    UnknownGenerationError,
    UnknownSampleError,
)


_WHOLE = 1000
"""More characters than a short help has: it is wrapped, not cut."""
_DEBUG = "OCRSTORE_DEBUG"
ISSUES = "https://github.com/ocrstore/ocrstore/issues"


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, name = place.split(":")
        command = getattr(importlib.import_module(f"ocrstore.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return add_output_options(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest a command where one was mistyped."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            close = " or ".join(f"`{known}`" for known in difflib.get_close_matches(name, COMMANDS))
            hint = f" Did you mean {close}?" if close else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with the whole first sentence of their help."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(_WHOLE))
                    for name, command in commands.items()
                    if command
                ]
            )


@click.group(
    cls=_Commands,
    # by default click wraps at 80 columns in any terminal
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 200},
)
@click.version_option(__version__, prog_name="ocrstore")
@click.option(
    "--debug",
    is_flag=True,
    help=f"Show the traceback of an error, like {_DEBUG}=1.",
)
def cli(debug: bool) -> None:  # main needs it, also where no command was run
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
    if address_space_limit() is not None:
        # a BLAS crashes at its import where it cannot have a buffer for every core; none is used
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        code = cli.main(complete_var="_OCRSTORE_COMPLETE", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        fail(INTERRUPTED)
        sys.exit(130)
    except click.ClickException as exc:
        object.__setattr__(exc, "message", shown_lines(exc.message))  # its type is final
        exc.show()
        sys.exit(exc.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception as exc:
        if "--debug" in sys.argv or os.environ.get(_DEBUG, "0") not in ("", "0"):
            fail(traceback.format_exc())
        elif not isinstance(exc, OCRStoreError) and (said := memory_shortage(exc)) is not None:
            # plainly: rich may need more than there is
            print(f"Error: {shown_lines(_too_little(said))}", file=sys.stderr, flush=True)
            if address_space_limit() is not None:
                os._exit(1)  # libraries that were loaded in part crash when they are unloaded
        else:
            fail(_in_words(exc))
        sys.exit(2 if isinstance(exc, _WRONG_USE) else 1)
    sys.exit(code if isinstance(code, int) else 0)


def _in_words(exc: Exception) -> str:
    """Return the message for an exception; one that nobody expected is one line with a hint."""
    if isinstance(exc, OCRStoreError):
        # torch puts the traceback of a DataLoader's worker before the message
        return re.split(r"^Caught .*^ocrstore[\w.]*Error: ", str(exc), flags=re.M | re.S)[
            -1
        ].strip()
    reason = _one_line(str(exc))
    if isinstance(exc, OSError):
        return f"{reason}. `ocrstore --debug ...` shows where it happened."
    return (
        f"unexpected {type(exc).__name__}: {reason}. This is a bug in ocrstore: please report it "
        f"at {ISSUES} with the output of `ocrstore --debug ...` ({_DEBUG}=1)."
    )


def _too_little(said: str) -> str:
    limit = address_space_limit()
    told = "" if limit is None else f"; this process may use {human_bytes(limit)} (ulimit -v)"
    return (
        f"memory is short ({_one_line(said)}){told}. Published stores are unchanged. Raise the "
        "limit or free memory; fewer --workers and smaller batches need less."
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]
