"""Graphs: calls that are after several others, batches in batches, and several steps after a batch."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from headgate import Chain, Headgate, Job, Mutex, RetryPolicy, batch, chain, current_job, result_of
from headgate.errors import (
    BatchClosed,
    BatchNotFound,
    DeclarationError,
    JobCancelled,
    JobFailed,
    JobSkipped,
    LeaderNotFound,
)
from headgate.jobs.state import JobState
from headgate.tasks.call import Call
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.conftest import MakeApp
from tests.until import patient, result_within


class Recorded:
    """An app whose task notes what ran, and fails for what begins with "bad"."""

    def __init__(self, app: Headgate) -> None:
        self.app = app
        self.ran: list[str] = []

        @self.app.task(retry=RetryPolicy(retries=0))
        async def work(name: str) -> str:
            self.ran.append(name)
            if name.startswith("bad"):
                raise ValueError(name)
            return name

        self.work = work


def test_a_call_runs_after_all_that_it_is_after() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(Headgate("memory://", clock=clock))
        a, b = own.work.call("a"), own.work.using(delay=5).call("b")
        c = own.work.call("c").after(a, b)
        d = own.work.call("d").after(a)
        async with own.app:
            stored = await batch([c, d, a, b]).enqueue()
            assert await result_within(stored, 60) == ["c", "d", "a", "b"]
        assert own.ran == ["a", "d", "b", "c"]

    run_virtual(main)


@pytest.mark.parametrize(
    ("name", "ran"), [("a", ["a", "b", "good", "final"]), ("bad", ["bad", "b", "failure", "final"])]
)
def test_on_says_which_end_of_all_leaders_a_call_needs(name: str, ran: list[str]) -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(Headgate("memory://", clock=clock))
        a, b = own.work.call(name), own.work.call("b")
        calls = [
            own.work.call("good").after(a, b),
            own.work.call("failure").after(a, b, on="failure"),
            own.work.call("final").after(a, b, on="final"),
        ]
        async with own.app:
            stored = await batch([a, b, *calls]).enqueue()
            status = await stored.wait(timeout=60)
            assert (status.skipped, status.cancelled) == ((1, 0) if name == "a" else (0, 1))
            needless = stored.jobs[3 if name == "a" else 2]
            with pytest.raises(JobSkipped if name == "a" else JobCancelled):
                await needless.result()
        assert own.ran == ran

    run_virtual(main)


def test_a_call_can_be_after_stored_jobs_batches_and_chains() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(Headgate("memory://", clock=clock))
        async with own.app:
            one = await own.work.enqueue("one")
            await result_within(one)
            some = await batch([own.work.using(delay=3).call("some")]).enqueue()
            row = await chain(own.work.call("first"), own.work.using(delay=9).call("last")).enqueue()
            after = await chain(own.work.call("after").after(one, some, row)).enqueue()
            explained = await own.app.admin.explain(after.jobs[0].id)
            assert explained.reason.startswith("it follows 3 jobs or batches (1 of 3 final, not yet ")
            details = await own.app.admin.job(after.jobs[0].id)
            expected = sorted([(one.id, "work"), (some.id, None), (row.jobs[1].id, "work")])
            assert [(dependency.id, dependency.task) for dependency in details.dependencies.leaders] == expected
            (follower,) = (await own.app.admin.job(one.id)).dependencies.followers
            assert (follower.id, follower.needs) == (after.jobs[0].id, None)
            assert await result_within(after, 60) == "after"
            with pytest.raises(LeaderNotFound):
                await chain(own.work.call("never").after(own.app.job("gone"), one)).enqueue()
        assert own.ran == ["one", "first", "some", "last", "after"]

    run_virtual(main)


def test_the_first_job_of_a_graph_that_failed_is_named_and_its_retry_restores_the_rest() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(Headgate("memory://", clock=clock))
        a, b = own.work.call("bad a"), own.work.call("b")
        c = own.work.call("c").after(a, b)
        d = own.work.call("d").after(c, b)
        async with own.app:
            stored = await batch([a, b, c, d]).enqueue()
            status = await stored.wait(timeout=60)
            assert (status.failed, status.succeeded, status.cancelled) == (1, 1, 2)
            with pytest.raises(JobCancelled) as caught:
                await stored.jobs[3].result()
            assert f"retry {stored.jobs[0].id}, and" in str(caught.value.__cause__)
            await own.app.admin.retry(stored.jobs[0].id)
            assert (await stored.status()).pending == 3
            assert (await stored.wait(timeout=60)).state is JobState.FAILED
        assert own.ran == ["bad a", "b", "bad a"]

    run_virtual(main)


def test_a_batch_counts_a_batch_in_it_as_one() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(Headgate("memory://", clock=clock))
        inner = batch([own.work.call("x"), own.work.using(delay=5).call("y")]).then(own.work.call("z"))
        async with own.app:
            stored = await batch([inner, own.work.call("w")]).then(own.work.call("end")).enqueue()
            status = await stored.status()
            # The inner batch, what is after it, and one call.
            assert (status.total, status.pending, status.batch) == (3, 3, None)
            first, outer = await own.app.admin.batches()
            assert (first.batch, first.total, outer.id) == (stored.id, 2, stored.id)
            assert await result_within(own.app.batch(stored.id), 60) == ["x", "y", "z", "w"]
            (then,) = stored.then
            assert await result_within(then, 60) == "end"
        assert own.ran == ["x", "w", "y", "z", "end"]

    run_virtual(main)


def test_an_inner_batch_that_fails_is_named() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(Headgate("memory://", clock=clock))
        inner = batch([own.work.call("bad")])
        async with own.app:
            stored = await batch([batch([inner])]).then(own.work.call("end")).enqueue()
            assert (await stored.wait(timeout=60)).state is JobState.FAILED
            with pytest.raises(JobCancelled) as caught:
                await result_within(stored.then[0], 60)
            newest = (await own.app.admin.batches())[0]
            assert f"headgate jobs retry --batch {newest.id} --state failed" in str(caught.value.__cause__)

    run_virtual(main)


def test_a_batch_can_have_several_steps_after_it() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(Headgate("memory://", clock=clock))
        plan = batch([own.work.call("bad"), own.work.call("b")])
        plan = plan.then(own.work.call("good")).then(own.work.call("sorry"), on="failure")
        async with own.app:
            stored = await plan.then(own.work.call("end"), on="final").enqueue()
            good, sorry, end = stored.then
            assert await result_within(end, 60) == "end"
            assert await result_within(sorry, 60) == "sorry"
            with pytest.raises(JobCancelled):
                await result_within(good, 60)
            with pytest.raises(JobFailed):
                await result_within(stored, 60)

    run_virtual(main)


def test_a_chain_after_a_batch_has_a_handle_of_all_its_jobs() -> None:
    """The handle was that of its last job, so nothing reached the jobs before it."""

    async def main(clock: VirtualClock) -> None:
        own = Recorded(Headgate("memory://", clock=clock))
        inner = batch([own.work.call("b")]).then(chain(own.work.call("c"), own.work.call("d")))
        plan = batch([own.work.using(delay=60).call("a")]).then(chain(own.work.call("x"), inner))
        async with own.app:
            stored = await plan.enqueue()
            (after,) = stored.then
            assert isinstance(after, Chain)
            payloads = [(await own.app.admin.job(job.id)).record.payload for job in after.jobs]
            assert [json.loads(payload)["name"] for payload in payloads] == ["x", "b", "c", "d"]
            assert isinstance(after.last, Job)
            assert after.last == after.jobs[-1]
            assert await after.cancel() == 4
            assert await result_within(stored, 120) == ["a"]
        assert own.ran == ["a"]

    run_virtual(main)


def test_a_chain_continues_after_all_steps_after_a_batch() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(Headgate("memory://", clock=clock))
        forked = batch([own.work.call("a")]).then(own.work.call("b")).then(own.work.using(delay=3).call("c"))
        async with own.app:
            stored = await chain(forked, own.work.call("d")).enqueue()
            assert await result_within(stored, 60) == "d"
        assert own.ran == ["a", "b", "c", "d"]

    run_virtual(main)


def test_an_empty_batch_in_a_batch_is_final_from_the_start() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(Headgate("memory://", clock=clock))
        nothing = batch([])
        a = own.work.call("a").after(nothing)
        async with own.app:
            stored = await batch([nothing, a]).enqueue()
            assert (await stored.status()).succeeded == 1
            assert (await stored.wait(timeout=60)).succeeded == 2
            assert (await (await batch([batch([]), own.work.call("b")]).enqueue()).wait(timeout=60)).total == 2

    run_virtual(main)


async def test_batches_that_are_nested_too_deep_are_refused_with_what_to_write() -> None:
    """The fault: RecursionError, from inside Headgate."""
    own = Recorded(Headgate("memory://"))
    nested = batch([own.work.call("last")])
    for _ in range(2000):
        nested = batch([own.work.call("step")]).then(nested)
    async with own.app.open():
        with pytest.raises(DeclarationError, match=r"batches are nested too deep; for many in a row, use chain\(…\)"):
            await nested.enqueue()
        assert await own.app.admin.counts() == []


def test_a_job_adds_jobs_to_its_own_batch() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(Headgate("memory://", clock=clock))

        @own.app.task
        async def crawl(depth: int) -> int:
            batch_id = current_job().batch
            assert batch_id is not None
            if depth:
                again = crawl.using(delay=1)
                await own.app.batch(batch_id).add(
                    [again.call(depth - 1), chain(own.work.call("x"), own.work.call("y"))]
                )
            return depth

        async with own.app:
            stored = await batch([crawl.call(3)]).then(own.work.call("end")).enqueue()
            assert await result_within(stored.then[0], 60) == "end"
            status = await stored.status()
            assert (status.total, status.succeeded) == (10, 10)
            assert own.ran == ["x", "y"] * 3 + ["end"]
            with pytest.raises(BatchClosed, match=r"is final \(succeeded\)"):
                await own.app.batch(stored.id).add([own.work.call("late")])
            with pytest.raises(BatchNotFound):
                await own.app.batch("gone").add([own.work.call("late")])
            assert await own.app.batch(stored.id).add([]) == []
            held = await batch([own.work.using(delay=5).call("a")], limits=[Mutex("m")]).enqueue()
            with pytest.raises(BatchClosed, match="holds limits"):
                await held.add([own.work.call("b")])
            with pytest.raises(DeclarationError, match="calls and chains of calls"):
                await held.add([batch([own.work.call("b")])])
            with pytest.raises(DeclarationError, match="wait for each other"):
                await held.add([own.work.call("b").after(held)])
            assert (await held.status()).total == 1

    run_virtual(main)


def test_a_graph_that_cannot_be_is_refused() -> None:
    app = Headgate("memory://")

    @app.task
    async def load() -> None: ...

    @app.task
    async def parse() -> None: ...

    a = load.call()
    with pytest.raises(DeclarationError, match="at least one"):
        load.call().after()
    with pytest.raises(DeclarationError, match="not 'x'; for a stored id write"):
        load.call().after("x")  # type: ignore[arg-type]  # what somebody writes by mistake
    with pytest.raises(DeclarationError, match="on='any' of after"):
        load.call().after(a, on="any")  # type: ignore[arg-type]  # what somebody writes by mistake
    with pytest.raises(DeclarationError, match="has a place after other steps"):
        chain(parse.call(), chain(load.call().after(a)))
    with pytest.raises(DeclarationError, match="has a place after other steps"):
        batch([parse.call()]).then(load.call().after(a))
    with pytest.raises(DeclarationError, match="a batch with a batch in it"):
        batch([chain(batch([a]))], limits=[Mutex("m")])

    async def main(clock: VirtualClock) -> None:
        async with app.open():
            with pytest.raises(
                DeclarationError, match=r"parse.call\(…\) is after load.call\(…\), which is not enqueued"
            ):
                await batch([load.call(), parse.call().after(a)]).enqueue()
            with pytest.raises(DeclarationError, match="which is 2 times in what is enqueued"):
                await batch([a, a, parse.call().after(a)]).enqueue()
            with pytest.raises(TypeError, match="enqueue it with them in a batch"):
                await parse.enqueue_many([parse.call().after(a)])
            first = parse.call().after(a)
            with pytest.raises(
                DeclarationError, match=r"each for the next: parse.call\(…\), load.call\(…\), parse.call\(…\); remove"
            ):
                await chain(first, a).enqueue()
            with pytest.raises(DeclarationError, match="wait for each other"):
                await batch([first]).then(a).enqueue()
            stored = await chain(parse.call()).enqueue()
            with pytest.raises(DeclarationError, match="a job needs one end of all that it follows"):
                await chain(parse.call(), batch([load.call().after(stored, on="final")])).enqueue()
            assert len(await app.admin.jobs()) == 1

    run_virtual(main)


async def test_a_graph_in_which_everything_went_right_has_succeeded(make_app: MakeApp) -> None:
    """Its branch for failures is skipped with what follows, and nothing is cancelled or has an error."""
    own = Recorded(make_app())

    @own.app.task
    async def joined(names: list[str]) -> str:
        return "+".join(names)

    a, b = own.work.call("a"), own.work.call("b")
    sorry = own.work.call("sorry").after(a, b, on="failure")
    told = own.work.call("told").after(sorry)
    inner = batch([a, b, sorry, told])
    async with own.app:
        stored = await batch([inner, joined.call(result_of(inner))]).enqueue()
        # What was skipped has no result.
        assert await result_within(stored, 15) == ["a", "b", "a+b"]
        found = {status.batch: status for status in await own.app.admin.batches()}
        counted = {id: (each.state, each.succeeded, each.skipped, each.cancelled) for id, each in found.items()}
        assert counted == {None: (JobState.SUCCEEDED, 2, 0, 0), stored.id: (JobState.SUCCEEDED, 2, 2, 0)}
        for job, why in zip(stored.jobs[2:4], ("it runs only if ", f"it follows {stored.jobs[2].id}, "), strict=True):
            shown = await own.app.admin.job(job.id)
            assert (shown.record.state, shown.record.error) == (JobState.SKIPPED, None)
            assert (await own.app.admin.explain(job.id)).reason.startswith(f"it was skipped: {why}")
            with pytest.raises(JobSkipped, match=f"^job {job.id} was skipped: {why}"):
                await job.result()
        assert (await own.app.admin.count(state=JobState.SKIPPED)) == (await own.app.admin.counts())[0].skipped == 2
        graph = await own.app.admin.graph(stored.id)
        assert Counter(node.state for node in graph.nodes if node.task) == {"succeeded": 3, "skipped": 2}


async def test_a_graph_in_a_database_runs_what_the_ends_of_its_jobs_allow(make_app: MakeApp) -> None:
    own = Recorded(make_app())
    a, b, bad = own.work.call("a"), own.work.call("b"), own.work.call("bad")
    merged, sorry = own.work.call("merged").after(a, b), own.work.call("sorry").after(a, bad, on="failure")
    needless = own.work.call("needless").after(b, bad)
    inner = batch([own.work.call("in"), chain(own.work.call("x"), own.work.call("y"))])
    async with own.app:
        stored = await batch([sorry, merged, needless, a, b, bad, inner.then(own.work.call("then"))]).enqueue()
        status = await stored.wait(timeout=patient(15))
        # An inner batch counts as one, and the step after it as one more.
        assert (status.total, status.succeeded, status.failed, status.cancelled) == (8, 6, 1, 1)
        assert sorted(own.ran) == ["a", "b", "bad", "in", "merged", "sorry", "then", "x", "y"]
        assert own.ran.index("merged") > max(own.ran.index("a"), own.ran.index("b"))
        assert own.ran.index("then") > max(own.ran.index("in"), own.ran.index("y"))

        await own.app.admin.queues.pause("default")
        await own.app.admin.retry(stored.jobs[5].id)
        status = await stored.status()
        assert (status.pending, status.failed, status.cancelled) == (2, 0, 0), "its follower is blocked again"
        await own.app.admin.queues.resume("default")
        assert (await stored.wait(timeout=patient(15))).cancelled == 1


async def test_a_job_adds_jobs_to_its_own_batch_in_a_database(make_app: MakeApp) -> None:
    own = Recorded(make_app())

    @own.app.task
    async def crawl(depth: int) -> None:
        if depth:
            batch_id = current_job().batch
            assert batch_id is not None
            await own.app.batch(batch_id).add([crawl.call(depth - 1), own.work.call("page")])

    async with own.app:
        stored = await batch([crawl.call(2)]).then(own.work.call("end")).enqueue()
        assert await result_within(stored.then[0], 15) == "end"
        assert own.ran == ["page", "page", "end"]
        assert len(await stored.result()) == 5, "the fault: the handle that had enqueued it knew only the first job"
        with pytest.raises(BatchClosed):
            await own.app.batch(stored.id).add([own.work.call("late")])


def layered(work: Any, layers: int) -> list[Call[Any]]:
    """A graph of one call and layers of 101 more, each after three of the layer before it. The first one fails."""
    calls = [[work.call("bad")]]
    for _ in range(layers):
        before = calls[-1]
        calls.append([work.call("no").after(*before[-2:], *before[:1]) for _ in range(101)])
    return [call for layer in calls for call in layer]


@pytest.mark.nightly
def test_a_graph_of_10_000_jobs_is_stored_at_once_and_ends() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(Headgate("memory://", clock=clock))
        async with own.app:
            stored = await batch(layered(own.work, 99)).enqueue()
            assert len(stored.jobs) == 10_000
            status = await stored.wait(timeout=3600)
            assert (status.failed, status.cancelled) == (1, 9_999)

    run_virtual(main)


@pytest.mark.nightly
@pytest.mark.slow
async def test_a_graph_of_10_000_jobs_in_a_database_is_stored_at_once_and_ends(make_app: MakeApp) -> None:
    own = Recorded(make_app())
    async with own.app:
        stored = await batch(layered(own.work, 99)).enqueue()
        status = await stored.wait(timeout=patient(90))
        assert (status.failed, status.cancelled) == (1, 9_999)
