"""`ocrstore completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the script that completes commands and options in a shell.

    \b
    Examples:
      ocrstore completion bash >> ~/.bashrc
      ocrstore completion zsh >> ~/.zshrc
      ocrstore completion fish > ~/.config/fish/completions/ocrstore.fish
    """
    complete = get_completion_class(shell)
    assert complete is not None  # click has these three
    group = click.get_current_context().find_root().command
    click.echo(complete(group, {}, "ocrstore", "_OCRSTORE_COMPLETE").source())
