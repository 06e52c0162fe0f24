"""Green threads, as `gunicorn -k gevent` has: one thread of the system and of asyncio, which all of them share."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.until import patient

pytestmark = pytest.mark.skipif(importlib.util.find_spec("gevent") is None, reason="no gevent: make setup installs it")

PATCHED_LATE = """
import os, sys
from headgate import Headgate

app = Headgate(f"sqlite:///{sys.argv[1]}/jobs.db", synchronous="OFF")

@app.task
def work(): ...

if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
from gevent import monkey
monkey.patch_all()
import gevent
gevent.joinall([gevent.spawn(work.sync.enqueue) for _ in range(3)], raise_error=True)
print(sum(queue.waiting for queue in app.sync.admin.queues.list()))
"""

USES = {
    "an app": ('app = Headgate(f"sqlite:///{sys.argv[1]}/jobs.db", synchronous="OFF")', "app.sync.admin.now()"),
    "a limiter": ('limiter = Limiter(RateLimit("9/s", name="calls"), sys.argv[2])', "limiter.sync.try_acquire()"),
}

WITH_LOOPS = """
from gevent import monkey
monkey.patch_all()
import asyncio, sys
from headgate import Headgate, Limiter, RateLimit

{made}

async def view():
    {used}
    await asyncio.sleep(0.01)

def require_none():
    # As Django before each query.
    if asyncio._get_running_loop() is not None:
        sys.exit("a loop runs in this thread")

for _ in range(2):
    asyncio.run(view())
    require_none()
    {used}
    require_none()
print("done")
"""


def output_of(program: str, *arguments: object) -> str:
    command = [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(30), check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_green_threads_enqueue_in_a_program_that_was_imported_before_it_was_patched(tmp_path: Path) -> None:
    """The fault: with `gunicorn -k gevent --preload` and SQLite, the first enqueue stopped the process for ever."""
    assert output_of(PATCHED_LATE, tmp_path) == "3\n"


@pytest.mark.parametrize("used", USES)
def test_green_threads_have_event_loops_of_their_own(used: str, tmp_path: Path, redis_url: str) -> None:
    """The fault: after the first call Django refused each query, and no other event loop could run; or it failed."""
    made, call = USES[used]
    assert output_of(WITH_LOOPS.format(made=made, used=call), tmp_path, redis_url) == "done\n"
