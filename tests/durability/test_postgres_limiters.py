"""Limiters on PostgreSQL when programs compete, beside jobs of the same limit, and when the server goes away."""

from __future__ import annotations

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate import Headgate, Limiter, RateLimit, StrictRate
from headgate.errors import DeclarationError, GateClosed, StorageUnavailable, StorageUnusable
from headgate.limits.bucket_store import Bucket
from headgate.storage.postgres import shared_buckets
from headgate.storage.postgres.shared_buckets import PostgresBuckets
from tests.durability.budget import two_takers_use_exactly_the_budget
from tests.durability.postgres import ask
from tests.durability.processes import Children
from tests.durability.tcp_proxy import TcpProxy
from tests.internals import client_of
from tests.postgres_server import PostgresServer
from tests.until import becomes, result_within, until

HUNDRED = RateLimit(100, per=360_000, name="hundred")
"""100 an hour or so: what comes back during a test is less than one."""


def at(url: str, schema: str, **options: object) -> str:
    options = {"schema": schema, **options}
    return url + ("&" if "?" in url else "?") + "&".join(f"{name}={value}" for name, value in options.items())


@pytest.mark.nightly
async def test_two_processes_use_exactly_the_budget(
    postgres_url: str, postgres_schema: str, children: Children
) -> None:
    await two_takers_use_exactly_the_budget(children, at(postgres_url, postgres_schema), count=20, per=0.4, seconds=3)


async def test_a_limiter_and_the_jobs_of_a_limit_of_that_name_use_one_bucket(
    postgres_url: str, postgres_schema: str
) -> None:
    app = Headgate(postgres_url, schema=postgres_schema)
    ran: list[str] = []

    @app.task(limits=[RateLimit(2, per=360_000, burst=2, name="calls", key="{tenant}")])
    async def call(tenant: str) -> None:
        ran.append(tenant)

    two = RateLimit(2, per=360_000, burst=2, name="calls")
    async with Limiter(two, store=at(postgres_url, postgres_schema)) as limiter, app:
        assert await limiter.try_acquire("acme")
        await result_within(await call.enqueue("acme"))
        assert not await limiter.try_acquire("acme")
        assert await limiter.try_acquire("globex")
        # What plain code took, a job has to wait for, until it is given back, which wakes the worker.
        assert await limiter.try_acquire("globex")
        job = await call.enqueue("globex")
        # A later one, which does not have to wait, passes it.
        await result_within(await call.enqueue("initech"))
        assert ran == ["acme", "initech"]
        await limiter.reset("globex")
        await result_within(job)


async def test_threads_of_a_program_without_a_loop_share_one(postgres_url: str, postgres_schema: str) -> None:
    def program() -> tuple[int, int]:
        limiter = Limiter(HUNDRED, store=at(postgres_url, postgres_schema))
        with ThreadPoolExecutor(4) as threads:
            taken = list(threads.map(lambda _: bool(limiter.sync.try_acquire("a")), range(120)))
        used = limiter.sync.snapshot("a").used
        limiter.sync.close()
        with pytest.raises(GateClosed):
            limiter.sync.try_acquire("a")
        return sum(taken), used

    assert await asyncio.to_thread(program) == (100, 100)


async def test_connections_open_at_first_use_and_close_with_the_limiter(
    postgres: PostgresServer,
) -> None:
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headgate'"
    Limiter(HUNDRED, store="postgresql://nobody@127.0.0.1:1/nothing")
    limiter = Limiter(HUNDRED, store=at(postgres.url, "limits", connections=2))
    assert await ask(postgres.url, sessions) == 0
    await asyncio.gather(*(limiter.acquire(f"key-{number}") for number in range(20)))
    assert 1 <= await ask(postgres.url, sessions) <= 2
    await limiter.close()
    await becomes(lambda: ask(postgres.url, sessions), 0)


async def test_a_lost_server_is_reported_in_time_and_used_again_when_it_returns(postgres: PostgresServer) -> None:
    async with Limiter(HUNDRED, store=at(postgres.url, "limits", timeout=0.5)) as limiter:
        assert await limiter.try_acquire("acme")
        postgres.freeze()
        with pytest.raises(StorageUnavailable, match=r"did not answer within 0\.5 s"):
            await limiter.try_acquire("acme")
        postgres.thaw()
        await becomes(lambda: answers(limiter), True)
        postgres.stop(signal.SIGQUIT)
        with pytest.raises(StorageUnavailable):
            await limiter.try_acquire("acme")
        postgres.start()
        await becomes(lambda: answers(limiter), True)
        # What it had said yes to counts still.
        assert (await limiter.snapshot("acme")).used >= 1


async def test_a_server_that_is_away_from_the_start_is_reported_in_time(unused_tcp_port: int) -> None:
    """The fault: each request of a web application waited for five seconds, whatever the timeout of the URL."""
    limiter = Limiter(HUNDRED, store=f"postgresql://nobody@127.0.0.1:{unused_tcp_port}/nothing?timeout=0.2")
    with pytest.raises(StorageUnavailable, match=r"did not answer within 0\.2 s"):
        await limiter.try_acquire("acme")
    await limiter.close()


async def answers(limiter: Limiter) -> bool:
    try:
        await limiter.snapshot("acme")
    except StorageUnavailable:
        return False
    return True


async def test_a_lost_reply_to_what_has_an_id_is_not_charged_twice(postgres: PostgresServer) -> None:
    bucket = Bucket("hundred", "acme", HUNDRED.rule)
    async with TcpProxy.to(postgres.port) as proxy:
        store = PostgresBuckets.from_url(at(postgres.url_at(proxy.port), "limits"))
        await store.open()
        assert (await store.take(bucket)).granted == 1
        lost = proxy.break_after(b"COMMIT")
        assert (await store.take(bucket, count=7, id="claim-1")).granted == 7
        assert lost.happened.is_set()
        assert (await store.snapshot(bucket)).used == 8
        lost = proxy.break_after(b"COMMIT")
        with pytest.raises(StorageUnavailable):
            await store.take(bucket)
        # It was counted, and counted once.
        assert (await store.snapshot(bucket)).used == 9
        booked = Bucket("booked", "acme", StrictRate(1, per=3600).rule)
        first = await store.take(booked)
        lost = proxy.break_after(b"COMMIT")
        assert (await store.reserve(booked, id="a")).opens_at == first.now + booked.rule.period
        assert lost.happened.is_set()
        assert (await store.reserve(booked, id="b")).opens_at == first.now + 2 * booked.rule.period
        await store.close()


async def test_full_buckets_are_evicted_without_a_worker(
    postgres_url: str, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_buckets, "SWEEP_EVERY", 0.1)
    async with Limiter(RateLimit("100/s", name="calls"), store=at(postgres_url, postgres_schema)) as limiter:
        for number in range(20):
            assert await limiter.try_acquire(f"key-{number}")
        await becomes(lambda: ask(postgres_url, f"SELECT count(*) FROM {postgres_schema}.bucket"), 0)


async def test_limits_of_jobs_can_be_stored_in_another_postgres(postgres_url: str, postgres_schema: str) -> None:
    place = at(postgres_url, postgres_schema)
    app = Headgate("memory://", limits_url=place)
    ran: list[str] = []

    @app.task(limits=[RateLimit(3, per=360_000, burst=3, name="calls", key="{tenant}")])
    async def call(tenant: str) -> None:
        ran.append(tenant)

    async with app, Limiter(RateLimit(3, per=360_000, burst=3, name="calls"), store=place) as limiter:
        assert await limiter.try_acquire("acme")
        await call.enqueue_many([("acme",)] * 3)
        await until(lambda: len(ran) == 2, 10)
        # A later one, which does not have to wait, passes the third.
        await result_within(await call.enqueue("globex"))
        assert ran == ["acme", "acme", "globex"]
        assert not await limiter.try_acquire("acme")


async def test_a_limit_url_of_the_job_store_uses_the_job_store(postgres_url: str, postgres_schema: str) -> None:
    app = Headgate(postgres_url, schema=postgres_schema, limits_url=at(postgres_url, postgres_schema))
    other = Headgate(postgres_url, schema="other", limits_url=at(postgres_url, postgres_schema))
    for each in (app, other):

        @each.task(limits=[RateLimit("1/h", name="calls")])
        async def call() -> None: ...

    assert set(client_of(app).remote_limits.limits) == set()
    assert set(client_of(other).remote_limits.limits) == {"calls"}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://localhost/db?schema=Limits",
        "postgresql://localhost/db?schema=x;drop",
        "postgresql://localhost/db?timeout=soon",
        "postgresql://localhost/db?timeout=0",
        "postgresql://localhost/db?connections=0",
        "postgresql://localhost:port/db",
    ],
)
def test_an_invalid_url_is_refused_at_declaration(url: str) -> None:
    with pytest.raises(DeclarationError):
        Limiter(HUNDRED, store=url)


def test_no_password_is_shown(postgres_url: str) -> None:
    with pytest.raises(DeclarationError) as received:
        Limiter(HUNDRED, store="postgresql://user:secret@localhost/db?timeout=soon")
    assert "secret" not in str(received.value)


async def test_options_of_the_driver_reach_it(postgres_url: str, postgres_schema: str) -> None:
    async with Limiter(HUNDRED, store=at(postgres_url, postgres_schema, application_name="biller")) as limiter:
        assert await limiter.try_acquire("acme")
    wrong = Limiter(HUNDRED, store=at(f"{postgres_url.rpartition('/')[0]}/nothing_here", postgres_schema))
    with pytest.raises(StorageUnusable):
        await wrong.try_acquire("acme")
    await wrong.close()
