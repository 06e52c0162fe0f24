"""PostgresStorage: the storage protocol on one PostgreSQL database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence, Set
from typing import Any, TypeVar

import asyncpg

from headgate.clock import SECOND, Clock, sleep
from headgate.errors import ForkedConnection, JobHeld, StorageUnavailable
from headgate.jobs.audit import AuditEntry, AuditFilter, Deed
from headgate.jobs.batch import BatchRecord, NewBatch
from headgate.jobs.gating import NO_GATES, GatedJob, KnownGates, Regated
from headgate.jobs.history import Flush, JobsStep, LimitStep
from headgate.jobs.job import Attempt, Draw, JobRecord, JobState, NewJob
from headgate.jobs.lifecycle import Ending
from headgate.jobs.report import LogLine, Report
from headgate.jobs.uniqueness import key_of
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.shielding import shield_until_done
from headgate.storage.batcher import Batcher
from headgate.storage.driver import Transaction
from headgate.storage.enlisting import enlisted
from headgate.storage.facts import PostgresFacts, TableFacts
from headgate.storage.following import FOLLOWERS_AT_ONCE
from headgate.storage.key_locks import KeyLocks
from headgate.storage.live_rules import EditSetting, LimitSetting
from headgate.storage.migrations import Migration
from headgate.storage.postgres.claimer import Claimer
from headgate.storage.postgres.database import PATIENCE, SUMMARIES, Database, Session, checked_url, place_of
from headgate.storage.postgres.enlisted import add_enlisted, session_of
from headgate.storage.postgres.limit_time import FOLLOW_EVERY, follow_clock
from headgate.storage.postgres.procedure_transaction import PostgresTransaction
from headgate.storage.postgres.schema import create, drop, migrate
from headgate.storage.postgres.server_time import OwnTime, ServerTime, StoreTime
from headgate.storage.postgres.silent_clients import SilentClients
from headgate.storage.postgres.statements import checked_schema
from headgate.storage.postgres.wake_ups import WakeUps
from headgate.storage.procedures import history, limits, listing, nodes, schedules, upkeep, waiting
from headgate.storage.procedures.add import add_jobs, follows_stored, need_transaction
from headgate.storage.procedures.audit import audit_log, keep_deed, prune_audit
from headgate.storage.procedures.finish import STATEMENTS as FINISH_STATEMENTS
from headgate.storage.procedures.finish import AttemptId, finish, finish_plain
from headgate.storage.procedures.following import (
    FollowersHeld,
    are_followers_left,
    release_followers,
    without_held,
)
from headgate.storage.procedures.gates import await_claims, gates_done, note_gates
from headgate.storage.procedures.reports import logs, report
from headgate.storage.procedures.settings import CachedRules, read_settings
from headgate.storage.procedures.unique import add_unique
from headgate.storage.protocol import (
    FINAL_STATES,
    GATE_LIVES,
    Amendment,
    Beat,
    BucketPlace,
    BucketRecord,
    Claim,
    Claimed,
    Deposit,
    Dropped,
    JobFilter,
    NodeRecord,
    Obstacle,
    QueueCounts,
    QueueRecord,
    RecordedStart,
    Recovered,
    Standing,
    ViewCount,
    WaitingCount,
)
from headgate.storage.schedules import DueSchedules, Fired, ScheduleRecord

R = TypeVar("R")

logger = logging.getLogger("headgate.storage")


OBSTRUCTED_FOR = 60 * SECOND
"""How long locked jobs are looked out for after endings could not be written."""

IN_TURNS = {"lock_timeout": "100ms"}
"""What a transaction is told that may wait for a user's: it gives way to others, and tries again."""

HELD_PAUSE = 0.05

A_SECOND = {"lock_timeout": "1s"}
"""What a transaction is told that changes one job for somebody who waits for it."""


class PostgresStorage:
    """Jobs in one schema of a PostgreSQL database, shared by any number of processes on any number of machines.

    Every verb has reached the server's disk when it returns, as far as the server's own `synchronous_commit` promises
    it. `schema` is where the tables live. `listen_url` is for a `url` that leads through PgBouncer: a way to the
    database itself, to be woken by other processes; without one they are noticed by polling. `own_time` trusts this
    process's clock instead of the server's, for tests. Where it is not `is_watched`, nothing is noticed of what other
    processes do, and no connection is spent on it. Needs PostgreSQL 13 or newer, and asyncpg.
    """

    is_in_process = False

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        schema: str = "headgate",
        listen_url: str | None = None,
        own_time: bool = False,
        connections: int = 8,
        is_watched: bool = True,
    ) -> None:
        self._clock = clock
        self.schema = checked_schema(schema)
        self._database = Database(checked_url(url), self.schema, clock, size=connections)
        self._listen_url = None if listen_url is None else checked_url(listen_url)
        self._is_watched = is_watched
        self._connections = connections
        self._time: StoreTime = OwnTime(clock) if own_time else ServerTime(clock)
        self._live = CachedRules()
        self._claimer = Claimer(self._database, self._time, clock, self._live)
        self._additions: Batcher[tuple[Sequence[NewJob], Sequence[NewBatch]]] = Batcher(self._add)
        self._keys = KeyLocks()
        self._unique = asyncio.Semaphore(max(1, connections // 2))
        self._identity = ""
        self._wake_ups: WakeUps | None = None
        self._following: asyncio.Task[None] | None = None
        self._looking_after: asyncio.Task[None] | None = None
        self._watchers: list[Callable[[], None]] = []
        self._obstructed_until = 0
        self._pid = 0

    def __str__(self) -> str:
        return self._database.name

    @property
    def place(self) -> object:
        """Where its tables are: equal for two of the same, as far as their URLs tell."""
        return (*place_of(self._database.url), self.schema)

    @contextlib.asynccontextmanager
    async def scratch(self) -> AsyncIterator[Callable[[], PostgresStorage]]:
        """A schema of its own in the same database."""
        schema = f"headgate_scratch_{secrets.token_hex(4)}"
        try:
            await shield_until_done(create(self._database, schema))
            yield lambda: PostgresStorage(
                self._database.url,
                self._clock,
                schema=schema,
                listen_url=self._listen_url,
                connections=self._connections,
            )
        finally:
            await shield_until_done(drop(self._database, schema))

    # ---------------------------------------------------------------------------------------- open, close

    async def open(self) -> None:
        if self._wake_ups is not None:
            return
        self._pid = os.getpid()
        await self._database.open()
        try:
            await migrate(self._database, self._clock)
            await self._database.repeat(self._read_clock)
            listen_url = None if self._database.is_pooled else self._database.url
            self._wake_ups = WakeUps(self._database, self._listen_url or listen_url, self._clock, self._wake)
            await self._wake_ups.open(hears=self._is_watched)
            self._following = asyncio.create_task(self._follow_clock(), name="headgate-clock")
        except BaseException:
            await self.close()
            raise

    async def migrate(self, *, dry_run: bool = False) -> Sequence[Migration]:
        await self._database.repeated(self._database.probe)
        return await migrate(self._database, self._clock, dry_run=dry_run)

    async def _read_clock(self, session: Session) -> None:
        await session.execute("raise_limit_time")
        self._identity = await session.value("identity")
        # Parsing it takes longer the first time: the second reading is the sharper one.
        for _ in range(2):
            await follow_clock(session, self._time, self._clock)

    async def _follow_clock(self) -> None:
        """A process that only enqueues asks for nothing that would tell it the time."""
        while True:
            await sleep(self._clock, FOLLOW_EVERY)
            try:
                await self._database.run(lambda session: follow_clock(session, self._time, self._clock))
            except StorageUnavailable as error:
                logger.debug("the time of %s could not be read: %s", self._database.name, error)
            except Exception as error:
                # Whatever it is: without this task a process that only enqueues would lose the server's time for good.
                logger.warning("the time of %s could not be read: %r", self._database.name, error)

    async def close(self) -> None:
        if self._pid != os.getpid():
            return
        if self._following is not None:
            self._following.cancel()
            self._following = None
        if self._looking_after is not None:
            self._looking_after.cancel()
            self._looking_after = None
        wake_ups, self._wake_ups = self._wake_ups, None
        if wake_ups is not None:
            await wake_ups.close()
        await self._additions.drain()
        await self._database.close()

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(wake)
        return lambda: self._watchers.remove(wake)

    def _wake(self) -> None:
        for wake in list(self._watchers):
            wake()

    def _changed(self) -> None:
        """Tell this process and the others that something may have become claimable, or final."""
        self._wake()
        if self._wake_ups is not None:
            self._wake_ups.tell()

    def now(self) -> int:
        return self._time.now()

    def limit_now(self) -> int:
        return self._time.limit_now()

    def _require_usable(self) -> None:
        if self._wake_ups is None:
            raise StorageUnavailable(f"{self._database.name} is not open")
        if self._pid != os.getpid():
            raise ForkedConnection(
                f"{self._database.name} was open in process {self._pid} when this process was forked from it, and a "
                "connection cannot serve two; open the app only after the fork, or start the process with 'spawn'"
            )

    # -------------------------------------------------------------------------------------------- writes

    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        self._require_usable()
        others: Mapping[str, str] = {}
        if any(job.unique_key is not None for job in jobs):
            others = await self._add_unique(jobs, batches)
        else:
            await self._additions.write((jobs, batches))
        if any(job.draws for job in jobs):
            self._claimer.expect_arrivals()
        self._changed()
        return others

    async def _add_unique(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch]) -> Mapping[str, str]:
        """By itself: it waits for whoever has a transaction open under one of the keys, and nobody else is to."""

        async def add() -> Mapping[str, str]:
            return await self._database.transact(lambda session: add_unique(self._tx(session), jobs, batches), IN_TURNS)

        async def add_once() -> Mapping[str, str]:
            until = self._clock.monotonic() + PATIENCE
            while True:
                # Not all connections, however many keys; nor any for as long as somebody waits under his.
                async with self._unique:
                    try:
                        return await add()
                    except StorageUnavailable as error:
                        is_held = isinstance(error.__cause__, asyncpg.LockNotAvailableError)
                        if not is_held or self._clock.monotonic() > until:
                            raise
                await sleep(self._clock, HELD_PAUSE)

        # One attempt a key, however many want it.
        async with self._keys.held(key_of(job) for job in jobs if key_of(job) is not None):
            if any(job.on_conflict == "replace" for job in jobs):
                # Not again after a lost reply: what has replaced it since would be lost.
                return await add_once()
            return await self._database.repeated(add_once)

    async def add_in(self, connection: Any, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        self._require_usable()
        assert self._wake_ups is not None
        caller = await enlisted(connection)
        session = await session_of(caller, self._database.statements, self._database.name)
        others = await add_enlisted(session, self._tx(session), jobs, self._identity)
        await session.fetch("notify_at_commit", channel=self._wake_ups.channel)
        return others

    async def _add(self, group: Sequence[tuple[Sequence[NewJob], Sequence[NewBatch]]]) -> Sequence[Any]:
        """Everything in one commit; if that fails for what one of them is, it is found by halves and fails alone."""
        new = [job for jobs, _ in group for job in jobs]
        batches = [batch for _, added in group for batch in added]

        async def add(session: Session) -> None:
            if not need_transaction(new, batches):
                await add_jobs(self._tx(session), new)
                return
            async with session.transaction(may_last=not follows_stored(new, batches)):
                await add_jobs(self._tx(session), new, batches)

        try:
            # A repeat after a lost reply adds nothing twice: the ids are the jobs' own.
            await self._database.repeat(add)
        except StorageUnavailable as error:
            return [error] * len(group)
        except Exception as error:
            if len(group) == 1:
                return [error]
            half = len(group) // 2
            return [*await self._add(group[:half]), *await self._add(group[half:])]
        return [None] * len(group)

    async def claim(self, claim: Claim) -> Claimed:
        self._require_usable()
        self._look_after_clients()
        claimed = await self._claimer.claim(claim)
        if claimed.dropped:
            # Somebody may wait for their results.
            self._changed()
        return claimed

    async def finish(self, node: str, endings: Sequence[Ending]) -> Sequence[bool | None]:
        plain = await self._finish_plain(node, endings)
        if len(plain) == len(endings):
            self._changed()
            return [True] * len(endings)
        written: dict[AttemptId, bool | None] = dict.fromkeys(plain, True)
        rest = [ending for ending in endings if (ending.id, ending.fence) not in written]

        def finish_rest(held: frozenset[str]) -> Awaitable[dict[AttemptId, bool | None]]:
            return self._transact(
                lambda session: finish(self._tx(session), node, rest, held), prepares=FINISH_STATEMENTS
            )

        written |= await without_held(finish_rest)
        self._changed()
        return [written[ending.id, ending.fence] for ending in endings]

    async def _finish_plain(self, node: str, endings: Sequence[Ending]) -> Collection[AttemptId]:
        def write(*, passes_locked: bool) -> Awaitable[Collection[AttemptId]]:
            return self._run(
                lambda session: finish_plain(self._tx(session), node, endings, passes_locked=passes_locked)
            )

        if self._clock.monotonic() >= self._obstructed_until:
            try:
                return await write(passes_locked=False)
            except StorageUnavailable:
                # One of the jobs may be locked, which kept all of them waiting: they are repeated without it.
                self._obstructed_until = self._clock.monotonic() + OBSTRUCTED_FOR
        return await write(passes_locked=True)

    async def amend(self, amendments: Sequence[Amendment], rules: Mapping[str, AnyRule]) -> None:
        await self._transact(lambda session: limits.amend(self._tx(session), amendments, rules, self._live))
        if any(amendment.actual < amendment.cost for amendment in amendments):
            self._changed()

    async def cancel(self, job_id: str, *, deed: Deed | None = None) -> JobState | None:
        state = await self._when_free(job_id, lambda tx: waiting.cancel(tx, job_id, deed))
        await self._merge()
        self._changed()
        return state

    async def retry(self, job_id: str, *, deed: Deed | None = None) -> JobState | None:
        state = await self._when_free(job_id, lambda tx: waiting.retry(tx, job_id, deed))
        self._changed()
        return state

    async def run_now(self, job_id: str, *, deed: Deed | None = None) -> JobState | None:
        state = await self._when_free(job_id, lambda tx: waiting.run_now(tx, job_id, deed))
        self._changed()
        return state

    async def reschedule(
        self, job_id: str, *, run_at: int | None = None, priority: int | None = None, deed: Deed | None = None
    ) -> JobState | None:
        state = await self._when_free(job_id, lambda tx: waiting.reschedule(tx, job_id, run_at, priority, deed))
        self._changed()
        return state

    async def report(self, node: str, reports: Sequence[Report], most_lines: int) -> Sequence[bool | None]:
        return await self._transact(lambda session: report(self._tx(session), node, reports, most_lines))

    async def note(self, deed: Deed) -> None:
        await self._run(lambda session: keep_deed(self._tx(session), deed))

    async def deposit(self, deposits: Sequence[Deposit]) -> None:
        await self._transact(lambda session: limits.deposit(self._tx(session), deposits))
        self._changed()

    async def withdraw(self, deposits: Sequence[Deposit]) -> Sequence[int]:
        return await self._transact(lambda session: limits.withdraw(self._tx(session), deposits))

    async def visit(
        self, draw: Draw, rules: Mapping[str, AnyRule], look: Callable[[Any], R], *, id: str | None = None
    ) -> R:
        self._require_usable()
        self._look_after_clients()
        answer, reopens = await self._transact(
            lambda session: limits.visit(self._tx(session), draw, rules, look, id, self._live)
        )
        if reopens:
            self._changed()
        return answer  # type: ignore[no-any-return]

    async def note_gates(self, gates: Mapping[str, str], *, lives: int = GATE_LIVES) -> Mapping[str, bool]:
        noted = await self._transact(lambda session: note_gates(self._tx(session), gates, lives))
        if noted.has_changed:
            # A claim that is under way may be about to start jobs for a node whose gate is not the newest any more.
            await self._transact(lambda session: await_claims(self._tx(session)))
            self._changed()
        return noted.to_move

    async def gates_done(self, gates: Mapping[str, str]) -> None:
        await self._run(lambda session: gates_done(self._tx(session), gates))

    async def regate(self, jobs: Sequence[Regated]) -> int:
        leaving = [job for job in jobs if not job.stays]
        plain: set[str] = set()
        if leaving:
            plain = await self._transact(lambda session: waiting.regate_plain(self._tx(session), leaving))
        moved = len(plain) + sum([await self._regate(job) for job in leaving if job.id not in plain])
        stays = [job for job in jobs if job.stays]
        if stays:
            moved += await self._run(lambda session: waiting.restamp(self._tx(session), stays))
        await self._merge()
        self._changed()
        return moved

    async def _regate(self, job: Regated) -> bool:
        return await self._transact(lambda session: waiting.regate(self._tx(session), job))

    async def change(self, setting: LimitSetting, *, remove: bool = False, deed: Deed | None = None) -> None:
        await self._transact(lambda session: limits.change(self._tx(session), setting, deed, remove=remove))
        await self._transact(lambda session: limits.reopen(self._tx(session), setting))
        self._changed()

    async def edit_setting(self, about: LimitSetting, edit: EditSetting, *, deed: Deed | None = None) -> bool:
        becomes = await self._transact(lambda session: limits.edit_setting(self._tx(session), about, edit, deed))
        if becomes is None:
            return False
        await self._transact(lambda session: limits.reopen(self._tx(session), becomes))
        self._changed()
        return True

    async def penalize(self, draw: Draw, until: int, *, deed: Deed | None = None) -> None:
        await self._transact(lambda session: limits.penalize(self._tx(session), draw, until, deed))

    async def reset(self, draw: Draw, *, deed: Deed | None = None) -> int:
        held = await self._transact(lambda session: limits.reset(self._tx(session), draw, deed))
        await self._merge()
        self._changed()
        return held

    async def forget(self, limit: str, *, deed: Deed | None = None) -> bool:
        return await self._transact(lambda session: limits.forget(self._tx(session), limit, deed))

    async def pause_queue(self, queue: str, *, deed: Deed | None = None) -> bool:
        return await self._change_queue(lambda tx: upkeep.pause_queue(tx, queue, deed))

    async def resume_queue(self, queue: str, *, deed: Deed | None = None) -> bool:
        return await self._change_queue(lambda tx: upkeep.resume_queue(tx, queue, deed))

    async def _change_queue(self, change: Callable[[Transaction], Awaitable[bool]]) -> bool:
        is_changed = await self._transact(lambda session: change(self._tx(session)))
        self._changed()
        return is_changed

    # ----------------------------------------------------------------------------------------- schedules

    async def put_schedule(self, record: ScheduleRecord, *, replaces: int | None, anew: bool = False) -> bool:
        written = await self._transact(
            lambda session: schedules.put_schedule(self._tx(session), record, replaces, anew=anew)
        )
        self._changed()
        return written

    async def take_over_schedule(self, record: ScheduleRecord, *, was: str, replaces: int) -> bool:
        written = await self._transact(
            lambda session: schedules.take_over_schedule(self._tx(session), record, was, replaces)
        )
        self._changed()
        return written

    async def schedules(
        self, *, name: str | None = None, after: str = "", count: int = 1000
    ) -> Sequence[ScheduleRecord]:
        return await self._look_up(lambda session: schedules.schedules(self._tx(session), name, after, count))

    async def due_schedules(
        self, tasks: frozenset[str], *, unable: frozenset[str] = frozenset(), count: int = 100
    ) -> DueSchedules:
        return await self._repeat(lambda session: schedules.due_schedules(self._tx(session), tasks, unable, count))

    async def overdue_schedules(
        self, tasks: frozenset[str], *, before: int, unable: frozenset[str] = frozenset(), count: int = 100
    ) -> Sequence[ScheduleRecord]:
        return await self._repeat(
            lambda session: schedules.overdue_schedules(self._tx(session), before, tasks, unable, count)
        )

    async def schedules_formerly(self, name: str) -> Sequence[ScheduleRecord]:
        return await self._look_up(lambda session: schedules.schedules_formerly(self._tx(session), name))

    async def fire(self, fired: Sequence[Fired]) -> Sequence[bool]:
        written = await self._transact(lambda session: schedules.fire(self._tx(session), fired))
        if any(job.draws for each in fired for job in each.jobs):
            self._claimer.expect_arrivals()
        self._changed()
        return written

    async def remove_schedule(self, name: str) -> bool:
        return await self._run(lambda session: schedules.remove_schedule(self._tx(session), name))

    async def _merge(self) -> None:
        """Lanes that jobs have left wait for nothing any more, and what they waited for has no timer."""
        await self._run(self._claimer.merge)

    # --------------------------------------------------------------------------------------------- nodes

    async def join(self, node: str, name: str, *, queues: Mapping[str, int] | None = None, version: str = "") -> None:
        await self._repeat(
            lambda session: nodes.join(
                self._tx(session), node, name, os.getpid(), self._clock.boot_id(), queues or {}, version
            )
        )

    async def beat(self, node: str, *, lingering: Sequence[str] = ()) -> Beat:
        return await self._run(lambda session: nodes.beat(self._tx(session), node, lingering, self._clock.boot_id()))

    async def cancels(self, node: str) -> frozenset[str]:
        return await self._repeat(lambda session: nodes.cancels(self._tx(session), node))

    async def nodes(self) -> Sequence[NodeRecord]:
        return await self._repeat(lambda session: nodes.nodes(self._tx(session), self._clock.boot_id()))

    async def leave(self, node: str) -> Recovered:
        recovered = await without_held(
            lambda held: self._transact(lambda session: nodes.leave(self._tx(session), node, held))
        )
        self._changed()
        return recovered

    async def recover(self, node: str, beat: int) -> Recovered | None:
        recovered = await without_held(
            lambda held: self._transact(lambda session: nodes.recover(self._tx(session), node, beat, held))
        )
        if recovered is not None:
            self._changed()
        return recovered

    # --------------------------------------------------------------------------------------- housekeeping

    async def expire(self, count: int = 100) -> Sequence[Dropped]:
        def expire(held: frozenset[str]) -> Awaitable[list[Dropped]]:
            return self._transact(lambda session: waiting.expire(self._tx(session), count, held=held))

        dropped = await without_held(expire)
        if dropped:
            await self._merge()
            self._changed()
        return dropped

    async def release_followers(self, count: int = FOLLOWERS_AT_ONCE) -> int:
        if not await self._run(lambda session: are_followers_left(self._tx(session))):
            return 0

        def release(held: frozenset[str]) -> Awaitable[int]:
            return self._transact(lambda session: release_followers(self._tx(session), count, held))

        found = await without_held(release)
        if found:
            self._changed()
        return found

    async def prune(
        self,
        finished_before: int,
        count: int = 1000,
        states: frozenset[JobState] = FINAL_STATES,
        *,
        ids: Sequence[str] | None = None,
    ) -> int:
        self._require_usable()
        return await self._database.transact(
            lambda session: upkeep.prune(self._tx(session), finished_before, count, states, ids), SUMMARIES
        )

    async def prune_audit(self, before: int, count: int = 1000) -> int:
        return await self._run(lambda session: prune_audit(self._tx(session), before, count))

    async def add_history(
        self, jobs: Sequence[JobsStep], limits: Sequence[LimitStep], flush: Flush | None = None
    ) -> None:
        self._require_usable()
        # The last commits may be lost with the server: nobody is to wait for a disk for the sake of a chart.
        await self._database.transact(
            lambda session: history.add_history(self._tx(session), jobs, limits, flush), {"synchronous_commit": "off"}
        )

    async def gather_history(self, count: int = 1000) -> int:
        return await self._run(lambda session: history.gather_history(self._tx(session), count))

    async def jobs_history(self, step: int, queue: str, task: str, since: int) -> Sequence[JobsStep]:
        return await self._look_up(lambda session: history.jobs_history(self._tx(session), step, queue, task, since))

    async def limit_history(self, step: int, limit: str, key: str | None, since: int) -> Sequence[LimitStep]:
        return await self._look_up(lambda session: history.limit_history(self._tx(session), step, limit, key, since))

    async def prune_history(self, step: int, before: int, count: int = 1000) -> int:
        return await self._transact(lambda session: history.prune_history(self._tx(session), step, before, count))

    async def evict(self, count: int = 1000) -> int:
        evicted = await self._run(lambda session: upkeep.evict(self._tx(session), count))
        return evicted + await self._transact(lambda session: schedules.evict_notes(self._tx(session), count))

    async def facts(self) -> PostgresFacts:
        async def look(session: Session) -> PostgresFacts:
            tables = await session.fetch("table_facts", schema=self.schema)
            return PostgresFacts(
                **await session.row("server_facts"),
                is_pooled=self._database.is_pooled,
                listens=self._listen_url is not None or not self._database.is_pooled,
                skew=self.now() - self._clock.now(),
                connections=self._connections,
                tables=[TableFacts(**row) for row in tables],
            )

        return await self._survey(look)

    async def check(self) -> Sequence[str]:
        return await self._survey(lambda session: upkeep.check(self._tx(session)))

    # --------------------------------------------------------------------------------------------- reads

    async def job(self, job_id: str) -> JobRecord | None:
        return await self._look_up(lambda session: listing.job(self._tx(session), job_id))

    async def final(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        return await self._look_up(lambda session: listing.jobs_by_id(self._tx(session), job_ids, final=True))

    async def batch(self, batch_id: str) -> BatchRecord | None:
        return await self._look_up(lambda session: listing.batch(self._tx(session), batch_id))

    async def batches(
        self, *, pending_only: bool = False, cursor: str | None = None, count: int = 50
    ) -> Sequence[BatchRecord]:
        return await self._survey(
            lambda session: listing.batches(self._tx(session), pending_only=pending_only, cursor=cursor, count=count)
        )

    async def jobs(self, filter: JobFilter) -> Sequence[JobRecord]:
        return await self._listed(filter, lambda session: listing.jobs(self._tx(session), filter))

    async def count_jobs(self, filter: JobFilter, most: int) -> int:
        return await self._listed(filter, lambda session: listing.count_jobs(self._tx(session), filter, most))

    async def _listed(self, filter: JobFilter, work: Callable[[Session], Awaitable[R]]) -> R:
        if filter.text is None:
            return await self._survey(work)
        self._require_usable()
        return await self._database.search(work)

    async def waiting(self, most: int = 100_000) -> Sequence[WaitingCount]:
        return await self._survey(lambda session: listing.waiting(self._tx(session), most))

    async def views(self) -> Sequence[ViewCount]:
        return await self._survey(lambda session: listing.views(self._tx(session)))

    async def is_work_left(self, queues: Set[str], tasks: Set[str], *, ready_only: bool) -> bool:
        return await self._survey(
            lambda session: listing.is_work_left(self._tx(session), queues, tasks, ready_only=ready_only)
        )

    async def logs(self, job_id: str, *, after: int = 0, count: int = 100, newest: bool = False) -> Sequence[LogLine]:
        return await self._look_up(lambda session: logs(self._tx(session), job_id, after, count, newest=newest))

    async def audit_log(self, filter: AuditFilter) -> Sequence[AuditEntry]:
        return await self._survey(lambda session: audit_log(self._tx(session), filter))

    async def attempts(self, job_id: str) -> Sequence[Attempt]:
        return await self._look_up(lambda session: listing.attempts(self._tx(session), job_id))

    async def counts(self, *, finals: bool = True) -> Sequence[QueueCounts]:
        return await self._survey(lambda session: listing.counts(self._tx(session), finals=finals))

    async def queues(self) -> Sequence[QueueRecord]:
        return await self._survey(lambda session: listing.queues(self._tx(session)))

    async def backlog(self, queue: str) -> int:
        return await self._look_up(lambda session: listing.backlog(self._tx(session), queue))

    async def obstacles(self) -> Sequence[Obstacle]:
        return await self._survey(lambda session: listing.obstacles(self._tx(session)))

    async def buckets(
        self,
        limit: str | None = None,
        key: str | None = None,
        count: int = 100,
        *,
        prefix: str | None = None,
        after: BucketPlace | None = None,
    ) -> Sequence[BucketRecord]:
        return await self._survey(lambda session: listing.buckets(self._tx(session), limit, key, count, prefix, after))

    async def throttled(self, count: int = 10) -> Sequence[BucketRecord]:
        return await self._survey(lambda session: listing.throttled(self._tx(session), count))

    async def standing(self, job_id: str) -> Standing | None:
        return await self._look_up(lambda session: listing.standing(self._tx(session), job_id))

    async def outlook(self, queue: str, draws: Sequence[Draw], variant: str = "") -> Standing:
        return await self._look_up(lambda session: listing.outlook(self._tx(session), queue, draws, variant))

    async def starts(
        self, limit: str, key: str | None, since: int, *, until: int = NEVER, skip: int = 0, count: int = 10_000
    ) -> Sequence[RecordedStart]:
        return await self._survey(
            lambda session: listing.starts(self._tx(session), limit, key, since, until, skip, count)
        )

    async def gated_jobs(
        self,
        tasks: frozenset[str],
        *,
        unknown_to: frozenset[str] | None = None,
        other_than: KnownGates = NO_GATES,
        ids: Sequence[str] | None = None,
        after: str = "",
        count: int = 100,
    ) -> Sequence[GatedJob]:
        return await self._look_up(
            lambda session: listing.gated_jobs(self._tx(session), tasks, unknown_to, other_than, ids, after, count)
        )

    async def settings(self) -> Sequence[LimitSetting]:
        return await self._look_up(lambda session: read_settings(self._tx(session)))

    # ------------------------------------------------------------------------------------------- helpers

    def _look_after_clients(self) -> None:
        """Those who want buckets look for clients that hold them and say nothing; who only enqueues does not."""
        if self._looking_after is None:
            looking = SilentClients(self._database, self._clock).run()
            self._looking_after = asyncio.create_task(looking, name="headgate-silent-clients")

    def _tx(self, session: Session) -> PostgresTransaction:
        return PostgresTransaction(session, self.now(), self.limit_now(), self._time, self._clock)

    async def _run(self, work: Callable[[Session], Awaitable[R]]) -> R:
        self._require_usable()
        return await self._database.run(work)

    async def _transact(self, work: Callable[[Session], Awaitable[R]], *, prepares: tuple[str, ...] = ()) -> R:
        self._require_usable()
        return await self._database.transact(work, prepares=prepares)

    async def _when_free(self, job_id: str, work: Callable[[Transaction], Awaitable[R]]) -> R:
        """Do `work`, a transaction that changes a job, when nobody else holds that or its followers. Raises JobHeld."""
        self._require_usable()
        until = self._clock.monotonic() + SECOND
        while True:
            try:
                return await self._database.transact(lambda session: work(self._tx(session)), A_SECOND)
            except FollowersHeld as error:
                if self._clock.monotonic() > until:
                    raise _held(job_id, "what follows it") from error
            except StorageUnavailable as error:
                if isinstance(error.__cause__, asyncpg.LockNotAvailableError):
                    raise _held(job_id, "it") from error
                raise
            await sleep(self._clock, 0.1)

    async def _survey(self, work: Callable[[Session], Awaitable[R]]) -> R:
        self._require_usable()
        return await self._database.survey(work)

    async def _look_up(self, work: Callable[[Session], Awaitable[R]]) -> R:
        self._require_usable()
        return await self._database.look_up(work)

    async def _repeat(self, work: Callable[[Session], Awaitable[R]]) -> R:
        self._require_usable()
        return await self._database.repeat(work)


def _held(job_id: str, what: str) -> JobHeld:
    return JobHeld(
        f"job {job_id} was not changed: somebody's open transaction holds {what}, to replace or to follow it; "
        "try again when that has ended (`headgate status` shows what is in the way)"
    )
