"""`headgate jobs enqueue`: what is enqueued from the command line, and what is refused as a program would be."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import uuid
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headgate import Headgate, PayloadError, StorageUnavailable
from headgate.admin import JobDetails
from headgate.cli.enqueue import CHUNK
from headgate.cli.main import main
from headgate.client.client import Client
from headgate.jobs.job import RetentionTerms
from tests.faces.one_module import make_tables
from tests.until import patient

APP = """
import asyncio
import signal
from dataclasses import dataclass
from datetime import date

from headgate import Handler, Headgate, StrictRate

app = Headgate("sqlite:///jobs.db", synchronous="OFF", history=False)
app.queue("mail")


@app.task
async def sync(tenant: str, page: int = 1, since: date | None = None) -> None: ...


@app.task
async def only(tenant: str, /, page: int) -> None: ...


def stopping_key(tenant: str) -> str:
    if tenant == "stop" and asyncio._get_running_loop() is not None:
        signal.raise_signal(signal.SIGINT)
    return tenant


@app.task(limits=[StrictRate("5/s", key=stopping_key)])
async def stopped(tenant: str) -> None: ...


@app.task(unique_key="{document}")
async def index(document: str) -> None: ...


@app.task(limits=[StrictRate("5/s", key="{tenant}", cost="{page}", on_missing_key="fail")])
async def charged(tenant: str, page: int) -> None: ...


@dataclass
class Order:
    number: int


@app.handler
class Ship(Handler[Order]):
    async def run(self, payload: Order) -> None: ...
"""


class Project:
    def __init__(self, path: Path, source: str = APP) -> None:
        self.path = path
        self.name = f"enqueued_{uuid.uuid4().hex}"
        (path / f"{self.name}.py").write_text(source)
        self.target = f"{self.name}:app"

    @property
    def app(self) -> Headgate:
        app: Headgate = importlib.import_module(self.name).app
        return app

    def enqueue(self, *words: str, input: str | None = None) -> Result:
        return CliRunner().invoke(main, ["jobs", "enqueue", self.target, *words], input=input)

    def stored(self) -> list[JobDetails]:
        async def look() -> list[JobDetails]:
            async with self.app.open():
                admin = self.app.admin
                return [await admin.job(job.id) for job in await admin.jobs(count=500, oldest_first=True)]

        return asyncio.run(look())

    def payloads(self) -> list[Any]:
        return [json.loads(job.record.payload) for job in self.stored()]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delenv("HEADGATE_APP", raising=False)
    make_tables(tmp_path)
    return Project(tmp_path)


def test_a_job_is_enqueued_and_its_id_is_all_that_is_printed(project: Project) -> None:
    result = project.enqueue("sync", "--payload", '{"tenant": "acme", "since": "2026-05-01"}')
    assert result.exit_code == 0, result.output
    [job] = project.stored()
    assert result.stdout == f"{job.record.id}\n"
    assert project.app.tasks["sync"].payload.arguments(job.record.payload) == {
        "tenant": "acme", "page": 1, "since": date(2026, 5, 1)
    }  # fmt: skip


def test_what_was_enqueued_is_in_the_audit_log(project: Project) -> None:
    """The fault: only what was enqueued in the dashboard was recorded."""
    words = ("sync", "--payload", '{"tenant": "a"}')
    id = project.enqueue(*words, "--unique-key", "a").stdout.strip()
    # Neither what was there already, nor a job whose audit level leaves out what operators do.
    assert project.enqueue(*words, "--unique-key", "a").stdout.strip() == id
    assert project.enqueue(*words, "--audit", "none", "--json").exit_code == 0
    lines = "\n".join(json.dumps({"tenant": str(number)}) for number in range(CHUNK + 1))
    assert project.enqueue("sync", "--payloads", "-", "--queue", "mail", input=lines).exit_code == 0
    recorded = json.loads(CliRunner().invoke(main, ["audit", project.target, "--json"]).stdout)
    assert [(each["action"], each["kind"], each["subject"], each["detail"]) for each in recorded] == [
        ("enqueue", "queue", "mail", "1 job of task sync"),
        ("enqueue", "queue", "mail", f"{CHUNK} jobs of task sync"),
        ("enqueue", "job", id, None),
    ]


def test_options_are_those_of_using(project: Project) -> None:
    result = project.enqueue(
        "sync", "--payload", '{"tenant": "acme"}', "--queue", "mail", "--at", "2126-05-01T08:00", "--priority", "7",
        "--unique-key", "acme", "--header", "source=import", "--header", "by=ada=1", "--timeout", "2m",
        "--expires-at", "2126-06-01T08:00+02:00", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    [job] = project.stored()
    assert (printed["id"], printed["task"], printed["is_scheduled"]) == (job.record.id, "sync", True)
    assert (job.status.queue, job.status.priority, job.record.unique_key) == ("mail", 7, "acme")
    assert job.status.run_at == datetime(2126, 5, 1, 8, tzinfo=UTC)
    assert job.record.headers == {"source": "import", "by": "ada=1"}
    assert job.record.options is not None
    assert job.record.options.timeout == 120
    assert printed["is_new"]
    again = project.enqueue("sync", "--payload", '{"tenant": "x"}', "--unique-key", "acme")
    assert again.stdout.split() == [printed["id"]]
    assert again.stderr == "no new job was enqueued: this one was there, with its unique key or its id\n"
    again = project.enqueue("sync", "--payload", '{"tenant": "x"}', "--unique-key", "acme", "--json")
    assert not json.loads(again.stdout)["is_new"]
    refused = project.enqueue("sync", "--payload", '{"tenant": "x"}', "--unique-key", "acme", "--on-conflict", "raise")
    assert refused.exit_code == 1
    assert "already stands under unique_key='acme'" in refused.stderr


def test_retention_results_retries_and_audit_are_options_too(project: Project) -> None:
    options = ("--expires-in", "2h", "--retention", "succeeded=0,failed=30d", "--no-keep-result", "--retries", "0")
    more = ("--audit", "errors", "--unique-key", "acme", "--unique-while", "waiting")
    assert project.enqueue("sync", "--payload", '{"tenant": "acme"}', *options, *more).exit_code == 0
    assert project.enqueue("only", "--payload", '{"tenant": "x", "page": 1}', "--retention", "forever").exit_code == 0
    records = {job.record.task: job.record for job in project.stored()}
    record, forever = records["sync"], records["only"].options
    assert record.options is not None
    assert record.options.retention == RetentionTerms(0, 30 * 86400, 7 * 86400, 7 * 86400)
    assert record.options.retry is not None
    assert (record.options.keep_result, record.options.retry.retries, record.audit.word) == (False, 0, "errors")
    assert record.expires_at is not None
    assert abs(record.expires_at - record.enqueued_at - 7200 * 10**6) < 10**6
    assert forever is not None
    assert forever.retention == RetentionTerms(None, None, None, None)
    refused = project.enqueue("sync", "--payload", '{"tenant": "y"}', "--retention", "running=1h")
    assert (refused.exit_code, "retention has no entry 'running'" in refused.stderr) == (1, True)


def test_an_id_a_reserved_key_and_a_debounced_start_are_options_too(project: Project) -> None:
    name = "0190f6d2-7a3c-7e1b-8a53-3f1b7c1d2e4f"
    for _ in range(2):
        result = project.enqueue(
            "sync", "--payload", '{"tenant": "acme"}', "--id", name, "--unique-key", "acme", "--unique-for", "1h"
        )
        assert result.exit_code == 0, result.output
        assert result.stdout == f"{name}\n"
    assert len(project.stored()) == 1
    refused = project.enqueue("sync", "--payload", '{"tenant": "acme"}', "--id", "invoice-17")
    assert refused.exit_code == 1
    assert "is not a UUID" in refused.stderr
    debounced = project.enqueue(
        "sync", "--payload", '{"tenant": "x"}', "--unique-key", "x", "--debounce", "5m", "--debounce-max", "1h",
        "--json",
    )  # fmt: skip
    assert json.loads(debounced.stdout)["is_scheduled"]
    assert project.enqueue("sync", "--payloads", "-", "--id", name, input="{}\n").exit_code == 2


@pytest.mark.parametrize(
    ("task", "payload", "said"),
    [
        ("sync", "{}", "task 'sync' lacks argument 'tenant'"),
        ("sync", '{"tenant": 7}', "argument 'tenant' of task 'sync' does not fit its annotation"),
        ("sync", '{"tenant": "a", "since": "May"}', "argument 'since' of task 'sync' does not fit its annotation"),
        ("sync", '{"tenant": "a", "pge": 2}', "has no argument 'pge'; it has: tenant, page, since"),
        ("sync", '["a"]', "must be a JSON object"),
        ("sync", '{"tenant"', "are not JSON"),
        (
            "snyc",
            "{}",
            "declares no task 'snyc'; did you mean 'sync'? It declares: Ship, charged, index, only, stopped, sync",
        ),
    ],
)
def test_jobs_that_enqueue_refuses_are_reported_in_one_line(
    project: Project, task: str, payload: str, said: str
) -> None:
    result = project.enqueue(task, "--payload", payload)
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert said in line
    assert project.stored() == []


def test_arguments_that_follow_the_task_are_refused_with_the_option_for_them(project: Project) -> None:
    """The fault: the error said only that the app was named, which sent people to the name of the app."""
    result = project.enqueue("sync", "acme")
    assert (result.exit_code, "its arguments are --payload '{…}'" in result.stderr) == (2, True)


def test_a_payload_may_come_from_stdin_over_several_lines(project: Project) -> None:
    assert project.enqueue("sync", "--payload", "-", input='{"tenant":\n  "acme"}\n').exit_code == 0
    assert project.payloads() == [{"tenant": "acme"}]


def test_handlers_and_positional_arguments_are_enqueued_in_the_printed_form(project: Project) -> None:
    assert project.enqueue("only", "--payload", '{"tenant": "acme", "page": 2}').exit_code == 0
    assert project.enqueue("Ship", "--payload", '{"payload": {"number": 5}}').exit_code == 0
    assert project.payloads() == [{"tenant": "acme", "page": 2}, {"payload": {"number": 5}}]


def test_many_are_enqueued_from_lines(project: Project) -> None:
    lines = "\n\n".join(f'{{"tenant": "{n}"}}' for n in range(3))
    result = project.enqueue("sync", "--payloads", "-", input=lines)
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == [job.record.id for job in project.stored()]
    assert [each["tenant"] for each in project.payloads()] == ["0", "1", "2"]
    Path("more.ndjson").write_text('{"tenant": "3"}\n')
    printed = json.loads(project.enqueue("sync", "--payloads", "more.ndjson", "--json").stdout)
    assert printed["enqueued"] == 1
    assert printed["ids"] == [project.stored()[-1].record.id]


def test_lines_whose_jobs_were_there_are_not_counted_as_enqueued(project: Project) -> None:
    """The fault: a repeated import enqueued nothing, and said that all of it was enqueued."""
    lines = '{"document": "a"}\n{"document": "b"}\n'
    first = json.loads(project.enqueue("index", "--payloads", "-", "--json", input=lines[:18]).stdout)
    assert first["enqueued"] == 1
    again = project.enqueue("index", "--payloads", "-", "--json", input=lines)
    printed = json.loads(again.stdout)
    assert (printed["enqueued"], printed["ids"][0], len(printed["ids"])) == (1, first["ids"][0], 2)
    assert again.stderr == "1 line enqueued no new job: one with the same unique key was there\n"


def test_a_key_that_stays_taken_beyond_its_job_is_no_error(project: Project) -> None:
    """The fault: with --json, the command failed because the job was not found."""
    words = ("sync", "--payload", '{"tenant": "a"}', "--unique-key", "a", "--unique-for", "1h")
    id = project.enqueue(*words).stdout.strip()
    for verb in (["jobs", "cancel", project.target, id], ["purge", project.target, "--all", "--yes"]):
        assert CliRunner().invoke(main, verb).exit_code == 0
    again = project.enqueue(*words, "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout) == {"id": id, "is_new": False}


def test_a_bad_line_ends_the_command_which_reports_the_stored_jobs(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.cli.enqueue.CHUNK", 2)
    lines = '{"tenant": "0"}\n{"tenant": "1"}\n{"tenant": "2"}\n{"tenant": 3}\n'
    tried = project.enqueue("sync", "--payloads", "-", "--dry-run", input=lines)
    assert tried.exit_code == 1
    assert tried.stderr.startswith("Error: line 4: argument 'tenant'")
    assert project.stored() == []
    result = project.enqueue("sync", "--payloads", "-", input=lines)
    assert result.exit_code == 1
    assert result.stderr.startswith("stopped: 2 jobs of the first lines enqueued\nError: line 4: ")
    assert [each["tenant"] for each in project.payloads()] == ["0", "1"]
    assert json.loads(project.enqueue("sync", "--payloads", "-", "--dry-run", "--json", input=lines[:16]).stdout) == {
        "would_enqueue": 1
    }


def test_ctrl_c_finishes_storing_and_prints_the_stored_jobs(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.cli.enqueue.CHUNK", 2)
    lines = "".join(f'{{"tenant": "{tenant}"}}\n' for tenant in ("0", "1", "stop", "3", "4"))
    result = project.enqueue("stopped", "--payloads", "-", input=lines)
    assert result.exit_code == 130
    assert result.stderr == "stopped: 4 jobs of the first lines enqueued\n"
    assert result.stdout.split() == [job.record.id for job in project.stored()]
    assert [each["tenant"] for each in project.payloads()] == ["0", "1", "stop", "3"]


def test_a_second_ctrl_c_ends_it_immediately_and_reports_what_is_unknown(project: Project) -> None:
    result = project.enqueue("stopped", "--payloads", "-", input='{"tenant": "stop"}\n{"tenant": "stop"}\n')
    assert result.exit_code == 130
    assert result.stderr == (
        "stopped: 0 jobs of the first lines enqueued; the jobs of the following lines may be, too\n"
    )


def test_a_lost_store_leaves_unknown_which_lines_it_has_stored(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: "stopped: 0 jobs enqueued" after a commit whose reply was lost; a repeat enqueued them twice."""
    enqueue = Client.enqueue

    async def losing(self: Client, *given: Any) -> Any:
        await enqueue(self, *given)
        raise StorageUnavailable("the connection was lost")

    monkeypatch.setattr(Client, "enqueue", losing)
    result = project.enqueue("sync", "--payloads", "-", input='{"tenant": "acme"}\n')
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "stopped: 0 jobs of the first lines enqueued; the jobs of the following lines may be, too",
        "Error: the connection was lost",
    ]


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ('{"tenant": "", "page": 1}', "its key is empty"),
        ('{"tenant": "a", "page": -1}', "costs -1; a cost is a whole number from 1"),
        ('{"tenant": "a", "page": 6}', "6"),
    ],
)
def test_a_dry_run_refuses_what_the_limits_of_the_task_refuse(project: Project, payload: str, said: str) -> None:
    tried = project.enqueue("charged", "--payload", payload, "--dry-run")
    assert (tried.exit_code, tried.stderr) == (1, project.enqueue("charged", "--payload", payload).stderr)
    assert said in tried.stderr
    lines = f'{{"tenant": "a", "page": 5}}\n{payload}\n'
    assert project.enqueue("charged", "--payloads", "-", "--dry-run", input=lines).stderr.startswith("Error: line 2: ")
    assert project.stored() == []


@pytest.mark.parametrize("time", ["nan", "inf", "-5", "-5m", "1e400", "37000d", "soon"])
@pytest.mark.parametrize("option", ["--delay", "--timeout"])
def test_an_invalid_duration_is_a_usage_error(project: Project, option: str, time: str) -> None:
    result = project.enqueue("sync", "--payload", '{"tenant": "acme"}', f"{option}={time}")
    assert result.exit_code == 2
    assert f"{time!r} is not a duration" in result.stderr


def test_lines_that_would_all_be_one_job_are_refused(project: Project) -> None:
    result = project.enqueue("sync", "--payloads", "-", "--unique-key", "acme", input='{"tenant": "0"}\n' * 2)
    assert result.exit_code == 2
    assert "all lines would be one job" in result.stderr
    assert project.stored() == []


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_jobs_whose_ids_cannot_be_printed_are_reported_as_stored(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    Path("one.ndjson").write_text('{"tenant": "0"}\n')
    with open("/dev/full", "w") as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended:
            main(["jobs", "enqueue", project.target, "sync", "--payloads", "one.ndjson", *words])
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines()[0] == "stopped: 1 job of the first lines enqueued"


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_job_whose_id_cannot_be_printed_is_named_on_stderr(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    first = project.enqueue("sync", "--payload", '{"tenant": "0"}').stdout.strip()
    enqueuing = ["enqueue", project.target, "sync", "--payload", '{"tenant": "0"}']
    for verb in (enqueuing, ["run-again", project.target, first]):
        with monkeypatch.context() as patch, open("/dev/full", "w") as full:  # noqa: PTH123
            patch.setattr(sys, "stdout", full)
            with pytest.raises(SystemExit) as ended:
                main(["jobs", *verb, *words])
            with contextlib.suppress(OSError):
                full.close()
        assert ended.value.code == 1
        stored = project.stored()[-1].record.id
        assert capsys.readouterr().err.startswith(f"job {stored} is enqueued\nError: [Errno 28]")


@pytest.mark.slow
def test_ctrl_c_ends_it_while_no_line_comes(project: Project) -> None:
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "headgate", "jobs", "enqueue", project.target, "sync", "--payloads", "-"],
        stdin=reading, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            os.close(reading)
            os.write(writing, b'{"tenant": "0"}\n' * CHUNK)
            assert process.stdout is not None
            for _ in range(CHUNK):
                process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=patient(15))
        finally:
            process.kill()
            os.close(writing)
    assert process.returncode == 130
    assert errors == f"stopped: {CHUNK} jobs of the first lines enqueued\n"


def test_jobs_are_not_enqueued_into_memory(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Project(tmp_path, APP.replace("sqlite:///jobs.db", "memory://"))
    assert "jobs on memory:// are in the memory of the" in lost.enqueue("sync", "--payload", '{"tenant": "a"}').stderr
    Path("jobs.db").unlink()
    assert "there is no file" in project.enqueue("sync", "--payload", '{"tenant": "a"}').stderr


def test_a_payload_that_is_parsed_is_what_a_call_would_be(project: Project) -> None:
    payload = project.app.tasks["sync"].payload
    assert payload.parse(b'{"tenant": "a", "since": "2026-05-01"}') == ([], {"tenant": "a", "since": date(2026, 5, 1)})
    with pytest.raises(PayloadError, match="lacks argument 'tenant'"):
        payload.parse("{}")
