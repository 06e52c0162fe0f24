"""A program that never configured logging, or does so while its node runs."""

from __future__ import annotations

import asyncio
import logging
import sys

from headgate import Headgate, current_job

log = logging.getLogger("shop")


async def main(then: str) -> None:
    app = Headgate("memory://")

    @app.task
    async def work() -> None:
        log.error("in a job")
        log.info("too low for a job")
        current_job().log.info("own line")

    logging.getLogger("headgate").setLevel(logging.WARNING)
    original = logging.Logger.callHandlers
    log.error("before")
    async with app:
        log.error("while it runs")
        job = await work.enqueue()
        await job.result()
        if then == "configured":
            logging.basicConfig(level="INFO", format="own %(message)s")
        elif then == "forced":
            logging.basicConfig(level="INFO", format="first %(message)s")
            logging.basicConfig(level="INFO", format="own %(message)s", force=True)
        log.info("set up")
        later = await work.enqueue()
        await later.result()
        for each in (job, later):
            print("kept", [line.message for line in await app.admin.logs(each.id)])  # noqa: T201
    log.error("after")
    print("restored", logging.Logger.callHandlers is original)  # noqa: T201


asyncio.run(main(sys.argv[1]))
