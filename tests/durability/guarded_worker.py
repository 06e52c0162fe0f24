"""A worker process whose jobs write down when they entered and left a mutex.

With `freezes` its event loop waits for a word right after the commit of the first claim that gave it a job, so that it
can be stopped there, as a paused machine is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from headgate import Headgate, Mutex, RetryPolicy, StrictRate, current_job
from headgate.clock import SECOND, SystemClock
from headgate.jobs.event import Event, LeaseNotRenewed, NodeDeclaredDead, NodeLost, NodeStarted
from headgate.storage.choice import choose_storage
from headgate.storage.records import Claim, Claimed
from tests.durability.worker import print_line
from tests.internals import app_on


class Visit(msgspec.Struct):
    """One word of a handler: when (the machine's monotonic clock, µs), in which process, with what token."""

    word: str
    at: int
    pid: int
    job: str
    token: int


def read_visits(path: Path) -> list[Visit]:
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted((msgspec.json.decode(line, type=Visit) for line in lines), key=lambda visit: visit.at)


def may_leave(run_log: Path) -> Path:
    """The file whose appearance ends the jobs that are inside."""
    return run_log.with_name(f"{run_log.name}.leave")


def most_inside(visits: list[Visit]) -> int:
    """How many were inside of the mutex at once, at the most."""
    inside = most = 0
    for visit in visits:
        inside += 1 if visit.word == "enters" else -1
        most = max(most, inside)
    return most


def guarded_app(url: str, run_log: Path, *, freezes: bool = False, **settings: Any) -> Headgate:
    clock = SystemClock()
    storage: Any = choose_storage(
        url, clock, synchronous="FULL", schema="headgate", listen_url=None, connections=settings.pop("connections", 8)
    )
    if freezes:
        commit = storage.claim

        async def claim(asked: Claim) -> Claimed:
            nonlocal freezes
            claimed: Claimed = await commit(asked)
            if claimed.jobs and freezes:
                freezes = False
                print_line("claimed")
                sys.stdin.readline()
            return claimed

        storage.claim = claim
    app = app_on(storage, retry=RetryPolicy(retries=0), **settings)

    def write(word: str) -> None:
        job = current_job()
        line = msgspec.json.encode(Visit(word, clock.monotonic(), os.getpid(), job.id, job.fencing_token))
        file = os.open(run_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line + b"\n")
        finally:
            os.close(file)

    async def inside(seconds: float) -> None:
        write("enters")
        print_line("inside", current_job().id)
        try:
            ends = clock.monotonic() + seconds * SECOND
            while clock.monotonic() < ends and not may_leave(run_log).exists():  # noqa: ASYNC110  # another process says so
                await asyncio.sleep(0.02)
        finally:
            write("leaves")

    @app.task(limits=[Mutex("door")])
    async def enter(seconds: float) -> None:
        await inside(seconds)

    @app.task(limits=[Mutex("door"), StrictRate("100/s", name="calls")])
    async def call(seconds: float) -> None:
        await inside(seconds)

    return app


def tell_parent(event: Event) -> None:
    match event:
        case NodeStarted() | NodeDeclaredDead():
            print_line(type(event).__name__, event.node)
        case NodeLost():
            print_line("NodeLost", event.node, event.returned)
        case LeaseNotRenewed():
            print_line("LeaseNotRenewed", event.seconds, event.cancelled)


async def main(options: dict[str, Any]) -> None:
    app = guarded_app(options.pop("url"), Path(options.pop("run_log")), **options)
    app.subscribe(tell_parent, NodeStarted, NodeDeclaredDead, NodeLost, LeaseNotRenewed)
    await app.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(json.loads(sys.argv[1])))
