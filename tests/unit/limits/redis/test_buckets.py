"""What only buckets in Redis have: URLs, names of keys, lives of keys, and a server that others use, too."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
import redis
import redis.asyncio

import headgate
from headgate.clock import SECOND
from headgate.errors import CostExceedsLimit, DeclarationError, StorageUnavailable, StorageUnusable
from headgate.limits.bucket_store import Bucket, Taken
from headgate.limits.concurrency import Concurrency
from headgate.limits.fixed_window import FixedWindow, WindowCounter
from headgate.limits.limit import AnyRule
from headgate.limits.rate_limit import START_EMPTY_KEPT, Gcra, RateLimit
from headgate.limits.redis.message_lines import BlockingLines, BucketLine
from headgate.limits.redis.pipeline import RedisConnection
from headgate.limits.redis.redis_buckets import PREFIX, RedisBuckets, key_name
from headgate.limits.sliding_window import SliceCounter, SlidingWindow
from headgate.limits.strict_rate import SlidingLog, StrictRate
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.redis_server import RedisServer, server_in
from tests.until import patient, until

NOON = 1_767_268_800 * SECOND
HOUR = 3600 * SECOND

_made = count()

ALL_RULES: list[AnyRule] = [
    RateLimit("100/h").rule,
    StrictRate("100/h", margin=0).rule,
    FixedWindow("100/h").rule,
    SlidingWindow("100/h").rule,
]


def bucket(rule: AnyRule, key: str = "acme") -> Bucket:
    """A bucket that no other test has used."""
    return Bucket(f"unit-{id(_made)}-{next(_made)}", key, rule)


@pytest_asyncio.fixture
async def store(redis_url: str) -> AsyncIterator[RedisBuckets]:
    store = RedisBuckets.from_url(redis_url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def key_of(bucket: Bucket) -> str:
    return key_name(PREFIX, bucket)


@contextlib.asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[RedisBuckets]:
    store = RedisBuckets.from_url(url, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


# ----------------------------------------------------------------------------------------------------------------- URLs


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost",
        "redis://localhost/0?colour=red",
        "redis://localhost:port/0",
        "redis://localhost?timeout=soon",
    ],
)
def test_a_url_that_names_no_redis_is_a_mistake_of_the_declaration(url: str) -> None:
    with pytest.raises(DeclarationError):
        RedisBuckets.from_url(url)


def test_a_url_that_cannot_be_read_is_told_without_its_password() -> None:
    with pytest.raises(DeclarationError) as caught:
        RedisBuckets.from_url("redis://user:secret@localhost/0?colour=red")
    assert "secret" not in str(caught.value)
    assert "localhost" in str(caught.value)


@pytest.mark.parametrize("options", ["prefix=a{b}", "timeout=0", "timeout=-1"])
def test_a_prefix_with_braces_and_a_timeout_of_nothing_are_refused(options: str) -> None:
    with pytest.raises(DeclarationError, match=options.partition("=")[0]):
        RedisBuckets.from_url(f"redis://localhost?{options}")


async def test_the_prefix_of_the_url_begins_the_names_of_all_keys(redis_url: str, server: redis.Redis) -> None:
    used = bucket(RateLimit("5/h").rule)
    async with opened(f"{redis_url}?prefix=shop") as store:
        await store.take(used, id="a")
    names = [name.decode() for name in server.scan_iter(f"*{used.limit}*")]
    assert sorted(names) == [f"{{shop:{used.limit}:acme}}", f"{{shop:{used.limit}:acme}}:answers"]


async def test_an_option_that_decodes_replies_for_others_changes_nothing(redis_url: str) -> None:
    """The fault: the URL of a program that uses redis-py as well raised AttributeError at the first call."""
    used = bucket(RateLimit("5/h").rule)
    async with opened(f"{redis_url}?decode_responses=True") as store:
        assert (await store.take(used)).granted == 1


async def test_programs_with_other_prefixes_do_not_share_a_budget(redis_url: str) -> None:
    used = bucket(StrictRate("1/h").rule)
    for prefix in ("one", "two", "one:two"):
        async with opened(f"{redis_url}?prefix={prefix}") as store:
            assert (await store.take(used)).granted == 1


async def test_a_database_of_its_own_is_chosen_by_the_url(redis_url: str, server: redis.Redis) -> None:
    used = bucket(RateLimit("5/h").rule)
    async with opened(redis_url.rpartition("/")[0] + "/3") as store:
        await store.take(used)
    assert not list(server.scan_iter(f"*{used.limit}*"))


def documented_rights(prefix: str) -> tuple[list[str], list[str]]:
    """The commands and the keys that docs/redis.md tells people to permit."""
    page = (Path(__file__).parents[4] / "docs" / "redis.md").read_text()
    (paragraph,) = re.findall(r"^Give your user permission.+?(?=\n\n)", page, re.DOTALL | re.MULTILINE)
    named = re.findall(r"`([^`]+)`", paragraph)
    keys = [each.replace("headgate", prefix) for each in named if "*" in each]
    commands = " ".join(each for each in named if "*" not in each).replace("SCRIPT LOAD", "SCRIPT|LOAD")
    return commands.lower().split(), keys


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RedisServer]:
    """A server whose user `shop` has the documented rights for the prefix `shop`."""
    commands, keys = documented_rights("shop")
    rights = [f"+{command}" for command in commands]
    with server_in(tmp_path) as own:
        with own.client() as client:
            client.acl_setuser("shop", enabled=True, passwords=["+p@ss"], keys=keys, commands=rights)
            client.acl_setuser("admin", enabled=True, passwords=["+admin"], commands=["+acl"])
            client.acl_setuser("default", enabled=False)
        yield own


async def test_user_and_password_of_the_url_are_used(guarded: RedisServer) -> None:
    async with opened(f"redis://shop:p%40ss@127.0.0.1:{guarded.port}/1?prefix=shop") as store:
        for rule in ALL_RULES:
            used = bucket(rule)
            taken = await store.take(used, 100, id="a")
            assert not (await store.reserve(used, id="b")).granted
            assert await store.cancel(used, id="b")
            await store.amend(used, taken.now, 100, taken.now, 1)
            assert (await store.snapshot(used)).used == 1
            await store.reset(used)
    with pytest.raises(StorageUnusable, match="user and password"):
        await RedisBuckets.from_url(f"redis://shop:wrong@127.0.0.1:{guarded.port}/0").open()


def test_the_documented_rights_are_those_that_the_scripts_need() -> None:
    scripts = "\n".join(file.read_text() for file in (Path(headgate.__file__).parent / "limits").rglob("*.lua"))
    called = {command.lower() for command in re.findall(r"redis\.call\('(\w+)'", scripts)}
    commands, _ = documented_rights("shop")
    assert sorted(commands) == sorted({"evalsha", "eval", "script|load", "info", "select"} | called)


def test_a_gate_needs_no_more_than_the_documented_rights(guarded: RedisServer) -> None:
    url = f"redis://shop:p%40ss@127.0.0.1:{guarded.port}/1?prefix=shop"
    sent: list[bytes] = []
    place = BucketLine(bucket(StrictRate("1/h").rule))
    lines = BlockingLines(url, "celery", publish=sent.append, limits=dict)
    assert [lines.ask(lines.lines.arrive(place, id, id.encode())) for id in "abc"] == [True, False, False]
    lines.ask(lines.lines.forget(place, "a"))
    lines.ask(lines.lines.release({place.bucket.limit: lambda _: place}))
    assert sent == [b"b"]
    assert lines.ask(lines.lines.start(place, "b"))
    lines._client.close()


@pytest.mark.parametrize(
    ("password", "reason"), [("p%40ss", "no permissions to run the 'eval'"), ("wrong", "password")]
)
def test_a_user_that_the_server_refuses_is_told_what_to_check(guarded: RedisServer, password: str, reason: str) -> None:
    with redis.Redis(port=guarded.port, username="admin", password="admin") as client:
        client.execute_command("ACL SETUSER", "shop", "-eval")
    place = BucketLine(bucket(StrictRate("1/h").rule))
    url = f"redis://shop:{password}@127.0.0.1:{guarded.port}/0?prefix=shop"
    lines = BlockingLines(url, "celery", publish=lambda _: None, limits=dict)
    with pytest.raises(StorageUnavailable, match=rf"Redis refuses this user: .*{reason}.*; check user and password"):
        lines.ask(lines.lines.start(place, "a"))
    lines._client.close()


async def test_a_unix_socket_does_as_well(tmp_path: Path) -> None:
    socket = tmp_path / "r.sock"
    with server_in(tmp_path, "--unixsocket", str(socket)):
        async with opened(f"unix://{socket}?db=0&prefix=shop") as store:
            assert (await store.take(bucket(RateLimit("5/h").rule))).granted == 1


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_tls_is_spoken_to_a_server_whose_certificate_is_known(redis_url: str, tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    arguments = [*command.split(), "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(subprocess.run, arguments, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    there = urlsplit(redis_url)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_connection(there.hostname, there.port)
        ways = pass_on(reader, questions), pass_on(answers, writer)
        await asyncio.gather(*ways, return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"rediss://localhost:{server.sockets[0].getsockname()[1]}/0"
    used = bucket(RateLimit("5/h").rule)
    async with opened(f"{url}?ssl_ca_certs={certificate}") as store:
        answers = await asyncio.gather(*(store.take(used) for _ in range(20)))
    assert sum(answer.granted for answer in answers) == 5
    with pytest.raises(StorageUnavailable, match="certificate"):
        await RedisBuckets.from_url(url).open()
    server.close()


async def test_a_missing_server_is_reported_when_opening(unused_tcp_port: int) -> None:
    with pytest.raises(StorageUnavailable):
        await RedisBuckets.from_url(f"redis://127.0.0.1:{unused_tcp_port}/0?timeout=0.2").open()


@pytest.mark.parametrize("takes", [0, 10], ids=["refused", "no answer"])
@pytest.mark.parametrize("timeout", [0.02, 0.1, 2.0])
def test_a_call_to_a_missing_server_fails_within_three_timeouts(takes: float, timeout: float) -> None:
    class Missing(redis.asyncio.Connection):
        async def connect(self) -> None:
            await asyncio.sleep(takes)
            raise redis.ConnectionError("away")

    async def main(clock: VirtualClock) -> None:
        store = RedisBuckets(Missing, timeout=timeout, clock=clock)
        store._is_open = True  # The server has gone since.
        for _ in range(12):
            asked_at = clock.monotonic()
            with pytest.raises(StorageUnavailable):
                await store.take(bucket(RateLimit("5/h").rule))
            assert clock.monotonic() - asked_at <= 3 * timeout * SECOND
        await store.close()

    run_virtual(main)


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_a_blocked_event_loop_is_no_server_that_does_not_answer(redis_url: str, turns: int) -> None:
    """The fault: a handler that blocked the loop while a node connected let its jobs start without their limit."""
    store = RedisBuckets.from_url(f"{redis_url}?timeout=0.3")
    opening = asyncio.ensure_future(store.open())
    for _ in range(turns):
        await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(time.sleep, 0.5)
    await opening
    assert (await store.take(bucket(RateLimit("5/h").rule))).granted == 1
    await store.close()


async def test_a_server_that_does_not_answer_is_given_up_although_the_event_loop_is_blocked_each_time() -> None:
    class Silent(redis.asyncio.Connection):
        async def connect(self) -> None:
            await asyncio.Event().wait()

    opening = asyncio.ensure_future(RedisBuckets(Silent, timeout=0.05).open())
    while not opening.done():
        asyncio.get_running_loop().call_soon(time.sleep, 0.2)
        await asyncio.sleep(0)
    assert isinstance(opening.exception(), StorageUnavailable)


async def test_using_a_store_that_is_not_open_raises(redis_url: str) -> None:
    store = RedisBuckets.from_url(redis_url)
    with pytest.raises(StorageUnavailable, match="not open"):
        await store.take(bucket(RateLimit("5/h").rule))


# --------------------------------------------------------------------------------------------------------- declarations


@pytest.mark.parametrize(
    "rule",
    [
        # What a declaration refuses already, as another release may have stored it.
        Gcra(1, 3600 * SECOND, 10_000_000),
        RateLimit(10**9, per=3600, burst=10**9).rule,
        SlidingLog(1, 200 * 365 * 86400 * SECOND),
        WindowCounter(1 << 53, 60 * SECOND),
        SliceCounter(1 << 53, SECOND, 60),
    ],
    ids=lambda rule: str(rule.describe()),
)
async def test_numbers_that_redis_cannot_count_with_are_refused(store: RedisBuckets, rule: AnyRule) -> None:
    with pytest.raises(DeclarationError, match="Redis's numbers"):
        await store.take(bucket(rule))


async def test_a_million_a_day_fits(store: RedisBuckets) -> None:
    used = bucket(RateLimit("1000000/d").rule)
    assert (await store.take(used, 999_999)).available == 1
    assert (await store.take(used, 2)).granted == 0


@pytest.mark.parametrize("rule", [StrictRate("5/h").rule, RateLimit("5/h").rule])
async def test_a_settled_cost_beyond_counting_is_refused_and_changes_nothing(
    store: RedisBuckets, rule: AnyRule
) -> None:
    used = bucket(rule)
    taken = await store.take(used)
    with pytest.raises(DeclarationError):
        await store.amend(used, taken.now, 1, taken.now, 1 << 60)
    assert (await store.snapshot(used)).used == 1


async def test_permits_live_where_the_jobs_live(store: RedisBuckets) -> None:
    with pytest.raises(DeclarationError, match="where the jobs do"):
        await store.take(bucket(cast(Any, Concurrency(1).rule)))


# -------------------------------------------------------------------------------------------------------- lives of keys


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: str(rule.kind))
async def test_a_bucket_lives_until_it_is_idle_and_no_longer(
    store: RedisBuckets, server: redis.Redis, rule: AnyRule
) -> None:
    used = bucket(rule)
    asked_at = time.monotonic()
    taken = await store.take(used, 60)
    left = server.pttl(key_of(used))
    gone = (time.monotonic() - asked_at) * 1000
    idle_in = (taken.full_at - taken.now) / 1000
    assert idle_in - gone - 2 <= left <= idle_in + 2


async def test_a_bucket_that_began_empty_is_kept_for_longer(store: RedisBuckets, server: redis.Redis) -> None:
    used = bucket(RateLimit("100/h", start_empty=True).rule)
    await store.take(used)
    assert server.pttl(key_of(used)) > START_EMPTY_KEPT / 1000


async def test_an_idle_bucket_goes_by_itself(store: RedisBuckets, server: redis.Redis) -> None:
    used = bucket(StrictRate(3, per=60, margin=0).rule)
    await store.take(used, id="a")
    for name in (key_of(used), key_of(used) + ":answers"):
        assert 0 < server.pttl(name) <= 60_002


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: str(rule.kind))
async def test_a_bucket_without_an_expiry_gets_one_again(
    store: RedisBuckets, server: redis.Redis, rule: AnyRule
) -> None:
    used = bucket(rule)
    await store.take(used, 100)
    server.persist(key_of(used))
    assert (await store.take(used)).granted == 0
    assert 0 < server.pttl(key_of(used)) <= 2 * HOUR / 1000


async def test_a_refusal_writes_nothing(store: RedisBuckets, server: redis.Redis) -> None:
    used = bucket(StrictRate("1/h").rule)
    await store.take(used)
    before = server.get(key_of(used))
    for _ in range(5):
        assert (await store.take(used, id="b")).granted == 0
    assert server.get(key_of(used)) == before
    assert server.exists(key_of(used) + ":answers") == 0


async def test_expired_answers_are_deleted_as_new_ones_are_stored(redis_url: str, server: redis.Redis) -> None:
    clock = NOON
    used = bucket(StrictRate(10, per=1, margin=0).rule)
    async with opened(redis_url, limit_time=lambda: clock) as store:
        for number in range(300):
            clock += SECOND // 10
            assert (await store.take(used, id=str(number))).granted == 1
        # Ten of them count.
        assert server.hlen(key_of(used) + ":answers") < 40


# ----------------------------------------------------------------------------------------------------------------- time


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: str(rule.kind))
async def test_a_clock_that_goes_back_neither_gives_budget_nor_locks_a_key_for_longer(
    redis_url: str, rule: AnyRule
) -> None:
    clock = NOON
    used = bucket(rule)
    async with opened(redis_url, limit_time=lambda: clock) as store:
        assert (await store.take(used, count=200)).granted == 100
        # Another server takes over, and its clock is a day behind.
        clock -= 24 * HOUR
        refused = await store.take(used)
        assert refused.granted == 0
        assert refused.now >= NOON
        assert refused.opens_at - refused.now <= HOUR
        clock += refused.opens_at - refused.now
        assert (await store.take(used)).granted == 1
        clock += 2 * HOUR
        assert (await store.snapshot(used)).available == 100


async def test_limit_time_is_the_servers(store: RedisBuckets, server: redis.Redis) -> None:
    seconds, micros = server.time()
    taken = await store.take(bucket(RateLimit("5/h").rule))
    assert 0 <= taken.now - (seconds * SECOND + micros) < 5 * SECOND


@pytest.mark.parametrize("burst", [1, 2, 3, 7, 49, 100, 199])
async def test_a_frozen_clock_grants_a_burst_to_the_last_one(redis_url: str, burst: int) -> None:
    used = bucket(RateLimit(burst, per=1, burst=burst).rule)
    async with opened(redis_url, limit_time=lambda: NOON + 123_457) as store:
        answers = [(await store.take(used)).granted for _ in range(burst + 1)]
    assert answers == [1] * burst + [0]


# -------------------------------------------------------------------------------------------------------- other writers


async def test_an_unreadable_state_counts_as_exhausted(store: RedisBuckets, server: redis.Redis) -> None:
    for text in (b"", b"nonsense", b"1:rate:x", b"1:strict:5:0:abc", b"2:rate:1:0:9:9:9:9", b"\xff\x00"):
        used = bucket(StrictRate("3/h").rule)
        server.set(key_of(used), text)
        refused = await store.take(used)
        assert refused.granted == 0, text
        assert refused.opens_at - refused.now <= used.rule.period
        assert server.pttl(key_of(used)) > 0


async def test_a_key_of_another_type_fails_alone(store: RedisBuckets, server: redis.Redis) -> None:
    bad, good = bucket(RateLimit("5/h").rule), bucket(RateLimit("5/h").rule)
    server.lpush(key_of(bad), "somebody else's")
    failed, taken = await asyncio.gather(store.take(bad), store.take(good), return_exceptions=True)
    assert isinstance(failed, StorageUnavailable)
    assert "WRONGTYPE" in str(failed)
    assert failed.has_answered
    assert not isinstance(taken, BaseException)
    assert taken.granted == 1
    # Nor has it cost the connection.
    assert (await store.take(good)).granted == 1


# ------------------------------------------------------------------------------------------------------------ gathering


def calls(server: redis.Redis) -> int:
    stats = server.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])


async def test_takers_of_one_bucket_in_one_loop_turn_share_a_request_and_are_served_in_order(
    store: RedisBuckets, server: redis.Redis
) -> None:
    used = bucket(StrictRate("5/h").rule)
    await store.snapshot(used)
    before = calls(server)
    answers = await asyncio.gather(*(store.take(used) for _ in range(100)))
    assert calls(server) - before <= 2
    assert [answer.granted for answer in answers] == [1] * 5 + [0] * 95


async def test_takers_of_several_costs_and_counts_are_each_given_their_own(store: RedisBuckets) -> None:
    used = bucket(RateLimit("10/h").rule)
    small, large, many = await asyncio.gather(store.take(used), store.take(used, 4), store.take(used, count=9))
    assert (small.granted, large.granted, many.granted) == (1, 1, 5)


async def test_a_cost_above_the_capacity_fails_alone(store: RedisBuckets) -> None:
    used = bucket(RateLimit("10/h").rule)
    failed, taken = await asyncio.gather(store.take(used, 11), store.take(used), return_exceptions=True)
    assert isinstance(failed, CostExceedsLimit)
    assert not isinstance(taken, BaseException)
    assert taken.granted == 1


async def test_a_taker_cancelled_before_the_request_is_sent_consumes_nothing(store: RedisBuckets) -> None:
    used = bucket(RateLimit("10/h").rule)
    gone = asyncio.ensure_future(store.take(used))
    stays = asyncio.ensure_future(store.take(used))
    await asyncio.sleep(0)
    gone.cancel()
    assert (await stays).granted == 1
    assert (await store.snapshot(used)).used == 1


async def test_a_taker_cancelled_while_its_script_is_loaded_does_not_shift_the_answers_of_others(
    store: RedisBuckets, server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes: list[asyncio.Future[Taken]] = []
    received = RedisConnection.data_received

    def others_come_then(wire: RedisConnection, data: bytes) -> None:
        received(wire, data)
        if len(takes) < 5:
            other = store.take(bucket(FixedWindow("100/d").rule), len(takes) + 1)
            takes.append(asyncio.ensure_future(other))

    await store.take(bucket(FixedWindow("100/d").rule))
    server.script_flush()
    await store.take(bucket(FixedWindow("100/d").rule))
    monkeypatch.setattr(RedisConnection, "data_received", others_come_then)
    gone = asyncio.ensure_future(store.take(bucket(RateLimit("100/h").rule)))
    for _ in range(3):
        await asyncio.sleep(0)
    gone.cancel()
    await until(lambda: len(takes) == 5)
    async with asyncio.timeout(patient(5)):
        assert [(await take).available for take in takes] == [99, 98, 97, 96, 95]


@pytest.mark.parametrize(("asks", "sizes"), [(10, [10]), (64, [32, 32]), (20, [16, 4]), (1500, [500, 500])])
async def test_many_asks_are_divided_between_two_requests(
    store: RedisBuckets, monkeypatch: pytest.MonkeyPatch, asks: int, sizes: list[int]
) -> None:
    rule = RateLimit("10/h").rule
    await store.take(bucket(rule))
    sent: list[int] = []
    send = RedisConnection.send

    def counted(wire: RedisConnection, commands: Sequence[bytes]) -> None:
        sent.append(len(commands))
        send(wire, commands)

    monkeypatch.setattr(RedisConnection, "send", counted)
    answers = await asyncio.gather(*(store.take(bucket(rule, str(number)), number % 9 + 1) for number in range(asks)))
    assert sent[:2] == sizes
    # The rest is divided, too, if the answers to both have come before it is sent.
    assert sent[2:] in ([], [500], [250, 250])
    assert sum(sent) == asks
    assert [answer.available for answer in answers] == [9 - number % 9 for number in range(asks)]


async def test_an_unexpected_reply_is_not_taken_for_the_next_one(
    store: RedisBuckets, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = bucket(RateLimit("10/h").rule)
    received = RedisConnection.data_received

    def heard_twice(wire: RedisConnection, data: bytes) -> None:
        monkeypatch.undo()
        received(wire, data + data)

    monkeypatch.setattr(RedisConnection, "data_received", heard_twice)
    # The second answer is of a new connection.
    assert [(await store.take(used)).available for _ in range(3)] == [9, 8, 7]


async def test_closing_fails_what_waits_for_an_answer(store: RedisBuckets) -> None:
    taking = asyncio.ensure_future(store.take(bucket(RateLimit("10/h").rule)))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StorageUnavailable):
        await taking


# -------------------------------------------------------------------------------------------------------------- cluster


def is_ready(cluster: redis.Redis) -> bool:
    return b"cluster_state:ok" in cast(Any, cluster).execute_command("CLUSTER", "INFO")


async def test_every_verb_of_every_rule_works_in_a_cluster(tmp_path: Path) -> None:
    with server_in(tmp_path, "--cluster-enabled", "yes") as own, own.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        await until(lambda: is_ready(client))
        async with opened(f"{own.url}?timeout={patient(5)}") as store:
            for rule in ALL_RULES:
                for key in ("acme", "{a}b", "}{", "a b", "ключ", "x" * 5000):
                    used = bucket(rule, key)
                    await store.take(used, 99)
                    taken = await store.take(used, id="a")
                    assert taken.granted == 1
                    assert (await store.reserve(used, id="b")).granted == 0
                    assert await store.cancel(used, id="b")
                    await store.amend(used, taken.now, 1, taken.now, 0)
                    assert (await store.snapshot(used)).used == 99
                    await store.reset(used)
                    assert (await store.snapshot(used)).used == 0


async def test_keys_of_one_bucket_share_a_cluster_slot_and_buckets_are_spread(tmp_path: Path) -> None:
    with server_in(tmp_path, "--cluster-enabled", "yes") as own, own.client() as client:

        def slot(name: str) -> int:
            return int(client.execute_command("CLUSTER", "KEYSLOT", name))

        slots = set()
        for key in ("", "acme", "{a}b", "{}", "}", "{a}", "{b}", *map(str, range(50))):
            name = key_of(Bucket("limit{x}", key, ALL_RULES[0]))
            assert slot(name) == slot(f"{name}:answers")
            slots.add(slot(name))
        # A tag that was not the bucket's own would pin many of them to one slot.
        assert len(slots) > 50
