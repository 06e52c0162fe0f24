"""The write transaction of a SQLite file, as procedures use it."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeVar

from headgate.jobs.identity import is_own_unknown, job_text, remember_own
from headgate.storage.sqlite.dialect import STATEMENTS, as_one_value
from headgate.storage.stored_rows import RowDecoder

R = TypeVar("R")

_OWN_IDS = STATEMENTS["own_ids"]


class Places:
    """Places in the line of lanes, as one process assigns them."""

    def __init__(self) -> None:
        self._last = 0

    def take(self, limit_now: int, count: int) -> int:
        """Return the first of `count` places: limit time, but after all that were taken before."""
        first = max(limit_now, self._last + 1)
        self._last = first + count - 1
        return first


class SqliteTransaction:
    """As `driver.Transaction`; nothing in it suspends. The caller begins and commits on the connection."""

    has_one_writer = True
    estimates_rows = False
    stepped = 0

    def __init__(self, connection: sqlite3.Connection, now: int, limit_now: int, places: Places) -> None:
        self._connection = connection
        self._places = places
        self.now = now
        self.limit_now = limit_now

    def take_places(self, count: int) -> int:
        return self._places.take(self.limit_now, count)

    async def fetch(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> list[R]:
        known = STATEMENTS[statement]
        bound = known.bind(parameters)
        if known.returns:
            cursor = self._connection.execute(known.sql, bound)
            places = {column[0]: place for place, column in enumerate(cursor.description)}
            order = [places[field.name] for field in decoder.fields]
            rows = [decoder.decode_row([row[place] for place in order]) for row in cursor.fetchall()]
        else:
            # fetchall, not fetchone: it runs the statement to its end, so that no read transaction stays open.
            rows = decoder.decode(self._connection.execute(as_one_value(statement, decoder), bound).fetchall()[0][0])
        if not decoder.ids:
            return rows
        self._read_own_ids(decoder.own_ids(rows))
        return decoder.with_texts(rows)

    async def row(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> R:
        known = STATEMENTS[statement]
        cursor = self._connection.execute(known.sql, known.bind(parameters))
        places = {column[0]: place for place, column in enumerate(cursor.description)}
        (row,) = cursor.fetchall()
        return decoder.decode_row([row[places[field.name]] for field in decoder.fields])

    async def lock(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> list[R]:
        # It never waits for a lock.
        return await self.fetch(decoder, statement, **parameters)

    async def values(self, statement: str, /, **parameters: Any) -> list[Any]:
        known = STATEMENTS[statement]
        return [row[0] for row in self._connection.execute(known.sql, known.bind(parameters)).fetchall()]

    async def ids(self, statement: str, /, **parameters: Any) -> list[str]:
        numbers = await self.values(statement, **parameters)
        self._read_own_ids(set(filter(is_own_unknown, numbers)))
        return [job_text(number) for number in numbers if number is not None]

    def _read_own_ids(self, numbers: Collection[int]) -> None:
        if numbers:
            for number, text in self._connection.execute(_OWN_IDS.sql, _OWN_IDS.bind({"numbers": numbers})).fetchall():
                remember_own(number, text)

    async def value(self, statement: str, /, **parameters: Any) -> Any:
        found = await self.values(statement, **parameters)
        return found[0] if found else None

    async def execute(self, statement: str, /, **parameters: Any) -> int:
        known = STATEMENTS[statement]
        if known.inserted is not None:
            count = 0
            try:
                for sql, values in known.insertions(parameters[known.inserted]):
                    count += self._connection.execute(sql, values).rowcount
                return count
            except OverflowError as error:
                # An integer of more than 64 bits. Read from JSON, it would violate a constraint of its column.
                raise sqlite3.IntegrityError(str(error)) from error
        return self._connection.execute(known.sql, known.bind(parameters)).rowcount

    def atomic(self, *, prepares: tuple[str, ...] = ()) -> AbstractAsyncContextManager[None]:
        return nullcontext()
