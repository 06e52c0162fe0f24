"""The verbs from code without an event loop: scripts, threads, and web servers that fork."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from inspect import signature
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from headgate import Cron, Headgate, HeadgateError, JobState, NotOpen, StrictRate, batch, chain
from headgate.admin import Admin
from headgate.admin.history import HistoryAdmin
from headgate.admin.limits import LimitsAdmin
from headgate.admin.queues import QueuesAdmin
from headgate.admin.schedules import SchedulesAdmin
from headgate.client.handles import (
    Batch,
    Chain,
    Job,
    Schedule,
    SyncBatch,
    SyncChain,
    SyncJob,
    SyncSchedule,
)
from headgate.client.portal import Portal
from headgate.client.sync_admin import (
    SyncAdmin,
    SyncHistoryAdmin,
    SyncLimitsAdmin,
    SyncQueuesAdmin,
    SyncSchedulesAdmin,
)
from tests.until import patient, result_within

HERE = Path(__file__).parent


def make_app(url: str, schema: str = "headgate") -> Headgate:
    app = Headgate(url, schema=schema, synchronous="OFF")

    @app.task
    async def sync_tenant(tenant: str) -> str:
        return tenant

    @app.task
    async def fail(tenant: str) -> str:
        raise ValueError(tenant)

    return app


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Headgate]:
    app = make_app(f"sqlite:///{tmp_path}/jobs.db")
    yield app
    app.sync.close()


def test_admin_methods_open_the_app_by_themselves(app: Headgate) -> None:
    with pytest.raises(NotOpen):
        _ = app.admin
    job = app.tasks["sync_tenant"].using(delay=60).sync.enqueue("acme")
    assert app.sync.admin.counts()[0].waiting == 1
    assert app.sync.admin.status(job.id).is_scheduled
    assert app.sync.admin.cancel(job.id) is True
    assert app.sync.admin.queues.pause("default") is True
    assert app.sync.job(job.id).status().state is JobState.CANCELLED
    with pytest.raises(HeadgateError, match="no job nobody is stored"):
        app.sync.admin.status("nobody")


def test_admin_has_the_same_methods_with_and_without_await() -> None:
    pairs = [
        (Admin, SyncAdmin),
        (LimitsAdmin, SyncLimitsAdmin),
        (QueuesAdmin, SyncQueuesAdmin),
        (SchedulesAdmin, SyncSchedulesAdmin),
        (HistoryAdmin, SyncHistoryAdmin),
    ]
    for admin, sync in pairs:
        names = {name for name in vars(admin) if not name.startswith("_")}
        assert names <= vars(sync).keys(), admin
        for name in names:
            verb = vars(sync)[name]
            assert getattr(verb, "__wrapped__", vars(admin)[name]) is vars(admin)[name]


def test_handles_have_the_same_attributes_with_and_without_await() -> None:
    """The fault: a SyncJob had neither `is_new` nor `prediction`, and two of one job were not equal."""
    for handle, sync in [(Job, SyncJob), (Batch, SyncBatch), (Chain, SyncChain), (Schedule, SyncSchedule)]:
        names = {name for name in dir(handle) if not name.startswith("_")}
        assert {name for name in dir(sync) if not name.startswith("_")} == names


def test_handles_say_the_same_with_and_without_await(app: Headgate) -> None:
    @app.task(limits=[StrictRate("1/m")])
    async def task(tenant: str) -> None: ...

    first, again = (task.using(unique_key="acme", predict=True).sync.enqueue("acme") for _ in range(2))
    assert (first.is_new, again.is_new) == (True, False)
    assert first.prediction is not None
    assert first.prediction.position == 1
    assert app.sync.job(first.id).prediction is None
    assert first == again == app.sync.job(first.id) != app.job(first.id)
    assert first != task.sync.enqueue("acme")
    assert {first, again} == {first}
    assert repr(first) == f"SyncJob({first.id!r})"
    assert {app.sync.find_schedule("nightly")} == {app.sync.find_schedule("nightly")}
    assert app.sync.find_schedule("nightly") != app.sync.find_schedule("daily")


def test_handles_without_await_have_plain_methods(app: Headgate) -> None:
    """The fault: called through the class, as by `map`, they raised AttributeError, and doubles of them TypeError."""
    jobs = [app.tasks["sync_tenant"].using(delay=60).sync.enqueue("acme") for _ in range(2)]
    assert list(map(SyncJob.cancel, jobs)) == [True, True]
    assert list(signature(jobs[0].cancel).parameters) == []
    double = create_autospec(SyncJob, instance=True)
    double.cancel.return_value = False
    assert double.cancel() is False


def test_admin_values_are_the_same_with_and_without_await(app: Headgate) -> None:
    with app.open():
        admin, sync = app.admin, app.sync.admin
        assert (sync.address, sync.actor, sync.tasks) == (admin.address, admin.actor, admin.tasks)
        assert list(sync.declared_tasks) == list(admin.declared_tasks)
        assert sync.now() >= admin.now() - timedelta(seconds=60)
        assert sync.limits.all_declared() == admin.limits.all_declared()
        assert sync.history.jobs() == []
        job = app.tasks["sync_tenant"].sync.enqueue("acme")
        assert sync.by("ada").cancel(job.id) is True
        assert [record.actor for record in sync.audit_log()] == ["ada"]


def test_ended_jobs_are_followed_without_await(app: Headgate) -> None:
    jobs = [app.tasks["sync_tenant"].using(delay=60).sync.enqueue("acme") for _ in range(2)]
    for job in jobs:
        app.sync.admin.cancel(job.id)
    assert [event.job for event in app.sync.admin.ended_jobs().items] == [job.id for job in jobs]
    events = app.sync.admin.follow_ended_jobs(state="cancelled")
    assert [next(events).job for _ in jobs] == [job.id for job in jobs]


def test_schedules_chains_and_batches_are_followed_by_their_names_and_ids(app: Headgate) -> None:
    task = app.tasks["sync_tenant"]
    task.sync.schedule("nightly", Cron("0 3 * * *", tz="Europe/Rome")).enqueue("acme")
    nightly = app.sync.find_schedule("nightly")
    assert len(nightly.next_runs(3)) == 3
    assert nightly.pause() is True
    assert app.sync.admin.schedules.status("nightly").state == "paused"
    assert nightly.resume() is True
    assert nightly.trigger().status().state is JobState.WAITING

    two = batch([task.call("a"), task.call("b")]).then(task.call("c")).sync.enqueue()
    assert app.sync.batch(two.id).status().total == 2
    (after,) = two.then
    assert after.cancel() == 1
    steps = chain(task.call("a"), task.call("b")).sync.enqueue()
    assert [job.status().is_blocked for job in steps.jobs] == [False, True]
    assert steps.cancel() == 2


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db", "headgate"
    return request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")


def test_an_app_that_is_opened_again_enqueues_from_many_threads_as_before(place: tuple[str, str]) -> None:
    """The fault: on PostgreSQL, those that had to wait for each other got a RuntimeError about a semaphore."""
    url, schema = place
    app = Headgate(url, schema=schema, synchronous="OFF")

    @app.task(unique_key="{number}")
    async def work(number: int) -> None: ...

    for block in range(2):
        with app.open(), ThreadPoolExecutor(20) as threads:
            jobs = list(threads.map(work.sync.enqueue, range(20 * block, 20 * block + 20)))
        assert len({job.id for job in jobs}) == 20


@pytest.fixture
def server(place: tuple[str, str], tmp_path: Path) -> Iterator[str]:
    """The address of a web server that loads, forks and then serves by threads."""
    url, schema = place
    environment = {**os.environ, "HEADGATE_URL": url, "HEADGATE_SCHEMA": schema, "PYTHONPATH": str(HERE.parent.parent)}
    process = subprocess.Popen(
        [sys.executable, str(HERE / "wsgi_server.py")],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        port = process.stdout.readline().strip()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        try:
            process.wait(patient(10))
        finally:
            process.kill()
        process.stdout.close()


def request(method: str, address: str) -> tuple[str, str]:
    """The body, and which process answered."""
    with urllib.request.urlopen(urllib.request.Request(address, method=method), timeout=patient(15)) as answer:
        return answer.read().decode(), answer.headers["X-Process"]


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
async def test_views_of_a_forking_web_server_enqueue_read_and_cancel(server: str, place: tuple[str, str]) -> None:
    with ThreadPoolExecutor(12) as clients:
        answers = list(clients.map(lambda number: request("POST", f"{server}/tenant-{number}"), range(60)))
    ids = {id for id, _ in answers}
    assert len(ids) == 60
    assert len({process for _, process in answers}) > 1, "one process answered all"
    cancelled, waiting = sorted(ids)[:2]
    assert request("DELETE", f"{server}/{cancelled}")[0] == "True"
    assert request("DELETE", f"{server}/{cancelled}")[0] == "False"
    assert request("GET", f"{server}/{waiting}")[0] == "waiting"
    with pytest.raises(urllib.error.HTTPError, match="404") as missing:
        request("GET", f"{server}/nobody")
    missing.value.close()

    app = make_app(*place)
    async with app:
        results = {await result_within(app.job(id), 15) for id in ids - {cancelled}}
    assert len(results) == 59


def test_of_two_threads_that_come_first_after_a_fork_one_opens_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: the other one dropped the loop on which the app was being opened, and was refused on its own loop."""
    parent = os.getpid()
    opened: list[asyncio.AbstractEventLoop] = []
    is_asked, is_opening, may_open = (threading.Event() for _ in range(3))

    @contextlib.asynccontextmanager
    async def open_app() -> AsyncIterator[None]:
        opened.append(asyncio.get_running_loop())
        is_opening.set()
        await asyncio.to_thread(may_open.wait, 10)
        yield

    def child() -> int:
        if threading.current_thread().name.startswith("late") and not is_asked.is_set():
            is_asked.set()
            is_opening.wait(10)
        return parent + 1

    async def loop_of_call() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    portal = Portal(open_app, lambda: None)
    monkeypatch.setattr(os, "getpid", child)
    with ThreadPoolExecutor(1, "late") as late, ThreadPoolExecutor(1) as early:
        calls = [late.submit(lambda: portal.run(loop_of_call()))]
        assert is_asked.wait(10)
        calls.append(early.submit(lambda: portal.run(loop_of_call())))
        # Time for the late one to open the app, too.
        wait(calls, timeout=0.2)
        may_open.set()
        assert {call.result(10) for call in calls} == set(opened)
        assert len(opened) == 1
    portal.close()


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "raise SystemExit(0)",
        "limiter = app.sync.admin.count()",
        "threading.Thread(target=app.sync.run, args=[asyncio.sleep(60)], daemon=True).start(); time.sleep(0.2)",
    ],
)
def test_a_script_that_closes_nothing_ends_without_a_word(tmp_path: Path, ending: str) -> None:
    """The fault: it ended with nine lines of tasks that were destroyed, or with the traceback of a daemon thread."""
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import asyncio
import threading
import time

from headgate import Headgate

app = Headgate("sqlite:///{tmp_path}/jobs.db")


@app.task
async def work(number: int) -> None: ...


if __name__ == "__main__":
    work.sync.enqueue(1)
    work.sync.enqueue_many([(2,), (3,)])
    {ending}
"""
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=patient(20)
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with make_app(f"sqlite:///{tmp_path}/jobs.db").sync as app:
        assert app.admin.count() == 3


LATE = {
    "a thread": "threading.Thread(target=enqueue).start()",
    "an executor": "ThreadPoolExecutor().submit(enqueue)",
    "the executor of an event loop": "app.sync.run(in_executor())",
    "a function of atexit": "atexit.register(enqueue)",
}


@pytest.mark.parametrize("caller", LATE)
def test_what_outlives_the_main_thread_goes_on_until_it_ends(
    place: tuple[str, str], tmp_path: Path, caller: str
) -> None:
    """The fault: what it awaited was cancelled, or raised NotOpen, and tasks were destroyed at the end.

    On PostgreSQL it could not connect to a server by its name.
    """
    url, schema = place
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import asyncio
import atexit
import threading
from concurrent.futures import ThreadPoolExecutor

from headgate import Headgate

app = Headgate({url.replace("127.0.0.1", "localhost")!r}, schema={schema!r})


@app.task
async def work(number: int) -> None: ...


def enqueue() -> None:
    app.sync.run(asyncio.sleep(0.5))
    for number in range(20):
        work.sync.enqueue(number)
    print("enqueued")


async def in_executor() -> None:
    asyncio.get_running_loop().run_in_executor(None, enqueue)


if __name__ == "__main__":
    work.sync.enqueue(20)
    {LATE[caller]}
"""
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=patient(20)
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "enqueued\n", "")
    with make_app(*place).sync as app:
        assert app.admin.count() == 21


FORKS = """
import multiprocessing
import threading
import time

from headgate import Headgate

app = Headgate("sqlite:///jobs.db", synchronous="OFF")


@app.task
async def work(number: int) -> None: ...


def enqueue() -> None:
    work.sync.enqueue(1)


def enqueue_later() -> None:
    time.sleep(0.5)
    enqueue()


def start_thread() -> None:
    threading.Thread(target=enqueue_later).start()


if __name__ == "__main__":
    for function in (enqueue, start_thread):
        child = multiprocessing.get_context("fork").Process(target=function)
        child.start()
        child.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_child_of_multiprocessing_closes_the_app_but_not_under_its_other_threads(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FORKS)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=patient(20)
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    with make_app(f"sqlite:///{tmp_path}/jobs.db").sync as app:
        assert app.admin.count() == 2
        # Counts are written when the app is closed.
        assert sum(point.enqueued for point in app.admin.history.jobs()) > 0
