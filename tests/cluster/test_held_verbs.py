"""Every enlisted verb, held open in a user's transaction under load: whoever it does not concern goes on.

HEADGATE_TEST_HELD_SECONDS is for how long at least, HEADGATE_TEST_HELD_AT_ONCE how many verbs at the same time, each
with a database of its own. HEADGATE_TEST_HELD_TABLE names a file that the table of the documentation is written to; it
is of 30 s.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.cluster.held_verb import KINDS, VERBS
from tests.postgres_server import server_in

pytestmark = pytest.mark.nightly

SECONDS = float(os.environ.get("HEADGATE_TEST_HELD_SECONDS", "6"))
"""What a verb concerns comes due, ends or dies within these. From then on everybody else has to get on beside it."""

AT_ONCE = int(os.environ.get("HEADGATE_TEST_HELD_AT_ONCE", "4"))

NODES = 2


def test_an_operation_that_a_transaction_keeps_open_delays_no_other(tmp_path: Path) -> None:
    measured = asyncio.run(_measured(tmp_path))
    if "HEADGATE_TEST_HELD_TABLE" in os.environ:
        Path(os.environ["HEADGATE_TEST_HELD_TABLE"]).write_text(_table(measured))
    for verb, seen in measured.items():
        assert seen["contradictions"] == [], verb
        # A sweep, once in 30 s for each node, can find a job whose notification is still on its way. A job whose
        # notification was lost waits for up to 30 s, which `worst` would show.
        assert seen["swept"] <= NODES, verb
        assert set(seen["worst"]) == set(KINDS), (verb, seen)
        assert seen["stuck"] == [], (verb, seen)


async def _measured(tmp_path: Path) -> dict[str, Any]:
    measured: dict[str, Any] = {}
    verbs = list(VERBS)
    with server_in(tmp_path) as server:
        for first in range(0, len(verbs), AT_ONCE):
            beside = verbs[first : first + AT_ONCE]
            async with asyncio.TaskGroup() as group:
                runs = [group.create_task(_measure(server.url, f"held_{first}_{n}", v)) for n, v in enumerate(beside)]
            for verb, run in zip(beside, runs, strict=True):
                measured[verb] = run.result()
    return measured


async def _measure(url: str, name: str, verb: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.cluster.held_verb", await _database(url, name), "headgate", verb, str(SECONDS)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        received, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, verb
    measured: dict[str, Any] = json.loads(received)
    return measured


async def _database(url: str, name: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    address, _, _ = url.rpartition("/")
    return f"{address}/{name}"


def _table(measured: dict[str, Any]) -> str:
    lines = [f"| held open for {SECONDS:g} s | " + " | ".join(KINDS) + " |", "| --- |" + " ---: |" * len(KINDS)]
    for verb, seen in measured.items():
        times = [f"{seen['median'][kind]:.2f} / {seen['worst'][kind]:.2f}" for kind in KINDS]
        lines.append(f"| {verb} | " + " | ".join(times) + " |")
    return "\n".join(lines) + "\n"
