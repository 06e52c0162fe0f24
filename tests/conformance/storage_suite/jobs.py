"""What is promised of jobs: how they are added, claimed, ordered, delayed and looked at."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.jobs.identity import process_name
from headgate.jobs.job import BucketRef, JobOptions, JobState, RetryTerms
from headgate.jobs.query import JobFilter
from headgate.storage.records import Claim, FreeSlots, QueueCounts
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import (
    MINUTE,
    Conformance,
    StoreUser,
    recover,
    strict,
    with_id,
)


class JobsConformance(Conformance):
    # ----------------------------------------------------------------------------------------- adding

    async def test_an_added_job_is_read_back_as_it_was_added(self, store_user: StoreUser) -> None:
        new = store_user.new(
            buckets=[("api", "acme"), ("day", "")],
            costs=(2, 1),
            priority=3,
            delay=5,
            expires_in=60,
            payload='{"page":2}',
            headers={"tenant": "acme"},
            options=JobOptions(timeout=1.5, retry=RetryTerms(retries=7, delays=(1.0, 2.5))),
        )
        await store_user.storage.add([new])
        record = await store_user.record(new.id)
        assert record.state is JobState.WAITING
        for name in ("id", "task", "queue", "payload", "priority", "delayed", "run_at", "enqueued_at", "expires_at"):
            assert getattr(record, name) == getattr(new, name), name
        assert (record.buckets, record.headers, record.options) == (new.buckets, new.headers, new.options)
        assert (record.attempt, record.fence, record.lost, record.node) == (0, 0, 0, None)
        assert (record.started_at, record.finished_at, record.result, record.error) == (None, None, None, None)
        assert not record.cancel_requested
        assert record.lane_waiting == 1

    async def test_a_job_stores_which_process_enqueued_it(self, store_user: StoreUser, clock: ManualClock) -> None:
        """From its first day to its last, whatever other processes do with it."""
        here = store_user.new()
        names = ("web-1:77", "web-1:77", "h" * 190 + ":123456789", None)
        there = [replace(store_user.new(), enqueued_by=name) for name in names]
        await store_user.storage.add([here, *there])
        received = {new.id: new.enqueued_by for new in (here, *there)}
        assert received[here.id] == process_name()
        assert {id: (await store_user.record(id)).enqueued_by for id in received} == received
        await store_user.give_back((await store_user.take())[0], "snoozed", run_at=clock.now())
        page = await store_user.storage.jobs(JobFilter())
        assert {record.id: record.enqueued_by for record in page} == received

    async def test_reading_an_unknown_job_returns_none(self, store_user: StoreUser) -> None:
        assert await store_user.storage.job("nobody") is None
        assert list(await store_user.storage.attempts("nobody")) == []
        assert list(await store_user.storage.final(["nobody"])) == []

    async def test_an_id_that_is_stored_already_is_ignored_and_the_others_are_added(
        self, store_user: StoreUser
    ) -> None:
        first = store_user.new(payload="1")
        await store_user.storage.add([first])
        again = store_user.new(payload="2")
        second = store_user.new()
        await store_user.storage.add([with_id(again, first.id), second])
        assert (await store_user.record(first.id)).payload == "1"
        assert (await store_user.counts()).waiting == 2
        assert await store_user.take_ids() == [first.id, second.id]

    async def test_an_id_that_comes_twice_in_one_add_is_stored_once(self, store_user: StoreUser) -> None:
        new = store_user.new(buckets=[("api", "acme")])
        await store_user.storage.add([new, new])
        assert (await store_user.counts()).waiting == 1
        assert (await store_user.record(new.id)).lane_waiting == 1

    async def test_jobs_that_are_partly_stored_are_counted_once_though_the_newest_were_pruned(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        stored = store_user.new()
        await store_user.storage.add([stored])
        for _ in range(3):
            await store_user.storage.add([store_user.new(queue="short")])
        await store_user.succeed(*await store_user.take(queues=["short"]))
        clock.advance(1)
        assert await store_user.storage.prune(clock.now()) == 3
        new = [store_user.new() for _ in range(3)]
        await store_user.storage.add([new[0], stored, *new[1:]])
        assert (await store_user.counts()).waiting == 4
        assert (await store_user.record(new[0].id)).lane_waiting == 4
        assert await store_user.take_ids() == [stored.id, *(job.id for job in new)]

    async def test_repeating_an_add_after_the_job_has_run_does_not_run_it_again(self, store_user: StoreUser) -> None:
        new = store_user.new()
        await store_user.storage.add([new])
        await store_user.succeed(*await store_user.take())
        await store_user.storage.add([new])
        assert (await store_user.record(new.id)).state is JobState.SUCCEEDED
        assert await store_user.take_ids() == []

    async def test_any_text_is_kept_exactly(self, store_user: StoreUser) -> None:
        unusual = ["", "'; DROP TABLE job; --", 'a|b:c/d\\e"f', "ünïcödé 🚦", "line\nbreak\ttab", "x" * 256]
        store_user.rules = {text or "one": strict(1) for text in unusual}
        for text in unusual:
            await store_user.add(
                buckets=[(text or "one", text)],
                payload=f'"{text.encode().hex()}"',
                headers={"h": text},
                queue="q" + text,
            )
        queues = ["q" + text for text in unusual]
        jobs = {job.queue: job for job in await store_user.take(queues=queues)}
        for text in unusual:
            job = jobs["q" + text]
            assert job.headers == {"h": text}
            assert job.payload == f'"{text.encode().hex()}"'
            assert (await store_user.record(job.id)).buckets == (BucketRef(text or "one", text),)
            (bucket,) = await store_user.storage.buckets(limit=text or "one")
            assert bucket.ref == BucketRef(text or "one", text)

    async def test_empty_calls_are_allowed(self, store_user: StoreUser) -> None:
        await store_user.storage.add([])
        assert list(await store_user.storage.finish(store_user.node, [])) == []
        assert list(await store_user.storage.final([])) == []
        claimed = await store_user.claim(queues=[])
        assert (list(claimed.jobs), claimed.next_in, claimed.more) == ([], None, False)
        claimed = await store_user.claim(queues=["never-used"])
        assert (list(claimed.jobs), claimed.next_in, claimed.more) == ([], None, False)

    # --------------------------------------------------------------------------------------- claiming

    async def test_a_claimed_job_is_running_and_belongs_to_its_node(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        new = store_user.new(payload="[1]", headers={"a": "b"}, options=JobOptions(retry=RetryTerms(retries=2)))
        await store_user.storage.add([new])
        clock.advance(3)
        job = await store_user.take_one()
        assert (job.id, job.task, job.queue, job.payload) == (new.id, "work", "default", "[1]")
        assert (job.attempt, job.fence, job.lost, job.gated) == (1, 1, 0, False)
        assert (job.enqueued_at, job.run_at, job.started_at) == (new.enqueued_at, new.run_at, clock.now())
        assert (job.headers, job.options) == (new.headers, new.options)
        record = await store_user.record(new.id)
        assert (record.state, record.node, record.started_at) == (JobState.RUNNING, store_user.node, clock.now())
        assert (record.attempt, record.fence) == (1, 1)

    async def test_a_job_that_uses_a_limit_is_claimed_as_gated(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(buckets=[("api", "acme")])
        assert (await store_user.take_one()).gated

    @pytest.mark.parametrize("buckets", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_no_more_jobs_are_claimed_than_there_are_slots(
        self, store_user: StoreUser, buckets: tuple[tuple[str, str], ...]
    ) -> None:
        store_user.rules = {"api": strict(100)}
        ids = await store_user.add(20, buckets=buckets)
        first = await store_user.claim(7)
        assert len(first.jobs) <= 7
        assert first.more or len(first.jobs) == 7
        rest = await store_user.take_ids(100)
        assert [job.id for job in first.jobs] + rest == ids

    async def test_more_is_true_if_the_slots_were_too_few(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(3)
        assert (await store_user.claim(2)).more
        assert not (await store_user.claim(2)).more
        await store_user.add(3, buckets=[("api", "acme")])
        assert (await store_user.claim(2)).more
        assert not (await store_user.claim(2)).more

    async def test_more_is_true_while_opened_buckets_are_left(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        for key in "abc":
            await store_user.add(2, buckets=[("api", key)])
        assert len(await store_user.take()) == 3
        clock.advance(60)
        assert (await store_user.claim(1)).more
        assert (await store_user.claim(1)).more
        assert len(await store_user.take()) == 1

    async def test_a_job_is_claimed_once(self, store_user: StoreUser) -> None:
        await store_user.storage.join("node-b", "b")
        ids = await store_user.add(10)
        both = await asyncio.gather(store_user.claim(6), store_user.claim(6, node="node-b"))
        taken = [job.id for claimed in both for job in claimed.jobs]
        assert sorted(taken) == sorted(ids)

    async def test_each_queue_has_its_own_slots(self, store_user: StoreUser) -> None:
        left = await store_user.add(5, queue="left")
        await store_user.add(5, queue="right")
        free_slots = {"left": FreeSlots(5), "right": FreeSlots(2)}
        claimed = await store_user.storage.claim(Claim(store_user.node, free_slots, {}, frozenset({"work"})))
        assert [job.id for job in claimed.jobs if job.queue == "left"] == left
        assert sum(1 for job in claimed.jobs if job.queue == "right") == 2

    async def test_jobs_of_a_queue_that_was_not_requested_are_not_claimed(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(2, queue="other")
        await store_user.add(2, queue="other", buckets=[("api", "acme")])
        claimed = await store_user.claim()
        assert (list(claimed.jobs), claimed.more) == ([], False)
        assert (await store_user.counts("other")).waiting == 4

    async def test_a_job_added_between_two_full_claims_is_found_soon(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """A claim may go by what the last one has seen: jobs without limits, more than it could take."""
        store_user.rules = {"api": strict(100)}
        await store_user.add(100)
        other = await store_user.add_one(queue="other")
        for _ in range(3):
            assert len(await store_user.take(4)) == 4
        gated = await store_user.add_one(buckets=[("api", "acme")])
        late = await store_user.add_one(delay=0.01)
        unusual = await store_user.add_one(task="unknown", priority=9)
        clock.advance(0.02)
        claimed = await store_user.claim(4, queues=("default", "other"))
        assert {gated, other} <= {job.id for job in claimed.jobs}
        assert unusual not in await store_user.take_ids(200)
        assert (await store_user.record(late)).state is JobState.RUNNING

    async def test_a_node_that_is_declared_dead_between_two_claims_gets_nothing(self, store_user: StoreUser) -> None:
        await store_user.add(12)
        assert [len((await store_user.claim(4)).jobs) for _ in range(2)] == [4, 4]
        await recover(store_user)
        assert not (await store_user.claim(4)).jobs

    async def test_a_claim_takes_what_is_left_of_jobs_that_it_expected_more_of(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(100)}
        ids = await store_user.add(10)
        gated = await store_user.add(2, queue="other", buckets=[("api", "acme")])
        assert [len((await store_user.claim(4)).jobs) for _ in range(2)] == [4, 4]
        claimed = await store_user.claim(4, queues=("default", "other"))
        assert sorted(job.id for job in claimed.jobs) == sorted(ids[8:] + gated)
        assert not claimed.more

    async def test_a_job_of_an_unknown_task_is_skipped(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(100)}
        for buckets in ((), (("api", "acme"),)):
            unknown_jobs = await store_user.add(3, task="unknown", priority=9, buckets=buckets)
            known = await store_user.add(2, buckets=buckets)
            claimed = await store_user.claim()
            assert [job.id for job in claimed.jobs] == known
            assert list(claimed.unknown) == [("unknown", "default")]
            assert not (await store_user.claim()).more
            assert await store_user.states(unknown_jobs) == [JobState.WAITING] * 3

    async def test_many_jobs_of_an_unknown_task_block_no_others(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(100)}
        for buckets in ((), (("api", "acme"),)):
            await store_user.add(700, task="unknown", buckets=buckets)
            known = await store_user.add(2, buckets=buckets)
            assert await store_user.take_ids(10) == known

    async def test_a_lane_of_unknown_jobs_that_could_use_all_slots_blocks_no_other(self, store_user: StoreUser) -> None:
        """The fault: with free slots for fewer lanes than were read, only the first one in line was ever visited."""
        store_user.rules = {"api": strict(100)}
        await store_user.add(3, task="unknown", buckets=[("api", "acme")])
        (known,) = await store_user.add(buckets=[("api", "globex")])
        assert await store_user.take_ids(3) == [known]

    async def test_a_lane_of_unknown_jobs_gives_no_other_queue_the_starts_of_those_behind_it(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault: while another queue had jobs under the same limit, no job behind that lane started."""
        store_user.rules = {"api": strict(2, per=1), "tenant": strict(100)}
        await store_user.add(4, task="unknown", buckets=[("tenant", "a"), ("api", "")])
        known = await store_user.add(4, buckets=[("tenant", "b"), ("api", "")])
        await store_user.add(40, queue="other", buckets=[("tenant", "c"), ("api", "")])
        found: list[str] = []
        for _ in range(8):
            jobs = await store_user.take(4, queues=("default", "other"))
            found += [job.id for job in jobs]
            await store_user.succeed(*jobs)
            clock.advance(1)
        assert len(found) == 16
        assert set(known) <= set(found)

    async def test_lanes_of_unknown_jobs_block_no_other_while_another_queue_has_jobs(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault: they hid the lanes after them from all claims in which any job started, so from a busy node."""
        store_user.rules = {"api": strict(100)}
        for key in "ab":
            await store_user.add(4, task="unknown", buckets=[("api", key)])
        clock.advance(0.5)
        hidden = await store_user.add(2, buckets=[("api", "acme")])
        taken: list[str] = []
        for _ in range(20):
            busy = await store_user.add(2, queue="busy", buckets=[("api", "globex")])
            busy += await store_user.add(1, queue="busy")
            claimed = await store_user.claim(8, queues=("default", "busy"))
            taken += [job.id for job in claimed.jobs if job.id not in busy]
            assert len(claimed.jobs) in (3, 5)
            clock.advance(0.05)
        assert taken == hidden

    async def test_lanes_of_unknown_jobs_block_no_other_whenever_in_a_second_a_busy_node_claims(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault: a node whose jobs ended in the last nine tenths of each second never read what they hid."""
        store_user.rules = {"api": strict(100)}
        for key in "ab":
            await store_user.add(4, task="unknown", buckets=[("api", key)])
        hidden = await store_user.add(2, buckets=[("api", "acme")])
        clock.advance(0.5)
        taken: list[str] = []
        for _ in range(5):
            await store_user.add(2, queue="busy", buckets=[("api", "globex")])
            taken += [job.id for job in (await store_user.claim(8, queues=("default", "busy"))).jobs]
            clock.advance(1)
        assert set(hidden) <= set(taken)

    async def test_what_lanes_of_unknown_jobs_hid_gets_no_more_than_the_slots_that_are_left(
        self, store_user: StoreUser
    ) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(3, buckets=[("api", "first")])
        for key in "ab":
            await store_user.add(4, task="unknown", buckets=[("api", key)])
        for buckets in ([("api", "acme")], [("api", "globex")], []):
            await store_user.add(9, buckets=buckets)
        for slots in (5, 6, 7):
            assert len(await store_user.take(slots)) == slots
            assert len((await store_user.claim(slots)).jobs) <= slots

    async def test_a_delayed_job_in_a_lane_that_unknown_jobs_hide_starts_soon_after_it_is_due(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault: an idle node did not look for it, and a sweep found it up to half a minute later."""
        store_user.rules = {"api": strict(100)}
        for key in "abc":
            await store_user.add(4, task="unknown", buckets=[("api", key)])
        late = await store_user.add_one(delay=5, buckets=[("api", "c")])
        began = clock.now()
        while not (claimed := await store_user.claim(4)).jobs:
            assert claimed.next_in
            clock.advance(claimed.next_in / SECOND)
        assert [job.id for job in claimed.jobs] == [late]
        assert clock.now() <= began + 10 * SECOND

    async def test_a_delayed_job_that_is_alone_in_its_lane_starts_beside_a_backlog(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault: a lane in line took all free slots in each claim, and the lane that slept had its turn last."""
        store_user.rules = {"api": strict(100)}
        await store_user.add(60, buckets=[("api", "busy")])
        late = await store_user.add_one(delay=5, buckets=[("api", "acme")])
        clock.advance(5)
        taken: list[str] = []
        for _ in range(10):
            taken += [job.id for job in (await store_user.claim(4)).jobs]
            clock.advance(0.1)
        assert late in taken

    async def test_a_node_that_has_the_task_takes_the_jobs_that_another_skipped(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(100)}
        for buckets in ((), (("api", "acme"),)):
            unknown_jobs = await store_user.add(3, task="unknown", buckets=buckets)
            known = await store_user.add(2, buckets=buckets)
            assert await store_user.take_ids() == known
            # The order is the order of arrival.
            late = await store_user.add(1, buckets=buckets)
            assert await store_user.take_ids(tasks={"work", "unknown"}) == [*unknown_jobs, *late]

    async def test_a_lane_that_was_skipped_completely_is_found_by_a_node_that_has_its_task(
        self, store_user: StoreUser
    ) -> None:
        store_user.rules = {"api": strict(100)}
        unknown_jobs = await store_user.add(3, task="unknown", buckets=[("api", "acme")])
        assert await store_user.take_ids() == []
        assert await store_user.take_ids(tasks={"work", "unknown"}) == unknown_jobs

    async def test_a_due_job_of_an_unknown_task_causes_no_polling(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(task="unknown", delay=5, buckets=[("api", "acme")])
        clock.advance(10)
        await store_user.take()
        claimed = await store_user.claim()
        assert (list(claimed.jobs), claimed.more) == ([], False)
        assert claimed.next_in is None or claimed.next_in > 0

    @pytest.mark.parametrize("buckets", [[], [("api", "acme")]], ids=["plain", "gated"])
    @pytest.mark.parametrize("delay", [None, 1], ids=["ready", "overdue"])
    async def test_a_delayed_job_beside_jobs_of_an_unknown_task_is_announced(
        self, store_user: StoreUser, clock: ManualClock, buckets: list[tuple[str, str]], delay: float | None
    ) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(2, task="unknown", delay=delay, buckets=buckets)
        clock.advance(2)
        for priority, seconds in ((0, 5), (3, 4), (0, 6)):
            await store_user.add(delay=seconds, priority=priority, buckets=buckets)
        for _ in range(3):
            assert (await store_user.claim()).next_in == 4 * SECOND
        clock.advance(4)
        assert len(await store_user.take()) == 1
        assert (await store_user.claim()).next_in == 1 * SECOND

    @pytest.mark.parametrize("buckets", [[], [("api", "acme")]], ids=["plain", "gated"])
    @pytest.mark.parametrize("delay", [None, 1], ids=["ready", "overdue"])
    @pytest.mark.parametrize(("count", "known"), [(5, 0), (5, 2), (20, 0), (20, 2)])
    async def test_jobs_of_an_unknown_task_keep_no_shared_slots(
        self,
        store_user: StoreUser,
        clock: ManualClock,
        buckets: list[tuple[str, str]],
        delay: float | None,
        count: int,
        known: int,
    ) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(count, queue="left", task="unknown", delay=delay, buckets=buckets)
        await store_user.add(known, queue="left", delay=delay, buckets=buckets)
        await store_user.add(20, queue="right", buckets=[("api", "other")])
        clock.advance(2)
        held = {"left": 0, "right": 0}
        for _ in range(10):
            slots = 10 - sum(held.values())
            free = {queue: FreeSlots(slots, True, holds) for queue, holds in held.items()}
            claimed = await store_user.storage.claim(
                Claim(store_user.node, free, store_user.rules, frozenset({"work"}), shared_slots=slots)
            )
            for job in claimed.jobs:
                held[job.queue] += 1
            if not claimed.more or sum(held.values()) == 10:
                break
        assert held == {"left": known, "right": 10 - known}

    async def test_a_lane_with_an_unknown_limit_is_skipped(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(10)}
        unknown_jobs = await store_user.add(3, buckets=[("elsewhere", "acme")])
        half_known = await store_user.add(3, buckets=[("api", "acme"), ("elsewhere", "acme")])
        known = await store_user.add(2, buckets=[("api", "acme")])
        claimed = await store_user.claim()
        assert [job.id for job in claimed.jobs] == known
        assert not (await store_user.claim()).more
        # Nothing was charged for those that were passed over.
        store_user.rules = {"api": strict(10), "elsewhere": strict(10)}
        assert sorted(await store_user.take_ids()) == sorted(unknown_jobs + half_known)

    async def test_a_node_that_has_not_joined_claims_nothing(self, store_user: StoreUser) -> None:
        await store_user.add(2)
        claimed = await store_user.claim(node="stranger")
        assert list(claimed.jobs) == []
        assert (await store_user.counts()).waiting == 2

    # ------------------------------------------------------------------------------------------ order

    @pytest.mark.parametrize("buckets", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_lane_is_ordered_by_priority_then_time_then_arrival(
        self, store_user: StoreUser, clock: ManualClock, buckets: tuple[tuple[str, str], ...]
    ) -> None:
        store_user.rules = {"api": strict(100)}
        low = await store_user.add(2, buckets=buckets)
        high = await store_user.add(2, buckets=buckets, priority=9)
        clock.advance(1)
        later_low = await store_user.add(2, buckets=buckets)
        later_high = await store_user.add(1, buckets=buckets, priority=9)
        middle = await store_user.add(1, buckets=buckets, priority=4)
        taken = [await store_user.take_ids(1) for _ in range(8)]
        assert [id for (id,) in taken] == [*high, *later_high, *middle, *low, *later_low]

    @pytest.mark.parametrize("buckets", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_due_delayed_job_is_ordered_by_its_time(
        self, store_user: StoreUser, clock: ManualClock, buckets: tuple[tuple[str, str], ...]
    ) -> None:
        store_user.rules = {"api": strict(100)}
        delayed = await store_user.add(2, buckets=buckets, delay=5)
        before = await store_user.add(1, buckets=buckets)
        clock.advance(10)
        after = await store_user.add(1, buckets=buckets)
        urgent = await store_user.add(1, buckets=buckets, delay=0, priority=1)
        assert await store_user.take_ids() == [*urgent, *before, *delayed, *after]

    async def test_priority_does_not_cross_lanes(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(100)}
        (patient,) = await store_user.add(buckets=[("api", "patient")])
        clock.advance(1)
        await store_user.add(buckets=[("api", "pushy")], priority=9)
        assert await store_user.take_ids(1) == [patient]

    async def test_jobs_added_after_the_wall_clock_stepped_back_are_in_order_of_their_time(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        before = await store_user.add(2)
        clock.step_wall(-3600)
        after = await store_user.add(2)
        assert await store_user.take_ids() == [*after, *before]

    @pytest.mark.parametrize("buckets", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_lane_has_one_order_after_any_steps_of_the_wall_clock(
        self, store_user: StoreUser, clock: ManualClock, buckets: tuple[tuple[str, str], ...]
    ) -> None:
        store_user.rules = {"api": strict(100)}
        last = await store_user.add(1, buckets=buckets)
        clock.step_wall(-20)
        first = await store_user.add(1, buckets=buckets, delay=0)
        clock.step_wall(10)
        second = await store_user.add(1, buckets=buckets)
        third = await store_user.add(1, buckets=buckets, delay=5)
        clock.advance(5)
        assert await store_user.take_ids() == [*first, *second, *third, *last]

    # ---------------------------------------------------------------------------------------- delayed

    @pytest.mark.parametrize("buckets", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_delayed_job_starts_at_its_time_and_not_before(
        self, store_user: StoreUser, clock: ManualClock, buckets: tuple[tuple[str, str], ...]
    ) -> None:
        store_user.rules = {"api": strict(100)}
        ids = await store_user.add(1, buckets=buckets, delay=5)
        claimed = await store_user.claim()
        assert (list(claimed.jobs), claimed.next_in, claimed.more) == ([], 5 * SECOND, False)
        clock.advance(4.999999)
        claimed = await store_user.claim()
        assert (list(claimed.jobs), claimed.next_in) == ([], 1)
        clock.advance(0.000001)
        assert await store_user.take_ids() == ids

    async def test_the_next_claim_is_for_the_earliest_of_all(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(delay=50)
        await store_user.add(delay=40, buckets=[("api", "sleeper")])
        await store_user.take()
        assert (await store_user.claim()).next_in == 40 * SECOND
        await store_user.add(2, buckets=[("api", "busy")])
        clock.advance(1)
        await store_user.take()
        assert (await store_user.claim()).next_in == 39 * SECOND
        await store_user.add(delay=10, buckets=[("api", "sleeper")])
        assert (await store_user.claim()).next_in == 10 * SECOND

    async def test_next_in_is_none_if_there_is_nothing_to_wait_for(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(buckets=[("api", "acme")])
        await store_user.take()
        assert (await store_user.claim()).next_in is None

    async def test_the_next_instant_is_never_negative(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(3, delay=1)
        await store_user.add(3, delay=1, buckets=[("api", "acme")])
        await store_user.take()
        clock.advance(500)
        claimed = await store_user.claim(1)
        assert claimed.next_in is None or claimed.next_in >= 0

    async def test_an_immediate_job_wakes_a_sleeping_lane(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(100)}
        (delayed,) = await store_user.add(delay=3600, buckets=[("api", "acme")], priority=9)
        await store_user.take()
        (immediate,) = await store_user.add(buckets=[("api", "acme")])
        assert await store_user.take_ids() == [immediate]
        assert (await store_user.claim()).next_in == 3600 * SECOND
        clock.advance(3600)
        assert await store_user.take_ids() == [delayed]

    async def test_a_delayed_job_at_the_head_does_not_hold_up_ready_ones(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(100)}
        for buckets in ((), (("api", "acme"),)):
            await store_user.add(50, delay=60, priority=9, buckets=buckets)
            ready = await store_user.add(3, buckets=buckets)
            assert await store_user.take_ids() == ready

    async def test_sleeping_lanes_that_come_due_together_all_start(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        ids = [(await store_user.add(delay=5, buckets=[("api", str(number))]))[0] for number in range(30)]
        clock.advance(5)
        taken = [id for _ in range(3) for id in await store_user.take_ids(10)]
        assert sorted(taken) == sorted(ids)

    async def test_the_lane_that_was_due_first_starts_first(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        (second,) = await store_user.add(delay=6, buckets=[("api", "second")])
        (first,) = await store_user.add(delay=3, buckets=[("api", "first")])
        clock.advance(4)
        (between,) = await store_user.add(buckets=[("api", "between")])
        # A lane gets its place when a node, of whatever queue, counts what has arrived: each second where nodes run.
        await store_user.take(1, queues=["other"])
        clock.advance(4)
        assert [(await store_user.take_ids(1))[0] for _ in range(3)] == [first, between, second]

    # ---------------------------------------------------------------------------------------- looking

    async def test_pages_of_jobs_cover_each_once_while_others_arrive(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        ids = await store_user.add(23)
        seen: list[str] = []
        before: str | None = None
        while page := await store_user.storage.jobs(JobFilter(cursor=before, count=5)):
            assert len(page) <= 5
            seen += [record.id for record in page]
            before = seen[-1]
            await store_user.add(2)
        assert seen == ids[::-1]

    async def test_jobs_are_found_by_their_attributes(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1), "day": strict(100)}
        store_user.tasks = {"work", "mail"}
        acme = await store_user.add(2, buckets=[("api", "acme"), ("day", "all")])
        globex = await store_user.add(1, buckets=[("api", "globex"), ("day", "acme")])
        mail = await store_user.add(2, task="mail", queue="emails")
        await store_user.take()

        async def found(**options: Any) -> list[str]:
            return [record.id for record in await store_user.storage.jobs(JobFilter(**options))]

        assert await found(queue="emails") == mail[::-1]
        assert await found(task="work") == [*globex, *acme[::-1]]
        assert await found(state=JobState.RUNNING) == [*globex, acme[0]]
        assert await found(state=JobState.WAITING, task="work") == [acme[1]]
        assert await found(limit="api") == [*globex, *acme[::-1]]
        assert await found(limit="api", key="acme") == acme[::-1]
        assert await found(limit="day", key="acme") == globex
        assert await found(key="acme") == [*globex, *acme[::-1]]
        assert await found(limit="api", key="nobody") == []

    async def test_jobs_are_counted_by_queue_and_state(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(4)
        await store_user.add(4, buckets=[("api", "acme")])
        await store_user.add(2, queue="other", delay=60)
        jobs = await store_user.take()
        await store_user.succeed(*jobs[:2])
        await store_user.fail(jobs[2])
        await store_user.storage.cancel(jobs[3].id)
        await store_user.give_back(jobs[3])
        await store_user.give_back(jobs[4])
        counts = await store_user.storage.counts()
        assert list(counts) == [QueueCounts("default", 1, 3, 2, 1, 1), QueueCounts("other", 2, 0, 0, 0, 0)]

    async def test_a_throttled_job_has_what_it_waits_for_and_until_when(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        ids = await store_user.add(4, buckets=[("api", "acme")])
        before = await store_user.record(ids[3])
        assert (before.throttled_until, before.waits_for, before.lane_waiting) == (None, None, 4)
        await store_user.take()
        clock.step_wall(3600)
        clock.advance(10)
        record = await store_user.record(ids[3])
        assert record.throttled_until == clock.now() + 50 * SECOND
        assert (record.waits_for, record.lane_waiting) == (BucketRef("api", "acme"), 3)
        running = await store_user.record(ids[0])
        assert (running.throttled_until, running.waits_for) == (None, None)
        clock.advance(50)
        record = await store_user.record(ids[3])
        assert (record.throttled_until, record.waits_for) == (None, None)

    async def test_buckets_are_listed_with_the_most_waiting_first(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1), "day": strict(1)}
        for key, count in (("few", 2), ("many", 9), ("some", 5)):
            await store_user.add(count, buckets=[("api", key)])
        await store_user.add(buckets=[("day", "many")])
        await store_user.take()
        buckets = await store_user.storage.buckets(limit="api")
        assert [(bucket.ref.key, bucket.waiting) for bucket in buckets] == [("many", 8), ("some", 4), ("few", 1)]
        assert {bucket.opens_at for bucket in buckets} == {store_user.storage.limit_now() + MINUTE}
        (only,) = await store_user.storage.buckets(limit="day")
        assert (only.ref, only.waiting, only.opens_at) == (BucketRef("day", "many"), 0, None)
        assert len(await store_user.storage.buckets(key="many")) == 2
        assert len(await store_user.storage.buckets(count=3)) == 3
        assert list(await store_user.storage.buckets(limit="nobody")) == []

    async def test_a_buckets_state_can_be_read_by_its_rule(self, store_user: StoreUser) -> None:
        rule = strict(5)
        store_user.rules = {"api": rule}
        await store_user.add(3, buckets=[("api", "acme")])
        await store_user.take()
        (bucket,) = await store_user.storage.buckets()
        assert bucket.state is not None
        now = store_user.storage.limit_now()
        snapshot = rule.snapshot(rule.load(bucket.state, now), now)
        assert (snapshot.used, snapshot.available) == (3, 2)

    async def test_only_final_jobs_are_given_as_final(self, store_user: StoreUser) -> None:
        (waiting,) = await store_user.add(queue="other")
        await store_user.add(3)
        running, done, failed = await store_user.take()
        await store_user.succeed(done)
        await store_user.fail(failed)
        asked = [waiting, running.id, done.id, failed.id, "nobody"]
        found = {record.id: record.state for record in await store_user.storage.final(asked)}
        assert found == {done.id: JobState.SUCCEEDED, failed.id: JobState.FAILED}

    # --------------------------------------------------------------------------------------- watching

    async def test_watchers_are_woken_by_each_change(self, store_user: StoreUser, clock: ManualClock) -> None:
        woken = asyncio.Event()
        unwatch = store_user.storage.watch(woken.set)

        async def wakes() -> None:
            await woken.wait()
            woken.clear()

        (id,) = await store_user.add()
        await wakes()
        await store_user.give_back(await store_user.take_one())
        await wakes()
        await store_user.storage.cancel(id)
        await wakes()
        await store_user.storage.retry(id)
        await wakes()
        await store_user.take_one()
        await store_user.storage.leave(store_user.node)
        await wakes()
        await store_user.storage.join(store_user.node, "a")
        await store_user.take_one()
        woken.clear()
        await recover(store_user)
        await wakes()
        unwatch()

    async def test_a_thread_stores_jobs_and_wakes_watchers_or_leaves_them_to_the_loop(
        self, store_user: StoreUser
    ) -> None:
        storage, job = store_user.storage, store_user.new()
        woken = asyncio.Event()
        unwatch = storage.watch(woken.set)
        duplicates = await asyncio.to_thread(storage.add_in_thread, [job])
        stored = await storage.job(job.id)
        if duplicates is None:
            assert stored is None
        else:
            assert duplicates == {}
            assert stored is not None
            assert stored.state is JobState.WAITING
            await woken.wait()
            # To repeat it changes nothing.
            assert await asyncio.to_thread(storage.add_in_thread, [job]) == {}
        unwatch()

    async def test_an_ending_after_which_no_job_can_start_wakes_those_that_wait_for_endings(
        self, store_user: StoreUser
    ) -> None:
        woken: list[str] = []
        store_user.storage.watch(lambda: woken.append("endings"))
        store_user.storage.watch_queues(lambda queues: woken.append("claims"))
        await store_user.add()
        job = await store_user.take_one()
        woken.clear()
        await store_user.succeed(job)
        assert set(woken) == {"endings"}
        await store_user.add()
        job = await store_user.take_one()
        woken.clear()
        await store_user.fail(job)
        assert "endings" in woken

    async def test_a_watch_that_ended_is_not_notified(self, store_user: StoreUser) -> None:
        ended, still = asyncio.Event(), asyncio.Event()
        unwatch = store_user.storage.watch(ended.set)
        store_user.storage.watch(still.set)
        unwatch()
        await store_user.add()
        await still.wait()
        assert not ended.is_set()

    async def test_opening_and_closing_twice_is_fine(self, store_user: StoreUser, storage: Store) -> None:
        await store_user.add()
        await storage.close()
        await storage.close()
        await storage.open()
        assert await store_user.counts() == QueueCounts("default", 1, 0, 0, 0, 0)
