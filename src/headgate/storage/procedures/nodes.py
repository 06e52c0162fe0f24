"""Nodes: processes that run jobs, with leases that they renew.

A process of this machine is identified by its id and its start, because ids are reused.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.jobs.audit import AuditRecord
from headgate.jobs.identity import JobId
from headgate.jobs.job import JobState
from headgate.jobs.lifecycle import Returned, is_poisonous
from headgate.jobs.limit_sets import subject_of
from headgate.storage.driver import Transaction
from headgate.storage.endings import poison_error
from headgate.storage.procedures.alerts import KEPT_FOR
from headgate.storage.procedures.audit import add_audit_record
from headgate.storage.procedures.finish import end, keep_attempts, lock_all, release_held, running_on, wait_again
from headgate.storage.procedures.following import resolve_followers
from headgate.storage.records import (
    Beat,
    DeployRecord,
    EditNode,
    Gone,
    LostNode,
    NodeControls,
    NodeRecord,
    NodeUpdate,
    Peer,
    Recovered,
)
from headgate.storage.statements import as_json, optional_json
from headgate.storage.stored_rows import RowDecoder
from headgate.views import view_of


class _Process(msgspec.Struct):
    """A node, and the facts that show whether its process still runs."""

    id: str
    pid: int
    beat: int
    pid_space: str
    process_started: str
    boot_id: str
    gone: str | None

    def is_gone(self, boot_id: str, space: str) -> bool:
        """Whether its process has certainly ended, for a caller in this boot and PID namespace.

        Processes in another PID namespace (a container beside this one) cannot be seen, nor those of another boot: that
        may be another machine, a container with a kernel of its own, or the same boot of a Mac whose clock was set. For
        them, only the lease decides.
        """
        if self.gone is not None:
            return True
        is_visible = self.boot_id == boot_id and self.pid_space == space
        return is_visible and not is_running(self.pid, self.process_started)


class _Node(_Process):
    name: str
    started_at: int
    beat_at: int
    running: int
    queues: dict[str, int]
    slots: int | None
    is_quiet: bool
    is_stopping: bool
    labels: tuple[str, ...]
    version: str
    release: str | None
    lingering: tuple[str, ...]


class _Peer(_Process):
    queues: dict[str, int] | None
    name: str | None
    slots: int | None
    is_quiet: bool
    is_stopping: bool
    has_expired: bool
    has_followers: bool
    has_arrived: bool


class _Declaration(msgspec.Struct):
    tasks: dict[str, list[str]]
    queues: dict[str, int]
    labels: tuple[str, ...]
    is_quiet: bool


class MissingNode(msgspec.Struct):
    """A node that has started jobs and that is not there: how many still run on it, and one of them."""

    id: str
    jobs: int
    job: JobId | None


DEPLOYS_KEPT = 400 * 86_400 * SECOND
"""How long deploys are kept, in microseconds."""

_DEPLOYS = RowDecoder(DeployRecord, "deploy")
_DECLARATIONS = RowDecoder(_Declaration, "node")
_NODES = RowDecoder(_Node, "node")
_LOST = RowDecoder(LostNode, "node")
MISSING = RowDecoder(MissingNode, "node")
_PEERS = RowDecoder(_Peer, "node")
_CONTROLS = RowDecoder(NodeControls, "node")


async def join(
    tx: Transaction,
    node: str,
    name: str,
    boot_id: str,
    controls: NodeControls,
    labels: Sequence[str],
    tasks: Mapping[str, Sequence[str]],
    version: str,
    release: str | None,
    port: int | None,
) -> None:
    """As `Store.join`, for this process, in this boot of its machine; `port` is where it receives wake-ups."""
    pid = os.getpid()
    await tx.execute(
        "join_node",
        id=node,
        name=name,
        pid=pid,
        pid_space=pid_space(),
        process_started=process_started(pid),
        boot_id=boot_id,
        now=tx.now,
        queues=as_json(controls.queues),
        slots=controls.slots,
        is_quiet=controls.is_quiet,
        labels=as_json(labels),
        tasks=as_json(tasks),
        version=version,
        release=release,
    )
    if port is not None:
        await tx.execute("announce_port", id=node, port=port)
    if release is not None and await tx.execute("add_deploy", node=node, release=release, now=tx.now):
        await tx.execute("prune_deploys", before=tx.now - DEPLOYS_KEPT)


async def deploys(tx: Transaction, since: int, count: int = 100) -> Sequence[DeployRecord]:
    """Return the last `count` deploys since then, oldest first."""
    found: list[DeployRecord] = []
    for each in reversed(await tx.fetch(_DEPLOYS, "deploys", since=since, count=count)):
        # Two nodes may have noted the same one.
        if not found or found[-1].release != each.release:
            found.append(each)
    return found


async def beat(
    tx: Transaction,
    node: str,
    *,
    lingering: Sequence[str] = (),
    tasks: Mapping[str, Sequence[str]] | None = None,
    started_since: int = 0,
    is_stopping: bool = False,
) -> Beat:
    """Renew a node's lease, store which jobs linger on it and that it stops, and return the jobs that it owns.

    Only those that started since `started_since` (wall time in microseconds); by default all. `tasks` as in `join`,
    if they have changed.
    """
    changed = await tx.execute(
        "beat", id=node, now=tx.now, lingering=as_json(lingering), tasks=optional_json(tasks), is_stopping=is_stopping
    )
    if not tx.has_one_writer:
        await tx.execute("use_limit_time", limit_now=tx.limit_now)
    owned = await running_on(tx, node, since=started_since)
    if not tx.has_one_writer:
        await tx.execute("forget_claims", node=node, since=started_since)
    return Beat(
        known=changed == 1,
        owned={job.id: job.fence for job in owned},
        cancels=frozenset(job.id for job in owned if job.cancel_requested),
    )


async def cancels(tx: Transaction, node: str, ids: Collection[str]) -> frozenset[str]:
    """Return those of these jobs that run on the node and whose cancellation was requested."""
    return frozenset(await tx.ids("cancels", node=node, ids=list(ids)))


async def node_update(tx: Transaction, node: str, boot_id: str, arrival_floor: int) -> NodeUpdate:
    """As `Store.node_update`, on the machine of that boot; arrivals have no lower id than `arrival_floor`."""
    space = pid_space()
    rows = await tx.fetch(_PEERS, "node_update", node=node, now=tx.now, arrival_floor=arrival_floor)
    if not rows:
        return NodeUpdate()
    controls = [
        NodeControls(row.queues, row.slots, row.is_quiet, row.is_stopping) for row in rows if row.queues is not None
    ]
    return NodeUpdate(
        peers=[Peer(row.id, row.beat, row.is_gone(boot_id, space)) for row in rows],
        has_expired=rows[0].has_expired,
        has_followers=rows[0].has_followers,
        has_arrived=rows[0].has_arrived,
        controls=controls[0] if controls else None,
        name=next((row.name for row in rows if row.name is not None), None),
    )


async def nodes(tx: Transaction, boot_id: str) -> list[NodeRecord]:
    """Return all nodes. A node whose process has certainly ended, on the machine of that boot, is gone."""
    space = pid_space()
    return [
        view_of(
            NodeRecord,
            row,
            is_gone=row.is_gone(boot_id, space),
            controls=NodeControls(row.queues, row.slots, row.is_quiet, row.is_stopping),
        )
        for row in await tx.fetch(_NODES, "nodes")
    ]


async def lost_nodes(tx: Transaction, count: int) -> Sequence[LostNode]:
    """Return the last `count` nodes that were declared dead in the last day, the last one first."""
    return await tx.fetch(_LOST, "lost_nodes", since=tx.now - KEPT_FOR, count=count)


async def declared_subjects(tx: Transaction) -> frozenset[str]:
    """Return what nodes that claim declare for queues that they serve, each as `task@queue`.

    What a node declares is a column of its row, so it ends with the row: as the node leaves, or is recovered.
    """
    return frozenset(
        subject_of(task, queue)
        for each in await tx.fetch(_DECLARATIONS, "declarations", other_than="")
        for queue, tasks in each.tasks.items()
        if each.queues.get(queue)
        for task in tasks
    )


async def runs_elsewhere(tx: Transaction, node: str, task: str, queue: str, requires: frozenset[str]) -> bool:
    """Return whether another node runs a task in a queue: it declares both, has the required labels, and claims."""
    return any(
        each.queues.get(queue) and task in each.tasks.get(queue, ()) and requires.issubset(each.labels)
        for each in await tx.fetch(_DECLARATIONS, "declarations", other_than=node)
        if not each.is_quiet
    )


async def declare(tx: Transaction, node: str, tasks: Mapping[str, Sequence[str]]) -> None:
    """Store what a node declares, without waiting for its next heartbeat."""
    await tx.execute("declare", id=node, tasks=as_json(tasks))


async def set_node(
    tx: Transaction, node: str, edit: EditNode, *, audit_record: AuditRecord | None = None
) -> bool | None:
    """Change what a node is set to do by `edit`. Returns whether that is a change; None if there is no such node.

    `edit` gets what is stored, and no other change comes in between. The audit record is stored with a change. The
    node reads it within a second.
    """
    found = await tx.fetch(_CONTROLS, "lock_node_controls", id=node)
    if not found:
        return None
    becomes = edit(found[0])
    if becomes == found[0]:
        return False
    await tx.execute(
        "set_node",
        id=node,
        queues=as_json(becomes.queues),
        slots=becomes.slots,
        is_quiet=becomes.is_quiet,
        is_stopping=becomes.is_stopping,
    )
    await add_audit_record(tx, audit_record)
    return True


async def rename_node(tx: Transaction, node: str, name: str, *, audit_record: AuditRecord | None = None) -> bool | None:
    """Give a node another name. Returns whether that is a change; None if there is no such node."""
    if not await tx.fetch(_CONTROLS, "lock_node_controls", id=node):
        return None
    if not await tx.execute("rename_node", id=node, name=name):
        return False
    await add_audit_record(tx, audit_record)
    return True


async def leave(tx: Transaction, held: frozenset[str], node: str) -> Recovered:
    """As `Store.leave`. Raises FollowersHeld for jobs that are not in `held`."""
    await tx.values("lock_node", id=node, beat=None)
    recovered = await _take_back(tx, node, "left", held)
    await _remove(tx, node, "left")
    return recovered


async def recover(tx: Transaction, held: frozenset[str], node: str, beat: int) -> Recovered | None:
    """Let the jobs of a dead node wait again, and the poisonous ones among them fail.

    Jobs that another transaction has locked, or that are `held`, stay with the node, which is recovered again later.
    None if it has sent a heartbeat since `beat`, or if nothing could be taken back. Raises FollowersHeld.
    """
    found: Sequence[Gone | None] = await tx.values("lock_node", id=node, beat=beat)
    if not found:
        return None
    (gone,) = found
    if gone is None:
        await tx.execute("note_lost_node", id=node, now=tx.now)
    recovered = await _take_back(tx, node, gone or "dead", held)
    if gone != "left" and recovered.returned:
        await tx.execute("add_returned", id=node, returned=len(recovered.returned))
    is_removed = await _remove(tx, node, gone or "dead")
    has_changed = recovered.returned or recovered.poisonous or recovered.completed or recovered.cancelled
    if gone is not None and not is_removed and not has_changed:
        return None
    return replace(recovered, known=gone)


async def add_missing_nodes(tx: Transaction) -> int:
    """Add the nodes that running jobs name and that are not there, as dead ones; `recover` takes their jobs back.

    Returns how many.

    The invariant: each running job has a node that others watch. Only what is outside of Headgate breaks it, as a node
    is deleted by the commit that takes back its last job; so this has one mechanism for what it finds, `recover`.
    """
    missing = await tx.fetch(MISSING, "missing_nodes")
    return sum([await tx.execute("add_missing_node", id=node.id, now=tx.now) for node in missing])


async def _take_back(tx: Transaction, node: str, gone: Gone, held: frozenset[str]) -> Recovered:
    """Let the jobs of a node wait again; their attempts are lost if it has died, and do not count if it has left.

    Those that their attempts had completed have succeeded. Their charges stay where they are: a handler is called at
    most the tolerated delay after its stored charge (`late_start`), so they count at the latest possible instant.
    """
    found = await lock_all(tx, node, held)
    complete, jobs = [job for job in found if job.is_complete], [job for job in found if not job.is_complete]
    is_lost = gone == "dead"
    outcome = "lost" if is_lost else "interrupted"
    await end(tx, [(job, JobState.SUCCEEDED, None, None) for job in complete])
    await keep_attempts(tx, [(job, outcome, None) for job in jobs])
    poisonous = {job.id: job for job in jobs if is_lost and is_poisonous(job.lost + 1) and not job.cancel_requested}
    await end(
        tx, [(job, JobState.FAILED, None, poison_error(job.lost + 1)) for job in poisonous.values()], are_lost=True
    )
    endings = [(job, Returned(job.id, job.fence, outcome, spent=is_lost)) for job in jobs if job.id not in poisonous]
    states = [
        *((job, JobState.SUCCEEDED) for job in complete),
        *((job, JobState.FAILED) for job in poisonous.values()),
        *await wait_again(tx, endings, are_lost=is_lost),
    ]
    await release_held(tx, states)
    await resolve_followers(tx, [job.ended(state) for job, state in states if state.is_final])
    return Recovered(
        returned=[job.id for job, state in states if state is JobState.WAITING],
        poisonous=list(poisonous),
        completed=[job.id for job in complete],
        cancelled=[job.id for job, state in states if state is JobState.CANCELLED],
    )


async def _remove(tx: Transaction, node: str, gone: Gone) -> bool:
    """Delete the node unless it still owns jobs. Returns whether it was deleted."""
    if not tx.has_one_writer:
        if await running_on(tx, node):
            await tx.execute("mark_gone", id=node, gone=gone)
            return False
        await tx.execute("remove_claims", node=node)
    await tx.execute("remove_node", id=node)
    return True


def process_started(pid: int) -> str:
    """Return when a process began, in the kernel's ticks; empty if it has ended or this cannot be read."""
    try:
        return _started(pid)
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return the start of a process; empty if it has ended. Raises OSError if no more files can be opened."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # The name in parentheses may contain anything, so count fields from its end.
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


def pid_space() -> str:
    """Return the PID namespace of this process: the same number is another process in another container."""
    try:
        return _own_space()
    except OSError:
        return "one"


def is_running(pid: int, started: str) -> bool:
    """Whether the process with this id and start is still running."""
    is_told = bool(started)
    try:
        found = (_own_start() if pid == os.getpid() else _started(pid)) if started else ""
    except OSError:
        # This process can open no files, so it cannot read whether others have ended.
        found, is_told = "", False
    if found:
        return found == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # A process of another user, which /proc may hide (hidepid).
        return True
    # A process of this user whose start cannot be read any more has ended, and its parent has not waited for it yet.
    return not is_told


@functools.cache
def _own_space() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


@functools.cache
def _own_start() -> str:
    return _started(os.getpid())


os.register_at_fork(after_in_child=_own_space.cache_clear)
os.register_at_fork(after_in_child=_own_start.cache_clear)
