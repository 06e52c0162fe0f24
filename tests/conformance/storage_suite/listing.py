"""What is promised of lists: each filter, alone and together, by pages that miss nothing; counts; nodes."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND, to_datetime
from headgate.errors import IllegalTransition
from headgate.jobs.history import LimitStep
from headgate.jobs.job import BucketRef, JobError, JobState, Origin
from headgate.jobs.lifecycle import Finished
from headgate.jobs.query import JobFilter
from headgate.storage.procedures import listing
from headgate.storage.records import (
    BacklogCounts,
    BucketPlace,
    BucketRecord,
    JobCount,
    LimitBacklog,
    LimitFigures,
    NodeControls,
    ViewCount,
    WaitingCount,
)
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import Conformance, StoreUser, at_once, strict


async def found(store_user: StoreUser, **filter: Any) -> list[str]:
    """What a filter finds, however it is looked at: in both directions, page by page, and counted."""
    ids = [record.id for record in await store_user.storage.jobs(JobFilter(**filter))]
    assert [record.id for record in await store_user.storage.jobs(JobFilter(**filter, oldest_first=True))] == ids[::-1]
    for oldest_first in (False, True):
        paged: list[str] = []
        cursor: str | None = None
        while page := await store_user.storage.jobs(
            JobFilter(**filter, oldest_first=oldest_first, cursor=cursor, count=2)
        ):
            paged += [record.id for record in page]
            cursor = paged[-1]
        assert paged == (ids[::-1] if oldest_first else ids)
    assert await store_user.storage.count_jobs(JobFilter(**filter), 1000) == len(ids)
    assert await store_user.storage.count_jobs(JobFilter(**filter), 1) == min(1, len(ids))
    assert await store_user.storage.bounded_count(JobFilter(**filter), 1000) == JobCount(len(ids), True)
    with mock.patch.multiple(listing, AT_ONCE=2, FEW=1):
        for oldest_first in (False, True):
            asked = JobFilter(**filter, oldest_first=oldest_first, count=2)
            assert await bounded_pages(store_user, asked) == (ids[::-1] if oldest_first else ids)
        counted = await store_user.storage.bounded_count(JobFilter(**filter), 1000)
        assert counted.count == len(ids) if counted.is_exact else counted.count <= len(ids)
    return ids


async def bounded_pages(store_user: StoreUser, filter: JobFilter) -> list[str]:
    """The ids of all pages that read a bounded number of jobs each."""
    ids: list[str] = []
    while True:
        page = await store_user.storage.page(filter)
        ids += [record.id for record in page.items]
        assert len(page.items) <= filter.count
        if page.next is None:
            return ids
        filter = replace(filter, cursor=page.next)


async def bucket_pages(store_user: StoreUser, count: int) -> list[BucketRecord]:
    """All buckets, so many a page."""
    paged: list[BucketRecord] = []
    after: BucketPlace | None = None
    while page := await store_user.storage.buckets(count=count, after=after):
        paged += page
        last = page[-1]
        after = BucketPlace(last.opens_at is not None, last.waiting, last.ref.limit, last.ref.key)
    return paged


class ListingConformance(Conformance):
    async def test_jobs_are_listed_by_state(self, store_user: StoreUser) -> None:
        waiting, running, succeeded, failed, cancelled = [await store_user.add_one(priority=p) for p in (0, 9, 8, 7, 6)]
        _, to_succeed, to_fail = await store_user.take(3)
        await store_user.succeed(to_succeed)
        await store_user.fail(to_fail)
        await store_user.storage.cancel(cancelled)
        for state, id in (
            (JobState.WAITING, waiting),
            (JobState.RUNNING, running),
            (JobState.SUCCEEDED, succeeded),
            (JobState.FAILED, failed),
            (JobState.CANCELLED, cancelled),
        ):
            assert await found(store_user, state=state) == [id]
        assert await found(store_user) == [cancelled, failed, succeeded, running, waiting]

    async def test_waiting_jobs_are_listed_by_what_they_wait_for(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        ready = await store_user.add_one(queue="other")
        first, throttled = await store_user.add(2, buckets=[("api", "acme")])
        delayed_there = await store_user.add_one(buckets=[("api", "acme")], delay=60)
        delayed = await store_user.add_one(delay=30)
        assert await store_user.take_ids() == [first]
        assert await found(store_user, view="ready") == [ready]
        assert await found(store_user, view="throttled") == [throttled]
        assert await found(store_user, view="scheduled") == [delayed, delayed_there]
        assert await found(store_user, view="scheduled", limit="api") == [delayed_there]
        assert await found(store_user, view="blocked") == []
        assert await found(store_user, view="ready", state=JobState.FAILED) == []
        clock.advance(31)
        assert await found(store_user, view="ready") == [delayed, ready]

    async def test_what_waiting_jobs_wait_for_is_counted_by_queue_and_task(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        store_user.tasks = {"work", "other"}
        await store_user.add(3, buckets=[("api", "acme")])
        await store_user.add(2, delay=60)
        await store_user.take()
        await store_user.add(4, task="other")
        await store_user.add(1, queue="mail")
        now = store_user.storage.now()
        assert list(await store_user.storage.waiting()) == [
            WaitingCount("default", "other", "ready", 4, now),
            WaitingCount("default", "work", "scheduled", 2, now + 60 * SECOND),
            WaitingCount("default", "work", "throttled", 2, now),
            WaitingCount("mail", "work", "ready", 1, now),
        ]
        assert sum(each.jobs for each in await store_user.storage.waiting(most=3)) == 3

    async def test_what_waiting_jobs_wait_for_is_counted_by_queue(self, store_user: StoreUser) -> None:
        assert list(await store_user.storage.views()) == []
        store_user.rules = {"api": strict(1)}
        store_user.tasks = {"work", "other"}
        leader = store_user.new(queue="mail")
        await store_user.storage.add([leader, replace(store_user.new(queue="mail"), origin=Origin(follows=leader.id))])
        await store_user.add(3, buckets=[("api", "acme")])
        await store_user.add(1, buckets=[("api", "acme")], delay=90)
        await store_user.add(2, delay=60)
        # Before any claim has looked at what was added, and after.
        assert list(await store_user.storage.views()) == [
            ViewCount("default", "ready", 3),
            ViewCount("default", "scheduled", 3),
            ViewCount("mail", "blocked", 1),
            ViewCount("mail", "ready", 1),
        ]
        await store_user.take()
        await store_user.add(4, task="other")
        assert list(await store_user.storage.views()) == [
            ViewCount("default", "ready", 4),
            ViewCount("default", "scheduled", 3),
            ViewCount("default", "throttled", 2),
            ViewCount("mail", "blocked", 1),
            ViewCount("mail", "ready", 1),
        ]
        store_user.clock.advance(70)
        assert list(await store_user.storage.views()) == [
            ViewCount("default", "ready", 8),
            ViewCount("default", "scheduled", 1),
            ViewCount("mail", "blocked", 1),
            ViewCount("mail", "ready", 1),
        ]

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("queue", "mail"),
            ("task", "send"),
            ("unique_key", "acme"),
            ("schedule", "nightly"),
            ("batch", "batch-1"),
            ("text", '"to":"ada"'),
            ("text", "100%_"),
        ],
    )
    async def test_jobs_are_listed_by_their_attributes(self, store_user: StoreUser, name: str, value: str) -> None:
        await store_user.add(2)
        wanted = {
            "queue": lambda: store_user.new(queue="mail"),
            "task": lambda: store_user.new(task="send"),
            "unique_key": lambda: replace(store_user.new(), unique_key="acme"),
            "schedule": lambda: replace(store_user.new(), origin=Origin(schedule="nightly", occurs_at=5)),
            "batch": lambda: replace(store_user.new(), origin=Origin(batch="batch-1")),
            "text": lambda: store_user.new(payload='{"to":"ada","at":"100%_"}'),
        }[name]()
        other = store_user.new(queue="mai", task="sen", payload='{"to":"bob","at":"1000"}')
        await store_user.storage.add([wanted, other])
        assert await found(store_user, **{name: value}) == [wanted.id]
        assert await found(store_user, **{name: "nothing"}) == []

    async def test_text_is_not_searched_in_encoded_payloads(self, store_user: StoreUser) -> None:
        clear = store_user.new(payload='{"to":"encoded:zlib:YWJj"}')
        await store_user.storage.add([clear, store_user.new(payload="encoded:zlib:YWJj")])
        for text in ("encoded:zlib", "YWJj", "b", ":"):
            assert await found(store_user, text=text) == [clear.id]

    async def test_jobs_are_listed_by_node(self, store_user: StoreUser) -> None:
        await store_user.storage.join("node-b", "b")
        await store_user.add(3)
        mine, theirs = await store_user.take_one(), await store_user.take_one(node="node-b")
        assert await found(store_user, node="node-a") == [mine.id]
        assert await found(store_user, node="node-b", state=JobState.RUNNING) == [theirs.id]
        await store_user.succeed(mine)
        assert await found(store_user, node="node-a", state=JobState.RUNNING) == []

    async def test_a_job_that_waits_again_is_listed_under_the_node_that_ran_it_last(
        self, store_user: StoreUser
    ) -> None:
        id = await store_user.add_one()
        await store_user.retry_later(await store_user.take_one())
        assert (
            await found(store_user, node="node-a")
            == await found(store_user, state=JobState.WAITING, node="node-a")
            == [id]
        )
        assert (await store_user.record(id)).node == "node-a"

    async def test_jobs_are_listed_by_how_the_type_of_their_error_begins(self, store_user: StoreUser) -> None:
        await store_user.add(4)
        jobs = await store_user.take()
        types = ["httpx.ReadTimeout", "httpx.ConnectError", "ValueError"]
        endings = [
            Finished(job.id, job.fence, JobState.FAILED, error=JobError(type=type, message="httpx"))
            for job, type in zip(jobs, types, strict=False)
        ]
        await store_user.storage.finish(store_user.node, endings)
        assert await found(store_user, error="httpx.") == [jobs[1].id, jobs[0].id]
        assert await found(store_user, error="httpx.Read", state=JobState.FAILED) == [jobs[0].id]
        assert await found(store_user, error="ValueError") == [jobs[2].id]
        assert await found(store_user, error="Value_rror") == await found(store_user, error="%") == []

    async def test_jobs_are_listed_by_when_they_were_enqueued_and_finished(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        began = clock.now()
        ids: list[str] = []
        for _ in range(4):
            ids.append(await store_user.add_one())
            clock.advance(1)
        for job in await store_user.take(3):
            await store_user.fail(job)
            clock.advance(1)
        at = [to_datetime(began + second * SECOND) for second in range(8)]
        assert await found(store_user, enqueued_after=at[1], enqueued_before=at[3]) == [ids[2], ids[1]]
        assert await found(store_user, enqueued_before=at[1]) == [ids[0]]
        assert await found(store_user, finished_after=at[5]) == [ids[2], ids[1]]
        assert await found(store_user, finished_after=at[4], finished_before=at[5]) == [ids[0]]
        assert await found(store_user, state=JobState.FAILED, finished_after=at[5]) == [ids[2], ids[1]]
        assert await found(store_user, state=JobState.FAILED, finished_before=at[5]) == [ids[0]]

    async def test_filters_add_up(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(100), "day": strict(100)}
        for queue in ("mail", "default"):
            for key in ("acme", "globex"):
                await store_user.add(1, queue=queue, buckets=[("api", key), ("day", "")], payload=f'"{key}"')
        one = await found(store_user, queue="mail", limit="api", key="acme", text="acme", state=JobState.WAITING)
        assert len(one) == 1
        assert await found(store_user, queue="mail", limit="day", key="acme") == []
        assert len(await found(store_user, limit="day")) == 4

    async def test_a_count_continues_from_its_cursor(self, store_user: StoreUser) -> None:
        ids = await store_user.add(5)
        assert await store_user.storage.count_jobs(JobFilter(cursor=ids[2]), 100) == 2
        assert await store_user.storage.count_jobs(JobFilter(cursor=ids[1], oldest_first=True), 100) == 3

    async def test_pages_continue_from_a_job_that_was_pruned_since(self, store_user: StoreUser) -> None:
        ids = [await store_user.add_one(queue=queue) for queue in ("default", "default", "other", "default", "default")]
        await store_user.storage.cancel(ids[2])
        assert await store_user.storage.prune(store_user.clock.now() + 1) == 1
        for state in (None, JobState.WAITING):
            for oldest_first, left in ((False, [ids[1], ids[0]]), (True, ids[3:])):
                going_on = JobFilter(cursor=ids[2], oldest_first=oldest_first, state=state)
                assert [record.id for record in await store_user.storage.jobs(going_on)] == left
                assert await store_user.storage.count_jobs(going_on, 100) == 2
        # Nothing is left on that side of it.
        await store_user.storage.cancel(ids[0])
        await store_user.storage.cancel(ids[4])
        assert await store_user.storage.prune(store_user.clock.now() + 1) == 2
        assert list(await store_user.storage.jobs(JobFilter(cursor=ids[0]))) == []
        assert list(await store_user.storage.jobs(JobFilter(cursor=ids[4], oldest_first=True))) == []

    async def test_a_node_stores_its_slots_and_version(self, store_user: StoreUser) -> None:
        await store_user.storage.join("node-b", "b", controls=NodeControls({"default": 4, "mail": 1}), version="1.2.3")
        nodes = {node.id: node for node in await store_user.storage.nodes()}
        assert (nodes["node-b"].controls.queues, nodes["node-b"].version) == ({"default": 4, "mail": 1}, "1.2.3")
        assert (nodes["node-a"].controls.queues, nodes["node-a"].version) == ({}, "")

    async def test_a_blocked_job_is_listed_counted_and_not_run_now(self, store_user: StoreUser) -> None:
        leader = store_user.new()
        follower = replace(store_user.new(delay=3600), origin=Origin(follows=leader.id))
        await store_user.storage.add([leader, follower])
        assert await found(store_user, view="blocked") == [follower.id]
        assert await found(store_user, view="ready") == [leader.id]
        assert await found(store_user, view="scheduled") == []
        assert await found(store_user, state=JobState.WAITING) == [follower.id, leader.id]
        assert list(await store_user.storage.waiting()) == [
            WaitingCount("default", "work", "blocked", 1),
            WaitingCount("default", "work", "ready", 1, store_user.storage.now()),
        ]
        with pytest.raises(IllegalTransition, match=r"waits until .* is final"):
            await store_user.storage.run_now(follower.id)

    async def test_jobs_whose_retry_is_exempt_from_a_bucket_are_listed_under_it(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(9), "slot": at_once(9)}
        free = await store_user.add_one(buckets=[("api", "acme")], free_retries=0b1)
        holder = await store_user.add_one(buckets=[("slot", "acme")], hold="until_final")
        both = await store_user.add_one(buckets=[("api", "acme"), ("slot", "acme")], hold="until_final")
        for job in await store_user.take():
            await store_user.retry_later(job)
        for view in (None, "scheduled"):
            asked = {"state": JobState.WAITING, "view": view}
            assert await found(store_user, limit="api", **asked) == [both, free]
            assert await found(store_user, limit="slot", **asked) == [both, holder]
            assert await found(store_user, limit="slot", key="acme", **asked) == [both, holder]
            assert await found(store_user, key="acme", **asked) == [both, holder, free]
            assert await found(store_user, limit="slot", key="globex", **asked) == []

    async def test_waiting_jobs_of_a_key_are_listed_from_lanes_of_each_kind(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1), "day": strict(9), "slot": at_once(1)}
        mine = ("api", "acme")
        ids = [
            await store_user.add_one(buckets=[mine]),
            await store_user.add_one(buckets=[mine]),
            await store_user.add_one(buckets=[mine], queue="mail"),
            await store_user.add_one(buckets=[mine], patience=0, cancels=True),
            await store_user.add_one(buckets=[("day", ""), mine]),
            await store_user.add_one(buckets=[mine, ("slot", "x")], owner="batch:b"),
        ]
        await store_user.add(1, buckets=[("api", "globex"), ("day", "")])
        # Where arrivals are merged, a claim merges them.
        for merged in (False, True):
            left = ids[1:] if merged else ids
            assert await found(store_user, limit="api", key="acme", state=JobState.WAITING) == left[::-1]
            if not merged:
                await store_user.take(1)

    async def test_waiting_jobs_of_a_key_are_listed_by_the_key_for_all_reasons(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        leader = store_user.new()
        follower = replace(store_user.new(buckets=[("api", "acme")]), origin=Origin(follows=leader.id))
        await store_user.storage.add([leader, follower])
        first, second = await store_user.add(2, buckets=[("api", "acme")])
        (delayed,) = await store_user.add(1, buckets=[("api", "acme")], delay=60)
        await store_user.add(1, buckets=[("api", "globex")])
        mine = {"limit": "api", "key": "acme"}
        assert await found(store_user, state=JobState.WAITING, **mine) == [delayed, second, first, follower.id]
        assert await found(store_user, state=JobState.WAITING, key="nobody") == []
        await store_user.take(4)
        assert await found(store_user, state=JobState.WAITING, **mine) == [delayed, second, follower.id]
        assert await found(store_user, view="throttled", **mine) == [second]
        assert await found(store_user, view="scheduled", **mine) == [delayed]
        assert await found(store_user, view="blocked", **mine) == [follower.id]
        assert await found(store_user, view="ready", **mine) == []

    # ---------------------------------------------------------------------------------------- buckets

    async def test_running_jobs_are_counted_with_those_that_wait(self, store_user: StoreUser) -> None:
        await store_user.add(3)
        await store_user.take(2)
        running = [ViewCount("default", "ready", 1), ViewCount("default", "running", 2)]
        assert await store_user.storage.count_unfinished() == BacklogCounts(running, [], [])
        assert list(await store_user.storage.views()) == running[:1]

    async def test_jobs_that_wait_for_limits_are_counted_for_all_keys_and_the_worst_keys_are_named(
        self, store_user: StoreUser
    ) -> None:
        count = store_user.storage.count_unfinished
        assert await count() == BacklogCounts([], [], [])
        store_user.rules = {"api": strict(4), "day": strict(1)}
        for key, jobs in (("a", 6), ("b", 8), ("c", 7), ("d", 4)):
            await store_user.add(jobs, buckets=[("api", key)])
        await store_user.add(5, buckets=[("api", "b")], delay=60)
        await store_user.add(3, buckets=[("day", "a")])
        await store_user.add(2, queue="mail")
        assert {each.view for each in (await count()).views} == {"ready", "scheduled"}
        await store_user.claim()
        await store_user.storage.penalize(BucketRef("api", "a"), store_user.storage.limit_now() + 60 * SECOND)
        found = await count()
        assert found.limits == [LimitBacklog("api", 9, 3), LimitBacklog("day", 2, 1)]
        views = {(each.queue, each.view): each.jobs for each in found.views}
        assert views["default", "throttled"] == 9 + 2
        # What waits for its time is not waiting for the limit, and nothing is counted twice.
        assert views["default", "scheduled"] == 5
        assert sum(views.values()) == 6 + 8 + 7 + 4 + 5 + 3 + 2
        waiting = [each for each in await store_user.storage.views() if each.view != "running"]
        assert [each for each in found.views if each.view != "running"] == waiting
        worst = [(each.bucket.ref, each.bucket.waiting) for each in found.worst]
        assert worst == [
            (BucketRef("api", "b"), 4),
            (BucketRef("api", "c"), 3),
            (BucketRef("api", "a"), 2),
            (BucketRef("day", "a"), 2),
        ]
        stored = {each.ref: each for each in await store_user.storage.buckets()}
        for each in found.worst:
            same = stored[each.bucket.ref]
            assert (each.bucket.state, each.bucket.opens_at) == (same.state, same.opens_at)
            assert each.bucket.closed_until == same.closed_until
        cut = await count(worst=2)
        assert (cut.views, cut.limits) == (found.views, found.limits)
        assert cut.worst == [each for each in found.worst if each.bucket.ref != BucketRef("api", "a")]
        # Once the buckets have opened, only slots are missing.
        store_user.clock.advance(3600)
        opened = await count()
        assert (opened.limits, opened.worst) == ([], [])
        assert {each.view for each in opened.views} == {"ready", "running"}

    async def test_a_key_with_waiting_jobs_says_what_one_of_them_costs(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(5), "tokens": strict(100)}
        buckets = [("api", "a"), ("tokens", "a")]
        await store_user.storage.add([replace(store_user.new(buckets=buckets), costs=(1, 40)) for _ in range(6)])
        await store_user.claim()
        (found,) = (await store_user.storage.count_unfinished()).worst
        assert (found.bucket.ref, found.bucket.waiting, found.cost) == (BucketRef("tokens", "a"), 4, 40)

    async def test_the_keys_of_a_limit_are_counted_and_the_starts_without_it(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1), "day": strict(1)}
        await store_user.add(1, buckets=[("api", "a")])
        await store_user.add(1, buckets=[("api", "b"), ("day", "a")])
        await store_user.take()
        steps = [LimitStep(60, "api", None, at * 60 * SECOND, 0, at) for at in (1, 2, 3)]
        # Before the clock was set back.
        steps.append(LimitStep(60, "api", None, store_user.storage.now() + SECOND, 0, 7))
        await store_user.storage.add_history([], [*steps, LimitStep(60, "api", "a", 180 * SECOND, 5, 0)])
        limits, since = ["unused", "day", "api"], 120 * SECOND
        found = await store_user.storage.limit_figures(limits, step=60, since=since, most=5)
        assert list(found) == [LimitFigures("api", 2, 5), LimitFigures("day", 1, 0), LimitFigures("unused", 0, 0)]
        (cut,) = await store_user.storage.limit_figures(["api"], step=60, since=since, most=1)
        assert cut == LimitFigures("api", 1, 5)

    async def test_jobs_and_keys_are_found_by_how_they_begin(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1), "day": strict(1)}
        for limit, key in (("api", "acme"), ("api", "acme:2"), ("api", "other"), ("day", "acme")):
            await store_user.add(1, buckets=[(limit, key)])
        ids = sorted(record.id for record in await store_user.storage.jobs(JobFilter()))
        await store_user.claim()
        storage = store_user.storage
        assert [job.id for job in await storage.jobs_beginning(ids[0], 5)] == [ids[0]]
        assert [job.id for job in await storage.jobs_beginning(ids[0][:8], 3)] == ids[:0:-1]
        assert await storage.jobs_beginning("ffff", 5) == []
        assert await storage.batch_ids("0", 5) == []
        limits = ["api", "day"]
        both = [BucketRef("api", "acme"), BucketRef("api", "acme:2"), BucketRef("day", "acme")]
        assert list(await storage.keys(limits, "acme", 5)) == both
        assert list(await storage.keys(limits, "acme", 2)) == both[:2]
        assert list(await storage.keys(["day"], "acme", 5)) == both[2:]
        assert list(await storage.keys([], "acme", 5)) == []

    async def test_a_key_for_which_no_job_has_started_is_found(self, store_user: StoreUser) -> None:
        """The fault: while no worker ran, keys of new jobs were found nowhere."""
        store_user.rules = {"api": strict(1), "day": strict(1)}
        storage = store_user.storage
        await store_user.add(1, buckets=[("api", 'ac"me'), ("day", "acme")])
        await store_user.add(1, buckets=[("api", "acme")])
        await store_user.add(1, buckets=[("other", "acme")])
        limits = ["day", "api"]
        found = [BucketRef("day", "acme"), BucketRef("api", 'ac"me'), BucketRef("api", "acme")]
        assert list(await storage.keys(limits, "ac", 5)) == found
        assert list(await storage.keys(limits, "ac", 2)) == found[:2]
        assert list(await storage.keys(limits, 'ac"', 5)) == found[1:2]
        assert list(await storage.keys(limits, "me", 5)) == []
        await store_user.take()
        assert list(await storage.keys(limits, "ac", 5)) == found

    async def test_buckets_are_ranked_by_trouble(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        for key, jobs in (("a", 2), ("b", 4), ("c", 3), ("d", 2), ("idle", 1)):
            await store_user.add(jobs, buckets=[("api", key)])
        await store_user.claim()
        await store_user.storage.penalize(BucketRef("api", "d"), store_user.storage.limit_now() + 60 * SECOND)
        ranked = await store_user.storage.buckets_by_trouble(10)
        assert [(each.ref.key, each.waiting) for each in ranked] == [
            ("d", 1),
            ("b", 3),
            ("c", 2),
            ("a", 1),
            ("idle", 0),
        ]
        assert [each.ref.key for each in await store_user.storage.buckets_by_trouble(2)] == ["d", "b"]
        # Too many to be ranked: those that open first and those that open last.
        with mock.patch.object(listing, "RANKED", 1):
            few = await store_user.storage.buckets_by_trouble(2)
            assert len({each.ref for each in few}) == 2

    async def test_buckets_come_in_pages_that_miss_nothing(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1), "day": strict(1)}
        for key, jobs in (("stripe:a", 3), ("stripe:b", 5), ("str_pe:c", 2), ("paypal", 2), ("x", 1)):
            await store_user.add(jobs, buckets=[("api", key)])
        await store_user.add(2, buckets=[("day", "stripe:a")])
        await store_user.claim()
        every = await store_user.storage.buckets()
        assert [(each.ref.key, each.waiting) for each in every[:2]] == [("stripe:b", 4), ("stripe:a", 2)]
        assert len(every) == 6
        for count in (1, 2, 4):
            assert await bucket_pages(store_user, count) == list(every)
        assert await store_user.storage.is_ranked()
        begins = await store_user.storage.buckets("api", prefix="stripe:")
        assert [each.ref.key for each in begins] == ["stripe:b", "stripe:a"]
        # What would stand for any character in a pattern is one like any other.
        assert [each.ref.key for each in await store_user.storage.buckets(prefix="str_")] == ["str_pe:c"]
        assert len(await store_user.storage.buckets(prefix="")) == 6
        # Too many to be ranked: by name.
        with mock.patch.object(listing, "KEYS_AT_ONCE", 4):
            for count in (1, 4, 6, 10):
                assert await bucket_pages(store_user, count) == sorted(
                    every, key=lambda each: (each.ref.limit, each.ref.key)
                )
            begins = await store_user.storage.buckets("api", prefix="stripe:")
            assert [each.ref.key for each in begins] == ["stripe:a", "stripe:b"]
            assert await store_user.storage.buckets("api", "paypal") == [
                each for each in every if each.ref.key == "paypal"
            ]
            assert not await store_user.storage.is_ranked()
