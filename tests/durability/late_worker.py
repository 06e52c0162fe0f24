"""A worker under a strict limit whose handlers are called late and kill it; options: where the jobs are, how late."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from headgate import Headgate, StrictRate
from headgate.clock import SystemClock
from tests.durability.chain_worker import store
from tests.durability.worker import print_line
from tests.internals import app_on

PER = 8


def make_app(options: dict[str, Any]) -> Headgate:
    app = app_on(store(options), heartbeat=0.25, lease=4)

    @app.around_attempt
    async def delay(attempt: Any, call: Callable[[], Awaitable[Any]]) -> Any:
        await asyncio.sleep(options.get("late", 0))
        return await call()

    @app.task(name="call", limits=[StrictRate(1, per=PER)])
    async def call(number: int) -> None:
        print_line("call", number, SystemClock().monotonic())
        if options.get("late"):
            # Before the event loop can write anything more.
            os.kill(os.getpid(), signal.SIGKILL)

    return app


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(make_app(json.loads(sys.argv[1])).run())
