"""Threads that commit their own jobs, killed beside another process that writes: what is acknowledged is there once."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest

from tests.durability.processes import Children
from tests.until import until

ENOUGH = 150
"""Acknowledged jobs of each process before it is killed."""


def lines_of(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


@pytest.mark.parametrize("threads", [1, 4])
async def test_acknowledged_jobs_of_killed_threads_are_there_once_and_in_order(
    database: Path, tmp_path: Path, children: Children, threads: int
) -> None:
    logs = [tmp_path / f"acknowledged-{place}" for place in range(2)]
    processes = [
        await children.start(
            "thread_that_enqueues.py",
            url=f"sqlite:///{database}",
            acknowledged=str(log),
            threads=threads,
            name=log.name,
        )
        for log in logs
    ]
    for process, log in zip(processes, logs, strict=True):
        await until(lambda log=log: len(lines_of(log)) >= ENOUGH, 30)  # type: ignore[misc]
        process.signal(signal.SIGKILL)
        await process.process.wait()

    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        payloads = [json.loads(text) for (text,) in connection.execute("SELECT payload FROM job ORDER BY id")]
    stored: defaultdict[str, list[int]] = defaultdict(list)
    for payload in payloads:
        stored[payload["of"]].append(payload["number"])
    acknowledged: defaultdict[str, int] = defaultdict(int)
    for log in logs:
        for line in lines_of(log):
            acknowledged[line.split()[0]] += 1
    assert len(stored) == 2 * threads
    for of, numbers in stored.items():
        # In the order of the calls, each once, and at most the job of one call more than were acknowledged.
        assert numbers == list(range(len(numbers))), of
        assert acknowledged[of] <= len(numbers) <= acknowledged[of] + 1
