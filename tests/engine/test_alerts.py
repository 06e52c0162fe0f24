"""Alerts in virtual time: told once by one node when they begin, again while they last, and when they have ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from headgate import (
    AlertMessage,
    DeclarationError,
    Every,
    Headgate,
    RetryPolicy,
    StorageUnavailable,
    StrictRate,
)
from headgate.engine.node import Node
from headgate.errors import UnknownQueue
from headgate.jobs.alert import AlertRecord
from headgate.jobs.event import AlertFailed, AlertSent, StorageFailed
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.conftest import Stores
from tests.internals import app_on, new_node, node_of, registry_of

ONCE = RetryPolicy(retries=0)


def told(messages: list[AlertMessage]) -> list[tuple[str, str]]:
    return [(message.state, message.subject) for message in messages]


# ------------------------------------------------------------------------------------------------- conditions


@pytest.mark.nightly
def test_a_queue_that_lags_is_told_once_then_repeated_and_then_its_end(stores: Stores) -> None:
    async def main(clock: VirtualClock) -> None:
        messages: list[AlertMessage] = []
        at: list[float] = []

        def made() -> Headgate:
            app = app_on(stores(clock), clock=clock)
            app.queue("mail", concurrency=1)

            async def page(message: AlertMessage) -> None:
                messages.append(message)
                at.append(clock.monotonic() / 1e6)

            app.alert(page, on="queue_lag > 60", repeat=timedelta(minutes=5))

            @app.task(queue="mail", name="send")
            async def send() -> None:
                await asyncio.sleep(400)

            return app

        first, second = made(), made()
        async with first, second:
            await first.tasks["send"].enqueue_many([()] * 4)
            await asyncio.sleep(55)
            assert messages == []
            # Two nodes start two jobs; the others wait until those end at 400 s.
            await asyncio.sleep(1000)
        assert told(messages) == [("firing", "mail"), ("firing", "mail"), ("resolved", "mail")]
        begin, repeat, end = at
        assert 60 < begin <= 60 + 20
        assert 300 <= repeat - begin <= 320
        # A minute after it was last seen to lag, which was up to 10 s before 400 s.
        assert 390 + 60 <= end <= 400 + 60 + 30
        assert [message.number for message in messages] == [1, 2, 3]
        assert len({message.alert_id for message in messages}) == 1
        assert len({message.id for message in messages}) == 3
        assert messages[0].ended_at is None
        assert messages[2].ended_at is not None
        assert messages[0].value is not None
        assert 60 < messages[0].value < 80
        assert messages[0].text.startswith("jobs of queue 'mail' wait ")

    run_virtual(main)


def test_a_flapping_condition_is_one_alert(stores: Stores) -> None:
    async def main(clock: VirtualClock) -> None:
        messages: list[AlertMessage] = []
        app = app_on(stores(clock), clock=clock)
        app.alert(messages.append, on="waiting(default) > 2", name="many")

        @app.task
        async def work() -> None: ...

        async with app:
            await app.admin.queues.pause("default")
            for _ in range(10):
                await work.enqueue_many([()] * 3)
                await asyncio.sleep(20)
                await app.admin.queues.resume("default")
                await asyncio.sleep(20)
                await app.admin.queues.pause("default")
            assert told(messages) == [("firing", "default")]
            await asyncio.sleep(100)
            assert told(messages) == [("firing", "default"), ("resolved", "default")]
            # A second alert, with another id.
            await work.enqueue_many([()] * 3)
            await asyncio.sleep(20)
            assert [message.alert_id for message in messages].count(messages[-1].alert_id) == 1

    run_virtual(main)


def test_failures_are_counted_for_all_tasks_and_for_one() -> None:
    async def main(clock: VirtualClock) -> None:
        messages: list[AlertMessage] = []
        app = Headgate("memory://", clock=clock, retry=ONCE)
        app.alert(messages.append, on=("failures > 5/m", "failures(fails) > 2/m", "failures(works) > 0/m"), name="ops")

        @app.task(name="fails")
        async def fails() -> None:
            raise ValueError

        @app.task(name="works")
        async def works() -> None: ...

        async with app:
            for _ in range(20):
                await fails.enqueue()
                await works.enqueue()
                await asyncio.sleep(15)
            assert told(messages) == [("firing", "fails")]
            assert messages[0].condition == "failures(fails) > 2/m"
            await fails.enqueue_many([()] * 3)
            await asyncio.sleep(30)
            assert told(messages) == [("firing", "fails"), ("firing", "")]
            await asyncio.sleep(300)
            assert sorted(told(messages)[2:]) == [("resolved", ""), ("resolved", "fails")]

    run_virtual(main)


def test_failures_of_jobs_under_an_alias_count_for_the_task() -> None:
    """The fault: after a deploy had renamed a task, an alert on its failures saw none of the jobs enqueued before."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        messages: list[AlertMessage] = []
        old, new = app_on(store, clock=clock), app_on(store, clock=clock)
        new.alert(messages.append, on="failures(sync_tenant) > 3/m")

        @old.task(name="sync_customer")
        async def before() -> None: ...

        @new.task(name="sync_tenant", aliases=["sync_customer"], retry=ONCE)
        async def after() -> None:
            raise ValueError

        async with old.open():
            await before.enqueue_many([()] * 2)
        async with new:
            await after.enqueue_many([()] * 2)
            await asyncio.sleep(60)
        assert [(message.subject, message.value) for message in messages] == [("sync_tenant", 4)]

    run_virtual(main)


def test_a_lost_node_an_overdue_schedule_and_a_limit_without_its_store_are_told() -> None:
    class Away(MemoryBuckets):
        is_away = True

        async def take(self, *args: Any, **kwargs: Any) -> Any:
            if self.is_away:
                raise StorageUnavailable("away")
            return await super().take(*args, **kwargs)

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        messages: list[AlertMessage] = []
        buckets = Away(clock)
        app = app_on(store, clock=clock)
        app.alert(messages.append, on=("node_lost", "schedule_overdue", "limit_unavailable"), name="ops")

        @app.task(limits=[StrictRate("100/m", name="api", store=buckets, on_store_error="wait")])
        async def call() -> None: ...

        other = app_on(store, clock=clock)

        @other.schedule(Every(minutes=10))
        @other.task(name="hourly")
        async def hourly() -> None: ...

        async with app:
            await store.join("node-dead", "blue")
            async with other:
                await asyncio.sleep(1)
            await call.enqueue()
            await asyncio.sleep(60)
            assert sorted(told(messages)) == [("firing", "api"), ("firing", "blue")]
            buckets.is_away = False
            await asyncio.sleep(140)
            assert told(messages)[2:] == [("resolved", "api")]
            await asyncio.sleep(700)
            assert sorted(told(messages)[3:]) == [("firing", "hourly"), ("resolved", "blue")]
            assert {message.condition for message in messages} == {
                "node_lost", "schedule_overdue", "limit_unavailable",
            }  # fmt: skip

    run_virtual(main)


# --------------------------------------------------------------------------------------------------- delivery


def test_a_message_that_is_refused_is_tried_again_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        tries: list[tuple[str, float]] = []
        others: list[AlertMessage] = []
        events: list[AlertSent | AlertFailed] = []
        app = Headgate("memory://", clock=clock)
        app.subscribe(events.append, AlertSent, AlertFailed)  # type: ignore[arg-type]

        def refuse(message: AlertMessage) -> None:
            tries.append((message.id, clock.monotonic() / 1e6))
            if len(tries) == 1:
                raise ConnectionError("no route")
            if len(tries) == 2:
                raise SystemExit(3)
            if len(tries) == 3:
                raise asyncio.CancelledError

        async def hang(message: AlertMessage) -> None:
            await asyncio.sleep(10_000)

        app.alert(refuse, on="waiting > 0")
        app.alert(hang, on="waiting > 0")
        app.alert(others.append, on="waiting > 0", name="others")

        @app.task
        async def work() -> None: ...

        async with app:
            await app.admin.queues.pause("default")
            await work.enqueue()
            await asyncio.sleep(15)
            (failed,) = [each for each in await app.admin.alerts() if each.alert == "refuse"]
            assert (failed.tries, failed.error) == (1, "ConnectionError: no route")
            await asyncio.sleep(185)
            assert told(others) == [("firing", "default")]
            ids, instants = zip(*tries, strict=True)
            assert len(ids) == 4
            assert len(set(ids)) == 1
            waits = [after - before for before, after in pairwise(instants)]
            assert all(wait <= took <= wait + 20 for wait, took in zip((10, 20, 40), waits, strict=True)), waits
            (failed,) = [each for each in await app.admin.alerts() if each.alert == "hang"]
            assert failed.error == "no answer within 30 s"
            assert [type(each) for each in events if each.alert == "refuse"] == [AlertFailed] * 3 + [AlertSent]
            await app.admin.queues.resume("default")
            await asyncio.sleep(10)
            assert await app.admin.count() == 1

    with caplog.at_level(logging.INFO, "headgate"):
        run_virtual(main)
    lines = [record.getMessage() for record in caplog.records if "alert refuse" in record.getMessage()]
    assert "was not delivered at try 1, and is tried again at 2026-01-01T00:00:" in lines[0]
    assert "ConnectionError: no route (1 due jobs wait in queue 'default', more than 0)" in lines[0]
    assert lines[-1].startswith("alert refuse sent: ")


def test_what_a_node_was_sending_when_it_died_is_sent_by_another_under_the_same_id(stores: Stores) -> None:
    async def main(clock: VirtualClock) -> None:
        begun: list[str] = []
        sent: list[str] = []

        def made(*, dies: bool) -> Headgate:
            app = app_on(stores(clock), clock=clock)

            async def page(message: AlertMessage) -> None:
                begun.append(message.id)
                if dies:
                    await asyncio.sleep(3600)
                sent.append(message.id)

            app.alert(page, on="waiting > 0")

            @app.task(name="work")
            async def work() -> None: ...

            return app

        dying = made(dies=True)
        async with dying.open():
            node = new_node(dying)
            running = asyncio.create_task(node.run())
            await dying.admin.queues.pause("default")
            await dying.tasks["work"].enqueue()
            await asyncio.sleep(12)
            assert len(begun) == 1
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        async with made(dies=False):
            await asyncio.sleep(110)
            assert sent == begun[:1]
            assert begun == sent * 2

    run_virtual(main)


def test_an_error_in_one_message_delays_only_that_message_and_ends_no_node() -> None:
    class Refusing(MemoryStorage):
        async def alert_tried(self, record: AlertRecord, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
            if record.subject == "first" and self.is_refusing:
                raise ValueError("no such character")
            return await super().alert_tried(record, *args, **kwargs)

        async def take_alert_turns(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
            if not self.is_refusing:
                self.is_refusing = True
                raise ValueError("no such name")
            return await super().take_alert_turns(*args, **kwargs)

        is_refusing = False

    async def main(clock: VirtualClock) -> None:
        messages: list[AlertMessage] = []
        failures: list[StorageFailed] = []
        app = app_on(Refusing(clock), clock=clock)
        app.subscribe(failures.append, StorageFailed)
        app.alert(messages.append, on="waiting > 0", name="ops")
        for queue in ("first", "second"):
            app.queue(queue)

        @app.task
        async def work() -> None: ...

        async with app:
            for queue in ("first", "second"):
                await app.admin.queues.pause(queue)
                await work.using(queue=queue).enqueue()
            await asyncio.sleep(25)
            assert sorted(told(messages)) == [("firing", "first"), ("firing", "second")]
            await asyncio.sleep(90)
            # Whether the first one had arrived could not be stored.
            assert sorted(told(messages)) == [("firing", "first")] * 2 + [("firing", "second")]
            assert await app.admin.count() == 2
        assert [(each.doing, each.error) for each in failures] == [
            ("looking at the conditions of alerts", "ValueError: no such name"),
            *[("sending a message of alert ops", "ValueError: no such character")] * 2,
        ]

    run_virtual(main)


def test_a_condition_that_cannot_be_read_hides_no_other_and_ends_no_alert() -> None:
    class Slow(MemoryStorage):
        is_slow = False
        asked = 0

        async def views(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
            if self.is_slow:
                self.asked += 1
                raise StorageUnavailable("the count took longer than 15 s")
            return await super().views(*args, **kwargs)

    async def main(clock: VirtualClock) -> None:
        store = Slow(clock)
        messages: list[AlertMessage] = []
        failures: list[StorageFailed] = []
        app = app_on(store, clock=clock)
        app.subscribe(failures.append, StorageFailed)
        app.alert(messages.append, on=("waiting > 0", "waiting > 1", "queue_lag > 60", "node_lost"), name="ops")
        app.queue("mail")
        app.queue("sync", concurrency=1)

        @app.task
        async def work() -> None: ...

        @app.task(queue="sync")
        async def hold() -> None:
            await asyncio.sleep(85)

        async with app:
            await app.admin.queues.pause("mail")
            await work.using(queue="mail").enqueue()
            await hold.enqueue_many([()] * 2)
            await asyncio.sleep(75)
            assert sorted(told(messages)) == [("firing", "mail"), ("firing", "sync"), ("firing", "sync")]
            store.is_slow = True
            await store.join("node-dead", "blue")
            await app.admin.queues.resume("mail")
            await asyncio.sleep(300)
            # Neither queue has jobs that wait, which the node cannot see; that none of them lags it can.
            assert sorted((each.state, each.condition, each.subject) for each in messages[3:]) == [
                ("firing", "node_lost", "blue"),
                ("resolved", "queue_lag > 60", "sync"),
            ]
            assert {each.doing for each in failures} == {"reading waiting for alerts"}
            # A slow count is tried once in a turn, whatever asks for it.
            assert 28 <= store.asked == len(failures) <= 31
            store.is_slow = False
            await asyncio.sleep(30)
            assert sorted((each.state, each.condition, each.subject) for each in messages[5:]) == [
                ("resolved", "waiting > 0", "mail"),
                ("resolved", "waiting > 0", "sync"),
            ]

    run_virtual(main)


def test_a_store_that_is_away_stops_no_alert_for_good() -> None:
    class Failing(MemoryStorage):
        is_away = False

        async def take_alert_turns(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
            if self.is_away:
                raise StorageUnavailable("away")
            return await super().take_alert_turns(*args, **kwargs)

        async def alert_tried(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
            if self.is_away:
                raise StorageUnavailable("away")
            return await super().alert_tried(*args, **kwargs)

    async def main(clock: VirtualClock) -> None:
        store = Failing(clock)
        messages: list[AlertMessage] = []
        app = app_on(store, clock=clock)

        def page(message: AlertMessage) -> None:
            messages.append(message)
            store.is_away = len(messages) == 1

        app.alert(page, on="waiting > 0")

        @app.task
        async def work() -> None: ...

        async with app:
            await app.admin.queues.pause("default")
            await work.enqueue()
            await asyncio.sleep(60)
            assert len(messages) == 1
            store.is_away = False
            await asyncio.sleep(100)
            # Whether the first one had arrived could not be stored.
            assert len(messages) == 2
            assert messages[0].id == messages[1].id

    run_virtual(main)


# ------------------------------------------------------------------------------------------------ declaration


def test_a_node_without_alerts_reads_and_writes_nothing_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Node] = []

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None: ...

        async with app:
            node = node_of(app)
            assert node is not None
            made.append(node)
            await asyncio.sleep(60)
            names = {task.get_name() for task in asyncio.all_tasks()}
            assert "headgate-housekeeper" in names
            assert "headgate-alerter" not in names

    run_virtual(main)
    assert "alerter" not in made[0]._others


@pytest.fixture
def app() -> Headgate:
    return Headgate("memory://")


async def page(message: AlertMessage) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"on": ()}, "alert 'page' has no condition; pass for example on="),
        ({"on": ("node_lost", "node_lost")}, "alert 'page' has the condition 'node_lost' twice"),
        ({"on": "node_lost", "name": "a b"}, "alert"),
        ({"on": "node_lost", "repeat": 5}, "repeat=5 is less than a minute"),
        ({"on": "node_lost", "repeat": "often"}, "is not a duration"),
        ({"on": "node_lost", "secret": "x"}, "secret= signs the requests to a webhook; a function gets none"),
        ({"on": "node_lost", "target": print}, None),
        ({"on": "node_lost", "target": lambda message: None}, "the target has no name; pass name="),
        ({"on": "node_lost", "target": lambda: None}, "the target: '<lambda>' gets .message.: too many positional"),
        ({"on": "node_lost", "target": 5}, "the target is the URL of a webhook, or a function"),
        ({"on": "node_lost", "target": "ftp://host/x"}, "the target 'ftp'… is not the URL of a webhook"),
        ({"on": "node_lost", "target": "https://ada:pw@host/x"}, "names a user, which is not sent"),
        ({"on": "node_lost", "target": "https://host:x/"}, "the URL of the webhook cannot be read"),
        ({"on": "node_lost", "target": "https://host/a b"}, "have to be percent-encoded"),
        ({"on": "node_lost", "target": "https://host/", "secret": ""}, "secret= is a text that is not empty"),
        ({"on": "node_lost", "target": "https://host/", "secret": "whsec_ü"}, "what follows 'whsec_' in secret="),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(app: Headgate, arguments: dict[str, Any], said: str | None) -> None:
    target = arguments.pop("target", page)
    if said is None:
        app.alert(target, **arguments)
        assert [alert.name for alert in registry_of(app).alerts.values()] == ["print"]
        return
    with pytest.raises(DeclarationError, match=said):
        app.alert(target, **arguments)
    assert registry_of(app).alerts == {}


def test_names_of_alerts_queues_and_tasks_are_checked(app: Headgate) -> None:
    app.alert("https://hooks.example.com/T0/secret", on="node_lost", secret="whsec_c2VjcmV0")
    (alert,) = registry_of(app).alerts.values()
    assert (alert.name, alert.key) == ("hooks.example.com", b"secret")
    assert "T0" not in repr(alert)
    assert "secret" not in repr(alert)
    with pytest.raises(DeclarationError, match=r"there are two alerts 'hooks.example.com'; pass name="):
        app.alert("https://hooks.example.com/other", on="node_lost")
    with pytest.raises(UnknownQueue, match="alert 'page' uses queue 'mial', which is not declared"):
        app.alert(page, on="queue_lag(mial) > 1")
    with pytest.raises(DeclarationError, match="counts failures in the history, which is switched off"):
        Headgate("memory://", history=False).alert(page, on="failures > 1/m")


async def test_an_alert_on_a_task_that_nobody_declares_keeps_a_node_from_starting(app: Headgate) -> None:
    app.alert(page, on="failures(sned) > 1/m")

    @app.task(name="send")
    async def send() -> None: ...

    with pytest.raises(DeclarationError, match=r"declares no task 'sned'; did you mean 'send'\?"):
        async with app:
            pass
