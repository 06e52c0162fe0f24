"""The command line under hostile words, inputs, outputs and stores: one clear error, nothing lost, no traceback."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from prometheus_client import CollectorRegistry

from headgate.admin import Admin
from headgate.cli import output
from headgate.cli.main import main
from headgate.cli.output import print_json, print_table
from headgate.errors import HeadgateError, StorageUnavailable
from headgate.observe.metrics import PrometheusMetrics
from headgate.storage.sqlite.storage import SqliteStorage
from tests.faces.one_module import OneModule, answer, call, go_into

APP = """
from headgate import Headgate, StrictRate

app = Headgate("sqlite:///jobs.db", synchronous="OFF", history=False)


@app.task
async def sync(tenant: str) -> None: ...


@app.task(limits=[StrictRate("15/m", key="{tenant}", name="stripe")])
async def charge(tenant: str = "ALL") -> None: ...
"""

CONTROL = "\x1b[31m\x9b1m\u202e"
"""What colours a terminal, in both encodings of its escape sequences, and what turns the direction of text."""

HALF = "a\udcff"
"""How Python passes an argument that is not UTF-8."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneModule:
    go_into(tmp_path, monkeypatch)
    return OneModule(tmp_path, APP)


def assert_refused(result: Result, code: int, *parts: str) -> None:
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    error = result.stderr.splitlines()[-1]
    assert error.startswith("Error: ")
    for part in parts:
        assert part in error


# --------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    "words",
    [
        ["status", "APP", CONTROL],
        ["status", "-A", "APP", CONTROL],
        ["status", f"--{CONTROL}"],
        [f"--{CONTROL}"],
        ["jobs", "list", "APP", "--state", CONTROL],
        ["dashboard", "APP", "--root-path", CONTROL],
        ["limits", "penalize", "APP", "sync", CONTROL],
        ["simulate", "--limit", CONTROL],
        ["status", f"{CONTROL}:app"],
    ],
)
def test_words_that_an_error_quotes_cannot_control_the_terminal(project: OneModule, words: Sequence[str]) -> None:
    result = call(*(project.target if word == "APP" else word for word in words))
    assert result.exit_code in (1, 2)
    assert result.stdout == ""
    assert not set(CONTROL) - {"[", "3", "1", "m"} & set(result.stderr)
    assert r"\x1b[31m" in result.stderr


def test_titles_and_columns_of_a_table_are_text_without_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """A title with `[/x]` raised MarkupError, and one with `[bold]` was printed without it."""
    print_table(f"[/x] :bug: {CONTROL}", ("[/y]",), [("[/z]" * 20,)], empty="none")
    title, column, cell = (line for line in capsys.readouterr().out.splitlines() if set(line) - {" ", "─"})
    assert title.strip() == r"[/x] :bug: \x1b[31m\x9b1m\u202e"
    assert (column.strip(), cell.strip()) == ("[/y]", "[/z]" * 20)


def test_the_text_of_a_console_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    output.make_console().print("[bold]:bug:")
    assert capsys.readouterr().out == "[bold]:bug:\n"


def test_json_controls_no_terminal_and_may_hold_what_is_not_utf8(capsys: pytest.CaptureFixture[str]) -> None:
    for given in ({"key": f"é{CONTROL}😀"}, {"key": f"{HALF}é", "at": [1, None, 0.5]}):
        print_json(given)
        printed = capsys.readouterr().out
        assert json.loads(printed) == given
        assert printed.replace("\n", "").isprintable()
    print_json({"key": "é😀"}, as_line=True)
    assert capsys.readouterr().out == '{"key":"é😀"}\n'


def test_json_is_escaped_for_an_output_of_ascii_without_other_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of more than 4,300 digits could not be printed, and those above a float's range became Infinity."""
    import msgspec

    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    print_json({"key": "é😀", "payload": msgspec.Raw(b"[1e400,2.50,%s]" % (b"9" * 5000))}, as_line=True)
    sys.stdout.flush()
    assert written.getvalue() == rb'{"key":"\u00e9\ud83d\ude00","payload":[1e400,2.50,%s]}' % (b"9" * 5000) + b"\n"


def test_json_that_is_too_deep_for_lines_is_printed_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    import msgspec

    deep = "[" * 50_000 + "]" * 50_000
    print_json({"payload": msgspec.Raw(deep.encode())})
    assert capsys.readouterr().out == f'{{"payload":{deep}}}\n'


def test_an_id_that_is_not_utf8_does_not_hide_what_happened_to_the_others(project: OneModule) -> None:
    id = project.enqueue("sync", "acme")
    result = call("jobs", "cancel", project.target, id, HALF, "--json")
    assert result.exit_code == 1
    assert [(each["id"], each["ok"]) for each in json.loads(result.stdout)] == [(id, True), (HALF, False)]


@pytest.mark.parametrize("option", ["--error", "--queue", "--task", "--batch", "--schedule", "--node"])
@pytest.mark.parametrize("words", [["jobs", "cancel"], ["jobs", "delete"], ["jobs", "list"]])
def test_an_empty_selection_selects_nothing_by_accident(project: OneModule, words: list[str], option: str) -> None:
    """`--error "$TYPE"` without a value selected all jobs that have failed."""
    changing = [] if words[-1] == "list" else ["--yes"]
    assert_refused(call(*words, project.target, option, "", *changing), 2, f"{option} is empty")


def test_an_empty_selection_deletes_nothing(project: OneModule) -> None:
    refused = call("purge", project.target, "--older-than", "1s", "--error", "", "--yes")
    assert_refused(refused, 2, "--error is empty")


@pytest.mark.parametrize("payload", ["", "-"])
def test_an_empty_payload_is_not_that_of_the_defaults(project: OneModule, payload: str) -> None:
    """`--payload "$ARGS"` without a value enqueued a job for all tenants."""
    for words in (["jobs", "enqueue", "charge"], ["schedules", "create", "nightly", "charge", "--every", "1h"]):
        refused = call(*words, "--payload", payload, "-A", project.target)
        assert_refused(refused, 1, "the arguments of task 'charge' are not JSON")
    assert answer("jobs", "list", project.target) == answer("schedules", "list", project.target) == []


@pytest.mark.parametrize(
    "words", [["pause"], ["resume"], ["set", "5/m"], ["unset"], ["assign", "acme"]], ids=lambda words: str(words[0])
)
def test_an_empty_tier_is_refused(project: OneModule, words: list[str]) -> None:
    """`--tier "$TIER"` without a value said that it was paused, and paused nothing."""
    verb, *rest = words
    tier = [""] if verb == "assign" else ["--tier", ""]
    assert_refused(call("limits", verb, project.target, "stripe", *rest, *tier), 1, "tier='' is no name of a tier")
    assert answer("limits", "settings", project.target) == []


@pytest.mark.parametrize(
    "words",
    [["jobs", "count", "APP", "--most"], ["purge", "APP", "--all", "--yes", "--most"], ["audit", "APP", "--before"]],
)
def test_a_number_that_no_database_holds_is_as_good_as_any_large_one(project: OneModule, words: list[str]) -> None:
    words = [project.target if word == "APP" else word for word in words]
    for number in (1 << 63, 10**30):
        result = call(*words, str(number))
        assert (result.exit_code, result.stderr) == (call(*words, "1000").exit_code, "")


def test_a_dry_run_of_named_jobs_is_refused_with_what_shows_them(project: OneModule) -> None:
    assert_refused(call("jobs", "cancel", project.target, "1-1", "--dry-run"), 2, "--dry-run is for jobs that options")


# ------------------------------------------------------------------------------------------------------ apps


def test_the_address_of_a_store_is_not_an_app_and_its_password_is_not_shown() -> None:
    result = call("status", "postgresql://ada:geheim@db/shop")
    assert_refused(result, 1, "'postgresql://ada@db/shop' is the address of a store, not an app", "HEADGATE_URL")
    assert "geheim" not in result.output


def test_a_relative_module_is_no_app() -> None:
    assert_refused(call("status", ".shop:app"), 1, "'.shop:app' does not name an app")


@pytest.mark.parametrize("source", ["import sys\n\nsys.exit(0)\n", "def app():\n    raise SystemExit\n"])
def test_a_module_that_exits_is_an_error(tmp_path: Path, project: OneModule, source: str) -> None:
    """`headgate worker` ended with 0, as if it had drained."""
    name = f"{project.name}_exits"
    (tmp_path / f"{name}.py").write_text(source)
    assert_refused(call("status", f"{name}:app"), 1, "its module raised SystemExit")


# ---------------------------------------------------------------------------------------------- input, files


def test_lines_from_a_pipe_are_enqueued(project: OneModule, tmp_path: Path) -> None:
    """Of `--payloads <(…)` the lines were counted and so lost: nothing was enqueued, with exit code 0."""
    pipe = tmp_path / "lines"
    os.mkfifo(pipe)
    writing = threading.Thread(target=pipe.write_text, args=['{"tenant": "0"}\n{"tenant": "1"}\n'])
    writing.start()
    result = call("jobs", "enqueue", project.target, "sync", "--payloads", str(pipe))
    writing.join()
    assert result.exit_code == 0, result.output
    assert len(result.stdout.split()) == 2


def test_a_closed_input_is_an_empty_one(project: OneModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit) as ended:
        main(["schedules", "remove", project.target, "nightly"])
    assert ended.value.code == 1
    sys.stdin.close()


def test_an_answer_that_is_not_text_is_none(project: OneModule) -> None:
    result = call("schedules", "remove", project.target, "nightly", input=b"\xff\n")
    assert_refused(result, 1, "the answer is not text; write y or n, or add --yes")


def test_a_password_that_is_not_utf8_is_refused(project: OneModule) -> None:
    result = call("password", input=b"a long p\xffssphrase\n")
    assert_refused(result, 1, "the password is not UTF-8 text")


def test_files_that_are_not_utf8_are_named(project: OneModule, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"ada:admin:p\xffssword\n")
    secret.chmod(0o600)
    assert_refused(call("dashboard", project.target, "--users-file", str(secret)), 1, f"{secret} is not UTF-8 text")


@pytest.mark.parametrize(
    ("trace", "code"),
    [(b"0,\xff\n", 0), (b"nan,a\n1,b\n", 0), (b"0,a\n1e400,b\n", 1), (b"0,a\ninf,b\n", 1), (b"0," + b"a" * 200_000, 1)],
)
def test_a_hostile_trace_is_simulated_or_refused(tmp_path: Path, trace: bytes, code: int) -> None:
    (tmp_path / "trace.csv").write_bytes(trace)
    result = call("simulate", "--limit", "1/s", "--trace", str(tmp_path / "trace.csv"))
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_host_that_is_no_name_is_refused(project: OneModule, tmp_path: Path, host: str) -> None:
    (tmp_path / "word").write_text("a long password")
    (tmp_path / "word").chmod(0o600)
    word = str(tmp_path / "word")
    user = ("--user", "ada:admin", "--password-file", word)
    assert_refused(call("dashboard", project.target, "--host", host, *user), 2, f"--host {host} is no address")
    result = call("worker", project.target, "--drain", "--health-port", "9", "--health-host", host)
    assert result.exit_code == 1, result.output
    assert f"--health-port: cannot listen at {host}:9" in result.stderr.splitlines()[-1]
    with pytest.raises(HeadgateError, match=f"metrics cannot be served on {host}:9"):
        PrometheusMetrics(registry=CollectorRegistry()).serve(9, host)


def test_ports_above_the_highest_are_refused_before_workers_start(project: OneModule) -> None:
    result = call("worker", project.target, "--processes", "3", "--health-port", "65534")
    assert_refused(result, 2, "needs ports up to 65536; the highest port is 65535")


@pytest.mark.parametrize("calendar", ["on " + "9" * 5000, "on \u00b2"])
def test_a_calendar_of_thousands_of_digits_is_refused(project: OneModule, calendar: str) -> None:
    assert_refused(call("schedules", "create", project.target, "x", "sync", "--calendar", calendar), 1, "on=")


# ---------------------------------------------------------------------------------------------- interruptions


def test_a_bulk_change_that_is_stopped_reports_what_it_has_changed(
    project: OneModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(app: Any) -> None:
        await app.tasks["sync"].enqueue_many([(str(number),) for number in range(250)])

    project.do(work)
    cancel, calls = SqliteStorage.cancel, count(1)

    async def failing(self: SqliteStorage, *words: Any, **named: Any) -> Any:
        if next(calls) > 200:
            raise StorageUnavailable("the disk is gone")
        return await cancel(self, *words, **named)

    async def interrupted(self: SqliteStorage, *words: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(SqliteStorage, "cancel", failing)
    result = call("jobs", "cancel", project.target, "--task", "sync", "--yes")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "stopped: at least 200 jobs cancelled or asked to end; repeat the command for the rest",
        "Error: the disk is gone",
    ]
    with monkeypatch.context() as patch:
        patch.setattr(SqliteStorage, "jobs", interrupted)
        result = call("jobs", "cancel", project.target, "--task", "sync", "--yes", "--json")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.startswith("stopped: at least 0 jobs cancelled")
    project_left = call("jobs", "count", project.target, "--state", "waiting")
    assert project_left.stdout == "50\n"


def test_a_stopped_reschedule_by_a_delay_is_not_to_be_repeated_with_it(
    project: OneModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: "repeat the command", which with --delay moved the same jobs again, and the others last."""

    async def work(app: Any) -> None:
        await app.tasks["sync"].enqueue_many([(str(number),) for number in range(250)])

    project.do(work)
    reschedule, calls = SqliteStorage.reschedule, count(1)

    async def failing(self: SqliteStorage, *words: Any, **named: Any) -> Any:
        if next(calls) > 200:
            raise StorageUnavailable("the disk is gone")
        return await reschedule(self, *words, **named)

    monkeypatch.setattr(SqliteStorage, "reschedule", failing)
    result = call("jobs", "reschedule", project.target, "--task", "sync", "--delay", "1h", "--yes")
    assert result.stderr.splitlines() == [
        "stopped: at least 200 jobs rescheduled; repeat the command, with --at in place of --delay for the rest",
        "Error: the disk is gone",
    ]


def test_named_jobs_that_were_changed_before_ctrl_c_are_reported(
    project: OneModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = project.enqueue("sync", "acme"), project.enqueue("sync", "acme")
    cancel = Admin.cancel

    async def until_second(self: Admin, id: str) -> bool:
        if id == second:
            raise KeyboardInterrupt
        return await cancel(self, id)

    monkeypatch.setattr(Admin, "cancel", until_second)
    result = call("jobs", "cancel", project.target, first, second)
    assert result.exit_code == 130
    assert result.stdout == f"{first}: cancelled\n"
    assert result.stderr == "stopped: 1 of 2 jobs reported; the next may be changed\n"


def test_named_jobs_that_were_changed_before_the_store_was_lost_are_reported(
    project: OneModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: it went on to ask a store that was away for each of the others; or it reported no job at all."""
    ids = [project.enqueue("sync", "acme") for _ in range(3)]
    project.do(lambda app: app.admin.cancel_many(ids))
    retry = Admin.retry

    async def lost(*_: Any) -> None:
        raise StorageUnavailable("the server is gone")

    async def until_second(self: Admin, id: str) -> None:
        await (retry(self, id) if id == ids[0] else lost())

    monkeypatch.setattr(Admin, "retry", until_second)
    monkeypatch.setattr(Admin, "status", lost)
    result = call("jobs", "retry", project.target, *ids)
    assert result.exit_code == 1
    assert result.stdout == f"{ids[0]}: waits again\n"
    assert result.stderr.splitlines() == [
        "stopped: 1 of 3 jobs reported; the next may be changed", "Error: the server is gone"
    ]  # fmt: skip


def test_python_prints_no_traceback_for_an_output_that_ends(project: OneModule) -> None:
    for words in (["--help"], ["jobs", "--help"], ["jobs", "list", project.target], ["status", project.target]):
        process = subprocess.run(
            f"{sys.executable} -m headgate {' '.join(words)} | true",
            shell=True,
            cwd=project.path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.stderr == ""
