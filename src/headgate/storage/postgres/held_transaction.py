"""A transaction that a handler holds open: if its session ends before the COMMIT, the error says so."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from headgate.clock import SECOND, Clock
from headgate.errors import StorageUnavailable, causes_of
from headgate.storage.postgres.client_silence import is_idle_timeout, is_session_lost, was_not_sent


@contextlib.asynccontextmanager
async def held_transaction(connection: Any, clock: Clock, store: str) -> AsyncIterator[None]:
    """Commit what the block has written on this connection of asyncpg.

    Raises StorageUnavailable if the session ended before the COMMIT was sent, so that nothing was committed. A lost
    answer to the COMMIT raises the driver's own error.
    """
    gap = _StatementGap(clock)
    connection.add_query_logger(gap.note)
    try:
        transaction = connection.transaction()
        await transaction.start()
        try:
            yield
        except Exception as error:
            is_lost = not await _has_rolled_back(transaction)
            if is_lost and is_session_lost(error) and not isinstance(error, OSError):
                raise _ended(store, gap, error) from error
            raise
        except BaseException:
            await _has_rolled_back(transaction)
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


async def _has_rolled_back(transaction: Any) -> bool:
    """Roll back. Returns False if the session is lost, and the server has done it."""
    try:
        await transaction.rollback()
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
    said = _server_error(error)
    return StorageUnavailable(
        f"{store}: the session of this transaction ended before its COMMIT was sent, so nothing was committed"
        f"{'' if said is None else f' ({said})'}{why}"
    )


def _server_error(error: BaseException | None) -> str | None:
    """Return what the server has said when it ended the session; asyncpg 0.32 passes that on as a cause."""
    return next((str(each) for each in causes_of(error) if isinstance(each, asyncpg.PostgresError)), None)
