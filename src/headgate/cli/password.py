"""`headgate password`: hash a password for a dashboard user, and print the hash."""

from __future__ import annotations

import sys

import click

SHORTEST = 8


@click.command()
def password() -> None:
    """Hash a password for a dashboard user, and print the hash.

    The command asks for the password twice without showing it, or reads it from standard input if that is not a
    terminal. It is not an argument, because all users of a machine can see arguments.
    """
    from headgate.password_hash import PasswordHash

    try:
        if sys.stdin.isatty():
            given = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        else:
            given = sys.stdin.readline().rstrip("\r\n")
        if len(given) < SHORTEST:
            raise click.ClickException(f"a password needs at least {SHORTEST} characters")
        click.echo(str(PasswordHash.of(given)))
    except UnicodeError:
        raise click.ClickException("the password is not UTF-8 text; send it in that encoding") from None
