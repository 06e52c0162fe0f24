"""What is promised when a deploy changes the limits of a task while its jobs wait."""

from __future__ import annotations

import pytest

from headgate.clock import SECOND
from headgate.jobs.job import BucketRef, JobState
from headgate.jobs.limit_sets import KnownLimitSets, LimitSetChange
from headgate.jobs.terms import LimitTerms, PermitTerms
from headgate.limits.kinds import dump_rule
from headgate.storage.records import LIMIT_SET_LIVES
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import Conformance, StoreUser, at_once, release, strict

TASKS = frozenset({"work"})
ACME = BucketRef("api", "acme")
GLOBEX = BucketRef("api", "globex")


class DeploysConformance(Conformance):
    async def test_the_newest_limit_set_of_a_task_has_its_backlog_moved_once(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        # No node has stored a limit set before, but enqueuers may have stored jobs under another one.
        assert await storage.note_limit_sets({"work": "a", "other": "x"}) == {"work": True, "other": True}
        await storage.limit_sets_done({"work": "a", "other": "x"})
        assert await storage.note_limit_sets({"work": "a", "other": "x"}) == {"work": False, "other": False}
        clock.advance(1)
        assert await storage.note_limit_sets({"work": "b", "other": "x"}) == {"work": True, "other": False}
        # Another node of the same release, and one of the release before that starts again.
        assert await storage.note_limit_sets({"work": "b"}) == {"work": True}
        assert await storage.note_limit_sets({"work": "a"}) == {}
        await storage.limit_sets_done({"work": "b"})
        assert await storage.note_limit_sets({"work": "b"}) == {"work": False}
        clock.advance(1)
        assert await storage.note_limit_sets({"work": "c"}) == {"work": True}

    async def test_after_a_rollback_the_older_limit_set_has_the_backlog_moved_back_to_it(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        await storage.note_limit_sets({"work": "a"})
        await storage.limit_sets_done({"work": "a"})
        clock.advance(1)
        assert await storage.note_limit_sets({"work": "b"}) == {"work": True}
        await storage.limit_sets_done({"work": "b"})
        # Nodes with the newer limit set store it repeatedly, until none of them is left.
        for _ in range(10):
            clock.advance(60)
            assert await storage.note_limit_sets({"work": "a"}) == {}
            assert await storage.note_limit_sets({"work": "b"}) == {"work": False}
        clock.advance(LIMIT_SET_LIVES / SECOND - 1)
        assert await storage.note_limit_sets({"work": "a"}) == {}
        clock.advance(1)
        assert await storage.note_limit_sets({"work": "a"}) == {"work": True}
        await storage.limit_sets_done({"work": "a"})
        assert await storage.note_limit_sets({"work": "a"}) == {"work": False}
        # And forward again.
        assert await storage.note_limit_sets({"work": "b"}) == {"work": True}
        assert await storage.note_limit_sets({"work": "a"}) == {}

    async def test_a_release_that_was_rolled_back_half_way_is_moved_back_too(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        await storage.note_limit_sets({"work": "a", "other": "x"})
        await storage.limit_sets_done({"work": "a", "other": "x"})
        clock.advance(1)
        assert await storage.note_limit_sets({"work": "b", "other": "x"}) == {"work": True, "other": False}
        clock.advance(LIMIT_SET_LIVES / SECOND)
        assert await storage.note_limit_sets({"work": "a", "other": "x"}) == {"work": True, "other": False}

    async def test_limit_sets_that_a_clock_which_was_ahead_has_noted_are_not_the_newest_until_its_date(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        clock.step_wall(365 * 86400)
        assert await storage.note_limit_sets({"work": "a"}) == {"work": True}
        clock.advance(1)
        assert await storage.note_limit_sets({"work": "b"}) == {"work": True}
        clock.advance(1)
        await storage.note_limit_sets({"work": "a"})
        clock.step_wall(-365 * 86400)
        # The order is kept, and a newer release is newer.
        assert await storage.note_limit_sets({"work": "a"}) == {}
        assert await storage.note_limit_sets({"work": "c"}) == {"work": True}
        assert await storage.note_limit_sets({"work": "b"}) == {}
        clock.advance(LIMIT_SET_LIVES / SECOND)
        assert await storage.note_limit_sets({"work": "b"}) == {"work": True}

    async def test_the_newest_declaration_of_a_limit_is_in_force_and_opens_what_waits(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        store_user.rules = {"api": strict(1)}
        one, three = ({"limit api": dump_rule(strict(count))} for count in (1, 3))
        assert await storage.note_limit_sets(one) == {"limit api": True}
        ids = await store_user.add(4, buckets=[("api", "acme")])
        assert await store_user.take_ids() == ids[:1]
        clock.advance(1)
        woken: list[bool] = []
        unwatch = storage.watch(lambda: woken.append(True))
        await storage.note_limit_sets(three)
        unwatch()
        assert woken
        # A node of the older release, and one that declares the same again.
        assert await storage.note_limit_sets(one) == {}
        assert await store_user.take_ids() == ids[1:3]
        assert await store_user.take() == []
        # After an hour without a note, it is no longer in force: plain code may have no worker beside it.
        assert [setting.scope for setting in await storage.settings()] == ["declared"]
        clock.advance(3600)
        assert await storage.settings() == []

    async def test_waiting_jobs_of_a_task_are_found_page_by_page(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1), "old": strict(1)}
        first = await store_user.add(3, buckets=[("api", "acme")])
        free = await store_user.add(1)
        second = await store_user.add(2, buckets=[("old", "acme")])
        running = await store_user.take_ids(1)
        waiting = [id for id in sorted(first + free + second) if id not in running]
        found: list[str] = []
        while page := await store_user.storage.gated_jobs(TASKS, after=found[-1] if found else "", count=2):
            assert len(page) <= 2
            found += [job.id for job in page]
        assert found == waiting
        elsewhere = await store_user.add_one(queue="other")
        assert [job.queue for job in await store_user.storage.gated_jobs(TASKS)] == ["default"] * 5 + ["other"]
        await store_user.storage.cancel(elsewhere)
        assert await store_user.storage.gated_jobs(frozenset({"other"})) == []
        unknown = await store_user.storage.gated_jobs(TASKS, unknown_to=frozenset({"api"}))
        assert {job.id for job in unknown} == set(second) - set(running)
        assert list(await store_user.storage.gated_jobs(TASKS, unknown_to=frozenset({"api", "old"}))) == []

    async def test_moved_jobs_use_the_current_limits_of_their_task(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(2)}
        ids = await store_user.add(6, buckets=[("api", "acme")])
        assert await store_user.take_ids() == ids[:2]
        moves = [LimitSetChange(id, (ACME,), (GLOBEX,), None, None) for id in ids]
        # Two run by now, and stay what they were.
        assert await store_user.storage.change_limit_sets(moves) == 4
        assert await store_user.take_ids() == ids[2:4]
        assert await store_user.storage.change_limit_sets(moves) == 0
        clock.advance(60)
        assert await store_user.take_ids() == ids[4:]
        assert len(await store_user.storage.starts("api", "globex", 0)) == 4

    async def test_a_moved_job_holds_and_is_charged_for_its_new_buckets(self, store_user: StoreUser) -> None:
        store_user.rules = {"one": at_once(), "api": strict(5)}
        permits = await store_user.add(3)
        costly = await store_user.add(3)
        terms = LimitTerms(holds=(PermitTerms(),))
        moves = [LimitSetChange(id, (), (BucketRef("one", ""),), None, terms) for id in permits]
        assert (
            await store_user.storage.change_limit_sets(
                [*moves, *(LimitSetChange(id, (), (ACME,), (2,), None) for id in costly)]
            )
            == 6
        )
        taken = await store_user.take()
        assert sorted(job.id for job in taken) == sorted([permits[0], *costly[:2]])
        assert await store_user.permits("one") == {permits[0]: 1}
        await store_user.succeed(*taken)
        assert await store_user.take_ids() == permits[1:2]

    async def test_jobs_of_an_unknown_limit_can_be_moved_to_no_limit(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(2)}
        (id,) = await store_user.add(1, buckets=[("gone", "acme")])
        assert await store_user.take() == []
        assert (
            await store_user.storage.change_limit_sets(
                [LimitSetChange(id, (BucketRef("gone", "acme"),), (), None, None)]
            )
            == 1
        )
        assert await store_user.take_ids() == [id]

    async def test_a_moved_job_keeps_the_permits_it_still_needs_and_returns_the_others(
        self, store_user: StoreUser
    ) -> None:
        store_user.rules = {"one": at_once(), "two": at_once(), "api": strict(100)}
        (id,) = await store_user.add(1, buckets=[("one", ""), ("two", "")], hold="until_final")
        await store_user.retry_later(await store_user.take_one(), 0)
        (waits_for_two,) = await store_user.add(1, buckets=[("two", "")])
        assert await store_user.permits("two") == {id: 1}
        terms = LimitTerms(holds=(None, PermitTerms("until_final")))
        before = (BucketRef("one", ""), BucketRef("two", ""))
        assert (
            await store_user.storage.change_limit_sets(
                [LimitSetChange(id, before, (ACME, BucketRef("one", "")), None, terms)]
            )
            == 1
        )
        assert await store_user.permits("one") == {id: 1}
        assert sorted(await store_user.take_ids()) == sorted([id, waits_for_two])
        await store_user.storage.cancel(id)
        assert (await store_user.record(id)).state is JobState.RUNNING

    @pytest.mark.parametrize("is_tried", [False, True])
    async def test_a_moved_job_waits_as_long_as_its_new_limits_let_it(
        self, store_user: StoreUser, clock: ManualClock, is_tried: bool
    ) -> None:
        """The fault: without its max_wait it still failed at the end of that, as expired; a new one had no effect."""
        store_user.rules = {"api": strict(1, per=3600), "old": strict(100)}
        await store_user.add(buckets=[("api", "acme")])
        await store_user.take()
        ids = [await store_user.add_one(buckets=[("old", "acme")], patience=each) for each in (20, 20, None)]
        if is_tried:
            for job in await store_user.take():
                await store_user.retry_later(job, 0)
        clock.advance(15)
        terms = [None, LimitTerms(patience=30 * SECOND), LimitTerms(patience=30 * SECOND)]
        before = (BucketRef("old", "acme"),)
        moves = [LimitSetChange(id, before, (ACME,), None, each) for id, each in zip(ids, terms, strict=True)]
        assert await store_user.storage.change_limit_sets(moves) == 3
        clock.advance(14)
        assert list(await store_user.storage.expire()) == []
        clock.advance(1)
        assert [dropped.id for dropped in await store_user.storage.expire()] == [ids[1]]
        clock.advance(14)
        assert list(await store_user.storage.expire()) == []
        # It had none before, so it counts from the move.
        clock.advance(1)
        assert [dropped.id for dropped in await store_user.storage.expire()] == [ids[2]]
        clock.advance(3000)
        assert list(await store_user.storage.expire()) == []
        assert (await store_user.record(ids[0])).state is JobState.WAITING

    async def test_a_moved_job_leaves_its_old_starts_behind(self, store_user: StoreUser, clock: ManualClock) -> None:
        """They were charged to another limit: this one would have more recorded starts than it allows."""
        store_user.rules = {"api": strict(1), "old": strict(5)}
        id = await store_user.add_one(buckets=[("old", "acme")])
        await store_user.retry_later(await store_user.take_one())
        assert len(await store_user.storage.starts("old", None, 0)) == 1
        before = (BucketRef("old", "acme"),)
        assert await store_user.storage.change_limit_sets([LimitSetChange(id, before, (ACME,), None, None)]) == 1
        assert list(await store_user.storage.starts("api", None, 0)) == []
        clock.advance(60)
        await store_user.take_one()
        assert len(await store_user.storage.starts("api", None, 0)) == 1

    async def test_a_job_that_is_moved_for_its_costs_leaves_its_old_starts_behind(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(10)}
        id = await store_user.add_one(buckets=[("api", "acme")], costs=(2,))
        await store_user.retry_later(await store_user.take_one())
        assert (
            await store_user.storage.change_limit_sets(
                [LimitSetChange(id, (ACME,), (ACME,), (2,), LimitTerms(patience=5))]
            )
            == 1
        )
        assert [start.cost for start in await store_user.storage.starts("api", None, 0)] == [2], "they are as they were"
        assert (
            await store_user.storage.change_limit_sets(
                [LimitSetChange(id, (ACME,), (ACME,), (3,), LimitTerms(patience=5))]
            )
            == 1
        )
        assert list(await store_user.storage.starts("api", None, 0)) == []

    @pytest.mark.parametrize("buckets", [[], [("api", "acme")]])
    @pytest.mark.parametrize("delay", [None, 1])
    async def test_a_job_is_started_only_by_a_node_that_has_its_limit_set(
        self, store_user: StoreUser, clock: ManualClock, buckets: list[tuple[str, str]], delay: float | None
    ) -> None:
        store_user.rules = {"api": strict(100)}
        old = await store_user.add(3, buckets=buckets, delay=delay, limit_set="a")
        new = await store_user.add(2, buckets=buckets, delay=delay, limit_set="b")
        clock.advance(2)
        claimed = await store_user.claim(limit_sets={"work": "b"})
        assert sorted(job.id for job in claimed.jobs) == new
        assert sorted(claimed.limit_set_mismatches) == old
        assert list(claimed.unknown) == []
        assert [job.id for job in (await store_user.claim(limit_sets={"work": "b"})).jobs] == []
        assert sorted(job.id for job in (await store_user.claim(limit_sets={"work": "a"})).jobs) == old

    @pytest.mark.parametrize("buckets", [[], [("api", "acme")]])
    async def test_jobs_of_another_limit_set_block_none_behind_them(
        self, store_user: StoreUser, buckets: list[tuple[str, str]]
    ) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(30, buckets=buckets, limit_set="a", priority=5)
        new = await store_user.add(3, buckets=buckets, limit_set="b")
        assert await store_user.take_ids(4, limit_sets={"work": "b"}) == new

    @pytest.mark.parametrize("buckets", [[], [("api", "acme")]])
    async def test_no_job_starts_under_a_limit_set_that_a_newer_one_has_superseded(
        self, store_user: StoreUser, clock: ManualClock, buckets: list[tuple[str, str]]
    ) -> None:
        store_user.rules, store_user.tasks = {"api": strict(100)}, {"work", "other"}
        older, newer = {"work": "a", "other": "x"}, {"work": "b", "other": "x"}
        old = await store_user.add(2, buckets=buckets, limit_set="a")
        other = await store_user.add_one(buckets=buckets, limit_set="x", task="other")
        await store_user.storage.note_limit_sets(release(older).subjects)
        assert await store_user.take_ids(1, limit_sets=older) == old[:1]
        clock.advance(1)
        await store_user.storage.note_limit_sets(release(newer).subjects)
        claimed = await store_user.claim(limit_sets=older)
        assert [job.id for job in claimed.jobs] == [other]
        # They are the newer release's to move.
        assert list(claimed.limit_set_mismatches) == []
        assert list((await store_user.claim(limit_sets=newer)).limit_set_mismatches) == old[1:]
        # An old worker that starts again does not restore it; a rollback does, once no node has the newer one.
        await store_user.storage.note_limit_sets(release(older).subjects)
        assert await store_user.take_ids(limit_sets=older) == []
        clock.advance(LIMIT_SET_LIVES / SECOND)
        await store_user.storage.note_limit_sets(release(older).subjects)
        assert await store_user.take_ids(limit_sets=older) == old[1:]

    async def test_a_job_that_is_moved_to_another_limit_set_keeps_its_place_and_priority(
        self, store_user: StoreUser
    ) -> None:
        store_user.rules = {"api": strict(100)}
        ids = [await store_user.add_one(limit_set="a", priority=priority) for priority in (0, 5, 0)]
        assert sorted((await store_user.claim(limit_sets={"work": "b"})).limit_set_mismatches) == sorted(ids)
        moves = [LimitSetChange(id, (), (ACME,), None, None, "b") for id in ids]
        assert await store_user.storage.change_limit_sets(moves) == 3
        late = await store_user.add_one(buckets=[("api", "acme")], limit_set="b")
        assert await store_user.take_ids(limit_sets={"work": "b"}) == [ids[1], ids[0], ids[2], late]

    @pytest.mark.parametrize("buckets", [[], [("api", "acme")]])
    async def test_a_job_with_the_same_buckets_under_another_limit_set_stays_in_its_lane(
        self, store_user: StoreUser, buckets: list[tuple[str, str]]
    ) -> None:
        store_user.rules = {"api": strict(100)}
        ids = await store_user.add(3, buckets=buckets, limit_set="a")
        used = tuple(BucketRef(*ref) for ref in buckets)
        assert await store_user.take_ids(limit_sets={"work": "b"}) == []
        moves = [LimitSetChange(id, used, used, None, None, "b", stays=True) for id in ids]
        assert await store_user.storage.change_limit_sets(moves[:2]) == 2
        assert await store_user.take_ids(limit_sets={"work": "b"}) == ids[:2]
        # Those that run by now are what they are.
        assert await store_user.storage.change_limit_sets(moves[:2]) == 0
        assert await store_user.take_ids(limit_sets={"work": "a"}) == ids[2:]

    async def test_a_job_keeps_its_limit_set_when_it_is_tried_again(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        id = await store_user.add_one(limit_set="a")
        (job,) = (await store_user.claim(limit_sets={"work": "a"})).jobs
        await store_user.retry_later(job, 1)
        clock.advance(2)
        assert await store_user.take_ids(limit_sets={"work": "b"}) == []
        assert [gated.limit_set for gated in await store_user.storage.gated_jobs(TASKS)] == ["a"]
        assert await store_user.take_ids(limit_sets={"work": "a"}) == [id]

    async def test_waiting_jobs_are_found_by_their_limit_sets_and_ids(self, store_user: StoreUser) -> None:
        ids = await store_user.add(3, limit_set="a")
        other = await store_user.add_one(task="other", limit_set="a")
        new = await store_user.add_one(limit_set="b")
        assert [
            job.id for job in await store_user.storage.gated_jobs(TASKS, other_than=KnownLimitSets(["b", "c"]))
        ] == ids
        assert [job.id for job in await store_user.storage.gated_jobs(TASKS, other_than=KnownLimitSets(["a"]))] == [new]
        found = await store_user.storage.gated_jobs_by_id(TASKS, [ids[2], ids[0], other, "gone"])
        assert [(job.id, job.limit_set) for job in found] == [(ids[0], "a"), (ids[2], "a")]
        await store_user.storage.cancel(ids[0])
        assert [job.id for job in await store_user.storage.gated_jobs_by_id(TASKS, ids)] == ids[1:]

    @pytest.mark.parametrize("delay", [0, 60])
    async def test_a_job_that_was_tried_before_gets_a_new_limit_set(
        self, store_user: StoreUser, clock: ManualClock, delay: int
    ) -> None:
        """The fault: it kept that of the release before, and no worker started it again."""
        id = await store_user.add_one(limit_set="a")
        (job,) = (await store_user.claim(limit_sets={"work": "a"})).jobs
        move = LimitSetChange(id, (), (), None, None, "b", stays=True)
        assert await store_user.storage.gated_jobs_by_id(TASKS, [id]) == []
        assert await store_user.storage.change_limit_sets([move]) == 0
        await store_user.retry_later(job, delay)
        assert [gated.limit_set for gated in await store_user.storage.gated_jobs_by_id(TASKS, [id])] == ["a"]
        assert await store_user.storage.change_limit_sets([move]) == 1
        clock.advance(delay + 1)
        assert await store_user.take_ids(limit_sets={"work": "b"}) == [id]

    async def test_a_claim_returns_whether_it_skipped_lanes_of_unknown_limits(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(1, buckets=[("api", "acme")])
        assert not (await store_user.claim()).has_unknown_lanes
        ids = await store_user.add(2, buckets=[("gone", "acme")])
        assert (await store_user.claim()).has_unknown_lanes
        (first,) = await store_user.storage.jobs_of_other_limits(frozenset({"api"}))
        assert (first.id, first.task, first.buckets) == (ids[0], "work", (BucketRef("gone", "acme"),))
