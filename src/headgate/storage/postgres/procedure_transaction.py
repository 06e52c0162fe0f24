"""A transaction on PostgreSQL, as procedures use it."""

from __future__ import annotations

from typing import Any, TypeVar

from headgate.storage.postgres.database import Session
from headgate.storage.stored_rows import RowDecoder

R = TypeVar("R")


class PostgresTransaction:
    """As `driver.Transaction`. The caller begins and commits on the session."""

    has_one_writer = False

    def __init__(self, session: Session, now: int, limit_now: int) -> None:
        self.session = session
        self.now = now
        self.limit_now = limit_now

    def take_places(self, count: int) -> int:
        # Arrivals get their places when they are merged.
        return self.limit_now

    async def fetch(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> list[R]:
        rows = await self.session.fetch(statement, **parameters)
        if not rows:
            return []
        names = [field.name for field in decoder.fields]
        # A record of asyncpg, or a named tuple of psycopg.
        found = list(rows[0].keys() if hasattr(rows[0], "keys") else rows[0]._fields)
        if found == names:
            return [decoder.of(row) for row in rows]
        places = [found.index(name) for name in names]
        return [decoder.of([row[place] for place in places]) for row in rows]

    async def values(self, statement: str, /, **parameters: Any) -> list[Any]:
        return [row[0] for row in await self.session.fetch(statement, **parameters)]

    async def value(self, statement: str, /, **parameters: Any) -> Any:
        return await self.session.value(statement, **parameters)

    async def execute(self, statement: str, /, **parameters: Any) -> int:
        return await self.session.execute(statement, **parameters)
