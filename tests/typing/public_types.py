"""What type checkers see of the public names: checked by mypy, never run."""

from __future__ import annotations

from typing import assert_type

from headgate import Headgate, Job, JobStatus, RateLimit, StrictRate
from headgate.tasks.sync_task import SyncJob

app = Headgate("memory://")


@app.task
async def plain(tenant_id: str, page: int = 1) -> int:
    return page


@app.task(limits=[StrictRate("15/m", key="{tenant_id}"), RateLimit(100, per=60)], timeout=30)
async def gated(tenant_id: str) -> list[str]:
    return [tenant_id]


@app.task
def threaded(amount: float) -> None: ...


async def enqueueing_is_typed_all_the_way() -> None:
    job = await plain.enqueue("acme", page=2)
    assert_type(job, Job[int])
    assert_type(await job.result(timeout=10), int)
    assert_type(await job.status(), JobStatus)
    assert_type(await job.cancel(), bool)
    assert_type(await (await gated.enqueue("acme")).result(), list[str])
    assert_type(await plain.enqueue_many([("acme",), plain.call("acme", page=2)]), list[Job[int]])
    assert_type((await plain.using(delay=60, priority=5).enqueue("acme")), Job[int])

    await plain.enqueue(1)  # type: ignore[arg-type]
    await plain.enqueue("acme", pages=2)  # type: ignore[call-arg]
    await gated.enqueue()  # type: ignore[call-arg]
    plain.call("acme", page="two")  # type: ignore[arg-type]


def enqueueing_without_await_is_typed_too() -> None:
    assert_type(plain.sync.enqueue("acme"), SyncJob[int])
    assert_type(plain.sync.enqueue("acme").result(timeout=1), int)
    assert_type(threaded.sync.enqueue(1.5).result(), None)
    plain.sync.enqueue(None)  # type: ignore[arg-type]
