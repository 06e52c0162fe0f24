"""Facts about the process that a command runs in: its Python, its libraries, its limits."""

from __future__ import annotations

import importlib.util
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from headgate.admin.findings import Finding

FEW_FILES = 1024
"""The open files that a process should be allowed: each connection, child and log needs one."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """Facts about this process. `open_files` is its soft limit, None if the system has none."""

    python: tuple[int, int, int]
    sqlite: tuple[int, ...]
    has_uvloop: bool
    has_zones: bool
    open_files: int | None


def process_facts() -> ProcessFacts:
    """Return the facts about this process."""
    return ProcessFacts(
        python=sys.version_info[:3],
        sqlite=sqlite3.sqlite_version_info,
        has_uvloop=importlib.util.find_spec("uvloop") is not None,
        has_zones=_has_zones(),
        open_files=_open_files(),
    )


def process_findings(facts: ProcessFacts) -> list[Finding]:
    """Return the findings of `headgate doctor` about a process."""
    python = ".".join(map(str, facts.python))
    found = [Finding("ok", "Python", f"{python}, with SQLite {'.'.join(map(str, facts.sqlite))}")]
    if facts.has_uvloop:
        found.append(Finding("ok", "event loop", "uvloop"))
    else:
        found.append(Finding("ok", "event loop", "asyncio's own; pip install 'headgate[uvloop]' makes workers faster"))
    if facts.has_zones:
        found.append(Finding("ok", "time zones", "installed"))
    else:
        found.append(Finding("problem", "time zones", "none, so schedules cannot use one", "pip install tzdata"))
    if facts.open_files is not None and facts.open_files < FEW_FILES:
        seen = f"at most {facts.open_files}"
        found.append(Finding("warning", "open files", seen, f"ulimit -n {FEW_FILES}, or LimitNOFILE= of the service"))
    else:
        found.append(Finding("ok", "open files", f"at most {facts.open_files}" if facts.open_files else "no limit"))
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
