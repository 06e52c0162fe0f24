"""Workers that end by themselves, and those that restart when the code changes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headgate import Headgate
from headgate.cli import supervisor
from headgate.cli import worker as worker_command
from headgate.cli.loop_watchdog import watch_loop
from headgate.cli.main import main
from headgate.cli.reloader import Reloader
from headgate.cli.supervisor import Supervisor, start_worker
from headgate.clock import SystemClock
from headgate.errors import DeclarationError
from headgate.storage.sqlite.storage import SqliteStorage
from tests.internals import app_on
from tests.until import patient, until, until_now

APP = """
from headgate import Headgate, StrictRate

app = Headgate("sqlite:///jobs.db", synchronous="OFF", history=False)


@app.task(limits=[StrictRate("2/h")])
async def sync() -> None: ...


@app.task
async def bad() -> None:
    raise ValueError("no")
"""

PROCESS_APP = """
import os

from headgate import Headgate

app = Headgate("sqlite:///jobs.db", synchronous="OFF", history=False)
app.queue("default", concurrency=1)


@app.task(process=True)
def pid() -> None:
    with open("pids", "a") as pids:
        pids.write(f"{os.getpid()}\\n")
"""

LIVES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with open("lives", "a") as lives:
    lives.write(open("code.py").read() + "\\n")
if open("code.py").read() == "broken":
    sys.exit(1)
while True:
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delenv("HEADGATE_APP", raising=False)
    return tmp_path


def call(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.mark.slow
def test_sigterm_ends_a_worker_that_still_imports_its_app(folder: Path) -> None:
    """The fault: it ended with -15; the first process of a container started, and was killed after the grace."""
    (folder / "slow.py").write_text("import time\nopen('importing', 'w').close()\ntime.sleep(60)\n")
    words = [sys.executable, "-m", "headgate", "worker", "slow:app"]
    with subprocess.Popen(words, cwd=folder) as worker:
        until_now((folder / "importing").exists)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(patient(20)) == 0


@pytest.mark.slow
def test_sigterm_ends_a_worker_that_still_imports_its_command(folder: Path) -> None:
    """The fault: the same, while the command itself was imported: for 0.2 s, on a busy machine for longer."""
    (folder / "click.py").write_text("import time\nopen('importing', 'w').close()\ntime.sleep(60)\n")
    with subprocess.Popen([sys.executable, "-m", "headgate", "worker", "shop:app"], cwd=folder) as worker:
        until_now((folder / "importing").exists)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(patient(20)) == 0


CHATTY = """
import logging, pathlib
from headgate import Headgate
app = Headgate("sqlite:///jobs.db", heartbeat=0.5, lease=1)

@app.task
async def say() -> None:
    pathlib.Path("running").touch()
    logging.getLogger("chatty").warning("." * 500_000)
"""


@pytest.mark.nightly
def test_a_worker_whose_log_was_not_read_says_so_and_goes_on(folder: Path) -> None:
    """The fault: it said that a handler had blocked the event loop, or that the process had been frozen."""
    (folder / "chatty.py").write_text(CHATTY)
    assert call("migrate", "chatty:app").exit_code == 0
    assert call("jobs", "enqueue", "chatty:app", "say").exit_code == 0
    words = [sys.executable, "-m", "headgate", "worker", "chatty:app"]
    with subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        until_now((folder / "running").exists)
        time.sleep(3)
        blocked = next(line for line in worker.stderr if "the event loop was blocked for" in line)
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=patient(30))
    assert worker.returncode == 0
    assert blocked.endswith("(make it a plain def task), its log was not read, or the process was frozen\n")


HELD = """
import asyncio, pathlib
from headgate import Headgate
app = Headgate("sqlite:///jobs.db")

@app.task
async def hold() -> str:
    pathlib.Path("running").touch()
    while not pathlib.Path("released").exists():
        await asyncio.sleep(0.01)
    return "done"
"""


@pytest.mark.slow
@pytest.mark.parametrize("ignored", [False, True])
def test_a_worker_whose_terminal_is_closed_drains_unless_it_was_started_with_nohup(folder: Path, ignored: bool) -> None:
    """The fault: SIGHUP killed it, so its jobs were lost until its lease had expired, and counted as lost attempts."""
    target = f"held_{ignored}:app"
    (folder / f"held_{ignored}.py").write_text(HELD)
    assert call("migrate", target).exit_code == 0
    assert call("jobs", "enqueue", target, "hold").exit_code == 0
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        worker = subprocess.Popen(
            [sys.executable, "-m", "headgate", "worker", target], cwd=folder, stderr=subprocess.PIPE
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    with worker, contextlib.ExitStack() as stack:
        stack.callback(worker.kill)
        until_now((folder / "running").exists)
        # The shell and the kernel each send one.
        worker.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        worker.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        (folder / "released").touch()
        if ignored:
            until_now(lambda: '"succeeded"' in call("jobs", "list", target, "--json").output)
            worker.send_signal(signal.SIGTERM)
        assert worker.wait(patient(20)) == 0
        assert b"is stopping" in worker.stderr.read()  # type: ignore[union-attr]
    (job,) = json.loads(call("jobs", "list", target, "--json").output)
    assert (job["state"], job["attempt"]) == ("succeeded", 1)


@pytest.mark.slow
def test_a_process_that_a_handler_starts_does_not_handle_sigterm_as_the_worker_does(folder: Path) -> None:
    """The fault: such a process ended with 0 when it was terminated, and while it ran C code, not at all."""
    program = folder / "headgate"
    program.write_text(
        "import multiprocessing, signal\n"
        "import headgate.cli\n"
        "if __name__ == '__main__':\n"
        "    print(signal.getsignal(signal.SIGTERM) is headgate.cli.end_at_once)\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.apply(signal.getsignal, [signal.SIGTERM]) is signal.SIG_DFL)\n"
    )
    command = [sys.executable, str(program), "worker", "shop:app"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "True\nTrue\n"


@pytest.mark.slow
def test_a_worker_ends_whose_startup_function_raised_beside_a_thread_that_hangs(folder: Path) -> None:
    """The fault: the process waited for the thread for ever, so nothing started the worker again."""
    (folder / "hung.py").write_text(
        "import asyncio, threading\nfrom headgate import Headgate\napp = Headgate('sqlite:///jobs.db')\n"
        "@app.on_startup\nasync def connect():\n"
        "    await asyncio.wait_for(asyncio.to_thread(threading.Event().wait), 0.1)\n"
    )
    words = [sys.executable, "-m", "headgate", "worker", "hung:app"]
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=patient(20))
    assert ended.returncode == 1
    assert "startup function 'connect' raised TimeoutError" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "deed", ["[task.cancel() for task in asyncio.all_tasks()]", "asyncio.get_running_loop().stop()"]
)
def test_a_worker_that_a_handler_ends_says_so(folder: Path, deed: str) -> None:
    """The fault: it ended with 1, and its last line was that it does not wait for threads."""
    (folder / "ended.py").write_text(
        "import asyncio\nfrom headgate import Headgate\napp = Headgate('sqlite:///jobs.db')\n"
        f"@app.task\nasync def work():\n    {deed}\n    await asyncio.sleep(60)\n"
        "@app.on_startup\nasync def enqueue():\n    await work.enqueue()\n"
    )
    words = [sys.executable, "-m", "headgate", "worker", "ended:app"]
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=patient(20))
    assert ended.returncode == 1
    assert "a handler cancelled all of `asyncio.all_tasks()`, or stopped the event loop" in ended.stderr


@pytest.mark.slow
def test_what_a_handler_has_printed_is_written_although_its_thread_is_left_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: what was printed into a pipe or a file was lost with the process."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (folder / "left.py").write_text(
        "import threading\nfrom headgate import Headgate\napp = Headgate('sqlite:///jobs.db', grace=0.1)\n"
        "@app.task\ndef work():\n"
        "    print('it has begun')\n    open('begun', 'w').close()\n    threading.Event().wait()\n"
    )
    command = [sys.executable, "-m", "headgate"]
    for words in (["migrate", "left:app"], ["jobs", "enqueue", "left:app", "work"]):
        subprocess.run([*command, *words], cwd=folder, check=True, capture_output=True)
    with subprocess.Popen([*command, "worker", "left:app"], cwd=folder, stdout=subprocess.PIPE, text=True) as worker:
        until_now((folder / "begun").exists)
        worker.send_signal(signal.SIGTERM)
        said, _ = worker.communicate(timeout=patient(20))
        assert (worker.returncode, said) == (0, "it has begun\n")


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["", "@app.on_shutdown\nasync def end(): ...\n"])
@pytest.mark.parametrize("drains", [True, False])
def test_callbacks_of_a_worker_are_interrupted_by_the_second_sigterm_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch, drains: bool, hook: str
) -> None:
    """The fault: the first signal after the node had left ended the process with -15, and its callbacks with it.

    Later a worker that a signal had ended did not end at once at the second one, and one with a function for its end
    did not longer. What a callback had printed was lost then.
    """
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (folder / "calling.py").write_text(
        "import asyncio\nfrom headgate import Headgate\napp = Headgate('sqlite:///jobs.db', history=False)\n"
        "@app.task\nasync def work(): ...\n"
        "@work.on_completed\nasync def call(job, result):\n"
        "    print('it has begun')\n    open('calling', 'w').close()\n"
        "    await asyncio.sleep(2)\n    open('called', 'w').close()\n"
        f"{hook}"
    )
    command = [sys.executable, "-m", "headgate"]
    for words in (["migrate", "calling:app"], ["jobs", "enqueue", "calling:app", "work"]):
        subprocess.run([*command, *words], cwd=folder, check=True, capture_output=True)
    words = [*command, "worker", "calling:app", *(["--drain"] if drains else []), "--log-json"]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        until_now((folder / "calling").exists)
        if not drains:
            worker.send_signal(signal.SIGTERM)
        assert any('"NodeStopped"' in line for line in worker.stderr)
        worker.send_signal(signal.SIGTERM)
        said, _ = worker.communicate(timeout=patient(20))
        assert (worker.returncode, said) == (0, "it has begun\n")
    assert (folder / "called").exists() is drains


@pytest.mark.slow
def test_a_draining_worker_ends_when_the_remaining_jobs_wait_for_a_limit(folder: Path) -> None:
    target = f"drained_{uuid.uuid4().hex}:app"
    (folder / f"{target.removesuffix(':app')}.py").write_text(APP)
    (folder / "payloads").write_text("{}\n" * 5)
    assert call("migrate", target).exit_code == 0
    assert call("jobs", "enqueue", target, "sync", "--payloads", "payloads").exit_code == 0
    done = subprocess.run(
        [sys.executable, "-m", "headgate", "worker", target, "--drain"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(15),
    )
    assert done.returncode == 0, done.stderr
    assert call("jobs", "count", target, "--state", "succeeded").stdout == "2\n"
    assert call("jobs", "count", target, "--view", "throttled").stdout == "3\n"


@pytest.mark.slow
def test_a_worker_notes_the_queues_on_its_command_line_that_no_task_has(folder: Path) -> None:
    target = f"queues_{uuid.uuid4().hex}:app"
    (folder / f"{target.removesuffix(':app')}.py").write_text(APP + 'app.queue("express")\n')

    def work(queue: str) -> tuple[int, str]:
        words = [sys.executable, "-m", "headgate", "worker", target, "-q", "default", "-q", queue, "--drain"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=patient(15))
        return done.returncode, done.stderr

    code, log = work("express")
    assert code == 0, log
    assert "no task of this app has queue 'express' as its own: this worker runs there only jobs that were" in log
    assert "enqueued with using(queue='express'); queues with tasks: default\n" in log
    assert "queue 'default' as its own" not in log
    code, log = work("expres")
    assert code == 1, log
    assert (
        "this worker uses queue 'expres', which is not declared; did you mean 'express'? Declare it first with" in log
    )
    assert "Declared: default, express\n" in log


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_log_json_writes_every_line_as_an_object(folder: Path, processes: tuple[str, ...]) -> None:
    target = f"json_{uuid.uuid4().hex}:app"
    (folder / f"{target.removesuffix(':app')}.py").write_text(
        APP.replace("import Headgate,", "import Headgate, RetryPolicy,").replace(
            "@app.task\nasync def bad", "@app.task(retry=RetryPolicy(retries=0))\nasync def bad"
        )
    )
    assert call("migrate", target).exit_code == 0
    id = call("jobs", "enqueue", target, "bad").stdout.strip()
    done = subprocess.run(
        [sys.executable, "-m", "headgate", "worker", target, "--drain", "--log-json", *processes],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(15),
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["level"] for line in lines if f"job {id} (bad) failed" in line["message"]] == ["ERROR"]
    assert {"NodeStarted", "NodeStopped"} <= {line.get("event") for line in lines}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_has_bounds_of_child_processes_of_its_own(folder: Path, processes: str) -> None:
    name = f"bounded_{uuid.uuid4().hex}"
    (folder / f"{name}.py").write_text(PROCESS_APP)
    (folder / "payloads").write_text("{}\n" * 4)
    assert call("migrate", f"{name}:app").exit_code == 0
    assert call("jobs", "enqueue", f"{name}:app", "pid", "--payloads", "payloads").exit_code == 0
    bounds = ["--max-tasks-per-child", "1", "--max-memory-per-child", "1GB"]
    done = subprocess.run(
        [sys.executable, "-m", "headgate", "worker", f"{name}:app", "--drain", "--processes", processes, *bounds],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(15),
    )
    assert done.returncode == 0, done.stderr
    pids = (folder / "pids").read_text().split()
    assert len(set(pids)) == len(pids) == 4


@pytest.mark.parametrize(("option", "value"), [("tasks", "0"), ("memory", "1"), ("memory", "lots")])
def test_invalid_bounds_of_child_processes_are_refused(option: str, value: str) -> None:
    result = call("worker", "some:app", f"--max-{option}-per-child", value)
    assert result.exit_code == 2
    assert f"--max-{option}-per-child" in result.stderr


@pytest.mark.parametrize("words", [("--processes", "2"), ("--reload",)])
def test_a_worker_of_a_parent_gets_every_word_of_its_command_line(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, ...]] = []

    class Parent:
        def __init__(self, command: list[str], *_: object, **__: object) -> None:
            started.append(tuple(command))

        async def run(self) -> int:
            return 0

    monkeypatch.setattr(worker_command, "Supervisor", Parent)
    monkeypatch.setattr(worker_command, "Reloader", Parent)
    given = (
        "-A",
        "shop:app",
        *words,
        "-q",
        "mail:4",
        "--label",
        "gpu",
        "--grace",
        "1m30s",
        "--no-log-jobs",
        "--wait=0",
    )
    assert call("worker", *given).exit_code == 0
    assert started == [(sys.executable, "-m", "headgate", "worker", "--end-with-stdin", *given)]


async def test_a_worker_waits_for_a_file_that_another_program_has_locked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault: it crashed as it joined, although it is to wait for its store."""
    app = app_on(SqliteStorage(tmp_path / "jobs.db", SystemClock(), patience=0.1))
    async with app.open():
        pass
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with contextlib.AsyncExitStack() as opened:
            opening = asyncio.ensure_future(worker_command._open(app, 600, asyncio.Event(), opened))
            await until(lambda: "waiting up to 600 s for the store: " in caplog.text)
            other.execute("ROLLBACK")
            assert await asyncio.wait_for(opening, patient(15))


@pytest.mark.slow
async def test_workers_that_have_drained_are_not_started_again(tmp_path: Path) -> None:
    born = tmp_path / "born"
    command = [sys.executable, "-S", "-c", f"open({str(born)!r}, 'a').write('.')"]
    assert await Supervisor(command, 2, SystemClock(), until_done=True).run() == 0
    assert born.read_text() == ".."


@pytest.mark.slow
async def test_a_worker_that_a_signal_without_a_name_has_ended_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault: Python has no name for most real-time signals, and the error ended all workers."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.001)
    born = tmp_path / "born"
    number = signal.SIGRTMIN + 1
    life = (
        f"import os; open({str(born)!r}, 'a').write('.')\n"
        f"if os.stat({str(born)!r}).st_size == 1: os.kill(os.getpid(), {number})"
    )
    assert await Supervisor([sys.executable, "-S", "-c", life], 1, SystemClock(), until_done=True).run() == 0
    assert born.read_text() == ".."
    assert f"worker 1 ended with signal {number}; it is started again" in caplog.text


@pytest.mark.slow
async def test_a_process_that_the_system_refuses_is_started_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault: the error ended the supervisor with a traceback, and with it all other workers."""
    refusals = [OSError(errno.EAGAIN, "Resource temporarily unavailable")]

    async def start(command: Sequence[str], environment: Mapping[str, str]) -> Process:
        if refusals:
            raise refusals.pop()
        return await start_worker(command, environment)

    monkeypatch.setattr(supervisor, "start_worker", start)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.001)
    born = tmp_path / "born"
    command = [sys.executable, "-S", "-c", f"open({str(born)!r}, 'a').write('.')"]
    assert await Supervisor(command, 2, SystemClock(), until_done=True).run() == 0
    assert born.read_text() == ".."
    assert "cannot be started: [Errno 11] Resource temporarily unavailable" in caplog.text


@pytest.mark.parametrize(
    "words",
    [
        ("--drain", "--drain-all"),
        ("--reload", "--drain"),
        ("--reload", "--drain-all"),
        ("--reload", "--processes", "2"),
    ],
)
def test_contradicting_options_are_refused(words: tuple[str, ...]) -> None:
    result = call("worker", "some:app", *words)
    assert result.exit_code == 2
    assert words[0] in result.stderr.splitlines()[-1]


async def stopped(running: asyncio.Task[int]) -> int:
    """Ask a reloader to end, unless it has, and return its exit code."""
    if not running.done():
        signal.raise_signal(signal.SIGTERM)
    await until(running.done)
    return await running


@pytest.mark.slow
async def test_a_reloading_worker_restarts_after_each_change_and_after_an_error(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code, lives = folder / "code.py", folder / "lives"
    code.write_text("first")
    caplog.set_level(logging.INFO, logger="headgate.reload")
    running = asyncio.create_task(Reloader([sys.executable, "-S", "-c", LIVES], folder).run())

    async def lived(*codes: str) -> None:
        def have() -> bool:
            assert not running.done(), running.result()
            return lives.exists() and lives.read_text().split() == [*codes]

        await until(have, missing=lambda: caplog.text)

    try:
        await lived("first")
        (folder / "notes.txt").write_text("no code")
        code.write_text("broken")
        await lived("first", "broken")
        await until(lambda: "ended with exit code 1" in caplog.text, missing=lambda: caplog.text)
        code.write_text("third")
        await lived("first", "broken", "third")
    finally:
        code_at_end = await stopped(running)
    assert code_at_end == 0
    assert caplog.text.count("code.py changed; the worker restarts") == 2
    assert "notes.txt" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("life", "expected"),
    [
        ("started(); time.sleep(60)", 0),
        ("started(); sys.exit(1)", 0),
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); started(); time.sleep(60)", 1),
    ],
    ids=["before it listens", "while the code is broken", "with an error"],
)
async def test_a_reloading_worker_that_is_asked_to_stop_exits_with_0_unless_it_failed(
    folder: Path, caplog: pytest.LogCaptureFixture, life: str, expected: int
) -> None:
    source = f"import signal, sys, time; started = lambda: open('started', 'w').close(); {life}"
    running = asyncio.create_task(Reloader([sys.executable, "-S", "-c", source], folder).run())

    def has_started() -> bool:
        assert not running.done(), running.result()
        return (folder / "started").exists() and ("sys.exit(1)" not in life or "ended with" in caplog.text)

    try:
        await until(has_started)
    finally:
        code_at_end = await stopped(running)
    assert code_at_end == expected
    assert ("exit code 7 instead of draining" in caplog.text) == (expected == 1)


async def test_without_watchfiles_reload_says_how_to_install_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(DeclarationError, match=r"pip install 'headgate\[reload\]'"):
        await Reloader([sys.executable, "-c", "pass"], folder).run()


@pytest.mark.nightly
def test_a_worker_whose_file_was_removed_ends_with_an_error_for_its_supervisor(folder: Path) -> None:
    """It once lived on for ever and did nothing."""
    name = f"removed_{uuid.uuid4().hex}"
    (folder / f"{name}.py").write_text(APP.replace("history=False", "history=False, heartbeat=1"))
    log = folder / "log"
    with log.open("w") as file:
        worker = subprocess.Popen([sys.executable, "-m", "headgate", "worker", f"{name}:app"], cwd=folder, stderr=file)
    try:
        until_now(lambda: "works on" in log.read_text(), missing=log.read_text)
        for path in folder.glob("jobs.db*"):
            path.unlink()
        assert worker.wait(patient(20)) == 1
    finally:
        worker.kill()
        worker.wait()
    assert "jobs.db was removed or replaced while it was open" in log.read_text().splitlines()[-1]
    assert not (folder / "jobs.db").exists()


@pytest.mark.parametrize("has_tasks", [False, True])
async def test_a_worker_without_tasks_says_so_as_a_warning(
    caplog: pytest.LogCaptureFixture, *, has_tasks: bool
) -> None:
    app = Headgate("memory://")
    if has_tasks:

        @app.task
        async def work() -> None: ...

    with caplog.at_level(logging.INFO, logger="headgate"):
        async with app:
            await until(lambda: any("works on" in each.getMessage() for each in caplog.records))
    (started,) = [each for each in caplog.records if "works on" in each.getMessage()]
    assert started.levelname == ("INFO" if has_tasks else "WARNING")
    assert ("no tasks, so it runs no jobs" in started.getMessage()) is not has_tasks
    assert ('imports=["myproject.tasks"]' in started.getMessage()) is not has_tasks


async def test_a_handler_that_blocks_the_event_loop_is_logged_with_its_line_while_it_blocks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The fault: an endless loop in an `async def` stopped one worker after the other, and no log said a word."""
    with caplog.at_level(logging.ERROR, logger="headgate.worker"):
        watch_loop(asyncio.get_running_loop(), blocked_for=0.05)
        until_now(lambda: len(caplog.records) >= 2)
    first, second, *_ = [each.getMessage() for each in caplog.records]
    assert re.match(r"the event loop has been blocked for 0\.05 s by \S+ at \S+\.py:\d+: this worker starts", first)
    assert second.startswith("the event loop has been blocked for 0.1 s by ")


@pytest.mark.parametrize("is_in_file_system", [True, False])
async def test_systemd_gets_a_sign_of_life_while_the_loop_turns(
    is_in_file_system: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        name = f"{folder}/notify"
        systemd.bind(name if is_in_file_system else f"\0{name}")
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", name if is_in_file_system else f"@{name}")
        monkeypatch.setenv("WATCHDOG_USEC", "60000000")
        watch_loop(asyncio.get_running_loop(), blocked_for=0.1)
        for _ in range(2):
            assert await asyncio.get_running_loop().sock_recv(systemd, 100) == b"WATCHDOG=1"
        _drained(systemd)
        # The loop does not turn meanwhile: at most one is on its way.
        assert len(_drained(systemd, after=1)) <= 1
        assert await asyncio.get_running_loop().sock_recv(systemd, 100) == b"WATCHDOG=1"


def _drained(receiver: socket.socket, after: float = 0) -> list[bytes]:
    time.sleep(after)
    received = []
    with contextlib.suppress(BlockingIOError):
        while True:
            received.append(receiver.recv(100))
    return received


async def test_a_watchdog_of_zero_is_none(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The fault: `WATCHDOG_USEC=0` made the watching thread spin and send signs of life without a pause."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"{folder}/notify")
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", f"{folder}/notify")
        monkeypatch.setenv("WATCHDOG_USEC", "0")

        def has_blocked(times: int) -> bool:
            return sum("blocked for 0.05 s" in each.getMessage() for each in caplog.records) == times

        with caplog.at_level(logging.ERROR, logger="headgate.worker"):
            watch_loop(asyncio.get_running_loop(), blocked_for=0.05)
            for times in (1, 2):
                until_now(partial(has_blocked, times))
                await asyncio.sleep(0)  # The loop turns once, which ends this block.
        assert _drained(systemd) == []


async def test_a_worker_that_cannot_reach_systemd_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    with caplog.at_level(logging.WARNING, logger="headgate.worker"):
        watch_loop(asyncio.get_running_loop(), blocked_for=0.05)
        await until(lambda: len(caplog.records) >= 2)
    assert caplog.records[0].getMessage().startswith("systemd gets no sign of life, and will kill this worker: ")
