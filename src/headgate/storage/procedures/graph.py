"""The jobs and batches that are connected with each other: what follows what."""

from __future__ import annotations

import msgspec

from headgate.jobs.identity import JobId
from headgate.storage.driver import Transaction
from headgate.storage.records import GraphEdge, GraphNode, JobGraph
from headgate.storage.stored_rows import RowDecoder

MOST_MEMBERS = 1_000
"""How many jobs of a batch are read; those that follow nothing and are not followed are not part of the graph."""


EDGES_PER_NODE = 20
"""A picture of more lines would say nothing."""


class _Job(msgspec.Struct):
    id: JobId
    task: str
    state: str
    follows: JobId | None
    needs: str | None
    batch: JobId | None


class _Batch(msgspec.Struct):
    id: JobId
    state: str
    total: int
    done: int
    batch: JobId | None
    is_join: bool


class _Joined(msgspec.Struct):
    batch: JobId
    leader: JobId


_JOBS = RowDecoder(_Job, "job")
_BATCHES = RowDecoder(_Batch, "batch")
_JOINED = RowDecoder(_Joined, "leader of batch")


async def graph(tx: Transaction, start: str, most: int) -> JobGraph:
    """Return the jobs and batches that are connected with a job or a batch, up to `most`.

    Jobs of a batch that follow nothing and are not followed are not part of it.
    """
    found = _Graph()
    todo = {start}
    while todo and len(found.nodes) <= most and not found.has_too_many_edges:
        ids = sorted(todo)[: most + 1]
        found.seen.update(ids)
        todo = (todo | await _read(tx, found, ids, most)) - found.seen
    return found.result(most, is_cut=bool(todo) or found.has_too_many_edges)


class _Graph:
    """What has been read of a graph; a join is no node of it, but connects each of its leaders with its followers."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.nodes: dict[str, GraphNode] = {}
        self.has_too_many_edges = False
        self._follows: dict[str, tuple[str, str]] = {}
        self._members: set[GraphEdge] = set()
        self._leaders: dict[str, set[str]] = {}

    def add_job(self, job: _Job) -> set[str]:
        """Add a job. Returns the ids beside it."""
        self.nodes[job.id] = GraphNode(job.id, job.task, job.state)
        if job.follows is not None:
            self._follows[job.id] = (job.follows, job.needs or "success")
        return {id for id in (job.follows, self._add_member(job.id, job.batch)) if id is not None}

    def add_batch(self, batch: _Batch) -> set[str]:
        """Add a batch. Returns the ids beside it."""
        if batch.is_join:
            self._leaders.setdefault(batch.id, set())
        else:
            self.nodes[batch.id] = GraphNode(batch.id, None, batch.state, batch.total, batch.done)
        outer = self._add_member(batch.id, batch.batch)
        return set() if outer is None else {outer}

    def add_leader(self, joined: _Joined) -> set[str]:
        """Add a leader that a join counts. Returns both ids."""
        self._leaders.setdefault(joined.batch, set()).add(joined.leader)
        return {joined.batch, joined.leader}

    def _add_member(self, id: str, batch: str | None) -> str | None:
        if batch is not None:
            self._members.add(GraphEdge(id, batch, "member"))
        return batch

    def result(self, most: int, *, is_cut: bool) -> JobGraph:
        """Return the graph. A leader that is not stored any more is a node without a state."""
        edges = {
            GraphEdge(leader, job, needs)
            for job, (follows, needs) in self._follows.items()
            for leader in self._leaders.get(follows, {follows})
        } | self._members
        nodes = dict(self.nodes)
        for edge in edges:
            for id in (edge.source, edge.target):
                if id in self.seen and id not in nodes and id not in self._leaders:
                    nodes[id] = GraphNode(id, None, None)
        if is_cut or len(nodes) > most:
            return JobGraph([], [], is_cut=True)
        kept = [edge for edge in edges if edge.source in nodes and edge.target in nodes]
        return JobGraph(sorted(nodes.values(), key=_id), sorted(kept, key=_ends), is_cut=False)


async def _read(tx: Transaction, found: _Graph, ids: list[str], most: int) -> set[str]:
    """Add what has these ids to the graph. Returns the ids beside them."""
    beside: set[str] = set()
    for job in await tx.fetch(_JOBS, "graph_jobs", ids=ids, now=tx.now, limit_now=tx.limit_now):
        beside |= found.add_job(job)
    for batch in await tx.fetch(_BATCHES, "graph_batches", ids=ids):
        beside |= found.add_batch(batch)
        if not batch.is_join:
            beside |= set(await tx.ids("graph_members", id=batch.id, most=MOST_MEMBERS, count=most + 1))
    beside |= set(await tx.ids("graph_followers", ids=ids, count=most + 1))
    most_edges = EDGES_PER_NODE * most
    joins = await tx.fetch(_JOINED, "graph_joins", ids=ids, count=most_edges + 1)
    found.has_too_many_edges = len(joins) > most_edges
    for joined in joins:
        beside |= found.add_leader(joined)
    return beside


def _id(node: GraphNode) -> str:
    return node.id


def _ends(edge: GraphEdge) -> tuple[str, str]:
    return edge.source, edge.target
