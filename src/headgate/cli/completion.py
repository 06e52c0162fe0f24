"""`headgate completion`: print the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")

VARIABLE = "_HEADGATE_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for bash, zsh or fish.

    \b
      eval "$(headgate completion bash)"        in ~/.bashrc
      eval "$(headgate completion zsh)"         in ~/.zshrc
      headgate completion fish > ~/.config/fish/completions/headgate.fish

    Completes commands, options and their fixed values, without a store.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "headgate", VARIABLE).source())
