"""A process that is killed between the write of a large payload and the commit of its job leaves an orphan, no more."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec")

from headgate import Headgate, PayloadFolder
from headgate.engine.large_payloads import MARKER
from tests.until import patient, result_within

PROGRAM = """
import asyncio, os, signal, sys
from headgate import Headgate, PayloadFolder

url, schema, folder, id, moment = sys.argv[1:]
app = Headgate(url, schema=schema or None, migrate=True, large_payloads=PayloadFolder(folder, above=100))

@app.task
async def echo(text: str) -> None: ...

async def main():
    async with app.open():
        add = app._storage.add
        async def killed(*arguments, **named):
            if moment == "after":
                await add(*arguments, **named)
            os.kill(os.getpid(), signal.SIGKILL)
        app._storage.add = killed
        await echo.using(id=id).enqueue("x" * 500)

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}", {}
    return request.getfixturevalue("postgres_url"), {"schema": request.getfixturevalue("postgres_schema")}


@pytest.mark.nightly
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_kill_around_the_commit_leaves_no_reference_without_its_object(
    database: tuple[str, dict[str, Any]], moment: str, tmp_path: Path
) -> None:
    url, settings = database
    folder, id = f"file://{tmp_path / 'large'}", str(uuid.uuid4())
    arguments = ["-c", PROGRAM, url, settings.get("schema", ""), folder, id, moment]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(patient(15)):
            _, errors = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == -signal.SIGKILL, errors.decode()
    (written,) = [each for each in (tmp_path / "large").rglob("*") if each.is_file() and each.name != MARKER]
    assert written.name.startswith(id)
    app = Headgate(url, large_payloads=PayloadFolder(folder, above=100), **settings)
    got: list[str] = []

    @app.task
    async def echo(text: str) -> None:
        got.append(text)

    async with app:
        if moment == "after":
            await result_within(app.job(id))
            assert got == ["x" * 500]
        else:
            assert not await app.admin.jobs()
        # Three days later.
        written.parent.rename(written.parent.with_name("2020-01-01"))
        assert await app.admin.sweep_large_payloads() == (0 if moment == "after" else 1)
