"""PostgresStorage: a store in one schema of a PostgreSQL database, which any number of processes share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, TypeVar, Unpack
from weakref import WeakValueDictionary

import asyncpg

from headgate.clock import SECOND, Clock, sleep
from headgate.errors import DeclarationError, ForkedConnection, JobHeld, StorageUnavailable, own_error
from headgate.jobs.batch import NewBatch
from headgate.jobs.identity import IdTaken
from headgate.jobs.job import NewJob
from headgate.jobs.lifecycle import Ending
from headgate.jobs.uniqueness import key_of, may_have_duplicates, replaces
from headgate.limits.limit import AnyRule
from headgate.shielding import shield_until_done
from headgate.storage.batcher import Batcher
from headgate.storage.driver import NO_RULES, Procedure, ReadKind, WriteOptions, must_wake, refusing_unstorable
from headgate.storage.enlisting import enlisted
from headgate.storage.facts import Contradiction, IndexFacts, PostgresFacts, StoreFacts, TableFacts
from headgate.storage.live_rules import CachedRules
from headgate.storage.migrations import Migration
from headgate.storage.postgres.claimer import Claimer
from headgate.storage.postgres.database import (
    COMMAND_TIMEOUT,
    PATIENCE,
    Database,
    Session,
    checked_url,
    database_of,
    opened,
    raising_bad_values,
    split_schema,
)
from headgate.storage.postgres.dialect import checked_schema
from headgate.storage.postgres.enlisted import add_enlisted, require_same_place, session_of
from headgate.storage.postgres.idle_in_transaction import held_transaction
from headgate.storage.postgres.procedure_transaction import PostgresTransaction
from headgate.storage.postgres.schema import DEFAULT_SCHEMA, create, drop, require_migrated
from headgate.storage.postgres.schema import migrate as make_current
from headgate.storage.postgres.server_time import FOLLOW_EVERY, OwnTime, ServerTime, follow_clock
from headgate.storage.postgres.silent_clients import SilentClients
from headgate.storage.postgres.wake_ups import WakeUps
from headgate.storage.procedures.add import add_jobs, add_new_jobs, follows_stored, needs_transaction
from headgate.storage.procedures.finish import STATEMENTS as FINISH_STATEMENTS
from headgate.storage.procedures.finish import AttemptId, complete, finish, finish_plain
from headgate.storage.procedures.following import FollowersHeld, without_held
from headgate.storage.procedures.unique import add_unique
from headgate.storage.records import Claim, Claimed
from headgate.storage.store import Store

R = TypeVar("R")

Work = Callable[[Session], Awaitable[R]]

logger = logging.getLogger("headgate.storage")


OBSTRUCTED_FOR = 60 * SECOND
"""How long endings leave out locked jobs after endings could not be written."""

IN_TURNS = {"lock_timeout": "100ms"}
"""Settings of a transaction that may wait for a user's: it gives way to others, and tries again."""

UNSYNCED = {"synchronous_commit": "off"}
"""Settings of a transaction that may be lost with the server."""

HELD_PAUSE = 0.05

LEAST_LENT = 2
"""The fewest connections of a lent pool, without the one that listens: claims must not wait for endings."""

A_SECOND = {"lock_timeout": "1s"}
"""Settings of a transaction that changes one job for a caller who waits."""


class PostgresStorage(Store):
    """Jobs in one schema of a PostgreSQL database, which any number of processes and machines share.

    When a verb returns, its changes are on the server's disk, as far as the server's own `synchronous_commit`
    guarantees it. `schema` has the tables; `?schema=` of the URL names it, too. `listen_url` is for a `url` that goes
    through PgBouncer: the URL of the database itself, on which other processes wake this one; without it, their changes
    are found by polling. `own_time` uses this process's clock instead of the server's, for tests. Without `is_watched`,
    changes of other processes are not noticed, and no connection is used for that. `pool` is an asyncpg pool, or an
    async function that makes one, for all connections to the database of `url`; see `LentPool`. Needs PostgreSQL 13 or
    newer, and asyncpg.
    """

    numbers_producers = True

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        schema: str = DEFAULT_SCHEMA,
        listen_url: str | None = None,
        own_time: bool = False,
        connections: int = 8,
        is_watched: bool = True,
        pool: object | None = None,
    ) -> None:
        super().__init__(clock)
        self.live: CachedRules = CachedRules()
        address, named = split_schema(checked_url(url))
        if named is not None and schema not in (named, DEFAULT_SCHEMA):
            raise DeclarationError(
                f"the URL names schema={named!r}, and schema= or HEADGATE_SCHEMA names {schema!r}; name it once"
            )
        self.schema = checked_schema(schema if named is None else named)
        self._database = Database(address, self.schema, size=connections, pool=pool)
        self._pool = pool
        self._listen_url = None if listen_url is None else split_schema(checked_url(listen_url))[0]
        self._is_watched = is_watched
        self._connections = connections
        self._time: ServerTime = OwnTime(clock) if own_time else ServerTime(clock)
        # A node may send two claims at the same time. What one has read says nothing about the queues of the other.
        backlog = Claimer(self._database, self._time, clock, self.live, self._wake_queues)
        ordinary = Claimer(self._database, self._time, clock, self.live, self._wake_queues, backlog)
        # By `Claim.has_backlog`.
        self._claimers = [ordinary, backlog]
        self._additions: Batcher[tuple[Sequence[NewJob], Sequence[NewBatch]]] = Batcher(self._add)
        self._reads: Mapping[ReadKind, Callable[[Work[Any]], Awaitable[Any]]] = {
            "engine": self._database.repeat,
            "lookup": self._database.look_up,
            "list": self._database.look_up,
            "scan": self._database.scan,
            "count": self._database.scan,
            "search": self._database.search,
            "check": lambda work: self._database.repeated(lambda: self._database.check(work)),
        }
        self._keys = _KeyLocks()
        self._unique = asyncio.Semaphore()
        self._place_id = ""
        self._tables = 0
        self._wake_ups: WakeUps | None = None
        self._following: asyncio.Task[None] | None = None
        self._ending_silent: asyncio.Task[None] | None = None
        self._obstructed_until = 0
        self._pid = 0

    def __str__(self) -> str:
        return self._database.name

    @property
    def arrival_floor(self) -> int:
        return max(claimer.arrival_floor for claimer in self._claimers)

    @property
    def place(self) -> object:
        """The place of its tables: equal for two drivers with the same tables, as far as their URLs show."""
        return (*database_of(self._database.url), self.schema)

    @contextlib.asynccontextmanager
    async def scratch(self) -> AsyncIterator[Callable[[], PostgresStorage]]:
        """As `Store.scratch`: a schema of its own in the same database."""
        schema = f"headgate_scratch_{secrets.token_hex(4)}"
        try:
            await shield_until_done(create(self._database, schema))
            yield lambda: PostgresStorage(
                self._database.url,
                self.clock,
                schema=schema,
                listen_url=self._listen_url,
                connections=self._connections,
                pool=self._pool,
            )
        finally:
            await shield_until_done(drop(self._database, schema))

    # ---------------------------------------------------------------------------------------- open, close

    async def open(self, *, migrate: bool = True) -> None:
        if self._wake_ups is not None:
            return
        self._pid = os.getpid()
        # A semaphore belongs to one event loop.
        self._unique = asyncio.Semaphore(max(1, self._connections // 2))
        await self._database.open()
        try:
            if migrate:
                await make_current(self._database)
            else:
                await require_migrated(self._database)
            await self._database.repeat(self._read_clock)
            # How to open the connection that listens; None: only polling finds changes of other processes.
            own = None if self._database.is_pooled else self._database.connection
            listens_on = own if self._listen_url is None else partial(opened, self._listen_url)
            if self._database.lent is not None:
                self._database.lent.require_size(LEAST_LENT + (listens_on == self._database.connection))
            self._wake_ups = WakeUps(self._database, listens_on, self.clock, self._wake, self._listen_url)
            await self._wake_ups.open(listens=self._is_watched)
            # A process that only enqueues runs no other statement that returns what this reads.
            following = self._database.keep_running(self._follow, FOLLOW_EVERY, self.clock, reads="the time")
            self._following = asyncio.create_task(following, name="headgate-clock")
        except BaseException:
            await self.close()
            raise

    async def probe(self) -> None:
        """Connect, without opening. Raises as `open`."""
        await self._database.repeated(self._database.probe)

    async def migrate(self, *, dry_run: bool = False) -> Sequence[Migration]:
        await self.probe()
        return await make_current(self._database, dry_run=dry_run)

    async def _read_clock(self, session: Session) -> None:
        # Only if it is needed, as a server that is read-only can be read. Parsing the statement takes longer the first
        # time, so only the second reading is accurate.
        row = await session.row("clock")
        if row["is_behind"]:
            await session.execute("raise_limit_time")
        await self._follow(session)

    async def _follow(self, session: Session) -> None:
        """Read the server's clock, and which tables these are: others, with lower ids, may have taken their place."""
        _, tables, self._place_id = await session.row("identity")
        if tables != self._tables:
            self._tables = tables
            for claimer in self._claimers:
                claimer.low_watermarks.forget_arrivals()
        await follow_clock(session, self._time, self.clock)

    async def close(self) -> None:
        if self._pid != os.getpid():
            return
        for task in (self._following, self._ending_silent):
            if task is not None:
                task.cancel()
        self._following = self._ending_silent = None
        wake_ups, self._wake_ups = self._wake_ups, None
        if wake_ups is not None:
            await wake_ups.close()
        await self._additions.drain()
        await self._database.close()

    def _wake_all(self, queues: Collection[str] | None = None) -> None:
        """Wake this process and the others, as `Wake` says."""
        self._wake(queues)
        if self._wake_ups is not None:
            self._wake_ups.notify(queues)

    def now(self) -> int:
        return self._time.now()

    def limit_now(self) -> int:
        return self._time.limit_now()

    def _require_usable(self) -> None:
        if self._wake_ups is None:
            raise StorageUnavailable(f"{self._database.name} is not open")
        if self._pid != os.getpid():
            raise ForkedConnection(
                f"{self._database.name} was open in process {self._pid} when this process was forked from it, and two "
                "processes cannot share a connection; open the app after the fork, or start the process with 'spawn'"
            )

    # -------------------------------------------------------------------------------------------- writes

    async def write(
        self, procedure: Procedure[R], *, changes_job: str | None = None, **options: Unpack[WriteOptions]
    ) -> R:
        self._require_usable()
        if options.get("takes_buckets"):
            self._end_silent_clients()

        def work(session: Session) -> Awaitable[R]:
            return procedure(self._tx(session))

        with raising_bad_values() if options.get("has_rows") else refusing_unstorable():
            if changes_job is not None:
                result = await self._when_free(changes_job, work)
            elif options.get("is_atomic", True):
                unsynced = UNSYNCED if options.get("may_be_lost") else {}
                result = await self._database.transact(work, unsynced)
            elif options.get("may_repeat"):
                result = await self._database.repeat(work)
            else:
                result = await self._database.run(work)
        if must_wake(options.get("wakes", False), result):
            if options.get("empties_lanes"):
                # Arrivals are merged, so that empty lanes no longer wait and their buckets have no timer.
                try:
                    await self._database.run(lambda session: self._claimers[False].merge(self._tx(session)))
                except StorageUnavailable as error:
                    # What the caller has written is committed, and the next claim merges.
                    logger.debug("arrivals of %s were not merged: %s", self._database.name, error)
            self._wake_all()
        return result

    async def read(self, procedure: Procedure[R], kind: ReadKind) -> R:
        self._require_usable()
        read: Callable[[Work[R]], Awaitable[R]] = self._reads[kind]
        with refusing_unstorable():
            return await read(lambda session: procedure(self._tx(session)))

    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        self._require_usable()
        duplicates: Mapping[str, str] = {}
        queues: Collection[str] | None = {job.queue for job in jobs}
        if may_have_duplicates(jobs):
            duplicates = await self._add_unique(jobs)
            # A replaced job may have closed a bucket for jobs of other queues.
            queues = None
        else:
            await self._additions.write((jobs, batches))
        if any(job.buckets for job in jobs):
            for claimer in self._claimers:
                claimer.expects_arrivals = True
        self._wake_all(queues)
        return duplicates

    async def _add_unique(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """Add jobs apart from other additions: they must not wait for transactions that are open under these keys."""
        keys: list[Hashable] = [key for job in jobs if (key := key_of(job)) is not None]
        keys += [job.id for job in jobs if job.has_own_id]
        until = self._database.clock.monotonic() + PATIENCE

        async def add_once() -> Mapping[str, str]:
            # One attempt for each key and each own id, however many callers there are, who lose patience together.
            async with self._keys.held(keys):
                while True:
                    # Not on all connections, however many keys there are; and on none while it waits for a locked key.
                    async with self._unique:
                        try:
                            return await self._database.transact(
                                lambda session: add_unique(self._tx(session), jobs), IN_TURNS
                            )
                        except StorageUnavailable as error:
                            is_held = isinstance(error.__cause__, asyncpg.LockNotAvailableError)
                            if not is_held or self._database.clock.monotonic() > until:
                                raise
                    await sleep(self._database.clock, HELD_PAUSE)

        with raising_bad_values():
            if any(map(replaces, jobs)):
                # Not again after a lost reply: it would replace a job that has replaced it since.
                return await add_once()
            return await self._database.repeated(add_once)

    async def add_in(self, connection: Any, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        self._require_usable()
        assert self._wake_ups is not None
        session = await self._session_of(connection)
        duplicates = await add_enlisted(session, self._tx(session), jobs, self._place_id)
        await session.fetch("notify_at_commit", channel=self._wake_ups.channel)
        return duplicates

    async def complete_in(self, connection: Any, job_id: str, fence: int) -> bool:
        self._require_usable()
        session = await self._session_of(connection)
        await require_same_place(session, self._place_id, has_unique=False)
        return await complete(self._tx(session), job_id, fence)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.Connection[Any]]:
        """As `Store.transaction`. Its connection is not one of the pool, which is for claims and heartbeats."""
        self._require_usable()
        async with self._database.own_connection() as connection:
            transaction = connection.transaction()
            with self._database.translated():
                async with asyncio.timeout(COMMAND_TIMEOUT):  # noqa: TID251  # real connections, real time
                    await transaction.start()
            async with held_transaction(connection, transaction, self.clock, self._database.name):
                yield connection

    async def _session_of(self, connection: Any) -> Session:
        return await session_of(await enlisted(connection), self._database.statements, self._database.name)

    async def _add(self, group: Sequence[tuple[Sequence[NewJob], Sequence[NewBatch]]]) -> Sequence[Any]:
        """Commit all additions together. If that fails, commit halves of them, so that the faulty one fails alone."""
        new = [job for jobs, _ in group for job in jobs]
        batches = [batch for _, added in group for batch in added]

        async def add(session: Session) -> None:
            if not needs_transaction(new, batches):
                try:
                    await add_new_jobs(self._tx(session), new)
                    return
                except asyncpg.UniqueViolationError:
                    # A repeat, or the ids of another producer: nothing is stored, and what follows finds out.
                    pass
            async with session.transaction(may_last=not follows_stored(new, batches)):
                await add_jobs(self._tx(session), new, batches)

        try:
            # A repeat after a lost reply adds nothing twice: jobs bring their ids.
            with raising_bad_values():
                await self._database.repeat(add)
        except Exception as error:
            if isinstance(error, StorageUnavailable) and not isinstance(error, IdTaken):
                return [own_error(error) for _ in group]
            if len(group) == 1:
                return [error]
            half = len(group) // 2
            return [*await self._add(group[:half]), *await self._add(group[half:])]
        return [None] * len(group)

    async def join(self, node: str, name: str, **options: Any) -> None:
        await super().join(node, name, **options)
        # A node joins again if its row is gone, as in tables that were made anew, or emptied, with lower ids.
        self._tables = 0
        await self._database.repeat(self._follow)

    async def claim(self, claim: Claim) -> Claimed:
        self._require_usable()
        self._end_silent_clients()
        claimed = await self._claimers[claim.has_backlog].claim(claim)
        if claimed.dropped:
            # Callers may be waiting for the results of the dropped jobs.
            self._wake_all()
        return claimed

    async def finish(
        self, node: str, endings: Sequence[Ending], rules: Mapping[str, AnyRule] = NO_RULES
    ) -> Sequence[bool | None]:
        self._require_usable()
        with raising_bad_values():
            plain = await self._finish_plain(node, endings)
            if len(plain) == len(endings):
                self._wake_all(queues=())
                return [True] * len(endings)
            written: dict[AttemptId, bool | None] = dict.fromkeys(plain, True)
            rest = [ending for ending in endings if (ending.id, ending.fence) not in written]
            written |= await without_held(
                lambda held: self._database.transact(
                    lambda session: finish(self._tx(session), node, rest, rules, self.live, held),
                    prepares=FINISH_STATEMENTS,
                )
            )
        self._wake_all()
        return [written[ending.id, ending.fence] for ending in endings]

    async def _finish_plain(self, node: str, endings: Sequence[Ending]) -> Collection[AttemptId]:
        def write(*, passes_locked: bool) -> Awaitable[Collection[AttemptId]]:
            return self._database.run(
                lambda session: finish_plain(self._tx(session), node, endings, passes_locked=passes_locked)
            )

        if self.clock.monotonic() >= self._obstructed_until:
            try:
                return await write(passes_locked=False)
            except StorageUnavailable:
                # One of the jobs may be locked, so that all waited for it: they are repeated without it.
                self._obstructed_until = self.clock.monotonic() + OBSTRUCTED_FOR
        return await write(passes_locked=True)

    async def facts(self) -> StoreFacts:
        self._require_usable()

        async def look(session: Session) -> PostgresFacts:
            tables = await session.fetch("table_facts", schema=self.schema)
            return PostgresFacts(
                **await session.row("server_facts"),
                is_pooled=self._database.is_pooled,
                listens=self._wake_ups is not None and self._wake_ups.is_listening,
                skew=self.now() - self.clock.now(),
                connections=self._connections if self._database.lent is None else self._database.lent.size,
                tables=[TableFacts(**row) for row in tables],
            )

        return await self._database.scan(look)

    async def check_indexes(self) -> IndexFacts:
        """As `Store.check_indexes`, by the extension amcheck, one B-tree after another."""
        self._require_usable()
        checks = await self._database.scan(lambda session: session.fetch("index_checks"))
        found: list[Contradiction] = []
        if not checks:
            advice = "CREATE EXTENSION amcheck, as a superuser, in this database"
            return IndexFacts(unchecked=Contradiction("the extension amcheck is not there", advice))
        for name, statement in checks:
            try:
                await self._database.check(methodcaller("script", statement))
            except StorageUnavailable as error:
                match error.__cause__:
                    case asyncpg.InsufficientPrivilegeError():
                        advice = "run it as a superuser, or let one GRANT EXECUTE on the functions bt_index_check"
                        return IndexFacts(unchecked=Contradiction("this role may not call bt_index_check", advice))
                    case asyncpg.IndexCorruptedError() | asyncpg.DataCorruptedError() as damage:
                        found.append(Contradiction(str(damage), f"REINDEX INDEX CONCURRENTLY {name}"))
                    case _:
                        raise
        return IndexFacts(contradictions=tuple(found))

    # ------------------------------------------------------------------------------------------- helpers

    def _end_silent_clients(self) -> None:
        """Start to end silent clients that hold buckets; a process that only enqueues does not."""
        if self._ending_silent is None:
            looking = SilentClients(self._database, self.clock).run()
            self._ending_silent = asyncio.create_task(looking, name="headgate-silent-clients")

    def _tx(self, session: Session) -> PostgresTransaction:
        return PostgresTransaction(session, self._time, self.clock)

    async def _when_free(self, job_id: str, work: Work[R]) -> R:
        """Run `work`, a transaction that changes a job, once the job and its followers are free. Raises JobHeld."""
        until = self._database.clock.monotonic() + SECOND
        while True:
            try:
                return await self._database.transact(work, A_SECOND)
            except FollowersHeld as error:
                if self._database.clock.monotonic() > until:
                    raise _held(job_id, "a follower of it") from error
            except StorageUnavailable as error:
                if isinstance(error.__cause__, asyncpg.LockNotAvailableError):
                    raise _held(job_id, "it") from error
                raise
            await sleep(self._database.clock, 0.1)


def _held(job_id: str, what: str) -> JobHeld:
    return JobHeld(
        f"job {job_id} was not changed: another open transaction has locked {what}, to enqueue under its unique key or "
        "to complete it; try again when that transaction has ended (`headgate status` shows it)"
    )


class _KeyLocks:
    """One lock for each key within this process, kept while it is wanted. All callers take them in the same order."""

    def __init__(self) -> None:
        # Who holds a lock or waits for it keeps it alive.
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def held(self, keys: Iterable[Hashable]) -> AsyncIterator[None]:
        """Hold the locks of these keys."""
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted(set(keys), key=repr):
                await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            yield
