"""Handlers that fork their node, and do not end the fork: it ends, and the node continues."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.until import patient

PROGRAM = """
import asyncio, os, sys
from collections.abc import AsyncIterator
from headgate import INJECTED, Handler, Headgate, RetryPolicy

app = Headgate(sys.argv[1], retry=RetryPolicy(retries=0))
mine = os.getpid()


class Session:
    pass


@app.resource(scope="attempt")
async def session() -> AsyncIterator[Session]:
    yield Session()
    if os.getpid() != mine:
        print("a fork committed", flush=True)


def fork(how: str) -> int:
    fork = os.fork()
    if fork == 0:
        if how == "raises":
            raise ValueError("of the fork")
        if how == "exits":
            sys.exit(7)
    return fork


@app.task
async def plain(how: str) -> int:
    return fork(how)


@app.task
def thread(how: str) -> int:
    return fork(how)


@app.task
async def resource(how: str, session: Session = INJECTED) -> int:
    return fork(how)


@app.chunked(1)
async def chunk(hows: list[str]) -> list[int]:
    return [fork(how) for how in hows]


@app.chunked(1)
def thread_chunk(hows: list[str]) -> list[int]:
    return [fork(how) for how in hows]


@app.handler
class Instance(Handler[str]):
    async def run(self, payload: str) -> int:
        return fork(payload)


async def main() -> None:
    async with app:
        for task in (plain, thread, resource, chunk, thread_chunk, Instance.task):
            for how in ("returns", "exits", "raises"):
                pid = await (await task.enqueue(how)).result()
                _, status = await asyncio.to_thread(os.waitpid, pid, 0)
                print(task.name, how, os.waitstatus_to_exitcode(status), flush=True)


asyncio.run(main())
"""


@pytest.mark.slow
def test_a_fork_that_a_handler_does_not_end_ends_where_it_leaves_the_handler(tmp_path: Path) -> None:
    """The fault: it ran the loop of its parent, whose sockets and signals it took; from a thread, it never ended."""
    arguments = [sys.executable, "-W", "ignore", "-c", PROGRAM, f"sqlite:///{tmp_path}/jobs.db"]
    ran = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        printed, errors = ran.communicate(timeout=patient(30))
    finally:
        # With what it has forked.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(ran.pid, signal.SIGKILL)
        ran.wait()
    codes = {"returns": 0, "exits": 7, "raises": 1}
    tasks = ("plain", "thread", "resource", "chunk", "thread_chunk", "Instance")
    assert printed.splitlines() == [f"{task} {how} {code}" for task in tasks for how, code in codes.items()], errors
    assert errors.count("ValueError: of the fork") == len(tasks)
