"""What is promised of rates that adapt: what they have found is stored with the bucket, and so is each refusal."""

from __future__ import annotations

from headgate import AdaptiveRate
from headgate.clock import SECOND
from headgate.jobs.job import BucketRef, ClaimedJob
from headgate.limits.adaptive_rate import Aimd
from headgate.storage.records import Amendment
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import Conformance, StoreUser, recover

ACME = BucketRef("api", "acme")


def adaptive(start: str = "60/m", burst: int = 1) -> Aimd:
    return AdaptiveRate("600/m", min="6/m", start=start, burst=burst).rule


async def present(store_user: StoreUser, rule: Aimd) -> str:
    record = await store_user.bucket("api", "acme")
    assert record.state is not None
    found = rule.snapshot(rule.load(record.state, 0), 0).present
    assert found is not None
    return found


def refusal(job: ClaimedJob) -> Amendment:
    return Amendment(ACME, job.charged_at, 1, job.charged_at, 0, is_refused=True)


class AdaptiveConformance(Conformance):
    async def test_refusals_lower_the_stored_rate_once_for_all_starts_before_them(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        rule = adaptive(burst=3)
        store_user.rules = {"api": rule}
        await store_user.add(8, buckets=[("api", "acme")])
        jobs = await store_user.take()
        assert len(jobs) == 3
        clock.advance(0.2)
        for job in jobs:
            await store_user.storage.amend([refusal(job)], store_user.rules)
        assert await present(store_user, rule) == "42/m"
        clock.advance(30)
        later = await store_user.take()
        await store_user.storage.amend([refusal(later[0])], store_user.rules)
        assert await present(store_user, rule) == "29.4/m"

    async def test_a_start_that_is_only_refunded_is_no_refusal(self, store_user: StoreUser) -> None:
        rule = adaptive()
        store_user.rules = {"api": rule}
        await store_user.add(1, buckets=[("api", "acme")])
        job = await store_user.take_one()
        refund = Amendment(ACME, job.charged_at, 1, job.charged_at, 0)
        await store_user.storage.amend([refund], store_user.rules)
        assert await present(store_user, rule) == "60/m"

    async def test_the_rate_grows_while_it_is_used(self, store_user: StoreUser, clock: ManualClock) -> None:
        rule = adaptive()
        store_user.rules = {"api": rule}
        await store_user.add(200, buckets=[("api", "acme")])
        # 600/m in half an hour, so 20/m a minute.
        for _ in range(600):
            await store_user.take()
            clock.advance(0.1)
        assert 78 <= float((await present(store_user, rule)).removesuffix("/m")) <= 80

    async def test_what_was_found_outlives_the_node_that_found_it(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        rule = adaptive(burst=2)
        store_user.rules = {"api": rule}
        await store_user.add(6, buckets=[("api", "acme")])
        refused, _ = await store_user.take()
        await store_user.storage.amend([refusal(refused)], store_user.rules)
        # The node dies before it has recorded how its attempts ended.
        clock.advance(60)
        recovered = await recover(store_user)
        assert len(recovered.returned) == 2
        assert await present(store_user, rule) == "42/m"
        store_user.node = "node-b"
        assert len(await store_user.take()) == 2
        assert await present(store_user, rule) == "42/m"

    async def test_an_idle_bucket_keeps_what_it_has_found_for_a_week(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        rule = adaptive()
        store_user.rules = {"api": rule}
        await store_user.add(1, buckets=[("api", "acme")])
        job = await store_user.take_one()
        await store_user.storage.amend([refusal(job)], store_user.rules)
        await store_user.succeed(job)
        clock.advance(6 * 86400)
        await store_user.storage.evict()
        assert await present(store_user, rule) == "42/m"
        clock.advance(2 * 86400)
        await store_user.storage.evict()
        assert not await store_user.storage.buckets(limit="api", key="acme")

    async def test_a_closed_bucket_counts_the_first_refusal(self, store_user: StoreUser) -> None:
        rule = adaptive()
        store_user.rules = {"api": rule}
        await store_user.add(1, buckets=[("api", "acme")])
        job = await store_user.take_one()
        await store_user.storage.penalize(ACME, store_user.storage.limit_now() + 60 * SECOND)
        await store_user.storage.amend([refusal(job)], store_user.rules)
        assert await present(store_user, rule) == "42/m"
