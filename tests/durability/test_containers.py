"""Workers of one SQLite file in several containers of one machine: each lives for the others while its lease lasts."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.jobs.job import JobState
from tests.durability.processes import Children
from tests.durability.stores import NODE, new_job, open_store
from tests.until import until

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def can(*command: str) -> bool:
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0


def in_own_processes() -> tuple[str, ...]:
    """A container as Docker makes it: process ids of its own, and the boot id of the machine."""
    return "unshare", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"


def in_own_boot(folder: Path) -> tuple[str, ...]:
    """A container with a kernel of its own (gVisor, Kata), or a Mac whose clock was set: another boot id."""
    other = folder / "boot_id"
    other.write_text("0d0d0d0d-0000-4000-8000-000000000000\n")
    return "unshare", "--mount", "sh", "-c", f'mount --bind {other} {BOOT_ID} && exec "$0" "$@"'


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["processes", "boot"])
async def test_nodes_in_other_containers_keep_their_jobs(
    kind: str, database: Path, tmp_path: Path, children: Children
) -> None:
    command = in_own_processes() if kind == "processes" else in_own_boot(tmp_path)
    if not can(*command):
        pytest.skip("needs the right to make namespaces")
    settings: dict[str, Any] = {
        "path": str(database),
        "run_log": str(tmp_path / "run_log"),
        "heartbeat": 0.2,
        "lease": 4.0,
    }
    remote = await children.start("worker.py", command=command, **settings)
    (first,) = await remote.wait_for_line("NodeStarted")
    async with open_store(database) as storage:
        job = new_job(now=storage.now(), task="wait_for_word", payload='{"key":"a"}')
        await storage.add([job])
        await remote.wait_for_line("running")
        local = await children.start("worker.py", **settings)
        (second,) = await local.wait_for_line("NodeStarted")
        # Longer than a lease, in which each looks at the other several times.
        await asyncio.sleep(5)
        for child in (local, remote):
            await child.read_lines()
            # The node of this test's own store sends no heartbeats.
            assert {lost for lost, *_ in child.lines_with("NodeLost")} <= {NODE}, child.lines
            assert not child.has_line("NodeDeclaredDead"), child.lines
        record = await storage.job(job.id)
        assert record is not None
        assert (record.state, record.attempt, record.lost) == (JobState.RUNNING, 1, 0)
        nodes = {node.id: node.is_gone for node in await storage.nodes() if node.id != NODE}
        assert nodes == {first: False, second: False}
        # What a container leaves behind that dies is taken over when its lease has run out.
        await remote.kill()
        await local.wait_for_line("running")
        local.send("go")

        async def is_done() -> bool:
            record = await storage.job(job.id)
            return record is not None and (record.state, record.lost) == (JobState.SUCCEEDED, 1)

        await until(is_done)
