"""The app of these tests, with untrusted names, keys and payloads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from headgate import (
    Concurrency,
    Cron,
    Every,
    Headgate,
    Job,
    JobFailed,
    RetryPolicy,
    StrictRate,
    batch,
    current_job,
)
from tests.until import result_within

HOSTILE = (
    "<img src=x onerror=owned(1)></script><script>owned(2)</script>'\"`${owned(3)} ü日本 \u202eLTR\u202c %2F &amp;"
)
"""Text that takes over a page which takes it for anything but text."""

LONG = "w" * 250
"""A word that nothing breaks."""

LIMIT = "lim/it <b onclick=owned(4)>\"x'</b> %25"
SCHEDULE = "sched/ule <img src=x onerror=owned(5)> 'ü\""
SPARE = "spare"
QUEUE = "mail"
FAIR = "imports"

PASSWORDS = {"ada": "ada's password", "olga": "olga's password", "vic": "vic's password"}
ROLES = {"ada": "admin", "olga": "operator", "vic": "viewer"}


def make_app(url: str, **settings: Any) -> Headgate:
    app = Headgate(url, **settings)
    app.queue(QUEUE, concurrency=4)
    app.queue(FAIR, concurrency=2, fair_by="{tenant}", weights={"big": 3}, aging=60)
    app.limit(SPARE, StrictRate("5/m", key="{tenant}"))

    @app.task(limits=[StrictRate("1/h", key="{tenant}", name=LIMIT)])
    async def sync_tenant(tenant: str) -> dict[str, str]:
        return {"tenant": tenant}

    @app.task(limits=[Concurrency(2, key="warehouse", name="permits")], queue=QUEUE, timeout=600)
    async def until_told(file: str) -> str:
        """Runs until there is such a file, so that a test decides when it ends."""
        job = current_job()
        job.log.info("waits for %s", HOSTILE)
        job.progress(0.4, HOSTILE)
        job.annotate(invoice=42, note=HOSTILE)
        while not Path(file).exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)
        return "told"

    @app.task(queue=QUEUE, retry=RetryPolicy(retries=0))
    async def fail(why: str) -> None:
        current_job().log.error("about to fail: %s", why)
        raise ValueError(f"{why} {LONG}")

    @app.task(queue=QUEUE, retry=RetryPolicy(retries=0))
    async def read_file(path: str, number: int) -> str:
        """Fails until there is such a file."""
        return Path(path).read_text()  # noqa: ASYNC240

    @app.task(queue=QUEUE)
    async def send_mail(to: str, words: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        return {"to": to, "words": words, HOSTILE: LONG}

    @app.task(queue=QUEUE)
    async def order(
        sku: str,
        count: Annotated[int, Meta(ge=0)] = 1,
        size: Literal["small", "large"] = "small",
        is_gift: bool = False,
        at: datetime | None = None,
        notes: Mapping[str, Any] | None = None,
        constructor: str = "",
    ) -> None: ...

    @app.task(queue=FAIR, tags=["import"])
    async def import_rows(tenant: str) -> None: ...

    @app.schedule(Cron("0 3 * * *", tz="Europe/Zurich"), name="nightly")
    @app.task(queue=QUEUE)
    async def nightly() -> None: ...

    @app.schedule(Every(hours=6), name=SCHEDULE)
    @app.task(queue=QUEUE)
    async def often() -> None: ...

    return app


@dataclass(frozen=True, slots=True)
class Seeds:
    """Ids of what is in the store, one of each kind."""

    succeeded: Job[Any]
    failed: Job[Any]
    running: Job[Any]
    throttled: Job[Any]
    scheduled: Job[Any]
    batch: str
    signal: Path


async def seed(app: Headgate, folder: Path) -> Seeds:
    """Let the worker run what has to have run, and leave some of each kind behind."""
    tasks = app.tasks
    signal = folder / "told"
    running = await tasks["until_told"].enqueue(str(signal))
    succeeded = await tasks["send_mail"].enqueue(HOSTILE, {"nested": {"</pre>": [HOSTILE, LONG, None, True]}})
    failed = await tasks["fail"].enqueue(HOSTILE)
    first = await tasks["sync_tenant"].enqueue(HOSTILE)
    await tasks["sync_tenant"].enqueue(LONG)
    throttled = await tasks["sync_tenant"].enqueue(HOSTILE)
    scheduled = await tasks["send_mail"].using(delay=timedelta(hours=2), unique_key=HOSTILE).enqueue(LONG)
    batched = await batch([tasks["send_mail"].call("one"), tasks["send_mail"].call("two")]).enqueue()
    await app.admin.queues.pause("default")
    await app.admin.queues.resume("default")
    await app.admin.limits.penalize("permits", f"tenant:{LONG}", 60)
    await result_within(first, 60)
    await result_within(succeeded, 60)
    with suppress(JobFailed):
        await result_within(failed, 60)
    return Seeds(succeeded, failed, running, throttled, scheduled, batched.id, signal)
