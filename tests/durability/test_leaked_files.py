"""A process that can open no more files, as after a leak: its own jobs fail or wait, and its worker continues."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate import Headgate, JobFailed, RetryPolicy, StorageUnavailable, current_job
from headgate.engine import attempt
from headgate.storage.procedures.nodes import is_running, process_started
from tests.durability.processes import Child, Children
from tests.durability.stores import open_store
from tests.postgres_server import PostgresServer
from tests.until import result_within

pytestmark = pytest.mark.nightly

APP = """
    import os, resource
    from headgate import Headgate, RetryPolicy
    from headgate.jobs.event import NodeLost, NodeStarted
    from tests.durability.worker import print_line

    FILES = 128
    app = Headgate({url!r}, heartbeat=0.25, lease=30)
    leaked = []

    @app.task(retry=RetryPolicy(retries=0))
    async def leak() -> None:
        while True:
            leaked.append(os.open(os.devnull, os.O_RDONLY))

    @app.task
    async def free() -> None:
        for file in leaked:
            os.close(file)
        leaked.clear()

    @app.task
    async def add(one: int, two: int) -> int:
        return one + two

    @app.task
    def in_thread(one: int, two: int) -> int:
        return one + two

    @app.task(process=True, retry=RetryPolicy(retries=0))
    def in_child(one: int, two: int) -> int:
        return one + two

    def on_start(event):
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
        print_line("started")

    def on_lost(event):
        print_line("lost", event.node)

    app.subscribe(on_start, NodeStarted)
    app.subscribe(on_lost, NodeLost)
"""


async def start(children: Children, folder: Path) -> Child:
    worker = await children.start("headgate_worker.py", folder=str(folder), target="leaking:app")
    await worker.wait_for_line("started")
    return worker


async def check(url: str, children: Children, folder: Path) -> None:
    (folder / "leaking.py").write_text(textwrap.dedent(APP.format(url=url)))
    app = Headgate(url)
    for name in ("leak", "free"):
        app.task(name=name)(_no_arguments)
    for name in ("add", "in_thread", "in_child"):
        app.task(name=name)(_two_arguments)
    tasks = {name: app.tasks.get(name) for name in ("leak", "free", "add", "in_thread", "in_child")}
    leak, free, add, in_thread, in_child = (tasks[name] for name in tasks)
    assert leak
    assert free
    assert add
    assert in_thread
    assert in_child
    async with app.open():
        worker = await start(children, folder)
        node = (await app.admin.nodes())[0].id
        with pytest.raises(JobFailed, match="Too many open files"):
            await result_within(await leak.enqueue(), 20)
        # A node joins while it cannot open files: it must not be declared dead.
        neighbour = asyncio.ensure_future(_be_alive(url))
        for turn in range(4):
            assert await result_within(await add.enqueue(turn, 1), 20) == turn + 1
            assert await result_within(await in_thread.enqueue(turn, 2), 20) == turn + 2
            # Heartbeats and looks at the other nodes.
            await asyncio.sleep(0.8)
        with pytest.raises(JobFailed):
            await result_within(await in_child.enqueue(1, 2), 20)
        await neighbour
        await result_within(await free.enqueue(), 20)
        assert await result_within(await in_child.enqueue(1, 2), 20) == 3
        assert [each.id for each in await app.admin.nodes()] == [node], "the same node all the time"
        worker.signal(signal.SIGTERM)
        assert await worker.end() == 0
        assert not worker.has_line("lost")


async def _be_alive(url: str) -> None:
    """Another node, which serves another queue."""
    app = Headgate(url, heartbeat=0.25, lease=30)
    async with app:
        await asyncio.sleep(3)


def _no_arguments() -> None: ...


def _two_arguments(one: int, two: int) -> int:
    return 0


async def test_a_worker_on_sqlite_outlives_a_handler_that_leaks_files(tmp_path: Path, children: Children) -> None:
    """The fault: what never changes was read anew at every look at the nodes, and a look that failed ended the node."""
    await check(f"sqlite:///{tmp_path}/jobs.db", children, tmp_path)


async def test_a_worker_on_postgres_outlives_a_handler_that_leaks_files(
    postgres: PostgresServer, children: Children, tmp_path: Path
) -> None:
    await check(postgres.url, children, tmp_path)


@contextlib.contextmanager
def no_file_can_be_opened() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_a_connection_to_a_sqlite_file_that_cannot_be_opened_is_temporary(database: Path) -> None:
    async with open_store(database) as storage:
        with no_file_can_be_opened():
            with pytest.raises(StorageUnavailable, match=r"jobs.db could not be used: unable to open"):
                async with storage.transaction():
                    raise AssertionError
            # Counts and the check of the file are read on connections of their own.
            for verb in (storage.counts(), storage.check_indexes()):
                with pytest.raises(StorageUnavailable, match=r"jobs.db could not be used: unable to open"):
                    await verb
        async with storage.transaction() as connection:
            assert connection.in_transaction
        assert await storage.counts() == []


async def test_a_job_whose_transaction_cannot_open_the_file_is_returned(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: it spent its attempt, and failed, with an error of sqlite3."""
    monkeypatch.setattr(attempt, "REFUSAL_PAUSE", 1)
    runs: list[int] = []
    app = Headgate(f"sqlite:///{database}")

    @app.task(retry=RetryPolicy(retries=0))
    async def pay() -> None:
        runs.append(current_job().attempt)
        with no_file_can_be_opened() if len(runs) == 1 else contextlib.nullcontext():
            async with current_job().transaction():
                pass

    async with app:
        await result_within(await pay.enqueue(), 20)
    assert runs == [1, 1]


def test_a_process_that_cannot_open_files_declares_no_other_dead() -> None:
    started = process_started(os.getpid())
    assert started
    with no_file_can_be_opened():
        assert is_running(os.getpid(), started)
        assert is_running(os.getppid(), process_started(os.getppid()) or "1")
    assert not is_running(os.getpid(), "1")


@pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="only Linux lists processes there")
def test_a_process_whose_name_is_no_utf8_is_known_to_run() -> None:
    """The fault: a worker of a program with such a name ended as it joined. Linux cuts names after 15 bytes."""
    name = "open('/proc/self/comm', 'wb').write('münchner-größe'.encode()[:15])"
    program = [sys.executable, "-c", f"import sys; {name}; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        started = process_started(process.pid)
        assert started
        assert is_running(process.pid, started)
        process.communicate()
