"""Django tasks of every kind."""

# Django has no types.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from headgate import RateLimited, RetryPolicy, StrictRate, current_job
from headgate.contrib.django import task_options
from headgate.contrib.django.standard import tasks

task: Any = tasks.task

connections_seen: list[tuple[int, bool]] = []


@task
def add(a: int, b: int = 1, *, scale: int = 1) -> int:
    return (a + b) * scale


@task
def anything(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


@task
async def add_soon(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@task
async def add_later(a: int, b: int) -> str:
    return str((await add.aenqueue(a, b)).id)


@task
@task_options(aliases=["tests.faces.contrib.shop.tasks.old_name"])
def new_name(a: int) -> int:
    return a


@task
def fail(text: str) -> None:
    raise ValueError(text)


@task(takes_context=True)
@task_options(retry=RetryPolicy(retries=2, delay=0))
def third_time(context: Any, name: str) -> list[Any]:
    if context.attempt < 3:
        raise RuntimeError(f"attempt {context.attempt} of {name}")
    return [
        context.attempt,
        len(context.task_result.errors),
        context.task_result.kwargs | {"args": context.task_result.args},
    ]


@task
def work_until_cancelled() -> None:
    while not current_job().cancelled:
        time.sleep(0.01)


@task(takes_context=True)
async def own_id(context: Any) -> str:
    return str(context.task_result.id)


@task
@task_options(limits=[StrictRate("1/h", key="{tenant_id}")], timeout=30)
def sync_tenant(tenant_id: str) -> str:
    return tenant_id


@task
@task_options(limits=[StrictRate("100/s", key="{tenant_id}")])
def refused_once(tenant_id: str) -> int:
    if current_job().waited_for < 0.05:
        raise RateLimited(retry_after=0.1)
    return current_job().attempt


@task
def insert(name: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO note VALUES (%s)", [name])
        connections_seen.append((threading.get_ident(), connection.connection is not None))
    return 1


@task
@task_options(retry=RetryPolicy(retries=0))
def insert_once(name: str) -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO note VALUES (%s)", [name])
        current_job().sync.complete(connection.connection)
    raise ValueError("after the commit")


@task
async def insert_soon(name: str) -> int:
    def insert() -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO note VALUES (%s)", [name])

    await sync_to_async(insert)()
    return 1


@task
def is_connected() -> bool:
    return connection.connection is not None
