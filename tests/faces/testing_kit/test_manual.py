"""Manual mode, as a test of a user's would use it."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY
from uuid import uuid4

import pytest

from headgate import (
    Cancel,
    DeclarationError,
    DynamicWindow,
    Fail,
    Headgate,
    HeadgateError,
    JobContext,
    JobFailed,
    JobState,
    PayloadError,
    QueueFull,
    Retry,
    RetryPolicy,
    Snooze,
    StrictRate,
    batch,
    current_job,
    result_of,
)
from headgate.engine.callback_runner import CallbackRunner
from headgate.testing import Workbench, inline, manual
from tests.faces.testing_kit import shop
from tests.internals import store_of
from tests.until import patient


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    shop.seen.clear()
    yield
    shop.seen.clear()


@pytest.fixture
def jobs() -> Iterator[Workbench]:
    with manual(shop.app) as jobs:
        yield jobs


async def test_a_second_job_under_an_own_id_is_not_new_although_time_stands_still(jobs: Workbench) -> None:
    mine = shop.greet.using(id=uuid4())
    first, second = await mine.enqueue("ada"), await mine.enqueue("bob")
    assert (first.is_new, second.is_new) == (True, False)
    assert [job.arguments["name"] for job in jobs.all_enqueued()] == ["ada"]


async def test_what_is_enqueued_waits_until_it_is_drained(jobs: Workbench) -> None:
    job = await shop.greet.enqueue("ada")
    jobs.assert_enqueued(shop.greet, "ada", polite=False)
    assert shop.seen == []
    assert len(await jobs.drain()) == 1
    assert shop.seen == [("ada", False)]
    assert await job.result() == "ada"
    jobs.assert_enqueued(shop.greet, "ada", count=1)


async def test_the_app_has_its_own_store_again_after_the_test() -> None:
    before = dict(vars(shop.app))
    with manual(shop.app) as jobs:
        await shop.greet.enqueue("ada")
        assert isinstance(shop.app, Headgate)
        assert len(jobs.all_enqueued()) == 1
    assert type(shop.app) is Headgate
    assert vars(shop.app) == before
    with manual(shop.app) as jobs:
        assert jobs.all_enqueued() == []


async def test_an_app_of_a_subclass_keeps_its_class() -> None:
    class Shop(Headgate):
        def greeting(self) -> str:
            return "hello"

    own = Shop("postgresql://127.0.0.1:1/none")
    with manual(own):
        assert isinstance(own, Shop)
        assert own.greeting() == "hello"


async def test_an_app_that_is_open_is_refused() -> None:
    app = Headgate("memory://")
    async with app.open():
        with pytest.raises(HeadgateError, match="before it is opened"), manual(app):
            pass
    with manual(app), pytest.raises(HeadgateError, match="already"), inline(app):
        pass


async def test_opening_and_running_the_app_inside_connects_to_nothing_and_runs_nothing(jobs: Workbench) -> None:
    async with shop.app:
        await shop.greet.enqueue("ada")
    async with shop.app.open():
        pass
    with pytest.raises(HeadgateError, match="never end"):
        await shop.app.run()
    assert shop.seen == []


def test_blocks_of_plain_code_inside_connect_to_nothing_and_run_nothing() -> None:
    with manual(shop.app) as jobs:
        with shop.app, shop.app.open():
            shop.greet.sync.enqueue("ada")
        jobs.assert_enqueued(shop.greet, "ada")
        assert shop.seen == []


async def test_arguments_are_checked_as_in_production(jobs: Workbench) -> None:
    with pytest.raises(PayloadError, match="has no JSON form"):
        await shop.greet.enqueue(object())  # type: ignore[arg-type]
    await shop.ship.enqueue(shop.Order(7, ["a"]))
    assert jobs.assert_enqueued(shop.ship, shop.Order(7, ["a"])).arguments == {"order": shop.Order(7, ["a"])}
    jobs.assert_enqueued(shop.ship.call(shop.Order(7, ["a"])))
    await jobs.drain()


async def test_a_failed_assertion_lists_the_enqueued_jobs_nearest_first(jobs: Workbench) -> None:
    await shop.ship.enqueue(shop.Order(7, []))
    await shop.greet.enqueue("bob", polite=True)
    await shop.greet.using(delay=60).enqueue("ada")
    with pytest.raises(AssertionError) as failed:
        jobs.assert_enqueued(shop.greet, "ada", polite=False, delay=timedelta(minutes=2))
    assert str(failed.value).splitlines() == [
        "no job was enqueued as",
        "    greet(name='ada', polite=False)  delay=120 s",
        "3 enqueued in this test, nearest first:",
        "    greet(name='ada', polite=False)  delay=60 s",
        "      ✗ delay 60 s, not 120 s",
        "    greet(name='bob', polite=True)",
        "      ✗ name='bob', not 'ada'",
        "      ✗ polite=True, not False",
        "      ✗ delay 0 s, not 120 s",
        "    ship(order=Order(id=7, lines=[]))",
        "      ✗ another task, not greet",
    ]
    with pytest.raises(AssertionError, match="1 jobs, not 2, were"):
        jobs.assert_enqueued(shop.greet, "bob", count=2)
    with pytest.raises(AssertionError, match=re.escape("1 job was enqueued as\n    greet(name='ada')\nnamely:")):
        jobs.refute_enqueued(shop.greet, "ada")
    jobs.refute_enqueued(shop.greet, "eve")
    with pytest.raises(TypeError, match="no argument 'nam'; it has: name, polite"):
        jobs.assert_enqueued(shop.greet, nam="ada")


async def test_a_failed_assertion_without_jobs_is_one_line(jobs: Workbench) -> None:
    with pytest.raises(AssertionError, match="nothing was enqueued at all"):
        jobs.assert_enqueued(shop.greet)


async def test_the_delay_of_a_job_is_that_of_its_enqueue_also_after_a_retry() -> None:
    """The fault: it was the time until the next attempt, so a job without a delay had one."""
    app = Headgate("memory://", retry=RetryPolicy(delay=300))

    @app.task
    async def fails() -> None:
        raise ValueError

    with manual(app) as jobs:
        await fails.enqueue()
        await fails.using(delay=60).enqueue()
        await jobs.travel(seconds=60)
        assert [(job.attempt, job.delay) for job in jobs.all_enqueued()] == [(1, 0), (1, 60)]
        jobs.assert_enqueued(fails, delay=60, count=1)


async def test_the_time_of_a_job_is_that_of_its_enqueue_also_after_a_retry() -> None:
    """The fault: `at=` was compared with the time of the next attempt; a replaced job had the delay from the first."""
    app = Headgate("memory://", retry=RetryPolicy(delay=300))

    @app.task(unique_key="import", on_conflict="replace")
    async def fails(number: int) -> None:
        raise ValueError

    with manual(app) as jobs:
        await fails.using(delay=60).enqueue(1)
        await jobs.travel(seconds=30)
        at = jobs.now + timedelta(seconds=60)
        await fails.using(at=at).enqueue(2)
        jobs.assert_enqueued(fails, 2, delay=60, at=at)
        await jobs.travel(seconds=60)
        assert jobs.assert_enqueued(fails, 2, delay=60, at=at).run_at == at + timedelta(seconds=300)


async def test_delayed_jobs_run_at_their_time(jobs: Workbench) -> None:
    await shop.greet.using(delay=60).enqueue("later")
    await shop.greet.using(at=jobs.now + timedelta(seconds=30)).enqueue("sooner")
    jobs.assert_enqueued(shop.greet, "later", delay=60.5)
    assert len(await jobs.drain()) == 0
    start = jobs.now
    await jobs.travel(seconds=59)
    assert shop.seen == [("sooner", False)]
    assert jobs.now - start == timedelta(seconds=59)
    await jobs.travel(seconds=1)
    assert shop.seen[1:] == [("later", False)]


async def test_retries_are_followed_through_their_waits(jobs: Workbench) -> None:
    job = await shop.flaky.enqueue(2)
    first = await jobs.drain()
    assert first.count("waiting") == 1
    assert isinstance(first.attempts[0].error, ConnectionError)
    start = jobs.now
    rest = await jobs.drain(until="idle")
    assert [each.attempt for each in rest.attempts] == [2, 3]
    assert jobs.now - start == timedelta(seconds=180)
    assert await job.result() == 3


async def test_a_job_that_fails_for_good_is_raised_with_the_error_of_the_handler(jobs: Workbench) -> None:
    await shop.broken.enqueue()
    with pytest.raises(JobFailed, match="broken") as failed:
        await jobs.drain()
    assert isinstance(failed.value.__cause__, ValueError)
    assert failed.value.__cause__.__traceback__ is not None
    await shop.broken.enqueue()
    assert (await jobs.drain(raising=False)).count(JobState.FAILED) == 1


async def test_a_job_that_is_retried_in_a_drain_and_succeeds_is_not_raised() -> None:
    app, repaired = Headgate("memory://"), list[bool]()

    @app.task(retry=RetryPolicy(retries=0))
    async def fetch() -> None:
        if not repaired:
            raise ValueError("broken")

    @app.task
    async def repair() -> None:
        repaired.append(True)
        leader = current_job().follows
        assert leader is not None
        await app.admin.retry(leader)

    with manual(app) as workbench:
        first = fetch.call()
        await batch([first, repair.call().after(first, on="failure")]).enqueue()
        drained = await workbench.drain()
    assert [each.state for each in drained.attempts] == ["failed", "succeeded", "succeeded"]


async def test_limits_hold_under_the_clock_of_the_test(jobs: Workbench) -> None:
    await shop.sync_tenant.enqueue_many([("acme",)] * 31)
    assert len(await jobs.drain()) == 15
    assert len(await jobs.travel(seconds=59)) == 0
    assert len(await jobs.travel(seconds=1)) == 15
    assert len(await jobs.drain(until="idle")) == 1
    await shop.alone.enqueue_many([(), ()])
    assert len(await jobs.drain()) == 2


async def test_keys_that_share_a_capacity_get_their_shares_while_time_stands_still() -> None:
    app, started = Headgate("memory://"), list[str]()

    @app.task(limits=[DynamicWindow(capacity=20, per=60, key="{tenant}")])
    async def call(tenant: str) -> None:
        started.append(tenant)

    with manual(app) as jobs:
        for tenant in ("acme", "globex", "initech"):
            await call.enqueue_many([(tenant,)] * 30)
        await jobs.drain()
        assert sorted(Counter(started).values()) == [6, 7, 7]
        await jobs.travel(minutes=1)
        assert sorted(Counter(started).values()) == [13, 13, 14]


async def test_keys_take_turns_while_time_stands_still() -> None:
    """One job is claimed at a time, and the lane that has started one goes to the end of the line."""
    app, started = Headgate("memory://"), list[str]()

    @app.task(limits=[StrictRate(30, per=60, key="{tenant}")])
    async def call(tenant: str) -> None:
        started.append(tenant)

    with manual(app) as jobs:
        for tenant in ("acme", "globex", "initech"):
            await call.enqueue_many([(tenant,)] * 5)
        await jobs.drain()
        assert started == ["acme", "globex", "initech"] * 5


@pytest.mark.parametrize("verb", ["travel", "drain"])
async def test_a_job_that_expires_while_time_advances_ends_and_what_follows_it_runs(verb: str) -> None:
    app, seen = Headgate("memory://"), list[str]()

    @app.task(limits=[StrictRate("1/d")])
    async def rarely() -> None: ...

    @rarely.on_error
    async def failed(_job: JobContext, error: BaseException) -> None:
        seen.append(type(error).__name__)

    @app.task
    async def alarm() -> None:
        seen.append("alarm")

    with manual(app) as jobs:
        await rarely.enqueue()
        await batch([rarely.using(expires_in=3600).call()]).then(alarm.call(), on="failure").enqueue()
        start = jobs.now
        hour = await (jobs.travel(hours=1) if verb == "travel" else jobs.drain(until=3600))
        assert [each.task for each in hour.attempts] == ["rarely", "alarm"]
        assert sorted(seen) == ["JobExpired", "alarm"]
        assert [each.state for each in jobs.all_enqueued(rarely)] == ["succeeded", "failed"]
        assert jobs.now - start == timedelta(hours=1)


@pytest.mark.parametrize("mode", [manual, inline])
def test_a_test_that_begins_before_1970_is_refused(mode: Any) -> None:
    """The fault: each drain raised ValueError: int is out of range (need a 128-bit value)."""
    long_ago = datetime(1969, 12, 31, tzinfo=UTC)
    with pytest.raises(ValueError, match=r"a test cannot begin at 1969-12-31 .*: limits count from 1970"):
        mode(shop.app, now=long_ago).__enter__()
    with mode(shop.app, now=long_ago + timedelta(days=1)) as jobs:
        assert len(jobs.sync.drain()) == 0


async def test_time_does_not_go_back(jobs: Workbench) -> None:
    """The fault: `travel(hours=-1)` ran what was due, and a test that meant an hour passed."""
    for going in (jobs.travel(hours=-1), jobs.drain(until=-0.5)):
        with pytest.raises(DeclarationError, match="cannot be negative"):
            await going
    with pytest.raises(DeclarationError, match=r"is before .*, and time does not go back"):
        await jobs.travel(to=jobs.now - timedelta(hours=1))
    await jobs.travel(to=jobs.now)


async def test_a_count_of_a_state_that_does_not_exist_is_refused(jobs: Workbench) -> None:
    """The fault: it was 0, so that a test which expected no failures passed whatever had failed."""
    with pytest.raises(DeclarationError, match="state='failure' must be one of waiting, running"):
        (await jobs.drain()).count("failure")


async def test_schedules_fire_when_time_advances(jobs: Workbench) -> None:
    await jobs.travel(hours=5)
    assert shop.seen == ["report"] * 5


async def test_what_a_job_enqueues_and_what_follows_it_is_drained_too(jobs: Workbench) -> None:
    await shop.fan_out.enqueue(["a", "b"])
    await shop.greet_twice("c")
    both = await batch([shop.greet.call("d"), shop.greet.call("e")]).then(shop.greet.call("f")).enqueue()
    with pytest.raises(HeadgateError, match="drain"):
        await both.wait()
    await jobs.drain()
    assert {("a", False), ("b", False), ("c", True)} < set(shop.seen)
    assert shop.seen.index(("f", False)) > shop.seen.index(("e", False))
    assert len(shop.seen) == 7
    assert (await both.wait()).succeeded == 2


async def test_a_job_that_takes_a_result_is_found_by_its_other_arguments() -> None:
    """The fault: it had one argument, its payload as text, so that no assertion about it held."""
    app = Headgate("memory://")

    @app.task
    async def count(tenant: str) -> int:
        return len(tenant)

    @app.task
    async def add_up(counts: list[int], tenant: str, factor: int = 2) -> int:
        return sum(counts) * factor

    with manual(app) as jobs:
        first = count.call("acme")
        await batch([first, add_up.call([result_of(first)], tenant="acme")]).enqueue()
        for _ in range(2):
            assert jobs.assert_enqueued(add_up, tenant="acme").arguments == {"tenant": "acme", "factor": 2}
            jobs.refute_enqueued(add_up, tenant="globex")
            # The fault: the call that was enqueued could not be named as it was written.
            jobs.assert_enqueued(add_up.call([result_of(first)], tenant="acme"))
            jobs.refute_enqueued(add_up.call([result_of(first)], tenant="acme", factor=3))
            await jobs.drain()


async def test_what_is_no_task_of_the_app_is_refused(jobs: Workbench) -> None:
    """The fault: the task of an app that was imported twice had no jobs, so that refute_enqueued passed."""
    other = Headgate("memory://")

    @other.task
    async def greet(name: str) -> None: ...

    for task, problem in (
        (greet, "task 'greet' of module .*test_manual belongs to another app"),
        (greet.call("ada"), "belongs to another app"),
        (shop.greet.function, "<function greet .* is no task; pass a function with @app.task"),
        ("greet", "'greet' is no task"),
    ):
        with pytest.raises(TypeError, match=problem):
            jobs.refute_enqueued(task)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="belongs to another app"):
        jobs.all_enqueued(greet)
    with pytest.raises(TypeError, match="belongs to another app"):
        await jobs.run_job(greet, "ada")
    with pytest.raises(DeclarationError, match="state='done' must be one of waiting, running"):
        jobs.all_enqueued(state="done")


async def test_waiting_for_a_result_that_no_job_can_produce_raises(jobs: Workbench) -> None:
    job = await shop.greet.enqueue("ada")
    with pytest.raises(HeadgateError, match=r"nothing runs by itself.*drain\(\) first"):
        await job.result(timeout=60)


async def test_a_full_queue_raises_immediately() -> None:
    app = Headgate("postgresql://127.0.0.1:1/none")
    app.queue("small", max_backlog=1)

    @app.task(queue="small")
    async def work() -> None: ...

    with manual(app):
        await work.enqueue()
        with pytest.raises(QueueFull):
            await work.enqueue()


async def test_one_job_is_run_alone_and_is_not_among_those_enqueued(jobs: Workbench) -> None:
    assert await jobs.run_job(shop.greet, "ada", polite=True) == "dear ada"
    assert await jobs.run_job(shop.ship, shop.Order(7, [])) == 7
    assert await jobs.run_job(shop.compute, 0) == 0
    assert await jobs.run_job(shop.greet.using(delay=60, unique_key="x"), "ada") == "ada"
    assert jobs.all_enqueued() == []
    with pytest.raises(ValueError, match="broken"):
        await jobs.run_job(shop.broken)
    with pytest.raises(Snooze) as snoozed:
        await jobs.run_job(shop.later)
    assert snoozed.value.delay == 30_000_000
    with pytest.raises(TypeError, match="lacks argument"):
        await jobs.run_job(shop.greet)  # type: ignore[call-arg]
    await jobs.run_job(shop.fan_out, ["a"])
    jobs.assert_enqueued(shop.greet, "a")


async def test_a_handler_that_decides_its_outcome_is_drained_and_run_as_in_production() -> None:
    app = Headgate("memory://")

    @app.task
    def decide(how: str) -> None:
        raise {"fail": Fail, "retry": Retry, "cancel": Cancel, "snooze": Snooze}[how](5)

    with manual(app) as jobs:
        for how, state in (("fail", "failed"), ("retry", "waiting"), ("cancel", "cancelled"), ("snooze", "waiting")):
            await decide.enqueue(how)
            (attempt,) = (await jobs.drain(raising=False)).attempts
            assert attempt.state == state
            assert type(attempt.error).__name__ == how.capitalize()
            with pytest.raises((Fail, Retry, Cancel, Snooze)):
                await jobs.run_job(decide, how)


def test_sync_code_enqueues_into_the_test(jobs: Workbench) -> None:
    job = shop.greet.sync.enqueue("ada")
    shop.where.sync.enqueue("here")
    shop.fan_out_blocking.sync.enqueue(["x", "y"])
    jobs.assert_enqueued(shop.greet, "ada")
    assert len(jobs.sync.drain()) == 5
    assert job.result() == "ada"
    # Plain functions run in the thread of the test, where its database connection is.
    place = shop.seen.index(threading.current_thread().name)
    assert shop.seen[place + 1] == "no loop"
    assert jobs.sync.run_job(shop.where, "again") == "again"
    assert jobs.sync.travel(hours=2).count("succeeded") == 2
    assert shop.app.sync.admin.counts()


def test_a_sync_drain_raises_and_leaves_no_thread(jobs: Workbench) -> None:
    before = threading.active_count()
    shop.broken.sync.enqueue()
    with pytest.raises(JobFailed):
        jobs.sync.drain()
    assert threading.active_count() == before


async def test_threads_beside_the_event_loop_enqueue_into_the_test(jobs: Workbench) -> None:
    def enqueue() -> None:
        for _ in range(20):
            shop.greet.sync.enqueue("thread")

    await asyncio.gather(*(asyncio.to_thread(enqueue) for _ in range(3)))
    assert len(jobs.all_enqueued(shop.greet)) == 60
    async with shop.app.open():
        with pytest.raises(HeadgateError, match=r"write `await`, without \.sync, as in `await task\.enqueue"):
            shop.greet.sync.enqueue("blocks")


def test_a_connection_is_not_touched_and_the_job_is_there_at_once(jobs: Workbench) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("BEGIN")
    shop.greet.using(connection=connection).sync.enqueue("ada")
    shop.greet.sync.enqueue("bob")
    connection.execute("ROLLBACK")
    jobs.assert_enqueued(shop.greet, connection=connection, count=1)
    with pytest.raises(AssertionError, match="not in the transaction"):
        jobs.assert_enqueued(shop.greet, "bob", connection=connection)
    with pytest.raises(AssertionError, match="stored at once, also if its transaction is rolled back"):
        jobs.refute_enqueued(shop.greet, "ada")
    with pytest.raises(AssertionError, match=r"namely:\n    greet\(name='bob', polite=False\)$"):
        jobs.refute_enqueued(shop.greet, "bob")
    connection.close()


async def test_a_job_is_found_by_all_options_of_using(jobs: Workbench) -> None:
    await shop.greet.using(priority=5, headers={"a": "b"}, tags=["vip", "import"], unique_key="k").enqueue("ada")
    found = jobs.assert_enqueued(shop.greet, priority=5, headers={"a": "b"}, tags=["vip"], unique_key="k")
    assert found.tags == ("import", "vip")
    assert (found.priority, found.headers, found.unique_key, found.attempt) == (5, {"a": "b"}, "k", 0)
    with pytest.raises(AssertionError, match=r"✗ priority 5, not 6[^✗]*✗ unique_key[^✗]*✗ header 'a' 'b', not 'c'"):
        jobs.assert_enqueued(shop.greet, priority=6, headers={"a": "c"}, unique_key="other")
    with pytest.raises(AssertionError, match=r"tags=\('big', 'vip'\)[^✗]*✗ without tags big, with tags import, vip"):
        jobs.assert_enqueued(shop.greet, tags=["vip", "big"])


async def test_a_job_is_refuted_by_all_options_of_using(jobs: Workbench) -> None:
    """The fault: most options were taken for arguments that the task does not have."""
    await shop.greet.using(delay=60, priority=5, headers={"a": "b"}, tags=["vip"]).enqueue("ada")
    connection = object()
    jobs.refute_enqueued(shop.greet, delay=90)
    jobs.refute_enqueued(shop.greet, at=jobs.now)
    jobs.refute_enqueued(shop.greet, priority=6)
    jobs.refute_enqueued(shop.greet, headers={"a": "c"})
    jobs.refute_enqueued(shop.greet, tags=["import"])
    jobs.refute_enqueued(shop.greet, connection=connection)
    with pytest.raises(DeclarationError, match="within=None is not a duration"):
        jobs.refute_enqueued(shop.greet, delay=60, within=None)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="1 job was enqueued as"):
        jobs.refute_enqueued(shop.greet, delay=90, within=30, priority=5, headers={"a": "b"}, tags=["vip"])


async def test_the_options_of_using_are_expected_as_well(jobs: Workbench) -> None:
    """The fault: assert_enqueued held for a job without the delay of the call that was expected."""
    await shop.greet.using(delay=60, headers={"a": "b"}).enqueue("ada")
    jobs.assert_enqueued(shop.greet.using(delay="1m", headers={"a": "b"}).call("ada"))
    jobs.assert_enqueued(shop.greet.using(delay=5), "ada", delay=60)
    jobs.refute_enqueued(shop.greet.using(priority=3), "ada")
    for what in (shop.greet.using(delay=5).call("ada"), shop.greet.using(delay=5)):
        with pytest.raises(AssertionError, match="✗ delay 60 s, not 5 s"):
            jobs.assert_enqueued(what)
    with pytest.raises(AssertionError, match="✗ priority 0, not 3"):
        jobs.assert_enqueued(shop.greet.using(priority=3).call("ada"))


async def test_what_is_an_argument_and_an_option_is_refused() -> None:
    """The fault: `count=1` held for one job, whatever its argument `count` was."""
    app = Headgate("memory://")

    @app.task
    async def restock(count: int, within: int) -> None: ...

    with manual(app) as jobs:
        await restock.enqueue(7, 1)
        with pytest.raises(TypeError, match="'count' is an argument of task 'restock' and an option here"):
            jobs.assert_enqueued(restock, count=1)
        jobs.refute_enqueued(restock, count=1)
        jobs.assert_enqueued(restock, 7)
        jobs.assert_enqueued(restock.call(7, 1), count=1)


async def test_what_no_job_can_match_is_refused(jobs: Workbench) -> None:
    await shop.greet.enqueue("ada")
    with pytest.raises(DeclarationError, match="has no time zone; pass an aware datetime"):
        jobs.assert_enqueued(shop.greet, at=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(TypeError, match=r"for none write refute_enqueued"):
        jobs.assert_enqueued(shop.greet, "eve", count=0)


async def test_an_argument_of_another_type_than_the_tasks_is_refused(jobs: Workbench) -> None:
    """The fault: no job could have it, so refute_enqueued passed, whatever was enqueued."""
    await shop.greet.enqueue("7")
    for check in (jobs.assert_enqueued, jobs.refute_enqueued):
        with pytest.raises(PayloadError, match=r"argument 'name' of task 'greet' does not fit .*: Expected `str`, got"):
            check(shop.greet, 7)
    # What compares as equal by its own rule is no value of an argument.
    jobs.assert_enqueued(shop.greet, ANY)


async def test_an_argument_that_is_passed_twice_is_refused(jobs: Workbench) -> None:
    """The fault: the second one held, so that refute_enqueued passed although the job of the first was enqueued."""
    await shop.greet.enqueue("ada")
    with pytest.raises(TypeError, match="task 'greet' got argument 'name' twice"):
        jobs.refute_enqueued(shop.greet, "ada", name="eve")
    with pytest.raises(TypeError, match="task 'greet' got argument 'name' twice"):
        jobs.assert_enqueued(shop.greet, "eve", name="ada")


async def test_time_begins_at_the_instant_of_the_test() -> None:
    with manual(shop.app, now=datetime(2030, 1, 1, tzinfo=UTC)) as jobs:
        await shop.greet.enqueue("ada")
        assert jobs.all_enqueued()[0].run_at == datetime(2030, 1, 1, tzinfo=UTC)
        await jobs.travel(to=datetime(2030, 1, 2, tzinfo=UTC))
        assert shop.seen.count("report") == 24


async def test_a_job_that_enqueues_itself_for_ever_raises(jobs: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Headgate("memory://")

    @app.task
    async def again() -> None:
        await again.using(delay=1).enqueue()

    monkeypatch.setattr("headgate.testing.workbench.MOST_ATTEMPTS", 50)
    with manual(app) as mine:
        await again.enqueue()
        with pytest.raises(AssertionError, match="jobs keep coming"):
            await mine.drain(until="idle")


async def test_resources_and_callbacks_run_before_the_drain_returns(jobs: Workbench) -> None:
    job = await shop.with_session.enqueue()
    await jobs.drain()
    assert sorted(map(str, shop.seen)) == ["('told', True)", "closed", "opened"]
    assert await job.result() is True


async def test_what_callbacks_enqueue_is_drained_at_its_time() -> None:
    """The fault: what a slow one enqueued stayed there when the drain returned, or time had passed before."""
    app, seen = Headgate("memory://"), list[float]()

    @app.task
    async def work() -> None: ...

    @app.task
    async def report() -> None:
        seen.append((jobs.now - start).total_seconds())

    @work.on_completed
    def enqueue_report(_job: JobContext, _result: None) -> None:
        time.sleep(0.05)
        report.sync.enqueue()

    with manual(app) as jobs:
        start = jobs.now
        await work.enqueue()
        await work.using(delay=60).enqueue()
        await jobs.travel(hours=1)
    assert seen == [0, 60]


async def test_a_callback_that_waits_for_a_limiter_keeps_no_time_from_passing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: time stood still until the callback had ended, which waited for time to pass."""
    drain = CallbackRunner.drain
    monkeypatch.setattr(CallbackRunner, "drain", lambda self, seconds: drain(self, seconds / 100))
    app, ends = Headgate("memory://"), list[str]()
    app.limit("calls", StrictRate("1/s"))

    @app.task
    async def work() -> None: ...

    @work.on_completed
    async def report(job: JobContext, _result: None) -> None:
        await app.limiter("calls").acquire()
        ends.append(job.id)

    with manual(app) as jobs:
        ids = [(await work.enqueue()).id for _ in range(2)]
        await asyncio.wait_for(jobs.travel(seconds=30), patient(20))
        assert ends == ids


async def test_jobs_with_and_without_limits_take_turns_also_if_all_queues_share_slots() -> None:
    """The fault: with `slots=`, all jobs with limits ran before those without."""
    app, ran = Headgate("memory://", slots=2), list[str]()

    @app.task(limits=[StrictRate("9/s")])
    async def limited() -> None:
        ran.append("limited")

    @app.task
    async def free() -> None:
        ran.append("free")

    with manual(app) as jobs:
        for task in (limited, free) * 3:
            await task.enqueue()
        await jobs.drain()
        assert sorted(ran[:2]) == sorted(ran[2:4]) == sorted(ran[4:]) == ["free", "limited"]


async def test_a_cancelled_drain_stops_its_job_and_returns_it(jobs: Workbench) -> None:
    await shop.hang.enqueue()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(jobs.drain(), 0.05)
    assert shop.seen == ["ended"]
    (job,) = jobs.all_enqueued(state="waiting")
    assert job.attempt == 0


async def test_a_limiter_made_at_import_uses_the_buckets_of_the_test(jobs: Workbench) -> None:
    assert (await shop.outside.try_acquire("acme")).remaining == 9
    assert [bucket.ref.limit for bucket in await store_of(jobs).buckets()] == ["outside"]


async def test_operators_change_jobs_and_limits_of_the_test(jobs: Workbench) -> None:
    job = await shop.greet.enqueue("ada")
    await shop.app.admin.queues.pause("default")
    assert len(await jobs.drain(until="idle")) == 0
    await shop.app.admin.queues.resume("default")
    assert await job.cancel()
    assert jobs.all_enqueued(shop.greet)[0].state is JobState.CANCELLED


def test_a_web_application_enqueues_into_the_test_from_its_own_thread_and_loop(jobs: Workbench) -> None:
    enqueued, may_end = threading.Event(), threading.Event()

    async def serve() -> None:
        async with shop.app:
            await shop.greet.enqueue("ada")
            enqueued.set()
            await asyncio.to_thread(may_end.wait, patient(10))

    server = threading.Thread(target=asyncio.run, args=(serve(),))
    server.start()
    try:
        assert enqueued.wait(patient(10))
        jobs.assert_enqueued(shop.greet, "ada")
        assert len(jobs.sync.drain()) == 1
    finally:
        may_end.set()
        server.join()
    assert shop.seen == [("ada", False)]
