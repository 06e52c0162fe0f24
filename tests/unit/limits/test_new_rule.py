"""A new kind of rule is one class and one line in the list of kinds: no other code names the kinds there are."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import ClassVar, Unpack

import msgspec
import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from headgate.arguments import parse_duration
from headgate.cli.main import main
from headgate.clock import FARTHEST, SECOND, Duration
from headgate.engine.max_wait import late_starts
from headgate.errors import CostExceedsLimit, DeclarationError
from headgate.jobs.job import BucketRef
from headgate.limits import kinds
from headgate.limits.bucket_store import Bucket
from headgate.limits.kinds import KINDS, RULES, dump_rule, load_rule, spelled_kinds, spelled_limit
from headgate.limits.limit import AnyRule, Limit, RateOptions, SpelledOptions
from headgate.limits.redis.script import numbers
from headgate.limits.rule import Rule, Snapshot
from headgate.limits.standalone.limiter import Limiter
from headgate.storage import admission
from headgate.storage.admission import BucketView, LaneView, admit
from headgate.storage.records import Amendment
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.stored_buckets import StoredBuckets
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import StoreUser
from tests.until import result_within

NOON = 1_767_268_800 * SECOND


class Rest(Rule[int], frozen=True, tag="rest", tag_field="kind"):
    """Grants a start when the one before it is a `period` ago. The state is the instant of the last start."""

    period: int

    kind: ClassVar[str] = "rest"

    def take(self, state: int | None, now: int, cost: int = 1) -> tuple[int, int]:
        self.check_cost(cost)
        opens_at = now if state is None else max(now, state + self.period)
        return opens_at, opens_at

    def check_cost(self, cost: int) -> None:
        if cost > 1:
            raise CostExceedsLimit(f"a cost of {cost} can never be granted: {self.describe()}")

    def counts_until(self, charged_at: int) -> int:
        return charged_at + self.period

    def amend(self, state: int, charged_at: int, cost: int, started_at: int, actual: int) -> int:
        return max(state, started_at) if actual else state

    def snapshot(self, state: int | None, now: int) -> Snapshot:
        opens_at, _ = self.take(state, now)
        return Snapshot(used=int(opens_at > now), available=int(opens_at <= now), opens_at=opens_at)

    def bound(self, window: int) -> int:
        return -(-window // self.period)

    def idle_at(self, state: int) -> int:
        return state + self.period

    def dump(self, state: int) -> str:
        return f"1:{self.kind}:{state}"

    def load(self, stored: str, now: int) -> int:
        head = f"1:{self.kind}:"
        return int(stored[len(head) :]) if stored.startswith(head) else now

    def describe(self) -> str:
        return f"one every {self.period / SECOND:g} s"


@dataclass(frozen=True, init=False)
class RestBetween(Limit):
    """One start, then a rest: `RestBetween(30)`."""

    rule: Rest

    def __init__(self, rest: Duration | str, **options: Unpack[RateOptions]) -> None:
        super().__init__(Rest(parse_duration(rest, "rest", "a rest")), **options)

    @classmethod
    def spelled(cls, text: str, like: AnyRule | None, options: SpelledOptions) -> Limit:
        return cls(text)


APP = """
from headgate import Headgate
from tests.unit.limits.test_new_rule import RestBetween

app = Headgate("sqlite:///jobs.db", synchronous="OFF")


@app.task(limits=[RestBetween("10m", key="{tenant}")])
async def sync(tenant: str) -> None: ...
"""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it stood in the list of rules."""
    rule: type[AnyRule] = Rest
    monkeypatch.setitem(RULES, rule, RestBetween)
    monkeypatch.setitem(KINDS, rule.kind, rule)
    monkeypatch.setattr(kinds, "_decode", msgspec.json.Decoder(reduce(or_, RULES)).decode)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    name = f"rested_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(APP)
    return f"{name}:app"


@pytest_asyncio.fixture
async def store_user(tmp_path: Path) -> AsyncIterator[StoreUser]:
    clock = ManualClock()
    storage = SqliteStorage(tmp_path / "jobs.db", clock, synchronous="OFF")
    await storage.open()
    store_user = StoreUser(storage, clock)
    await storage.join(store_user.node, "a")
    yield store_user
    assert list(await storage.check()) == []
    await storage.close()


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["limits", *words])


def test_it_is_stored_under_its_kind_and_comes_back() -> None:
    rule = RestBetween(30).rule
    assert json.loads(dump_rule(rule)) == {"kind": "rest", "period": 30 * SECOND}
    assert load_rule(dump_rule(rule)) == rule
    with pytest.raises(DeclarationError, match="'rate', 'rest', 'sliding'"):
        load_rule('{"kind": "leaky"}')


def test_a_rule_that_is_not_in_the_list_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = dump_rule(RestBetween(30).rule)
    monkeypatch.undo()
    with pytest.raises(DeclarationError, match="Invalid value 'rest'"):
        load_rule(text)


def test_the_new_rule_can_replace_another_rate_and_vice_versa() -> None:
    rest = RestBetween(30).rule
    assert spelled_limit(rest, "90s").rule == RestBetween(90).rule
    rate = spelled_limit(rest, "15/m", kind="strict").rule
    assert rate.kind == "strict"
    assert spelled_limit(rate, "30s", kind="rest").rule == rest
    assert spelled_kinds() == ["strict", "rate", "fixed", "sliding", "concurrency", "adaptive", "rest"]


def test_a_declaration_is_checked_by_the_rule() -> None:
    with pytest.raises(DeclarationError, match=r"rest limit: a period of .* more than a hundred years"):
        Rest(2 * FARTHEST).require_bounded()
    with pytest.raises(DeclarationError, match="a cost of 2 can never be granted: one every 30 s"):
        RestBetween(30, cost=2)


def test_redis_refuses_it_while_it_has_no_script() -> None:
    with pytest.raises(DeclarationError, match="a rule of kind 'rest' has no script for Redis"):
        numbers(RestBetween(30).rule)


def test_admission_charges_it() -> None:
    bucket = BucketView(BucketRef("rest", "acme"), RestBetween(30).rule, None)
    lane = LaneView("1", "default", [bucket], [None, None])
    admit([lane], {"default": 10}, NOON)
    assert (lane.taken, lane.behind, bucket.opens_at) == (1, bucket, NOON + 30 * SECOND)
    assert bucket.stored == (f"1:rest:{NOON}", NOON + 30 * SECOND)
    assert (bucket.grants(NOON, 5), bucket.grants(NOON + 30 * SECOND, 5)) == (0, 1)


async def test_a_claim_on_sqlite_charges_it_for_each_key(store_user: StoreUser) -> None:
    store_user.rules = {"rest": RestBetween(30).rule}
    await store_user.add(2, buckets=[("rest", "acme")])
    await store_user.add(2, buckets=[("rest", "globex")])
    assert len(await store_user.take()) == 2
    assert len(await store_user.take()) == 0
    assert (await store_user.bucket("rest", "acme")).state == f"1:rest:{store_user.storage.limit_now()}"
    store_user.clock.advance(30)
    assert len(await store_user.take()) == 2


class Flawed(Rest, frozen=True, tag="rest", tag_field="kind"):
    def take(self, state: int | None, now: int, cost: int = 1) -> tuple[int, int]:
        raise ZeroDivisionError("by the number of keys")


async def test_a_rule_that_raises_closes_its_keys_and_stops_nothing_else(
    store_user: StoreUser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admission, "_flawed", set())
    store_user.rules = {"rest": Flawed(30 * SECOND), "other": Rest(30 * SECOND)}
    first = await store_user.add_one(buckets=[("rest", "acme"), ("other", "acme")])
    second = await store_user.add_one(buckets=[("rest", "globex")])
    other = await store_user.add_one(buckets=[("other", "acme")])
    assert await store_user.take_ids() == [other]
    # Their keys open after ten seconds, and close again.
    store_user.clock.advance(10)
    assert await store_user.take_ids() == []
    (logged,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert logged.getMessage() == (
        "the rule of limit 'rest' (one every 30 s) raised an error for key 'acme'; where it does, jobs wait, whatever "
        "their on_limit, charges stay as they are, and it is tried again every 10 s. Report it, or set another rule"
    )
    assert logged.exc_info is not None
    # The next release has mended it.
    store_user.rules["rest"] = Rest(30 * SECOND)
    store_user.clock.advance(20)
    assert set(await store_user.take_ids()) == {first, second}


async def test_jobs_that_do_not_wait_for_limits_wait_for_a_rule_that_raises(store_user: StoreUser) -> None:
    """The fault: they ended as rejected, although nothing said that their budget was used up."""
    store_user.rules = {"rest": Flawed(30 * SECOND), "other": Rest(30 * SECOND)}
    new = store_user.new(buckets=[("rest", "acme")], patience=0)
    assert await late_starts(store_user.storage, store_user.rules, [new], lambda job: True) == [None]
    await store_user.storage.add([new])
    assert (await store_user.claim()).dropped == []
    # One that comes when others wait for the key already.
    second = await store_user.add_one(buckets=[("rest", "acme"), ("other", "acme")], patience=0)
    assert (await store_user.claim()).dropped == []
    # What another limit says holds.
    first = await store_user.add_one(buckets=[("other", "acme")])
    assert await store_user.take_ids() == [first]
    third = await store_user.add_one(buckets=[("rest", "globex"), ("other", "acme")], patience=0)
    assert [dropped.id for dropped in (await store_user.claim()).dropped] == [third]
    # The next release has mended it.
    store_user.rules["rest"] = Rest(30 * SECOND)
    store_user.clock.advance(40)
    assert await store_user.take_ids() in ([new.id], [second])


async def test_a_correction_by_a_rule_that_raises_does_not_keep_its_job_from_ending(
    store_user: StoreUser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Flawed(Rest, frozen=True, tag="rest", tag_field="kind"):
        def amend(self, state: int, charged_at: int, cost: int, started_at: int, actual: int) -> int:
            raise OverflowError("too far")

        def refused(self, state: int | None, charged_at: int, now: int) -> int | None:
            raise OverflowError("too far")

    monkeypatch.setattr(admission, "_flawed", set())
    store_user.rules = {"rest": Flawed(30 * SECOND)}
    await store_user.add_one(buckets=[("rest", "acme")])
    job = await store_user.take_one()
    charged_at = store_user.storage.limit_now()
    refusal = Amendment(BucketRef("rest", "acme"), charged_at, 1, charged_at, 0, is_refused=True)
    await store_user.storage.amend([refusal], store_user.rules)
    await store_user.succeed(job)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [OverflowError]


async def test_plain_code_uses_it_in_memory_and_where_the_jobs_are(store_user: StoreUser) -> None:
    limiter = Limiter(RestBetween(30))
    assert [bool(await limiter.try_acquire("acme")) for _ in range(2)] == [True, False]
    stored, used = StoredBuckets(store_user.storage), Bucket("rest", "acme", RestBetween(30).rule)
    assert [(await stored.take(used)).granted for _ in range(2)] == [1, 0]
    await stored.amend(Bucket("rest", "idle", RestBetween(30).rule), NOON, 1, NOON, 0)
    assert (await stored.snapshot(used)).used == 1


async def test_keys_of_a_rule_that_raises_are_listed_and_their_jobs_are_explained(
    target: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flawed(self: Rest, state: int | None, now: int, cost: int = 1) -> tuple[int, int]:
        raise ZeroDivisionError("by the number of keys")

    app = importlib.import_module(target.partition(":")[0]).app
    async with app:
        first, second = await app.tasks["sync"].enqueue_many([("acme",), ("acme",)])
        await result_within(first, 15)
        monkeypatch.setattr(admission, "_flawed", set())
        monkeypatch.setattr(Rest, "take", flawed)
        (status,) = await app.admin.limits.list()
        assert (status.key, status.available, status.waiting) == ("acme", None, 1)
        assert "one every 600 s" in (await app.admin.explain(second.id)).reason
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


def test_the_command_line_shows_it_sets_it_and_audits_it(target: str) -> None:
    app = importlib.import_module(target.partition(":")[0]).app

    async def run() -> None:
        async with app:
            first, second = await app.tasks["sync"].enqueue_many([("acme",), ("acme",)])
            await result_within(first, 15)
            assert "one every 600 s" in (await app.admin.explain(second.id)).reason
            await app.admin.limits.set_rule("sync:rate", "0.01s")
            await result_within(second, 15)

    asyncio.run(run())
    shown = call("list", target)
    assert "one every 0.01 s" in shown.output, shown.output
    assert call("set", target, "sync:rate", "90s", "--json").exit_code == 0
    (found,) = json.loads(call("list", target, "--json").stdout)
    assert (found["rule"], found["limit"], found["key"]) == ("one every 90 s", "sync:rate", "acme")
    audited = call("audit", target, "sync:rate", "--json")
    assert [verdict["starts"] for verdict in json.loads(audited.stdout)] == [2]
    assert call("unset", target, "sync:rate").exit_code == 0
    assert "one every 600 s" in call("show", target, "sync:rate", "--key", "acme").output
