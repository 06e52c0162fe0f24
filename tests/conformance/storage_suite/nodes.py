"""What is promised of nodes: whose the running jobs are, and what becomes of those of a dead one."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.errors import DeclarationError
from headgate.jobs.audit import AuditFilter, AuditRecord
from headgate.jobs.job import JobState
from headgate.jobs.lifecycle import POISONOUS_AFTER, Finished
from headgate.storage.endings import poison_error
from headgate.storage.procedures import alerts
from headgate.storage.procedures.alerts import KEPT_FOR
from headgate.storage.records import NodeControls
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import (
    Conformance,
    StoreUser,
    beat_of,
    recover,
    strict,
)


class NodesConformance(Conformance):
    async def test_a_heartbeat_returns_the_live_nodes_and_the_jobs_of_the_node(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        await store_user.storage.join("node-b", "b")
        await store_user.add(3)
        jobs = await store_user.take(2)
        first = await store_user.storage.beat(store_user.node)
        assert first.known
        assert first.owned == {job.id: job.fence for job in jobs}
        assert first.cancels == frozenset()
        nodes = {node.id: node for node in await store_user.storage.nodes()}
        assert {id: (node.name, node.running) for id, node in nodes.items()} == {"node-a": ("a", 2), "node-b": ("b", 0)}
        clock.advance(5)
        await store_user.storage.beat(store_user.node)
        second = {node.id: node for node in await store_user.storage.nodes()}
        assert second["node-a"].beat > nodes["node-a"].beat
        assert second["node-a"].beat_at == clock.now()
        assert second["node-b"].beat == nodes["node-b"].beat
        peers = (await store_user.storage.node_update()).peers
        assert {peer.id: (peer.beat, peer.is_gone) for peer in peers} == {
            node.id: (node.beat, node.is_gone) for node in second.values()
        }

    async def test_a_deploy_is_the_first_node_of_another_release(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        await storage.join("plain", "plain")
        assert not await storage.deploys(0)
        seen: list[tuple[int, str]] = []
        for node, release, is_deploy in (
            ("one", "a", True),
            ("two", "a", False),
            ("three", "b", True),
            ("four", "a", False),  # It restarts while "one" and "two" run.
            ("five", "b", False),
        ):
            clock.advance(1)
            if is_deploy:
                seen.append((clock.now(), release))
            await storage.join(node, node, release=release)
        assert [(each.at, each.release) for each in await storage.deploys(0)] == seen
        for node in ("one", "two", "four"):
            await storage.leave(node)
        clock.advance(1)
        await storage.join("six", "six", release="a")
        assert [each.release for each in await storage.deploys(0)] == ["a", "b", "a"], "a rollback is one"
        assert [each.release for each in await storage.deploys(seen[1][0] + 1)] == ["a"]
        assert [each.release for each in await storage.deploys(0, 2)] == ["b", "a"]
        clock.advance(401 * 86_400)
        await storage.join("seven", "seven", release="d")
        assert [each.release for each in await storage.deploys(0)] == ["d"], "old ones are deleted"

    async def test_a_heartbeat_stores_the_lingering_jobs(self, store_user: StoreUser) -> None:
        await store_user.storage.beat(store_user.node)
        assert [node.lingering for node in await store_user.storage.nodes()] == [()]
        await store_user.storage.beat(store_user.node, lingering=["job-a", "job-b"])
        assert [node.lingering for node in await store_user.storage.nodes()] == [("job-a", "job-b")]
        await store_user.storage.beat(store_user.node)
        assert [node.lingering for node in await store_user.storage.nodes()] == [()]

    async def test_a_node_reads_what_it_is_set_to_do_and_others_see_it(self, store_user: StoreUser) -> None:
        storage = store_user.storage
        controls = NodeControls({"default": 4, "mail": 1}, slots=3, is_quiet=True)
        await storage.join("node-b", "b", controls=controls, labels=["gpu", "eu"])
        assert (await storage.node_update("node-b")).controls == controls
        assert (await storage.node_update(store_user.node)).controls == NodeControls({})
        assert (await storage.node_update("stranger")).controls is None
        seen = {node.id: (node.controls, node.labels) for node in await storage.nodes()}
        assert seen == {"node-b": (controls, ("gpu", "eu")), store_user.node: (NodeControls({}), ())}

    async def test_a_change_of_a_node_is_stored_once_with_its_audit_record(self, store_user: StoreUser) -> None:
        storage, node = store_user.storage, store_user.node
        for changed in (True, False):
            record = AuditRecord("ada@here", "quiet", "node", "a")
            assert await storage.set_node(node, lambda it: replace(it, is_quiet=True), audit_record=record) is changed
        assert await storage.set_node(node, lambda it: replace(it, queues={"default": 7}, slots=2, is_stopping=True))
        becomes = NodeControls({"default": 7}, slots=2, is_quiet=True, is_stopping=True)
        assert (await storage.node_update(node)).controls == becomes
        assert [each.controls for each in await storage.nodes()] == [becomes]
        entries = await storage.audit_log(AuditFilter(kind="node"))
        assert [(each.actor, each.action, each.subject) for each in entries] == [("ada@here", "quiet", "a")]
        # Neither a heartbeat nor another join changes it.
        await storage.beat(node)
        await storage.join(node, "a", controls=NodeControls({"default": 1}))
        assert (await storage.node_update(node)).controls == becomes

    async def test_a_node_that_is_renamed_reads_its_name_and_keeps_its_setting(self, store_user: StoreUser) -> None:
        storage, node = store_user.storage, store_user.node
        await storage.join("node-b", "b", controls=NodeControls({"mail": 2}))
        for changed in (True, False):
            record = AuditRecord("ada@here", "rename", "node", "b", "mail-1")
            assert await storage.rename_node("node-b", "mail-1", audit_record=record) is changed
        assert (await storage.node_update("node-b")).name == "mail-1"
        assert (await storage.node_update(node)).name != "mail-1"
        assert (await storage.node_update("stranger")).name is None
        assert {each.id: each.name for each in await storage.nodes()}["node-b"] == "mail-1"
        assert (await storage.node_update("node-b")).controls == NodeControls({"mail": 2})
        await storage.leave("node-b")
        assert await storage.rename_node("node-b", "x", audit_record=record) is None
        entries = await storage.audit_log(AuditFilter(kind="node"))
        assert [(each.action, each.subject, each.detail) for each in entries] == [("rename", "b", "mail-1")]

    async def test_changes_of_a_node_at_the_same_time_are_all_kept(self, store_user: StoreUser) -> None:
        async def add(queue: str) -> None:
            await store_user.storage.set_node(
                store_user.node, lambda it: replace(it, queues={**it.queues, queue: len(it.queues) + 1})
            )

        await asyncio.gather(*(add(f"queue-{number}") for number in range(8)))
        controls = (await store_user.storage.node_update(store_user.node)).controls
        assert controls is not None
        assert sorted(controls.queues.values()) == list(range(1, 9))

    async def test_a_change_that_is_refused_changes_nothing(self, store_user: StoreUser) -> None:
        def refuse(controls: NodeControls) -> NodeControls:
            raise DeclarationError("no")

        with pytest.raises(DeclarationError, match="no"):
            await store_user.storage.set_node(
                store_user.node, refuse, audit_record=AuditRecord("ada@here", "quiet", "node", "a")
            )
        assert (await store_user.storage.node_update(store_user.node)).controls == NodeControls({})
        assert list(await store_user.storage.audit_log(AuditFilter())) == []

    async def test_a_node_that_is_not_there_cannot_be_changed(self, store_user: StoreUser) -> None:
        record = AuditRecord("ada@here", "stop", "node", "b")
        await store_user.storage.join("node-b", "b")
        await store_user.storage.leave("node-b")
        for node in ("stranger", "node-b"):
            edited = await store_user.storage.set_node(
                node, lambda it: replace(it, is_stopping=True), audit_record=record
            )
            assert edited is None
        assert list(await store_user.storage.audit_log(AuditFilter())) == []

    async def test_a_heartbeat_stores_that_the_node_is_stopping(self, store_user: StoreUser) -> None:
        storage, node = store_user.storage, store_user.node
        await storage.beat(node)
        assert (await storage.node_update(node)).controls == NodeControls({})
        await storage.beat(node, is_stopping=True)
        assert (await storage.node_update(node)).controls == NodeControls({}, is_stopping=True)
        # A heartbeat that was on its way does not take it back.
        await storage.beat(node)
        assert (await storage.node_update(node)).controls == NodeControls({}, is_stopping=True)

    async def test_a_node_declares_its_tasks_until_it_stops_leaves_or_is_recovered(self, store_user: StoreUser) -> None:
        storage = store_user.storage
        await storage.leave(store_user.node)
        assert await storage.declared_subjects() == frozenset()
        both, mail = NodeControls({"default": 2, "mail": 1}), NodeControls({"mail": 1})
        for name, controls in (("a", both), ("b", both), ("c", mail)):
            await storage.join(f"node-{name}", name, controls=controls, tasks={"default": ["call"], "mail": ["send"]})
        assert await storage.declared_subjects() == {"call@default", "send@mail"}
        # What a program declares later, as in an interactive session; other heartbeats keep it.
        await storage.beat("node-c", tasks={"default": ["call"], "mail": ["send", "sort"]})
        await storage.beat("node-c")
        assert await storage.declared_subjects() == {"call@default", "send@mail", "sort@mail"}
        await storage.beat("node-a", is_stopping=True)
        await storage.set_node("node-b", lambda controls: replace(controls, queues={"default": 0, "mail": 1}))
        assert await storage.declared_subjects() == {"send@mail", "sort@mail"}
        await storage.leave("node-c")
        assert await storage.declared_subjects() == {"send@mail"}
        await storage.recover("node-b", await beat_of(store_user, "node-b"))
        assert await storage.declared_subjects() == frozenset()

    async def test_a_task_runs_elsewhere_on_a_node_that_declares_it_has_its_labels_and_claims(
        self, store_user: StoreUser
    ) -> None:
        storage, none = store_user.storage, frozenset[str]()
        tasks, controls = {"default": ["call"], "mail": ["send"]}, NodeControls({"default": 2, "mail": 0})
        await storage.leave(store_user.node)
        for name, labels in (("a", []), ("b", ["gpu"])):
            await storage.join(f"node-{name}", name, controls=controls, labels=labels, tasks=tasks)
        assert await storage.runs_elsewhere("node-a", "call", "default", frozenset({"gpu"}))
        assert not await storage.runs_elsewhere("node-b", "call", "default", frozenset({"gpu"}))
        assert await storage.runs_elsewhere("node-b", "call", "default", none)
        assert not await storage.runs_elsewhere("node-b", "send", "mail", none)
        await storage.declare("node-a", {"mail": ["send"]})
        assert not await storage.runs_elsewhere("node-b", "call", "default", none)
        await storage.set_node("node-b", lambda controls: replace(controls, is_quiet=True))
        assert not await storage.runs_elsewhere("node-a", "call", "default", none)

    async def test_stored_times_are_those_of_the_store(self, store_user: StoreUser, clock: ManualClock) -> None:
        storage = store_user.storage
        for step in (0, 3600, -7200):
            clock.step_wall(step)
            clock.advance(1)
            await store_user.add()
            job = await store_user.take_one()
            assert job.started_at == storage.now()
            await store_user.succeed(job)
            assert (await store_user.record(job.id)).finished_at == storage.now()
            await storage.beat(store_user.node)
            assert [node.beat_at for node in await storage.nodes()] == [storage.now()]

    async def test_a_finished_job_has_no_owner(self, store_user: StoreUser) -> None:
        await store_user.add(2)
        first, second = await store_user.take()
        await store_user.succeed(first)
        await store_user.give_back(second)
        assert (await store_user.storage.beat(store_user.node)).owned == {}

    async def test_the_data_of_a_claimed_job_can_be_read_again(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(100), "all": strict(100)}
        await store_user.add(buckets=[("api", "acme"), ("all", "")], costs=(2, 3), headers={"a": "b"})
        clock.advance(1)
        job = await store_user.take_one()
        assert (await store_user.record(job.id)).as_claimed() == job
        await store_user.give_back(job)
        clock.advance(1)
        again = await store_user.take_one()
        assert again.fence == job.fence + 1
        assert (await store_user.record(job.id)).as_claimed() == again

    async def test_a_heartbeat_does_not_restore_a_dead_node(self, store_user: StoreUser) -> None:
        beat = await store_user.storage.beat("stranger")
        assert not beat.known
        assert beat.owned == {}
        assert (await store_user.storage.beat(store_user.node)).known
        assert [node.id for node in await store_user.storage.nodes()] == [store_user.node]

    async def test_a_node_that_leaves_returns_its_jobs_without_spending_an_attempt(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(100)}
        ids = [*await store_user.add(2), *await store_user.add(2, buckets=[("api", "acme")])]
        await store_user.take()
        clock.advance(1)
        recovered = await store_user.storage.leave(store_user.node)
        assert sorted(recovered.returned) == sorted(ids)
        assert list(recovered.poisonous) == []
        assert not (await store_user.storage.beat(store_user.node)).known
        for id in ids:
            record = await store_user.record(id)
            assert (record.state, record.attempt, record.lost) == (JobState.WAITING, 0, 0)
            assert [attempt.outcome for attempt in await store_user.storage.attempts(id)] == ["interrupted"]
        await store_user.storage.join("node-b", "b")
        assert {job.attempt for job in await store_user.take(node="node-b")} == {1}

    async def test_leaving_twice_does_nothing(self, store_user: StoreUser) -> None:
        await store_user.storage.leave(store_user.node)
        recovered = await store_user.storage.leave(store_user.node)
        assert not recovered.returned
        assert not recovered.poisonous

    async def test_a_node_with_heartbeats_is_not_recovered(self, store_user: StoreUser) -> None:
        await store_user.add()
        job = await store_user.take_one()
        await store_user.storage.beat(store_user.node)
        seen = await beat_of(store_user, store_user.node)
        await store_user.storage.beat(store_user.node)
        assert await store_user.storage.recover(store_user.node, seen) is None
        assert (await store_user.record(job.id)).state is JobState.RUNNING

    async def test_an_unknown_node_is_not_recovered(self, store_user: StoreUser) -> None:
        assert await store_user.storage.recover("stranger", 0) is None

    async def test_a_dead_nodes_jobs_wait_again_with_their_attempt_spent(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(2)}
        await store_user.add(buckets=[("api", "acme")])
        job = await store_user.take_one()
        clock.advance(30)
        recovered = await recover(store_user)
        assert list(recovered.returned) == [job.id]
        record = await store_user.record(job.id)
        assert (record.state, record.attempt, record.lost) == (JobState.WAITING, 1, 1)
        assert (record.run_at, record.delayed) == (job.run_at, False)
        (attempt,) = await store_user.storage.attempts(job.id)
        assert (attempt.number, attempt.outcome, attempt.ended_at) == (1, "lost", clock.now())
        again = await store_user.take_one(node="node-b")
        assert (again.attempt, again.fence, again.lost) == (2, 2, 1)

    async def test_the_late_result_of_a_dead_node_is_refused(self, store_user: StoreUser) -> None:
        await store_user.add()
        job = await store_user.take_one()
        await recover(store_user)
        late = Finished(job.id, job.fence, JobState.SUCCEEDED, result="1")
        assert list(await store_user.storage.finish(store_user.node, [late])) == [False]
        again = await store_user.take_one(node="node-b")
        assert list(await store_user.storage.finish(store_user.node, [late])) == [False]
        assert (await store_user.record(again.id)).state is JobState.RUNNING

    async def test_a_node_that_was_declared_dead_is_notified_and_can_join_again(self, store_user: StoreUser) -> None:
        await store_user.add(2)
        await store_user.take(1)
        await recover(store_user)
        beat = await store_user.storage.beat(store_user.node)
        assert not beat.known
        assert beat.owned == {}
        await store_user.storage.join(store_user.node, "a")
        assert (await store_user.storage.beat(store_user.node)).known
        assert len(await store_user.take()) == 2

    async def test_a_node_that_was_declared_dead_is_listed_for_a_day_with_its_returned_jobs(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage, started_at = store_user.storage, clock.now()
        await storage.join("node-c", "c", version="1.2", release="blue")
        await store_user.add(3)
        await store_user.take(2, node="node-c")
        clock.advance(5)
        await storage.beat("node-c")
        seen_at = clock.now()
        clock.advance(30)
        assert await storage.lost_nodes(20) == []
        assert await storage.recover("node-c", await beat_of(store_user, "node-c")) is not None
        (lost,) = await storage.lost_nodes(20)
        assert (lost.id, lost.name, lost.version, lost.release) == ("node-c", "c", "1.2", "blue")
        assert (lost.started_at, lost.beat_at, lost.lost_at, lost.returned) == (started_at, seen_at, clock.now(), 2)
        # One that leaves is not listed, and one that dies is listed first.
        clock.advance(1)
        await storage.join("node-d", "d")
        await storage.join("node-e", "e")
        await storage.leave("node-d")
        assert await storage.recover("node-e", await beat_of(store_user, "node-e")) is not None
        assert [(node.id, node.returned) for node in await storage.lost_nodes(20)] == [("node-e", 0), ("node-c", 2)]
        assert [node.id for node in await storage.lost_nodes(1)] == ["node-e"]
        clock.advance(KEPT_FOR / SECOND - 1)
        assert [node.id for node in await storage.lost_nodes(20)] == ["node-e"]

    async def test_a_node_that_joins_again_and_dies_is_listed_with_its_last_death(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        await store_user.add(3)
        await store_user.take(2)
        await recover(store_user)
        clock.advance(60)
        await storage.join(store_user.node, "again")
        assert (await store_user.take_one()).lost == 1
        await recover(store_user)
        (lost,) = await storage.lost_nodes(20)
        assert (lost.name, lost.started_at, lost.lost_at, lost.returned) == ("again", clock.now(), clock.now(), 1)

    async def test_the_last_lost_nodes_are_kept_for_a_day(
        self, store_user: StoreUser, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(alerts, "LOST_KEPT", 2)
        storage = store_user.storage
        for number in range(4):
            await storage.join(f"node-{number}", "killed")
            clock.advance(1)
            await storage.recover(f"node-{number}", await beat_of(store_user, f"node-{number}"))
        assert len(await storage.lost_nodes(20)) == 4
        await storage.evict()
        assert [node.id for node in await storage.lost_nodes(20)] == ["node-3", "node-2"]
        clock.advance(KEPT_FOR / SECOND)
        await storage.evict()
        assert await storage.lost_names(0) == []

    async def test_a_node_that_joins_twice_stays_as_it_is(self, store_user: StoreUser, clock: ManualClock) -> None:
        """As it does after an answer that was lost."""
        await store_user.add()
        job = await store_user.take_one()
        before = await store_user.storage.nodes()
        clock.advance(5)
        await store_user.storage.join(
            store_user.node, "another name", controls=NodeControls({"default": 7}), version="2"
        )
        assert list(await store_user.storage.nodes()) == list(before)
        assert set((await store_user.storage.beat(store_user.node)).owned) == {job.id}

    async def test_two_nodes_that_notice_a_death_recover_the_jobs_once(self, store_user: StoreUser) -> None:
        await store_user.add()
        await store_user.take_one()
        await store_user.storage.beat(store_user.node)
        seen = await beat_of(store_user, store_user.node)
        results = await asyncio.gather(*(store_user.storage.recover(store_user.node, seen) for _ in range(2)))
        assert sum(1 for result in results if result is not None) == 1

    async def test_a_job_that_keeps_killing_its_node_is_failed(self, store_user: StoreUser) -> None:
        await store_user.add()
        bystander = await store_user.add_one()
        for death in range(1, POISONOUS_AFTER + 1):
            jobs = await store_user.take(1)
            recovered = await recover(store_user)
            poisonous = death == POISONOUS_AFTER
            assert (len(recovered.poisonous), len(recovered.returned)) == ((1, 0) if poisonous else (0, 1))
            await store_user.storage.join(store_user.node, "a")
        record = await store_user.record(jobs[0].id)
        assert (record.state, record.error) == (JobState.FAILED, poison_error(POISONOUS_AFTER))
        assert record.finished_at is not None
        assert await store_user.take_ids() == [bystander]

    async def test_a_poisonous_job_that_is_retried_starts_over(self, store_user: StoreUser) -> None:
        await store_user.add()
        for _ in range(POISONOUS_AFTER):
            job = await store_user.take_one()
            await recover(store_user)
            await store_user.storage.join(store_user.node, "a")
        assert await store_user.storage.retry(job.id) is JobState.FAILED
        again = await store_user.take_one()
        assert (again.attempt, again.lost) == (1, 0)
        await recover(store_user)
        assert (await store_user.record(job.id)).state is JobState.WAITING

    async def test_a_job_of_a_dead_node_with_a_cancel_request_is_cancelled(self, store_user: StoreUser) -> None:
        await store_user.add(2)
        first, second = await store_user.take()
        await store_user.storage.cancel(first.id)
        recovered = await recover(store_user)
        assert (list(recovered.returned), list(recovered.cancelled)) == ([second.id], [first.id])
        assert (await store_user.record(first.id)).state is JobState.CANCELLED
        other = await store_user.take_one(node="node-b")
        await store_user.storage.cancel(other.id)
        assert list((await store_user.storage.leave("node-b")).returned) == []
        assert (await store_user.record(other.id)).state is JobState.CANCELLED

    async def test_a_poisonous_job_with_a_cancel_request_is_cancelled(self, store_user: StoreUser) -> None:
        await store_user.add()
        for death in range(1, POISONOUS_AFTER + 1):
            job = await store_user.take_one()
            if death == POISONOUS_AFTER:
                await store_user.storage.cancel(job.id)
            recovered = await recover(store_user)
            await store_user.storage.join(store_user.node, "a")
        assert not recovered.poisonous
        assert (await store_user.record(job.id)).state is JobState.CANCELLED
