"""The app of one of the engines on Redis (ENGINE_NAME) at ENGINE_REDIS, whose jobs write on the board ENGINE_BOARD."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.board import Board

NAME = os.environ["ENGINE_NAME"]
URL = os.environ["ENGINE_REDIS"]
SLOTS = int(os.environ["ENGINE_SLOTS"])
BOARD = Board(Path(os.environ["ENGINE_BOARD"]))


def call(number: int) -> None:
    BOARD.begin(number)


async def call_on_loop(number: int) -> None:
    BOARD.begin(number)


if NAME == "celery":
    from celery import Celery

    app = Celery("bench", broker=URL)
    app.conf.task_ignore_result = True
    celery_task = app.task(name="call")(call)

    def send(numbers: Sequence[int]) -> None:
        with app.connection_or_acquire() as connection, app.amqp.Producer(connection) as producer:
            for number in numbers:
                celery_task.apply_async((number,), producer=producer)

elif NAME == "dramatiq":
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    dramatiq.set_broker(RedisBroker(url=URL))
    actor = dramatiq.actor(actor_name="call")(call)

    def send(numbers: Sequence[int]) -> None:
        for number in numbers:
            actor.send(number)

elif NAME == "taskiq":
    from taskiq_redis import RedisStreamBroker

    broker = RedisStreamBroker(URL)
    taskiq_task = broker.task(task_name="call")(call_on_loop)

    async def _kick(numbers: Sequence[int]) -> None:
        await broker.startup()
        for number in numbers:
            await taskiq_task.kiq(number)
        await broker.shutdown()

    def send(numbers: Sequence[int]) -> None:
        asyncio.run(_kick(numbers))

elif NAME == "rq":
    import redis
    import rq

    queue = rq.Queue(connection=redis.Redis.from_url(URL))

    def send(numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), 500):
            queue.enqueue_many(
                [rq.Queue.prepare_data(call, (number,), result_ttl=0) for number in numbers[first : first + 500]]
            )

elif NAME == "saq":
    from saq import Queue

    # 100 slots need more connections than redis-py allows by default; a job that gets none is never begun.
    saq_queue = Queue.from_url(f"{URL}?max_connections={10 * SLOTS}")

    async def saq_call(context: Any, *, number: int) -> None:
        BOARD.begin(number)

    saq_settings = {"queue": saq_queue, "functions": [("call", saq_call)], "concurrency": SLOTS}

    async def _enqueue(numbers: Sequence[int]) -> None:
        await saq_queue.connect()
        for number in numbers:
            await saq_queue.enqueue("call", number=number)
        await saq_queue.disconnect()

    def send(numbers: Sequence[int]) -> None:
        asyncio.run(_enqueue(numbers))

else:
    from huey import RedisHuey

    huey = RedisHuey(url=URL, results=False)
    huey_task = huey.task(name="call")(call)

    def send(numbers: Sequence[int]) -> None:
        for number in numbers:
            huey_task(number)
