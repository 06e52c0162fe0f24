"""What is promised of fair queues with keys of two levels: tenants take turns by weight, and in each their users."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from headgate.jobs.job import JobState
from headgate.jobs.query import JobFilter
from headgate.limits.fair import STEP
from headgate.limits.key import BETWEEN_LEVELS, levels_of
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.fair_queues import ORDER, ModelLine, key_of, paced, starts, turns, waiting
from tests.conformance.storage_suite.store_user import Conformance, StoreUser, at_once, rate


async def add(
    user: StoreUser, tenant: str, member: str, count: int = 1, *limits: tuple[str, str], delay: float | None = None
) -> None:
    await user.add(count, buckets=[*limits, (ORDER, f"{tenant}{BETWEEN_LEVELS}{member}")], delay=delay)


async def started(user: StoreUser, count: int, slots: int = 2) -> list[tuple[str, ...]]:
    """The tenants and users of the next jobs."""
    return [levels_of(key) for key in await starts(user, count, slots)]


def tenants(found: list[tuple[str, ...]]) -> Counter[str]:
    return Counter(tenant for tenant, _ in found)


class TwoLevelFairQueuesConformance(Conformance):
    async def test_a_tenant_with_50_users_has_no_more_turns_than_one_with_a_single_user(
        self, storage: Store, store_user: StoreUser
    ) -> None:
        store_user.rules = turns()
        for member in range(50):
            await add(store_user, "a", f"{member}", 4)
        assert tenants(await started(store_user, 20)) == {"a": 20}
        await add(store_user, "b", "only", 40)
        found = await started(store_user, 60)
        assert found[0][0] == "b"
        assert abs(tenants(found)["b"] - 30) <= 1
        # Users take turns: 30 of 50, without those that have started.
        of_a = [member for tenant, member in found if tenant == "a"]
        assert len(set(of_a)) == 30
        assert await storage.check() == []

    @pytest.mark.parametrize("slots", [1, 2, 7, 100])
    async def test_tenants_start_by_weight_whatever_the_number_of_their_users(
        self, store_user: StoreUser, slots: int
    ) -> None:
        store_user.rules = turns(b=2, c=4)
        part = max(50, slots)
        jobs = []
        for tenant, members in (("a", 40), ("b", 1), ("c", 7)):
            key = [f"{tenant}{BETWEEN_LEVELS}{n % members}" for n in range(5 * part)]
            jobs += [store_user.new(buckets=[(ORDER, each)]) for each in key]
        await store_user.storage.add(jobs)
        found = await started(store_user, 7 * part, slots)
        counts = tenants(found)
        assert abs(counts["a"] - part) <= 1
        assert abs(counts["b"] - 2 * part) <= 2
        assert abs(counts["c"] - 4 * part) <= 4
        of_c = Counter(member for tenant, member in found if tenant == "c")
        # A claim takes at most a sixteenth of its slots of one lane before the others, so 7 of 100.
        assert max(of_c.values()) - min(of_c.values()) <= max(1, 2 * -(-slots // 16))

    async def test_a_user_that_comes_new_is_the_next_of_its_tenant_which_gets_no_more(
        self, store_user: StoreUser
    ) -> None:
        store_user.rules = turns()
        for member in range(20):
            await add(store_user, "a", f"{member}", 5)
        await add(store_user, "b", "only", 60)
        await started(store_user, 50)
        await add(store_user, "a", "new", 3)
        found = await started(store_user, 20)
        assert ("a", "new") in found[:4]
        assert abs(tenants(found)["a"] - 10) <= 1

    async def test_many_new_users_of_a_tenant_take_no_turns_of_others(self, store_user: StoreUser) -> None:
        store_user.rules = turns()
        await add(store_user, "b", "only", 60)
        await started(store_user, 4)
        found = []
        for number in range(20):
            for member in range(3):
                await add(store_user, "a", f"{number}-{member}")
            found += await started(store_user, 2)
        assert abs(tenants(found)["a"] - 20) <= 1

    @pytest.mark.parametrize("is_tenant", [True, False])
    async def test_new_tenants_and_new_users_keep_no_old_ones_waiting(
        self, store_user: StoreUser, is_tenant: bool
    ) -> None:
        store_user.rules = turns()
        await add(store_user, "a", "old", 50)
        await add(store_user, "a", "other", 50)
        await started(store_user, 4)
        found = []
        for number in range(80):
            for part in "xy":
                await add(store_user, *((f"{number}{part}", "new") if is_tenant else ("a", f"{number}{part}")))
            found += await started(store_user, 1, 1)
        assert sum(member in ("old", "other") for _, member in found) >= 4

    async def test_limits_and_delays_hold_and_other_users_take_the_turns_of_their_tenant(
        self, storage: Store, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {**turns(), "calls": rate(1, per=60, burst=1), "slots": at_once()}
        for member in range(4):
            await add(store_user, "a", f"{member}", 3, ("calls", f"{member}"))
        await add(store_user, "a", "later", 5, delay=30)
        await add(store_user, "b", "only", 30)
        assert tenants(await started(store_user, 10, 1)) == {"a": 4, "b": 6}
        clock.advance(30)
        # Only the delayed ones can start.
        assert tenants(await started(store_user, 9, 1))["a"] in {4, 5}
        clock.advance(30)
        found = await started(store_user, 7, 1)
        assert tenants(found)["a"] in {3, 4}
        assert await storage.check() == []

    @pytest.mark.parametrize("slots", [1, 4])
    async def test_users_of_a_tenant_over_its_limit_do_not_stop_other_tenants(
        self, store_user: StoreUser, slots: int
    ) -> None:
        """The fault: no other started until each of their lanes had been visited, one for each free slot of a claim."""
        store_user.rules = {**turns(), "calls": rate(1, per=600, burst=1)}
        key = [f"a{BETWEEN_LEVELS}{member}" for member in range(600)]
        await store_user.storage.add([store_user.new(buckets=[("calls", "a"), (ORDER, each)]) for each in key])
        waited = []
        for number in range(4):
            await add(store_user, f"b{number}", "only")
            claims, found = 0, set[str]()
            while f"b{number}" not in found:
                claimed = await store_user.claim(slots)
                found |= {levels_of(key_of(job))[0] for job in claimed.jobs}
                claims += 1
            waited.append(claims)
        assert max(waited) <= 10

    async def test_a_tenant_whose_first_users_cannot_start_gets_its_share(
        self, storage: Store, store_user: StoreUser
    ) -> None:
        store_user.rules = {**turns(), "calls": rate(1, per=600, burst=1)}
        for member in range(40):
            await add(store_user, "a", f"{member}", 10, ("calls", f"{member // 20}"))
        for member in range(40, 60):
            await add(store_user, "a", f"{member}", 10)
        await add(store_user, "b", "only", 200)
        counts = tenants(await started(store_user, 200))
        assert abs(counts["a"] - 100) <= 4
        assert await storage.check() == []

    @pytest.mark.parametrize("burst", [1, 5])
    async def test_a_shared_rate_is_divided_among_tenants_whatever_the_number_of_their_users(
        self, storage: Store, store_user: StoreUser, clock: ManualClock, burst: int
    ) -> None:
        """The fault: lanes behind a bucket had the order of their users, so a new tenant waited for an older one."""
        store_user.rules = {**turns(c=2), "partner": rate(10, per=1, burst=burst)}

        async def paced(tenths: int) -> Counter[str]:
            found: list[tuple[str, ...]] = []
            for _ in range(tenths):
                jobs = await store_user.take(5)
                found += [levels_of(key_of(job)) for job in jobs]
                await store_user.succeed(*jobs)
                clock.advance(0.1)
            return tenants(found)

        for member in range(20):
            await add(store_user, "a", f"{member}", 20, ("partner", ""))
        assert set(await paced(100)) == {"a"}
        await add(store_user, "b", "only", 100, ("partner", ""))
        await paced(10)
        found = await paced(40)
        assert abs(found["a"] - found["b"]) <= 2
        for member in range(5):
            await add(store_user, "c", f"{member}", 20, ("partner", ""))
        await paced(10)
        found = await paced(40)
        assert abs(found["a"] - found["b"]) <= 2
        assert abs(found["c"] - 20) <= 3
        assert await storage.check() == []

    @pytest.mark.parametrize("level", [0, 1])
    async def test_tenants_and_users_that_come_as_a_shared_rate_opens_keep_others_in_turn(
        self, storage: Store, store_user: StoreUser, clock: ManualClock, level: int
    ) -> None:
        """The fault: each started at once, a step beyond all others, so the last one waited until all were there."""
        store_user.rules = {**turns(), "partner": rate(10, per=1, burst=1)}

        async def paced(tenths: int) -> Counter[str]:
            found: Counter[str] = Counter()
            for _ in range(tenths):
                jobs = await store_user.take(5)
                found.update(levels_of(key_of(job))[level] for job in jobs)
                await store_user.succeed(*jobs)
                clock.advance(0.1)
            return found

        for number in range(12):
            tenant, member = ("one", f"{number}") if level else (f"{number}", "one")
            await add(store_user, tenant, member, 20, ("partner", ""))
            await paced(1)
        await paced(24)
        found = await paced(36)
        assert len(found) == 12
        assert set(found.values()) <= {2, 3, 4}
        assert await storage.check() == []

    @pytest.mark.parametrize("level", [0, 1])
    async def test_no_tenant_or_user_saves_up_turns_of_a_shared_rate_while_its_jobs_are_not_due(
        self, storage: Store, store_user: StoreUser, clock: ManualClock, level: int
    ) -> None:
        """The fault: as all others waited for the rate, no tenant was in line, and one kept its turn of long ago."""
        store_user.rules = {**turns(), "partner": rate(10, per=1, burst=1)}

        async def put(name: str, count: int, delay: float | None = None) -> None:
            tenant, member = ("one", name) if level else (name, "one")
            await add(store_user, tenant, member, count, ("partner", ""), delay=delay)

        async def paced_by_name(tenths: int) -> dict[str, int]:
            return {levels_of(key)[level]: count for key, count in (await paced(store_user, clock, tenths)).items()}

        await put("late", 1)
        assert await paced_by_name(1) == {"late": 1}
        for name in "az":
            await put(name, 300)
        await put("late", 30, delay=30)
        assert "late" not in await paced_by_name(300)
        assert 8 <= (await paced_by_name(30))["late"] <= 12
        assert await storage.check() == []

    async def test_turns_of_the_lanes_of_a_tenant_are_no_measure_for_a_key_of_one_level(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault: those of a tenant of weight 4 grow faster than its own, and the other key started none of 150."""
        store_user.rules = {**turns(h=4), "partner": rate(10, per=1, burst=1), "order": at_once()}
        await store_user.add(100, buckets=[("partner", ""), (ORDER, "x")])
        for order in "12":
            await add(store_user, "h", "", 150, ("order", order), ("partner", ""))
        await paced(store_user, clock, 50)
        assert (await paced(store_user, clock, 100))["x"] >= 15

    async def test_a_key_of_one_level_is_read_behind_a_bucket_beside_many_lanes_of_a_tenant(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault: the first lanes were read by their own turns, which are low if a tenant has many."""
        store_user.rules = {**turns(), "partner": rate(10, per=1, burst=1), "order": at_once()}
        await store_user.add(100, buckets=[("partner", ""), (ORDER, "x")])
        for order in range(60):
            await add(store_user, "h", "", 5, ("order", f"{order}"), ("partner", ""))
        await paced(store_user, clock, 50)
        assert 45 <= (await paced(store_user, clock, 100))["x"] <= 55

    async def test_a_shared_rate_is_divided_among_more_tenants_than_are_looked_up_one_by_one(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {**turns(), "partner": rate(10, per=1, burst=10)}
        names = [f"{number:03}" for number in range(130)]
        key = [f"{name}{BETWEEN_LEVELS}only" for name in names]
        await store_user.storage.add([
            store_user.new(buckets=[("partner", ""), (ORDER, each)]) for each in key for _ in range(3)
        ])  # fmt: skip
        found: Counter[str] = Counter()
        for _ in range(26):
            jobs = await store_user.take(10)
            found.update(levels_of(key_of(job))[0] for job in jobs)
            await store_user.succeed(*jobs)
            clock.advance(1)
        assert found == dict.fromkeys(names, 2)

    async def test_a_tenant_whose_jobs_are_cancelled_leaves_the_line(
        self, storage: Store, store_user: StoreUser
    ) -> None:
        store_user.rules = turns()
        await add(store_user, "b", "only", 3)
        jobs = [store_user.new(buckets=[(ORDER, f"a{BETWEEN_LEVELS}{n}")]) for n in range(3)]
        await store_user.storage.add(jobs)
        for job in jobs:
            await storage.cancel(job.id)
        assert tenants(await started(store_user, 5)) == {"b": 3}
        await storage.evict(100)
        await add(store_user, "a", "y", 2)
        assert tenants(await started(store_user, 5)) == {"a": 2}
        await storage.evict(100)
        assert await storage.check() == []

    async def test_one_idle_tenant_is_kept_for_the_next_turns_however_many_had_the_last_one(
        self, store_user: StoreUser
    ) -> None:
        """The fault: all tenants that had as many turns as the first of them were kept."""
        store_user.rules = turns()
        for tenant in map(str, range(20)):
            await add(store_user, tenant, "only")
        await store_user.succeed(*await store_user.take(20))
        evicted = 0
        while found := await store_user.storage.evict():
            evicted += found
        assert evicted == 20 + 19

    @pytest.mark.parametrize("count", [1, 3, 10])
    async def test_a_claim_fills_its_slots_from_many_tenants(self, store_user: StoreUser, count: int) -> None:
        """It reads the lanes of no more tenants than it needs, and says that there are more."""
        store_user.rules = turns()
        jobs = [store_user.new(buckets=[(ORDER, f"{n % 120}{BETWEEN_LEVELS}only")]) for n in range(120 * count)]
        await store_user.storage.add(jobs)
        for _ in range(3 * count):
            claimed = await store_user.claim(40)
            assert (len(claimed.jobs), claimed.more) == (40, True)
            await store_user.succeed(*claimed.jobs)
        assert await store_user.take() == []

    async def test_many_tenants_with_limits_of_another_release_hide_no_others(self, store_user: StoreUser) -> None:
        store_user.rules = turns()
        for number in range(60):
            await add(store_user, f"{number}", "only", 10, ("theirs", ""))
        for tenant in "abc":
            await add(store_user, tenant, "only", 10)
        taken = [job.id for job in await store_user.take(40)]
        assert len(taken) == 30

    async def test_lanes_of_a_key_whose_second_level_is_empty_take_its_turns(
        self, storage: Store, store_user: StoreUser
    ) -> None:
        """As beside limits that count by another key."""
        store_user.rules = {**turns(), "orders": at_once()}
        for number in range(40):
            await add(store_user, "a", "", 1, ("orders", f"{number}"))
        assert tenants(await started(store_user, 4)) == {"a": 4}
        for number in range(40, 45):
            await add(store_user, "b", "", 1, ("orders", f"{number}"))
        assert tenants(await started(store_user, 11))["b"] == 5
        assert await storage.check() == []

    async def test_jobs_are_found_by_a_key_whose_second_level_is_empty(self, store_user: StoreUser) -> None:
        store_user.rules = {**turns(), "orders": at_once()}
        await store_user.add(2, buckets=[(ORDER, "a")])
        await add(store_user, "a", "", 3, ("orders", "1"))
        await add(store_user, "a", "ann", 1, ("orders", "2"))
        await add(store_user, "ab", "", 1, ("orders", "3"))
        # The fault: a job without a key for the other limit has no bucket but that of its tenant; it was not found.
        await add(store_user, "a", "")
        # The lanes of all queues are stored then.
        await store_user.claim(queues=("other",))
        for limit in (ORDER, None):
            for state in (JobState.WAITING, None):
                found = await store_user.storage.jobs(JobFilter(limit=limit, key="a", state=state))
                assert len(found) == 6
                assert await store_user.storage.count_jobs(JobFilter(limit=limit, key="a", state=state), 100) == 6

    async def test_keys_of_one_level_and_of_two_share_a_line(self, store_user: StoreUser) -> None:
        """As while a deploy changes the key, and waiting jobs move."""
        store_user.rules = turns()
        await store_user.add(20, buckets=[(ORDER, "old")])
        for member in range(5):
            await add(store_user, "a", f"{member}", 4)
        keys = await starts(store_user, 20, 2)
        assert abs(keys.count("old") - 10) <= 1

    @pytest.mark.parametrize("seed", range(3))
    async def test_tenants_and_users_follow_the_model(self, storage: Store, store_user: StoreUser, seed: int) -> None:
        """With one slot and arrivals between starts, against a line of tenants and a line of users for each."""
        weights = {"b": 3, "c": 10}
        store_user.rules = turns(**weights)
        random = Random(seed)
        outer = ModelLine()
        inner = {tenant: ModelLine() for tenant in "abc"}
        waiting: Counter[tuple[str, ...]] = Counter()
        for _ in range(100):
            for _ in range(random.choice((0, 0, 1, 2))):
                tenant, member = random.choice("abc"), random.choice("uvwxyz")
                await add(store_user, tenant, member, 2)
                outer.join(tenant)
                inner[tenant].join(member)
                waiting[tenant, member] += 2
            found = await started(store_user, 1, 1)
            assert bool(found) == bool(outer.line)
            for tenant, member in found:
                outer.start(tenant, STEP // weights.get(tenant, 1) // 2 * 2)
                inner[tenant].start(member, STEP)
                waiting[tenant, member] -= 1
                if not waiting[tenant, member]:
                    inner[tenant].leave(member)
                if not inner[tenant].line:
                    outer.leave(tenant)
        assert await storage.check() == []

    async def test_waiting_jobs_are_counted_by_tenant(self, store_user: StoreUser) -> None:
        store_user.rules = {**turns(), "calls": rate(1, per=60, burst=1)}
        for member in ("ann", "bob", "eve"):
            await add(store_user, "a", member, 2)
        await add(store_user, "b", "joe", 3, ("calls", "joe"))
        assert await waiting(store_user) == ([("a", 6), ("b", 3)], 2, True)
        await store_user.take(4)
        assert await waiting(store_user) == ([("a", 3), ("b", 2)], 2, True)

    async def test_shares_of_a_thousand_starts_are_those_of_the_weights(self, store_user: StoreUser) -> None:
        weights = {"a": 1, "b": 2, "c": 3, "d": 4}
        store_user.rules = turns(**weights)
        jobs = [
            store_user.new(buckets=[(ORDER, f"{tenant}{BETWEEN_LEVELS}{number % (7 * weight)}")])
            for tenant, weight in weights.items()
            for number in range(500)
        ]
        await store_user.storage.add(jobs)
        counts = tenants(await started(store_user, 1000, 10))
        for tenant, weight in weights.items():
            assert abs(counts[tenant] - 100 * weight) <= 10
