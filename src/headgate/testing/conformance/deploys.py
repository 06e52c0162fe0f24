"""What is promised when a deploy changes the limits of a task while its jobs wait."""

from __future__ import annotations

from headgate.clock import SECOND
from headgate.jobs.gating import Regated
from headgate.jobs.job import Draw, JobState
from headgate.jobs.terms import GateTerms, Holding
from headgate.storage.protocol import GATE_LIVES
from headgate.testing.conformance.hands import Conformance, Hands, at_once, strict
from headgate.testing.manual_clock import ManualClock

TASKS = frozenset({"work"})
ACME = Draw("api", "acme")
GLOBEX = Draw("api", "globex")


class DeploysConformance(Conformance):
    async def test_the_newest_gate_of_a_task_has_its_backlog_moved_once(self, hands: Hands, clock: ManualClock) -> None:
        storage = hands.storage
        # Before the first one there was no other.
        assert await storage.note_gates({"work": "a", "other": "x"}) == {"work": False, "other": False}
        clock.advance(1)
        assert await storage.note_gates({"work": "b", "other": "x"}) == {"work": True, "other": False}
        # Another node of the same release, and one of the release before that starts again.
        assert await storage.note_gates({"work": "b"}) == {"work": True}
        assert await storage.note_gates({"work": "a"}) == {}
        await storage.gates_done({"work": "b"})
        assert await storage.note_gates({"work": "b"}) == {"work": False}
        clock.advance(1)
        assert await storage.note_gates({"work": "c"}) == {"work": True}

    async def test_after_a_rollback_the_older_gate_has_the_backlog_moved_back_to_it(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        storage = hands.storage
        await storage.note_gates({"work": "a"})
        clock.advance(1)
        assert await storage.note_gates({"work": "b"}) == {"work": True}
        await storage.gates_done({"work": "b"})
        # Whoever has the newer one says so again and again, until none of them is left.
        for _ in range(10):
            clock.advance(60)
            assert await storage.note_gates({"work": "a"}) == {}
            assert await storage.note_gates({"work": "b"}) == {"work": False}
        clock.advance(GATE_LIVES / SECOND - 1)
        assert await storage.note_gates({"work": "a"}) == {}
        clock.advance(1)
        assert await storage.note_gates({"work": "a"}) == {"work": True}
        await storage.gates_done({"work": "a"})
        assert await storage.note_gates({"work": "a"}) == {"work": False}
        # And forward again.
        assert await storage.note_gates({"work": "b"}) == {"work": True}
        assert await storage.note_gates({"work": "a"}) == {}

    async def test_a_release_that_was_rolled_back_half_way_is_moved_back_too(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        storage = hands.storage
        await storage.note_gates({"work": "a", "other": "x"})
        clock.advance(1)
        assert await storage.note_gates({"work": "b", "other": "x"}) == {"work": True, "other": False}
        clock.advance(GATE_LIVES / SECOND)
        assert await storage.note_gates({"work": "a", "other": "x"}) == {"work": True, "other": False}

    async def test_waiting_jobs_of_a_task_are_found_page_by_page(self, hands: Hands) -> None:
        hands.rules = {"api": strict(1), "old": strict(1)}
        first = await hands.add(3, draws=[("api", "acme")])
        free = await hands.add(1)
        second = await hands.add(2, draws=[("old", "acme")])
        running = await hands.take_ids(1)
        waiting = [id for id in sorted(first + free + second) if id not in running]
        found: list[str] = []
        while page := await hands.storage.gated_jobs(TASKS, after=found[-1] if found else "", count=2):
            assert len(page) <= 2
            found += [job.id for job in page]
        assert found == waiting
        elsewhere = await hands.add_one(queue="other")
        assert [job.queue for job in await hands.storage.gated_jobs(TASKS)] == ["default"] * 5 + ["other"]
        await hands.storage.cancel(elsewhere)
        assert await hands.storage.gated_jobs(frozenset({"other"})) == []
        unknown = await hands.storage.gated_jobs(TASKS, unknown_to=frozenset({"api"}))
        assert {job.id for job in unknown} == set(second) - set(running)
        assert list(await hands.storage.gated_jobs(TASKS, unknown_to=frozenset({"api", "old"}))) == []

    async def test_moved_jobs_draw_on_what_their_task_asks_for_now(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(2)}
        ids = await hands.add(6, draws=[("api", "acme")])
        assert await hands.take_ids() == ids[:2]
        moves = [Regated(id, (ACME,), (GLOBEX,), None, None) for id in ids]
        # Two run by now, and stay what they were.
        assert await hands.storage.regate(moves) == 4
        assert await hands.take_ids() == ids[2:4]
        assert await hands.storage.regate(moves) == 0
        clock.advance(60)
        assert await hands.take_ids() == ids[4:]
        assert len(await hands.storage.starts("api", "globex", 0)) == 4

    async def test_a_moved_job_holds_and_pays_what_it_asks_for_now(self, hands: Hands) -> None:
        hands.rules = {"one": at_once(), "api": strict(5)}
        permits = await hands.add(3)
        costly = await hands.add(3)
        terms = GateTerms(holds=(Holding(),))
        moves = [Regated(id, (), (Draw("one", ""),), None, terms) for id in permits]
        assert await hands.storage.regate([*moves, *(Regated(id, (), (ACME,), (2,), None) for id in costly)]) == 6
        taken = await hands.take()
        assert sorted(job.id for job in taken) == sorted([permits[0], *costly[:2]])
        assert await hands.permits("one") == {permits[0]: 1}
        await hands.succeed(*taken)
        assert await hands.take_ids() == permits[1:2]

    async def test_jobs_of_a_limit_that_nobody_knows_any_more_can_be_moved_to_none(self, hands: Hands) -> None:
        hands.rules = {"api": strict(2)}
        (id,) = await hands.add(1, draws=[("gone", "acme")])
        assert await hands.take() == []
        assert await hands.storage.regate([Regated(id, (Draw("gone", "acme"),), (), None, None)]) == 1
        assert await hands.take_ids() == [id]

    async def test_a_moved_job_keeps_the_permits_it_asks_for_and_gives_back_the_others(self, hands: Hands) -> None:
        hands.rules = {"one": at_once(), "two": at_once(), "api": strict(100)}
        (id,) = await hands.add(1, draws=[("one", ""), ("two", "")], hold="until_final")
        await hands.retry_later(await hands.take_one(), 0)
        (waits_for_two,) = await hands.add(1, draws=[("two", "")])
        assert await hands.permits("two") == {id: 1}
        terms = GateTerms(holds=(None, Holding("until_final")))
        before = (Draw("one", ""), Draw("two", ""))
        assert await hands.storage.regate([Regated(id, before, (ACME, Draw("one", "")), None, terms)]) == 1
        assert await hands.permits("one") == {id: 1}
        assert sorted(await hands.take_ids()) == sorted([id, waits_for_two])
        await hands.storage.cancel(id)
        assert (await hands.record(id)).state is JobState.RUNNING

    async def test_a_moved_job_leaves_its_old_starts_behind(self, hands: Hands, clock: ManualClock) -> None:
        """They were charged to another limit, and would tell of more starts of this one than it allows."""
        hands.rules = {"api": strict(1), "old": strict(5)}
        id = await hands.add_one(draws=[("old", "acme")])
        await hands.retry_later(await hands.take_one())
        assert len(await hands.storage.starts("old", None, 0)) == 1
        before = (Draw("old", "acme"),)
        assert await hands.storage.regate([Regated(id, before, (ACME,), None, None)]) == 1
        assert list(await hands.storage.starts("api", None, 0)) == []
        clock.advance(60)
        await hands.take_one()
        assert len(await hands.storage.starts("api", None, 0)) == 1

    async def test_a_job_that_is_moved_for_its_costs_leaves_its_old_starts_behind(self, hands: Hands) -> None:
        hands.rules = {"api": strict(10)}
        id = await hands.add_one(draws=[("api", "acme")], costs=(2,))
        await hands.retry_later(await hands.take_one())
        assert await hands.storage.regate([Regated(id, (ACME,), (ACME,), (2,), GateTerms(patience=5))]) == 1
        assert [start.cost for start in await hands.storage.starts("api", None, 0)] == [2], "they are as they were"
        assert await hands.storage.regate([Regated(id, (ACME,), (ACME,), (3,), GateTerms(patience=5))]) == 1
        assert list(await hands.storage.starts("api", None, 0)) == []
