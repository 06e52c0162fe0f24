"""What is promised of fair queues: keys take turns by weight, and a key that comes new waits for few others."""

from __future__ import annotations

from collections import Counter
from math import ceil
from unittest import mock

import pytest

from headgate.jobs.job import ClaimedJob
from headgate.limits.fair import STEP, FairOrder
from headgate.limits.limit import AnyRule
from headgate.storage.procedures import listing
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import Conformance, StoreUser, at_once, rate, strict

ORDER = "fair:default"


def turns(**weights: int) -> dict[str, AnyRule]:
    return {ORDER: FairOrder("{0}", weights).rule}


async def add(user: StoreUser, key: str, count: int = 1, *limits: tuple[str, str], delay: float | None = None) -> None:
    await user.add(count, buckets=[*limits, (ORDER, key)], delay=delay)


def key_of(job: ClaimedJob) -> str:
    return next(ref.key for ref in job.buckets if ref.limit == ORDER)


async def starts(user: StoreUser, count: int, slots: int = 2) -> list[str]:
    """The keys of the next jobs, in the order in which they start, with so many slots that are free again at once."""
    keys: list[str] = []
    while len(keys) < count:
        jobs = await user.take(slots)
        if not jobs:
            break
        keys += map(key_of, jobs)
        await user.succeed(*jobs)
    return keys[:count]


async def paced(user: StoreUser, clock: ManualClock, tenths: int) -> Counter[str]:
    """How often jobs of each key start in so many tenths of a second."""
    started: Counter[str] = Counter()
    for _ in range(tenths):
        jobs = await user.take(5)
        started.update(map(key_of, jobs))
        await user.succeed(*jobs)
        clock.advance(0.1)
    return started


async def waiting(user: StoreUser, queue: str = "default", count: int = 10) -> tuple[list[tuple[str, int]], int, bool]:
    """The keys of a fair queue with their numbers of waiting jobs."""
    found = await user.storage.waiting_by_key(queue, count)
    return [(each.key, each.jobs) for each in found.counts], found.keys, found.is_exact


class ModelLine:
    """Start-time fair queueing of what joins it, written as naively as possible."""

    def __init__(self) -> None:
        self.line: dict[str, float] = {}
        self.turns: dict[str, float] = {}

    def join(self, key: str) -> None:
        if key in self.line:
            return
        highest = max(self.turns.values(), default=0.0)
        lowest = min(self.line.values(), default=highest)
        if key in self.turns:
            # Not before any other.
            turn = max(self.turns[key], ceil(lowest))
        else:
            # Before the others at the highest turn at which a key has started, or at the end of the round.
            turn = ceil(min(max(lowest, highest - STEP), lowest + STEP)) - 0.5
        self.line[key] = self.turns[key] = turn

    def start(self, key: str, step: int) -> None:
        turn = self.line[key]
        assert turn == min(self.line.values()), f"{key} started before the first of {self.line}"
        # The first start of a key counts twice.
        self.line[key] = self.turns[key] = turn + step if turn == ceil(turn) else ceil(turn) + 2 * step

    def leave(self, key: str) -> None:
        del self.line[key]


class FairQueuesConformance(Conformance):
    async def test_a_key_that_comes_new_waits_for_one_start_at_most(self, store_user: StoreUser) -> None:
        """The fault: two slots, 200 jobs of A and then 5 of B: none of the first 120 starts was B's."""
        store_user.rules = turns()
        await add(store_user, "a", 200)
        assert await starts(store_user, 40) == ["a"] * 40
        await add(store_user, "b", 5)
        assert (await starts(store_user, 10)).count("b") == 5

    async def test_new_keys_keep_no_old_ones_waiting(self, store_user: StoreUser) -> None:
        """The fault: keys without a turn came first. While new ones came faster than they started, no old one did."""
        store_user.rules = turns()
        await add(store_user, "a", 100)
        await add(store_user, "b", 100)
        await starts(store_user, 4)
        keys: list[str] = []
        for number in range(80):
            await add(store_user, f"{number}-x")
            await add(store_user, f"{number}-y")
            keys += await starts(store_user, 1, 1)
        # All keys take turns, so a turn of the old ones takes twice as long as the last.
        assert min(keys.count("a"), keys.count("b")) >= 3

    async def test_one_new_key_at_a_time_comes_before_at_most_every_other_start(self, store_user: StoreUser) -> None:
        store_user.rules = turns()
        for key in "abc":
            await add(store_user, key, 100)
        await starts(store_user, 6)
        keys: list[str] = []
        for number in range(40):
            await add(store_user, f"{number}")
            keys += await starts(store_user, 1, 1)
        assert min(keys.count(key) for key in "abc") >= 3

    @pytest.mark.parametrize("slots", [1, 2, 7, 100])
    async def test_keys_start_by_weight(self, store_user: StoreUser, slots: int) -> None:
        store_user.rules = turns(b=2, c=4)
        # Whole claims: within one, the jobs of a key come one after the other.
        part = max(50, slots)
        for key in "abc":
            await add(store_user, key, 5 * part)
        started = Counter(await starts(store_user, 7 * part, slots))
        assert abs(started["a"] - part) <= 1
        assert abs(started["b"] - 2 * part) <= 2
        assert abs(started["c"] - 4 * part) <= 4

    async def test_a_key_does_not_save_up_turns_while_it_has_no_jobs(self, store_user: StoreUser) -> None:
        store_user.rules = turns()
        await add(store_user, "a", 10)
        await add(store_user, "b", 300)
        assert Counter(await starts(store_user, 210)) == {"a": 10, "b": 200}
        await add(store_user, "a", 50)
        assert Counter(await starts(store_user, 40))["a"] <= 21

    async def test_a_key_whose_jobs_come_one_by_one_gets_no_more_than_its_share(self, store_user: StoreUser) -> None:
        """A key that comes back goes on from its own turn: it does not come first because its lane was empty."""
        store_user.rules = turns()
        await add(store_user, "a", 100)
        keys: list[str] = []
        for _ in range(60):
            await add(store_user, "b")
            keys += await starts(store_user, 1, 1)
        assert abs(keys.count("a") - keys.count("b")) <= 2

    async def test_a_queue_that_was_empty_begins_anew(self, store_user: StoreUser) -> None:
        store_user.rules = turns()
        await add(store_user, "a", 100)
        assert len(await starts(store_user, 100, 100)) == 100
        await add(store_user, "b", 20)
        await add(store_user, "a", 20)
        keys = await starts(store_user, 21, 1)
        # The first start of b counts twice.
        assert (keys.count("a"), keys.count("b")) == (11, 10)

    async def test_in_a_queue_that_is_fair_no_more_lanes_take_equal_turns(self, store_user: StoreUser) -> None:
        """The fault: a lane that had got a turn kept it, so it was always the first in line."""
        store_user.rules = {**turns(), "calls": rate(10_000, burst=10_000)}
        for key in "ab":
            await store_user.add(60, buckets=[("calls", key)])
            # A lane without the order of the queue, of an older release, gets a turn, too.
            await store_user.succeed(*await store_user.take(2))
        await store_user.succeed(await store_user.take_one())
        del store_user.rules[ORDER]
        keys: list[str] = []
        for _ in range(20):
            store_user.clock.advance(1)
            jobs = (await store_user.claim(1)).jobs
            keys += [job.buckets[0].key for job in jobs]
            await store_user.succeed(*jobs)
        assert min(keys.count("a"), keys.count("b")) >= 8

    async def test_delayed_jobs_have_no_turns_before_they_are_due(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = turns()
        await add(store_user, "b", 20, delay=60)
        await add(store_user, "a", 100)
        assert await starts(store_user, 30) == ["a"] * 30
        clock.advance(60)
        keys = await starts(store_user, 20, 1)
        # The first start of b counts twice.
        assert abs(keys.count("a") - keys.count("b") - 1) <= 1

    async def test_limits_hold_in_a_fair_queue_and_others_take_the_turns_of_a_key_that_waits(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {**turns(), "calls": rate(5, per=60, burst=5)}
        await add(store_user, "a", 50, ("calls", "a"))
        await add(store_user, "b", 100)
        keys = await starts(store_user, 60)
        assert keys.count("a") == 5
        clock.advance(12)
        # Its budget has room for one start. It has not saved up the turns in which it waited for that.
        assert (await starts(store_user, 6, 1)).count("a") == 1

    async def test_a_shared_rate_is_divided_by_weight_and_one_key_may_use_all_of_it(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """A guaranteed minimum, and more while there is room: of 10/s, four fifths are for b and the rest for a."""
        store_user.rules = {**turns(b=4), "partner": rate(10, per=1, burst=1)}
        await add(store_user, "a", 100, ("partner", ""))
        assert await paced(store_user, clock, 20) == {"a": 20}
        await add(store_user, "b", 40, ("partner", ""))
        joining = await paced(store_user, clock, 10)
        assert joining["b"] >= 6
        assert await paced(store_user, clock, 30) == {"a": 6, "b": 24}
        await paced(store_user, clock, 15)
        assert await paced(store_user, clock, 10) == {"a": 10}

    async def test_new_keys_that_come_as_a_shared_rate_opens_keep_those_that_wait_for_it_in_turn(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault: each started at once, a step beyond all others, so the last one waited until all were there."""
        store_user.rules = {**turns(), "partner": rate(10, per=1, burst=1)}
        for number in range(12):
            await add(store_user, f"{number}", 20, ("partner", ""))
            await paced(store_user, clock, 1)
        await paced(store_user, clock, 24)
        found = await paced(store_user, clock, 36)
        assert len(found) == 12
        assert set(found.values()) <= {2, 3, 4}

    async def test_a_shared_rate_is_divided_by_weight_beside_keys_whose_jobs_come_one_by_one(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault: one that came as the rate opened was alone in line, and those that waited lost their order."""
        store_user.rules = {**turns(b=4), "partner": rate(10, per=1, burst=1)}
        for key in "ab":
            await add(store_user, key, 100, ("partner", ""))
        found: Counter[str] = Counter()
        for tenth in range(112):
            if tenth % 8 == 0:
                await add(store_user, "c", 1, ("partner", ""))
                await add(store_user, "d", 1, ("partner", ""))
            found += await paced(store_user, clock, 1)
        assert abs(found["c"] - 14) <= 1
        assert abs(found["d"] - 14) <= 1
        assert abs(found["b"] - 4 * found["a"]) <= 5

    async def test_a_key_saves_up_no_turns_of_a_shared_rate_while_its_jobs_are_not_due(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault: all others waited for the rate, so none was in line, and it kept its turn of half a minute ago."""
        store_user.rules = {**turns(), "partner": rate(10, per=1, burst=1)}
        await add(store_user, "late", 1, ("partner", ""))
        assert await paced(store_user, clock, 1) == {"late": 1}
        for key in "ab":
            await add(store_user, key, 300, ("partner", ""))
        await add(store_user, "late", 30, ("partner", ""), delay=30)
        assert "late" not in await paced(store_user, clock, 300)
        assert 8 <= (await paced(store_user, clock, 30))["late"] <= 12

    async def test_a_rate_that_opens_beside_a_faster_one_is_divided_by_weight(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault on SQLite: as many lanes were read as the faster one grants, and the oldest were chosen."""
        store_user.rules = {**turns(b=4), "slow": rate(1, per=1, burst=1), "fast": rate(20, per=1, burst=20)}
        for key in "ab":
            await add(store_user, key, 40, ("slow", ""))
        for key in "cd":
            await add(store_user, key, 600, ("fast", ""))
        found: Counter[str] = Counter()
        for _ in range(30):
            jobs = await store_user.take()
            found.update(map(key_of, jobs))
            await store_user.succeed(*jobs)
            clock.advance(1)
        assert found["a"] + found["b"] == 30
        assert abs(found["b"] - 24) <= 1

    @pytest.mark.parametrize("order", [(), (("fair:other", "a"),)], ids=["plain", "fair"])
    async def test_queues_take_turns_under_a_shared_limit(
        self, store_user: StoreUser, clock: ManualClock, order: tuple[tuple[str, str], ...]
    ) -> None:
        """The fault: the queue with turns, or the one that has had fewer of them, started all and the other none."""
        store_user.rules = {**turns(), "fair:other": turns()[ORDER], "partner": strict(4, per=1)}
        if order:
            await store_user.add(60, queue="other", buckets=order)
            await store_user.succeed(*await store_user.take(60, queues=("other",)))
        await store_user.add(60, queue="other", buckets=[("partner", ""), *order])
        await add(store_user, "a", 60, ("partner", ""))
        found: Counter[str] = Counter()
        for _ in range(10):
            jobs = await store_user.take(10, queues=("default", "other"))
            found.update(job.queue for job in jobs)
            await store_user.succeed(*jobs)
            clock.advance(1)
        assert found == {"default": 20, "other": 20}

    async def test_permits_are_returned_in_a_fair_queue(self, store_user: StoreUser) -> None:
        store_user.rules = {**turns(), "slots": at_once()}
        await add(store_user, "a", 3, ("slots", "a"))
        await add(store_user, "b", 3)
        first = await store_user.take()
        assert Counter(map(key_of, first)) == {"a": 1, "b": 3}
        await store_user.succeed(*first)
        assert await starts(store_user, 2) == ["a", "a"]

    async def test_nothing_of_a_fair_order_is_stored_as_a_bucket(self, storage: Store, store_user: StoreUser) -> None:
        store_user.rules = turns()
        await add(store_user, "a", 3)
        (job, other) = await store_user.take(2)
        await store_user.give_back(job)
        await store_user.fail(other)
        assert await starts(store_user, 2) == ["a", "a"]
        assert [bucket.state for bucket in await storage.buckets(limit=ORDER)] in ([], [None])

    async def test_turns_are_exact_for_a_thousand_keys(self, store_user: StoreUser) -> None:
        store_user.rules = turns()
        await store_user.storage.add([store_user.new(buckets=[(ORDER, f"{n % 1000:04}")]) for n in range(3000)])
        assert len(set(await starts(store_user, 1000, 10))) == 1000
        await add(store_user, "new")
        assert "new" in await starts(store_user, 20, 10)

    async def test_one_idle_key_is_kept_for_the_next_turns_however_many_had_the_last_one(
        self, store_user: StoreUser
    ) -> None:
        """The fault: all keys that had as many turns as the first of them were kept, and read again each minute."""
        store_user.rules = {ORDER: turns()[ORDER], "fair:other": turns()[ORDER]}
        for key in map(str, range(20)):
            await add(store_user, key)
            await store_user.add(buckets=[("fair:other", key)], queue="other")
        jobs = [job for queue in ("default", "other") for job in await store_user.take(40, queues=(queue,))]
        assert len(jobs) == 40
        await store_user.succeed(*jobs)
        evicted = 0
        while found := await store_user.storage.evict():
            evicted += found
        assert evicted == 38

    async def test_waiting_jobs_are_counted_by_key_wherever_their_lanes_are(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {**turns(), "calls": rate(1, per=60, burst=1)}
        await add(store_user, "a", 2)
        await add(store_user, "b", 3, ("calls", "b"))
        await add(store_user, "b", 2)
        await store_user.add(5, buckets=[("fair:other", "a")], queue="other")
        assert await waiting(store_user) == ([("b", 5), ("a", 2)], 2, True)
        # A lane of b waits behind its budget then, and one of a has a running job.
        assert sorted(map(key_of, await store_user.take(3))) == ["a", "b", "b"]
        assert await waiting(store_user) == ([("b", 3), ("a", 1)], 2, True)
        await add(store_user, "later", delay=60)
        await store_user.add(7, buckets=[("calls", "c")])
        assert [key for key, _ in (await waiting(store_user))[0] if key != "later"] == ["b", "a"]
        assert (await waiting(store_user, count=1))[0] == [("b", 3)]
        assert await waiting(store_user, queue="nothing") == ([], 0, True)

    async def test_the_first_lanes_in_line_are_counted_where_there_are_very_many(self, store_user: StoreUser) -> None:
        store_user.rules = turns()
        for key in "abc":
            await add(store_user, key, 2)
        with mock.patch.object(listing, "LANES_IN_TURN", 2):
            _, keys, is_exact = await waiting(store_user)
            assert not is_exact
            assert 0 < keys <= 2
            await store_user.succeed(*await store_user.take(1))
            assert not (await waiting(store_user))[2]
        with mock.patch.object(listing, "LANES_IN_TURN", 4):
            assert (await waiting(store_user))[1:] == (3, True)

    async def test_starts_follow_the_model(self, store_user: StoreUser) -> None:
        """Against a plain model of start-time fair queueing, with one slot and arrivals between starts."""
        weights = {"b": 3, "c": 10}
        store_user.rules = turns(**weights)
        model = ModelLine()
        waiting: Counter[str] = Counter()
        served: list[str] = []
        for step in range(150):
            for place, key in enumerate("abcd"):
                if step >= 20 * place and (step + place) % (3 + place) == 0:
                    await add(store_user, key, 2)
                    model.join(key)
                    waiting[key] += 2
            (key,) = await starts(store_user, 1, 1) or [""]
            if not key:
                assert not model.line
                continue
            served.append(key)
            model.start(key, STEP // weights.get(key, 1))
            waiting[key] -= 1
            if not waiting[key]:
                model.leave(key)
        assert set(served) == {*"abcd"}
