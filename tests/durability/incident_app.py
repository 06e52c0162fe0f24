"""The app of the incident drill, in the releases that are deployed one after the other."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

from headgate import Headgate, RetryPolicy, StrictRate, current_job

RELEASE = int(os.environ.get("RELEASE", "1"))
RUN_LOG = Path(os.environ.get("RUN_LOG", os.devnull))

app = Headgate(
    os.environ.get("HEADGATE_URL", "memory://"), heartbeat=0.5, lease=3, grace=1, retry=RetryPolicy(base=0.1)
)
app.queue("calls", concurrency=8)
app.queue("threads", concurrency=2)


def note(what: str) -> None:
    """One line in a file on another disk: a handler was here."""
    with RUN_LOG.open("a") as run_log:
        run_log.write(f"{what} {current_job().id} {current_job().attempt}\n")


@app.task(queue="calls", limits=[StrictRate("10/s", key="{tenant}")])
async def charge(tenant: str, number: int) -> int:
    note("charge")
    await asyncio.sleep(0.02)
    return number


@app.task
async def report(number: int, seconds: float = 0.2) -> int:
    note("report")
    await asyncio.sleep(seconds)
    return number


@app.task(queue="calls", timeout=0.5, retry=RetryPolicy(retries=1, base=0.1))
async def hang(number: int) -> int:
    note("hang")
    await asyncio.sleep(3600)
    return number


@app.task(queue="threads", timeout=0.5, retry=RetryPolicy(retries=0))
def stuck(number: int) -> int:
    note("stuck")
    threading.Event().wait(3)
    return number


async def send(number: int) -> int:
    note("send")
    return number


# Release 2 forgets that jobs of the old name are stored; release 3 remembers.
if RELEASE == 1:
    app.task(name="send_mail")(send)
elif RELEASE == 2:
    app.task(name="send_message")(send)
else:
    app.task(name="send_message", aliases=["send_mail"])(send)
