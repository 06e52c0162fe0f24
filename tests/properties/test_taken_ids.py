"""Whatever producers with one number enqueue, each of their jobs is stored, once, under an id of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate import Headgate, Job, StrictRate, batch, chain
from headgate.jobs.identity import process_name
from headgate.jobs.query import JobFilter
from tests.internals import make_ids_again, store_of
from tests.properties.test_storage_model import drop_schema

KINDS = ["one", "many", "gated", "keyed", "own", "tagged", "chain", "batch", "grown", "mine"]

calls = st.lists(st.tuples(st.booleans(), st.sampled_from(KINDS), st.integers(0, 3)), min_size=2, max_size=12)


@contextmanager
def host(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """Enqueue as a process on another machine would."""
    with monkeypatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: name)
        process_name.cache_clear()
        try:
            yield
        finally:
            process_name.cache_clear()


def enqueuing(app: Headgate) -> Callable[[str, int], Awaitable[list[str]]]:
    """Return a function that enqueues something with this number, and returns the ids of its jobs."""

    @app.task
    async def plain(number: int, leader: Any = None) -> None: ...

    @app.task(limits=[StrictRate("1/d", key="{number}", name="calls")])
    async def gated(number: int) -> None: ...

    async def enqueue(kind: str, number: int) -> list[str]:
        jobs: list[Job[Any]]
        match kind:
            case "many":
                jobs = await plain.enqueue_many([(number,), (number,), (number,)])
            case "gated":
                jobs = [await gated.enqueue(number)]
            case "keyed":
                jobs = [await plain.using(unique_key=str(uuid.uuid4())).enqueue(number)]
            case "own":
                jobs = [await plain.using(id=uuid.uuid4()).enqueue(number)]
            case "mine":
                async with store_of(app).transaction() as connection:
                    jobs = await plain.using(connection=connection).enqueue_many([(number,), (number,)])
            case "tagged":
                jobs = [await plain.using(tags=["vip"]).enqueue(number)]
            case "chain":
                jobs = list((await chain(plain.call(number), plain.call(number)).enqueue()).jobs)
            case "batch":
                jobs = list((await batch([plain.call(number), plain.call(number)]).enqueue()).jobs)
            case "grown":
                grown = await batch([plain.call(number)]).enqueue()
                jobs = [*grown.jobs, *await grown.add([plain.call(number), plain.call(number)])]
            case _:
                jobs = [await plain.enqueue(number)]
        return [job.id for job in jobs]

    return enqueue


async def every_job_is_stored_once(
    monkeypatch: pytest.MonkeyPatch, open_app: Callable[[], Headgate], asked: list[tuple[bool, str, int]]
) -> None:
    apps = [open_app(), open_app()]
    enqueues = [enqueuing(app) for app in apps]
    async with apps[0].open(), apps[1].open():
        made: list[str] = []
        expected: dict[str, tuple[str, int]] = {}
        for place, (is_second, kind, number) in enumerate(asked):
            name = f"host-{place}"
            make_ids_again(apps[is_second], producer=7)
            with host(monkeypatch, name):
                ids = await enqueues[is_second](kind, number)
            assert len(set(ids)) == len(ids)
            made += ids
            expected |= dict.fromkeys(ids, (name, number))
        assert len(made) == len(set(made)), "two handles have one id"
        records = await store_of(apps[0]).jobs(JobFilter(count=1000))
        stored = {
            record.id: (str(record.enqueued_by).partition(":")[0], int(record.payload.partition(":")[2].rstrip("}")))
            for record in records
        }
        assert stored == expected
        assert list(await store_of(apps[0]).check()) == []


@settings(
    max_examples=int(os.environ.get("HEADGATE_TEST_MODEL_EXAMPLES", "25")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(asked=calls)
def test_sqlite_stores_every_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: list[tuple[bool, str, int]]
) -> None:
    url = f"sqlite:///{tmp_path / uuid.uuid4().hex}.db"
    asyncio.run(every_job_is_stored_once(monkeypatch, lambda: Headgate(url), asked))


@pytest.mark.nightly
@settings(
    max_examples=int(os.environ.get("HEADGATE_TEST_MODEL_EXAMPLES", "10")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(asked=calls)
def test_postgres_stores_every_job(
    monkeypatch: pytest.MonkeyPatch, postgres_url: str, asked: list[tuple[bool, str, int]]
) -> None:
    schema = f"taken_{uuid.uuid4().hex[:16]}"
    asyncio.run(
        every_job_is_stored_once(monkeypatch, lambda: Headgate(postgres_url, schema=schema, migrate=True), asked)
    )
    asyncio.run(drop_schema(postgres_url, schema))
