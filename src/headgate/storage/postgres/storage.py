"""PostgresStorage: a store in one schema of a PostgreSQL database."""

from __future__ import annotations

from headgate.clock import Clock
from headgate.storage.postgres.driver import PostgresDriver
from headgate.storage.store import Store


class PostgresStorage(Store):
    """Jobs in one schema of a PostgreSQL database, shared by any number of processes on any number of machines.

    Every verb has reached the server's disk when it returns, as far as the server's own `synchronous_commit` promises
    it. `schema` is where the tables live. `listen_url` is for a `url` that leads through PgBouncer: a way to the
    database itself, to be woken by other processes; without one they are noticed by polling. `own_time` trusts this
    process's clock instead of the server's, for tests. Where it is not `is_watched`, nothing is noticed of what other
    processes do, and no connection is spent on it. Needs PostgreSQL 13 or newer, and asyncpg.
    """

    driver: PostgresDriver

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
        super().__init__(
            PostgresDriver(
                url,
                clock,
                schema=schema,
                listen_url=listen_url,
                own_time=own_time,
                connections=connections,
                is_watched=is_watched,
            )
        )
