"""The run log: what the handlers did, in a file, and checks of it afterwards."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import msgspec

from headgate.jobs.identity import job_text


class Line(msgspec.Struct, frozen=True):
    """One run of a handler: seconds of wall time when it ran, and when its attempt was claimed and charged."""

    job: str
    key: str
    at: float
    started: float
    attempt: int
    pid: int


def read_run_log(path: Path) -> list[Line]:
    if not path.exists():
        return []
    return [msgspec.convert(json.loads(line), Line) for line in path.read_text().splitlines()]


def runs_by_job(lines: Iterable[Line]) -> Counter[str]:
    return Counter(line.job for line in lines)


def most_in_a_window(lines: Iterable[Line], seconds: float, instant: str) -> int:
    """The largest number of lines of one key in any half open window of that length."""
    by_key: defaultdict[str, list[float]] = defaultdict(list)
    for line in lines:
        by_key[line.key].append(getattr(line, instant))
    most = 0
    for times in by_key.values():
        times.sort()
        first = 0
        for last, time in enumerate(times):
            while times[first] <= time - seconds:
                first += 1
            most = max(most, last - first + 1)
    return most


def count_endings(path: Path) -> None:
    """Record with a trigger of the file each time that a job becomes final."""
    connection = sqlite3.connect(path)
    try:
        connection.executescript(
            """
            CREATE TABLE ending (job TEXT NOT NULL, state TEXT NOT NULL);
            CREATE TRIGGER note_ending AFTER UPDATE OF state ON job WHEN new.finished_at IS NOT NULL
            BEGIN INSERT INTO ending (job, state) VALUES (new.id, new.state); END;
            """
        )
    finally:
        connection.close()


def endings(path: Path) -> Counter[str]:
    """How often each job became final."""
    connection = sqlite3.connect(path)
    try:
        return Counter(job_text(int(job)) for (job,) in connection.execute("SELECT job FROM ending"))
    finally:
        connection.close()


def damage(path: Path) -> str:
    """What SQLite finds wrong with the file; "ok" if nothing is."""
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()
