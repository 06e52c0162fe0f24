"""The store's verbs on a SQLite connection, each inside a write transaction that the caller commits."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from headgate.clock import Clock
from headgate.jobs.job import Draw, JobError, JobState, NewJob
from headgate.jobs.lifecycle import Ending, Finished, Returned, is_poisonous, require_transition
from headgate.limits.limit import AnyRule
from headgate.storage.protocol import (
    EXPIRED_ERROR,
    Beat,
    Claim,
    Claimed,
    Expired,
    LateStart,
    NodeRecord,
    Recovered,
    poison_error,
)
from headgate.storage.sqlite.claim import ClaimTransaction, decode_buckets
from headgate.storage.sqlite.connection import is_running, pid_space, process_started
from headgate.storage.sqlite.statements import STATEMENTS, as_json, execute, fetch


class Running(msgspec.Struct, array_like=True):
    """A running job that an ending matched."""

    seq: int
    id: str
    fence: int
    draws: str


class Owned(msgspec.Struct, array_like=True):
    seq: int
    id: str
    fence: int
    cancel_requested: int
    lost: int


class NodeRow(msgspec.Struct, array_like=True):
    id: str
    name: str
    pid: int
    started_at: int
    beat_at: int
    beat: int
    running: int
    pid_space: str
    process_started: str
    boot_id: str
    port: int


class Expiring(msgspec.Struct, array_like=True):
    seq: int
    lane: int
    id: str
    task: str
    queue: str


_decode_running = msgspec.json.Decoder(list[Running]).decode
_decode_owned = msgspec.json.Decoder(list[Owned]).decode
_decode_nodes = msgspec.json.Decoder(list[NodeRow]).decode
_decode_expiring = msgspec.json.Decoder(list[Expiring]).decode
_decode_ids = msgspec.json.Decoder(list[str]).decode


class Transaction:
    """What one write transaction can do. `now` is wall time, `limit_now` limit time, both fixed for its length."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock, ahead: int) -> None:
        self._connection = connection
        self._clock = clock
        self._ahead = ahead
        self._now = clock.now()
        self._limit_now = clock.monotonic() + ahead

    # ---------------------------------------------------------------------------------------------- jobs

    def add(self, jobs: Sequence[NewJob]) -> None:
        if not jobs:
            return
        rows = as_json(jobs)
        lanes = as_json(_lanes_of(jobs))
        execute(self._connection, "add_lanes", lanes=lanes)
        try:
            execute(self._connection, "add_jobs", jobs=rows)
        except sqlite3.IntegrityError as error:
            new = self._not_stored(jobs)
            if len(new) == len(jobs):
                raise error from None
            # A repeat after a lost reply: what is stored stays as it is.
            self.add(new)
            return
        execute(self._connection, "add_arm", lanes=lanes, limit_now=self._limit_now)

    def _not_stored(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        by_id = {job.id: job for job in jobs}
        for stored in _decode_ids(fetch(self._connection, "stored_ids", ids=as_json(list(by_id)))):
            del by_id[stored]
        return list(by_id.values())

    def claim(self, claim: Claim) -> Claimed:
        # Dated as late as can be: what was written before in this transaction has taken its time.
        now, limit_now = self._clock.now(), self._clock.monotonic() + self._ahead
        return ClaimTransaction(self._connection, claim, now, limit_now).run()

    def finish(self, node: str, endings: Sequence[Ending]) -> list[bool]:
        pairs = as_json([(ending.id, ending.fence) for ending in endings])
        running = {
            (row.id, row.fence): row
            for row in _decode_running(fetch(self._connection, "still_running", node=node, endings=pairs))
        }
        written = [ending for ending in endings if (ending.id, ending.fence) in running]
        finished = [ending for ending in written if isinstance(ending, Finished)]
        returned = [ending for ending in written if isinstance(ending, Returned)]
        self._keep_attempts(
            [(running[e.id, e.fence].seq, str(e.state), e.error) for e in finished if e.state is not JobState.SUCCEEDED]
            + [(running[e.id, e.fence].seq, e.outcome, e.error) for e in returned]
        )
        if finished:
            rows = [(running[e.id, e.fence].seq, e.state, e.result, e.error) for e in finished]
            execute(self._connection, "finish", now=self._now, endings=as_json(rows))
        if returned:
            self._give_back([(running[ending.id, ending.fence], ending) for ending in returned])
        return [(ending.id, ending.fence) in running for ending in endings]

    def _give_back(self, returned: Sequence[tuple[Running, Returned]]) -> None:
        for row, ending in returned:
            self._wait_again(row.seq, unspent=not ending.spent, run_at=ending.run_at, error=ending.error)
            if ending.closed_for is not None and row.draws != "[]":
                until = self._limit_now + ending.closed_for
                execute(self._connection, "close_buckets", draws=row.draws, until=until)
        self._arm([row.seq for row, _ in returned])

    def _keep_attempts(self, attempts: Sequence[tuple[int, str, JobError | None]]) -> None:
        if attempts:
            execute(self._connection, "keep_attempts", attempts=as_json(attempts), now=self._now)

    def _wait_again(
        self, seq: int, *, unspent: bool, lost: bool = False, run_at: int | None = None, error: JobError | None = None
    ) -> None:
        execute(
            self._connection,
            "give_back",
            seq=seq,
            now=self._now,
            unspent=int(unspent),
            lost=int(lost),
            run_at=run_at,
            error=None if error is None else as_json(error),
        )

    def _arm(self, seqs: Sequence[int]) -> None:
        execute(self._connection, "arm", seqs=as_json(seqs), limit_now=self._limit_now)

    def _leave_lane(self, lane: int, jobs: int) -> None:
        behind = fetch(self._connection, "lanes_behind", lanes=as_json([lane]))
        execute(self._connection, "leave_lane", lane=lane, jobs=jobs)
        if behind != "[]":
            execute(self._connection, "clear_timers", buckets=behind)

    def postpone(self, late: Sequence[LateStart], rules: Mapping[str, AnyRule]) -> None:
        draws = as_json(list({start.draw for start in late}))
        states = {
            Draw(row.limit, row.key): rules[row.limit].load(row.state, self._limit_now)
            for row in decode_buckets(fetch(self._connection, "buckets_of", draws=draws))
            if row.state is not None and row.limit in rules
        }
        for start in late:
            if start.draw in states:
                rule = rules[start.draw.limit]
                states[start.draw] = rule.amend(
                    states[start.draw], start.charged_at, start.cost, start.started_at, start.cost
                )
        rows = [
            (draw.limit, draw.key, rules[draw.limit].dump(state), rules[draw.limit].idle_at(state))
            for draw, state in states.items()
        ]
        execute(self._connection, "charge", buckets=as_json(rows))

    def cancel(self, job_id: str) -> JobState | None:
        found = self._find(job_id)
        if found is None:
            return None
        seq, state, lane, _queue, _draws = found
        if state is JobState.WAITING:
            execute(self._connection, "cancel_waiting", seq=seq, now=self._now)
            self._leave_lane(lane, 1)
        elif state is JobState.RUNNING:
            execute(self._connection, "request_cancel", seq=seq)
        return state

    def retry(self, job_id: str) -> JobState | None:
        found = self._find(job_id)
        if found is None:
            return None
        seq, state, _lane, queue, draws = found
        require_transition(state, JobState.WAITING)
        if state is JobState.RUNNING:
            # Running jobs wait again by their outcome, never by an operator's word.
            require_transition(JobState.WAITING, JobState.WAITING)
        lane = fetch(self._connection, "find_lane", queue=queue, draws=draws)
        execute(self._connection, "retry_job", seq=seq, lane=lane, now=self._now)
        self._arm([seq])
        return state

    def _find(self, job_id: str) -> tuple[int, JobState, int, str, str] | None:
        rows = self._connection.execute(STATEMENTS["find_job"], {"id": job_id}).fetchall()
        if not rows:
            return None
        seq, state, lane, queue, draws = rows[0]
        return seq, JobState(state), lane, queue, draws

    # --------------------------------------------------------------------------------------------- nodes

    def join(self, node: str, name: str, pid: int, port: int) -> None:
        execute(
            self._connection,
            "join",
            id=node,
            name=name,
            pid=pid,
            pid_space=pid_space(),
            process_started=process_started(pid),
            boot_id=self._clock.boot_id(),
            port=port,
            now=self._now,
        )

    def beat(self, node: str) -> Beat:
        known = execute(self._connection, "beat", id=node, now=self._now) == 1
        owned = _decode_owned(fetch(self._connection, "owned", node=node))
        return Beat(
            known=known,
            nodes=node_records(self._connection, self._clock),
            owned={job.id: job.fence for job in owned},
            cancels=frozenset(job.id for job in owned if job.cancel_requested),
        )

    def leave(self, node: str) -> Recovered:
        execute(self._connection, "remove_node", id=node, beat=None)
        owned = _decode_owned(fetch(self._connection, "owned", node=node))
        self._keep_attempts([(job.seq, "interrupted", None) for job in owned])
        for job in owned:
            self._wait_again(job.seq, unspent=True)
        self._arm([job.seq for job in owned])
        return Recovered(returned=[job.id for job in owned if not job.cancel_requested])

    def recover(self, node: str, beat: int) -> Recovered | None:
        if execute(self._connection, "remove_node", id=node, beat=beat) == 0:
            return None
        owned = _decode_owned(fetch(self._connection, "owned", node=node))
        self._keep_attempts([(job.seq, "lost", None) for job in owned])
        poisonous = [job for job in owned if is_poisonous(job.lost + 1) and not job.cancel_requested]
        doomed = {job.seq for job in poisonous}
        returned = [job for job in owned if job.seq not in doomed]
        for job in poisonous:
            error = as_json(poison_error(job.lost + 1))
            execute(self._connection, "fail_poisonous", seq=job.seq, now=self._now, error=error)
        for job in returned:
            self._wait_again(job.seq, unspent=False, lost=True)
        self._arm([job.seq for job in returned])
        return Recovered(
            returned=[job.id for job in returned if not job.cancel_requested],
            poisonous=[job.id for job in poisonous],
        )

    # --------------------------------------------------------------------------------------- housekeeping

    def expire(self, count: int) -> list[Expired]:
        rows = _decode_expiring(fetch(self._connection, "expired", now=self._now, count=count))
        if rows:
            seqs = as_json([row.seq for row in rows])
            execute(self._connection, "fail_waiting", seqs=seqs, now=self._now, error=as_json(EXPIRED_ERROR))
            lanes: dict[int, int] = {}
            for row in rows:
                lanes[row.lane] = lanes.get(row.lane, 0) + 1
            for lane, jobs in lanes.items():
                self._leave_lane(lane, jobs)
        return [Expired(row.id, row.task, row.queue) for row in rows]

    def prune(self, finished_before: int, count: int) -> int:
        seqs = fetch(self._connection, "prunable", before=finished_before, count=count)
        if seqs == "[]":
            return 0
        execute(self._connection, "prune_attempts", seqs=seqs)
        return execute(self._connection, "prune_jobs", seqs=seqs)

    def evict(self, count: int) -> int:
        buckets = execute(self._connection, "evict_buckets", limit_now=self._limit_now, count=count)
        return buckets + execute(self._connection, "evict_lanes", count=count)


LaneArrivals = tuple[str, str, int, int, int | None]
"""A lane's queue and draws, how many jobs it gets, how many of them are ready, when the first delayed one is due."""


def _lanes_of(jobs: Sequence[NewJob]) -> list[LaneArrivals]:
    # Counted here rather than in SQL, where it took two more passes over all rows: 7.4 µs a job against 5.3.
    lanes: dict[tuple[str, tuple[Draw, ...]], list[int]] = {}
    earliest: dict[tuple[str, tuple[Draw, ...]], int] = {}
    for job in jobs:
        lane = (job.queue, job.draws)
        counts = lanes.get(lane)
        if counts is None:
            counts = lanes[lane] = [0, 0]
        counts[0] += 1
        if not job.delayed:
            counts[1] += 1
        elif job.run_at < earliest.get(lane, job.run_at + 1):
            earliest[lane] = job.run_at
    return [
        (queue, as_json(draws), total, ready, earliest.get((queue, draws)))
        for (queue, draws), (total, ready) in lanes.items()
    ]


def node_records(connection: sqlite3.Connection, clock: Clock) -> list[NodeRecord]:
    """All nodes; those of an earlier boot, or whose process has ended, are gone."""
    boot_id, space = clock.boot_id(), pid_space()
    return [
        NodeRecord(
            row.id,
            row.name,
            row.pid,
            row.started_at,
            row.beat_at,
            row.beat,
            row.running,
            # Another process id space (a container beside this one) cannot be looked into: there the lease decides.
            is_gone=row.boot_id != boot_id or (row.pid_space == space and not is_running(row.pid, row.process_started)),
        )
        for row in _decode_nodes(fetch(connection, "nodes"))
    ]
