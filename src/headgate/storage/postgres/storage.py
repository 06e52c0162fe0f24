"""PostgresStorage: a store in one schema of a PostgreSQL database."""

from __future__ import annotations

from headgate.clock import Clock
from headgate.storage.postgres.driver import PostgresDriver
from headgate.storage.store import Store


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
        pool: object | None = None,
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
                pool=pool,
            )
        )
