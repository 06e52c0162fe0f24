"""`headgate doctor`: check an installation for problems."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import re
import shlex
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from headgate.admin.findings import Finding, Level, findings_of
from headgate.app import Headgate
from headgate.cli.locate import locate, takes_app
from headgate.cli.output import json_option, make_console, print_json
from headgate.errors import HeadgateError, StorageLost, StorageUnavailable
from headgate.escaping import printable
from headgate.limits.bucket_store import ReportsServer
from headgate.limits.standalone.limiter import open_store
from headgate.plural import counted
from headgate.urls import displayed_url

FEW_FILES = 1024
"""The open files that a process should be allowed: each connection, child and log needs one."""

_MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "problem": ("PROBLEM", "bold red")}


@click.command()
@takes_app
@click.option(
    "--deep", is_flag=True, help="Also check that jobs, nodes, lanes, buckets and indexes agree; reads all of them."
)
@click.option("--quiet", is_flag=True, help="Only warnings and problems.")
@json_option
def doctor(target: str, deep: bool, quiet: bool, as_json: bool) -> None:
    """Check this process, the store, its server or disk, nodes, and jobs that no worker runs.

    Each finding names what was found and what to do. Nothing is changed.

    Exit code 1 if there is a problem; warnings do not count.
    """
    app = locate(target)
    found = [
        *process_findings(
            has_uvloop=importlib.util.find_spec("uvloop") is not None,
            has_zones=_has_zones(),
            open_files=_open_files(),
        ),
        *asyncio.run(_examine(app, target, deep=deep)),
        *asyncio.run(_examine_limit_stores(app)),
    ]
    if as_json:
        print_json([each for each in found if not quiet or each.level != "ok"])
    else:
        print_findings([each for each in found if not quiet or each.level != "ok"], found)
    if any(each.level == "problem" for each in found):
        raise SystemExit(1)


async def _examine(app: Headgate, target: str, *, deep: bool) -> list[Finding]:
    """Return the findings about the store; a store that cannot be opened is one."""
    found = [Finding("ok", "store", app._client.address.shown)]
    file = app._client.address.file
    # Opening the store would create it.
    if file is not None and not file.exists():
        advice = "is this the right directory? The first worker makes it, and so does `headgate migrate`"
        return [Finding("problem", "store", f"there is no file {app._client.address.shown}", advice)]
    try:
        missing = await app.migrate(dry_run=True)
        if missing:
            advice = f"headgate migrate {target}; the rest was not checked, because that would change the tables"
            return [*found, Finding("problem", "migrations", f"missing: {', '.join(missing)}", advice)]
        found.append(Finding("ok", "migrations", "up to date"))
        async with app.open(migrate=False):
            write = None if file is None else await _write_finding(app, file)
            rest = [_with_target(each, target) for each in findings_of(await app.admin.checkup(deep=deep))]
            problems = {each.check for each in rest if each.level == "problem"}
            if write is not None and problems.isdisjoint(("blockers", "disk space")):
                # Else the other finding says who holds it, or that the disk is full, and what to do.
                found.append(write)
            return [*found, *rest]
    except HeadgateError as error:
        advice = "repair the server, the disk or the address, as the error says; workers then continue by themselves"
        is_away = isinstance(error, StorageUnavailable) and not isinstance(error, StorageLost)
        found = [] if is_away else found
        return [*found, Finding("problem", "store", str(error), advice if is_away else "the error says what to do")]


async def _write_finding(app: Headgate, file: Path) -> Finding:
    """Return whether a file can be written to; one that is locked for a moment is tried again, for 5 s."""
    advice = "as the error says; until then no job is stored, started or ended"
    try:
        # The transaction below changes nothing, so a disk that the kernel lets nobody write to any more allows it.
        _probe(file.resolve().parent)  # noqa: ASYNC240 (nothing else runs on this loop)
    except OSError as error:
        return Finding("problem", "disk", f"nothing can be written beside {file}: {error.strerror or error}", advice)
    app._storage.is_hurried = True
    seen = ""
    for _ in range(5):
        try:
            async with app._storage.transaction():
                return Finding("ok", "write lock", "free")
        except StorageUnavailable as error:
            seen = str(error)
    return Finding("problem", "write lock", seen, advice)


def _probe(folder: Path) -> None:
    """Write a file to the disk and delete it. Raises OSError."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
        probe.write(bytes(4096))
        os.fsync(probe.fileno())


def _with_target(finding: Finding, target: str) -> Finding:
    """Return the finding with whole commands, to be copied; with -A they work also if HEADGATE_APP is set."""
    if finding.advice is None:
        return finding
    commands = r"\bheadgate (\w+ (?:cancel|list|remove|reset|resume|test|unset)\b|worker(?= ))"
    return replace(finding, advice=re.sub(commands, rf"headgate \1 -A {shlex.quote(target)}", finding.advice))


async def _examine_limit_stores(app: Headgate) -> list[Finding]:
    """Return a finding for each URL where the app keeps limits, whether a limit uses it or not."""
    found: list[Finding] = []
    for url in sorted(app._client.remote_limits.urls):
        store = open_store(url, None)
        if not isinstance(store, ReportsServer):
            continue
        try:
            report = await store.report()
        except HeadgateError as error:
            advice = "start the server or correct the URL (HEADGATE_LIMITS_URL, limits_url=, or store= of a limit)"
            found.append(Finding("problem", "limits", f"{displayed_url(url)}: {error}", advice))
        else:
            level: Level = "ok" if report.advice is None else "warning"
            found.append(Finding(level, "limits", f"{displayed_url(url)}: {report.server}", report.advice))
        finally:
            await store.close()
    return found


def print_findings(shown: Sequence[Finding], all_of_them: Sequence[Finding]) -> None:
    """Print findings, and the number of each level."""
    console = make_console()
    width = max((len(each.check) for each in shown), default=0)
    for each in shown:
        mark, style = _MARKS[each.level]
        console.print(f"{mark:<7} ", style=style, end="")
        console.print(printable(f"{each.check:<{width}}  {each.seen}"))
        if each.advice is not None and each.level != "ok":
            console.print(printable(f"{'':<{8 + width}}  do: {each.advice}"))
    counts = Counter(each.level for each in all_of_them)
    click.echo(f"{counts['ok']} ok, {counted(counts['warning'], 'warning')}, {counted(counts['problem'], 'problem')}")


def process_findings(*, has_uvloop: bool, has_zones: bool, open_files: int | None) -> list[Finding]:
    """Return the findings about this process. `open_files` is its soft limit, None if the system has none."""
    version = f"{platform.python_version()}, with SQLite {sqlite3.sqlite_version}"
    found = [Finding("ok", "Python", version)]
    if has_uvloop:
        found.append(Finding("ok", "event loop", "uvloop"))
    else:
        found.append(Finding("ok", "event loop", "asyncio's own; pip install 'headgate[uvloop]' makes workers faster"))
    if has_zones:
        found.append(Finding("ok", "time zones", "installed"))
    else:
        found.append(Finding("problem", "time zones", "none, so schedules cannot use one", "pip install tzdata"))
    if open_files is not None and open_files < FEW_FILES:
        seen = f"at most {open_files}"
        found.append(Finding("warning", "open files", seen, f"ulimit -n {FEW_FILES}, or LimitNOFILE= of the service"))
    else:
        found.append(Finding("ok", "open files", f"at most {open_files}" if open_files else "no limit"))
    return found


def _has_zones() -> bool:
    try:
        ZoneInfo("Europe/Rome")
    except ZoneInfoNotFoundError:
        return False
    return True


def _open_files() -> int | None:
    if not Path("/dev").exists():
        return None
    import resource  # not on Windows

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
