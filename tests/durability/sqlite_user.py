"""Another user of the file: a program with a connection of its own, or a store that writes as fast as it can."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from pathlib import Path

from headgate.clock import SystemClock
from tests.durability.stores import new_job, open_store
from tests.until import patient


def print_line(word: str, *values: object) -> None:
    os.write(1, f"{word} {json.dumps(values)}\n".encode())


def hold_the_write_lock(path: Path) -> None:
    """Begin a transaction, write, and commit on request."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=patient(10))
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("CREATE TABLE IF NOT EXISTS of_the_user (x)")
    connection.execute("INSERT INTO of_the_user VALUES (1)")
    print_line("locked")
    sys.stdin.readline()
    connection.execute("COMMIT")
    connection.close()
    print_line("released")


async def write_until_told(path: Path) -> None:
    """Small commits one after the other, at least one, from a first word to a second; how many there were."""
    async with open_store(path, joined=False) as storage:
        print_line("ready")
        listen = asyncio.get_running_loop().run_in_executor
        await listen(None, sys.stdin.readline)
        told = listen(None, sys.stdin.readline)
        now = SystemClock().now()
        commits = 0
        while not told.done() or not commits:
            await storage.add([new_job(now=now, id=f"{os.getpid()}-{commits}")])
            commits += 1
            if commits == 50:
                print_line("has-written-50")
    print_line("wrote", commits)


async def write_until_killed(path: Path) -> None:
    """Says the id of each job once it is acknowledged."""
    async with open_store(path, joined=False) as storage:
        print_line("ready")
        now = SystemClock().now()
        for number in range(1_000_000):
            jobs = [new_job(("calls", f"key {number % 7}"), now=now, payload='"' + "x" * 300 + '"') for _ in range(3)]
            await storage.add(jobs)
            print_line("acknowledged", *[job.id for job in jobs])


def main() -> None:
    options = json.loads(sys.argv[1])
    path = Path(options["path"])
    match options["role"]:
        case "hold the write lock":
            hold_the_write_lock(path)
        case "write until told":
            asyncio.run(write_until_told(path))
        case "write until killed":
            asyncio.run(write_until_killed(path))
        case other:
            raise SystemExit(f"no role {other!r}")


if __name__ == "__main__":
    main()
