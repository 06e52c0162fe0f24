"""`headgate password`: the hash of a password, for the file of users of a dashboard."""

from __future__ import annotations

import sys

import click

SHORTEST = 8


@click.command()
def password() -> None:
    """Print the hash of a password, for the users of a dashboard.

    The password is asked for twice without being shown, or read from the standard input if that is no terminal. It is
    never an argument: arguments are shown to everybody on the machine.
    """
    if sys.stdin.isatty():
        given = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        given = sys.stdin.readline().rstrip("\r\n")
    if len(given) < SHORTEST:
        raise click.ClickException(f"a password has at least {SHORTEST} characters")
    from headgate.http.passwords import PasswordHash

    click.echo(str(PasswordHash.of(given)))
