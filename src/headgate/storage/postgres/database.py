"""Connections to PostgreSQL: the pool, transactions, and the translation of errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from enum import Enum
from functools import lru_cache
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, Self, TypeVar, cast
from urllib.parse import parse_qsl, unquote, unquote_plus, urlsplit

import asyncpg

from headgate.arguments import parse_duration
from headgate.clock import SECOND, Clock, SystemClock, sleep
from headgate.errors import DeclarationError, StorageUnavailable, StorageUnusable
from headgate.jobs.identity import IdTaken
from headgate.storage.postgres.dialect import AnyStatement, Insertion, statements_of
from headgate.storage.postgres.idle_in_transaction import ClientSilence, SilentInTransaction, server_error, was_not_sent
from headgate.storage.postgres.lent_pool import LentPool, close_pool, is_used_up
from headgate.storage.searching import SEARCH_TIMEOUT, Searches, too_long
from headgate.urls import displayed_url, missing_certificate, without_secrets

R = TypeVar("R")

logger = logging.getLogger("headgate.storage")

CONNECT_TIMEOUT = 5.0
COMMAND_TIMEOUT = 10.0
"""Seconds until a server that does not answer counts as gone."""

CANCEL_TIMEOUT = 2.0
"""Seconds that a statement has to end after the server was requested to end it."""

CLOSE_TIMEOUT = 2.0
"""Seconds that connections have to close in order."""

LOCK_TIMEOUT = "4s"
"""How long a statement waits for a lock. Our locks last milliseconds; a longer one is a user's, as by ALTER TABLE."""

HELD_FOR = "5s"
"""The longest duration of a transaction, and so of its locks. LOCK_TIMEOUT ends first; its error is clearer."""

SETTINGS = {
    "lock_timeout": LOCK_TIMEOUT,
    # Earlier than the client's timeout, so that no statement continues without a client.
    "statement_timeout": "9s",
    # The statements are short and many, and each has one good plan, by index. Planning a snapshot anew took 0.6 ms each
    # time, and a plan that was made while the tables were empty read whole tables until they were analysed.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    # Statements read what others have committed before they got their locks, whatever the database or the role prefers.
    "default_transaction_isolation": "read committed",
    "row_security": "off",  # Rows that a policy hides would look deleted, and their lanes empty: an error instead.
}
"""Settings of a session; behind a pooler, of each transaction."""

BEGIN = "BEGIN ISOLATION LEVEL read committed"

SCANNING = {name: "on" for name in SETTINGS if name.startswith("enable_")} | {"plan_cache_mode": "force_custom_plan"}
"""Other settings for a transaction that may read whole tables: its best plan depends on its parameters."""

CHECK_FOR = 600.0
"""Seconds that a statement of a check may take: it reads all rows, or a whole index."""

FROZEN_AFTER = "2s"
"""The time after which the server ends a session whose client has stopped in a transaction and holds locks."""

LASTS_IDLE = "30s"
"""The same for a transaction that locks nothing others need: a large enqueue takes time between two statements."""

IDLE_SETTING = "idle_in_transaction_session_timeout"

IDLE_BOUND: Mapping[str, str] = MappingProxyType({IDLE_SETTING: FROZEN_AFTER})
LASTING_BOUND: Mapping[str, str] = MappingProxyType({IDLE_SETTING: LASTS_IDLE})

PATIENCE = 5 * SECOND
"""How long repeatable work is repeated before the caller gets the error."""

OLDEST_SERVER = 130000

ENDS_TRANSACTIONS = 170000
"""The first version with `transaction_timeout`, which ends a session even while it waits for its client."""

CHECKS_CLIENTS = 140000
"""The first version that notices during a statement that the client has closed the connection."""

HIGHEST_PORT = 65535

_duration = lru_cache(8)(parse_duration)


class Treatment(Enum):
    """The meaning of a server error while the store is open."""

    AGAIN = "the same transaction is expected to succeed if it is repeated"
    REFUSED = "nothing was written, and the connection is usable"
    GONE = "the state of the session is unknown, so it is not used again"
    VALUES = "a value does not fit: the caller writes the other rows, and fails this one"
    DEFECT = "the statement does not fit the database: a bug, or somebody has changed the tables or roles"


ERRORS: Mapping[str, Treatment] = MappingProxyType(
    {
        "08": Treatment.GONE,  # connection lost
        "22": Treatment.VALUES,
        "23": Treatment.VALUES,
        "25": Treatment.GONE,  # a read-only server after a failover; the end of a transaction that was silent
        "26": Treatment.GONE,  # a pooler that does not keep prepared statements
        "28": Treatment.GONE,  # a password that was changed
        "3D": Treatment.GONE,  # a database that was dropped or renamed
        "3F": Treatment.REFUSED,  # the schema was taken away
        "40": Treatment.REFUSED,
        "40001": Treatment.AGAIN,  # serialization failure
        "40P01": Treatment.AGAIN,  # deadlock
        "42501": Treatment.REFUSED,  # a privilege was taken away
        "42P01": Treatment.REFUSED,  # a table was taken away
        "53": Treatment.REFUSED,  # disk full, out of memory
        "53300": Treatment.GONE,  # too many connections
        "54": Treatment.VALUES,  # too large, too deep
        "54000": Treatment.REFUSED,  # a full queue of notifications
        "55": Treatment.REFUSED,  # lock timeout
        "55000": Treatment.GONE,  # a database that allows no connections now
        "57": Treatment.REFUSED,  # statement timeout
        "57P": Treatment.GONE,  # shutting down, starting, ended by an administrator
        "58": Treatment.REFUSED,  # I/O errors
        "F0": Treatment.GONE,  # a configuration file that is wrong
        # Internal: a disk that is full while a session begins, a stale cache. The next session may have neither.
        "XX": Treatment.GONE,
    }
)
"""Maps prefixes of error codes to what they mean; the longest prefix decides. Other codes are defects.

Nothing that a server reports ends a worker: each treatment but VALUES is a StorageUnavailable, after which it tries
again. VALUES is one where no values are written: a row that somebody has damaged is no reason to stop either.
"""


def treatment_of(code: str) -> Treatment:
    """Return the treatment of an error code of five letters."""
    return next((ERRORS[begin] for end in (5, 3, 2) if (begin := code[:end]) in ERRORS), Treatment.DEFECT)


_FORBIDDEN = "42501"
_UNKNOWN = "42704"
_READ_ONLY = "25006"
_WITHDRAWN = ("42P01", "3F000")


class Bounds(NamedTuple):
    """The settings with which a server ends a session whose client is silent or gone."""

    of_session: Mapping[str, str] = MappingProxyType({})
    of_transaction: Mapping[str, str] = IDLE_BOUND

    @classmethod
    def at(cls, version: int, *, is_linux: bool) -> Self:
        """Return the settings that a server of that version supports."""
        session: dict[str, str] = {}
        if is_linux:
            # Other systems refuse this setting. It is for a client that has stopped reading a large answer.
            session["tcp_user_timeout"] = HELD_FOR
            if version >= CHECKS_CLIENTS:
                session["client_connection_check_interval"] = "1s"
        if version < ENDS_TRANSACTIONS:
            return cls(session)
        # That of the role or the server is not for a transaction that may last.
        session["transaction_timeout"] = "0"
        return cls(session, {**IDLE_BOUND, "transaction_timeout": HELD_FOR})


class Session:
    """Statements by name, on one connection. Outside a `transaction` each commits by itself.

    Behind a pooler (`is_pooled`), settings are made in each transaction. `timeout` (seconds) is for each statement;
    None: that of the connection. With a `clock`, a transaction that was rolled back because this process was silent
    raises SilentInTransaction; `store` is the name for its message.
    """

    def __init__(
        self,
        connection: Any,
        statements: Mapping[str, AnyStatement],
        *,
        is_pooled: bool,
        bounds: Bounds = Bounds(),  # noqa: B008  # it is immutable
        timeout: float | None = None,
        clock: Clock | None = None,
        store: str = "",
    ) -> None:
        self._timeout = timeout
        self._clock = clock
        self._store = store
        self._silence: ClientSilence | None = None
        self._connection = connection
        self._statements = statements
        self._is_pooled = is_pooled
        self._bounds = bounds
        self._in_transaction = False
        self.last = ""
        """The name of its last statement."""
        self.answered_at = 0
        """When the server has answered one, on the clock; 0 without a clock."""

    async def fetch(self, statement: str, /, **values: Any) -> list[Any]:
        """Return the rows of a statement."""
        if self._is_pooled and not self._in_transaction:
            # Without it, parsing and running a statement may use two server connections.
            async with self.transaction():
                return await self.fetch(statement, **values)
        self.last = statement
        known, bound = self._statements[statement].fit(values)
        rows: list[Any] = await self._answer(self._connection.fetch, known.sql, *bound, timeout=self._timeout)
        return rows

    async def row(self, statement: str, /, **values: Any) -> Any:
        """Return the only row of a statement, or None."""
        rows = await self.fetch(statement, **values)
        return rows[0] if rows else None

    async def value(self, statement: str, /, **values: Any) -> Any:
        """Return the first value of the first row of a statement, or None."""
        rows = await self.fetch(statement, **values)
        return rows[0][0] if rows else None

    async def execute(self, statement: str, /, **values: Any) -> int:
        """Run a statement that changes rows, and return how many it changed."""
        if self._is_pooled and not self._in_transaction:
            async with self.transaction():
                return await self.execute(statement, **values)
        self.last = statement
        known, bound = self._statements[statement].fit(values)
        status: str = await self._answer(self._connection.execute, known.sql, *bound, timeout=self._timeout)
        return int(status.rpartition(" ")[2])

    async def script(self, sql: str) -> None:
        """Run statements without parameters."""
        await self._answer(self._connection.execute, sql, timeout=self._timeout)

    async def _answer(
        self, send: Callable[..., Awaitable[R]], *values: Any, is_commit: bool = False, **options: Any
    ) -> R:
        """Send a statement, and return its answer. Raises SilentInTransaction, as `idle_in_transaction` says."""
        silence = self._silence
        if silence is not None:
            await silence.end_before_statement()
        try:
            answer = await send(*values, **options)
        except Exception as error:
            if silence is not None and silence.has_rolled_back(error, is_commit=is_commit):
                raise silence.error() from error
            raise
        if silence is not None:
            silence.note_answer()
        if self._clock is not None:
            self.answered_at = self._clock.monotonic()
        return answer

    @contextlib.asynccontextmanager
    async def transaction(
        self,
        plans: Mapping[str, str] = MappingProxyType({}),
        *,
        prepares: tuple[str, ...] = (),
        may_last: bool = False,
    ) -> AsyncIterator[None]:
        """Commit all statements of the block when it ends, or none.

        A server that has `transaction_timeout` rolls it back after `HELD_FOR`, unless it `may_last` because it locks
        nothing that others wait for. `plans` are settings for it alone. The statements named in `prepares` are prepared
        before it begins: while a statement is prepared, the server waits for this client inside a statement, where few
        timeouts apply, so nothing may be locked.
        """
        if prepares and not self._is_pooled and prepares not in self._connection.prepared:
            for name in prepares:
                known = self._statements[name]
                assert not isinstance(known, Insertion)
                await self._connection.prepare_ahead(known.sql)
            self._connection.prepared.add(prepares)
        settings = {**(LASTING_BOUND if may_last else self._bounds.of_transaction), **plans}
        if self._is_pooled:
            settings = {**SETTINGS, **self._bounds.of_session, **settings}
        limit = _duration(settings[IDLE_SETTING], IDLE_SETTING)
        silence = None if self._clock is None else ClientSilence(self._clock, limit, self._store)
        await self._connection.execute(
            "; ".join([BEGIN, *(f"SET LOCAL {name} = '{value}'" for name, value in settings.items())]),
            timeout=self._timeout,
        )
        if silence is not None:
            silence.note_answer()
        self._silence = silence
        self._in_transaction = True
        try:
            try:
                yield
            except BaseException as error:
                # A connection in an unknown state is not used again.
                if _leaves_connection_usable(error):
                    await self._answer(self._connection.execute, "ROLLBACK", timeout=self._timeout)
                raise
            finally:
                self._in_transaction = False
            await self._answer(self._connection.execute, "COMMIT", is_commit=True, timeout=self._timeout)
        finally:
            self._silence = None


class Database:
    """A pool of connections to one database.

    Behind a pooler that gives every transaction another server connection, nothing is kept in a session: no prepared
    statements, no settings, no LISTEN. A pooler is recognized by its process id, which is not that of the server. Of a
    `lent` pool, all connections are those of the user: nothing is kept in their sessions either.
    """

    def __init__(self, url: str, schema: str, *, size: int, pool: object | None = None) -> None:
        self.url = url
        self.schema = schema
        self.name = displayed_url(url)
        self.is_pooled = False
        self.lent: LentPool | None = None if pool is None else LentPool(pool, self.name)
        self.bounds = Bounds()
        # Real time, also where a test sets the clock: in it a server answers, releases locks, and measures the silence
        # of its clients. On a clock that only the test moves, what is tried again would wait for ever.
        self.clock: Clock = SystemClock()
        self._size = size
        self._random = Random()
        self.statements = statements_of(schema)
        self.connects = 0
        """How many connections were made. While it stays the same, the server under them has not been restarted."""
        self._scans = self._lookups = asyncio.Semaphore()
        self._searches = Searches(self.clock, at_once=1)
        self._pool: asyncpg.Pool[Any] | None = None
        self._sessions = set[Session]()
        self._answered_at = 0
        """When the server has answered a session that is over."""

    @property
    def keeps_sessions(self) -> bool:
        """Whether a session keeps what is set in it, and shares it with no other client."""
        return not self.is_pooled and self.lent is None

    async def open(self) -> None:
        """Connect. Raises StorageUnavailable if no server answers, StorageUnusable for a server that is too old."""
        if self.lent is not None:
            await self.lent.open()
        try:
            await self.repeated(self.probe)
        except BaseException:
            await self.close()
            raise
        if self.lent is not None:
            self._size = self.lent.size
        # Connections are left for heartbeats and claims, however many users read at once.
        self._scans = asyncio.Semaphore(max(1, self._size // 4))
        self._lookups = asyncio.Semaphore(max(1, self._size // 4))
        self._searches = Searches(self.clock, at_once=max(1, self._size // 8))
        if self.lent is not None:
            return
        settings = {} if self.is_pooled else {**SETTINGS, **self.bounds.of_session}
        self._pool = await asyncpg.create_pool(
            self.url,
            min_size=0,
            max_size=self._size,
            connect=cast(Any, connect),  # the stubs name all of its options
            connection_class=_Connection,
            init=self._connected,
            statement_cache_size=0 if self.is_pooled else 300,
            # The driver would plan a statement of more than 15 KiB anew each time.
            max_cacheable_statement_size=0,
            # A statement that is dropped from the cache would be prepared again, in the middle of a transaction.
            max_cached_statement_lifetime=0,
            max_inactive_connection_lifetime=300.0,
            command_timeout=COMMAND_TIMEOUT,
            server_settings={"application_name": "headgate", **settings},
        )

    async def probe(self) -> None:
        """Check whether the server can be used, and whether a pooler is in front of it. Raises as `open`."""
        try:
            with self.translated(opening=True):
                async with self.connection() as connection:
                    # In a transaction: otherwise, parsing and running it may use two connections of a pooler.
                    async with connection.transaction():
                        version, is_linux, pid = await connection.fetchrow(
                            "SELECT current_setting('server_version_num')::int, version() LIKE '%linux%', "
                            "pg_backend_pid()"
                        )
                        if self.lent is not None:
                            await self.lent.require_plain(connection)
                    self.is_pooled = pid != connection.get_server_pid()
        except asyncpg.PostgresError as error:
            # No right to connect, or an option of the URL with a value that the server does not take.
            raise StorageUnusable(f"{self.name} cannot be opened: {without_secrets(str(error), self.url)}") from error
        if version < OLDEST_SERVER:
            raise StorageUnusable(f"{self.name} is PostgreSQL {version // 10000}; Headgate needs 13 or newer")
        self.bounds = Bounds.at(version, is_linux=is_linux)

    def connection(self) -> AbstractAsyncContextManager[Any]:
        """Use a connection that no statement of the store runs on meanwhile: a new one, or one of the lent pool."""
        return opened(self.url) if self.lent is None else self.lent.connection()

    @contextlib.asynccontextmanager
    async def own_connection(self) -> AsyncIterator[asyncpg.Connection[Any]]:
        """Open a connection outside the pool, with the server's own settings, and close it at the end of the block.

        Of a lent pool, it is one of its connections, as its user has set them up.
        """
        async with contextlib.AsyncExitStack() as stack:
            # Without the block, whose errors are the caller's.
            with self.translated():
                connection: asyncpg.Connection[Any]
                if self.lent is not None:
                    connection = await stack.enter_async_context(self.lent.connection())
                else:
                    connection = await connect(
                        self.url,
                        statement_cache_size=0 if self.is_pooled else 100,
                        # Not as the pool's: what a user streams here may be slow, and is no silent client of the store.
                        server_settings={"application_name": "headgate transaction"},
                    )
                    stack.push_async_callback(self._close_in_order, connection)
            yield connection

    async def _close_in_order(self, connection: asyncpg.Connection[Any]) -> None:
        try:
            await connection.close(timeout=CLOSE_TIMEOUT)
        except Exception as error:
            logger.debug("a connection to %s was left without closing: %s", self.name, error)

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        try:
            if self.lent is not None:
                await self.lent.close(CLOSE_TIMEOUT)
            if pool is not None:
                await close_pool(pool, CLOSE_TIMEOUT)
        except Exception as error:
            # The server has already closed the connection; everything that had to be stored has been committed.
            logger.debug("%s was left without closing: %s", self.name, error)

    async def _connected(self, connection: Any) -> None:
        self.connects += 1

    # ----------------------------------------------------------------------------------------- connections

    async def _once(self, work: Callable[[Session], Awaitable[R]]) -> R:
        """Run `work` on a connection of the pool."""
        pool = self._pool if self.lent is None else self.lent
        if pool is None:
            raise StorageUnavailable(f"{self.name} is not open")
        with self.translated():
            connection = await self._free_connection(pool)
            session = Session(
                connection,
                self.statements,
                is_pooled=not self.keeps_sessions,
                bounds=self.bounds,
                timeout=None if self.lent is None else COMMAND_TIMEOUT,
                clock=self.clock,
                store=self.name,
            )
            self._sessions.add(session)
            try:
                return await work(session)
            except BaseException as error:
                if isinstance(error, asyncpg.PostgresError):
                    session.answered_at = self.clock.monotonic()
                if isinstance(error, TimeoutError) and self._pool is not None:
                    # The other connections lead to the same server, which does not answer.
                    await self._pool.expire_connections()
                if not _leaves_connection_usable(error):
                    # A connection that the driver has lost is already back in the pool.
                    with contextlib.suppress(asyncpg.InterfaceError):
                        connection.terminate()
                raise
            finally:
                self._sessions.discard(session)
                self._answered_at = max(self._answered_at, session.answered_at)
                await pool.release(connection)

    async def _free_connection(self, pool: asyncpg.Pool[Any] | LentPool) -> Any:
        """Return a free connection. A pool whose connections are all in use is told from a server that is silent."""
        asked_at = self.clock.monotonic()
        try:
            return await pool.acquire(timeout=COMMAND_TIMEOUT)
        except TimeoutError as error:
            answered_at = max([self._answered_at, *(each.answered_at for each in self._sessions)])
            # A server that lives has ended each statement by now. If it has answered nobody, they wait for it, too.
            is_silent = bool(self._sessions) and answered_at < asked_at
            if is_silent or not (pool.is_used_up if isinstance(pool, LentPool) else is_used_up(pool)):
                raise
            last = Counter(each.last for each in self._sessions).most_common()
            users = ", ".join(f"{count} × {name}" for name, count in last)
            if isinstance(pool, LentPool):
                raise StorageUnavailable(pool.none_free(COMMAND_TIMEOUT, users)) from error
            raise StorageUnavailable(
                f"all {self._size} connections of this process to {self.name} were in use for {COMMAND_TIMEOUT:g} s, "
                f"their last statements: {users}; raise connections= or HEADGATE_CONNECTIONS, or look in `headgate "
                "status` for locks that hold them up"
            ) from error

    @contextlib.contextmanager
    def translated(self, *, opening: bool = False) -> Iterator[None]:
        """Raise an error of the store instead of one of the driver, as `translate` says."""
        try:
            yield
        except Exception as error:
            translated = translate(error, self.url, opening=opening)
            if translated is None:
                raise
            raise translated from error

    # --------------------------------------------------------------------------------------------- repeats

    async def run(self, work: Callable[[Session], Awaitable[R]]) -> R:
        """Run `work` on a connection, and again if it was rolled back: by a deadlock, or while the loop was blocked."""
        for tries_left in range(4, -1, -1):
            try:
                return await self._once(work)
            except (Deadlocked, SilentInTransaction, StatementRejected) as error:
                # A unique key that was free when it was read: the repeat finds that it is taken.
                is_key_taken = isinstance(error.__cause__, asyncpg.UniqueViolationError)
                if not tries_left or (isinstance(error, StatementRejected) and not is_key_taken):
                    raise
                if isinstance(error, SilentInTransaction):
                    logger.warning("%s; the transaction is repeated", error)
                await sleep(self.clock, self._random.uniform(0.001, 0.02))
        raise AssertionError

    async def keep_running(
        self, work: Callable[[Session], Awaitable[None]], seconds: float, clock: Clock, *, reads: str
    ) -> None:
        """Run `work`, which `reads` something, again and again, after so many seconds each; errors are only logged."""
        while True:
            await sleep(clock, seconds)
            try:
                await self.run(work)
            except Exception as error:
                # What this task does, no other does in this process, so it outlives any error.
                level = logging.DEBUG if isinstance(error, StorageUnavailable) else logging.WARNING
                logger.log(level, "%s of %s could not be read: %r", reads, self.name, error)

    async def transact(
        self,
        work: Callable[[Session], Awaitable[R]],
        plans: Mapping[str, str] = MappingProxyType({}),
        *,
        prepares: tuple[str, ...] = (),
        may_last: bool = False,
    ) -> R:
        """Run `work` in one transaction; the other parameters are those of `Session.transaction`."""

        async def whole(session: Session) -> R:
            async with session.transaction(plans, prepares=prepares, may_last=may_last):
                return await work(session)

        return await self.run(whole)

    async def repeat(self, work: Callable[[Session], Awaitable[R]]) -> R:
        """Run `work` until it returns a reply; `work` may run twice."""
        return await self.repeated(lambda: self.run(work))

    async def scan(self, work: Callable[[Session], Awaitable[R]]) -> R:
        """Run a read that may read whole tables; `work` may run twice."""
        return await self.repeated(lambda: self.transact(work, SCANNING, may_last=True), self._scans)

    async def check(self, work: Callable[[Session], Awaitable[R]]) -> R:
        """Read everything as of one moment, each statement for `CHECK_FOR` seconds at most, on its own connection."""
        async with self.own_connection() as connection:
            with self.translated():
                # Not as the pool's connections: the settings are made in the transaction, as behind a pooler.
                session = Session(connection, self.statements, is_pooled=True, bounds=self.bounds, timeout=CHECK_FOR)
                plans = {"transaction_isolation": "repeatable read", "statement_timeout": f"{CHECK_FOR:g}s"}
                async with session.transaction({**SCANNING, **plans}, may_last=True):
                    return await work(session)

    async def search(self, work: Callable[[Session], Awaitable[R]]) -> R:
        """Read payloads: few searches at once, each for a bounded time. If it is cancelled, it also ends in the server.

        Raises SearchTooLong and TooManySearches.
        """
        plans = {**SCANNING, "statement_timeout": f"{SEARCH_TIMEOUT:g}s"}
        began: list[Any] = []

        async def noted(session: Session) -> R:
            began.append(await session.row("own_transaction"))
            return await work(session)

        searching = asyncio.ensure_future(self._searches.run(lambda: self.transact(noted, plans, may_last=True)))
        try:
            # Not cancelled directly: a closed connection leaves its statement running in the server.
            return await asyncio.shield(searching)
        except asyncio.CancelledError:
            try:
                if began and not searching.done():
                    await self._end_statement(*began[-1])
                    await asyncio.wait([searching], timeout=CANCEL_TIMEOUT)
            finally:
                searching.cancel()
                await asyncio.wait([searching])
                # The caller is gone, so its result is not used.
                searching.cancelled() or searching.exception()
            raise
        except StorageUnavailable as error:
            if isinstance(error.__cause__, asyncpg.QueryCanceledError):
                raise too_long() from None
            raise

    async def _end_statement(self, pid: int, began_at: Any) -> None:
        """End the statement of a transaction in the server, on a connection of its own, as the pool may be busy."""
        known, bound = self.statements["end_statement"].fit({"pid": pid, "began_at": began_at})
        try:
            async with self.connection() as connection:
                await connection.fetch(known.sql, *bound)
        except Exception as error:
            # Then its timeout ends it.
            logger.debug("a search on %s could not be ended early: %s", self.name, error)

    async def look_up(self, work: Callable[[Session], Awaitable[R]]) -> R:
        """Run a read for a waiting caller, and retry it if the connection is lost; `work` may run twice."""
        return await self.repeated(lambda: self.run(work), self._lookups)

    async def repeated(self, work: Callable[[], Awaitable[R]], turns: asyncio.Semaphore | None = None) -> R:
        """Return the result of `work`, retrying it while the server is unavailable.

        Each try takes one of the `turns`, if any: one that waits to try again holds up no other. Until the first turn,
        nothing was tried, so that time does not count.
        """
        until, pause = 0, 0.01
        while True:
            try:
                async with turns or contextlib.nullcontext():
                    until = until or self.clock.monotonic() + PATIENCE
                    return await work()
            except (StatementRejected, IdTaken):
                raise
            except StorageUnavailable:
                if self.clock.monotonic() + pause * SECOND > until:
                    raise
            await sleep(self.clock, self._random.uniform(0.5, 1.0) * pause)
            pause = min(pause * 2, 1.0)


class Deadlocked(StorageUnavailable):
    """Two transactions waited for each other, and this one was rolled back."""


class StatementRejected(StorageUnavailable):
    """The server does not run a statement, or not with these values. To repeat it at once is no use.

    `has_bad_values`: it may run it with others.
    """

    def __init__(self, message: str, *, has_bad_values: bool) -> None:
        super().__init__(message)
        self.has_bad_values = has_bad_values


@contextlib.contextmanager
def raising_bad_values() -> Iterator[None]:
    """Raise the driver's own error for values that do not fit: the caller finds the row that has them."""
    try:
        yield
    except StatementRejected as error:
        if error.has_bad_values and error.__cause__ is not None:
            raise error.__cause__ from None
        raise


_NEXT_HOST = (OSError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError, asyncpg.InternalClientError)
"""Errors of one host after which the next one is tried."""


async def connect(url: str, **options: Any) -> Any:
    """Connect to the first host of a URL that can be used. Raises the error of the last one if none can.

    Each has its share of the time: the driver itself would wait for a machine that is gone until no time is left.
    """
    hosts = _hosts_of(url)
    share = CONNECT_TIMEOUT / len(hosts)
    for host, port in hosts[:-1]:
        with contextlib.suppress(*_NEXT_HOST):
            return await asyncpg.connect(url, host=host, port=port, timeout=share, **options)
    last: dict[str, Any] = dict(zip(("host", "port"), hosts[-1], strict=True)) if len(hosts) > 1 else {}
    return await asyncpg.connect(url, timeout=share, **last, **options)


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Any]:
    """Open a connection outside the pool, which prepares nothing, and close it at the end of the block."""
    connection = await connect(
        url,
        command_timeout=COMMAND_TIMEOUT,
        statement_cache_size=0,
        server_settings={"application_name": "headgate"},
    )
    try:
        yield connection
    finally:
        with contextlib.suppress(Exception):
            connection.terminate()


def translate(error: Exception, url: str, *, opening: bool = False) -> Exception | None:
    """Return the error to raise for a driver's error; None if it does not come from the server or the connection.

    While `opening`, a wrong password or database is a mistake of the user, and None is also for a missing privilege or
    table and for defects; later it may be a change in progress, so it is temporary.
    """
    name, text = displayed_url(url), without_secrets(str(error), url)
    if isinstance(error, asyncpg.PostgresError):
        code = error.sqlstate or ""
        treatment = treatment_of(code)
        # The second is what PgBouncer says, under a code of many meanings.
        is_option = code == _UNKNOWN or "unsupported startup parameter" in text
        if opening and (is_option or code.startswith(("28", "3D000"))):
            advice = "; remove it from the URL, because asyncpg does not know it either" if is_option else ""
            return StorageUnusable(f"{name} cannot be opened: {text}{advice}")
        if opening and (code in (_FORBIDDEN, *_WITHDRAWN) or treatment in (Treatment.VALUES, Treatment.DEFECT)):
            return None
        if code == _FORBIDDEN:
            return StorageUnavailable(
                f"{name} denies access: {text}; let the owner of the schema GRANT USAGE on it, SELECT, INSERT, UPDATE "
                "and DELETE on its tables, without row level security, and EXECUTE on its functions"
            )
        if code in _WITHDRAWN:
            return StorageUnavailable(
                f"a table of {name} is missing: {text}; restore it, or if the whole schema was dropped, create it with "
                "`headgate migrate`"
            )
        if code == _READ_ONLY:
            return StorageUnavailable(
                f"{name} is read-only: {text}; it is a replica, or default_transaction_read_only is set; to reach the "
                "primary, name all hosts in the URL, and target_session_attrs=primary"
            )
        match treatment:
            case Treatment.AGAIN:
                return Deadlocked(f"{name}: {text}")
            case Treatment.REFUSED | Treatment.GONE:
                advice = "; `headgate status` shows who holds the lock" if code == "55P03" else ""  # lock timeout
                return StorageUnavailable(f"{name} refused the request: {text}{advice}")
            case Treatment.VALUES:
                return StatementRejected(f"{name} rejected a value ({code}): {text}", has_bad_values=True)
            case Treatment.DEFECT:
                why = "somebody changed the database's tables, functions or roles, or Headgate has a bug"
                return StatementRejected(f"{name} rejected a statement ({code}): {text}; {why}", has_bad_values=False)
    # A ValueError is about a host such as "db..example", or a port of the URL or PGPORT, before anything is sent.
    if isinstance(error, asyncpg.exceptions.ClientConfigurationError) or (opening and isinstance(error, ValueError)):
        return StorageUnusable(f"{name} cannot be opened: {text}")
    if opening and ("getpwuid()" in text or "No username set" in text):
        return StorageUnusable(f"{name} names no user, and that of this process has no name; write user@host")
    if opening and isinstance(error, FileNotFoundError) and (missing := missing_certificate(url)):
        return StorageUnusable(f"{name} cannot be opened: there is no file for {missing}")
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return StorageUnavailable(f"{name} does not answer")
    if isinstance(error, (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError)):
        # The driver's words may be about its own states; the server's say why it ended the session.
        said = server_error(error)
        if said is None and isinstance(error, asyncpg.InternalClientError) and was_not_sent(error):
            said = "it had ended before the statement was sent"
        said = "there is no such socket or certificate" if isinstance(error, FileNotFoundError) else said
        why = without_secrets(said or str(error), url)
        return StorageUnavailable(
            f"{name} cannot be reached: {why}" if opening else f"the connection to {name} was lost: {why}"
        )
    return None


def _leaves_connection_usable(error: BaseException) -> bool:
    """Whether the server itself has answered. After any other error the state of the connection is unknown."""
    if isinstance(error, asyncpg.PostgresError):
        return treatment_of(error.sqlstate or "") is not Treatment.GONE
    return not isinstance(
        error,
        (
            OSError,
            TimeoutError,
            asyncio.CancelledError,
            GeneratorExit,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
            SilentInTransaction,
        ),
    )


def checked_url(url: str) -> str:
    """Return a URL that can be parsed; it may name several hosts. Raises DeclarationError."""
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2].split(",")
        ports = [port for host in hosts if (port := host.rpartition("]")[2].rpartition(":")[2]) != host]
    except ValueError as error:
        raise DeclarationError(
            f"storage URL {displayed_url(url)!r} cannot be read: {without_secrets(str(error), url)}"
        ) from None
    for port in ports:
        if port and not (port.isascii() and port.isdigit()):
            raise DeclarationError(
                f"storage URL {displayed_url(url)!r} has a port that is not a number; percent-encode / # ? @ and : in "
                "a password"
            )
        # Python refuses to read thousands of digits.
        if port and int(port[:18]) > HIGHEST_PORT:
            raise DeclarationError(
                f"storage URL {displayed_url(url)!r} has port {port}; the highest port is {HIGHEST_PORT}"
            )
    is_cut = parts.netloc.count("@") > 1 or "@" in parts.path or parts.fragment
    if is_cut or any("=" not in option for option in parts.query.split("&") if parts.query):
        raise DeclarationError(
            f"storage URL {displayed_url(url)!r} cannot be read: percent-encode / # ? @ and : in a user, a password or "
            "a database, and write options as ?name=value&name=value"
        )
    return url


def split_schema(url: str) -> tuple[str, str | None]:
    """Return a URL as the driver reads it, and the schema that its parameter `schema` names; None if there is none."""
    address, _, query = url.partition("?")
    options = query.split("&") if query else []
    rest = [option for option in options if not option.startswith("schema=")]
    named = [unquote_plus(option.partition("=")[2]) for option in options if option.startswith("schema=")]
    return f"{address}?{'&'.join(rest)}" if rest else address, named[-1] if named else None


def database_of(url: str) -> tuple[str, str, str]:
    """Return the hosts, ports and database of a URL, as far as it shows them: one server may have several names."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    hosts, ports = zip(*((host.lower(), port or "5432") for host, port in _hosts_of(url)), strict=True)
    database = parts.path.strip("/") or options.get("database") or options.get("dbname") or parts.username or ""
    local = ("", "127.0.0.1", "::1")
    return ",".join("localhost" if host in local else host for host in hosts), ",".join(ports), unquote(database)


def _hosts_of(url: str) -> list[tuple[str, str | None]]:
    """Return the hosts that a URL names, each with its port if that is named."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    hosts = (parts.netloc.rpartition("@")[2] or options.get("host", "")).split(",")
    port = options.get("port", "")
    ports = port.split(",") if port.count(",") == len(hosts) - 1 else [port] * len(hosts)
    return [
        (unquote(named["bracketed"] or named["plain"] or ""), named["port"] or port or None) if named else ("", None)
        for named, port in zip(map(_HOST.fullmatch, hosts), ports, strict=True)
    ]


_HOST = re.compile(r"(?:\[(?P<bracketed>[^]]*)\]|(?P<plain>[^:]*))(?::(?P<port>\d*))?")


_FIRST_OF_USERS = 16_384
"""The lowest number of a type that is not PostgreSQL's own (FirstNormalObjectId)."""

_own_types: dict[frozenset[int], Any] = {}
"""PostgreSQL's descriptions of its own types, which are the same on each server."""

_NOT_ASKED = SimpleNamespace(name="a placeholder for the statement that was not needed")


class _Connection(asyncpg.Connection):
    """A session keeps nothing but its statements, so there is nothing to reset: one round trip less."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.prepared: set[tuple[str, ...]] = set()
        """The groups of statements that have been prepared ahead."""

    def get_reset_query(self) -> str:
        return ""

    async def close(self, *, timeout: float | None = None) -> None:
        """Close it. One that stays silent is no error: the pool would leave that to the log of the event loop."""
        with contextlib.suppress(TimeoutError):
            await super().close(timeout=timeout)

    async def _introspect_types(self, types: Collection[int], timeout: float | None) -> tuple[Any, Any]:
        """Ask about types such as bigint[] once in a process, not in each session: it takes three statements."""
        ids = frozenset(types)
        if ids in _own_types:
            return _own_types[ids], _NOT_ASKED
        found, statement = await super()._introspect_types(types, timeout)  # type: ignore[misc]  # not in the stubs
        if max(ids) < _FIRST_OF_USERS:
            _own_types[ids] = found
        return found, statement

    async def prepare_ahead(self, sql: str) -> None:
        """Prepare a statement as its first run would. The public `prepare` keeps the statement for its caller."""
        await self._get_statement(sql, None)  # type: ignore[attr-defined]  # it is for subclasses, so not in the stubs
