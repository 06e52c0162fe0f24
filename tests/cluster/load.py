"""The work of the cluster tests: tenants with budgets of several kinds, and a log of each start."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headgate import FixedWindow, Headgate, Mutex, RateLimit, RetryPolicy, StrictRate, Task, current_job

TENANT = StrictRate(8, per=3, margin=0.2, key="{tenant}", name="tenant")
EVERYONE = RateLimit(300, per=1, margin=0.2, name="everyone")
MAIL = RateLimit(20, per=1, margin=0.2, name="mail")


def daily(seconds: float) -> FixedWindow:
    """What a tenant may use in a day: more than a busy one can in a run of that length, so only weights meet it."""
    return FixedWindow(20 + round(seconds * 8 / 3), per=86400, margin=1, key="{tenant}", cost="{weight}", name="daily")


class Tasks:
    """The tasks of the load, declared on an app."""

    def __init__(self, app: Headgate, seconds: float, run_log: RunLog | None = None) -> None:
        run_log = run_log or RunLog(Path(os.devnull))

        @app.task(limits=[TENANT, daily(seconds), EVERYONE], retry=RetryPolicy(retries=3))
        async def sync(tenant: str, weight: int = 1) -> None:
            run_log.begin(tenant, weight)

        @app.task(limits=[MAIL])
        async def mail(number: int) -> None:
            run_log.begin("", 1)

        @app.task(limits=[Mutex("doc:{resource}")])
        async def edit(resource: int) -> None:
            run_log.begin(str(resource), 1)
            try:
                await asyncio.sleep(0.1)
            finally:
                run_log.end()

        self.sync: Task[..., None] = sync
        self.mail: Task[..., None] = mail
        self.edit: Task[..., None] = edit


class RunLog:
    """The log of the runs of one process: each line is in the file before the handler continues."""

    def __init__(self, path: Path) -> None:
        # A node that was declared dead joins again with another id.
        self.node: Callable[[], str] = str
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def begin(self, key: str, weight: int) -> None:
        job = current_job()
        self._write(
            "begin", job=job.id, task=job.task, key=key, weight=weight, day=int(time.time() // 86400), node=self.node()
        )

    def end(self) -> None:
        self._write("end", job=current_job().id, node=self.node())

    def lost(self, node: str) -> None:
        """Another node was declared dead, and its jobs wait again."""
        self._write("lost", node=node)

    def disowned(self, node: str) -> None:
        self._write("disowned", node=node)

    def _write(self, kind: str, **values: Any) -> None:
        at = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
        os.write(self._file, json.dumps({"kind": kind, "at": at, **values}).encode() + b"\n")
