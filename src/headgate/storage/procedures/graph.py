"""The jobs and batches that are connected: what follows what, one by one or folded, and what is after a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter

import msgspec

from headgate.jobs.graph import critical_path, depths
from headgate.jobs.identity import JobId
from headgate.jobs.state import JobState
from headgate.storage.driver import Transaction
from headgate.storage.procedures.listing import batches_by_id
from headgate.storage.records import FINAL_STATES, Downstream, GraphEdge, GraphNode, JobGraph
from headgate.storage.stored_rows import RowDecoder

MOST_MEMBERS = 1_000
"""How many jobs of a batch are read; those that follow nothing and are not followed are counted."""

EDGES_PER_NODE = 20
"""How many edges there may be for each node; a picture of more lines would say nothing."""

MOST_READ = 1_000
"""How many jobs and batches of a folded graph are read; of a larger one, a sample shows what follows what."""

SAMPLED = 100
"""How many jobs and batches of a larger graph are read in a round."""

MOST_ROUNDS = 20
"""How many rounds there are at most; each takes four statements."""

MOST_SAMPLED = 500
"""Once so many jobs and batches of a larger graph are read, they are enough."""

MOST_COUNTED = 50_000
"""How many jobs of a batch are counted."""

MOST_GROUPS = 100
"""If there are more groups by task and depth, as of a long chain, they are groups by task."""

_URGENT = (
    "failed",
    "running",
    "pending",
    "throttled",
    "ready",
    "waiting",
    "scheduled",
    "blocked",
    "cancelled",
    "skipped",
)


class _StoredNode(msgspec.Struct):
    """A job, a batch or a join; only a job has a task."""

    id: JobId
    task: str | None
    state: str
    batch: JobId | None
    finished_at: int | None
    follows: JobId | None
    needs: str | None
    total: int | None
    done: int | None
    name: str | None
    is_join: bool


class _Count(msgspec.Struct):
    task: str
    state: str
    is_plain: bool
    jobs: int
    first: JobId
    last: JobId


class _Reached(msgspec.Struct):
    id: JobId
    state: JobState
    cancel_requested: bool
    is_blocked: bool
    needs: str | None
    follows: JobId | None

    @property
    def is_released(self) -> bool:
        """Whether the cancellation of others releases it, and so it has to be cancelled before them."""
        return self.is_blocked and self.needs not in (None, "success")


class _Counted(msgspec.Struct):
    """A job or a batch, and a batch or a join that counts it."""

    id: JobId
    counted_by: JobId


_NODES = RowDecoder(_StoredNode, "job or batch")
_COUNTS = RowDecoder(_Count, "count of jobs")
_DOWNSTREAM = RowDecoder(_Reached, "job", state=JobState.WAITING)
_COUNTED = RowDecoder(_Counted, "member of batch")


async def graph(tx: Transaction, start: str, most: int) -> JobGraph:
    """Return the jobs and batches that are connected with a job or a batch; more than `most` are folded into groups.

    Jobs of a batch that follow nothing and are not followed are not part of it; if it starts at the batch, they are
    groups by task.
    """
    found, todo = await _walk(tx, start, most)
    is_whole = not todo and len(found.nodes) <= most
    batch = found.batch_of(start)
    counts: list[_Count] = []
    if batch is not None and (batch == start or not is_whole):
        counts = await tx.fetch(_COUNTS, "graph_counts", id=batch, now=tx.now, most=MOST_COUNTED, count=MOST_READ)
    plain = [] if batch is None else _plain_groups(batch, counts)
    if is_whole and not found.has_too_many_edges:
        return found.result(plain)
    if batch is None or (found.nodes[batch].total or 0) <= MOST_READ:
        found, todo = await _walk(tx, start, MOST_READ)
        if not todo and not found.has_too_many_edges:
            is_at_least = any((node.total or 0) > MOST_MEMBERS for node in found.nodes.values())
            return found.folded(plain, {}, is_at_least=is_at_least)
    if batch is not None:
        ends = {id for each in counts if not each.is_plain for id in (each.first, each.last)}
        found = await _sample(tx, {start, batch, *ends})
    tasks: dict[str, Counter[str]] = {}
    for each in counts:
        if not each.is_plain:
            tasks.setdefault(each.task, Counter())[each.state] += each.jobs
    is_counted = bool(counts) and sum(each.jobs for each in counts) < MOST_COUNTED
    return found.folded(plain, tasks, is_at_least=not is_counted, batch=batch)


def _plain_groups(batch: str, counts: Sequence[_Count]) -> list[tuple[GraphNode, GraphEdge]]:
    """Return the jobs of a batch that follow nothing and are not followed, as groups by task."""
    is_at_least = sum(each.jobs for each in counts) >= MOST_COUNTED
    nodes: list[GraphNode] = []
    for task, alike in groupby((each for each in counts if each.is_plain), key=lambda each: each.task):
        states = list(alike)
        if sum(each.jobs for each in states) == 1:
            nodes.append(GraphNode(states[0].first, task, states[0].state, depth=0))
        else:
            by_state = {each.state: each.jobs for each in states}
            nodes.append(_group(f"alone:{task}", task, by_state, 0, is_at_least))
    return [(node, GraphEdge(node.id, batch, "member")) for node in nodes]


def _group(id: str, task: str | None, states: Mapping[str, int], depth: int, is_at_least: bool) -> GraphNode:
    state = next((state for state in _URGENT if states.get(state)), "succeeded")
    done = sum(states.get(each, 0) for each in FINAL_STATES)
    return GraphNode(id, task, state, sum(states.values()), done, dict(sorted(states.items())), depth, is_at_least)


class _Graph:
    """The part of a graph that was read; a join is no node, but connects each of its leaders with its followers."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.nodes: dict[str, GraphNode] = {}
        self.has_too_many_edges = False
        self._ended_at: dict[str, int | None] = {}
        self._follows: dict[str, tuple[str, str]] = {}
        self._batches: dict[str, str] = {}
        self._leaders: dict[str, set[str]] = {}

    def batch_of(self, id: str) -> str | None:
        """Return the id itself if it is a batch, else the batch of that job, if it has been read."""
        batch = id if id in self.nodes and self.nodes[id].task is None else self._batches.get(id)
        return batch if batch in self.nodes else None

    def add(self, node: _StoredNode) -> set[str]:
        """Add a job, a batch or a join. Returns the ids beside it."""
        if node.is_join:
            self._leaders.setdefault(node.id, set())
        else:
            self.nodes[node.id] = GraphNode(node.id, node.task, node.state, node.total, node.done, name=node.name)
            self._ended_at[node.id] = node.finished_at
        if node.follows is not None:
            self._follows[node.id] = (node.follows, node.needs or "success")
        if node.batch is not None:
            self._batches[node.id] = node.batch
        return {id for id in (node.follows, node.batch) if id is not None}

    def add_leader(self, leader: _Counted) -> set[str]:
        """Add a leader that a join counts. Returns both ids."""
        self._leaders.setdefault(leader.counted_by, set()).add(leader.id)
        return {leader.counted_by, leader.id}

    def _edges(self) -> set[GraphEdge]:
        """Return the edges between nodes. A leader that is not stored any more becomes a node without a state."""
        edges = {
            GraphEdge(leader, job, needs)
            for job, (follows, needs) in self._follows.items()
            for leader in self._leaders.get(follows, {follows})
        } | {GraphEdge(id, batch, "member") for id, batch in self._batches.items()}
        for edge in edges:
            for id in (edge.source, edge.target):
                if id in self.seen and id not in self.nodes and id not in self._leaders:
                    self.nodes[id] = GraphNode(id, None, None)
        return {edge for edge in edges if edge.source in self.nodes and edge.target in self.nodes}

    def _leaders_in(self, edges: set[GraphEdge]) -> Mapping[str, Sequence[str]]:
        return _leaders(sorted(self.nodes), ((edge.source, edge.target) for edge in edges))

    def result(self, plain: Sequence[tuple[GraphNode, GraphEdge]]) -> JobGraph:
        """Return the graph as it is, with the groups of plain jobs."""
        edges = self._edges()
        critical = critical_path(self._leaders_in(edges), self._ended_at)
        return _in_order(list(self.nodes.values()), edges, plain, is_folded=False, critical=critical)

    def folded(
        self,
        plain: Sequence[tuple[GraphNode, GraphEdge]],
        tasks: Mapping[str, Mapping[str, int]],
        *,
        is_at_least: bool,
        batch: str | None = None,
    ) -> JobGraph:
        """Return groups by task and depth; a batch around all, and what is alone in its group, stay as they are.

        `tasks` are counts of the jobs in `batch`. They replace what was read of a task that has one depth only.
        """
        edges = self._edges()
        depth = depths(self._leaders_in(edges))
        keys: dict[str, Hashable] = {id: (*_kind(node), depth[id]) for id, node in self.nodes.items()}
        if len(set(keys.values())) > MOST_GROUPS:
            keys = {id: _kind(node) for id, node in self.nodes.items()}
        around = set(self._batches.values())
        for id in around & keys.keys():
            if len(around) <= MOST_GROUPS:
                keys[id] = id
        groups: dict[Hashable, list[str]] = {}
        for id, key in sorted(keys.items()):
            groups.setdefault(key, []).append(id)
        several = Counter(node.task for node in (self.nodes[ids[0]] for ids in groups.values()))
        nodes: list[GraphNode] = []
        names: dict[Hashable, str] = {}
        for key, ids in groups.items():
            first = self.nodes[ids[0]]
            lowest = min(depth[id] for id in ids)
            counted = tasks.get(first.task or "") if several[first.task] == 1 else None
            states = Counter(self.nodes[id].state or "deleted" for id in ids)
            is_exact = not is_at_least
            if counted is not None and all(self._batches.get(id) == batch for id in ids):
                states = Counter(counted)
            elif tasks:
                is_exact = False
            if states.total() > 1:
                node = _group(f"{lowest}:{first.task or ''}", first.task, states, lowest, not is_exact)
            else:
                node = msgspec.structs.replace(first, depth=lowest)
            nodes.append(node)
            names[key] = node.id
        between = {GraphEdge(names[keys[edge.source]], names[keys[edge.target]], edge.needs) for edge in edges}
        return _in_order(nodes, {edge for edge in between if edge.source != edge.target}, plain, is_folded=True)


def _kind(node: GraphNode) -> tuple[str | None, bool]:
    return node.task, node.state is None


def _leaders(ids: Iterable[str], pairs: Iterable[tuple[str, str]]) -> Mapping[str, Sequence[str]]:
    """Return what comes before each of these ids, given pairs of an id and one after it."""
    leaders: dict[str, list[str]] = {id: [] for id in ids}
    for before, after in pairs:
        leaders[after].append(before)
    return leaders


def _in_order(
    nodes: list[GraphNode],
    edges: set[GraphEdge],
    plain: Sequence[tuple[GraphNode, GraphEdge]],
    *,
    is_folded: bool,
    critical: Sequence[str] = (),
) -> JobGraph:
    """Return these nodes and edges, and those of plain jobs that were not read, in one order."""
    read = {node.id for node in nodes}
    nodes = nodes + [node for node, _ in plain if node.id not in read]
    edges = edges | {edge for _, edge in plain}
    in_order = sorted(edges, key=attrgetter("source", "target", "needs"))
    return JobGraph(sorted(nodes, key=attrgetter("id")), in_order, is_folded, critical)


async def _walk(tx: Transaction, start: str, most: int) -> tuple[_Graph, set[str]]:
    """Read what is connected with an id, up to about `most` jobs and batches. Returns also the ids that were not read.

    It stops at too many edges.
    """
    found, todo, most_edges = _Graph(), {start}, most * EDGES_PER_NODE
    while todo and len(found.nodes) <= most and not found.has_too_many_edges:
        ids = sorted(todo)[: most + 1]
        found.seen.update(ids)
        todo = (todo | await _read(tx, found, ids, most + 1, most_edges, members=MOST_MEMBERS)) - found.seen
    return found, todo


async def _sample(tx: Transaction, todo: set[str]) -> _Graph:
    """Read some of what is connected with these ids, the first and the last ids first: later steps have higher ones."""
    found = _Graph()
    for _ in range(MOST_ROUNDS):
        ids = sorted(todo)
        if len(ids) > SAMPLED:
            ids = ids[: SAMPLED // 2] + ids[-SAMPLED // 2 :]
        if not ids or len(found.nodes) > MOST_SAMPLED:
            break
        found.seen.update(ids)
        todo = (todo | await _read(tx, found, ids, SAMPLED, SAMPLED, members=0)) - found.seen
    return found


async def _read(
    tx: Transaction, found: _Graph, ids: list[str], count: int, most_edges: int, *, members: int
) -> set[str]:
    """Add what has these ids to the graph. Returns the ids beside them."""
    beside: set[str] = set()
    for node in await tx.fetch(_NODES, "graph_nodes", ids=ids, now=tx.now, limit_now=tx.limit_now):
        beside |= found.add(node)
        if node.task is None and not node.is_join and members:
            beside |= set(await tx.ids("graph_members", id=node.id, most=members, count=count))
    beside |= set(await tx.ids("graph_followers", ids=ids, count=count))
    joins = await tx.fetch(_COUNTED, "graph_joins", ids=ids, count=most_edges + 1)
    found.has_too_many_edges = len(joins) > most_edges
    for joined in joins:
        beside |= found.add_leader(joined)
    return beside


async def downstream_of(tx: Transaction, batch_id: str) -> Downstream:
    """Return the jobs to cancel with a batch, as far as they are not final.

    Its jobs, those of the batches in it, and each job after them that then would wait for nothing else.

    From each batch in it and each job that is found, go on to what follows it. A batch or join outside is reached when
    all of its members that are not final are: what follows it waits for nothing else.
    """
    jobs: dict[str, _Reached] = {}
    order: list[tuple[str, str]] = []
    reached = {batch_id}
    counted: Counter[str] = Counter()
    inside = leaders = [batch_id]
    while leaders:
        found = await tx.fetch(_DOWNSTREAM, "downstream_jobs", batches=inside, leaders=leaders)
        new = [job for job in found if job.id not in jobs]
        jobs.update((job.id, job) for job in new)
        members = [*(job.id for job in new), *leaders]
        inside = [id for id in await tx.ids("pending_batches_in", batches=inside) if id not in reached]
        counting = await tx.fetch(_COUNTED, "counting_batches", members=members)
        counted.update(each.counted_by for each in counting)
        order += [(each.id, each.counted_by) for each in counting]
        touched = sorted({each.counted_by for each in counting} - reached - set(inside))
        pending = await batches_by_id(tx, touched) if touched else []
        leaders = [*inside, *(each.id for each in pending if counted[each.id] >= each.pending)]
        reached.update(leaders)
    order += [(job.follows, job.id) for job in jobs.values() if job.follows is not None]
    left = [job for job in jobs.values() if not job.cancel_requested]
    released = [job for job in left if job.is_released]
    # It takes 2 s for a million jobs, and matters only if the end of one releases another.
    depth = depths(_leaders(chain.from_iterable(order), order)) if released else {}
    released.sort(key=lambda job: (-depth.get(job.id, 0), job.id))
    others = sorted((job for job in left if not job.is_released), key=lambda job: (job.is_blocked, job.id))
    requested = [job.id for job in jobs.values() if job.cancel_requested]
    return Downstream([job.id for job in released], [job.id for job in others], requested)
