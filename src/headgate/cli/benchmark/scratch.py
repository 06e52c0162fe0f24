"""Apps on an empty store beside that of an app, for measurements."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from headgate.app import Headgate
from headgate.errors import DeclarationError


@contextlib.asynccontextmanager
async def scratch_of(app: Headgate) -> AsyncIterator[Callable[..., Headgate]]:
    """Yield a function that creates apps, with given settings, on an empty store beside that of this app.

    On SQLite it is a file on the same disk, on PostgreSQL a schema of the same database. It is deleted when the block
    ends; close the apps before. Raises DeclarationError for memory://.
    """
    storage, shown = app._client.storage, app._client.address.shown
    if storage.is_in_process:
        raise DeclarationError(f"there can be no store beside {shown}; use sqlite:/// or postgresql://")
    async with storage.scratch() as make:
        yield lambda **settings: Headgate._on_store(make(), clock=app._clock, migrate=True, **settings)
