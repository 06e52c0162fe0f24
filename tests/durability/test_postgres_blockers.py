"""`headgate status` names what blocks the database, also if that blocks its other queries."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from headgate.clock import SystemClock
from headgate.storage.postgres.storage import PostgresStorage
from tests.durability.postgres import session_at
from tests.postgres_server import PostgresServer, server_in
from tests.until import until

pytestmark = pytest.mark.nightly


async def status_of(url: str, folder: Path) -> tuple[int, str]:
    """The exit code and the output of `headgate status`."""
    (folder / "work.py").write_text(f"from headgate import Headgate\n\napp = Headgate({url!r})\n")
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headgate", "status", "work:app"),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode is not None
    return child.returncode, " ".join(output.decode().split())


async def test_status_names_the_session_that_locks_its_tables(postgres: PostgresServer, tmp_path: Path) -> None:
    storage = PostgresStorage(postgres.url, SystemClock())
    await storage.open()
    await storage.close()
    assert (await status_of(postgres.url, tmp_path))[0] == 0
    async with session_at(postgres.url) as side, side.transaction():
        await side.execute("SET application_name = 'reporting'; LOCK TABLE headgate.lane IN ACCESS EXCLUSIVE MODE")
        code, output = await status_of(postgres.url, tmp_path)
        assert code == 1
        # The count of final jobs may still be on its way to its end.
        assert re.search(r"reporting \(postgres\) keeps [12] waiting, idle in transaction; last statement: ", output)
        assert "LOCK TABLE headgate.lane" in output
        assert f"pid {side.get_server_pid()}" in output


async def test_status_names_a_prepared_transaction(tmp_path: Path) -> None:
    """The fault: what a coordinator had left prepared stopped all workers, and nothing said what held the locks."""
    with server_in(tmp_path, "max_prepared_transactions=2") as server:
        storage = PostgresStorage(server.url, SystemClock())
        await storage.open()
        await storage.close()
        async with session_at(server.url) as side:
            await side.execute("BEGIN; LOCK TABLE headgate.lane; PREPARE TRANSACTION 'an order'")
            code, output = await status_of(server.url, tmp_path)
            assert code == 1
            told = (
                r"prepared transaction 'an order' \(postgres\) keeps [1-9] waiting, until COMMIT PREPARED or ROLLBACK"
            )
            assert re.search(told, output)
            assert "pg_terminate_backend" not in output
            await side.execute("ROLLBACK PREPARED 'an order'")
            await side.execute("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'an order'")

            async def is_seen() -> bool:
                return (
                    "'an order' (postgres) prevents the removal of dead rows"
                    in (await status_of(server.url, tmp_path))[1]
                )

            await until(is_seen, 30)
            await side.execute("ROLLBACK PREPARED 'an order'")


async def test_of_several_prepared_transactions_only_the_one_in_the_way_is_named(tmp_path: Path) -> None:
    """The fault: all of the database were named, such as a payment, and it was advised to roll them back."""
    with server_in(tmp_path, "max_prepared_transactions=2") as server:
        storage = PostgresStorage(server.url, SystemClock())
        await storage.open()
        async with session_at(server.url) as side, session_at(server.url) as waiter:
            await side.execute("CREATE TABLE payment (id int); CREATE TABLE stock AS SELECT 1 AS id")
            await side.execute("BEGIN; INSERT INTO payment VALUES (1); PREPARE TRANSACTION 'a payment'")
            for lock in ("LOCK TABLE stock", "UPDATE stock SET id = 2"):
                await side.execute(f"BEGIN; {lock}; PREPARE TRANSACTION 'an order'")
                waiting = asyncio.ensure_future(waiter.execute("UPDATE stock SET id = 3"))

                async def blocking() -> list[str]:
                    return [each.what for each in await storage.blockers() if each.kind == "blocks"]

                async def is_seen() -> bool:
                    return bool(await blocking())

                await until(is_seen, 30)
                assert ["'an order'" in what for what in await blocking()] == [True]
                await side.execute("ROLLBACK PREPARED 'an order'")
                await waiting
            await side.execute("ROLLBACK PREPARED 'a payment'")
        await storage.close()


async def test_a_commit_that_waits_for_a_synchronous_standby_says_so(tmp_path: Path) -> None:
    """The fault: sessions of workers were named as what is in the way, and it was advised to end them."""
    with server_in(tmp_path, "synchronous_standby_names=standby") as server:
        storage = PostgresStorage(server.url, SystemClock())
        await storage.open()
        async with session_at(server.url) as side, session_at(server.url) as other:
            await side.execute("SET synchronous_commit = on")
            writing = asyncio.ensure_future(side.execute("CREATE TABLE stored ()"))

            async def is_seen() -> bool:
                return any("waiting for a synchronous standby" in each.what for each in await storage.blockers())

            await until(is_seen, 30)
            await other.execute(f"SELECT pg_cancel_backend({side.get_server_pid()})")
            await writing
        await storage.close()


async def test_a_long_transaction_is_shown_if_it_keeps_dead_rows(postgres: PostgresServer) -> None:
    storage = PostgresStorage(postgres.url, SystemClock())
    await storage.open()
    async with session_at(postgres.url) as harmless, session_at(postgres.url) as side:
        await harmless.execute("BEGIN; SELECT 1")
        await side.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")

        async def is_seen() -> bool:
            return bool(await storage.blockers())

        await until(is_seen, 30)
        found = await storage.blockers()
        assert [(each.kind, each.pid) for each in found] == [("long transaction", side.get_server_pid())]
        assert found[0].what.endswith("prevents the removal of dead rows, idle in transaction")
        assert found[0].statement is not None
        assert found[0].statement.startswith("BEGIN")
    await storage.close()
