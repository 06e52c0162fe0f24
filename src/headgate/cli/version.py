"""`headgate version`: the versions to name in a bug report."""

from __future__ import annotations

import platform
import sqlite3
from importlib import metadata

import click

from headgate.cli.output import json_option, print_json

LIBRARIES = (
    "asyncpg",
    "uvloop",
    "redis",
    "starlette",
    "uvicorn",
    "prometheus-client",
    "opentelemetry-api",
    "watchfiles",
)
"""The packages of the extras."""


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Show the versions: Headgate, Python, SQLite and optional packages."""
    found = {
        "headgate": _installed("headgate"),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "platform": platform.platform(),
        "libraries": {name: _installed(name) for name in LIBRARIES},
    }
    if as_json:
        print_json(found)
        return
    click.echo(f"headgate {found['headgate'] or 'from its source'}, Python {found['python']}, SQLite {found['sqlite']}")
    click.echo(found["platform"])
    for name in LIBRARIES:
        click.echo(f"{name} {_installed(name) or 'is not installed'}")


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
