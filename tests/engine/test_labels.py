"""Tasks that require labels, in virtual time: only nodes with these labels run their jobs."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from headgate import DeclarationError, Headgate, JobState, StrictRate
from headgate.jobs.event import Event, TaskUnknown
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing import manual
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.conftest import MakeApp
from tests.internals import app_on
from tests.until import result_within


class Releases:
    """One store, the same declarations in several apps with labels of their own, and what ran where."""

    def __init__(self, make_app: MakeApp) -> None:
        self.make_app = make_app
        self.ran: list[tuple[str, str]] = []

    def app(self, name: str, *labels: str) -> Headgate:
        app = self.make_app(name=name, labels=labels)
        app.queue("gpu", concurrency=4)

        @app.task
        async def work() -> None:
            self.ran.append((name, "work"))

        @app.task(requires={"gpu"})
        async def train() -> None:
            self.ran.append((name, "train"))

        @app.task(requires=["gpu", "eu"], limits=[StrictRate("100/s", key="{tenant}")])
        async def train_in_europe(tenant: str) -> None:
            self.ran.append((name, f"train for {tenant}"))

        @app.task(queue="gpu", requires={"gpu"})
        async def render() -> None:
            self.ran.append((name, "render"))

        return app


def in_memory(clock: VirtualClock) -> MakeApp:
    return partial(app_on, MemoryStorage(clock), clock=clock)


def test_only_nodes_with_the_labels_of_a_task_run_its_jobs() -> None:
    async def main(clock: VirtualClock) -> None:
        releases = Releases(in_memory(clock))
        plain, gpu, both = releases.app("plain"), releases.app("gpu", "gpu", "ssd"), releases.app("both", "gpu", "eu")
        events: list[Event] = []
        plain.subscribe(events.append, TaskUnknown)
        async with plain:
            # In front of it in the same lane, so that the claim has to skip them.
            await plain.tasks["train"].enqueue_many([()] * 300)
            limited = await plain.tasks["train_in_europe"].enqueue("acme")
            await plain.tasks["work"].enqueue()
            await asyncio.sleep(60)
            assert releases.ran == [("plain", "work")]
            assert events == [], "the task is declared here"
            async with gpu:
                await asyncio.sleep(60)
                assert releases.ran.count(("gpu", "train")) == 300
                assert (await limited.status()).state is JobState.WAITING
                async with both:
                    await result_within(limited, 60)
        assert releases.ran.count(("both", "train for acme")) == 1
        assert len(releases.ran) == 302

    run_virtual(main)


async def test_nodes_of_a_database_leave_jobs_that_require_other_labels_to_each_other(make_app: MakeApp) -> None:
    releases = Releases(make_app)
    plain, both = releases.app("plain"), releases.app("both", "gpu", "eu")
    async with plain:
        held = await plain.tasks["train"].enqueue_many([()] * 20)
        limited = await plain.tasks["train_in_europe"].enqueue("acme")
        await result_within(await plain.tasks["work"].enqueue(), 15)
        assert releases.ran == [("plain", "work")]
        assert "--label gpu" in (await plain.admin.explain(held[0].id)).reason
        async with both:
            for job in (*held, limited):
                await result_within(job, 15)
            nodes = {node.name: list(node.labels) for node in await plain.admin.nodes()}
            assert nodes == {"plain": [], "both": ["eu", "gpu"]}
    assert releases.ran.count(("both", "train")) == 20
    assert ("both", "train for acme") in releases.ran


def test_a_queue_whose_tasks_all_require_other_labels_is_served_only_if_it_is_named() -> None:
    async def main(clock: VirtualClock) -> None:
        releases = Releases(in_memory(clock))
        plain, gpu = releases.app("plain"), releases.app("gpu", "gpu")
        async with plain, gpu:
            await asyncio.sleep(1)
            nodes = {node.name: node for node in await plain.admin.nodes()}
            assert set(nodes["plain"].queues) == {"default"}
            assert set(nodes["gpu"].queues) == {"default", "gpu"}
            assert (list(nodes["plain"].labels), list(nodes["gpu"].labels)) == ([], ["gpu"])
            await result_within(await plain.tasks["render"].enqueue(), 60)
        assert releases.ran == [("gpu", "render")]
        assert set(plain._node_config({"gpu": 1}).queues) == {"gpu"}

    run_virtual(main)


def test_a_draining_node_does_not_wait_for_jobs_that_require_other_labels() -> None:
    async def main(clock: VirtualClock) -> None:
        releases = Releases(in_memory(clock))
        plain, gpu = releases.app("plain"), releases.app("gpu", "gpu")
        async with plain.open(), gpu.open(), asyncio.timeout(60):
            await plain.tasks["train"].enqueue()
            await plain.tasks["work"].enqueue()
            await plain._make_node(lambda: plain._node_config(drain="all")).run()
            assert releases.ran == [("plain", "work")]
            await gpu._make_node(lambda: gpu._node_config(drain="all")).run()
            assert releases.ran == [("plain", "work"), ("gpu", "train")]

    run_virtual(main)


def test_a_job_explains_that_no_node_has_the_labels_that_it_requires() -> None:
    async def main(clock: VirtualClock) -> None:
        releases = Releases(in_memory(clock))
        async with releases.app("plain") as plain:
            job = await plain.tasks["train"].enqueue()
            await asyncio.sleep(1)
            reason = (await plain.admin.explain(job.id)).reason
            assert reason.startswith("task 'train' requires labels that no node has; start one with `headgate worker ")
            assert reason.endswith("--label gpu`")
            async with releases.app("gpu", "gpu"):
                await result_within(job, 60)

    run_virtual(main)


def test_a_test_runs_all_tasks_whatever_they_require() -> None:
    ran: list[str] = []
    app = Headgate("memory://")
    app.queue("gpu")

    @app.task(queue="gpu", requires={"gpu"})
    async def train() -> None:
        ran.append("train")

    with manual(app) as jobs:
        train.sync.enqueue()
        assert jobs.sync.drain().count("succeeded") == 1
    assert ran == ["train"]


def test_a_worker_that_can_run_no_task_is_refused() -> None:
    app = Headgate("sqlite:///never-opened.db")

    @app.task(requires={"gpu", "eu"})
    async def train() -> None: ...

    with pytest.raises(DeclarationError, match=r"'train' requires eu, gpu; start it with .*--label eu --label gpu"):
        asyncio.run(app.run(handle_signals=False))
    with pytest.raises(DeclarationError, match=r"requires eu; start it"):
        asyncio.run(app.run(labels=["gpu"], handle_signals=False))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ("gpu", r"is not a set of labels; write \{\"gpu\"\}"),
        (7, "is not a set of labels"),
        ([7], "label 7 must be 1 to 63 letters"),
        (["two words"], "label 'two words' must be 1 to 63 letters"),
        ([""], "label '' must be"),
        (["x" * 64], "must be 1 to 63 letters"),
        ([f"label-{number}" for number in range(51)], "has 51 labels, more than 50"),
    ],
)
def test_labels_that_are_none_are_refused_at_declaration(labels: Any, said: str) -> None:
    app = Headgate("memory://")
    with pytest.raises(DeclarationError, match=rf"task 'train': requires.*{said}"):
        app.task(name="train", requires=labels)(lambda: None)
    with pytest.raises(DeclarationError, match=said):
        Headgate("memory://", labels=labels)
