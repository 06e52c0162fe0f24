"""The same work in plain `sqlite3`, without a library: what the disk and SQLite allow a single thread."""

from __future__ import annotations

import socket
import sqlite3
import time
from pathlib import Path

from benchmarks.latency_probe import StartReceiver, gaps
from benchmarks.support import Latencies, new_file, own_process

SCHEMA = """
CREATE TABLE job (
    id INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    payload TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting',
    enqueued_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,
    result TEXT
);
CREATE INDEX job_waiting ON job (id) WHERE state = 'waiting';
"""

INSERT = "INSERT INTO job (task, payload, enqueued_at) VALUES ('noop', ?, ?)"
CLAIM = """
UPDATE job SET state = 'running', started_at = ?
WHERE id IN (SELECT id FROM job WHERE state = 'waiting' ORDER BY id LIMIT ?)
RETURNING id, payload
"""
FINISH = "UPDATE job SET state = 'succeeded', finished_at = ?, result = 'null' WHERE id = ? AND state = 'running'"


def throughput(folder: Path, *, jobs: int, bulk: int, batch: int) -> dict[str, float]:
    """Insert in commits of `bulk`, then claim and finish in commits of `batch` each."""
    connection = _new(new_file(folder))
    began = time.perf_counter()
    for first in range(0, jobs, bulk):
        _insert(connection, range(first, first + bulk))
    _run(connection, jobs, batch)
    return {"rate": jobs / (time.perf_counter() - began)}


def drain(folder: Path, *, jobs: int, batch: int) -> dict[str, float]:
    """Claim and finish in commits of `batch` each what was there before."""
    connection = _new(new_file(folder))
    _insert(connection, range(jobs))
    began = time.perf_counter()
    _run(connection, jobs, batch)
    return {"rate": jobs / (time.perf_counter() - began)}


def enqueue(folder: Path, *, jobs: int, bulk: int) -> dict[str, float]:
    """Insert in commits of `bulk`."""
    connection = _new(new_file(folder))
    began = time.perf_counter()
    for first in range(0, jobs, bulk):
        _insert(connection, range(first, first + bulk))
    return {"rate": jobs / (time.perf_counter() - began)}


def latency(folder: Path, *, probes: int) -> dict[str, float]:
    """Insert and commit, wake another process, which claims and commits: two commits and a datagram."""
    file = new_file(folder)
    connection = _new(file)
    wake_path = f"{file}-wake"
    latencies = Latencies()
    with (
        StartReceiver(folder) as receiver,
        own_process("benchmarks.peers.raw_consumer", str(file), receiver.path, wake_path),
    ):
        ring = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

        def enqueue(number: int) -> None:
            _insert(connection, range(number, number + 1))
            ring.sendto(b"!", wake_path)

        for number, gap in enumerate(gaps(probes), start=1):
            time.sleep(gap)
            latencies.add(receiver.ask(lambda number=number: enqueue(number), number))
    return latencies.metrics()


def _run(connection: sqlite3.Connection, jobs: int, batch: int) -> None:
    done = 0
    while done < jobs:
        rows = connection.execute(CLAIM, (time.time_ns(), batch)).fetchall()
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(FINISH, [(time.time_ns(), id) for id, _ in rows])
        connection.execute("COMMIT")
        done += len(rows)


def _insert(connection: sqlite3.Connection, numbers: range) -> None:
    now = time.time_ns()
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT, [(f'{{"number":{number}}}', now) for number in numbers])
    connection.execute("COMMIT")


def connect(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _new(file: Path) -> sqlite3.Connection:
    connection = connect(file)
    connection.executescript(SCHEMA)
    return connection
