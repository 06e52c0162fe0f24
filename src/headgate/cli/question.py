"""Asking before something is deleted or much is changed."""

from __future__ import annotations

import click

from headgate.escaping import printable


def require_answer(*, as_json: bool, yes: bool, dry_run: bool) -> None:
    """Refuse to ask a program that reads JSON."""
    if as_json and not yes and not dry_run:
        raise click.UsageError("with --json nobody can be asked; add --yes or --dry-run")


def confirm(question: str) -> None:
    """Ask, and end the command unless the answer is yes; where nobody can answer, say what to do instead."""
    try:
        click.confirm(printable(question), abort=True, err=True)
    except click.Abort as abort:
        if isinstance(abort.__context__, EOFError):
            click.echo(err=True)
            raise click.ClickException("nobody is there to answer; add --yes, or --dry-run to see more") from None
        raise
