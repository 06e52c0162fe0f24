"""What can never work is refused where it is declared, and what cannot be stored where it is enqueued."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID, uuid4

import pytest

from headgate import (
    CostExceedsLimit,
    DeclarationError,
    Headgate,
    HeadgateError,
    Mutex,
    NotOpen,
    PayloadError,
    RateLimit,
    RetryPolicy,
    StrictRate,
    batch,
)
from headgate.engine.enqueuer import group_calls
from headgate.errors import UnknownQueue
from headgate.jobs.event import Event, LimitSkipped
from headgate.jobs.job import BucketRef, NewJob
from headgate.limits.limit import Limit, WaitTerms
from headgate.settings import load_settings
from headgate.tasks.limit_set import LimitSet
from tests.internals import client_of, registry_of
from tests.until import result_within


@pytest.fixture
def app() -> Headgate:
    return Headgate("memory://")


@pytest.mark.parametrize(
    "url", ["redis://x", "jobs.db", "sqlite://", "sqlite:///", "sqlite://host/x.db", "mysql://a/b", ""]
)
def test_an_unknown_storage_url_is_refused_and_the_error_names_the_known_ones(url: str) -> None:
    with pytest.raises(DeclarationError, match="sqlite:///"):
        Headgate(url)


@pytest.mark.parametrize(
    ("declare", "reason"),
    [
        (lambda app: app.task(name=5)(repr), "task name 5 must be 1 to 200 letters"),
        (lambda app: app.task(queue=["mail"])(repr), r"queue \['mail'\], which is not declared"),
        (lambda app: app.task(aliases=5)(repr), "aliases=5 is not a list of names"),
        (lambda app: app.task(audit=["full"])(repr), r"audit=\['full'\] must be one of none, errors"),
        (
            lambda app: app.task(name="send")(repr).using(headers="x"),
            "headers='x' is not a dict.* write headers={\"",
        ),
        (lambda app: app.queue(5), "queue name 5 must be"),
        (lambda app: app.alert("https://host/x", on=5), "5 is not a condition; there are"),
        (lambda app: app.alert("https://host/x", on="node_lost", secret="\ud800"), "secret= is a text"),
        (lambda app: batch(app.task), r"write batch\(\[a.call"),
    ],
    ids=["name", "queue", "aliases", "audit", "headers", "queue name", "alert", "secret", "batch"],
)
def test_an_option_of_another_type_is_named(app: Headgate, declare: Callable[[Any], object], reason: str) -> None:
    """The fault: a TypeError of Python, such as "unhashable type: list", that named neither option nor value."""
    with pytest.raises(HeadgateError, match=reason):
        declare(app)


def test_options_in_a_storage_url_are_pointed_to_the_settings() -> None:
    with pytest.raises(DeclarationError, match="synchronous="):
        Headgate("sqlite:///jobs.db?synchronous=OFF")


def test_a_key_template_that_names_no_argument_is_refused_at_the_declaration(app: Headgate) -> None:
    with pytest.raises(DeclarationError, match=r"names 'tenant', which is not among its arguments: tenant_id, page"):

        @app.task(limits=[StrictRate("15/m", key="{tenant}")])
        async def call(tenant_id: str, page: int) -> None: ...

    assert "call" not in app.tasks


def test_a_key_callable_that_asks_for_an_unknown_argument_is_refused(app: Headgate) -> None:
    with pytest.raises(DeclarationError, match="has unknown parameters: account"):

        @app.task(limits=[StrictRate("15/m", key=lambda account: account)])
        async def call(tenant_id: str) -> None: ...


@pytest.mark.parametrize("limits", [["nobody"], [42], [StrictRate("1/s", name="x"), StrictRate("1/s", name="x")]])
def test_limits_that_do_not_exist_or_come_twice_are_refused(app: Headgate, limits: list[Any]) -> None:
    with pytest.raises(DeclarationError):

        @app.task(limits=limits)
        async def call() -> None: ...


def test_one_name_is_one_budget_so_other_numbers_under_it_are_refused(app: Headgate) -> None:
    @app.task(limits=[StrictRate("15/m", name="api")])
    async def one() -> None: ...

    with pytest.raises(DeclarationError, match="one name is one budget"):

        @app.task(limits=[StrictRate("16/m", name="api")])
        async def other() -> None: ...


@pytest.mark.parametrize("cost", [0, -1, True, 16])
def test_a_fixed_cost_that_can_never_be_granted_is_refused_at_the_declaration(cost: int) -> None:
    with pytest.raises(DeclarationError):
        StrictRate("15/m", cost=cost)


def test_a_shared_limit_may_be_declared_again_with_the_same_options_only(app: Headgate) -> None:
    app.limit("api", StrictRate("15/m", key="{tenant}"))
    app.limit("api", StrictRate("15/m", key="{tenant}"))
    with pytest.raises(DeclarationError, match=r"limit .api. is declared twice: as 15/m.* and as 16/m"):
        app.limit("api", StrictRate("16/m", key="{tenant}"))
    with pytest.raises(DeclarationError, match="declare it once, or with the same options"):
        app.limit("api", StrictRate("15/m", key="{user}"))


def test_tasks_queues_and_settings_are_checked_where_they_are_named(app: Headgate) -> None:
    with pytest.raises(UnknownQueue, match=r"app\.queue"):

        @app.task(queue="emails")
        async def send() -> None: ...

    @app.task(name="same")
    async def one() -> None: ...

    with pytest.raises(DeclarationError, match="declared twice"):

        @app.task(name="same")
        async def other() -> None: ...

    with pytest.raises(DeclarationError, match=r"stored by name"):

        @app.task
        async def many(*names: str) -> None: ...

    with pytest.raises(DeclarationError, match="priority"):
        one.using(priority=10)
    with pytest.raises(DeclarationError, match="not both"):
        one.using(delay=1, at=datetime.now(UTC))
    with pytest.raises(ValueError, match="time zone"):
        one.using(at=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(DeclarationError, match="at least twice"):
        Headgate("memory://", lease=5, heartbeat=5)
    with pytest.raises(TypeError, match="leese"):
        Headgate("memory://", leese=5)  # type: ignore[call-arg]
    with pytest.raises(DeclarationError, match="HEADGATE_LEASE='soon'"):
        load_settings({}, {"HEADGATE_LEASE": "soon"})
    with pytest.raises(DeclarationError):
        RetryPolicy(retries=-1)
    assert load_settings({"lease": 60}, {"HEADGATE_LEASE": "90", "HEADGATE_GRACE": "3"}).lease == 60


async def test_enqueueing_before_open_says_how_to_open(app: Headgate) -> None:
    @app.task
    async def work() -> None: ...

    with pytest.raises(NotOpen, match=r"async with app\.open\(\)"):
        await work.enqueue()


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    tenant_id: str
    amount: Decimal
    placed_at: datetime


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "cannot be stored as JSON"),
        (math.nan, "does not survive"),
        ("\ud800", "cannot be stored as JSON"),
        ({1, 2}, "does not survive"),
        ((1, 2), "does not survive"),
        (datetime(2026, 1, 1, tzinfo=UTC), "does not survive"),
        (nested(100_000), "nested too deeply"),
        ("x" * 300_000, "bytes as JSON, more than 262144"),
    ],
    ids=["object", "nan", "surrogate", "set", "tuple", "datetime", "deep", "large"],
)
async def test_an_argument_that_json_cannot_carry_is_refused_at_enqueue_and_nothing_is_stored(
    app: Headgate, value: object, reason: str
) -> None:
    @app.task
    async def work(thing: Any) -> None: ...

    async with app.open():
        with pytest.raises(PayloadError, match=reason):
            await work.enqueue_many([("fine",), (value,)])
        assert await app.admin.counts() == []


async def test_arguments_come_back_as_their_annotated_types() -> None:
    app = Headgate("memory://")
    seen: list[tuple[object, ...]] = []

    @app.task
    async def work(
        order: Order, colour: Colour, id: UUID, tags: tuple[str, ...], /, rate: float, *, note: str = "-"
    ) -> None:
        seen.append((order, colour, id, tags, rate, note))

    order = Order("acme", Decimal("9.90"), datetime(2026, 1, 1, tzinfo=UTC))
    id = uuid4()
    async with app:
        await result_within(await work.enqueue(order, Colour.RED, id, ("a", "b"), 3))
    assert seen == [(order, Colour.RED, id, ("a", "b"), 3.0, "-")]


async def test_arguments_that_do_not_fit_the_signature_are_refused_like_a_call(app: Headgate) -> None:
    @app.task
    async def work(tenant: str, page: int = 1) -> None: ...

    async with app.open():
        for args, kwargs, reason in [
            ((), {}, "lacks argument 'tenant'"),
            (("a", 1, 2), {}, "takes 2 positional"),
            (("a",), {"tenant": "b"}, "twice"),
            (("a",), {"pages": 1}, "no argument 'pages'"),
        ]:
            with pytest.raises(TypeError, match=reason):
                await work.enqueue(*args, **kwargs)  # type: ignore[arg-type]
        with pytest.raises(PayloadError, match="does not fit its annotation"):
            await work.enqueue("a", "one")  # type: ignore[arg-type]


async def test_a_computed_cost_is_checked_at_enqueue(app: Headgate) -> None:
    @app.task(limits=[StrictRate("100/m", key="{tenant}", cost="{tokens}")])
    async def call(tenant: str, tokens: int) -> None: ...

    async with app.open():
        with pytest.raises(CostExceedsLimit, match="101"):
            await call.enqueue("acme", 101)
        with pytest.raises(PayloadError, match="whole number from 1"):
            await call.enqueue("acme", 0)
        await call.enqueue("acme", 100)


def used(limit: Limit, **using: Any) -> tuple[BucketRef, ...]:
    app = Headgate("memory://")

    @app.task(limits=[limit], name="call")
    async def call(tenant: str | None, order: Order | None = None) -> None: ...

    task = call.using(**using)
    (job,) = client_of(app).enqueuer._jobs_of(task, group_calls(task, [task.call("acme")]))
    assert isinstance(job, NewJob)
    return job.buckets


def test_a_limit_counts_by_template_callable_header_or_one_for_all() -> None:
    from headgate import header

    assert used(RateLimit("1/s", key="{tenant}")) == (BucketRef("call:rate", "acme"),)
    assert used(RateLimit("1/s", key=lambda tenant: tenant.upper())) == (BucketRef("call:rate", "ACME"),)
    assert used(RateLimit("1/s", key=header("tenant")), headers={"tenant": "globex"}) == (
        BucketRef("call:rate", "globex"),
    )
    assert used(RateLimit("1/s", key=header("tenant"))) == (BucketRef("call:rate", "global"),)
    assert used(RateLimit("1/s")) == (BucketRef("call:rate", ""),)
    assert used(RateLimit("1/s", name="shared")) == (BucketRef("shared", ""),)


async def test_a_missing_or_failing_key_leaves_the_job_ungated_with_one_warning() -> None:
    app = Headgate("memory://")
    skipped: list[Event] = []
    app.subscribe(skipped.append, LimitSkipped)

    def broken(tenant: str | None) -> str:
        raise RuntimeError("no idea")

    @app.task(limits=[StrictRate("1/h", key="{tenant}"), StrictRate("1/h", key=broken)])
    async def call(tenant: str | None) -> None: ...

    async with app:
        jobs = await call.enqueue_many([(None,)] * 5)
        for job in jobs:
            await result_within(job)
    assert [event.limit for event in skipped if isinstance(event, LimitSkipped)] == ["call:rate", "call:rate2"]


@pytest.mark.parametrize("name", ["", "n" * 101, "a\x00b", "a\nb", 3, ".", ".."])
def test_a_limit_has_a_name_that_people_can_read(app: Headgate, name: Any) -> None:
    with pytest.raises(DeclarationError, match="1 to 100 printable characters"):
        app.limit(name, StrictRate("1/m"))
    with pytest.raises(DeclarationError, match="1 to 100 printable characters"):
        StrictRate("1/m", name=name)


def test_limits_are_given_as_a_list_of_limits(app: Headgate) -> None:
    async def work() -> None: ...

    with pytest.raises(DeclarationError, match="'shared' is '15/m', not a limit"):
        app.limit("shared", "15/m")  # type: ignore[arg-type]
    for limits, message in (
        (StrictRate("1/m"), r"not a list of limits; write limits=\[StrictRate\(…\)\]"),
        (Mutex("a"), r"not a list of limits; write limits=\[Mutex\(…\)\]"),
        ("shared", r"is not a list; write limits=\['shared'\]"),
        ("15/m", r'is not a list; write limits=\[StrictRate\("15/m"\)\]'),
        ({"a": 1}, r"is not a list; write limits=\["),
    ):
        with pytest.raises(DeclarationError, match=message):
            app.task(limits=limits)(work)  # type: ignore[arg-type]
        with pytest.raises(DeclarationError, match=message):
            app.queue("mail", limits=limits)  # type: ignore[arg-type]
        with pytest.raises(DeclarationError, match=message):
            batch([], limits=limits)  # type: ignore[arg-type]


def test_a_rate_in_place_of_the_name_of_a_limit_is_refused_with_what_to_write(app: Headgate) -> None:
    async def work() -> None: ...

    with pytest.raises(DeclarationError, match=r"'15/m' is a rate, not the name of a limit; write limits=\[StrictRate"):
        app.task(limits=["15/m"])(work)
    with pytest.raises(DeclarationError, match=r"'15/m' is a rate, not the name of a limit; write limits=\[StrictRate"):
        app.queue("mail", limits=["15/m"])


def test_headers_are_small_however_they_add_up(app: Headgate) -> None:
    @app.task
    async def work() -> None: ...

    half = work.using(headers={"a": "x" * 9000})
    assert half.using(headers={"a": "y" * 9000}).options["headers"] == {"a": "y" * 9000}
    with pytest.raises(DeclarationError, match="more than 16384; they are read with every list"):
        half.using(headers={"b": "x" * 9000})


def test_limits_that_are_declared_while_a_thread_enqueues_are_known_afterwards(
    app: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: what the thread was computing was kept, without the new limits, for all later jobs."""

    @app.task
    async def sync() -> None: ...

    registry = registry_of(app)
    task, with_default = registry.tasks[sync.name], LimitSet.with_default

    def declare_meanwhile(limit_set: LimitSet, terms: WaitTerms) -> LimitSet:
        monkeypatch.undo()
        app.queue("mail", limits=[StrictRate("1/m", name="late")])
        return with_default(limit_set, terms)

    app.queue("mail")
    monkeypatch.setattr(LimitSet, "with_default", declare_meanwhile)
    name = registry.limit_set_name(sync.name, "mail")
    assert registry.limit_set(task, "mail").names == ("late",)
    assert registry.limit_set_name(sync.name, "mail") != name
