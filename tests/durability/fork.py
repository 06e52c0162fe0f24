"""Open a store, fork, and use it in both processes: the child must be refused, the parent must not be affected."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from headgate.clock import SystemClock
from headgate.errors import ForkedConnection
from headgate.storage.sqlite.storage import SqliteStorage
from tests.durability.run_log import damage
from tests.durability.stores import claim_for, new_job, open_store


def in_the_child(storage: SqliteStorage, path: Path) -> None:
    async def use() -> None:
        for verb in (
            storage.add([new_job(now=1)]),
            storage.claim(claim_for()),
            storage.counts(),
            storage.nodes(),
            storage.check(),
            storage.open(),
            # SQLite itself believes to hold the locks that only the parent has, whichever connection asks.
            SqliteStorage(path, SystemClock()).open(),
        ):
            with pytest.raises(ForkedConnection, match="open the app after the fork"):
                await verb
        await storage.close()
        async with open_store(path.with_name("other.db")) as other:
            await other.add([new_job(now=1)])

    asyncio.run(use())


async def main(path: Path) -> None:
    async with open_store(path) as storage:
        await storage.add([new_job(now=SystemClock().now()) for _ in range(100)])
        writing = [asyncio.ensure_future(storage.add([new_job(now=SystemClock().now())])) for _ in range(20)]
        pid = os.fork()
        if pid == 0:
            # A fork inherits the running loop's mark as well.
            asyncio.events._set_running_loop(None)
            try:
                in_the_child(storage, path)
            except BaseException as error:
                sys.stderr.write(f"{type(error).__name__}: {error}\n")
                os._exit(1)
            # As at the end of an interpreter, which closes what it inherited.
            storage._writer = None
            storage._readers.clear()
            os._exit(0)
        await asyncio.gather(*writing)
        _, status = await asyncio.get_running_loop().run_in_executor(None, os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        await storage.add([new_job(now=SystemClock().now()) for _ in range(100)])
        (counts,) = await storage.counts()
        assert counts.waiting == 220
        assert await storage.check() == []
    assert damage(path) == "ok"
    # Closed before the fork there is nothing to inherit.
    pid = os.fork()
    if pid == 0:
        asyncio.events._set_running_loop(None)
        asyncio.run(write_one(path))
        os._exit(0)
    _, status = await asyncio.get_running_loop().run_in_executor(None, os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status


async def write_one(path: Path) -> None:
    async with open_store(path, joined=False) as storage:
        await storage.add([new_job(now=1)])


if __name__ == "__main__":
    asyncio.run(main(Path(json.loads(sys.argv[1])["path"])))
