"""Nodes that operators steer while they run, in virtual time: quiet, resumed, stopped, with more and fewer slots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate import DeclarationError, Headgate, JobState
from headgate.errors import AmbiguousNode, NodeNotFound, UnknownQueue
from headgate.jobs.event import Event, NodeChanged, NodeStopped, NodeStopping
from headgate.storage.records import NodeControls
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, node_of

SOON = 1.1
"""Seconds within which a node has read what it is set to do."""


class Steered:
    """An app with a node of two queues, whose jobs run for ten seconds, and how many run."""

    def __init__(self, clock: VirtualClock) -> None:
        self.store = MemoryStorage(clock)
        self.app = app_on(self.store, clock=clock, name="steered", concurrency=4)
        self.app.queue("mail", concurrency=2)
        self.running = 0
        self.events: list[Event] = []
        self.app.subscribe(self.events.append, NodeChanged, NodeStopping, NodeStopped)

        @self.app.task
        async def work(seconds: float) -> None:
            self.running += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                self.running -= 1

        self.work = work

    async def fill(self, count: int, seconds: float = 10) -> None:
        await self.work.enqueue_many([(seconds,)] * count)


def steering(main: Callable[[Steered], Awaitable[None]]) -> None:
    """Run a test with a running node of 4 slots for the queue `default` and 2 for `mail`."""

    async def opened(clock: VirtualClock) -> None:
        steered = Steered(clock)
        async with steered.app:
            # The node has joined.
            await asyncio.sleep(0.1)
            await main(steered)

    run_virtual(opened)


def test_a_quiet_node_claims_nothing_until_it_is_resumed_and_its_jobs_continue() -> None:
    async def main(steered: Steered) -> None:
        await steered.fill(2)
        await asyncio.sleep(0.1)
        assert await steered.app.admin.quiet_node("steered")
        assert not await steered.app.admin.quiet_node("steered")
        await asyncio.sleep(SOON)
        await steered.fill(5)
        await asyncio.sleep(5)
        assert steered.running == 2
        await asyncio.sleep(60)
        assert steered.running == 0
        (node,) = await steered.app.admin.nodes()
        assert (node.shown_state, node.is_quiet, node.slots) == ("quiet", True, 6)
        assert await steered.app.admin.resume_node(node.id)
        await asyncio.sleep(SOON)
        assert steered.running == 4
        assert not await steered.app.admin.resume_node(node.id)
        assert [event.is_quiet for event in steered.events if isinstance(event, NodeChanged)] == [True, False]
        entries = await steered.app.admin.audit_log(kind="node")
        assert [(entry.action, entry.subject) for entry in entries] == [("resume", "steered"), ("quiet", "steered")]

    steering(main)


def test_more_slots_are_used_at_once_and_with_fewer_running_jobs_continue() -> None:
    async def main(steered: Steered) -> None:
        await steered.fill(30)
        await asyncio.sleep(0.1)
        assert steered.running == 4
        assert await steered.app.admin.set_node_slots("steered", 7, queue="default")
        await asyncio.sleep(SOON)
        assert steered.running == 7
        assert await steered.app.admin.set_node_slots("steered", 2)
        assert not await steered.app.admin.set_node_slots("steered", 2)
        await asyncio.sleep(SOON)
        assert steered.running == 7
        # All that began before have ended by now.
        await asyncio.sleep(15)
        assert steered.running == 2
        (node,) = await steered.app.admin.nodes()
        assert (node.slots, node.queues) == (2, {"default": 7, "mail": 2})
        entries = await steered.app.admin.audit_log(kind="node")
        assert [entry.detail for entry in entries] == ["2", "default: 7"]

    steering(main)


def test_no_slots_make_a_node_quiet_and_others_resume_it() -> None:
    async def main(steered: Steered) -> None:
        admin = steered.app.admin
        assert await admin.set_node_slots("steered", 0)
        await asyncio.sleep(SOON)
        await steered.fill(9)
        await asyncio.sleep(5)
        assert steered.running == 0
        assert await admin.set_node_slots("steered", 3)
        await asyncio.sleep(SOON)
        assert steered.running == 3
        assert await admin.set_node_slots("steered", 0, queue="default")
        await asyncio.sleep(20)
        assert steered.running == 0, "this queue is not served any more"
        await steered.work.using(queue="mail").enqueue_many([(10.0,)] * 5)
        await asyncio.sleep(0.1)
        assert steered.running == 2

    steering(main)


def test_a_node_of_one_queue_gets_as_many_slots_as_were_set() -> None:
    async def main(clock: VirtualClock) -> None:
        steered = Steered(clock)
        async with steered.app.open():
            app = steered.app
            node = asyncio.ensure_future(app._make_node(lambda: app._node_config({"default": 2}, slots=1)).run())
            await steered.fill(30)
            await asyncio.sleep(1)
            assert steered.running == 1
            await steered.app.admin.set_node_slots("steered", 12)
            await asyncio.sleep(SOON)
            assert steered.running == 12
            await steered.app.admin.stop_node("steered")
            await node

    run_virtual(main)


def test_a_stopped_node_lets_its_jobs_end_and_claims_no_others() -> None:
    async def main(steered: Steered) -> None:
        jobs = await steered.work.enqueue_many([(10.0,)] * 6)
        await asyncio.sleep(0.1)
        assert await steered.app.admin.stop_node("steered")
        assert not await steered.app.admin.stop_node("steered")
        await asyncio.sleep(SOON)
        (node,) = await steered.app.admin.nodes()
        assert node.shown_state == "stopping"
        await asyncio.sleep(20)
        assert await steered.app.admin.nodes() == []
        states = [(await job.status()).state for job in jobs]
        assert states == [JobState.SUCCEEDED] * 4 + [JobState.WAITING] * 2
        stopping, stopped = steered.events
        assert isinstance(stopping, NodeStopping)
        assert stopping.by_operator
        assert isinstance(stopped, NodeStopped)
        assert stopped.returned == 0
        # The program itself continues.
        await steered.fill(1)

    steering(main)


def test_a_node_that_is_stopped_by_its_program_is_shown_as_stopping() -> None:
    async def main(steered: Steered) -> None:
        await steered.fill(1, 20)
        await asyncio.sleep(0.1)
        node_of(steered.app).stop()
        await asyncio.sleep(6)
        (node,) = await steered.app.admin.nodes()
        assert node.shown_state == "stopping"
        assert [each.by_operator for each in steered.events if isinstance(each, NodeStopping)] == [False]

    steering(main)


def test_a_node_that_was_declared_dead_stays_quiet_under_its_new_id() -> None:
    async def main(steered: Steered) -> None:
        admin = steered.app.admin
        await admin.set_node_slots("steered", 3)
        await admin.quiet_node("steered")
        await asyncio.sleep(SOON)
        (record,) = await steered.store.nodes()
        await steered.store.recover(record.id, record.beat)
        await asyncio.sleep(10)
        (node,) = await admin.nodes()
        assert node.id != record.id
        assert (node.name, node.is_quiet, node.slots) == ("steered", True, 3)
        await steered.fill(5)
        await asyncio.sleep(5)
        assert steered.running == 0
        await admin.resume_node("steered")
        await asyncio.sleep(SOON)
        assert steered.running == 3

    steering(main)


def test_a_renamed_node_that_was_declared_dead_keeps_its_new_name() -> None:
    async def main(steered: Steered) -> None:
        admin, store = steered.app.admin, steered.store
        (node,) = await store.nodes()
        assert await admin.rename_node("steered", "mail-1")
        assert not await admin.rename_node(node.id, "mail-1")
        await asyncio.sleep(SOON)
        assert await store.recover(node.id, (await store.nodes())[0].beat) is not None
        await asyncio.sleep(10)
        (again,) = await store.nodes()
        assert (again.id != node.id, again.name) == (True, "mail-1")
        await steered.fill(1, seconds=1)
        await asyncio.sleep(3)
        with pytest.raises(NodeNotFound):
            await admin.quiet_node("steered")

    steering(main)


def test_a_request_for_an_unknown_or_ambiguous_node_says_what_there_is() -> None:
    async def main(steered: Steered) -> None:
        admin, store = steered.app.admin, steered.store
        (own,) = await admin.nodes()
        with pytest.raises(NodeNotFound, match=rf"'steer'; did you mean 'steered'\? Running: steered \({own.id}\)"):
            await admin.stop_node("steer")
        await store.join("node-2", "steered", controls=NodeControls({"mail": 1}))
        with pytest.raises(AmbiguousNode, match="2 nodes have the name 'steered'") as raised:
            await admin.quiet_node("steered")
        assert own.id in str(raised.value)
        assert "node-2" in str(raised.value)
        assert await admin.quiet_node("node-2")
        with pytest.raises(UnknownQueue, match=r"node node-2 does not serve queue 'mails'; did you mean 'mail'\?"):
            await admin.set_node_slots("node-2", 3, queue="mails")
        with pytest.raises(DeclarationError, match=r"its queues have 6 together \(default 4, mail 2\)"):
            await admin.set_node_slots(own.id, 7)
        with pytest.raises(DeclarationError, match="slots=-1 must be a whole number, at least 0"):
            await admin.set_node_slots(own.id, -1)
        assert len(await admin.audit_log(kind="node")) == 1

    steering(main)


def test_a_job_explains_that_all_nodes_of_its_queue_are_quiet() -> None:
    async def main(steered: Steered) -> None:
        await steered.app.admin.quiet_node("steered")
        await asyncio.sleep(SOON)
        job = await steered.work.enqueue(1.0)
        explanation = await steered.app.admin.explain(job.id)
        assert explanation.reason.endswith("are quiet; resume one: `headgate nodes resume steered`")
        # A name may have what a shell reads as a command.
        await steered.app.admin.rename_node("steered", "web;reboot")
        explanation = await steered.app.admin.explain(job.id)
        assert explanation.reason.endswith("resume one: `headgate nodes resume 'web;reboot'`")

    steering(main)


@pytest.mark.parametrize("name", ["", "two words", "x" * 201, "line\nbreak", 7])
def test_a_name_that_cannot_be_one_is_refused(name: Any) -> None:
    with pytest.raises(DeclarationError, match="is not the name of a worker"):
        Headgate("memory://", name=name)


def test_a_node_that_nobody_steers_reports_no_change() -> None:
    async def main(steered: Steered) -> None:
        await steered.fill(1, 1)
        await asyncio.sleep(30)
        assert steered.events == []

    steering(main)
