"""What is promised of graphs: the jobs and batches that are connected, and what follows what."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.jobs.batch import NewBatch
from headgate.jobs.job import Origin
from headgate.jobs.query import JobFilter, JobView
from headgate.storage.records import JobGraph
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.dependencies import chain, follow, following, new_batch_id
from tests.conformance.storage_suite.store_user import Conformance, StoreUser, strict

VIEWS: tuple[JobView, ...] = ("ready", "throttled", "scheduled", "blocked")


def edges_of(graph: JobGraph) -> set[tuple[str, str, str]]:
    return {(edge.source, edge.target, edge.needs) for edge in graph.edges}


class GraphsConformance(Conformance):
    async def test_a_graph_is_the_same_from_each_of_its_jobs(self, store_user: StoreUser) -> None:
        (other,) = await store_user.add(1)
        first, second = store_user.new(), store_user.new()
        join = NewBatch(new_batch_id(store_user), 2, store_user.clock.now(), None, (first.id, second.id))
        both = following(store_user, join.id, "final")
        await store_user.storage.add([first, second, both], [join])
        last = await follow(store_user, both.id, "failure")
        graph = await store_user.storage.graph(first.id, 10)
        assert edges_of(graph) == {
            (first.id, both.id, "final"),
            (second.id, both.id, "final"),
            (both.id, last, "failure"),
        }
        assert {node.id: node.state for node in graph.nodes} == {
            first.id: "ready",
            second.id: "ready",
            both.id: "blocked",
            last: "blocked",
        }
        for id in (second.id, both.id, last):
            assert await store_user.storage.graph(id, 10) == graph
        alone = await store_user.storage.graph(other, 10)
        assert ([node.id for node in alone.nodes], alone.edges) == ([other], [])

    async def test_an_argument_of_any_name_that_is_a_result_does_not_change_what_a_job_needs(
        self, store_user: StoreUser
    ) -> None:
        """The fault: on PostgreSQL, a job with an argument `on` was shown as one that needs any end of its leader."""
        first = store_user.new()
        second = replace(store_user.new(), origin=Origin(follows=first.id, results={"on": first.id}))
        await store_user.storage.add([first, second])
        assert edges_of(await store_user.storage.graph(first.id, 10)) == {(first.id, second.id, "success")}
        (leader,) = (await store_user.storage.dependencies(second.id)).leaders
        assert leader.needs is None

    async def test_a_batch_is_one_node_with_its_jobs_that_are_connected_with_others(
        self, store_user: StoreUser
    ) -> None:
        id = new_batch_id(store_user)
        plain = [replace(store_user.new(), origin=Origin(batch=id)) for _ in range(3)]
        first = replace(store_user.new(), origin=Origin(batch=id))
        inner = following(store_user, first.id, batch=id)
        then = following(store_user, id)
        await store_user.storage.add([*plain, first, inner, then], [NewBatch(id, 5, store_user.clock.now())])
        graph = await store_user.storage.graph(then.id, 10)
        edges = {
            (first.id, inner.id, "success"),
            (first.id, id, "member"),
            (inner.id, id, "member"),
            (id, then.id, "success"),
        }
        assert edges_of(graph) == edges
        (batch,) = [node for node in graph.nodes if node.id == id]
        assert (batch.task, batch.state, batch.total, batch.done) == (None, "pending", 5, 0)
        # Only the graph of the batch itself has its plain jobs, as one group.
        whole = await store_user.storage.graph(id, 10)
        (group,) = [node for node in whole.nodes if node.counts is not None]
        assert (group.counts, group.total, group.done, group.state) == ({"waiting": 3}, 3, 0, "waiting")
        assert edges_of(whole) == edges | {(group.id, id, "member")}
        assert (whole.is_folded, group.is_at_least) == (False, False)

    async def test_a_waiting_job_has_the_state_of_what_it_waits_for(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        first, throttled = await store_user.add(2, buckets=[("api", "acme")])
        delayed_there = await store_user.add_one(buckets=[("api", "acme")], delay=60)
        ready = await store_user.add_one(queue="other")
        assert await store_user.take_ids() == [first]
        for id in (throttled, delayed_there, ready):
            follower = await follow(store_user, id)
            (state,) = [node.state for node in (await store_user.storage.graph(follower, 10)).nodes if node.id == id]
            (view,) = [
                view
                for view in VIEWS
                if id in [job.id for job in (await store_user.storage.page(JobFilter(view=view))).items]
            ]
            assert state == view
        clock.advance(61)
        graph = await store_user.storage.graph(throttled, 10)
        assert sorted(str(node.state) for node in graph.nodes) == ["blocked", "ready"]

    async def test_a_leader_that_was_deleted_has_no_state(self, store_user: StoreUser, clock: ManualClock) -> None:
        first, second = await chain(store_user, 2)
        await store_user.succeed(await store_user.take_one())
        clock.advance(1)
        await store_user.storage.prune(clock.now())
        graph = await store_user.storage.graph(second, 10)
        assert {node.id: node.state for node in graph.nodes} == {first: None, second: "ready"}

    async def test_the_critical_path_goes_through_what_ends_last(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        first, second = store_user.new(), store_user.new()
        join = NewBatch(new_batch_id(store_user), 2, clock.now(), None, (first.id, second.id))
        both = following(store_user, join.id)
        await store_user.storage.add([first, second, both], [join])
        taken = await store_user.take(2)
        for job in sorted(taken, key=lambda job: job.id, reverse=True):
            clock.advance(1)
            await store_user.succeed(job)
        assert (await store_user.storage.graph(both.id, 10)).critical == [first.id, both.id]

    async def test_a_graph_of_too_many_jobs_is_folded_by_task_and_depth(self, store_user: StoreUser) -> None:
        ids = await chain(store_user, 5)
        wide = store_user.new()
        await store_user.storage.add([wide, *(following(store_user, wide.id) for _ in range(5))])
        assert len((await store_user.storage.graph(ids[2], 5)).nodes) == 5
        long = await store_user.storage.graph(ids[0], 4)
        assert (long.is_folded, [node.depth for node in long.nodes]) == (True, [0, 1, 2, 3, 4])
        for most in (5, 1):
            graph = await store_user.storage.graph(wide.id, most)
            first, group = sorted(graph.nodes, key=lambda node: node.depth or 0)
            assert (first.id, first.counts, graph.is_folded) == (wide.id, None, True)
            assert (group.total, group.counts, group.state, group.depth) == (5, {"blocked": 5}, "blocked", 1)
            assert (edges_of(graph), group.is_at_least) == ({(wide.id, group.id, "success")}, False)
        assert len((await store_user.storage.graph(wide.id, 6)).nodes) == 6

    async def test_a_long_chain_is_folded_by_task_alone(self, store_user: StoreUser) -> None:
        ids = await chain(store_user, 120)
        (group,) = (await store_user.storage.graph(ids[50], 100)).nodes
        assert (group.total, group.counts, group.depth) == (120, {"blocked": 119, "ready": 1}, 0)

    async def test_a_graph_with_too_many_edges_is_folded(self, store_user: StoreUser) -> None:
        leaders = [store_user.new() for _ in range(8)]
        ids = tuple(leader.id for leader in leaders)
        joins = [NewBatch(new_batch_id(store_user), 8, store_user.clock.now(), None, ids) for _ in range(30)]
        await store_user.storage.add([*leaders, *(following(store_user, join.id) for join in joins)], joins)
        folded = await store_user.storage.graph(ids[0], 11)
        assert (folded.is_folded, sorted(node.total or 0 for node in folded.nodes), len(folded.edges)) == (
            True,
            [8, 30],
            1,
        )
        whole = await store_user.storage.graph(ids[0], 100)
        assert (len(whole.nodes), len(whole.edges)) == (38, 240)

    async def test_the_jobs_of_a_large_batch_are_counted(self, store_user: StoreUser) -> None:
        id, now = new_batch_id(store_user), store_user.clock.now()
        first = replace(store_user.new(), origin=Origin(batch=id), task="first")
        parts = [replace(following(store_user, first.id, batch=id), task="part") for _ in range(1_100)]
        join = NewBatch(new_batch_id(store_user), len(parts), now, None, tuple(part.id for part in parts))
        last = replace(following(store_user, join.id, batch=id), task="last")
        plain = [replace(store_user.new(), origin=Origin(batch=id), task="plain") for _ in range(2)]
        plain[1] = replace(plain[1], delayed=True, run_at=now + 60_000_000)
        total = len(parts) + 4
        await store_user.storage.add([first, *parts, last, *plain], [NewBatch(id, total, now), join])
        for start in (id, parts[7].id, last.id):
            graph = await store_user.storage.graph(start, 200)
            nodes = {node.task or "batch": node for node in graph.nodes}
            assert graph.is_folded
            assert nodes["part"].counts == {"blocked": 1_100}
            assert not any(node.is_at_least for node in graph.nodes)
            assert {name: node.depth for name, node in nodes.items() if name != "plain"} == {
                "first": 0,
                "part": 1,
                "last": 2,
                "batch": 3,
            }
            part = nodes["part"].id
            assert {(first.id, part, "success"), (part, last.id, "success"), (part, id, "member")} <= edges_of(graph)
            assert nodes["plain"].counts == {"scheduled": 1, "waiting": 1}

    async def test_an_unknown_id_has_no_graph(self, store_user: StoreUser) -> None:
        graph = await store_user.storage.graph("nobody", 10)
        assert (list(graph.nodes), graph.is_folded) == ([], False)
