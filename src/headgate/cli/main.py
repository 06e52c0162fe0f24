"""The `headgate` command: it lists all sub-commands and imports only the one that is used."""

from __future__ import annotations

import difflib
import errno
import gc
import importlib
import io
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from headgate import foreign_words
from headgate.cli.exit_codes import INTERRUPTED
from headgate.errors import HeadgateError
from headgate.escaping import printable
from headgate.version import __version__

COMMANDS: Mapping[str, str] = {
    "worker": "Run jobs until stopped.",
    "status": "Show the state: queues, nodes, limits, and what blocks the database.",
    "top": "Watch queues, throughput, throttled keys, nodes and failures live.",
    "queues": "List, show, pause, resume and empty queues.",
    "jobs": "List, show, enqueue, retry, run, reschedule, cancel and delete jobs.",
    "failures": "Show the failures of the last hour, grouped by task and root cause.",
    "batches": "List batches, show the progress of one, cancel one with everything in it.",
    "tasks": "List the tasks that an app declares, and how many jobs wait for each.",
    "alerts": "List the alerts that are firing, and send a test message of one.",
    "nodes": "List, quiet, resume, rename and stop worker processes, and change their slots.",
    "audit": "Show changes by people to jobs, limits, queues, schedules and nodes, and their sign-ins, newest first.",
    "schedules": "List, create, edit, pause, resume, trigger, skip and remove schedules.",
    "limits": "Show the budget of each key, and change limits while jobs wait.",
    "doctor": "Check this process, the store, its server or disk, nodes, and jobs that no worker runs.",
    "purge": "Delete final jobs for good, with their results, attempts and log lines.",
    "migrate": "Create the tables, or update them.",
    "backup": "Copy the SQLite file of an app while workers run, and check the copy.",
    "dashboard": "Serve the dashboard and its API until stopped.",
    "password": "Hash a password for a dashboard user, and print the hash.",
    "completion": "Print the completion script for bash, zsh or fish.",
    "init": "Write the files that run an app under Docker, systemd or Kubernetes.",
    "bench": "Measure how fast a store is on this machine: enqueueing, running, starting.",
    "simulate": "Simulate a load under a limit, before you set it.",
    "demo": "Watch Headgate keep its promises, in under a minute.",
    "version": "Show the versions: Headgate, Python, SQLite and optional packages.",
}
"""The sub-commands, each in the module of its name, with their lines in the list of commands."""

NOUNS = ("jobs", "queues", "limits", "schedules", "nodes", "batches", "alerts")
"""The commands that are groups about one kind of thing."""


class LazyGroup(click.Group):
    """A group that imports a command when it is called, and prints an error of Headgate as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        # Loaded code is not garbage. To look for garbage in it takes a tenth of the time in which a worker starts.
        gc.disable()
        try:
            command: click.Command = getattr(importlib.import_module(f"headgate.cli.{cmd_name}"), cmd_name)
        finally:
            gc.enable()
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise _with_own_option(error) from None
        except OSError as error:
            # Of the output of --help or --version.
            if error.errno == errno.EPIPE:
                raise
            raise click.ClickException(printable(str(error))) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            if (instead := foreign_words.COMMANDS.get(name)) is not None:
                ctx.fail(f"No such command {name!r}; write {instead}")
            # `pause` is near `purge`, which deletes jobs.
            groups = [(noun, self.get_command(ctx, noun)) for noun in NOUNS]
            near = [f"`headgate {noun} {name}`" for noun, group in groups if name in getattr(group, "commands", ())]
            near = near or [*map(repr, difflib.get_close_matches(name, COMMANDS, 1))]
            advice = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"No such command {name!r}.{advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        # None if it was closed, as by >&-.
        sys.stdin = sys.stdin or open(os.devnull)  # noqa: PTH123, SIM115
        sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: PTH123, SIM115
        sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A key may have characters that the encoding of a terminal, a pipe or a cron job lacks.
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            raise
        except click.ClickException as error:
            if isinstance(error, click.NoSuchOption) and ctx.invoked_subcommand == "worker":
                raise _with_own_option(error) from None
            _escape(error)
            raise
        except click.Abort as abort:
            if isinstance(abort.__context__, KeyboardInterrupt):
                _end_interrupted()
            raise
        except KeyboardInterrupt:
            # The terminal has echoed ^C.
            click.echo(err=True)
            _end_interrupted()
        except HeadgateError as error:
            raise click.ClickException(printable(str(error))) from error
        except OSError as error:
            # An error of the output or of a named file; stores and the user's module raise other errors.
            if error.errno == errno.EPIPE:
                raise
            raise click.ClickException(printable(str(error))) from error
        except UnicodeEncodeError as error:
            # Of an argument, a path or a variable; the output escapes what it cannot encode.
            near = error.object[max(error.start - 20, 0) : error.end + 20]
            raise click.ClickException(f"{near!r} is not UTF-8 text; write it in that encoding") from error
        except BaseExceptionGroup as group:
            expected, rest = group.split(HeadgateError)
            if expected is None or rest is not None:
                raise
            raise click.ClickException(printable("; ".join(map(str, _leaves(expected))))) from group


def _escape(error: click.ClickException) -> None:
    """Let the message, which may quote arguments, control no terminal."""
    error.message = printable(error.message)  # type: ignore[misc]  # Click does not copy it.


def _with_own_option(error: click.NoSuchOption) -> click.NoSuchOption:
    """Return the escaped error, with what to write instead of an option of another queue's worker."""
    name = error.option_name
    if (instead := foreign_words.WORKER_OPTIONS.get(name)) is not None:
        error = click.NoSuchOption(name, f"No such option {name!r}; write {instead}", ctx=error.ctx)
    _escape(error)
    return error


def _end_interrupted() -> NoReturn:
    click.echo("Aborted!", err=True)
    raise SystemExit(INTERRUPTED) from None


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Durable background jobs for Python, with a budget per key.

    Commands that work on an app take it as module:app (modules of the current directory are found, too), with
    -A module:app, or from HEADGATE_APP. With -A or HEADGATE_APP, the first argument of a command that takes a limit, a
    queue or a schedule is never read as an app.

    Exit codes: 0 done, 1 an error, printed as one line, 2 a usage error, 130 ended by Ctrl-C.
    """
