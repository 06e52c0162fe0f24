"""No error, log line or representation shows the password of a URL, however the URL is written."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable

import pytest

from headgate import Concurrency, Headgate, HeadgateError, Limiter, StrictRate
from headgate.contrib.taskiq import TaskiqGate
from headgate.limits.redis.redis_buckets import RedisBuckets
from headgate.settings import Settings
from headgate.storage.postgres.shared_buckets import PostgresBuckets
from tests.internals import client_of

logger = logging.getLogger(__name__)

SECRETS = ("hunter2", "swordfish", "trout")

URLS = [
    # No server listens on port 1.
    "postgresql://ada:hunter2@127.0.0.1:1/shop",
    "postgresql://ada:hunter2/swordfish@127.0.0.1:1/shop",
    "postgresql://ada:hunter2#swordfish@127.0.0.1:1/shop",
    "postgresql://ada:hunter2?swordfish@127.0.0.1:1/shop",
    "postgresql://ada:hunter2@swordfish@127.0.0.1:1/shop",
    "postgresql://ada:hunter2:swordfish@127.0.0.1:1/shop",
    "postgresql://127.0.0.1:1/shop?user=ada&password=hunter2",
    "postgresql://ada@127.0.0.1:1/shop?sslpassword=hunter2&sslkey=swordfish",
    "postgresql://ada:hunter2@127.0.0.1:one/shop",
    "postgresql://ada:hunter2@127.0.0.1:99999/shop",
    "postgresql://ada:hunter2@[::1/shop",
    "postgresql://ada:hunter2",
    "postgres://ada:hunter2@127.0.0.1:1",
    "postgresql+asyncpg://ada:hunter2@127.0.0.1:1/shop",
    "redis://:hunter2@127.0.0.1:1/0",
    "redis://:hunter2/swordfish@127.0.0.1:1/0",
    "redis://:hunter2#swordfish@127.0.0.1:1/0",
    "redis://:hunter2?swordfish=trout@127.0.0.1:1/0",
    "redis://:hunter2?swordfish@127.0.0.1:1/0",
    "redis://ada:hunter2",
    "rediss://127.0.0.1:1/0?password=hunter2&ssl_password=swordfish",
    "rediss://:hunter2@127.0.0.1:1?ssl_cert_reqs=nonsense&ssl_password=swordfish",
    "redis://127.0.0.1:1/0?password=hunter2&timeout=soon",
    "redis://127.0.0.1:1/0?password=hunter2&db=swordfish",
    "unix:///nowhere/redis.sock?password=hunter2",
    "valkey://:hunter2@127.0.0.1:1/0",
    "redis+sentinel://:hunter2@127.0.0.1:1,127.0.0.1:2/main?password=swordfish",
    "mysql://ada:hunter2@127.0.0.1/shop",
    "ada:hunter2@127.0.0.1:1/shop",
    "//ada:hunter2@127.0.0.1:1/shop",
    "postgresql:ada:hunter2@127.0.0.1:1/shop",
    "postgresql:/ada:hunter2@127.0.0.1:1/shop",
    "host=127.0.0.1 port=1 user=ada password=hunter2",
    "host=127.0.0.1 port=1 user=ada password='hunter2 swordfish'",
    "sqlite://ada:hunter2@127.0.0.1/jobs.db",
    "sqlite:///jobs.db?password=hunter2",
]


async def _jobs(url: str) -> None:
    app = Headgate(url)
    logger.info("%r %s", app, client_of(app).address)
    async with app.open():
        pass


async def _limits_of_jobs(url: str) -> None:
    app = Headgate("memory://", limits_url=url)
    app.limit("shop", StrictRate("5/m"))

    @app.task(limits=["shop"])
    async def send() -> None: ...

    async with app.open():
        await send.enqueue()


async def _listening(url: str) -> None:
    async with Headgate("postgresql://ada@127.0.0.1:1/shop", listen_url=url).open():
        pass


async def _own_store_of_a_limit(url: str) -> None:
    app = Headgate("memory://")
    limit = StrictRate("5/m", store=url)
    app.limit("shop", limit)
    logger.info("%r", limit)

    @app.task(limits=["shop"])
    async def send() -> None: ...

    app.limit("shop", StrictRate("6/m", store=url))


async def _limits_that_are_no_list(url: str) -> None:
    Headgate("memory://").task(limits=StrictRate("5/m", store=url))  # type: ignore[call-overload]


async def _store_of_permits(url: str) -> None:
    Concurrency(3, store=url)


async def _limiter(url: str) -> None:
    await Limiter(StrictRate("5/m"), store=url).try_acquire("ada")


async def _buckets_in_redis(url: str) -> None:
    await RedisBuckets.from_url(url).open()


async def _buckets_in_postgres(url: str) -> None:
    await PostgresBuckets.from_url(url).open()


async def _limit_set(url: str) -> None:
    from taskiq import InMemoryBroker

    TaskiqGate(InMemoryBroker(), store=url)


async def _settings(url: str) -> None:
    logger.info("%r", Settings(limits_url=url, listen_url=url))


PLACES = [
    _jobs,
    _limits_of_jobs,
    _listening,
    _own_store_of_a_limit,
    _limits_that_are_no_list,
    _store_of_permits,
    _limiter,
    _buckets_in_redis,
    _buckets_in_postgres,
    _limit_set,
    _settings,
]


@pytest.mark.slow
@pytest.mark.parametrize("use", PLACES, ids=lambda use: use.__name__.lstrip("_"))
async def test_no_message_shows_the_password_of_a_url(
    use: Callable[[str], Awaitable[None]], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    received = await asyncio.gather(*(_told_by(use, url) for url in URLS))
    out = capsys.readouterr()
    lines = [*"".join(received).splitlines(), *caplog.text.splitlines(), *out.out.splitlines(), *out.err.splitlines()]
    assert [line for line in lines if any(secret in line for secret in SECRETS)] == []


async def _told_by(use: Callable[[str], Awaitable[None]], url: str) -> str:
    try:
        await use(url)
    except (HeadgateError, TimeoutError) as error:
        return "".join(traceback.format_exception(error))
    return ""
