"""The command line: what it finds, prints, refuses, and how its processes begin and end."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import uuid
import zipapp
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest
from click.testing import Result

from headgate import Headgate, JobFailed, JobState, cli
from headgate.admin import Admin
from headgate.admin.actor import this_process
from headgate.cli import status as status_command
from headgate.cli import supervisor
from headgate.cli.main import COMMANDS, LazyGroup, main
from headgate.cli.output import make_console, print_table
from headgate.cli.supervisor import KEPT_DYING, Supervisor
from headgate.clock import SystemClock
from headgate.errors import StorageUnavailable
from headgate.storage.records import WaitingCount
from headgate.storage.store import Store
from tests.faces.one_module import OneModule, answer, call, go_into
from tests.internals import store_of
from tests.until import patient, result_within, until

R = TypeVar("R")

APP = '''
import asyncio
import os
import sys

from headgate import Cron, Headgate, RetryPolicy, StrictRate, current_job

app = Headgate("sqlite:///jobs.db")
app.queue("emails", concurrency=2)


@app.task(limits=[StrictRate("2/m", key="{tenant}")])
async def sync(tenant: str, page: int = 1) -> int:
    return page


@app.task(queue="emails", retry=RetryPolicy(retries=1, base=0.001))
async def bad() -> None:
    raise ValueError("no such page")


@app.schedule(Cron("0 6 * * *", tz="Europe/Rome"), name="nightly", args=["acme"], max_runs=9)
@app.task
async def report(tenant: str) -> str:
    return tenant


@app.task
def write(path: str) -> int:
    """Opening a pipe waits for who opens its other end."""
    with open(path, "w") as pipe:
        pipe.write("here")
    return os.getpid()


@app.task
def read(path: str) -> int:
    with open(path) as pipe:
        pipe.read()
    return os.getpid()


@app.task
def read_without_stderr(path: str) -> None:
    sys.stderr.close()
    read.function(path)


@app.task
def log_without_stderr() -> int:
    sys.stderr.close()
    current_job().log.warning("nobody reads this there")
    return 7


@app.task
async def forever(path: str) -> None:
    await asyncio.to_thread(write.function, path)
    await asyncio.Event().wait()


not_an_app = 7
'''


class Project(OneModule):
    def __init__(self, path: Path, source: str = APP) -> None:
        super().__init__(path, source)

    def result(self, job_id: str) -> Any:
        return self.do(lambda app: app.job(job_id).result(timeout=patient(15)))

    def state(self, job_id: str) -> tuple[JobState, int]:
        status = self.do(lambda app: app.job(job_id).status())
        return status.state, status.attempt

    def pipe(self) -> str:
        path = str(self.path / f"pipe-{uuid.uuid4().hex}")
        os.mkfifo(path)
        return path

    @contextmanager
    def worker(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """A `headgate worker` process; its log is read from `stderr`."""
        process = subprocess.Popen(
            [sys.executable, "-m", "headgate", "worker", self.target, *options],
            cwd=self.path,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    go_into(tmp_path, monkeypatch)
    return Project(tmp_path)


async def schedule_is_stored(app: Headgate) -> None:
    async def is_there() -> bool:
        return bool(await app.admin.schedules.list())

    await until(is_there)


def assert_one_line(result: Result, code: int, *parts: str) -> None:
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    error = result.output.splitlines()[-1]
    assert error.startswith("Error: ")
    for part in parts:
        assert part in error
    if code == 1:
        assert len(result.output.splitlines()) == 1


def lines_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """Read the log until a line holds the text; that line is the last."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"the log ended without {text!r}: {''.join(lines)}")


def wait_for_end(pid: int) -> None:
    """Return when a process that is not our own child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], patient(15))[0], f"process {pid} did not end"
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------------------- finding commands


def test_the_list_of_commands_shows_their_descriptions() -> None:
    context = main.make_context("headgate", ["status"])
    for name, summary in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.get_short_help_str(200).rstrip(".") == summary.rstrip(".")


def test_help_loads_no_command_and_no_tables() -> None:
    code = (
        "import sys; from headgate.cli.main import main; main(['--help'], standalone_mode=False);"
        "sys.exit(any(name.startswith(('rich', 'headgate.cli.j', 'headgate.cli.w')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_no_garbage_is_collected_while_a_command_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"loaded_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(
        f"import gc, click\nwas_on = gc.isenabled()\n{name} = click.Command('{name}')\n"
    )
    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(tmp_path)])
    monkeypatch.setitem(COMMANDS, name, "A command.")
    assert isinstance(main, LazyGroup)
    assert main.get_command(main.make_context("headgate", ["status"]), name) is not None
    assert not sys.modules[f"headgate.cli.{name}"].was_on
    assert gc.isenabled()
    monkeypatch.setitem(COMMANDS, "no_such_module", "No command.")
    with pytest.raises(ModuleNotFoundError):
        main.get_command(main.make_context("headgate", ["status"]), "no_such_module")
    assert gc.isenabled()


def test_python_m_headgate_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "headgate", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: headgate ")


def test_the_help_of_the_worker_documents_its_exit_codes() -> None:
    result = call("worker", "--help")
    assert "Exit codes:" in result.output
    assert all(f"\n    {code}  " in result.output for code in range(4))


# ------------------------------------------------------------------------------------------- finding the app


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("no_such_module_here:app", ["no module 'no_such_module_here'", "write it as module:app"]),
        ("no_such_package.jobs:app", ["no module 'no_such_package'"]),
        ("{name}:missing", ["has no 'missing'", "write {name}:app"]),
        ("{name}:not_an_app", ["is 'int', not a Headgate app", "write {name}:app"]),
        ("{name}:", ["does not name an app", "write it as module:app"]),
        (":app", ["does not name an app"]),
        ("json", ["module 'json' has no app", "write it as module:app"]),
        ("{name}.py:app", ["{name}.py is a file, not a module; write {name}:app"]),
        ("./{name}.py", ["{name}.py is a file, not a module; write {name}:app"]),
        ("shop/{name}.py:jobs", ["{name}.py is a file, not a module; write shop.{name}:jobs"]),
        ("/srv/{name}.py:jobs", ["{name}.py is a file, not a module; write {name}:jobs, in /srv"]),
        ("shop/__init__.py", ["__init__.py is a file, not a module; write shop:app"]),
        ("/srv/shop/__init__.py:jobs", ["__init__.py is a file, not a module; write shop:jobs, in /srv"]),
        ("src/shop/jobs.py", ["jobs.py is a file, not a module; write shop.jobs:app, in "]),
    ],
)
def test_an_app_that_cannot_be_found_is_reported_in_one_line(project: Project, target: str, parts: list[str]) -> None:
    """The fault: `write shop.__init__:app` and `write src.shop.jobs:app`, which make a second app without its tasks."""
    for command in (["worker"], ["status"], ["jobs", "list"], ["limits", "list"]):
        expected = [part.format(name=project.name) for part in parts]
        assert_one_line(call(*command, target.format(name=project.name)), 1, *expected)


def test_a_module_alone_names_its_only_app(tmp_path: Path, project: Project) -> None:
    assert call("status", "-A", project.name).exit_code == 0
    two = Project(tmp_path, f"from {project.name} import app\nfrom headgate import Headgate\nb = Headgate('memory://')")
    assert_one_line(call("status", two.name), 1, "has several apps", f"write {two.name}:app or {two.name}:b")
    same = Project(tmp_path, f"from {project.name} import app\ncelery = app")
    assert call("status", same.name).exit_code == 0


def test_a_missing_dependency_of_a_module_is_not_reported_as_a_missing_module(tmp_path: Path, project: Project) -> None:
    broken = Project(tmp_path, "import no_such_dependency\n")
    result = call("status", broken.target)
    assert result.exit_code == 1
    assert "its module raised ModuleNotFoundError: No module named 'no_such_dependency'" in result.output
    assert "there is no module" not in result.output


def test_the_app_is_named_by_the_argument_the_option_or_the_environment(project: Project) -> None:
    assert call("jobs", "list", project.target).exit_code == 0
    assert call("jobs", "list", "-A", project.target).exit_code == 0
    assert call("jobs", "list", env={"HEADGATE_APP": project.target}).exit_code == 0
    # As a file with the line ends of Windows sets it.
    for words in (["jobs", "list"], ["simulate", "--task", "sync", "--jobs", "1"]):
        assert call(*words, env={"HEADGATE_APP": f"{project.target}\r"}).exit_code == 0, words
    assert_one_line(call("jobs", "list", env={"HEADGATE_APP": ""}), 2, "HEADGATE_APP")
    # The argument beats the environment; two names on one line are a mistake; so is none.
    assert call("jobs", "list", project.target, env={"HEADGATE_APP": "nowhere:app"}).exit_code == 0
    assert_one_line(call("jobs", "list", project.target, "-A", "other:app"), 2, "named twice")
    assert_one_line(call("jobs", "list"), 2, "HEADGATE_APP")
    assert_one_line(call("jobs", "list", project.target, "other:app"), 2, "unexpected arguments")


def test_an_unknown_storage_url_is_reported_in_one_line(tmp_path: Path, project: Project) -> None:
    odd = Project(tmp_path, 'from headgate import Headgate\napp = Headgate("oracle://x")\n')
    assert_one_line(call("status", odd.target), 1, "storage URL 'oracle://x' has an unknown scheme")


def test_an_app_without_a_url_is_reported_in_one_line(tmp_path: Path, project: Project) -> None:
    nowhere = Project(tmp_path, "from headgate import Headgate\napp = Headgate()\n")
    for command in ("status", "worker", "migrate"):
        for url in ("", "  "):
            result = call(command, nowhere.target, env={"HEADGATE_URL": url})
            assert_one_line(result, 1, "Headgate() has no store for its jobs", "HEADGATE_URL")
    assert not (tmp_path / "headgate.db").exists()


def test_a_file_that_is_no_database_is_reported_in_one_line(tmp_path: Path, project: Project) -> None:
    (tmp_path / "jobs.db").write_text("this is a letter, not a database. " * 100)
    assert_one_line(call("status", project.target), 1, "jobs.db")


# ------------------------------------------------------------------------------------------- looking and changing


def test_jobs_are_listed_newest_first_with_filters_and_pages(project: Project) -> None:
    first, second, third = (project.enqueue("sync", tenant, 1) for tenant in ("acme", "globex", "acme"))
    other = project.enqueue("bad")

    def ids(*options: str) -> list[str]:
        return [job["id"] for job in answer("jobs", "list", project.target, *options)]

    assert ids() == [other, third, second, first]
    assert ids("--queue", "emails") == [other]
    assert ids("--task", "sync", "--state", "waiting") == [third, second, first]
    assert ids("--state", "failed") == []
    assert ids("--key", "acme") == [third, first]
    assert ids("--limit", "sync:rate") == [third, second, first]
    assert ids("--count", "2") == [other, third]
    assert ids("--count", "2", "--before", third) == [second, first]


def test_a_listing_for_people_keeps_whole_ids_where_there_is_no_terminal(project: Project) -> None:
    job = project.enqueue("sync", "acme", 1)
    assert f" {job} " in call("jobs", "list", project.target).output
    assert call("jobs", "list", project.target, "--state", "failed").output == "Jobs: none\n"


def test_show_prints_the_payload_and_every_attempt_with_its_error(project: Project) -> None:
    async def fail(app: Headgate) -> str:
        job = await app.tasks["bad"].enqueue()
        with pytest.raises(Exception, match="no such page"):
            await result_within(job)
        return job.id

    failed = project.do(fail, running=True)
    [shown] = answer("jobs", "show", project.target, failed)
    assert (shown["state"], shown["attempt"], shown["payload"], shown["result"]) == ("failed", 2, {}, None)
    assert [attempt["number"] for attempt in shown["attempts"]] == [1, 2]
    assert all(attempt["error"]["message"] == "no such page" for attempt in shown["attempts"])
    text = call("jobs", "show", project.target, failed).output
    assert "ValueError: no such page" in text
    assert "Traceback" in text


def test_status_waits_for_a_count_that_takes_long(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.do(lambda app: app.tasks["sync"].enqueue("acme", 1))
    # It looks at once for what blocks it, and nothing does.
    monkeypatch.setattr(status_command, "STUCK_AFTER", 0)
    [queue] = answer("status", project.target)["queues"]
    assert queue["waiting"] == 1


def test_status_does_not_say_that_nothing_waits_if_it_could_not_count(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(self: Store, **_: Any) -> None:
        raise StorageUnavailable("refused")

    monkeypatch.setattr(Store, "count_unfinished", refused)
    for options in ([], ["--json"]):
        assert_one_line(
            call("status", project.target, *options), 1, "the jobs that wait could not be counted", "jobs.db"
        )


def test_status_shows_what_is_logged_while_the_app_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_into(tmp_path, monkeypatch)
    monkeypatch.setenv("HEADGATE_SHEMA", "shop")
    mistaken = Project(tmp_path, 'from headgate import Headgate\napp = Headgate("sqlite:///jobs.db")\n')
    call("status", mistaken.target)
    assert "HEADGATE_SHEMA has no effect" in caplog.text


def test_show_prints_the_limit_of_a_throttled_job_and_its_start(project: Project) -> None:
    async def throttle(app: Headgate) -> str:
        jobs = await app.tasks["sync"].enqueue_many([("acme", page) for page in range(3)])
        await result_within(jobs[1])
        return jobs[2].id

    job = project.do(throttle, running=True)
    [shown] = answer("jobs", "show", project.target, job)
    assert shown["waits_for"] == ["sync:rate", "acme"]
    assert shown["throttled_until"] > shown["enqueued_at"]
    assert shown["limits"] == [{"limit": "sync:rate", "key": "acme"}]
    assert shown["payload"] == {"tenant": "acme", "page": 2}
    assert "waiting (throttled)" in call("jobs", "list", project.target).output

    [bucket] = answer("limits", "list", project.target, "--key", "acme")
    assert (bucket["limit"], bucket["key"], bucket["waiting"]) == ("sync:rate", "acme", 1)
    assert (bucket["used"], bucket["available"]) == (2, 0)
    assert bucket["next_slot_at"] is not None
    assert answer("limits", "list", project.target, "--limit", "other") == []
    assert "acme" in call("limits", "list", project.target).output

    status = answer("status", project.target)
    [queue] = status["queues"]
    assert 0 < queue.pop("oldest") < 60
    assert queue == {
        "queue": "default",
        "waiting": 1,
        "ready": 0,
        "throttled": 1,
        "scheduled": 0,
        "blocked": 0,
        "running": 0,
        "succeeded": 2,
        "failed": 0,
        "cancelled": 0,
        "skipped": 0,
        "lag": 0.0,
        "paused_at": None,
        "is_paused": False,
        "undeclared": 0,
    }
    assert status["blockers"] == []
    assert [bucket["key"] for bucket in status["throttled"]] == ["acme"]
    assert "Throttled" in call("status", project.target).output


def test_an_unknown_job_is_reported_in_one_line(project: Project) -> None:
    assert_one_line(call("jobs", "show", project.target, "0-0"), 1, "no job 0-0 is stored")


def test_cancel_and_retry_print_a_result_for_each_id(project: Project) -> None:
    first, second = project.enqueue("sync", "acme", 1), project.enqueue("sync", "acme", 2)
    cancelled = call("jobs", "cancel", project.target, first, second)
    assert cancelled.exit_code == 0
    assert cancelled.output.splitlines() == [f"{first}: cancelled", f"{second}: cancelled"]

    again = call("jobs", "cancel", first, "0-0", env={"HEADGATE_APP": project.target})
    assert again.exit_code == 1
    assert f"{first}: not changed, it was already cancelled" in again.output
    assert "0-0: no job 0-0 is stored" in again.output

    retried = call("jobs", "retry", "-A", project.target, first, "0-0", second, "--json")
    assert retried.exit_code == 1
    assert [(report["id"], report["ok"]) for report in json.loads(retried.stdout)] == [
        (first, True),
        ("0-0", False),
        (second, True),
    ]
    assert project.state(first)[0] is JobState.WAITING
    assert_one_line(call("jobs", "retry", project.target), 2, "at least one job")


def test_queues_are_listed_paused_and_resumed(project: Project) -> None:
    project.enqueue("bad")
    assert call("queues", "pause", project.target, "emails").output == "emails is paused\n"
    assert call("queues", "pause", "emails", "-A", project.target).output == "emails was paused already\n"
    default, emails = answer("queues", "list", project.target)
    assert (default["queue"], default["waiting"], default["oldest"], default["paused_at"]) == ("default", 0, None, None)
    assert (emails["queue"], emails["waiting"], emails["lag"]) == ("emails", 1, 0.0)
    assert emails["paused_at"] is not None
    assert 0 < emails["oldest"] < 60
    text = call("queues", "list", project.target).output
    assert ["paused" in line for line in text.splitlines() if line.strip().startswith(("default", "emails"))] == [
        False,
        True,
    ]
    [job] = answer("jobs", "list", project.target)
    assert "queue 'emails' is paused" in call("jobs", "explain", project.target, job["id"]).output
    # A paused queue is listed even if no job waits in it.
    call("queues", "pause", project.target, "default")
    assert [queue["queue"] for queue in answer("status", project.target)["queues"]] == ["default", "emails"]
    assert call("queues", "resume", project.target, "default").output == "default is resumed\n"
    assert call("queues", "resume", project.target, "default").output == "default was not paused\n"
    assert_one_line(call("queues", "pause", project.target, "email"), 1, "queue 'email' is not declared", "emails")


def test_tasks_are_listed_with_what_some_of_them_declare(tmp_path: Path, project: Project) -> None:
    source = """
from headgate import Headgate

app = Headgate("sqlite:///jobs.db")


@app.task(requires={"gpu", "eu"}, tags=["shop"], unique_key="{order}")
async def pay(order: str) -> None: ...


@app.task
async def other() -> None: ...
"""
    shop = Project(tmp_path, source)
    text = call("tasks", shop.target).output
    for part in ("requires", "eu, gpu", "tags", "shop", "unique key", "{order}"):
        assert part in text
    other, pay = answer("tasks", shop.target)
    assert (pay["requires"], pay["tags"], pay["unique_key"]) == (["eu", "gpu"], ["shop"], "{order}")
    assert (other["requires"], other["tags"], other["unique_key"]) == ([], [], None)
    assert "requires" not in call("tasks", project.target).output


def test_tasks_say_that_more_jobs_wait_than_they_count(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: of a task with 150,000 jobs behind those it said that none waits."""
    assert "first 100,000" not in call("tasks", project.target).output

    async def waiting(_: Admin) -> list[WaitingCount]:
        return [WaitingCount("default", "renamed", "ready", 100_000)]

    monkeypatch.setattr(Admin, "waiting", waiting)
    assert "these numbers are those of the first 100,000" in call("tasks", project.target).stderr


def test_a_queue_is_shown_with_its_declaration_and_the_keys_of_a_fair_one(tmp_path: Path, project: Project) -> None:
    source = """
from headgate import Headgate

app = Headgate("sqlite:///jobs.db")
app.queue("mail", fair_by="{tenant}", weights={"big": 3}, aging=90, concurrency=5)


@app.task(queue="mail")
async def send(tenant: str) -> None: ...
"""
    fair = Project(tmp_path, source)
    for tenant in ("small", "big", "big"):
        fair.enqueue("send", tenant)
    found = answer("queues", "show", fair.target, "mail")
    assert (found["queue"]["waiting"], found["queue"]["declared"]["fair_by"]) == (3, ["{tenant}"])
    assert found["keys"]["keys"][0] == {"key": "big", "waiting": 2, "weight": 3}
    text = call("queues", "show", fair.target, "mail", "--keys", "1").output
    for part in ("slots per node", "fair by", "{tenant}", "big: 3", "90.0 s", "1 of 2 keys"):
        assert part in text
    [line] = [line for line in call("queues", "list", fair.target).output.splitlines() if "mail" in line]
    assert line.rstrip().endswith("fair by {tenant}; aging 90.0 s")
    assert answer("queues", "list", fair.target)[1]["declared"]["aging"] == 90.0
    plain = call("queues", "show", fair.target, "default").output
    assert "by the kind of its tasks" in plain
    assert "Keys" not in plain
    # Another app has declared it.
    assert "does not declare the queue" not in plain
    fair.do(lambda app: app.admin.queues.pause("mail"))
    assert "This app does not declare the queue." in call("queues", "show", project.target, "mail").output
    assert_one_line(call("queues", "show", fair.target, "mial"), 1, "queue 'mial' is not declared")


def test_schedules_without_a_node_or_declaration_are_reported(project: Project) -> None:
    """An overdue one was listed as due "in 0.0 s" for ever."""
    newer = Project(project.path, 'from headgate import Headgate\n\napp = Headgate("sqlite:///jobs.db")\n')
    project.do(schedule_is_stored, running=True)
    (listed,) = answer("schedules", "list", project.target)
    assert (listed["is_overdue"], listed["problem"]) == (False, None)
    (listed,) = answer("schedules", "list", newer.target)
    assert (listed["is_overdue"], listed["problem"]) == (False, "code has declared it, but this app does not")
    connection = sqlite3.connect(project.path / "jobs.db")
    connection.execute(
        "UPDATE schedule SET next_at = next_at - 8640000000000, skipped = 'overlap', skipped_at = 7, skips = 41"
    )
    connection.commit()
    connection.close()
    (listed,) = answer("schedules", "list", newer.target)
    assert listed["problem"] == "overdue: this app does not declare task 'report'"
    text = call("schedules", "list", newer.target).output
    assert "overdue" in text
    assert "in 0.0 s" not in text
    assert "had not ended" in text
    assert " 41 " in text
    (listed,) = answer("schedules", "list", project.target)
    skipped = (listed["problem"], listed["skipped"], listed["skips"])
    assert skipped == ("overdue: no worker enqueues its jobs", "overlap", 41)
    assert [each["name"] for each in answer("status", newer.target)["overdue_schedules"]] == ["nightly"]
    assert "Overdue schedules" in call("status", newer.target).output
    assert answer("status", project.target)["overdue_schedules"] == []


def test_schedules_are_listed_paused_triggered_and_removed(project: Project) -> None:
    assert "no schedules are stored" in call("schedules", "list", project.target).output
    assert_one_line(call("schedules", "pause", project.target, "nightly"), 1, "no schedule 'nightly' is stored")
    # It is there once a worker was, and stays when that has gone.
    project.do(schedule_is_stored, running=True)
    [listed] = answer("schedules", "list", project.target)
    assert (listed["name"], listed["task"], listed["state"], listed["runs"]) == ("nightly", "report", "active", 0)
    assert listed["trigger"] == "cron 0 6 * * * (Europe/Rome)"
    text = call("schedules", "list", project.target).output
    assert "nightly" in text
    assert "at most 9 runs" in text
    runs = answer("schedules", "next", project.target, "nightly", "--count", "3")
    assert len(runs) == 3
    assert runs[0] == listed["next_run"]
    assert call("schedules", "pause", project.target, "nightly").output == "nightly is paused\n"
    assert call("schedules", "pause", "nightly", "-A", project.target).output == "nightly was paused already\n"
    assert "paused" in call("schedules", "list", project.target).output
    triggered = call("schedules", "trigger", project.target, "nightly").output
    job_id = triggered.strip().rpartition(" ")[2]
    assert triggered == f"nightly enqueued job {job_id}\n"
    [job] = answer("jobs", "show", project.target, job_id)
    assert (job["schedule"], job["payload"]) == ("nightly", {"tenant": "acme"})
    assert job["occurs_at"] is not None
    shown = call("jobs", "show", project.target, job_id).output
    assert ["nightly" in line for line in shown.splitlines() if line.strip().startswith("schedule")] == [True]
    assert project.do(lambda app: app.job(job_id).result(timeout=patient(15)), running=True) == "acme"
    assert call("schedules", "resume", project.target, "nightly").output == "nightly is resumed\n"
    assert call("schedules", "resume", project.target, "nightly").output == "nightly was not paused\n"
    assert answer("schedules", "list", project.target)[0]["runs"] == 1
    assert call("schedules", "remove", project.target, "nightly", "--yes").output == "nightly is removed\n"
    assert_one_line(
        call("schedules", "remove", project.target, "nightly", "--yes"), 1, "there is no schedule 'nightly'"
    )


def test_nodes_show_their_release_if_one_is_set(project: Project) -> None:
    async def join(app: Headgate) -> None:
        await store_of(app).join("node-1", "web:1")

    project.do(join)
    assert "release" not in call("nodes", "list", project.target).output

    async def deploy(app: Headgate) -> None:
        await store_of(app).join("node-2", "web:2", release="3f2c1ab")

    project.do(deploy)
    assert [node["release"] for node in answer("nodes", "list", project.target)] == [None, "3f2c1ab"]
    lines = call("nodes", "list", project.target).output.splitlines()
    assert [word for line in lines for word in line.split() if word in ("release", "3f2c1ab")] == ["release", "3f2c1ab"]
    assert next(line for line in lines if "node-2" in line).count("3f2c1ab") == 1


def test_status_shows_nodes_by_machine(project: Project) -> None:
    async def join(app: Headgate) -> None:
        for number, name in enumerate(("web-2:7", "web-1:1200", "web-1:31")):
            await store_of(app).join(f"node-{number}", name)

    project.do(join)
    nodes = answer("status", project.target)["nodes"]
    assert [(node["name"], node["state"]) for node in nodes] == [
        ("web-1:31", "alive"),
        ("web-1:1200", "alive"),
        ("web-2:7", "alive"),
    ]
    assert all(0 <= node["heartbeat_age"] < 60 for node in nodes)
    text = call("status", project.target).output
    assert text.index("web-1:31") < text.index("web-1:1200") < text.index("web-2:7")


OBSTRUCTED = """
from headgate import Headgate
from headgate.clock import SECOND, SystemClock
from headgate.storage.records import Blocker
from headgate.storage.sqlite.storage import SqliteStorage
from tests.internals import app_on


class BlockedStorage(SqliteStorage):
    async def blockers(self):
        return [Blocker("long transaction", 4711, self.now() - 600 * SECOND, "reports: SELECT 1")]


app = app_on(BlockedStorage("jobs.db", SystemClock()))
"""


def test_status_shows_the_blockers_of_the_store(project: Project) -> None:
    assert "In the way" not in call("status", project.target).output
    obstructed = Project(project.path, OBSTRUCTED)
    [blocker] = answer("status", obstructed.target)["blockers"]
    assert (blocker["kind"], blocker["pid"], blocker["what"]) == ("long transaction", 4711, "reports: SELECT 1")
    assert 600 <= blocker["age"] < 660
    shown = call("status", obstructed.target).output
    assert "In the way" in shown
    assert shown.split("In the way")[1].split()[-6:] == ["4711", "10", "min", "reports:", "SELECT", "1"]


def test_keys_and_errors_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("Keys", ("key",), [("[red]a[/red]\x1b[31m",), (None,)], empty="")
    printed = capsys.readouterr().out
    assert "[red]a[/red]\\x1b[31m" in printed
    assert "\x1b" not in printed


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert make_console().no_color


# ------------------------------------------------------------------------------------------- worker processes


def test_a_worker_on_memory_is_refused(tmp_path: Path, project: Project) -> None:
    lost = Project(tmp_path, 'from headgate import Headgate\napp = Headgate("memory://")\n')
    done = subprocess.run(
        [sys.executable, "-m", "headgate", "worker", lost.target],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: a worker process on memory:// never gets a job")
    assert len(done.stderr.splitlines()) == 1


def test_invalid_queues_are_refused(project: Project) -> None:
    assert_one_line(call("worker", project.target, "-q", "emails:none"), 2, "whole number")
    assert_one_line(call("worker", project.target, "-q", "eu:mail"), 2, "write one more, such as eu:emails:")
    assert_one_line(call("worker", project.target, "-q", "emails:0"), 2, "whole number")
    assert_one_line(call("worker", project.target, "-q", "emails", "-q", "emails:2"), 2, "given twice")
    done = subprocess.run(
        [sys.executable, "-m", "headgate", "worker", project.target, "-q", "unheard"],
        cwd=project.path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "uses queue 'unheard', which is not declared" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_worker_runs_jobs_until_sigterm_and_exits_0(project: Project) -> None:
    served, unserved = project.enqueue("sync", "acme", 7), project.enqueue("bad")
    with project.worker("-q", "default") as worker:
        assert project.result(served) == 7
        status = answer("status", project.target)
        assert [(node["state"], node["pid"]) for node in status["nodes"]] == [("alive", worker.pid)]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert "stopped" in lines_until(worker, "stopped")[-1]
    assert project.state(unserved) == (JobState.WAITING, 0)


@pytest.mark.slow
def test_a_job_that_runs_at_sigterm_finishes(project: Project) -> None:
    started, may_end = project.pipe(), project.pipe()
    for task, pipe in (("write", started), ("read", may_end)):
        project.enqueue(task, pipe)
    with project.worker() as worker:
        Path(started).read_text()
        # Opening waits until the handler reads.
        with Path(may_end).open("w") as reader:
            worker.send_signal(signal.SIGTERM)
            reader.write("go")
        assert worker.wait() == 0
    status = answer("status", project.target)
    assert [(queue["succeeded"], queue["waiting"]) for queue in status["queues"]] == [(2, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["forever", "read", "read_without_stderr"])
def test_a_second_signal_ends_a_worker_at_once(project: Project, task: str) -> None:
    """A thread cannot be stopped; a worker whose handler hangs in one has to end all the same.

    The fault: where a handler had closed stderr, it failed to log that, and did not end.
    """
    pipe = project.pipe()
    job = project.enqueue(task, pipe)
    with project.worker("--grace", "600") as worker:
        if task == "forever":
            Path(pipe).read_text()
            descriptor = None
        else:
            # Opened to write and never written: the handler keeps reading.
            descriptor = os.open(pipe, os.O_WRONLY)
        worker.send_signal(signal.SIGTERM)
        # Another one, since the kernel would merge two of the same.
        worker.send_signal(signal.SIGINT)
        assert worker.wait() == 0
        if descriptor is not None:
            os.close(descriptor)
    assert project.state(job) == (JobState.WAITING, 0)


@pytest.mark.slow
def test_a_handler_that_has_closed_stderr_can_log(project: Project) -> None:
    """The fault: `current_job().log.warning()` raised ValueError, and so did all others of this process."""
    jobs = [project.enqueue("log_without_stderr") for _ in range(2)]
    with project.worker("--drain") as worker:
        assert worker.wait(patient(15)) == 0
    assert [project.result(job) for job in jobs] == [7, 7]


@pytest.mark.slow
def test_a_grace_of_0_returns_running_jobs(project: Project) -> None:
    pipe = project.pipe()
    job = project.enqueue("forever", pipe)
    with project.worker("--grace", "0") as worker:
        Path(pipe).read_text()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0
    assert project.state(job) == (JobState.WAITING, 0)


@pytest.mark.slow
def test_a_worker_takes_nothing_from_a_queue_that_another_process_pauses(project: Project) -> None:
    with project.worker() as worker:
        assert project.result(project.enqueue("sync", "acme", 1)) == 1
        call("queues", "pause", project.target, "default")
        job = project.enqueue("sync", "globex", 2)
        # It serves the other queue, and so it has asked for jobs since.
        with pytest.raises(JobFailed):
            project.result(project.enqueue("bad"))
        assert project.state(job) == (JobState.WAITING, 0)
        call("queues", "resume", project.target, "default")
        assert project.result(job) == 2
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0


@pytest.mark.slow
def test_a_running_job_is_asked_to_end(project: Project) -> None:
    pipe = project.pipe()
    job = project.enqueue("forever", pipe)
    with project.worker() as worker:
        Path(pipe).read_text()
        assert call("jobs", "cancel", project.target, job).output == f"{job}: is running and was asked to end\n"
        with pytest.raises(Exception, match="was cancelled"):
            project.result(job)
        worker.send_signal(signal.SIGINT)
        assert worker.wait() == 0


@pytest.mark.slow
def test_several_processes_share_the_work_and_a_killed_one_is_started_again(project: Project) -> None:
    with project.worker("--processes", "2", "-q", "default:1") as parent:
        lines = lines_until(parent, "works on") + lines_until(parent, "works on")
        pids = {int(line.rsplit(" ", 1)[1]) for line in lines if "has pid" in line}
        assert len(pids) == 2
        assert _meet(project) == pids

        killed = min(pids)
        os.kill(killed, signal.SIGKILL)
        assert "ended with SIGKILL" in lines_until(parent, "is started again")[-1]
        restarted = int(lines_until(parent, "has pid")[-1].rsplit(" ", 1)[1])
        lines_until(parent, "works on")
        assert _meet(project) == {max(pids), restarted}

        parent.send_signal(signal.SIGTERM)
        assert parent.wait() == 0
    for pid in (max(pids), restarted):
        wait_for_end(pid)


@pytest.mark.slow
def test_several_processes_run_an_app_in_an_archive_of_zipapp(tmp_path: Path) -> None:
    """The fault: they ended with "there is no module 'shop'", which one process alone finds."""
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "shop.py").write_text(f"from headgate import Headgate\napp = Headgate('sqlite:///{tmp_path}/jobs.db')\n")
    (folder / "__main__.py").write_text("from headgate.cli.main import main\nmain()\n")
    zipapp.create_archive(folder, tmp_path / "shop.pyz")
    shutil.rmtree(folder)
    command = [sys.executable, "shop.pyz", "worker", "shop:app", "--processes", "2"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as parent:
        try:
            lines_until(parent, "works on")
            lines_until(parent, "works on")
            parent.send_signal(signal.SIGTERM)
            assert parent.wait(timeout=patient(15)) == 0
        finally:
            parent.kill()


def _meet(project: Project) -> set[int]:
    """The processes of two jobs that can only end together, each in a process with one slot."""
    pipe = project.pipe()
    writer, reader = project.enqueue("write", pipe), project.enqueue("read", pipe)
    return {project.result(writer), project.result(reader)}


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(project: Project) -> None:
    with project.worker("--processes", "2") as parent:
        lines = lines_until(parent, "works on") + lines_until(parent, "works on")
        parent.kill()
        for line in lines:
            if "has pid" in line:
                wait_for_end(int(line.rsplit(" ", 1)[1]))
    assert answer("status", project.target)["nodes"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("code", "ends_with", "lives"), [(7, KEPT_DYING, supervisor.SHORT_LIVES), (1, 1, 1)])
async def test_workers_that_keep_dying_are_not_restarted(
    code: int, ends_with: int, lives: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1 in the first life says that it can never start, so it is not tried again."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.001)
    born = tmp_path / "born"
    command = [sys.executable, "-c", f"open({str(born)!r}, 'a').write('.'); raise SystemExit({code})"]
    assert await Supervisor(command, 1, SystemClock()).run() == ends_with
    assert len(born.read_text()) == lives


def test_limits_are_changed_from_the_command_line_and_the_backlog_follows(project: Project) -> None:
    async def fill(app: Headgate) -> str:
        jobs = await app.tasks["sync"].enqueue_many([("acme", page) for page in range(6)])
        await result_within(jobs[1])
        return jobs[-1].id

    job = project.do(fill, running=True)
    said = call("jobs", "explain", project.target, job).output
    assert "it waits for limit 'sync:rate' (2/m) of key 'acme': 4th in line, runs about" in said
    assert answer("jobs", "explain", project.target, job)[0]["limits"][0]["available"] == 0

    assert "is now 4/m" in call("limits", "set", project.target, "sync:rate", "4/m", "--key", "acme").output
    [bucket] = answer("limits", "list", project.target)
    assert (bucket["used"], bucket["available"], bucket["is_set"]) == (2, 2, True)
    assert bucket["setting"].startswith(f"set for key 'acme' by {this_process()} since 20")
    assert bucket["setting"].endswith(" UTC; the code says 2/m + 0.02s")
    assert "the code says" in " ".join(
        call("limits", "show", project.target, "sync:rate", "--key", "acme").output.split()
    )
    [setting] = answer("limits", "settings", project.target)
    assert (setting["words"], setting["declared"], setting["set_by"]) == ("4/m + 0.02s", "2/m + 0.02s", this_process())
    assert "4/m" in call("limits", "settings", project.target).output
    assert (setting[:3] if isinstance(setting, list) else [setting["limit"], setting["scope"], setting["target"]]) == [
        "sync:rate",
        "key",
        "acme",
    ]

    def have_run(count: int) -> Callable[[Headgate], Awaitable[None]]:
        async def proceed(app: Headgate) -> None:
            async def have_run() -> bool:
                return (await app.admin.counts())[0].succeeded == count

            await until(have_run)

        return proceed

    project.do(have_run(4), running=True)
    assert call("limits", "audit", project.target, "sync:rate").output.count("within limit") == 1

    assert "uses the declared rule" in call("limits", "unset", project.target, "sync:rate", "--key", "acme").output
    assert "nothing was set" in call("limits", "unset", project.target, "sync:rate").output
    call("limits", "pause", project.target, "sync:rate")
    explained = " ".join(call("jobs", "explain", project.target, job).output.split())
    assert f"is paused for all keys by {this_process()} since 20" in explained
    assert "UTC; resume it with `headgate limits resume sync:rate`" in explained
    doctor = " ".join(call("doctor", project.target).output.split())
    assert f"is paused for all keys by {this_process()} since 20" in doctor
    assert f"do: end the pause, if it is over: headgate limits resume -A {project.target} sync:rate" in doctor
    unpaused = call("limits", "resume", project.target, "sync:rate", "--key", "acme").output
    assert "was not paused for key 'acme'. It is paused for all keys: `headgate limits resume sync:rate`" in unpaused
    call("limits", "resume", project.target, "sync:rate")
    call("limits", "reset", project.target, "sync:rate", "--key", "acme")
    project.do(have_run(6), running=True)
    audit = call("limits", "audit", project.target, "sync:rate")
    assert audit.exit_code == 1
    assert "EXCEEDED" in audit.output
    assert (
        "is closed for 60 s" in call("limits", "penalize", project.target, "sync:rate", "60", "--key", "globex").output
    )
    assert "penalized" in call("limits", "list", project.target).output
    call("limits", "assign", project.target, "sync:rate", "vip:*", "gold")
    call("limits", "set", project.target, "sync:rate", "9/m", "--tier", "gold")
    assert "is removed" in call("limits", "remove", project.target, "sync:rate", "--yes").output
    assert answer("limits", "settings", project.target) == []
    for words in (["set", "sync:rate"], ["pause", "nothing"], ["set", "sync:rate", "often"]):
        assert call("limits", words[0], project.target, *words[1:]).exit_code != 0


# --------------------------------------------------------------------------------------------------- migrate


def test_migrate_creates_the_tables_once_and_a_dry_run_lists_them(project: Project) -> None:
    file = project.path / "jobs.db"
    file.unlink()
    missing = call("migrate", project.target, "--dry-run")
    assert (missing.exit_code, missing.output) == (3, "missing: 0001 initial\n")
    assert not file.exists()
    made = call("migrate", project.target)
    assert (made.exit_code, made.output) == (0, "applied: 0001 initial\n")
    before = file.read_bytes()
    for options in (("--dry-run",), ()):
        done = call("migrate", project.target, *options)
        assert (done.exit_code, done.output) == (0, "up to date\n")
        assert not options or file.read_bytes() == before
    assert project.state(project.enqueue("sync", "acme"))[0] is JobState.WAITING


def test_migrate_refuses_a_schema_of_a_newer_release(project: Project) -> None:
    call("migrate", project.target)
    with sqlite3.connect(project.path / "jobs.db") as file:
        file.execute("INSERT INTO migration VALUES (999, 'moved', 'x', 0)")
    file.close()
    for options in ((), ("--dry-run",)):
        assert_one_line(call("migrate", project.target, *options), 1, "migration 999 'moved' is unknown here")


def test_migrate_has_nothing_to_do_in_memory(tmp_path: Path, project: Project) -> None:
    in_memory = Project(tmp_path, "from headgate import Headgate\napp = Headgate('memory://')\n")
    assert call("migrate", in_memory.target).output == "up to date\n"


@pytest.mark.parametrize(
    "words", ["status", "jobs list", "tasks", "queues pause default", "schedules list", "top --count 1"]
)
def test_no_command_answers_for_jobs_in_the_memory_of_another_process(
    tmp_path: Path, project: Project, words: str
) -> None:
    """The fault: it answered for an empty store of its own, and a pause of that was reported as done."""
    in_memory = Project(tmp_path, "from headgate import Headgate\napp = Headgate('memory://')\n")
    result = call(*words.split(), "-A", in_memory.target)
    assert_one_line(result, 1, "jobs on memory:// are in the memory of the program that enqueues them")


def test_migrate_creates_the_tables_in_a_postgres(tmp_path: Path, project: Project, postgres_url: str) -> None:
    schema = f"headgate_{uuid.uuid4().hex[:16]}"
    source = f"from headgate import Headgate\napp = Headgate({postgres_url!r}, schema={schema!r})\n"
    there = Project(tmp_path, source)
    assert call("migrate", there.target, "--dry-run").exit_code == 3
    assert call("migrate", there.target).output == "applied: 0001 initial\n"
    assert call("migrate", there.target, "--dry-run").output == "up to date\n"

    async def drop() -> None:
        connection = await asyncpg.connect(postgres_url)
        await connection.execute(f"DROP SCHEMA {schema} CASCADE")
        await connection.close()

    asyncio.run(drop())


def test_the_next_occurrence_of_a_schedule_is_skipped(project: Project) -> None:
    project.do(schedule_is_stored, running=True)
    first, second = answer("schedules", "next", project.target, "nightly", "--count", "2")
    assert answer("schedules", "skip", project.target, "nightly")["left_out"] == first
    assert answer("schedules", "next", project.target, "nightly", "--count", "1") == [second]


@pytest.mark.slow
def test_a_worker_prints_its_state_on_sigusr1_and_continues(project: Project) -> None:
    with project.worker() as worker:
        lines_until(worker, "works on")
        worker.send_signal(signal.SIGUSR1)
        received = lines_until(worker, "Stack for <Task")
        assert any("Thread MainThread" in line for line in received)
        assert any("Thread headgate-sqlite-writer" in line for line in received)
        worker.send_signal(signal.SIGTERM)
        lines_until(worker, "stopped")
        assert worker.wait(timeout=patient(15)) == 0


@pytest.mark.slow
def test_a_worker_whose_log_nobody_reads_any_more_continues_after_sigusr1(tmp_path: Path, project: Project) -> None:
    """The fault: the BrokenPipeError of the stacks was raised out of the event loop of asyncio, and ended it."""
    project = Project(tmp_path, f"import sys\nsys.modules['uvloop'] = None\n{APP}")
    with project.worker() as worker:
        lines_until(worker, "works on")
        assert worker.stderr is not None
        worker.stderr.close()
        worker.send_signal(signal.SIGUSR1)
        assert project.result(project.enqueue("sync", "acme")) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("options", "started"), [(["--processes", "1", "--reload"], 1), (["--processes", "2"], 2)])
def test_a_parent_passes_sigusr1_to_its_workers(project: Project, options: list[str], started: int) -> None:
    """The fault: the signal ended the parent, and so its workers, whose running jobs were returned."""
    with project.worker(*options) as parent:
        early = lines_until(parent, "worker 1 has pid" if started == 2 else "watching")
        # A worker that is not ready for it ignores it.
        parent.send_signal(signal.SIGUSR1)
        for _ in range(started):
            early += lines_until(parent, "works on")
        assert not any("SIGUSR1" in line for line in early)
        parent.send_signal(signal.SIGUSR1)
        for _ in range(started):
            lines_until(parent, "Thread headgate-sqlite-writer")
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(timeout=patient(15)) == 0
