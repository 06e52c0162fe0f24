"""The `headgate` command: knows the names of all sub-commands, and loads the one that is used."""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import click

from headgate.cli.exit_codes import INTERRUPTED
from headgate.errors import HeadgateError
from headgate.escaping import printable
from headgate.version import VERSION


class Lazy(NamedTuple):
    """Where a sub-command is, and the line that the list of commands shows of it."""

    module: str
    summary: str


COMMANDS: Mapping[str, Lazy] = {
    "worker": Lazy("headgate.cli.worker", "Run jobs until told to stop."),
    "status": Lazy("headgate.cli.status", "Show what is going on: queues, nodes, limits, what is in the way."),
    "top": Lazy("headgate.cli.top", "Watch what goes on: queues, throughput, throttled keys, nodes, failures."),
    "queues": Lazy("headgate.cli.queues", "List, pause, resume and empty queues."),
    "jobs": Lazy("headgate.cli.jobs", "List, show, enqueue, retry, run and cancel jobs; read what they logged."),
    "batches": Lazy("headgate.cli.batches", "List batches, show how far one is, cancel what is left of it."),
    "tasks": Lazy("headgate.cli.tasks", "List the tasks that an app declares, and what waits for each."),
    "nodes": Lazy("headgate.cli.nodes", "List the worker processes."),
    "audit": Lazy("headgate.cli.audit", "Show what people did to jobs, limits, queues and schedules, newest first."),
    "schedules": Lazy("headgate.cli.schedules", "List, pause, resume, trigger, skip and remove schedules."),
    "limits": Lazy("headgate.cli.limits", "Show the budget of each key, and steer it live."),
    "doctor": Lazy(
        "headgate.cli.doctor",
        "Look for what may go wrong: this process, the store and its ground, nodes, and work that nobody does.",
    ),
    "purge": Lazy("headgate.cli.purge", "Delete final jobs for good, with their results, attempts and log lines."),
    "migrate": Lazy("headgate.cli.migrate", "Make the tables, or bring them up to date."),
    "dashboard": Lazy("headgate.cli.dashboard", "Serve the dashboard and its API until told to stop."),
    "password": Lazy("headgate.cli.password", "Print the hash of a password, for the users of a dashboard."),
    "completion": Lazy("headgate.cli.completion", "Print what makes a shell complete `headgate`: bash, zsh or fish."),
    "bench": Lazy("headgate.cli.bench", "Measure how fast a store is on this machine: enqueueing, running, starting."),
    "simulate": Lazy("headgate.cli.simulate", "Tell what a limit would do to a load, before it does."),
    "demo": Lazy("headgate.cli.demo", "Watch Headgate keep its promises, in under a minute."),
    "version": Lazy("headgate.cli.version", "Show the versions of Headgate and of what it runs on."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called; errors that Headgate raises become one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        command: click.Command = getattr(importlib.import_module(lazy.module), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS)
            ctx.fail(f"No such command {name!r}.{f' Did you mean {near[0]!r}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        # None where it was closed, as by >&-.
        sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: PTH123, SIM115
        sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except click.Abort as abort:
            if isinstance(abort.__context__, KeyboardInterrupt):
                _end_interrupted()
            raise
        except KeyboardInterrupt:
            # The terminal has echoed ^C.
            click.echo(err=True)
            _end_interrupted()
        except (Exception, BaseExceptionGroup) as error:
            if isinstance(error, HeadgateError):
                raise click.ClickException(printable(str(error))) from error
            if isinstance(error, OSError) and error.errno != errno.EPIPE:
                # Of the output or of a file that was named; a store and the user's module tell theirs otherwise.
                raise click.ClickException(printable(str(error))) from error
            expected, others = error.split(HeadgateError) if isinstance(error, BaseExceptionGroup) else (None, error)
            if expected is None or others is not None:
                raise
            raise click.ClickException(printable("; ".join(map(str, _leaves(expected))))) from error


def _end_interrupted() -> NoReturn:
    click.echo("Aborted!", err=True)
    raise SystemExit(INTERRUPTED) from None


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION)
def main() -> None:
    """Durable background jobs for Python, with a budget per key.

    Commands that work on an app take it as module:app (the module is looked for in the current directory, too), with
    -A module:app, or from HEADGATE_APP. With one of the latter two, no word of a command that takes a limit, a queue or
    a schedule is taken for an app.

    Exit codes: 0 done, 1 an error that is told in one line, 2 the command was not written right, 130 ended by Ctrl-C.
    """
