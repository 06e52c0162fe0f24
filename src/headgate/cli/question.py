"""Questions before jobs are deleted or many are changed."""

from __future__ import annotations

import click

from headgate.escaping import printable


def require_answer(*, as_json: bool, yes: bool, dry_run: bool | None = None) -> None:
    """Raise UsageError if the command would ask a question although it prints JSON.

    `dry_run` is None for a command that has no --dry-run.
    """
    if as_json and not yes and not dry_run:
        raise click.UsageError(f"--json does not ask; add {_instead(has_dry_run=dry_run is not None)}")


def confirm(question: str, *, has_dry_run: bool = False) -> None:
    """Ask, and end the command unless the answer is yes; without a terminal, name the options that answer."""
    instead = _instead(has_dry_run=has_dry_run)
    try:
        click.confirm(printable(question), abort=True, err=True)
    except UnicodeDecodeError:
        click.echo(err=True)
        raise click.ClickException(f"the answer is not text; write y or n, or add {instead}") from None
    except click.Abort as abort:
        if isinstance(abort.__context__, EOFError):
            click.echo(err=True)
            raise click.ClickException(f"there is no terminal to ask on; add {instead}") from None
        raise


def _instead(*, has_dry_run: bool) -> str:
    return "--yes, or --dry-run to see what would change" if has_dry_run else "--yes"
