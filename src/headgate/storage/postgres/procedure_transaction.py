"""A transaction on PostgreSQL, as procedures use it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from operator import itemgetter
from typing import Any, TypeVar

from headgate.clock import Clock
from headgate.storage.driver import Transaction
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.server_time import ServerTime
from headgate.storage.stored_rows import RowDecoder

R = TypeVar("R")


class PostgresTransaction(Transaction):
    """As `driver.Transaction`. The caller begins and commits on the session."""

    has_one_writer = False

    def __init__(self, session: Session, time: ServerTime, clock: Clock) -> None:
        self.session = session
        self.now = time.now()
        self.limit_now = time.limit_now()
        self._time = time
        self._clock = clock
        self.stepped = 0
        """The step of the server's clock that was found when rows were locked."""

    def take_places(self, count: int) -> int:
        # Arrivals get their places when they are merged.
        return self.limit_now

    async def fetch(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> list[R]:
        return await self._decoded(decoder, await self.session.fetch(statement, **parameters))

    async def row(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> R:
        (row,) = await self.fetch(decoder, statement, **parameters)
        return row

    async def lock(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> list[R]:
        sent_at = self._clock.monotonic()
        rows = await self.session.fetch(statement, **parameters)
        if rows:
            now, ahead = max((row["locked_at"], row["ahead"]) for row in rows)
            own = self._time.own()
            # The next claim corrects limit time after a step; until then, the time continues as before the step.
            self.stepped = self._time.observe(sent_at, now, ahead)
            self.now, self.limit_now = (now, now + ahead - self.stepped) if own is None else own
        return await self._decoded(decoder, rows)

    async def _decoded(self, decoder: RowDecoder[R], rows: Sequence[Any]) -> list[R]:
        if not rows:
            return []
        decoded = self._in_order(decoder, rows)
        if not decoder.ids:
            return decoded
        await self._read_own_ids(decoder.own_ids(decoded))
        return decoder.with_texts(decoded)

    def _in_order(self, decoder: RowDecoder[R], rows: Sequence[Any]) -> list[R]:
        # A record of asyncpg, or a named tuple of psycopg.
        found = list(rows[0].keys() if hasattr(rows[0], "keys") else rows[0]._fields)
        if found == decoder.names:
            return decoder.decode_rows(rows)
        if len(decoder.names) == 1:
            place = found.index(decoder.names[0])
            return decoder.decode_rows([(row[place],) for row in rows])
        return decoder.decode_rows(map(itemgetter(*map(found.index, decoder.names)), rows))

    async def values(self, statement: str, /, **parameters: Any) -> list[Any]:
        return [row[0] for row in await self.session.fetch(statement, **parameters)]

    async def value(self, statement: str, /, **parameters: Any) -> Any:
        return await self.session.value(statement, **parameters)

    async def execute(self, statement: str, /, **parameters: Any) -> int:
        return await self.session.execute(statement, **parameters)

    def atomic(self, *, prepares: tuple[str, ...] = ()) -> AbstractAsyncContextManager[None]:
        return self.session.transaction(prepares=prepares)
