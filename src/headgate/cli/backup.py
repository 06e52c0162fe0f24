"""`headgate backup`: copy a SQLite file while workers run."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from headgate.app import Headgate
from headgate.cli.locate import locate, takes_app_and
from headgate.cli.output import json_option, progress_bar, say_done
from headgate.clock import SystemClock
from headgate.storage.sqlite.backup import back_up


@click.command()
@takes_app_and("FILE")
@json_option
def backup(target: str, file: str, as_json: bool) -> None:
    """Copy the SQLite file of an app while workers run, and check the copy.

    The copy, FILE, has all jobs that were stored when the command started. Workers do not wait for it. It appears when
    it is complete and all of it has been read; an existing file is never overwritten. Only you can read it.

    "Backups" in the docs says how to restore it. For a store on PostgreSQL, the error is the command for pg_dump.
    """
    app, copy = locate(target), Path(file)
    path = app._client.address.file
    if path is None:
        raise click.ClickException(_instead(app, copy))
    if copy.is_dir() or file.endswith(os.sep):
        raise click.UsageError(f"{file} is a folder; name a file in it: {copy / path.name}")
    with progress_bar("Copy, in percent", 100, shown=not as_json) as advance:
        migration = back_up(
            path, copy, SystemClock(), lambda left, pages: advance(100 * (pages - left) // max(pages, 1))
        )
    size = copy.stat().st_size
    done = f"{copy}: {size / 1e6:,.1f} MB, checked, up to migration {migration}"
    say_done(done, as_json=as_json, file=str(copy.absolute()), bytes=size, migration=str(migration))


def _instead(app: Headgate, copy: Path) -> str:
    """Return what to do for a store that is no file."""
    schema = getattr(app._storage, "schema", None)
    if schema is None:
        return f"{app._client.address.shown} is in the memory of its process, and cannot be copied"
    command = ["pg_dump", f"--schema={schema}", "--format=custom", f"--file={copy}", app._client.address.shown]
    return f"this command copies SQLite files; for PostgreSQL, let the owner of the tables run: {shlex.join(command)}"
