"""What type checkers see of handlers, callbacks and resources: checked by mypy, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import assert_type

from headgate import INJECTED, Handler, Headgate, Job, JobContext, StrictRate, Task
from headgate.client.handles import SyncJob
from headgate.client.task import SyncTask
from headgate.tasks.call import Call

app = Headgate("memory://")


@dataclass
class Order:
    tenant_id: str


class Session: ...


@app.resource
async def session() -> AsyncIterator[Session]:
    yield Session()


@app.resource(scope="attempt")
async def text(session: Session) -> AsyncIterator[str]:
    yield "text"


@app.handler
class Ship(Handler[Order]):
    async def run(self, payload: Order, session: Session = INJECTED) -> int:
        return len(payload.tenant_id)

    async def on_completed(self, job: JobContext, result: int) -> None: ...

    def on_error(self, job: JobContext, error: BaseException) -> None: ...


@app.handler(limits=[StrictRate("15/m", key="{tenant_id}")])
class Print(Handler[Order]):
    def run(self, payload: Order) -> str:
        return payload.tenant_id


@app.task
async def pay(amount: float, session: Session = INJECTED) -> bool:
    return amount > 0


@pay.on_started
async def started(job: JobContext) -> None: ...


@pay.on_completed
def completed(job: JobContext, result: bool) -> None: ...


@pay.on_error
async def failed(job: JobContext, error: BaseException) -> None: ...


@pay.on_retry
async def retried(job: JobContext, error: BaseException, attempt: int, delay: float) -> None: ...


@app.task(process=True)
def compute(numbers: list[float]) -> float:
    return sum(numbers)


@app.chunked(100)
async def index(orders: list[Order]) -> list[str | Exception]:
    return [order.tenant_id or ValueError("no tenant") for order in orders]


@app.chunked(100)
def weigh(orders: list[Order]) -> list[float]:
    return [1.0 for _ in orders]


async def results_of_chunks_are_those_of_one_job_without_the_exceptions() -> None:
    assert_type(await index.enqueue(Order("acme")), Job[str])
    assert_type(await (await weigh.enqueue(Order("acme"))).result(), float)


async def handlers_are_typed_all_the_way() -> None:
    assert_type(Ship.task, Task[[Order], int])
    Ship.delay(Order("acme"))  # type: ignore[attr-defined]
    assert_type(await Ship.enqueue(Order("acme")), Job[int])
    assert_type(await Ship.task.using(delay=5).enqueue(Order("acme")), Job[int])
    assert_type(await (await Print.enqueue(Order("acme"))).result(), str)
    assert_type(Print().run(Order("acme")), str)
    assert_type(await pay.enqueue(2.5), Job[bool])
    assert_type(await compute.enqueue([2.5]), Job[float])

    assert_type(Ship.using(delay=5, queue="mail"), Task[[Order], int])
    assert_type(await Print.using(priority=5).enqueue(Order("acme")), Job[str])
    assert_type(await Ship.enqueue_many([(Order("acme"),), Ship.using(delay=5).call(Order("acme"))]), list[Job[int]])
    assert_type(Print.call(Order("acme")), Call[str])
    assert_type(Ship.sync, SyncTask[[Order], int])
    assert_type(Print.sync.enqueue(Order("acme")), SyncJob[str])

    Ship.using(prioritee=5)  # type: ignore[call-overload]
    Ship.using(delay=["5m"])  # type: ignore[call-overload]
    Ship.call("acme")  # type: ignore[call-overload]
    Ship.sync.enqueue("acme")  # type: ignore[arg-type]
    await Ship.enqueue_many([("acme",)])  # type: ignore[list-item]
    await Ship.enqueue_many([Print.call(Order("acme"))])  # type: ignore[list-item]
    await Ship.enqueue("acme")  # type: ignore[call-overload]
    await Ship.enqueue()  # type: ignore[call-overload]
    await Print.task.enqueue(7)  # type: ignore[arg-type]


def callbacks_are_typed() -> None:
    @pay.on_completed  # type: ignore[arg-type]
    def other(job: JobContext, result: str) -> None: ...
