"""Sessions that are idle in a transaction: the server ends them.

**In a transaction of the store** (`ClientSilence`), a blocked event loop is the usual cause. The server has then rolled
the transaction back, and the same one is expected to succeed if it is repeated. It is repeated only if it is certain
that it was not committed:

- its COMMIT was not sent, or
- the server itself reports that it has ended the session of a silent client. It checks that before it reads the next
  message, so it has not read the COMMIT.

A COMMIT that was sent and has no answer may have happened. Its error is that of every lost answer.

**In a transaction that a handler holds open** (`held_transaction`), the error says that its session has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from headgate.clock import SECOND, Clock
from headgate.errors import StorageUnavailable, causes_of

logger = logging.getLogger("headgate.storage")

IDLE_TIMEOUT = "25P03"
"""The code with which a server ends a session that is silent in a transaction."""

_ENDED = ("08", "57P", IDLE_TIMEOUT, "25P04")

ROLLBACK_TIMEOUT = 2.0
"""Seconds that a transaction of a handler has to roll back before its connection is closed."""

_READ_TURNS = 3
"""How often the event loop has to turn until it has read what the server has sent."""


class SilentInTransaction(StorageUnavailable):
    """The server ended the session, because this process was silent in a transaction. Nothing was committed."""


class ClientSilence:
    """The silence of this process in one transaction; after `limit` (microseconds) the server ends its session."""

    def __init__(self, clock: Clock, limit: int, store: str) -> None:
        self._clock = clock
        self._limit = limit
        self._store = store
        self._lasted = 0
        self._sent_at = self._answered_at = clock.monotonic()

    async def end_before_statement(self) -> None:
        """Call this before each statement. Raises SilentInTransaction if the server has ended the session by now."""
        now = self._clock.monotonic()
        self._lasted = now - self._sent_at
        if now - self._answered_at >= self._limit:
            raise self.error()
        if self._lasted >= self._limit:
            # Either the last statement took long, or its answer was read late. In the latter case the end of the
            # session is in the socket, and the driver has to read it before it sends anything.
            for _ in range(_READ_TURNS):
                await asyncio.sleep(0)  # noqa: TID251  # it waits for no time
        self._sent_at = self._clock.monotonic()

    def note_answer(self) -> None:
        """Call this after each answer."""
        self._answered_at = self._clock.monotonic()

    def has_rolled_back(self, error: Exception, *, is_commit: bool) -> bool:
        """Whether the error of a statement says that the transaction was rolled back after a silence."""
        is_unsent = was_not_sent(error)
        if is_unsent:
            # A statement with values is sent in two parts, and the loop may have been blocked between them.
            self._lasted = max(self._lasted, self._clock.monotonic() - self._sent_at)
        if self._lasted < self._limit:
            return False
        return is_unsent or is_idle_timeout(error) or (not is_commit and is_session_lost(error))

    def error(self) -> SilentInTransaction:
        return SilentInTransaction(
            f"{self._store}: the event loop was blocked for {self._lasted / SECOND:.1f} s inside a transaction, so the "
            "server ended the session and nothing was committed; if an `async def` handler blocks the loop, make it a "
            "plain `def` task"
        )


def was_not_sent(error: BaseException) -> bool:
    """Whether the driver refused a statement because it knew that the connection was lost."""
    if isinstance(error, asyncpg.InternalClientError):
        # It had read the server's error, and not yet the end of the connection.
        return "cannot switch to state" in str(error)
    # A wrong argument is an InterfaceError too, and a ValueError.
    return isinstance(error, asyncpg.InterfaceError) and not isinstance(error, ValueError)


def is_idle_timeout(error: BaseException | None) -> bool:
    """Whether the server says that it has ended the session of a silent client; asyncpg 0.32 passes that on."""
    return any(isinstance(each, asyncpg.PostgresError) and each.sqlstate == IDLE_TIMEOUT for each in causes_of(error))


def is_session_lost(error: BaseException) -> bool:
    """Whether the session has ended. The transaction is rolled back, unless its COMMIT was sent."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_ENDED)
    if isinstance(error, TimeoutError):
        return False
    return was_not_sent(error) or isinstance(error, (OSError, asyncpg.InternalClientError))


@contextlib.asynccontextmanager
async def held_transaction(connection: Any, transaction: Any, clock: Clock, store: str) -> AsyncIterator[None]:
    """Commit what the block has written in this transaction, which has begun on this connection of asyncpg.

    Raises StorageUnavailable if the session ended before the COMMIT was sent, so that nothing was committed. A lost
    answer to the COMMIT raises the driver's own error.
    """
    gap = _StatementGap(clock)
    connection.add_query_logger(gap.note)
    try:
        try:
            yield
        except Exception as error:
            is_lost = not await _has_rolled_back(connection, transaction)
            if is_lost and is_session_lost(error) and not isinstance(error, OSError):
                raise _ended(store, gap, error) from error
            raise
        except BaseException:
            await _has_rolled_back(connection, transaction)
            raise
        try:
            await transaction.commit()
        except Exception as error:
            if was_not_sent(error) or is_idle_timeout(error):
                raise _ended(store, gap, error) from error
            raise
    finally:
        # A lost connection of a pool has been taken back by the pool.
        with contextlib.suppress(asyncpg.InterfaceError):
            connection.remove_query_logger(gap.note)


class _StatementGap:
    """The time from the start of the last statement but one to the start of the last one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent_at = clock.monotonic()
        self.seconds = 0.0

    def note(self, query: Any) -> None:
        """Note a statement of asyncpg that has just ended."""
        sent_at = self._clock.monotonic() - round(query.elapsed * SECOND)
        self.seconds, self._sent_at = (sent_at - self._sent_at) / SECOND, sent_at


async def _has_rolled_back(connection: Any, transaction: Any) -> bool:
    """Roll back. Returns False if the session is lost, and the server has done it, or does it when it notices."""
    try:
        # The driver first waits until a cancelled statement has ended, for ever if the connection is silent.
        async with asyncio.timeout(ROLLBACK_TIMEOUT):  # noqa: TID251  # real connections, real time
            await transaction.rollback()
    except TimeoutError:
        connection.terminate()
        return False
    except Exception as error:
        if is_session_lost(error):
            return False
        raise
    return True


def _ended(store: str, gap: _StatementGap, error: Exception) -> StorageUnavailable:
    why = (
        f". Nothing was sent on it for {gap.seconds:.1f} s, and the server ends a session that is silent for its "
        "idle_in_transaction_session_timeout: do not block the event loop in the block; a plain `def` task may block"
        if is_idle_timeout(error) or gap.seconds >= 1
        else ""
    )
    said = server_error(error)
    return StorageUnavailable(
        f"{store}: the session of this transaction ended before its COMMIT was sent, so nothing was committed"
        f"{'' if said is None else f' ({said})'}{why}"
    )


def server_error(error: BaseException | None) -> str | None:
    """Return what the server has said when it ended the session; asyncpg 0.32 passes that on as a cause."""
    return next((str(each) for each in causes_of(error) if isinstance(each, asyncpg.PostgresError)), None)
