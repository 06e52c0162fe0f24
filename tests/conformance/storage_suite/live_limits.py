"""What is promised of limits that are steered while jobs wait: set, paused, penalized, reset, forgotten, looked at."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.admin.limits import LimitsAdmin
from headgate.clock import SECOND
from headgate.errors import DeclarationError, LimitInUse, LimitRejected, StorageUnavailable
from headgate.jobs.audit import AuditFilter
from headgate.jobs.job import BucketRef, JobState
from headgate.jobs.limit_sets import LIMIT_SUBJECT
from headgate.limits.bucket_store import Bucket
from headgate.limits.fixed_window import FixedWindow
from headgate.limits.key import bucket_key
from headgate.limits.kinds import dump_rule
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.limits.sliding_window import SlidingWindow
from headgate.limits.strict_rate import StrictRate
from headgate.storage.live_rules import LimitSetting, Scope
from headgate.storage.records import Amendment, Claim, FreeSlots
from headgate.storage.stored_buckets import StoredBuckets
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import MINUTE, Conformance, StoreUser, at_once, rate, shared, strict

API = [("api", "acme")]
ACME = BucketRef("api", "acme")

LOOKALIKES = ["order5", "order", "ab", "a", "aXb", "abc", "long", "null"]

HOSTILE_KEYS = ["a*", "[!a]", "x" * 300, "null\x00", "sha256:abc", "order[5]", "a?b", "*", "y" * 5000, "[*]", "€" * 257]
"""Keys that read as patterns, or that are kept as their SHA-256."""

SCOPES: list[tuple[Scope, str]] = [("all", ""), ("key", "acme"), ("pattern", "ac*"), ("tier", "gold")]


def fixed(count: int) -> AnyRule:
    return FixedWindow(count, per=60).rule


def sliding(count: int) -> AnyRule:
    return SlidingWindow(count, per=60).rule


class LiveLimitsConformance(Conformance):
    # ----------------------------------------------------------------------------------------- setting

    async def test_a_raised_limit_releases_the_backlog_immediately(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(2)}
        ids = await store_user.add(10, buckets=API)
        assert await store_user.take_ids() == ids[:2]
        assert await store_user.take() == []
        await store_user.set("api", strict(7))
        assert await store_user.take_ids() == ids[2:7]
        assert await store_user.take() == []

    async def test_a_process_that_dies_after_committing_a_change_leaves_no_job_waiting(
        self, store_user: StoreUser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store_user.rules = {"api": strict(10)}
        paused = await store_user.pause("api")
        ids = await store_user.add(2, buckets=API)
        assert (await store_user.claim()).next_in is None
        write, commits = store_user.storage.write, 0

        async def write_once(*args: Any, **options: Any) -> Any:
            nonlocal commits
            commits += 1
            if commits > 1:
                raise StorageUnavailable("the process is gone")
            return await write(*args, **options)

        with monkeypatch.context() as patched, contextlib.suppress(StorageUnavailable):
            patched.setattr(store_user.storage, "write", write_once)
            await store_user.unset(paused)
        assert commits
        assert await store_user.take_ids() == ids

    async def test_all_lanes_of_a_changed_limit_are_read_again(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1, per=3600), "other": strict(1, per=3600)}
        for key in "abcde":
            await store_user.add(3, buckets=[("api", key)], queue="left" if key < "c" else "right")
            await store_user.add(3, buckets=[("other", key)])
        queues = ["left", "right", "default"]
        assert len(await store_user.take(queues=queues)) == 10
        await store_user.set("api", strict(2, per=3600))
        taken = await store_user.take(queues=queues)
        assert sorted(ref.key for job in taken for ref in job.buckets if ref.limit == "api") == list("abcde")
        assert len(taken) == 5

    async def test_a_lowered_limit_takes_effect_immediately(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(5)}
        await store_user.add(20, buckets=API)
        assert len(await store_user.take(4)) == 4
        await store_user.set("api", strict(2))
        assert await store_user.take() == []
        clock.advance(60)
        assert len(await store_user.take()) == 2

    async def test_more_permits_release_more_jobs_immediately(self, store_user: StoreUser) -> None:
        store_user.rules = {"slots": at_once(1)}
        ids = await store_user.add(5, buckets=[("slots", "")])
        assert await store_user.take_ids() == ids[:1]
        await store_user.set("slots", at_once(3))
        assert await store_user.take_ids() == ids[1:3]

    async def test_with_fewer_permits_than_are_held_no_job_starts_until_enough_are_returned(
        self, store_user: StoreUser
    ) -> None:
        store_user.rules = {"slots": at_once(3)}
        ids = await store_user.add(5, buckets=[("slots", "")])
        jobs = await store_user.take()
        await store_user.set("slots", at_once(1))
        for job in jobs:
            assert await store_user.take() == []
            await store_user.succeed(job)
        assert await store_user.take_ids() == ids[3:4]

    async def test_a_rule_that_is_unset_is_the_declared_one(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(2)}
        await store_user.add(20, buckets=API)
        setting = await store_user.set("api", strict(1))
        assert len(await store_user.take()) == 1
        await store_user.unset(setting)
        assert len(await store_user.take()) == 1
        clock.advance(60)
        assert len(await store_user.take()) == 2
        assert list(await store_user.storage.settings()) == []

    async def test_a_declaration_does_not_override_a_setting(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(2)}
        await store_user.add(20, buckets=API)
        await store_user.set("api", strict(3))
        store_user.rules = {"api": strict(9)}
        assert len(await store_user.take()) == 3

    @pytest.mark.parametrize("older", [strict(2), shared(2)], ids=["strict", "shared"])
    async def test_claims_and_corrections_of_an_older_release_leave_the_state_of_another_sort_of_limit(
        self, store_user: StoreUser, older: AnyRule
    ) -> None:
        """The fault: each such claim replaced the state, so the keys of the newest release stayed closed."""
        store_user.rules = {"api": at_once(2)}
        await store_user.storage.note_limit_sets({f"{LIMIT_SUBJECT}api": dump_rule(at_once(2))})
        ids = await store_user.add(6, buckets=API)
        jobs = await store_user.take()
        for done in range(4):
            assert [job.id for job in jobs] == ids[: 2 + done]
            await store_user.succeed(jobs[done])
            assert await store_user.take(rules={"api": older}) == []
            at = store_user.storage.limit_now()
            await store_user.storage.amend([Amendment(ACME, at, 1, at, 0)], {"api": older})
            jobs += await store_user.take()
        assert [job.id for job in jobs] == ids
        assert await store_user.storage.check() == []

    async def test_the_most_specific_setting_wins(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.set("api", strict(2))
        await store_user.set("api", strict(3), scope="pattern", target="a*")
        await store_user.set("api", strict(4), scope="pattern", target="acm*")
        await store_user.set("api", strict(5), scope="tier", target="gold")
        await store_user.set("api", scope="member", target="acme-gold", tier="gold")
        await store_user.set("api", scope="member", target="*:gold", tier="gold")
        await store_user.set("api", strict(6), scope="key", target="acme")
        keys = {"globex": 2, "alpha": 3, "acm": 4, "acme-gold": 5, "any:gold": 5, "acme": 6}
        for key in keys:
            await store_user.add(20, buckets=[("api", key)])
        started = [job.buckets[0].key for job in await store_user.take(200)]
        assert {key: started.count(key) for key in keys} == keys

    async def test_a_setting_is_replaced_by_another_one_for_the_same_keys(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.set("api", strict(5), scope="key", target="acme")
        await store_user.set("api", strict(2), scope="key", target="acme")
        both = [await store_user.set("api", strict(3)), LimitSetting("api", "key", "acme")]
        kept = await store_user.storage.settings()
        assert len(kept) == 2
        assert {(setting.scope, setting.target) for setting in kept} == {("all", ""), ("key", "acme")}
        await store_user.add(9, buckets=API)
        assert len(await store_user.take()) == 2
        for setting in both:
            await store_user.unset(setting)
        assert list(await store_user.storage.settings()) == []

    async def test_settings_are_read_back_as_they_were_stored(self, store_user: StoreUser) -> None:
        stored = [
            await store_user.set("api", strict(5), scope="key", target="ünïcödé 🚦"),
            await store_user.set("api", scope="member", target="acme", tier="gold"),
            await store_user.pause("other", "pattern", "a*"),
        ]
        assert sorted(await store_user.storage.settings(), key=str) == sorted(stored, key=str)
        await store_user.unset(LimitSetting("nobody", "all"))
        assert len(await store_user.storage.settings()) == 3

    async def test_a_setting_of_one_limit_does_not_change_others(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1), "other": strict(1)}
        await store_user.add(5, buckets=[("other", "acme")])
        await store_user.set("api", strict(5))
        assert len(await store_user.take()) == 1

    async def test_a_waiting_job_that_a_setting_makes_impossible_fails(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"tokens": strict(10)}
        await store_user.add(buckets=[("tokens", "")], costs=(8,))
        await store_user.take()
        (impossible,) = await store_user.add(buckets=[("tokens", "")], costs=(8,))
        assert await store_user.take() == []
        await store_user.set("tokens", strict(5))
        assert await store_user.take() == []
        clock.advance(60)
        claimed = await store_user.claim()
        assert [(dropped.id, dropped.state) for dropped in claimed.dropped] == [(impossible, JobState.FAILED)]
        assert claimed.dropped[0].error.type == "headgate.errors.CostExceedsLimit"

    async def test_another_kind_of_rule_starts_with_nothing_left(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(3)}
        await store_user.add(20, buckets=API)
        assert len(await store_user.take()) == 3
        await store_user.set("api", rate(60, per=60, burst=5))
        assert await store_user.take() == []
        clock.advance(10)
        assert len(await store_user.take()) >= 1

    async def test_a_pause_and_a_set_at_the_same_moment_both_take_effect(self, store_user: StoreUser) -> None:
        admin = LimitsAdmin(store_user.storage, {"api": strict(5)}, {}, "somebody")
        for round in range(20):
            limits: list[dict[str, str]] = [{}, {"key": f"k{round}"}, {"pattern": f"p{round}*"}, {"tier": f"t{round}"}]
            for whom in limits:
                await asyncio.gather(admin.pause("api", **whom), admin.set("api", StrictRate("7/m"), **whom))
            assert {(each.is_paused, each.rule is None) for each in await admin.settings()} == {(True, False)}
            for whom in limits:
                assert all(await asyncio.gather(admin.resume("api", **whom), admin.unset("api", **whom)))
            assert list(await admin.settings()) == []

    async def test_of_several_equal_concurrent_changes_one_returns_that_it_changed(self, store_user: StoreUser) -> None:
        admin = LimitsAdmin(store_user.storage, {"api": strict(5)}, {}, "somebody")
        for _ in range(5):
            await asyncio.gather(*(admin.pause("api", key="acme") for _ in range(4)))
            assert sorted(await asyncio.gather(*(admin.resume("api", key="acme") for _ in range(4)))) == [
                False, False, False, True,
            ]  # fmt: skip
        actions = [entry.action for entry in await store_user.storage.audit_log(AuditFilter(count=100))]
        assert sorted(actions) == ["pause"] * 5 + ["resume"] * 5

    async def test_an_edit_gets_the_current_setting_and_returns_whether_it_changed_it(
        self, store_user: StoreUser
    ) -> None:
        about = LimitSetting("api", "key", "acme")
        seen: list[LimitSetting] = []

        def pause(setting: LimitSetting) -> LimitSetting:
            seen.append(setting)
            return replace(setting, is_paused=True)

        assert await store_user.storage.edit_setting(about, pause)
        assert not await store_user.storage.edit_setting(about, pause)
        assert seen == [about, replace(about, is_paused=True)]
        assert list(await store_user.storage.settings()) == [replace(about, is_paused=True)]
        assert not await store_user.storage.edit_setting(LimitSetting("api", "key", "other"), lambda setting: setting)
        assert await store_user.storage.edit_setting(about, lambda setting: replace(setting, is_paused=False))
        assert list(await store_user.storage.settings()) == []

    # ----------------------------------------------------------------------------- steering by hostile keys

    @pytest.mark.parametrize(
        "key", [*HOSTILE_KEYS[:5], *(pytest.param(key, marks=pytest.mark.nightly) for key in HOSTILE_KEYS[5:])]
    )
    async def test_every_operation_changes_exactly_the_named_key_with_any_characters(
        self, store_user: StoreUser, clock: ManualClock, key: str
    ) -> None:
        store_user.rules = {"api": strict(2)}
        admin = LimitsAdmin(store_user.storage, store_user.rules, {}, "somebody")
        others = [other for other in (*LOOKALIKES, *HOSTILE_KEYS) if other != key]
        every = [key, *others]
        queues = [f"q{number}" for number in range(len(every))]

        async def started() -> dict[str, int]:
            """How many of three new jobs of each key can start."""
            clock.advance(60)
            ids = {}
            for queue, each in zip(queues, every, strict=True):
                for id in await store_user.add(3, buckets=[("api", bucket_key(each))], queue=queue):
                    ids[id] = each
            counts = dict.fromkeys(every, 0)
            while jobs := await store_user.take(queues=queues):
                for job in jobs:
                    counts[ids[job.id]] += 1
                await store_user.succeed(*jobs)
            for id in ids:
                await store_user.storage.cancel(id)
            return counts

        def alone(count: int) -> dict[str, int]:
            return {key: count, **dict.fromkeys(others, 2)}

        await admin.pause("api", key=key)
        assert await started() == alone(0)
        assert (await admin.bucket("api", key)).is_paused
        assert await admin.resume("api", key=key)
        await admin.set("api", StrictRate("1/m", margin=0), key=key)
        assert await started() == alone(1)
        assert await admin.unset("api", key=key)
        await admin.set("api", StrictRate("3/m", margin=0), tier="gold")
        await admin.assign("api", key, "gold")
        assert await started() == alone(3)
        await admin.assign("api", key, None)
        assert await started() == alone(2)
        await admin.penalize("api", key, 3600)
        assert await started() == alone(0)
        assert (await admin.bucket("api", key)).penalized_until is not None
        await admin.reset("api", key)
        assert await started() == alone(2)
        assert [bucket.key for bucket in await admin.list("api", key=key)] == [bucket_key(key)]
        assert [each.key for each in await admin.audit("api", key=key)] == [bucket_key(key)]
        assert [each.key for each in await admin.list("api", key="a*b")] == []

    async def test_a_pattern_is_passed_by_its_own_argument(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(2)}
        admin = LimitsAdmin(store_user.storage, store_user.rules, {}, "somebody")
        keys = ("stripe:a", "stripe:b", "paypal:a")
        await admin.pause("api", pattern="stripe:*")
        assert [(await admin.bucket("api", key)).is_paused for key in keys] == [True, True, False]
        assert await admin.resume("api", pattern="stripe:*")
        assert not await admin.resume("api", pattern="stripe:*")
        await admin.set("api", StrictRate("9/m"), tier="gold")
        await admin.assign("api", pattern="stripe:*", tier="gold")
        assert [(await admin.bucket("api", key)).is_set for key in keys] == [True, True, False]
        await admin.assign("api", pattern="stripe:*")
        assert [(await admin.bucket("api", key)).is_set for key in keys] == [False, False, False]
        for wrong in ({"key": "a", "pattern": "a*"}, {"pattern": "a*", "tier": "b"}, {"key": "a", "tier": "b"}):
            with pytest.raises(DeclarationError, match="pass only one of key=, pattern= and tier="):
                await admin.pause("api", **wrong)
        for wrong in ({}, {"key": "a", "pattern": "a*"}):
            with pytest.raises(DeclarationError, match="name either the key= or the pattern="):
                await admin.assign("api", tier="gold", **wrong)
        with pytest.raises(DeclarationError, match="for a single key, pass key='stripe'"):
            await admin.pause("api", pattern="stripe")

    # ----------------------------------------------------------------------------------------- pausing

    @pytest.mark.parametrize(("scope", "target"), SCOPES)
    async def test_nothing_starts_while_it_is_paused(
        self, store_user: StoreUser, clock: ManualClock, scope: Scope, target: str
    ) -> None:
        store_user.rules = {"api": strict(2), "day": strict(100)}
        await store_user.set("api", scope="member", target="acme", tier="gold")
        setting = await store_user.pause("api", scope, target)
        ids = await store_user.add(5, buckets=[*API, ("day", "")])
        others = await store_user.add(1, buckets=[("api", "globex"), ("day", "")])
        claimed = await store_user.claim()
        assert [job.id for job in claimed.jobs] == ([] if scope == "all" else others)
        assert ACME in [throttled.ref for throttled in claimed.throttled]
        assert {throttled.opens_at for throttled in claimed.throttled} == {None}
        record = await store_user.record(ids[0])
        assert (record.throttled_until, record.waits_for) == (None, ACME)
        for _ in range(5):
            clock.advance(600)
            claimed = await store_user.claim()
            assert (list(claimed.jobs), claimed.next_in, claimed.more) == ([], None, False)
        assert (await store_user.bucket("api", "acme")).opens_at == NEVER
        await store_user.unset(setting)
        assert [id for id in await store_user.take_ids() if id in ids] == ids[:2]
        assert len(await store_user.storage.starts("day", None, 0)) == 3

    async def test_lanes_that_wait_already_are_paused_too(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        ids = await store_user.add(3, buckets=API)
        await store_user.take()
        setting = await store_user.pause("api")
        clock.advance(600)
        assert await store_user.take() == []
        assert (await store_user.claim()).next_in is None
        await store_user.unset(setting)
        assert await store_user.take_ids() == ids[1:2]
        assert await store_user.take() == []

    async def test_a_pause_keeps_the_rule_that_was_set(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(9, buckets=API)
        await store_user.set("api", strict(4), is_paused=True)
        assert await store_user.take() == []
        await store_user.set("api", strict(4))
        assert len(await store_user.take()) == 4

    async def test_a_paused_mutex_lets_its_holder_end_and_starts_no_other(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        ids = await store_user.add(3, buckets=[("mutex", "")])
        job = await store_user.take_one()
        setting = await store_user.pause("mutex")
        await store_user.succeed(job)
        for _ in range(3):
            claimed = await store_user.claim()
            assert (list(claimed.jobs), claimed.next_in) == ([], None)
        await store_user.unset(setting)
        assert await store_user.take_ids() == ids[1:2]

    async def test_resuming_one_key_leaves_keys_paused_that_another_pause_covers(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(9)}
        await store_user.pause("api")
        key = await store_user.pause("api", "key", "acme")
        await store_user.add(1, buckets=API)
        await store_user.take()
        await store_user.unset(key)
        assert await store_user.take() == []

    async def test_running_jobs_return_their_permits_to_a_paused_limit(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(9)}
        (id,) = await store_user.add(1, buckets=API)
        job = await store_user.take_one()
        setting = await store_user.pause("api")
        await store_user.give_back(job)
        assert await store_user.take() == []
        await store_user.unset(setting)
        assert await store_user.take_ids() == [id]

    async def test_a_paused_bucket_can_be_evicted_and_stays_paused(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(9)}
        await store_user.add(1, buckets=API)
        await store_user.succeed(*await store_user.take())
        setting = await store_user.pause("api")
        clock.advance(600)
        for _ in range(5):
            await store_user.storage.evict()
        assert list(await store_user.storage.buckets()) == []
        (id,) = await store_user.add(1, buckets=API)
        assert await store_user.take() == []
        await store_user.unset(setting)
        assert await store_user.take_ids() == [id]

    async def test_plain_code_is_told_that_nothing_is_left_while_jobs_wait(self, store_user: StoreUser) -> None:
        buckets, bucket = StoredBuckets(store_user.storage), Bucket("api", "acme", strict(3))
        store_user.rules = {"api": bucket.rule}
        await store_user.add(2, buckets=API, costs=(2,))
        await store_user.take_one()
        assert await store_user.take() == []
        taken, seen = await buckets.take(bucket), await buckets.snapshot(bucket)
        assert (taken.granted, taken.available) == (0, 0)
        assert (seen.used, seen.available, seen.opens_at) == (2, 0, taken.opens_at)
        assert taken.opens_at == taken.now + 60 * SECOND

    @pytest.mark.parametrize("rule", [strict(2), rate(2), fixed(2), sliding(2), shared(2)])
    async def test_a_reservation_on_a_paused_limit_is_refused_and_books_nothing(
        self, store_user: StoreUser, clock: ManualClock, rule: AnyRule
    ) -> None:
        buckets, bucket = StoredBuckets(store_user.storage), Bucket("api", "acme", rule)
        setting = await store_user.pause("api")
        for _ in range(2):
            with pytest.raises(LimitRejected, match=r"'api' is paused for 'acme'; resume it") as raised:
                await buckets.reserve(bucket, id="order-17")
            assert (raised.value.limit, raised.value.key, raised.value.opens_at) == ("api", "acme", None)
        await store_user.unset(setting)
        booked = await buckets.reserve(bucket, id="order-17")
        assert (booked.granted, booked.opens_at) == (1, booked.now)
        assert (await buckets.snapshot(bucket)).used == 1
        clock.advance(120)
        assert (await buckets.take(bucket, count=5)).granted == 2

    async def test_a_slot_reserved_before_a_pause_is_returned_again_for_its_id_and_can_be_cancelled(
        self, store_user: StoreUser
    ) -> None:
        buckets, bucket = StoredBuckets(store_user.storage), Bucket("api", "acme", strict(1))
        await buckets.take(bucket)
        booked = await buckets.reserve(bucket, id="order-17")
        setting = await store_user.pause("api")
        assert (await buckets.reserve(bucket, id="order-17")).opens_at == booked.opens_at
        assert await buckets.cancel(bucket, id="order-17")
        await store_user.unset(setting)
        assert (await buckets.reserve(bucket, id="order-18")).opens_at == booked.opens_at

    # -------------------------------------------------------------------------------------- penalizing

    async def test_a_penalized_bucket_grants_nothing_until_then(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(9)}
        (id,) = await store_user.add(1, buckets=API)
        (other,) = await store_user.add(1, buckets=[("api", "other")])
        until = store_user.storage.limit_now() + 30 * SECOND
        await store_user.storage.penalize(ACME, until)
        assert (await store_user.bucket("api", "acme")).closed_until == until
        assert await store_user.take_ids() == [other]
        claimed = await store_user.claim()
        assert claimed.next_in == 30 * SECOND
        assert (await store_user.record(id)).throttled_until == clock.now() + 30 * SECOND
        clock.advance(30)
        assert await store_user.take_ids() == [id]

    async def test_lanes_that_wait_already_are_penalized_too(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        ids = await store_user.add(2, buckets=API)
        await store_user.take()
        await store_user.storage.penalize(ACME, store_user.storage.limit_now() + 100 * SECOND)
        clock.advance(99)
        assert await store_user.take() == []
        clock.advance(1)
        assert await store_user.take_ids() == ids[1:]

    async def test_the_longest_penalty_counts_and_a_reset_ends_it(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(9)}
        (id,) = await store_user.add(1, buckets=API)
        now = store_user.storage.limit_now()
        await store_user.storage.penalize(ACME, now + 100 * SECOND)
        await store_user.storage.penalize(ACME, now + 10 * SECOND)
        assert await store_user.take() == []
        assert (await store_user.claim()).next_in == 100 * SECOND
        assert await store_user.storage.reset(ACME) == 0
        assert await store_user.take_ids() == [id]

    async def test_a_penalty_without_jobs_is_stored_and_deleted_when_it_is_over(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(9)}
        await store_user.storage.penalize(ACME, store_user.storage.limit_now() + 30 * SECOND)
        for _ in range(3):
            await store_user.storage.evict()
        (id,) = await store_user.add(1, buckets=API)
        assert await store_user.take() == []
        clock.advance(30)
        assert await store_user.take_ids() == [id]
        await store_user.storage.penalize(BucketRef("api", "nobody"), store_user.storage.limit_now() + SECOND)
        clock.advance(1)
        await store_user.storage.evict()
        assert "nobody" not in {bucket.ref.key for bucket in await store_user.storage.buckets()}

    # --------------------------------------------------------------------------------------- resetting

    async def test_a_reset_bucket_is_full_and_its_lanes_start_immediately(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(3)}
        ids = await store_user.add(9, buckets=API)
        await store_user.add(9, buckets=[("api", "other")])
        assert len(await store_user.take()) == 6
        assert await store_user.storage.reset(ACME) == 0
        assert await store_user.take_ids() == ids[3:6]
        assert await store_user.take() == []

    async def test_resetting_an_unknown_bucket_does_nothing(self, store_user: StoreUser) -> None:
        assert await store_user.storage.reset(BucketRef("nobody", "knows")) == 0
        assert [bucket.waiting for bucket in await store_user.storage.buckets()] in ([], [0])

    async def test_permits_of_running_jobs_are_not_reset(self, store_user: StoreUser) -> None:
        store_user.rules = {"slots": at_once(3)}
        ids = await store_user.add(4, buckets=[("slots", "")], hold="until_success")
        first, second, third = await store_user.take()
        await store_user.fail(first)
        await store_user.retry_later(second, 10)
        slots = BucketRef("slots", "")
        assert await store_user.storage.reset(slots) == 1
        assert await store_user.permits("slots") == {third.id: 1}
        assert [(await store_user.record(id)).held for id in ids] == [0, 0, 1, 0]
        assert await store_user.take_ids() == ids[3:]

    async def test_a_waiting_job_whose_permit_was_reset_waits_for_it_again(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"mutex": at_once(), "api": strict(9)}
        await store_user.add(buckets=[("mutex", ""), *API], hold="until_final")
        job = await store_user.take_one()
        (other,) = await store_user.add(buckets=[("mutex", "")])
        await store_user.retry_later(job, 10)
        await store_user.storage.reset(BucketRef("mutex", ""))
        assert await store_user.take_ids() == [other]
        clock.advance(10)
        assert await store_user.take() == []
        assert (await store_user.record(job.id)).waits_for == BucketRef("mutex", "")
        await store_user.storage.cancel(other)
        await store_user.storage.leave(store_user.node)
        await store_user.storage.join(store_user.node, "a")
        again = await store_user.take_one()
        assert (again.id, len(again.buckets)) == (job.id, 2)

    async def test_a_free_retry_whose_permit_was_reset_is_still_free(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once(), "api": strict(1)}
        await store_user.add(buckets=[("mutex", ""), *API], hold="until_final", free_retries=0b10)
        job = await store_user.take_one()
        await store_user.retry_later(job, 0)
        await store_user.storage.reset(BucketRef("mutex", ""))
        again = await store_user.take_one()
        assert (again.id, again.buckets) == (job.id, (BucketRef("mutex", ""),))

    async def test_a_reset_releases_only_that_key(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        for key in "ab":
            await store_user.add(2, buckets=[("mutex", key)], hold="until_success")
        await store_user.fail(*await store_user.take())
        assert await store_user.take() == []
        assert await store_user.storage.reset(BucketRef("mutex", "a")) == 0
        assert [job.buckets[0].key for job in await store_user.take()] == ["a"]

    # -------------------------------------------------------------------------------------- forgetting

    async def test_a_limit_that_jobs_wait_for_is_not_removed(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1), "day": strict(9)}
        await store_user.add(2, buckets=[*API, ("day", "")])
        await store_user.take()
        setting = await store_user.set("day", strict(9))
        for limit in ("api", "day"):
            with pytest.raises(LimitInUse):
                await store_user.storage.forget(limit)
        assert list(await store_user.storage.settings()) == [setting]
        assert {bucket.ref.limit for bucket in await store_user.storage.buckets()} == {"api", "day"}
        assert await store_user.take() == []

    async def test_a_limit_whose_permits_are_held_is_not_removed(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=[("mutex", "")], hold="until_success")
        job = await store_user.take_one()
        with pytest.raises(LimitInUse):
            await store_user.storage.forget("mutex")
        await store_user.fail(job)
        with pytest.raises(LimitInUse):
            await store_user.storage.forget("mutex")
        await store_user.storage.reset(BucketRef("mutex", ""))
        await store_user.storage.forget("mutex")
        assert list(await store_user.storage.buckets()) == []

    async def test_a_removed_limit_leaves_no_rows(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1), "other": strict(1)}
        await store_user.add(buckets=API)
        await store_user.add(buckets=[("other", "")])
        await store_user.succeed(*await store_user.take())
        await store_user.set("api", strict(5))
        kept = await store_user.set("other", strict(5))
        await store_user.storage.penalize(ACME, store_user.storage.limit_now() + MINUTE)
        assert await store_user.storage.forget("api")
        assert list(await store_user.storage.settings()) == [kept]
        assert [bucket.ref.limit for bucket in await store_user.storage.buckets()] == ["other"]
        await store_user.add(3, buckets=API)
        assert len(await store_user.take()) == 1
        assert not await store_user.storage.forget("nobody")

    async def test_a_limit_can_be_removed_while_jobs_that_drew_on_it_run(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(buckets=API)
        job = await store_user.take_one()
        await store_user.storage.forget("api")
        await store_user.give_back(job)
        assert await store_user.take_ids() == [job.id]
        (other,) = await store_user.add(buckets=API)
        assert await store_user.take() == []
        assert (await store_user.record(other)).waits_for == ACME

    async def test_a_lane_whose_job_was_replaced_is_visited_after_its_limit_was_removed(
        self, store_user: StoreUser
    ) -> None:
        """The fault: its bucket was deleted before a claim had seen that the lane was empty."""
        store_user.rules = {"api": strict(1)}
        await store_user.add(buckets=API)
        await store_user.take_one()
        replaced = replace(store_user.new(buckets=API), unique_key="k", on_conflict="replace")
        await store_user.storage.add([replaced])
        assert await store_user.take() == []
        await store_user.storage.add([replace(store_user.new(), unique_key="k", on_conflict="replace")])
        assert await store_user.storage.forget("api")
        (new,) = await store_user.add(buckets=API)
        assert sorted(await store_user.take_ids()) == sorted([replaced.id, new])

    # -------------------------------------------------------------------------------- where a job stands

    async def test_the_position_in_a_lane_is_by_priority_time_and_arrival(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        low = await store_user.add(2, buckets=API)
        clock.advance(1)
        later = await store_user.add(1, buckets=API)
        high = await store_user.add(1, buckets=API, priority=5)
        delayed = await store_user.add(1, buckets=API, delay=60)
        places = [await store_user.storage.queue_position(id) for id in (*high, *low, *later, *delayed)]
        assert [standing and standing.position for standing in places] == [1, 2, 3, 4, 5]
        assert {standing and standing.waiting for standing in places} == {5}
        assert {standing and standing.is_due for standing in places} == {True}

    async def test_a_job_that_does_not_wait_has_no_position(self, store_user: StoreUser) -> None:
        ids = await store_user.add(2)
        running, done = await store_user.take()
        await store_user.succeed(done)
        assert [await store_user.storage.queue_position(id) for id in (*ids, "nobody")] == [None] * 3
        assert (await store_user.record(running.id)).state is JobState.RUNNING

    async def test_a_position_has_the_limit_that_is_waited_for_and_the_cost(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"tokens": strict(10), "mutex": at_once()}
        buckets = [("tokens", "acme"), ("mutex", "m")]
        await store_user.add(buckets=buckets, costs=(8, 1))
        await store_user.succeed(await store_user.take_one())
        (id,) = await store_user.add(buckets=buckets, costs=(4, 1))
        before = await store_user.storage.queue_position(id)
        assert before is not None
        assert (before.is_due, before.behind, before.demand) == (True, None, ((4, 1), (None, id)))
        await store_user.take()
        standing = await store_user.storage.queue_position(id)
        assert standing is not None
        assert (standing.position, standing.waiting, standing.is_due) == (1, 1, False)
        assert standing.behind == BucketRef("tokens", "acme")
        tokens, mutex = standing.buckets
        assert (tokens.ref, tokens.waiting, tokens.lanes) == (BucketRef("tokens", "acme"), 1, 1)
        assert tokens.opens_at == store_user.storage.limit_now() + MINUTE
        assert (mutex.ref, mutex.waiting, mutex.opens_at) == (BucketRef("mutex", "m"), 0, None)

    async def test_a_waiting_holder_of_a_permit_is_in_the_lane_of_its_other_limits(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once(), "tokens": strict(10)}
        await store_user.add(buckets=[("mutex", ""), ("tokens", "")], costs=(1, 7), hold="until_final")
        job = await store_user.take_one()
        await store_user.give_back(job)
        standing = await store_user.storage.queue_position(job.id)
        assert standing is not None
        assert [bucket.ref for bucket in standing.buckets] == [BucketRef("tokens", "")]
        assert standing.demand == ((7,), (None,))

    async def test_the_predicted_position_is_that_of_the_next_job(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        empty = await store_user.storage.prediction_input("default", [ACME])
        assert (empty.position, empty.waiting, empty.behind) == (1, 1, None)
        assert [bucket.state for bucket in empty.buckets] == [None]
        await store_user.add(4, buckets=API)
        await store_user.take()
        outlook = await store_user.storage.prediction_input("default", [ACME])
        assert (outlook.position, outlook.waiting, outlook.behind) == (4, 4, ACME)
        assert (outlook.buckets[0].waiting, outlook.buckets[0].lanes) == (3, 1)
        elsewhere = await store_user.storage.prediction_input("elsewhere", [ACME])
        assert (elsewhere.position, elsewhere.behind) == (1, None)
        assert elsewhere.buckets == outlook.buckets
        ungated = await store_user.storage.prediction_input("default", [])
        assert (ungated.position, list(ungated.buckets)) == (1, [])

    async def test_no_job_that_starts_later_is_before_a_new_one(self, store_user: StoreUser) -> None:
        await store_user.add(2, buckets=API)
        await store_user.add(3, buckets=API, delay=3600)
        await store_user.add(1, buckets=API, priority=5)
        places = [await store_user.storage.prediction_input("default", [ACME], "", each) for each in (0, 4, 5, 9)]
        assert [(place.position, place.waiting) for place in places] == [(4, 7), (2, 7), (2, 7), (1, 7)]
        aging = await store_user.storage.prediction_input("default", [ACME], "", 9, MINUTE)
        assert aging.position == 2

    async def test_a_job_of_higher_priority_is_not_before_others_until_it_is_due(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault: a job was told to wait for all urgent jobs of the next day, and its `max_wait` rejected it."""
        (low,) = await store_user.add(1, buckets=API)
        (soon,) = await store_user.add(1, buckets=API, delay=30)
        await store_user.add(3, buckets=API, delay=60, priority=9)

        async def places() -> list[int | None]:
            found = [await store_user.storage.queue_position(id) for id in (low, soon)]
            return [None if each is None else each.position for each in found]

        async def new(priority: int) -> int | None:
            return (await store_user.storage.prediction_input("default", [ACME], "", priority)).position

        assert (await places(), await new(0), await new(9)) == ([1, 2], 2, 1)
        clock.advance(31)
        assert (await places(), await new(0), await new(9)) == ([1, 2], 3, 1)
        clock.advance(30)
        assert (await places(), await new(0), await new(9)) == ([4, 5], 6, 4)

    # ---------------------------------------------------------------------------------- shared windows

    async def test_keys_share_a_capacity(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"shared": shared(20)}
        for key in "ab":
            await store_user.add(30, buckets=[("shared", key)])
        started = [job.buckets[0].key for job in await store_user.take(100)]
        assert (started.count("a"), started.count("b")) == (10, 10)
        assert (await store_user.claim()).next_in is not None
        clock.advance(60)
        assert len(await store_user.take(100)) <= 20

    async def test_a_key_without_a_share_waits_in_a_lane_of_its_own(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"shared": shared(4, min_count=4)}
        await store_user.add(9, buckets=[("shared", "a")])
        assert len(await store_user.take()) == 4
        (late,) = await store_user.add(1, buckets=[("shared", "b")])
        assert await store_user.take() == []
        record = await store_user.record(late)
        assert record.waits_for == BucketRef("shared", "b")
        assert {bucket.ref.key for bucket in await store_user.storage.buckets(limit="shared")} == {"a", "b"}
        # The newcomer goes before the key that has had its share.
        clock.advance(60)
        assert late in await store_user.take_ids()

    async def test_a_lane_in_line_is_visited_after_a_key_without_a_share_had_the_only_slot(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"shared": shared(2), "api": strict(100)}
        await store_user.add(3, buckets=[("shared", "a")])
        assert len(await store_user.take()) == 2
        clock.advance(61)
        for key in "bc":
            await store_user.add(queue="other", buckets=[("shared", key)])
        assert len((await store_user.claim(queues=("other",))).jobs) == 2
        in_line = await store_user.add_one(buckets=[("api", "acme")])
        free_slots = {"default": FreeSlots(1), "other": FreeSlots(5)}
        claim = Claim(store_user.node, free_slots, store_user.rules, frozenset({"work"}))
        first = await store_user.storage.claim(claim)
        assert [met.ref.key for met in first.throttled] == ["a"]
        assert first.more
        second = await store_user.storage.claim(claim)
        assert [job.id for job in second.jobs] == [in_line]

    async def test_the_state_of_a_shared_window_is_reset_as_one(self, store_user: StoreUser) -> None:
        store_user.rules = {"shared": shared(4)}
        await store_user.add(9, buckets=[("shared", "a")])
        await store_user.add(9, buckets=[("shared", "b")])
        assert len(await store_user.take()) == 4
        assert await store_user.storage.reset(BucketRef("shared", "")) == 0
        assert len(await store_user.take()) == 4
        assert await store_user.take() == []

    async def test_a_refund_of_a_shared_window_opens_it_for_its_key(self, store_user: StoreUser) -> None:
        store_user.rules = {"shared": shared(2)}
        ids = await store_user.add(3, buckets=[("shared", "a")])
        first, _ = await store_user.take()
        assert await store_user.take() == []
        refund = Amendment(first.buckets[0], first.charged_at, 1, first.charged_at, 0)
        await store_user.storage.amend([refund], store_user.rules)
        assert await store_user.take_ids() == ids[2:]

    async def test_the_state_of_a_shared_window_outlives_its_lanes(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"shared": shared(3, min_count=3)}
        await store_user.add(3, buckets=[("shared", "a")])
        await store_user.succeed(*await store_user.take())
        for _ in range(5):
            await store_user.storage.evict()
        (waiting,) = await store_user.add(buckets=[("shared", "b")])
        assert await store_user.take() == []
        clock.advance(60)
        assert await store_user.take_ids() == [waiting]
        await store_user.storage.cancel(waiting)
        await store_user.storage.leave(store_user.node)
        clock.advance(3600)
        for _ in range(5):
            await store_user.storage.evict()
        assert list(await store_user.storage.buckets()) == []
        await store_user.storage.join(store_user.node, "a")

    async def test_a_shared_window_is_raised_and_paused_like_any_other(self, store_user: StoreUser) -> None:
        store_user.rules = {"shared": shared(2)}
        await store_user.add(9, buckets=[("shared", "a")])
        assert len(await store_user.take()) == 2
        await store_user.set("shared", shared(5))
        assert len(await store_user.take()) == 3
        pause = await store_user.set("shared", shared(9), is_paused=True)
        assert await store_user.take() == []
        await store_user.unset(pause)
        await store_user.set("shared", shared(9))
        assert len(await store_user.take()) == 4
