"""The line before a bucket, on a real Redis and in a time of its own."""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import redis

from headgate.clock import SECOND
from headgate.errors import DeclarationError, StorageUnavailable
from headgate.limits.bucket_store import Bucket
from headgate.limits.fixed_window import FixedWindow
from headgate.limits.limit import AnyRule
from headgate.limits.rate_limit import RateLimit
from headgate.limits.redis import message_lines
from headgate.limits.redis.message_lines import (
    RESERVED_FOR,
    SEND_TIMEOUT,
    AsyncLines,
    BlockingLines,
    BucketLine,
    Limits,
    MessageLines,
    RunScript,
    Steps,
)
from headgate.limits.redis.redis_buckets import RedisBuckets
from headgate.limits.sliding_window import SlidingWindow
from headgate.limits.strict_rate import StrictRate
from headgate.testing.manual_clock import ManualClock
from tests.redis_server import redis_url  # noqa: F401
from tests.until import until_now

T = TypeVar("T")
TWO_A_MINUTE = StrictRate("2/m", margin=0).rule


class Shop:
    """A program with lines of its own; `published` is what its broker was given."""

    def __init__(self, client: Any, prefix: str, name: str, now: Callable[[], int]) -> None:
        self.lines = MessageLines(name, prefix, limit_time=now)
        self.client = client
        self.published: list[bytes] = []

    def ask(self, steps: Steps[T], *, until_sent: int | None = None) -> T | None:
        """Do `steps`; the process is killed when it sends the message of that number."""
        reply = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as done:
                answer: T = done.value
                return answer
            if isinstance(step, RunScript):
                received = (len(step.keys), *step.keys, *step.arguments)
                reply = self.client.execute_command("EVAL", step.script.source, *received)
            elif until_sent == len(self.published):
                return None
            else:
                reply = self.published.append(step)  # type: ignore[func-returns-value]

    def arrive(self, place: BucketLine, *ids: str) -> list[bool]:
        return [bool(self.ask(self.lines.arrive(place, id, f"message {id}".encode()))) for id in ids]

    def start(self, place: BucketLine, *ids: str) -> list[bool]:
        return [bool(self.ask(self.lines.start(place, id))) for id in ids]

    def release(self, place: BucketLine, *, until_sent: int | None = None) -> list[str]:
        before = len(self.published)
        self.ask(self.lines.release_from(place), until_sent=until_sent)
        return [message.decode().removeprefix("message ") for message in self.published[before:]]


class Time:
    now = 1_000_000 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:  # noqa: F811
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        yield client


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def shop(client: Any, prefix: str, time: Time) -> Shop:
    return Shop(client, prefix, "shop", time)


def place(rule: AnyRule = TWO_A_MINUTE, cost: int = 1, key: str = "42", limit: str = "calls") -> BucketLine:
    return BucketLine(Bucket(limit, key, rule), cost)


CALLS: Limits = {"calls": lambda key: place(key=key)}


def test_a_message_reserves_its_budget_before_it_is_published(shop: Shop) -> None:
    assert shop.arrive(place(), "a", "b", "c", "d") == [True, True, False, False]
    assert shop.release(place()) == []
    assert shop.start(place(), "a", "b") == [True, True]


def test_messages_are_released_in_order_as_far_as_they_fit(shop: Shop, time: Time) -> None:
    shop.arrive(place(), *"abcdef")
    shop.start(place(), *"ab")
    time.now += 60 * SECOND
    assert shop.release(place()) == ["c", "d"]
    assert shop.release(place()) == []
    shop.start(place(), *"cd")
    time.now += 60 * SECOND
    assert shop.release(place()) == ["e", "f"]


@pytest.mark.parametrize(
    "rule",
    [
        RateLimit("2/m").rule,
        FixedWindow("2/m").rule,
        SlidingWindow("2/m").rule,
        TWO_A_MINUTE,
        RateLimit("1/m", burst=1).rule,
    ],
    ids=lambda rule: rule.describe(),
)
def test_all_messages_are_released_eventually_under_each_rule(shop: Shop, time: Time, rule: AnyRule) -> None:
    ids = [f"{number:02}" for number in range(9)]
    waiting = [id for id in ids if not shop.arrive(place(rule), id)[0]]
    shop.start(place(rule), *(id for id in ids if id not in waiting))
    let_go: list[str] = []
    for _ in range(40):
        time.now += 30 * SECOND
        released = shop.release(place(rule))
        assert all(shop.start(place(rule), *released))
        let_go += released
    assert let_go == waiting
    assert len(waiting) >= 7


def test_a_message_that_arrives_twice_is_queued_once(shop: Shop, time: Time) -> None:
    assert shop.arrive(place(), *"abccd") == [True, True, False, False, False]
    assert shop.arrive(place(), "a") == [True]
    shop.start(place(), *"ab")
    time.now += 60 * SECOND
    assert shop.release(place()) == ["c", "d"]


def test_no_message_overtakes_waiting_ones(shop: Shop, time: Time) -> None:
    shop.arrive(place(), *"abc")
    shop.start(place(), *"ab")
    time.now += 60 * SECOND
    assert shop.arrive(place(), "d") == [False]


def test_a_message_whose_sender_died_goes_back_to_its_place(shop: Shop, time: Time) -> None:
    shop.arrive(place(), *"abcde")
    shop.start(place(), *"ab")
    time.now += 60 * SECOND
    assert shop.release(place(), until_sent=1) == ["c"]
    # It is reserved, and no other message gets it.
    assert shop.release(place()) == []
    # The first was published, started, and is not sent again.
    assert shop.start(place(), "c") == [True]
    time.now += SEND_TIMEOUT
    assert shop.release(place()) == ["d"]


def test_a_slow_broker_gets_each_message_once(client: Any, prefix: str, time: Time) -> None:
    clock = ManualClock()
    six = place(StrictRate("6/m", margin=0).rule)

    class Slow(list[bytes]):
        def append(self, message: bytes) -> None:
            super().append(message)
            clock.advance(3)
            time.now += 3 * SECOND

    shop = Shop(client, prefix, "shop", time)
    shop.lines = MessageLines("shop", prefix, clock=clock, limit_time=time)
    shop.arrive(six, *"abcdefghijkl")
    shop.start(six, *"abcdef")
    time.now += 60 * SECOND
    shop.published = Slow()
    released: list[str] = []
    for _ in range(3):
        released += shop.release(six)
        time.now += SEND_TIMEOUT
    assert released == list("ghijkl")


def test_a_refused_message_waits_at_the_head(client: Any, prefix: str, shop: Shop, time: Time) -> None:
    quick = place(StrictRate("2/30s", margin=0).rule)
    neighbour = Shop(client, prefix, "neighbour", time)
    shop.arrive(quick, *"abc")
    assert neighbour.arrive(quick, *"xy") == [True, True]
    assert neighbour.start(quick, *"xy") == [True, True]
    assert shop.start(quick, "a") == [False]
    assert shop.arrive(quick, "a") == [False]
    time.now += 30 * SECOND
    assert shop.release(quick) == ["a"]
    shop.start(quick, "a", "b")
    time.now += 30 * SECOND
    assert shop.release(quick) == ["c"]


def test_a_new_message_does_not_use_budget_reserved_for_others(shop: Shop) -> None:
    shop.arrive(place(), *"ab")
    assert shop.start(place(), "jumper") == [False]
    assert shop.start(place(), *"ab") == [True, True]


def test_a_message_in_flight_too_long_returns_its_budget(shop: Shop, time: Time) -> None:
    shop.arrive(place(), *"abcd")
    time.now += RESERVED_FOR
    assert shop.release(place()) == ["c", "d"]


def test_a_message_that_arrives_late_does_not_wait_again(shop: Shop, time: Time) -> None:
    shop.arrive(place(), *"abcde")
    time.now += RESERVED_FOR
    assert shop.release(place()) == ["c", "d"]
    time.now += RESERVED_FOR
    # A consumer lets them pass, and they start as long as there is budget.
    assert shop.arrive(place(), *"abcd") == [True] * 4
    assert shop.start(place(), *"cab") == [True, True, False]
    assert shop.arrive(place(), "b") == [False]
    time.now += 60 * SECOND
    assert shop.release(place()) == ["b", "e"]


def test_a_removed_message_frees_its_budget_in_each_state(shop: Shop, time: Time) -> None:
    shop.arrive(place(), *"abcd")
    for id in "ac":
        shop.ask(shop.lines.forget(place(), id))
    assert shop.release(place()) == ["d"]


def test_each_start_is_charged_its_cost(shop: Shop, time: Time) -> None:
    heavy = place(RateLimit("6/m").rule, 3)
    assert shop.arrive(heavy, *"abc") == [True, True, False]
    assert shop.start(heavy, *"ab") == [True, True]
    time.now += 29 * SECOND
    assert shop.release(heavy) == []
    time.now += SECOND
    assert shop.release(heavy) == ["c"]


@pytest.mark.parametrize("cost", [1, 2, 3])
def test_a_bucket_that_starts_empty_grants_the_first_start_of_any_cost(shop: Shop, time: Time, cost: int) -> None:
    slow = place(RateLimit("6/m", start_empty=True).rule, cost)
    assert shop.arrive(slow, *"ab") == [True, False]
    assert shop.start(slow, "jumper", "a") == [False, True]
    time.now += cost * 10 * SECOND - 1
    assert shop.release(slow) == []
    time.now += 1
    assert shop.release(slow) == ["b"]


@pytest.mark.parametrize("cost", [1, 2, 3])
def test_a_line_behind_a_first_start_in_flight_is_not_due_before_it_can_go(
    client: Any, prefix: str, shop: Shop, time: Time, cost: int
) -> None:
    slow = place(RateLimit("6/m", start_empty=True).rule, cost)
    shop.arrive(slow, *"ab")
    assert client.zscore(f"{prefix}:shop:calls:lines", slow.name) == time.now + cost * 10 * SECOND


def test_waiting_messages_continue_under_another_rule(shop: Shop, time: Time) -> None:
    shop.arrive(place(), *"abcd")
    shop.start(place(), *"ab")
    faster = place(RateLimit("4/m").rule)
    assert shop.release(faster) == []
    time.now += 120 * SECOND
    assert shop.release(faster) == ["c", "d"]
    assert shop.start(faster, *"cd") == [True, True]


def test_one_of_several_callers_releases_waiting_messages(client: Any, prefix: str) -> None:
    shop = Shop(client, prefix, "shop", lambda: 0)
    shop.lines = MessageLines("shop", prefix)
    shop.arrive(place(), *"abc")
    shop.ask(shop.lines.forget(place(), "a"))
    seen: list[bool] = []

    def stops() -> bool:
        seen.append(True)
        return True

    shop.ask(shop.lines.release(CALLS, stops))
    shop.ask(shop.lines.release(CALLS, stops))
    assert seen == [True]


def test_programs_of_one_name_release_the_lines_of_their_own_limits_at_once(client: Any, prefix: str) -> None:
    """The fault: each was given the lines of the other, which did not get them for the next five seconds."""
    mails: Limits = {"mails:{a}": lambda key: place(key=key, limit="mails:{a}")}
    programs = [(Shop(client, prefix, "shop", lambda: 0), limits) for limits in (CALLS, mails)]
    for shop, limits in programs:
        shop.lines = MessageLines("shop", prefix)
        for of_key in limits.values():
            assert shop.arrive(of_key("42"), *"abc") == [True, True, False]
            shop.ask(shop.lines.forget(of_key("42"), "a"))
    for shop, limits in programs:
        assert shop.ask(shop.lines.release({})) is None
        shop.ask(shop.lines.release(limits))
        assert shop.published == [b"message c"]


def test_of_the_lines_of_all_limits_those_come_first_that_were_due_first(
    client: Any, prefix: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_lines, "MAX_BATCH", 2)
    found: list[str] = []

    def note(key: str) -> BucketLine:
        found.append(key)
        return place(key=key)

    for due_at, (name, key) in enumerate([("calls", "1"), ("mails", "2"), ("calls", "3"), ("calls", "4")]):
        client.zadd(f"{prefix}:shop:{name}:lines", {place(key=key, limit=name).name: due_at})
    for _ in range(3):
        shop.ask(shop.lines.release({"calls": note, "mails": note}))
    assert found == list("1234")


def test_waiting_messages_are_released_after_the_clock_of_redis_was_set_back(client: Any, prefix: str) -> None:
    shop = Shop(client, prefix, "shop", lambda: 0)
    shop.lines = MessageLines("shop", prefix)
    shop.arrive(place(), *"abc")
    shop.ask(shop.lines.forget(place(), "a"))
    client.zincrby(f"{prefix}:shop:calls:lines", 3600 * SECOND, place().name)
    shop.ask(shop.lines.release(CALLS))
    assert shop.published == [b"message c"]


class Refusing:
    """A broker that refuses some messages, on a blocking or an async client."""

    def __init__(self, kind: str, url: str, lines: MessageLines, *refused: bytes) -> None:
        self.refused = refused
        self.published: list[bytes] = []
        self.keys: list[str] = []
        self.limits = {"calls": self.find}
        options: Any = {"limits": lambda: self.limits}
        self._client: Any = (
            AsyncLines(url, "shop", publish=self.publish_async, **options)
            if kind == "async"
            else BlockingLines(url, "shop", publish=self.publish, **options)
        )
        self._client.lines = self.lines = lines

    def find(self, key: str) -> BucketLine:
        self.keys.append(key)
        return place(key=key)

    def publish(self, message: bytes) -> None:
        if message in self.refused:
            raise ValueError(f"{message!r} is too long for this broker")
        self.published.append(message)

    async def publish_async(self, message: bytes) -> None:
        self.publish(message)

    async def ask(self, steps: Steps[Any]) -> Any:
        answer = self._client.ask(steps)
        return await answer if inspect.isawaitable(answer) else answer

    async def close(self) -> None:
        if isinstance(self._client, AsyncLines):
            await self._client.close()
        else:
            self._client._client.close()


KINDS = pytest.mark.parametrize("kind", ["blocking", "async"])


async def test_calls_while_redis_is_away_log_one_warning_for_each_outage(
    redis_url: str,  # noqa: F811
    prefix: str,
    unused_tcp_port: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The fault: each of thousands of calls logged a line."""
    caplog.set_level(logging.DEBUG, "headgate.gates")
    away, line = f"redis://127.0.0.1:{unused_tcp_port}/0?timeout=0.1", BucketLine(place().bucket, 1)
    lines = BlockingLines(away, "shop", publish=lambda _: None, limits=dict)
    there = BlockingLines(f"{redis_url}?prefix={prefix}", "shop", publish=lambda _: None, limits=dict)

    def levels() -> list[str]:
        found = [each.levelname for each in caplog.records if "without a limit check" in each.message]
        caplog.clear()
        return found

    assert [lines.passes(line, "task", id, b"x") for id in "abc"] == [True] * 3
    assert levels() == ["WARNING", "DEBUG", "DEBUG"]
    lines.forget(line, "task", "a")
    assert [each.levelname for each in caplog.records if "keeps its place" in each.message] == ["WARNING"]
    lines._client, gone = there._client, lines._client
    lines._paused_until = 0
    lines.forget(line, "task", "a")
    lines._client = gone
    assert [lines.passes(line, "task", id, b"x") for id in "ab"] == [True] * 2
    assert levels() == ["WARNING", "DEBUG"]
    there._client.close()


@KINDS
async def test_a_message_that_the_broker_refuses_stops_no_other_key(
    redis_url: str,  # noqa: F811
    client: Any,
    prefix: str,
    kind: str,
) -> None:
    shop = Shop(client, prefix, "shop", lambda: 0)
    shop.lines = MessageLines("shop", prefix)
    keys = ["1", "2", "3"]
    broker = Refusing(kind, redis_url, shop.lines, b"message 1c")
    for key in keys:
        assert shop.arrive(place(key=key), f"{key}a", f"{key}b", f"{key}c") == [True, True, False]
        shop.ask(shop.lines.forget(place(key=key), f"{key}a"))
    with pytest.raises(ValueError, match="too long") as raised:
        await broker.ask(shop.lines.release(broker.limits))
    assert broker.keys == keys
    assert broker.published == [b"message 2c", b"message 3c"]
    assert raised.value.__notes__ == ['a message of ["calls","1"]']
    # The others are confirmed; that of the first key is in its line again later.
    assert [client.zcard(name) for name in client.keys(f"*{prefix}*:shop:sending")] == [1]
    await broker.close()


@KINDS
async def test_messages_before_one_that_the_broker_refuses_are_not_sent_again(
    redis_url: str,  # noqa: F811
    shop: Shop,
    time: Time,
    kind: str,
) -> None:
    broker = Refusing(kind, redis_url, shop.lines, b"message d")
    shop.arrive(place(), *"abcd")
    shop.start(place(), *"ab")
    time.now += 60 * SECOND
    assert isinstance(await broker.ask(shop.lines.release_from(place())), ValueError)
    assert broker.published == [b"message c"]
    time.now += SEND_TIMEOUT
    broker.refused = ()
    await broker.ask(shop.lines.release_from(place()))
    assert broker.published == [b"message c", b"message d"]
    await broker.close()


def test_a_client_that_stops_sends_no_message_of_further_lines(redis_url: str, client: Any, prefix: str) -> None:  # noqa: F811
    shop = Shop(client, prefix, "shop", lambda: 0)
    shop.lines = MessageLines("shop", prefix)
    for key in "12":
        shop.arrive(place(key=key), f"{key}a", f"{key}b", f"{key}c")
        shop.ask(shop.lines.forget(place(key=key), f"{key}a"))
    sent: list[bytes] = []

    def publish(message: bytes) -> None:
        sent.append(message)
        lines._stopping.set()
        raise OSError("the broker is away")

    lines = BlockingLines(redis_url, "shop", publish=publish, limits=lambda: CALLS)
    lines.lines = shop.lines
    lines.start()
    until_now(lambda: sent)
    lines.stop()
    lines._client.close()
    assert sent == [b"message 1c"]


def test_no_keys_are_left_except_those_of_messages_in_flight(client: Any, prefix: str, shop: Shop) -> None:
    shop.arrive(place(), *"abcd")
    for id in "abcd":
        shop.ask(shop.lines.forget(place(), id))
    assert client.keys(f"*{prefix}*") == []


async def test_limiters_and_lines_share_their_budget(redis_url: str, prefix: str, shop: Shop, time: Time) -> None:  # noqa: F811
    buckets = RedisBuckets.from_url(f"{redis_url}?prefix={prefix}", limit_time=time)
    await buckets.open()
    try:
        shop.arrive(place(), "a")
        shop.start(place(), "a")
        assert (await buckets.take(place().bucket, count=5)).granted == 1
        assert shop.arrive(place(), "b") == [False]
    finally:
        await buckets.close()


async def test_a_line_waits_until_a_penalty_of_its_bucket_is_over(
    redis_url: str,  # noqa: F811
    prefix: str,
    shop: Shop,
    time: Time,
) -> None:
    buckets = RedisBuckets.from_url(f"{redis_url}?prefix={prefix}", limit_time=time)
    await buckets.open()
    try:
        assert shop.arrive(place(), "a") == [True]
        await buckets.penalize(place().bucket, 90 * SECOND)
        assert shop.start(place(), "a") == [False]
        assert shop.arrive(place(), "a", "b") == [False, False]
        time.now += 60 * SECOND
        assert shop.release(place()) == []
        time.now += 30 * SECOND
        assert shop.release(place()) == ["a", "b"]
        assert shop.start(place(), "a", "b") == [True, True]
    finally:
        await buckets.close()


async def test_a_line_is_looked_at_within_a_minute_after_its_bucket_was_reset(
    redis_url: str,  # noqa: F811
    client: Any,
    prefix: str,
    shop: Shop,
    time: Time,
) -> None:
    buckets = RedisBuckets.from_url(f"{redis_url}?prefix={prefix}", limit_time=time)
    await buckets.open()
    try:
        await buckets.penalize(place().bucket, 3600 * SECOND)
        assert shop.arrive(place(), "a") == [False]
        await buckets.reset(place().bucket)
        assert client.zscore(f"{prefix}:shop:calls:lines", place().name) <= time.now + 60 * SECOND
        assert shop.release(place()) == ["a"]
    finally:
        await buckets.close()


async def test_closing_lines_may_be_cancelled(redis_url: str, prefix: str, shop: Shop) -> None:  # noqa: F811
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def publish(message: bytes) -> None:
        begun.set()
        await may_end.wait()

    shop.arrive(place(), *"abc")
    shop.ask(shop.lines.forget(place(), "a"))
    lines = AsyncLines(redis_url, "shop", publish=publish, limits=lambda: CALLS)
    lines.lines = shop.lines
    lines.start()
    await begun.wait()
    closing = asyncio.create_task(lines.close())
    for _ in range(5):
        await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    may_end.set()
    await lines.close()
    # What was published while they closed is not published again.
    assert shop.client.keys(f"*{prefix}*:shop:sending") == []


@pytest.mark.parametrize("options", ["colour=red", "prefix=a{b}"])
def test_a_url_that_no_bucket_could_have_is_refused_where_it_is_declared(options: str) -> None:
    with pytest.raises(DeclarationError):
        BlockingLines(f"redis://localhost?{options}", "shop", publish=lambda _: None, limits=dict)


def test_a_url_says_how_many_connections_a_gate_opens() -> None:
    lines = BlockingLines("redis://localhost?max_connections=3", "shop", publish=lambda _: None, limits=dict)
    assert lines._client.connection_pool.max_connections == 3


@KINDS
async def test_a_gate_repeats_a_request_also_with_redis_py_5(shop: Shop, kind: str) -> None:
    """The fault: that repeats only after errors that the connection names itself, so it repeated nothing."""
    lines: Any = Refusing(kind, "redis://localhost", shop.lines)._client
    connection = lines._client.connection_pool.make_connection()
    assert isinstance(redis.ConnectionError(), tuple(connection.retry_on_error))
    assert isinstance(redis.ReadOnlyError(), tuple(connection.retry_on_error))


@KINDS
async def test_a_request_waits_for_a_connection_that_others_use(
    redis_url: str,  # noqa: F811
    shop: Shop,
    kind: str,
) -> None:
    """The fault: more requests at once than connections (100) counted as a Redis that is away: calls ran unlimited."""
    lines: Any = Refusing(kind, f"{redis_url}?max_connections=1", shop.lines)._client
    pool, steps = lines._client.connection_pool, shop.lines.start(place(), "a")
    if kind == "async":
        used = await pool.get_connection()
        asking = asyncio.ensure_future(lines.ask(steps))
    else:
        used = pool.get_connection()
        asking = asyncio.ensure_future(asyncio.to_thread(lines.ask, steps))
    await asyncio.wait([asking], timeout=0.05)
    assert not asking.done()
    released = pool.release(used)
    if kind == "async":
        await released
    assert await asking
    await lines.close() if kind == "async" else lines._client.close()


def test_an_unavailable_redis_raises_and_also_callers_that_make_no_request_get_the_reason() -> None:
    """The fault: of a Redis that refused the password, most lines in the log said that it did not answer."""
    clock = ManualClock()
    away = BlockingLines("redis://127.0.0.1:1/0", "shop", publish=lambda _: None, limits=dict, clock=clock)
    for reason in ("^Redis: Error 111", "^a moment ago, Redis: Error 111", "^a moment ago, Redis: Error 111"):
        with pytest.raises(StorageUnavailable, match=reason):
            away.ask(away.lines.start(place(), "a"))


def test_a_silent_redis_delays_one_request_at_a_time() -> None:
    """The fault: half a second after a timeout all threads waited for the next one, so senders hardly did else."""
    clock = ManualClock()
    lines = BlockingLines("redis://127.0.0.1:1/0", "shop", publish=lambda _: None, limits=dict, clock=clock)
    requests = 0

    class Silent:
        answers = False

        def execute_command(self, *_: object) -> list[int]:
            nonlocal requests
            requests += 1
            if self.answers:
                return [1, 0]
            if requests > 1:
                # Another thread asks meanwhile; without a check the message passes.
                assert lines.passes(place(), "message", "other", b"")
            clock.advance(4)
            raise redis.TimeoutError("Timeout reading from socket")

    lines._client = Silent()
    for seconds, count in ((0, 1), (3, 1), (1, 2), (3, 2), (1, 3)):
        clock.advance(seconds)
        assert lines.passes(place(), "message", "a", b"")
        assert requests == count
    Silent.answers = True
    clock.advance(4)
    assert [lines.ask(lines.lines.start(place(), "a")) for _ in range(3)] == [True] * 3
